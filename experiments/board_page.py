"""Tables and picture of the leaderboard."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from experiments.board import HOUSE, Standing, classed, common, competitors, standings
from experiments.cells import Found
from experiments.run import Seen
from experiments.study import Panel
from experiments.worth import Family, Ratio, families
from privbo.protocol.settings import JsonObject

NAMED = 2.0  # epsilon of the tables that have one only


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give tables over all families, the same as JSON, and the picture."""
    # A family of which some arms are missing yet would rank the others too well.
    every = [family for family in families(panels) if len(family.arms) == len(family.panel.arms)]
    reporting = [family for family in every if family.panel.purpose == "reporting"] or every
    if not every:
        return Seen(text="", summary={})
    levels = epsilons(reporting)
    boards = {epsilon: standings(reporting, epsilon) for epsilon in levels}
    named = NAMED if NAMED in levels else levels[-1]
    parts = [
        *(_board(reporting, epsilon, board) for epsilon, board in boards.items()),
        _wins(reporting, boards),
        _classes(reporting, named),
        _families(every, named),
        _common(every, levels),
    ]
    return Seen(text="\n".join(parts), summary=_summary(boards), pictures={"figure": draw(boards)})


def epsilons(every: Sequence[Family]) -> list[float]:
    """Give the epsilons that private arms have in all families."""
    found = [{arm.x for arm in family.arms.values() if arm.x is not None} for family in every]
    return sorted(set.intersection(*found)) if found else []


def _board(every: Sequence[Family], epsilon: float, board: Sequence[Standing]) -> str:
    seeds = sorted({len(runs) for family in every for runs in family.found.values()})
    lines = [
        f"**Leaderboard at epsilon {epsilon:g}**",
        "",
        f"{len(every)} families, {seeds[-1]} seeds. Rank: mean over families and seeds, with its 95 % interval over",
        "families. Regret: over that of the best arm alone, geometric mean over families, standard errors in brackets.",
        "Worse off: share of clients, mean over families.",
        "",
        "| algorithm | rank | regret, mean | at the end | sum zeroed, mean | worse off than alone | families won |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {_row(one, len(every))} |" for one in board]
    return "\n".join([*lines, ""])


def _row(one: Standing, count: int) -> str:
    rank = "-" if one.rank is None else f"{one.rank:.1f}"
    name = one.name if one.families == count else f"{one.name} ({one.families} families)"
    worse = "-" if one.worse is None else f"{100 * one.worse:.0f} %"
    means, ends = (f"{one.ratios[m]:.2f}" for m in ("mean", "end"))
    return " | ".join([name, rank, means, ends, _or_dash(one.zeroed), worse, str(len(one.won))])


