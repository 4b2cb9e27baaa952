"""Tables and picture of the leaderboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.board import HOUSE, Standing, classed, common, is_ours, recommended, standings
from experiments.cells import Found
from experiments.figure import png_of
from experiments.played import Played, kept, played, read
from experiments.run import Seen
from experiments.statistics import Estimate
from experiments.study import Panel
from experiments.worth import Measure, families
from privbo.protocol.settings import JsonObject

CRITERION = (
    "One of our algorithms is recommended if it\n"
    "beats the best independent method and its own noise-only control (Student's t over families, level .05,\n"
    "by Holm over the table). Regret is divided by that of the best independent method. Families held out\n"
    "when their table was first printed are counted in brackets."
)
NAMED = 2.0  # epsilon of the tables that have one only
HEADS = (
    "algorithm",
    "rank",
    "rank, all",
    "regret, mean",
    "at the end",
    "noise only, mean",
    "worse off than alone",
    "families won",
)


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give tables over all families, what they are made from as JSON, and the picture."""
    # A family of which some arms are missing yet would rank the others too well.
    every = [family for family in families(panels) if len(family.arms) == len(family.panel.arms)]
    return again(kept(map(played, every)))


def again(summary: JsonObject) -> Seen:
    """Give the same from what was kept."""
    every = read(summary)
    if not every:
        return Seen(text="", summary={})
    reporting = [family for family in every if family.purpose != "choosing"] or every
    levels = epsilons(every)
    boards = {epsilon: standings(reporting, epsilon) for epsilon in levels}
    named = NAMED if NAMED in levels else levels[-1]
    parts = [
        _board(every, reporting, named, boards[named]),
        _levels(boards),
        _classes(every, named),
        _wins(every, levels),
        _common(every, levels),
    ]
    return Seen(text="\n".join(parts), summary=summary, pictures={"figure": draw(boards)})


def epsilons(every: Sequence[Played]) -> list[float]:
    """Give the epsilons that private arms have in all families."""
    found = [{entry.epsilon for entry in family.entries.values() if entry.epsilon is not None} for family in every]
    return sorted(set.intersection(*found)) if found else []


def _board(every: Sequence[Played], reporting: Sequence[Played], epsilon: float, board: Sequence[Standing]) -> str:
    ranks = {one.name: one.rank for one in standings(every, epsilon)}
    lines = [
        f"**Leaderboard at epsilon {epsilon:g}**",
        "",
        f"Held-out families: {len(reporting)}; the second rank is over all {len(every)}. Ranks have 95 % intervals.",
        "Regret is divided by that of the best independent method (geometric mean). Standard errors are in brackets.",
        "",
        f"| {' | '.join(HEADS)} |",
        "|---" * len(HEADS) + "|",
    ]
    lines += [f"| {_row(one, ranks[one.name], len(reporting))} |" for one in board]
    return "\n".join([*lines, ""])


def _levels(boards: dict[float, list[Standing]]) -> str:
    """Regret over all evaluations at every epsilon, in the order of the last."""
    found = {epsilon: {one.name: one.ratios["mean"] for one in board} for epsilon, board in boards.items()}
    lines = [
        "**Regret at each epsilon** (held-out families, divided by that of the best independent method)",
        "",
        "| algorithm | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in boards) + " |",
        "|---" * (1 + len(boards)) + "|",
    ]
    names = [one.name for one in next(reversed(boards.values())) if not one.name.startswith("alone")]
    for name in names:
        cells = [f"{found[epsilon][name]:.2f}" if name in found[epsilon] else "-" for epsilon in boards]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _row(one: Standing, overall: Estimate | None, count: int) -> str:
    name = one.name if one.families == count else f"{one.name} ({one.families} families)"
    ranks = ("-" if rank is None else f"{rank:.1f±}" for rank in (one.rank, overall))
    worse = "-" if one.worse is None else f"{100 * one.worse:.0f} %"
    means, ends = (f"{one.ratios[m]:.2f}" for m in ("mean", "end"))
    return " | ".join([name, *ranks, means, ends, or_dash(one.zeroed.get("mean")), worse, str(len(one.won))])


def or_dash(ratio: Estimate | None) -> str:
    """Give a ratio with its error; a dash without one."""
    return "-" if ratio is None else f"{ratio:.2f}"


