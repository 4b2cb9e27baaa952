"""Table of the study ``peers``: the local engine compared with other tools, client by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from experiments.cells import Found
from experiments.outcome import Outcome
from experiments.run import Seen
from experiments.statistics import Estimate, geometric, ratio as ratio_of
from experiments.study import Panel
from experiments.worth import MEASURES, Measure
from privbo.protocol.settings import JsonObject

OURS = "privbo, alone"


def ratio(found: Found, tool: str, measure: Measure) -> Estimate:
    """Give the engine's regret over a tool's on the clients that both tuned, each as one pair.

    Clients of one seed have related surfaces, so the error is that of these surfaces and not of other ones.
    """
    pairs = [
        pair
        for seed, run in found[tool].items()
        if seed in found[OURS]
        for pair in zip(_by_client(found[OURS][seed], measure), _by_client(run, measure), strict=False)
    ]
    return ratio_of(*np.array(pairs).T)


def _by_client(run: Outcome, measure: Measure) -> Sequence[float]:
    return run.curves[f"{measure} by client"]


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the table over all families, and every ratio as JSON."""
    known = [(panel, found) for panel, found in panels if OURS in found and len(found) > 1]
    summary: JsonObject = {}
    for panel, found in known:
        here = {tool: {m: ratio(found, tool, m) for m in MEASURES} for tool in found if tool != OURS}
        summary[panel.title] = {
            tool: {m: {"value": one[m].value, "error": one[m].error} for m in MEASURES} for tool, one in here.items()
        }
    return again(summary)


def again(summary: JsonObject) -> Seen:
    """Give the same from what was kept."""
    every = [cast("dict[str, dict[Measure, dict[str, float]]]", family) for family in summary.values()]
    tools = dict.fromkeys(tool for family in every for tool in family)
    lines = [
        "**Compared with other tools, without sharing** (our regret divided by theirs; below 1 is better; geometric",
        "mean over families, standard errors in brackets)",
        "",
        "| tool | families | over all evaluations | at the end | families where the tool is ahead by two errors |",
        "|---|---|---|---|---|",
    ]
    for tool in tools:
        those = [family[tool] for family in every if tool in family]
        means = [geometric(Estimate(one[m]["value"], one[m]["error"], 2) for one in those) for m in MEASURES]
        ahead = [sum(one[m]["value"] - 2 * one[m]["error"] > 1.0 for one in those) for m in MEASURES]
        cells = [tool, str(len(those)), *(f"{mean:.2f}" for mean in means), " / ".join(map(str, ahead))]
        lines.append(f"| {' | '.join(cells)} |")
    return Seen(text="\n".join([*lines, ""]), summary=summary, pictures={})
