"""Summaries over seeds: measures, curves, paired differences, ratios of means, and prices."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

import numpy as np

import privbo as pb
from accountant import moments, renyi
from accountant.events import Adjacency, Event, FixedSizeSampledGaussian, PoissonSampledGaussian, from_dict, repeat
from accountant.tight.numerical import epsilon_table
from experiments.cells import Found, algorithm_of
from experiments.outcome import Outcome, Paid
from experiments.statistics import Estimate, Measure, paired, ratio
from experiments.study import Arm, Panel
from privbo.algorithms.thompson.settings import ThompsonSettings
from privbo.comparisons.cells import digest
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import JsonObject, read_settings

T = TypeVar("T")
Rows: TypeAlias = dict[str, "Row"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One arm over all its seeds.

    Attributes:
        label: Name of the arm.
        seeds: Seeds that were run.
        measures: Figures by name.
        curves: Mean and standard error and deviation along every curve, ``(3, length)``.
        n_clients: Clients of the plan; 0 where nothing was planned.
        releases: Planned releases.
        z: Noise multiplier; None where no noise is drawn.
        printed: Epsilon the paper prints: nominal multiplier, moments accountant.
        epsilon: Tight epsilon at N^-1.1 and at min(1e-5, 1/(10 N)); empty where prices are not asked for.
        n_regions: Regions in which clients start; 0 for algorithms without.
        series: Line of a picture.
        x: Place in a picture.
        minus: Differences to other arms, paired by seed, by label and measure.
        over: Ratios to other arms by label.
        exact: Digest of all figures of a seed, in the order of the seeds, before anything is rounded.
    """

    label: str
    seeds: tuple[int, ...]
    measures: Mapping[str, Measure]
    curves: Mapping[str, FloatArray]
    n_clients: int
    releases: int
    z: float | None
    printed: float | None
    epsilon: tuple[float, ...]
    n_regions: int
    series: str
    x: float | None
    minus: dict[str, dict[str, Measure]] = dataclasses.field(default_factory=dict)
    over: dict[str, Estimate] = dataclasses.field(default_factory=dict)
    exact: tuple[str, ...] = ()

    def by(self, measure: str) -> dict[int, float]:
        """Give a measure by seed; empty where it is missing at one, or only its mean was kept."""
        values = self.measures[measure].by_seed if measure in self.measures else ()
        return dict(zip(self.seeds, values, strict=True)) if len(values) == len(self.seeds) else {}

    def to_dict(self) -> JsonObject:
        """Give the row as JSON."""
        return {
            "seeds": list(self.seeds),
            "n_clients": self.n_clients,
            "exact": list(self.exact),
            "measures": {name: m.to_dict() | {"by_seed": list(m.by_seed)} for name, m in self.measures.items()},
            "curves": {n: {"mean": c[0].tolist(), "standard_error": c[1].tolist()} for n, c in self.curves.items()},
            "releases": self.releases,
            "noise_multiplier": self.z,
            "printed_epsilon": self.printed,
            "epsilon": [value if np.isfinite(value) else None for value in self.epsilon],
            "minus": {other: {name: m.to_dict() for name, m in by.items()} for other, by in self.minus.items()},
            "over": {other: one.value for other, one in self.over.items()},
        }


def summarise(panel: Panel, found: Found) -> Rows:
    """Summarise every arm, with differences to the controls and what the panel's contrasts and ratios ask for."""
    arms = {arm.label: arm for arm in panel.arms}
    order = [*(label for label in arms if label in found), *(label for label in found if label not in arms)]
    rows = {label: _row(label, arms.get(label), found[label], prices=panel.prices) for label in order}
    pairs = [(label, other) for label in rows for other in _controls(label, rows, panel)]
    pairs += [(label, claim.than) for claim in panel.claims for label in claim.of(rows)]
    for one, other in (*pairs, *((pair[0], pair[1]) for pair in panel.contrasts)):
        if one in rows and other in rows and one != other:
            rows[one].minus[other] = minus(rows[one], rows[other])
    for one, other in ((pair[0], pair[1]) for pair in panel.ratios):
        for label in rows if one == "*" else (one,):
            if label in rows and other in rows:
                rows[label].over[other] = over(rows[label], rows[other], panel.measure)
    return rows


def _row(label: str, arm: Arm | None, runs: Mapping[int, Outcome], *, prices: bool) -> Row:
    first = next(iter(runs.values()))
    plan = first.paid
    return Row(
        label=label,
        seeds=tuple(runs),
        measures={name: Measure(tuple(values)) for name, values in _collected(run.figures for run in runs.values())},
        curves={
            name: along(curves)
            for name, curves in _collected(run.curves for run in runs.values())
            if any(curves) and not name.endswith(" by client")  # clients of different seeds have nothing in common
        },
        n_clients=0 if plan is None else plan.n_clients,
        releases=0 if plan is None else plan.releases,
        z=plan.noise_multiplier if plan is not None and plan.releases else None,
        printed=printed(arm, plan) if prices and arm is not None else None,
        epsilon=tuple(tight(plan)) if prices and plan is not None else (),
        n_regions=regions(arm),
        series="" if arm is None else arm.series,
        x=None if arm is None else arm.x,
        exact=tuple(digest(run.figures)[:8] for run in runs.values()),
    )