def _or_dash(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _wins(every: Sequence[Family], boards: dict[float, list[Standing]]) -> str:
    """Classes that each algorithm of the house wins at some epsilon, or that there is none."""
    lines = ["**Where the house wins**", "", "| algorithm | problems |", "|---|---|"]
    for name in HOUSE:
        won = [
            f"{title} (epsilon {epsilon:g})"
            for epsilon in boards
            for title, kept in classed(every).items()
            if _best(kept, epsilon)[0].name == name
        ]
        lines.append(f"| {name} | {'; '.join(won) if won else 'none of the classes'} |")
    return "\n".join([*lines, ""])


def _best(kept: Sequence[Family], epsilon: float) -> list[Standing]:
    """Competitors that played all of some families, smallest regret over all evaluations first."""
    board = [one for one in standings(kept, epsilon) if one.families == len(kept)]
    return sorted(board, key=lambda one: one.ratios["mean"].value)


def _classes(every: Sequence[Family], epsilon: float) -> str:
    lines = [
        "**Which algorithm for which problem**",
        "",
        f"Smallest regret over all evaluations at epsilon {epsilon:g}, over that of the best arm alone (errors",
        "in brackets):",
        "",
        "| problem | families | first | regret | best that shares | regret | best rival | regret |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, kept in classed(every).items():
        board = _best(kept, epsilon)
        sharing = [one for one in board if not one.name.startswith("alone")]
        rivals = [one for one in sharing if one.name not in HOUSE]
        shown = [f"{one.name} | {one.ratios['mean']:.2f}" for one in (board[0], *sharing[:1], *rivals[:1])]
        lines.append(f"| {title} | {len(kept)} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _families(every: Sequence[Family], epsilon: float) -> str:
    names = list(dict.fromkeys(name for family in every for name in competitors(family, epsilon)))
    lines = [
        f"**Family by family, epsilon {epsilon:g}** (regret over all evaluations over that of the best arm alone)",
        "",
        "| family | for | N | correlation | " + " | ".join(names) + " |",
        "|---" * (4 + len(names)) + "|",
    ]
    for family in every:
        labels = competitors(family, epsilon)
        cells = [f"{family.ratio(labels[name], 'mean'):.2f}" if name in labels else "-" for name in names]
        facts = [family.title, family.panel.purpose, str(family.n_clients), f"{family.correlation:.2f}"]
        lines.append(f"| {' | '.join([*facts, *cells])} |")
    return "\n".join([*lines, ""])


def _common(every: Sequence[Family], levels: Sequence[float]) -> str:
    """Runs that announce one setting for all."""
    found = {(epsilon, zero): common(every, epsilon, zeroed=zero) for epsilon in levels for zero in (False, True)}
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    if not names:
        return ""
    lines = [
        "**One setting for all** (regret of clients that all use the announced setting, in units of a surface's range)",
        "",
        "| algorithm | " + " | ".join(f"epsilon {e:g}" for e in levels) + f" | sum zeroed, {levels[-1]:g} |",
        "|---" * (2 + len(levels)) + "|",
    ]
    for name in names:
        cells = [f"{found[e, False][name]:.3f}" if name in found[e, False] else "-" for e in levels]
        zero = found[levels[-1], True].get(name)
        lines.append(f"| {' | '.join([name, *cells, '-' if zero is None else f'{zero:.3f}'])} |")
    return "\n".join([*lines, ""])


def _summary(boards: dict[float, list[Standing]]) -> JsonObject:
    return {
        f"{epsilon:g}": {
            one.name: {
                "rank": None if one.rank is None else one.rank.value,
                "half_width": None if one.rank is None or math.isinf(one.rank.half_width) else one.rank.half_width,
                "mean": one.ratios["mean"].value,
                "end": one.ratios["end"].value,
                "zeroed": None if one.zeroed is None else one.zeroed.value,
                "worse": one.worse,
                "won": list(one.won),
            }
            for one in board
        }
        for epsilon, board in boards.items()
    }


def draw(boards: dict[float, list[Standing]]) -> bytes:
    """Draw mean ranks with their intervals, a panel per epsilon, as PNG."""
    from matplotlib.figure import Figure

    ranked = [one.name for one in next(reversed(boards.values())) if one.rank is not None]
    figure = Figure(figsize=(2.4 + 2.6 * len(boards), 1.0 + 0.3 * len(ranked)), layout="constrained", dpi=100)
    grid = figure.subplots(1, len(boards), squeeze=False, sharex=True, sharey=True)[0]
    places = {name: -place for place, name in enumerate(ranked)}
    for axes, (epsilon, board) in zip(grid, boards.items(), strict=True):
        axes.set_title(f"epsilon {epsilon:g}", fontsize=9)
        for one in board:
            if one.rank is None or one.name not in places:
                continue
            colour = "#7f7f7f" if one.name.startswith("alone") else "#2b87c8" if one.name in HOUSE else "#d55e00"
            width = one.rank.half_width if math.isfinite(one.rank.half_width) else 0.0
            axes.errorbar(one.rank.value, places[one.name], xerr=width, marker="o", ms=4, color=colour, capsize=2)
        axes.set_yticks(list(places.values()), list(places), fontsize=8)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    what = "mean rank over families and seeds, 1 is best (grey: alone; blue: the house; orange: rivals)"
    figure.supxlabel(what, fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
