"""Tables of the study ``records``: sites that release a front beside every site alone; the family is the unit.

Every ratio is mean regret over mean regret of the best arm alone, chosen by family, number of records and measure after
the fact, which favours being alone; arms are paired by seed. Beside it stands the same over one arm alone for all
families, as a user would choose it beforehand. Means over families are geometric, with the interval of Student's t over
families. What a family loses is tested site by site, Holm-corrected over families.
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

# The best of the four on families for choosing, on average over both measures and 12, 5 and unlike sites.
_ONE = "alone, front of 4"
_BY_FAMILY = "n=1000, epsilon 1"


@settings(table="compared")
class Compared:
    """An arm over the best one alone, on one family.

    Attributes:
        group: Number of sites and purpose of the family.
        arm: Label.
        family: Name.
        measure: ``"mean"`` or ``"end"``.
        ours, alone: Regret.
        error: Of their ratio, over pairs.
        pairs: Sites times seeds.
        worse: Share of pairs in which ours is larger.
        one: Regret of the one arm alone for all families; None where the best alone is that arm's everywhere.
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
    one: float | None = None

    @property
    def ratio(self) -> Estimate:
        """Ours over alone, over pairs."""
        return Estimate(self.ours / self.alone, self.error, self.pairs)


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
        for measure in MEASURES if arm.series != "alone" and alone else ():
            seeds = sorted(set.intersection(*(set(found[label]) for label in (arm.label, *alone))))
            best = min((_regret(found, label, seeds, measure) for label in alone), key=lambda one: float(one.mean()))
            ours, single = (_regret(found, label, seeds, measure) for label in (arm.label, f"{size}, {_ONE}"))
            one = ratio(ours, best)
            yield Compared(
                group=group,
                arm=arm.label,
                family=family,
                measure=measure,
                ours=float(ours.mean()),
                alone=float(best.mean()),
                error=one.error,
                pairs=one.count,
                worse=float(np.mean(ours > best)),
                one=float(single.mean()) if len(alone) > 1 else None,
            )


def _regret(found: Found, label: str, seeds: Sequence[int], measure: Measure) -> FloatArray:
    return np.concatenate([found[label][seed].curves[f"{measure} by client"] for seed in seeds])


def _shown(every: Sequence[Compared]) -> Seen:
    groups = dict.fromkeys(one.group for one in every)
    parts = [_table(group, [one for one in every if one.group == group]) for group in groups]
    parts += [_by_family(group, [one for one in every if one.group == group]) for group in groups]
    return Seen(text="\n".join(filter(None, parts)), summary={"compared": [dump_settings(one) for one in every]})


def _table(group: str, every: Sequence[Compared]) -> str:
    beside = ["one arm"] if all(one.one for one in every) else []
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
            over_one = [Estimate(one.ours / one.one, math.inf, one.pairs) for one in families if one.one]
            worst = max(one.value for one in ratios)
            cells += [f"{geometric(ratios):.2f[}", *(f"{geometric(over_one).value:.2f}" for _ in beside)]
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
        f"| family | {_BY_FAMILY} | regret of the best alone |",
        "|---|---|---|",
    ]
    for family in dict.fromkeys(one.family for one in cells.values()):
        pair = [cells[family, measure] for measure in MEASURES]
        shown = " / ".join(f"{one.ratio:.2f}" for one in pair)
        lines.append(f"| {family} | {shown} | {' / '.join(f'{one.alone:.3f}' for one in pair)} |")
    return "\n".join([*lines, ""])
