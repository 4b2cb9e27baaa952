"""What holds of the papers' figures: ``python -m experiments.verdicts FOLDER`` judges every summary of a folder.

A claim is that one arm loses less than another. It is *found* where the paired difference over seeds lies on the
claimed side and *contradicted* where it lies on the other, each by Student's t at level .05 after Holm's adjustment
for everything that is judged of one paper. Else it is *open*, which says that too few seeds were run to tell. That arms
are alike within a share of the loss is found where both differences to the ends of that range are, and where the arm
beats every control of its panel; two arms that do nothing are alike too. Of several arms together a verdict is found or
contradicted where it is so of all. A verdict is *withdrawn* where the setting is not the paper's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from scipy.special import stdtr

from experiments.claim import Claim
from experiments.stored import panels_of
from experiments.study import Panel, study, titles
from experiments.summary import Measure, Row, Rows
from privbo.comparisons.verdict import holm
from privbo.protocol.files import read_json

Verdict: TypeAlias = Literal["found", "open", "contradicted"]
LEVEL = 0.05
MEASURES = {"cumulative": "over all rounds", "last": "at the end"}


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A paired difference of one arm, and how probable so much is by chance.

    Attributes:
        difference: Over seeds.
        p_found: Of a difference so far on the claimed side.
        p_against: Of a difference so far on the other.
    """

    difference: Measure
    p_found: float
    p_against: float

    @property
    def verdict(self) -> Verdict:
        """Found, contradicted, or open."""
        if self.p_found <= LEVEL / 2:  # two-sided
            return "found"
        return "contradicted" if self.p_against <= LEVEL / 2 else "open"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim under one reading of the paper and one measure.

    Attributes:
        figure: Experiment's name.
        claim: What is judged.
        on: Panel's title, reading and measure in words.
        terms: Reading and measure, where either has an alternative.
        tested: One per arm.
        seeds: Fewest seeds of an arm.
        withdrawn: Why it is not judged; empty where it is.
    """

    figure: str
    claim: Claim
    on: str
    terms: str
    tested: tuple[Tested, ...]
    seeds: int
    withdrawn: str = ""

    @property
    def verdict(self) -> str:
        """The verdict, with the count where arms differ."""
        if self.withdrawn:
            return "withdrawn"
        verdicts = [one.verdict for one in self.tested]
        if len(set(verdicts)) == 1:
            return verdicts[0]
        counts = ((kind, verdicts.count(kind)) for kind in ("found", "contradicted"))
        said = ", ".join(f"{kind} in {count} of {len(verdicts)}" for kind, count in counts if count)
        return f"open ({said})"

    @property
    def numbers(self) -> str:
        """The difference, or the range of differences."""
        means = sorted((one.difference for one in self.tested), key=lambda one: one.mean)
        return " to ".join(dict.fromkeys((shown(means[0]), shown(means[-1]))))


def shown(difference: Measure) -> str:
    """Give a difference with its error, with as many digits as the error has.

    Example:
        >>> shown(Measure((), (-0.71, 0.2))), shown(Measure((), (0.0004, 0.00012)))
        ('-0.71 ± 0.20', '+0.0004 ± 0.0001')
    """
    digits = 2 if difference.error >= 0.0095 or not difference.error else 4
    return f"{difference.mean:+.{digits}f} ± {difference.error:.{digits}f}"


def judge(panel: Panel, rows: Rows, figure: str) -> Iterator[Judged]:
    """Judge every claim of a panel by every measure, each on its own: ``together`` adjusts them."""
    for claim in panel.claims:
        for measure in panel.judged or (panel.measure,):
            labels = [label for label in claim.of(rows) if measure in rows[label].minus.get(claim.than, {})]
            if not labels:
                continue
            terms = [panel.reading, MEASURES.get(measure, measure) if panel.judged else ""]
            yield Judged(
                figure=figure,
                claim=claim,
                on=panel.title,
                terms=", ".join(filter(None, terms)),
                tested=tuple(_tested(rows[label], claim, rows[claim.than], panel, measure) for label in labels),
                seeds=min(len(rows[label].seeds) for label in labels),
                withdrawn=panel.withdrawn,
            )


def _tested(row: Row, claim: Claim, other: Row, panel: Panel, measure: str) -> Tested:
    difference, seeds = row.minus[claim.than][measure], len(row.seeds)
    if claim.within is None:
        return Tested(
            difference=difference,
            p_found=p_below(difference, seeds),
            p_against=p_below(Measure((), (-difference.mean, difference.error)), seeds),
        )
    margin = claim.within * other.measures[measure].mean
    above = Measure((), (difference.mean - margin, difference.error))
    below = Measure((), (-difference.mean - margin, difference.error))
    controls = [row.minus[name][measure] for name in panel.controls if measure in row.minus.get(name, {})]
    inside = [p_below(one, seeds) for one in (above, below, *controls)]
    outside = [p_below(Measure((), (-one.mean, one.error)), seeds) for one in (above, below)]
    return Tested(difference=difference, p_found=max(inside), p_against=min(1.0, 2.0 * min(outside)))


def p_below(difference: Measure, seeds: int) -> float:
    """Give the probability of a mean so far below 0 by chance, by Student's t; where all seeds agree, by their signs.

    Example:
        >>> round(p_below(Measure((), (-2.26, 1.0)), 10), 3), p_below(Measure((), (-1.0, 0.0)), 4)
        (0.025, 0.0625)
    """
    if seeds < 2:
        return 1.0
    if difference.error == 0.0:
        return float(0.5**seeds) if difference.mean < 0.0 else 1.0
    return float(stdtr(seeds - 1, difference.mean / difference.error))


def together(judged: Sequence[Judged]) -> list[Judged]:
    """Adjust what is judged of one paper for its number (Holm 1979), either side on its own."""
    every = [one for claim in judged for one in claim.tested]
    counted = [not claim.withdrawn for claim in judged for _ in claim.tested]
    found, against = (
        holm([getattr(one, side) if counts else None for one, counts in zip(every, counted, strict=True)])
        for side in ("p_found", "p_against")
    )
    adjusted = iter(
        one if p is None or q is None else replace(one, p_found=p, p_against=q)
        for one, p, q in zip(every, found, against, strict=True)
    )
    return [replace(claim, tested=tuple(next(adjusted) for _ in claim.tested)) for claim in judged]


def every(folder: Path, names: Iterable[str] = ()) -> list[Judged]:
    """Judge the summaries of a folder together, in the order of the studies."""
    found: list[Judged] = []
    for name in titles():
        path = folder / f"{name.removeprefix(f'{folder.name}-')}.json"
        if path.exists() and name not in set(names):
            for panel, rows in panels_of(study(name, "paper"), read_json(path)):
                found.extend(judge(panel, rows, name.removeprefix(f"{folder.name}-")))
    return together(found)


def table(judged: Sequence[Judged]) -> str:
    """Give the findings as Markdown, one row per claim: found under X, open under Y."""
    lines = ["| figure | the paper says | verdict | differences | seeds |", "|---|---|---|---|---|"]
    for cells in _by_claim(judged):
        claim = cells[0].claim
        said = f"*our control:* {claim.says}" if claim.ours else claim.says
        seeds = min(one.seeds for one in cells)
        lines.append(f"| {cells[0].figure} | {said} | {sentence(cells)} | {numbers(cells)} | {seeds} |")
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
    if cells[0].withdrawn:
        return f"**withdrawn**: {cells[0].withdrawn}"
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
