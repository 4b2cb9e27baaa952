"""Tables of the leaderboard of many evaluations: local and global regret, and which algorithm is the right choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.board import Standing, standings
from experiments.board_page import CRITERION, advice, or_dash
from experiments.cells import Found
from experiments.played import Played, kept, played, read
from experiments.run import Seen
from experiments.statistics import mean
from experiments.study import Panel
from experiments.worth import MEASURES, families
from privbo.protocol.settings import JsonObject

EPSILON = 2.0
SAID = {"mean": "over all evaluations", "end": "at the end"}
_LOCAL = ("noise only", "not private")
HEADS = ("algorithm", "over evaluations", *_LOCAL, "at the end", *_LOCAL, "global", "announced", "worse off than alone")


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over all families, and what they are made from as JSON."""
    every = [family for family in families(panels) if len(family.arms) == len(family.panel.arms)]
    return again(kept(map(played, every)))


def again(summary: JsonObject) -> Seen:
    """Give the same from what was kept."""
    every = read(summary)
    groups: dict[str, list[Played]] = {}
    for family in sorted(every, key=lambda one: one.n_clients):
        groups.setdefault(f"{family.n_clients} clients", []).append(family)
    parts = [_board(title, some) for title, some in groups.items()]
    for measure in MEASURES:
        lines = [
            f"**Which algorithm for many evaluations, {SAID[measure]}**",
            "",
            f"At epsilon {EPSILON:g} with 5,000 cheap, noisy evaluations per client. {CRITERION}",
            "",
            *advice(groups, EPSILON, measure),
        ]
        parts.append("\n".join([*lines, ""]))
    return Seen(text="\n".join(parts), summary=summary)


def _board(title: str, some: Sequence[Played]) -> str:
    lines = [
        f"**Many evaluations: {title}**",
        "",
        f"Epsilon {EPSILON:g}, {len(some)} families. Local regret is divided by that of the best independent method",
        "(geometric mean, standard errors over families in brackets). Global regret and that of the announced setting",
        "are shares of the declared range, with 95 % intervals.",
        "",
        f"| {' | '.join(HEADS)} |",
        "|---" * len(HEADS) + "|",
    ]
    free = {one.name: one for one in standings(some, None)}
    lines += [_row(one, free.get(one.name), some) for one in standings(some, EPSILON)]
    return "\n".join([*lines, ""])


def _row(one: Standing, free: Standing | None, some: Sequence[Played]) -> str:
    open_ = {} if free is None or one.name.startswith("alone") else free.ratios
    labels = [(family, family.competitors(EPSILON).get(one.name)) for family in some]
    entries = [family.entries[label] for family, label in labels if label is not None]
    found = [
        [float(np.mean(values)) for values in column if values]
        for column in ([e.global_regret for e in entries], [e.common for e in entries])
    ]
    cells = [one.name]
    for measure in MEASURES:
        cells += [or_dash(one.ratios[measure]), or_dash(one.zeroed.get(measure)), or_dash(open_.get(measure))]
    cells += [f"{mean(values):.3f±}" if values else "-" for values in found]
    cells.append("-" if one.worse is None else f"{100 * one.worse:.0f} %")
    return f"| {' | '.join(cells)} |"
