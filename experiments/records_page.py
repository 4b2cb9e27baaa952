"""Tables of the study ``records``: sites that release a front beside every site alone; the family is the unit.

Every ratio is mean regret over mean regret of the arm alone that was best on families for choosing; sites are paired
with themselves, on average over the seeds that draw them. Beside it stands the same over the best arm alone in
hindsight, chosen by family, number of records and measure, which favours being alone. Means over families are
geometric, with the interval of Student's t over families. What a family loses is tested site by site, Holm-corrected
over families.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from experiments.cells import Found
from experiments.run import Seen
from experiments.statistics import Estimate, geometric, losing, ratio
from experiments.study import Panel
from experiments.worth import MEASURES, Measure
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import JsonObject, dump_settings, read_settings, settings

ALONE = "alone, front of 4"  # the best of the four on families for choosing; has the start that is shared
_BY_FAMILY = "n=1000, epsilon 1"


@settings(table="compared")
class Compared:
    """An arm over the one alone, on one family.

    Attributes:
        group: Number of sites and purpose of the family.
        arm: Label.
        family: Name.
        measure: ``"mean"`` or ``"end"``.
        ours, alone: Regret.
        error: Of their ratio, over pairs.
        pairs: Sites; sites times seeds where no two seeds have one alike.
        worse: Share of pairs in which ours is larger.
        best: Regret of the best arm alone in hindsight; None where there is one arm alone.
    """

    group: str
    arm: str
    family: str
    measure: Measure
    ours: float
    alone: float
    error: float
    pairs: int
    worse: float
    best: float | None = None

    @property
    def ratio(self) -> Estimate:
        """Ours over alone, over pairs."""
        return Estimate(self.ours / self.alone, self.error, self.pairs)

    @property
    def hindsight(self) -> float:
        """Ours over the best arm alone in hindsight."""
        return self.ours / (self.best or self.alone)


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over families, and what they are made of as JSON."""
    return _shown([one for panel, found in panels for one in _of_panel(panel, found)])


def again(kept: JsonObject) -> Seen:
    """Give the same tables from what is kept."""
    return _shown([read_settings(Compared, one, "compared") for one in cast("list[JsonObject]", kept["compared"])])


def _of_panel(panel: Panel, found: Found) -> Iterator[Compared]:
    family, _, place = panel.title.rpartition(", ")
    group = f"{place}, {'families for choosing' if panel.purpose == 'choosing' else 'frozen families'}"
    arms = [arm for arm in panel.arms if arm.label in found]
    for arm in arms:
        size = arm.label.partition(",")[0]
        alone = [one.label for one in arms if one.series == "alone" and one.label.startswith(f"{size},")]
        is_shown = arm.series != "alone" or panel.purpose == "choosing"  # there engines alone are compared
        for measure in MEASURES if is_shown and alone else ():
            seeds = sorted(set.intersection(*(set(found[label]) for label in (arm.label, *alone))))
            best = min(float(_regret(found, label, seeds, measure).mean()) for label in alone)
            ours, own = (_regret(found, label, seeds, measure) for label in (arm.label, f"{size}, {ALONE}"))
            one = ratio(ours, own)
            yield Compared(
                group=group,
                arm=arm.label,
                family=family,
                measure=measure,
                ours=float(ours.mean()),
                alone=float(own.mean()),
                error=one.error,
                pairs=one.count,
                worse=float(np.mean(ours > own)),
                best=best if len(alone) > 1 else None,
            )


def _regret(found: Found, label: str, seeds: Sequence[int], measure: Measure) -> FloatArray:
    """Regret of every site, on average over the seeds that draw it; of every site and seed where they share none."""
    curves = [found[label][seed].curves for seed in seeds]
    values = np.concatenate([curve[f"{measure} by client"] for curve in curves])
    numbers = [curve["number by client"] for curve in curves if "number by client" in curve]
    if len(numbers) < len(curves):
        return values
    order = np.concatenate(numbers).astype(np.int64)
    totals, counts = np.bincount(order, values), np.bincount(order)
    return np.asarray(totals[counts > 0] / counts[counts > 0], dtype=np.float64)


def _shown(every: Sequence[Compared]) -> Seen:
    groups = dict.fromkeys(one.group for one in every)
    parts = [_table(group, [one for one in every if one.group == group]) for group in groups]
    parts += [_by_family(group, [one for one in every if one.group == group]) for group in groups]
    return Seen(text="\n".join(filter(None, parts)), summary={"compared": [dump_settings(one) for one in every]})


def _table(group: str, every: Sequence[Compared]) -> str:
    beside = ["in hindsight"] if all(one.best for one in every) else []
    heads = [
        head for measure in ("mean over evaluations", "at the end") for head in (measure, *beside, "worst", "lose")
    ]
    count = len({one.family for one in every})
    lines = [
        f"**{group}**",
        "",
        f"| {count} families | {' | '.join(heads)} | sites worse |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for arm in sorted({one.arm for one in every}, key=_order):
        cells = [arm]
        for measure in MEASURES:
            families = [one for one in every if one.arm == arm and one.measure == measure]
            ratios = [one.ratio for one in families]
            in_hindsight = geometric([Estimate(one.hindsight, math.inf, one.pairs) for one in families]).value
            worst = max(one.value for one in ratios)
            cells += [f"{geometric(ratios):.2f[}", *(f"{in_hindsight:.2f}" for _ in beside)]
            cells += [f"{worst:.2f}", str(losing(ratios))]
        worse = np.mean([one.worse for one in every if one.arm == arm and one.measure == "mean"])
        lines.append(f"| {' | '.join(cells)} | {100 * worse:.0f} % |")
    return "\n".join([*lines, ""])


def _order(arm: str) -> tuple[int, float, str]:
    size, _, rest = arm.partition(", ")
    level = rest.partition(",")[0].removeprefix("epsilon ")
    return int(size.removeprefix("n=")), float(level) if level[0].isdigit() else math.inf, rest


def _by_family(group: str, every: Sequence[Compared]) -> str:
    cells = {(one.family, one.measure): one for one in every if one.arm == _BY_FAMILY}
    if not cells:
        return ""
    lines = [
        f"**By family: {group}** (mean over evaluations / at the end; standard errors over sites)",
        "",
        f"| family | {_BY_FAMILY} | regret alone |",
        "|---|---|---|",
    ]
    for family in dict.fromkeys(one.family for one in cells.values()):
        pair = [cells[family, measure] for measure in MEASURES]
        shown = " / ".join(f"{one.ratio:.2f}" for one in pair)
        lines.append(f"| {family} | {shown} | {' / '.join(f'{one.alone:.3f}' for one in pair)} |")
    return "\n".join([*lines, ""])
