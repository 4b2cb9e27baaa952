"""Read what experiments found from their ``summary.json``, so that tables, pictures and verdicts need no cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from experiments.statistics import Measure
from experiments.study import Arm, Panel, Study
from experiments.summary import Row, Rows, minus, over, regions
from privbo.protocol.errors import ConfigurationError

Stored: TypeAlias = Mapping[str, Any]


def panels_of(chosen: Study, summary: Stored) -> list[tuple[Panel, Rows]]:
    """Give the panels of a study that were found, with their rows.

    Raises:
        ConfigurationError: If something was found of which the study knows nothing.
    """
    titles = {panel.title: panel for panel in chosen.panels}
    if unknown := set(summary["panels"]) - set(titles):
        raise ConfigurationError(f"{chosen.name} has no panel {min(unknown)!r}; run it again")
    return [
        (panel, rows_of(panel, summary["panels"][title]))
        for title, panel in titles.items()
        if title in summary["panels"]
    ]


def rows_of(panel: Panel, found: Stored) -> Rows:
    """Give the rows of a panel from its part of a summary; differences and ratios are made again from the seeds."""
    arms = {arm.label: arm for arm in panel.arms}
    rows = {label: _row(label, arms.get(label), row) for label, row in found.items()}
    pairs = [(label, claim.than) for claim in panel.claims for label in claim.of(rows)]
    for one, other in (*pairs, *((label, other) for label, row in rows.items() for other in row.minus)):
        if other in rows:
            rows[one].minus[other] = rows[one].minus.get(other, {}) | minus(rows[one], rows[other])
    for label, row in found.items():
        rows[label].over.update({other: over(rows[label], rows[other], panel.measure) for other in row["over"]})
    return rows


def _row(label: str, arm: Arm | None, row: Stored) -> Row:
    return Row(
        label=label,
        seeds=tuple(row["seeds"]),
        n_clients=row["n_clients"],
        measures={name: _measure(value) for name, value in row["measures"].items()},
        curves={name: _curve(value, len(row["seeds"])) for name, value in row["curves"].items()},
        releases=row["releases"],
        z=row["noise_multiplier"],
        printed=row["printed_epsilon"],
        epsilon=tuple(math.inf if value is None else value for value in row["epsilon"]),
        n_regions=regions(arm),
        series="" if arm is None else arm.series,
        x=None if arm is None else arm.x,
        minus={o: {name: _measure(value) for name, value in by.items()} for o, by in row["minus"].items()},
        exact=tuple(row.get("exact", ())),
    )


def _measure(value: Stored) -> Measure:
    by_seed = tuple(value.get("by_seed", ()))
    return Measure(by_seed, None if by_seed else (value["mean"], value["standard_error"]))


def _curve(value: Stored, runs: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Mean, standard error and deviation; the last one follows where curves are of one length."""
    mean, error = np.array(value["mean"]), np.array(value["standard_error"])
    return np.stack([mean, error, error * math.sqrt(runs)])
