"""What holds of the papers' figures: ``python -m experiments.verdicts FOLDER`` judges every summary of a folder.

A claim is that one arm loses less than another. It is *found* where the paired difference over seeds lies two
standard errors or more on the claimed side, *contradicted* where it lies so far on the other, and *open* between
them. That arms are alike within a share of the loss is found where the difference and two errors stay inside it,
contradicted where they stay outside. Of several arms together a verdict is found or contradicted where it is so of all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from experiments.claim import Claim
from experiments.stored import panels_of
from experiments.study import Panel, study, titles
from experiments.summary import Measure, Rows
from privbo.protocol.files import read_json

Verdict: TypeAlias = Literal["found", "open", "contradicted"]
ERRORS = 2.0
MEASURES = {"cumulative": "over all rounds", "last": "at the end"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim under one reading of the paper and one measure.

    Attributes:
        figure: Experiment's name.
        claim: What is judged.
        on: Panel's title, reading and measure in words.
        terms: Reading and measure, where either has an alternative.
        differences: Paired differences, one per arm.
        verdicts: One per arm.
    """

    figure: str
    claim: Claim
    on: str
    terms: str
    differences: tuple[Measure, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def verdict(self) -> str:
        """The verdict, with the count where arms differ."""
        if len(set(self.verdicts)) == 1:
            return self.verdicts[0]
        counts = ((kind, self.verdicts.count(kind)) for kind in ("found", "contradicted"))
        said = ", ".join(f"{kind} in {count} of {len(self.verdicts)}" for kind, count in counts if count)
        return f"open ({said})"

    @property
    def numbers(self) -> str:
        """The difference, or the range of differences."""
        if len(self.differences) == 1:
            return f"{shown(self.differences[0])}"
        means = sorted(self.differences, key=lambda one: one.mean)
        return f"{shown(means[0])} to {shown(means[-1])}"


def shown(difference: Measure) -> str:
    """Give a difference with its error, with as many digits as the error has.

    Example:
        >>> shown(Measure((), (-0.71, 0.2))), shown(Measure((), (0.0004, 0.00012)))
        ('-0.71 ± 0.20', '+0.0004 ± 0.0001')
    """
    digits = 2 if difference.error >= 0.0095 or not difference.error else 4
    return f"{difference.mean:+.{digits}f} ± {difference.error:.{digits}f}"


def judge(panel: Panel, rows: Rows, figure: str) -> Iterator[Judged]:
    """Judge every claim of a panel by every measure."""
    for claim in panel.claims:
        for measure in panel.judged or (panel.measure,):
            labels = [label for label in claim.of(rows) if measure in rows[label].minus.get(claim.than, {})]
            if not labels:
                continue
            differences = tuple(rows[label].minus[claim.than][measure] for label in labels)
            terms = [panel.reading, MEASURES.get(measure, measure) if panel.judged else ""]
            yield Judged(
                figure=figure,
                claim=claim,
                on=panel.title,
                terms=", ".join(filter(None, terms)),
                differences=differences,
                verdicts=tuple(_verdict(one, claim, rows[claim.than].measures[measure]) for one in differences),
            )


def _verdict(difference: Measure, claim: Claim, other: Measure) -> Verdict:
    mean, error = difference.mean, ERRORS * difference.error
    if claim.within is not None:
        mean = abs(mean) - claim.within * other.mean
    if mean + error < 0:
        return "found"
    return "contradicted" if mean - error > 0 else "open"


def every(folder: Path, names: Iterable[str] = ()) -> list[Judged]:
    """Judge the summaries of a folder, in the order of the studies."""
    found: list[Judged] = []
    for name in titles():
        path = folder / f"{name.removeprefix(f'{folder.name}-')}.json"
        if path.exists() and name not in set(names):
            for panel, rows in panels_of(study(name, "paper"), read_json(path)):
                found.extend(judge(panel, rows, name.removeprefix(f"{folder.name}-")))
    return found


def table(judged: Sequence[Judged]) -> str:
    """Give the findings as Markdown, one row per claim: found under X, not under Y."""
    lines = ["| figure | the paper says | verdict | differences |", "|---|---|---|---|"]
    for cells in _by_claim(judged):
        claim = cells[0].claim
        said = f"*our control:* {claim.says}" if claim.ours else claim.says
        lines.append(f"| {cells[0].figure} | {said} | {sentence(cells)} | {numbers(cells)} |")
    return "\n".join(lines)


def digest(judged: Sequence[Judged]) -> str:
    """Give the papers' claims by what became of them, as a short Markdown table without numbers."""
    found: dict[str, list[str]] = {}
    for cells in _by_claim(judged):
        if not cells[0].claim.ours:
            found.setdefault(sentence(cells), []).append(f"{cells[0].claim.says} ({cells[0].figure})")
    lines = [f"| {said} | {'; '.join(claims)} |" for said, claims in found.items()]
    return "\n".join(["| verdict | the paper's claims (figure) |", "|---|---|", *lines])


def _by_claim(judged: Sequence[Judged]) -> list[list[Judged]]:
    claims: dict[tuple[str, str, str], list[Judged]] = {}
    for one in judged:
        claims.setdefault((one.figure, one.claim.says, _problem(one)), []).append(one)
    return list(claims.values())


def _problem(one: Judged) -> str:
    reading = one.terms.split(", ")[0]
    return one.on.removesuffix(f", {reading}")


def sentence(cells: Sequence[Judged]) -> str:
    """Give the verdicts of one claim in one sentence."""
    if len({one.verdict for one in cells}) == 1:
        return f"**{cells[0].verdict}**" + (" under both" if len(cells) > 1 else "")
    return "; ".join(f"**{one.verdict}** {one.terms}" for one in cells)


def numbers(cells: Sequence[Judged]) -> str:
    """Give the differences of one claim, in the order of the readings."""
    return "; ".join(f"{one.numbers}" + (f" {one.terms}" if one.terms else "") for one in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts of a folder of summaries."""
    parser = argparse.ArgumentParser(prog="python -m experiments.verdicts", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of summaries, as docs/results/dp-fts-de")
    sys.stdout.write(table(every(parser.parse_args(arguments).folder)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
