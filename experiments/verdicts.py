"""What holds of the papers' figures: ``python -m experiments verdicts`` judges every stored summary.

A claim is that one arm loses less than another. It is *found* where the paired difference over seeds lies on the
claimed side and *contradicted* where it lies on the other, each by Student's t at level .05 after Holm's adjustment
for everything that is judged of one paper. Else it is *open*, which says that too few seeds were run to tell. That arms
are alike within a share of the loss is found where both differences to the ends of that range are, and where the arm
beats every control of its panel, its noise alone too; two arms that do nothing are alike as well. Of several arms
together a verdict is found or contradicted where it is so of all. That one such arm *exists* is found where it is so
of the best one, by Bonferroni over those that were tried, and contradicted by none. A verdict is *withdrawn* where the
setting is not the paper's.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from experiments.statistics import LEVEL, Measure
from experiments.stored import panels_of
from experiments.study import Claim, Panel, study, titles
from experiments.summary import Row, Rows, zeroed
from privbo.comparisons.verdict import holm
from privbo.protocol.files import read_json

Verdict: TypeAlias = Literal["found", "open", "contradicted"]
RESULTS = Path(__file__).parents[1] / "docs/results"
FOLDERS = ("dp-fts-de", "elimination", "f-lcb")
# How the names of a paper's studies begin.
PAPERS = {
    "dp-fts-de": "DP-FTS-DE",
    "fed-pne": "Fed-PNE",
    "pf-pne": "PF-PNE",
    "parallel": "parallel bandit",
    "f-lcb": "F-LCB",
    "neural": "F-LCB",
    "private": "private eliminations (ours)",
}


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
    """A claim, judged.

    Attributes:
        paper: The paper that claims it.
        figure: Experiment's name, without the paper's.
        claim: What is judged.
        tested: One per arm; of a claim that one exists the best alone.
        seeds: Fewest seeds of an arm.
        withdrawn: Why it is not judged; empty where it is.
    """

    paper: str
    figure: str
    claim: Claim
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

    @property
    def p(self) -> str:
        """The two-sided p after Holm's adjustment, the largest of several arms; of the side the difference lies on."""
        p = max(min(1.0, 2.0 * min(one.p_found, one.p_against)) for one in self.tested)
        return "< .0001" if p < 1e-4 else f"{p:.2g}".removeprefix("0")


def shown(difference: Measure) -> str:
    """Give a difference with its error, with as many digits as the error has.

    Example:
        >>> shown(Measure((), (-0.71, 0.2))), shown(Measure((), (0.0004, 0.00012)))
        ('-0.71 ± 0.20', '+0.0004 ± 0.0001')
    """
    digits = 2 if difference.error >= 0.0095 or not difference.error else 4
    return f"{difference.mean:+.{digits}f} ± {difference.error:.{digits}f}"


def judge(panel: Panel, rows: Rows, name: str) -> Iterator[Judged]:
    """Judge every claim of a panel of an experiment, each on its own: ``together`` adjusts them."""
    start = next((start for start in PAPERS if name.startswith(start)), "")
    for claim in panel.claims:
        measure = claim.by or panel.measure
        labels = [label for label in claim.of(rows) if measure in rows[label].minus.get(claim.than, {})]
        if not labels:
            continue
        tested = [_tested(rows[label], claim, rows, panel, measure) for label in labels]
        if claim.exists:
            best = min(tested, key=lambda one: one.p_found)
            tested = [replace(best, p_found=min(1.0, best.p_found * len(tested)), p_against=1.0)]
        yield Judged(
            paper=PAPERS.get(start, ""),
            figure=name.removeprefix(f"{start}-") if start in FOLDERS else name,
            claim=claim,
            tested=tuple(tested),
            seeds=min(
                len(rows[label].minus[claim.than][measure].by_seed) or len(rows[label].seeds) for label in labels
            ),
            withdrawn="" if claim.stands else panel.withdrawn,
        )


def _tested(row: Row, claim: Claim, rows: Rows, panel: Panel, measure: str) -> Tested:
    difference = row.minus[claim.than][measure]
    found = difference.over(len(row.seeds))
    if claim.within is None:
        return Tested(difference=difference, p_found=found.below(), p_against=found.above())
    margin = claim.within * rows[claim.than].measures[measure].mean
    names = {*panel.controls, zeroed(row.label, rows, panel)} - {claim.than}
    controls = [row.minus[name][measure] for name in names if name and measure in row.minus.get(name, {})]
    inside = [found.below(margin), found.above(-margin), *(one.over(found.count).below() for one in controls)]
    outside = min(found.above(margin), found.below(-margin))
    return Tested(difference=difference, p_found=max(inside), p_against=min(1.0, 2.0 * outside))


