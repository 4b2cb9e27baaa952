"""Table of the study ``peers``: the local engine beside other tools, client by client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.cells import Found
from experiments.outcome import Outcome
from experiments.run import Seen
from experiments.study import Panel
from experiments.worth import MEASURES, Measure, Ratio, geometric
from privbo.protocol.settings import JsonObject

OURS = "privbo, alone"


def ratio(found: Found, tool: str, measure: Measure) -> Ratio:
    """Give the engine's regret over a tool's on the clients that both tuned, each as one pair.

    Clients of one seed have related surfaces, so the error is that of these surfaces and not of other ones.
    """
    pairs = [
        pair
        for seed, run in found[tool].items()
        if seed in found[OURS]
        for pair in zip(_by_client(found[OURS][seed], measure), _by_client(run, measure), strict=False)
    ]
    return Ratio.of(*np.array(pairs).T)


def _by_client(run: Outcome, measure: Measure) -> Sequence[float]:
    return run.curves[f"{measure} by client"]


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the table over all families, and the same as JSON."""
    known = [(panel, found) for panel, found in panels if OURS in found and len(found) > 1]
    tools = list(dict.fromkeys(label for _, found in known for label in found if label != OURS))
    lines = [
        "**Beside other tools, alone** (the engine's regret over theirs, mean over evaluations / at the end; below 1",
        "is better; standard errors over matched clients in brackets)",
        "",
        "| family | matched clients | " + " | ".join(tools) + " |",
        "|---|---|" + "---|" * len(tools),
    ]
    summary: JsonObject = {}
    for panel, found in known:
        here = {tool: {m: ratio(found, tool, m) for m in MEASURES} for tool in tools if tool in found}
        sizes = sorted({one["mean"].count for one in here.values()})
        cells = [" / ".join(f"{here[tool][m]:.2f}" for m in MEASURES) if tool in here else "-" for tool in tools]
        lines.append(f"| {panel.title} | {' or '.join(map(str, sizes))} | " + " | ".join(cells) + " |")
        summary[panel.title] = {
            tool: {m: {"value": one[m].value, "error": one[m].error} for m in MEASURES} for tool, one in here.items()
        }
    means = [_mean(known, tool) for tool in tools]
    lines.append(f"| **geometric mean of {len(known)}** | | " + " | ".join(means) + " |")
    return Seen(text="\n".join([*lines, ""]), summary=summary, pictures={})


def _mean(known: Sequence[tuple[Panel, Found]], tool: str) -> str:
    those = [found for _, found in known if tool in found]
    return " / ".join(f"{geometric([ratio(found, tool, m) for found in those]):.2f}" for m in MEASURES)
