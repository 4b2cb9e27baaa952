"""Tables of the study ``records``: sites that release a front beside every site alone; the family is the unit.

Every ratio is mean regret over mean regret of the best arm alone, chosen by family, number of records and measure after
the fact, which favours being alone; arms are paired by seed. Means over families are geometric, with the interval of
Student's t over families. What a family loses is tested site by site, Holm-corrected over families.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from experiments.cells import Found
from experiments.run import Seen
from experiments.study import Panel
from experiments.worth import MEASURES, Measure, Ratio
from privbo.protocol.settings import JsonObject

_LEVEL = 0.05


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over families, and what they are made of as JSON."""
    kept: JsonObject = {}
    for panel, found in panels:
        family, _, place = panel.title.rpartition(", ")
        group = f"{place}, {'families for choosing' if panel.purpose == 'choosing' else 'frozen families'}"
        alone = [arm.label for arm in panel.arms if arm.series == "alone" and arm.label in found]
        for arm in panel.arms:
            size = arm.label.partition(",")[0]
            base = [label for label in alone if label.startswith(f"{size},")]
            if arm.series != "alone" and base and arm.label in found:
                entry = {m: _compared(found, arm.label, base, m) for m in MEASURES}
                kept.setdefault(group, {}).setdefault(arm.label, {})[family] = entry
    return again(kept)


def _compared(found: Found, label: str, alone: Sequence[str], measure: Measure) -> JsonObject:
    """An arm over the best one alone: regrets, the error of the ratio over sites, and the share of sites that lose."""
    seeds = sorted(set.intersection(*(set(found[one]) for one in (label, *alone))))
    regret = lambda one: np.concatenate([found[one][s].curves[f"{measure} by client"] for s in seeds])  # noqa: E731
    best = min((regret(one) for one in alone), key=np.mean)
    ours = regret(label)
    ratio = Ratio.of(ours, best)
    return {
        "ours": float(ours.mean()),
        "alone": float(best.mean()),
        "error": ratio.error,
        "sites": ratio.seeds,
        "worse": float(np.mean(ours > best)),
    }


def again(kept: JsonObject) -> Seen:
    """Give the same tables from what is kept."""
    parts = [_table(group, kept[group]) for group in kept]
    parts += [_by_family(group, kept[group]) for group in kept if "n=1000, epsilon 1" in kept[group]]
    return Seen(text="\n".join(parts), summary=kept)


def _table(group: str, arms: JsonObject) -> str:
    lines = [
        f"**{group}** (over the best arm alone, with 95 % over families; the worst family; how many lose, by Holm's test",
        "over sites; share of sites that do worse than alone)",
        "",
        "| arm | families | mean over evaluations | worst | lose | at the end | worst | lose | sites worse |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for label in sorted(arms, key=_order):
        families = list(arms[label].values())
        cells = [f"| {label} | {len(families)}"]
        for measure in MEASURES:
            ratios = np.array([one[measure]["ours"] / one[measure]["alone"] for one in families])
            cells += [_interval(ratios), f"{ratios.max():.2f}", str(_losing(families, measure))]
        worse = np.mean([one["mean"]["worse"] for one in families])
        lines.append(" | ".join([*cells, f"{100 * worse:.0f} % |"]))
    return "\n".join([*lines, ""])


def _order(label: str) -> tuple[int, float, str]:
    size, _, rest = label.partition(", ")
    level = rest.partition(",")[0].removeprefix("epsilon ")
    return int(size.removeprefix("n=")), float(level) if level[0].isdigit() else math.inf, rest


def _interval(ratios: np.typing.NDArray[np.float64]) -> str:
    logs = np.log(ratios)
    if len(logs) < 2:
        return f"{ratios[0]:.2f}"
    reach = float(student.ppf(1.0 - _LEVEL / 2, len(logs) - 1)) * logs.std(ddof=1) / math.sqrt(len(logs))
    low, middle, high = np.exp(logs.mean() + np.array([-reach, 0.0, reach]))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _losing(families: Sequence[JsonObject], measure: Measure) -> int:
    """Families whose ratio lies above 1 by Holm's test of all of them at 5 %."""
    found = []
    for one in (family[measure] for family in families):
        gap = one["ours"] / one["alone"] - 1.0
        error = max(one["error"], 1e-12)
        found.append(float(student.sf(gap / error, one["sites"] - 1)) if gap > 0 else 1.0)
    count = 0
    for rank, value in enumerate(sorted(found)):
        if value > _LEVEL / (len(found) - rank):
            break
        count += 1
    return count


def _by_family(group: str, arms: JsonObject) -> str:
    chosen = {label: arms[label] for label in ("n=1000, epsilon 1", "n=1000, epsilon 1, noise only") if label in arms}
    lines = [
        f"**By family: {group}** (mean over evaluations / at the end; standard errors over sites in brackets)",
        "",
        "| family | " + " | ".join(chosen) + " | regret of the best alone |",
        "|---|" + "---|" * (len(chosen) + 1),
    ]
    for family in next(iter(chosen.values())):
        cells, one = [], {}
        for label in chosen:
            one = chosen[label][family]
            parts = [f"{one[m]['ours'] / one[m]['alone']:.2f} ({one[m]['error']:.2f})" for m in MEASURES]
            cells.append(" / ".join(parts))
        alone = " / ".join(f"{one[m]['alone']:.3f}" for m in MEASURES)
        lines.append(f"| {family} | " + " | ".join(cells) + f" | {alone} |")
    return "\n".join([*lines, ""])