def together(judged: Sequence[Judged]) -> list[Judged]:
    """Adjust what is judged of one paper for its number (Holm 1979), either side on its own."""
    every = [one for claim in judged for one in claim.tested]
    papers = [claim.paper for claim in judged for _ in claim.tested]
    counted = [not claim.withdrawn for claim in judged for _ in claim.tested]
    for paper in dict.fromkeys(papers):
        chosen = [counts and mine == paper for counts, mine in zip(counted, papers, strict=True)]
        found, against = (
            holm([getattr(one, side) if counts else None for one, counts in zip(every, chosen, strict=True)])
            for side in ("p_found", "p_against")
        )
        every = [
            one if p is None or q is None else replace(one, p_found=p, p_against=q)
            for one, p, q in zip(every, found, against, strict=True)
        ]
    adjusted = iter(every)
    return [replace(claim, tested=tuple(next(adjusted) for _ in claim.tested)) for claim in judged]


def every(*folders: Path) -> list[Judged]:
    """Judge the summaries of folders, in the order of the studies; of all papers where none is named."""
    found: list[Judged] = []
    for folder in folders or tuple(RESULTS / name for name in FOLDERS):
        for name in titles():
            path = folder / f"{name.removeprefix(f'{folder.name}-')}.json"
            if path.exists():
                for panel, rows in panels_of(study(name, "paper"), read_json(path)):
                    found.extend(judge(panel, rows, name))
    return together(found)


def table(judged: Sequence[Judged]) -> str:
    """Give the findings as Markdown: a table per paper, withdrawn figures by name.

    Claims of one figure that differ in one word share a row, and each is named by its word.
    """
    parts = []
    for paper in dict.fromkeys(one.paper for one in judged):
        rows = [_cells(alike) for alike in _alike([one for one in judged if one.paper == paper and not one.withdrawn])]
        heads = ("figure", "claim", "verdict, difference (p, adjusted)", "seeds")
        first = int(all(row[0] in PAPERS for row in rows))  # one experiment, of the paper's own name
        shown_columns = range(first, len(heads))
        lines = [f"| {' | '.join(row[column] for column in shown_columns)} |" for row in (heads, *rows)]
        lines.insert(1, "|---" * len(shown_columns) + "|")
        parts.append("\n".join([f"**{paper}**", "", *lines]))
    withdrawn: dict[str, list[str]] = {}
    for one in judged:
        if one.withdrawn:
            withdrawn.setdefault(one.withdrawn, []).append(one.figure)
    parts += [
        "\n".join(textwrap.wrap(f"Withdrawn, figures {', '.join(dict.fromkeys(figures))}: {reason}.", 119))
        for reason, figures in withdrawn.items()
    ]
    return "\n\n".join(parts)


def _alike(judged: Iterable[Judged]) -> list[list[Judged]]:
    """Give claims of one figure together where the same one word is all in which they differ."""
    groups: list[list[Judged]] = []
    for one in judged:
        for group in groups:
            places = _differing(group[0], one)
            if len(places) == 1 and (len(group) == 1 or places == _differing(*group[:2])):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _differing(one: Judged, other: Judged) -> list[int]:
    """Give the places of the words in which two claims differ; none where something else differs, too."""
    words, others = one.claim.says.split(), other.claim.says.split()
    alike = (one.figure, one.claim.ours, len(words)) == (other.figure, other.claim.ours, len(others))
    return [place for place, pair in enumerate(zip(words, others, strict=True)) if pair[0] != pair[1]] if alike else []


def _cells(alike: Sequence[Judged]) -> tuple[str, ...]:
    first, says = alike[0], alike[0].claim.says
    found = [f"**{one.verdict}** {one.numbers} ({one.p})" for one in alike]
    if len(alike) > 1:
        (place,) = _differing(*alike[:2])
        words = says.split()
        says = " ".join([*words[:place], "...", *words[place + 1 :]])
        found = [f"{one.claim.says.split()[place].strip(',:')}: {cell}" for one, cell in zip(alike, found, strict=True)]
    elif first.claim.chosen and first.claim.chosen not in says:
        says += f" (ours: {first.claim.chosen})"
    if first.claim.ours:
        says = f"*our control:* {says}"
    return (first.figure, says, "; ".join(found), ", ".join(dict.fromkeys(str(one.seeds) for one in alike)))


def counts(judged: Sequence[Judged]) -> str:
    """Give how many of every paper's claims became what."""
    kinds = ("found", "contradicted", "open", "withdrawn")
    lines = []
    for paper in dict.fromkeys(one.paper for one in judged):
        said = Counter(one.verdict.split()[0] for one in judged if one.paper == paper and not one.claim.ours)
        lines.append(f"| {paper} | " + " | ".join(str(said[kind]) for kind in kinds) + " |")
    return "\n".join(["| paper | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|", *lines])