def regions(arm: Arm | None) -> int:
    """Give the regions in which an arm's clients start; 0 for algorithms without."""
    algorithm = algorithm_of(arm.algorithm) if arm is not None and arm.algorithm else None
    return algorithm.n_regions if isinstance(algorithm, ThompsonSettings) else 0


def _collected(runs: Iterable[Mapping[str, T]]) -> list[tuple[str, list[T]]]:
    """Values by name, of the runs that have them."""
    found: dict[str, list[T]] = {}
    for run in runs:
        for name, value in run.items():
            found.setdefault(name, []).append(value)
    return list(found.items())


def along(curves: Sequence[Sequence[float]]) -> FloatArray:
    """Give mean, standard error and deviation along curves, of those that are long enough, ``(3, length)``."""
    length = max(map(len, curves))
    points = [Measure(tuple(c[i] for c in curves if len(c) > i)) for i in range(length)]
    return np.array([[p.mean for p in points], [p.error for p in points], [p.deviation for p in points]])


def _controls(label: str, rows: Rows, panel: Panel) -> list[str]:
    """The panel's controls that start in as many regions, and the arm with its sum zeroed.

    Local runs share nothing, so their regions do not matter.
    """
    wanted = (control for control in panel.controls if control in rows)
    alike = [c for c in wanted if c.startswith("local") or _as_many_regions(label, c, rows)]
    own = zeroed(label, rows, panel)
    return alike if own is None else [*alike, own]


def zeroed(label: str, rows: Rows, panel: Panel) -> str | None:
    """Give the label of the arm with the clients' sum zeroed: a mechanism's own, or one of as many regions.

    q, z and S scale a noise that stands alone, which moves no maximum; the regions do.
    What is ours has its own or none.
    """
    row = rows[label]
    if "zeroed" in label or row.z is None:
        return None
    if (own := f"{label}, sum zeroed") in rows or label.startswith("ours") or not panel.noise_by_regions:
        return own if own in rows else None
    others = (other for other in rows if "sum zeroed" in other and not other.startswith("ours"))
    return next((other for other in others if row.n_regions and _as_many_regions(label, other, rows)), None)


def _as_many_regions(one: str, other: str, rows: Rows) -> bool:
    return rows[one].n_regions == rows[other].n_regions


def minus(ours: Row, theirs: Row) -> dict[str, Measure]:
    """Give (ours - theirs) of every measure of which both keep the values of the seeds, over the seeds both have."""
    names = [name for name in ours.measures if theirs.by(name) and ours.by(name)]
    both = {name: paired(ours.by(name), theirs.by(name)) for name in names}
    return {name: Measure(tuple((a - b).tolist())) for name, (a, b) in both.items() if len(a)}


def over(ours: Row, theirs: Row, measure: str) -> Estimate:
    """Give the ratio of means over the seeds both have."""
    return ratio(*paired(ours.by(measure), theirs.by(measure)))


def printed(arm: Arm, plan: Paid | None) -> float | None:
    """Give what the paper would print: the nominal multiplier in every release; None where it prints nothing."""
    if plan is None or not plan.releases or "noise_multiplier" not in arm.privacy:
        return None
    privacy = read_settings(pb.Privacy, arm.privacy, "privacy")
    delta, z = pb.paper_delta(plan.n_clients), float(privacy.noise_multiplier or 0)
    if privacy.sampling == "fixed-size":
        size = round(privacy.sample_rate * plan.n_clients)
        event: Event = FixedSizeSampledGaussian(n_clients=plan.n_clients, sample_size=size, noise_multiplier=z)
        return renyi.epsilon(repeat(event, plan.releases), delta, adjacency=Adjacency.REPLACE_ONE)
    event = PoissonSampledGaussian(sample_rate=privacy.sample_rate, noise_multiplier=z)
    return moments.epsilon(repeat(event, plan.releases), delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def tight(plan: Paid) -> list[float]:
    """Give the tight price of a plan at both deltas that every table names; infinite without privacy."""
    return [_epsilon(json.dumps(plan.event), plan.adjacency, delta) for delta in deltas(plan.n_clients)]


@cache
def _epsilon(event: str, adjacency: str, delta: float) -> float:
    return min(epsilon_table(from_dict(json.loads(event)), delta, adjacency=Adjacency(adjacency)).values())


def deltas(n_clients: int) -> tuple[float, float]:
    """Give the two deltas every table names: N^-1.1 and min(1e-5, 1/(10 N))."""
    return pb.paper_delta(n_clients), pb.default_delta(n_clients)
