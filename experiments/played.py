"""What studies over families keep of their cells: every arm's regret by seed, family by family.

Everything on their pages is made from this, so that no cell is needed again and seeds can be added on another day.
Every ratio is mean regret over mean regret of the best arm of series ``"alone"``, chosen per measure after the fact,
which favours being alone; arms are paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import cast

import numpy as np

from experiments.statistics import Estimate, paired, ratio
from experiments.study import Arm
from experiments.worth import MEASURES, Family, Measure
from privbo.protocol.settings import JsonObject, Sequence, dump_settings, read_settings, settings

VOTED = " and a vote"  # ends the names of series that are judged by their common setting only


@settings(table="entry")
class Entry:
    """An arm of a family.

    Attributes:
        series: Its name; ``"alone"`` shares nothing.
        epsilon: Of the run; None alone.
        zeroed: Whether the clients' sum was set to zero.
        seeds: That were played.
        mean, end: Regret over all evaluations, and at the end, by seed; peers on a few clients as on all of them.
        common: Regret of clients that all use the announced setting, by seed; empty without one.
        global_regret: Regret over all evaluations against the best common setting, by seed; empty where nobody asks.
        worse: Share of clients worse off than alone; None where clients were left out.
        decile: Ratio to alone that one client in ten exceeds; None where clients were left out, or nobody asks.
        typical_worse, typical_decile: The same of clients' averages over seeds; None where seeds draw other clients.
    """

    series: str
    epsilon: float | None = None
    zeroed: bool = False
    seeds: Sequence[int]
    mean: Sequence[float]
    end: Sequence[float]
    common: Sequence[float] = ()
    global_regret: Sequence[float] = ()
    worse: float | None = None
    decile: float | None = None
    typical_worse: float | None = None
    typical_decile: float | None = None

    def values(self, measure: Measure) -> dict[int, float]:
        """Give regret by seed."""
        return dict(zip(self.seeds, self.mean if measure == "mean" else self.end, strict=True))


@settings(table="family")
class Played:
    """A family with everything that was played on it.

    Attributes:
        title: Its name.
        purpose: ``"choosing"``, ``"reporting"``, ``"own"``: a simulated system of our own making, or ``"stress"``.
        n_clients: N.
        correlation: Between clients' surfaces.
        is_model: Whether the surfaces are scores of trained models.
        entries: By label.
    """

    title: str
    purpose: str
    n_clients: int
    correlation: float
    is_model: bool
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def alone(self) -> list[str]:
        """Labels of the arms that share nothing."""
        return [label for label, entry in self.entries.items() if entry.series == "alone"]

    def competitors(self, epsilon: float | None) -> dict[str, str]:
        """Give the labels of competitors at an epsilon by name; those alone compete at every epsilon."""
        found = {label: label for label in self.alone}
        for label, entry in self.entries.items():
            if (
                label not in found
                and entry.epsilon == epsilon
                and not entry.zeroed
                and not entry.series.endswith(VOTED)
            ):
                found[entry.series] = label
        return found

    def best_alone(self, measure: Measure) -> str:
        """Give the label of the best arm alone, over the seeds all of them have."""
        every = {label: self.entries[label].values(measure) for label in self.alone}
        shared = set.intersection(*(set(values) for values in every.values()))
        return min(every, key=lambda label: float(np.mean([every[label][seed] for seed in shared])))

    def ratio(self, label: str, measure: Measure, over: str | None = None) -> Estimate:
        """Give an arm over another, paired by seed; over the best arm alone unless one is named."""
        ours, theirs = (self.entries[name].values(measure) for name in (label, over or self.best_alone(measure)))
        return ratio(*paired(ours, theirs))

    def label(self, series: str, epsilon: float | None, *, zeroed: bool = False) -> str | None:
        """Give the label of a series at an epsilon, if it was played; None as epsilon is without privacy."""
        found = (k for k, e in self.entries.items() if (e.series, e.epsilon, e.zeroed) == (series, epsilon, zeroed))
        return next(found, None)


def played(family: Family, over: str | None = None) -> Played:
    """Keep a family; numbers have five digits, here and in what is kept.

    Args:
        family: What was played.
        over: The arm alone that clients are compared with; the best of them unless one is named.
    """
    return Played(
        title=family.title,
        purpose=family.panel.purpose,
        n_clients=family.n_clients,
        correlation=_short(family.correlation),
        is_model="model_surfaces" in str(family.panel.arms[0].problem["type"]),
        entries={label: _entry(family, label, arm, over) for label, arm in family.arms.items()},
    )


def _entry(family: Family, label: str, arm: Arm, over: str | None) -> Entry:
    regrets = {measure: family.values(label, measure) for measure in MEASURES}
    seeds = sorted(regrets["mean"])
    runs = family.found[label]
    clients, typical = (
        (None, None) if arm.series == "alone" else (family.clients(label, over), family.typical_clients(label, over))
    )
    return Entry(
        series=arm.series,
        epsilon=arm.x,
        zeroed=arm.control == "zeroed",
        seeds=tuple(seeds),
        mean=tuple(_short(regrets["mean"][seed]) for seed in seeds),
        end=tuple(_short(regrets["end"][seed]) for seed in seeds),
        common=tuple(_short(runs[s].figures["common"]) for s in seeds if "common" in runs[s].figures),
        global_regret=tuple(_short(runs[s].figures["global"]) for s in seeds if "global" in runs[s].figures),
        worse=None if clients is None else _short(clients.worse),
        decile=None if clients is None else _short(clients.decile),
        typical_worse=None if typical is None else _short(typical.worse),
        typical_decile=None if typical is None else _short(typical.decile),
    )


def added(before: JsonObject, now: JsonObject) -> JsonObject:
    """Give what was kept with families, arms and seeds that were played since; a seed that both have counts as now.

    Args:
        before: Kept families, as ``kept`` gives them.
        now: More of them, or more of their seeds.
    """
    found = {family.title: family for family in read(before)}
    for family in read(now):
        found[family.title] = _with(found[family.title], family) if family.title in found else family
    return kept(found.values())


def _with(before: Played, now: Played) -> Played:
    shared = before.entries.keys() & now.entries.keys()
    joined = {label: _joined(before.entries[label], now.entries[label]) for label in shared}
    return replace(now, entries=before.entries | now.entries | joined)


def _joined(before: Entry, now: Entry) -> Entry:
    """All seeds of both; what is told of clients is the mean over seeds."""
    seeds = sorted({*before.seeds, *now.seeds})

    def by_seed(old: Sequence[float], new: Sequence[float]) -> Sequence[float]:
        if not old or not new:
            return ()
        values = dict(zip(before.seeds, old, strict=True)) | dict(zip(now.seeds, new, strict=True))
        return tuple(values[seed] for seed in seeds)

    def over_seeds(old: float | None, new: float | None) -> float | None:
        if old is None or new is None:
            return new
        return _short(((len(seeds) - len(now.seeds)) * old + len(now.seeds) * new) / len(seeds))

    return replace(
        now,
        seeds=tuple(seeds),
        mean=by_seed(before.mean, now.mean),
        end=by_seed(before.end, now.end),
        common=by_seed(before.common, now.common),
        global_regret=by_seed(before.global_regret, now.global_regret),
        worse=over_seeds(before.worse, now.worse),
        decile=over_seeds(before.decile, now.decile),
        typical_worse=None,  # an average over all seeds is not one of averages
        typical_decile=None,
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def kept(every: Iterable[Played]) -> JsonObject:
    """Give families as JSON."""
    return {family.title: dump_settings(family, defaults=False) for family in every}


def read(summary: Mapping[str, object]) -> list[Played]:
    """Read families from JSON."""
    return [read_settings(Played, cast("JsonObject", table), title) for title, table in summary.items()]