def _wins(every: Sequence[Played], levels: Sequence[float]) -> str:
    """Classes on which each of our algorithms is recommended and the epsilons at which it is, or that none is."""
    first = {
        (title, epsilon): one.name
        for epsilon in levels
        for title, (one, _) in recommended(classed(every), epsilon).items()
    }
    lines = ["**Where each algorithm is recommended**", "", "| algorithm | problems |", "|---|---|"]
    nowhere = []
    for name in HOUSE:
        won: dict[str, list[str]] = {}
        for (title, epsilon), winner in first.items():
            if winner == name:
                won.setdefault(title, []).append(f"{epsilon:g}")
        said = "; ".join(f"{title} (epsilon {', '.join(found)})" for title, found in won.items())
        if said:
            lines.append(f"| {name} | {said} |")
        else:
            nowhere.append(name)
    lines += [f"| {', '.join(nowhere)} | none of the classes |"] if nowhere else []
    return "\n".join([*lines, ""])


def _classes(every: Sequence[Played], epsilon: float) -> str:
    lines = [
        "**Which algorithm for which problem**",
        "",
        f"At epsilon {epsilon:g} with 22 evaluations per client. {CRITERION}",
        "",
        *advice(classed(every), epsilon),
    ]
    return "\n".join([*lines, ""])


def advice(groups: Mapping[str, Sequence[Played]], epsilon: float, measure: Measure = "mean") -> list[str]:
    """Give a row per group of families: what is recommended, and the smallest regret of what shares."""
    lines = [
        "| problem | families | recommended | smallest regret when sharing | noise only | best baseline that shares |",
        "|---|---|---|---|---|---|",
    ]
    shown = recommended(groups, epsilon, measure)
    for title, some in groups.items():
        board = [one for one in standings(some, epsilon) if one.families == len(some)]
        sharing = [one for one in board if not one.name.startswith("alone")]
        best = min(sharing, key=lambda one: one.ratios[measure].value)
        baselines = [one for one in sharing if not is_ours(one.name)]
        baseline = min(baselines, key=lambda one: one.ratios[measure].value, default=None)
        fresh = sum(family.purpose != "choosing" for family in some)
        cells = [
            title,
            f"{len(some)} ({fresh})",
            f"{shown[title][0].name} (p = {shown[title][1]:.2g})" if title in shown else "no sharing: no gain shown",
            f"{best.name} {best.ratios[measure]:.2f}",
            or_dash(best.zeroed.get(measure)),
            "-" if baseline is None else f"{baseline.name} {baseline.ratios[measure]:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _common(every: Sequence[Played], levels: Sequence[float]) -> str:
    """Runs that announce one setting for all."""
    found = {(epsilon, zero): common(every, epsilon, zeroed=zero) for epsilon in levels for zero in (False, True)}
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    if not names:
        return ""
    lines = [
        "**One setting for all** (regret when all clients use the announced setting, in units of the surface's range)",
        "",
        "| algorithm | " + " | ".join(f"epsilon {e:g}" for e in levels) + f" | noise only, {levels[-1]:g} |",
        "|---" * (2 + len(levels)) + "|",
    ]
    for name in names:
        cells = [f"{found[e, False][name]:.3f±}" if name in found[e, False] else "-" for e in levels]
        zero = found[levels[-1], True].get(name)
        lines.append(f"| {' | '.join([name, *cells, '-' if zero is None else f'{zero:.3f±}'])} |")
    return "\n".join([*lines, ""])


def draw(boards: dict[float, list[Standing]]) -> bytes:
    """Draw mean ranks with their intervals, a panel per epsilon, as PNG."""
    from matplotlib.figure import Figure

    ranked = [one.name for one in next(reversed(boards.values())) if one.rank is not None]
    rows = math.ceil(len(boards) / 2)
    figure = Figure(figsize=(8.0, (0.6 + 0.24 * len(ranked)) * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).reshape(-1)
    places = {name: -place for place, name in enumerate(ranked)}
    for axes, (epsilon, board) in zip(grid, boards.items(), strict=False):
        axes.set_title(f"epsilon {epsilon:g}", fontsize=9)
        for one in board:
            if one.rank is None or one.name not in places:
                continue
            colour = "#7f7f7f" if one.name.startswith("alone") else "#2b87c8" if is_ours(one.name) else "#d55e00"
            width = one.rank.half_width if math.isfinite(one.rank.half_width) else 0.0
            axes.errorbar(one.rank.value, places[one.name], xerr=width, marker="o", ms=4, color=colour, capsize=2)
        axes.set_yticks(list(places.values()), list(places), fontsize=8)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    for axes in grid[len(boards) :]:
        axes.set_visible(False)
    what = "mean rank over families and seeds, 1 is best (grey: independent; blue: ours; orange: baselines)"
    figure.supxlabel(what, fontsize=8)
    return png_of(figure, dpi=100)
