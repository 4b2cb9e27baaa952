"""Regret of arms by seed, family by family.

A family is a panel; arms are paired by seed. Peers that ran on a few clients only are scaled by how the first arm alone
fares on all clients and on those few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from experiments.cells import Found
from experiments.outcome import Outcome
from experiments.study import Arm, Panel
from privbo.protocol.messages import FloatArray

Measure: TypeAlias = Literal["mean", "end"]
MEASURES: tuple[Measure, Measure] = ("mean", "end")


@dataclass(frozen=True)
class Clients:
    """Clients of an arm beside the same clients alone, over all seeds or on average over them.

    Attributes:
        worse: Share whose mean regret is larger than alone.
        decile: Ratio to alone that one client in ten exceeds.
    """

    worse: float
    decile: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """A panel with what its arms change.

    Attributes:
        panel: Its arms and facts.
        found: Outcomes by label and seed.
    """

    panel: Panel
    found: Found

    @property
    def title(self) -> str:
        """Name of the panel."""
        return self.panel.title

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """Arms with outcomes, by label."""
        return {arm.label: arm for arm in self.panel.arms if arm.label in self.found}

    @property
    def alone(self) -> list[str]:
        """Labels of the arms that share nothing."""
        return [label for label, arm in self.arms.items() if arm.series == "alone"]

    @property
    def n_clients(self) -> int:
        """N."""
        return max(len(run.curves["mean by client"]) for runs in self.found.values() for run in runs.values())

    @property
    def correlation(self) -> float:
        """Between clients' surfaces: as stated, or as measured over seeds."""
        if self.panel.correlation is not None:
            return self.panel.correlation
        runs = self.found[self.alone[0]].values()
        return float(np.mean([run.figures["correlation"] for run in runs]))

    def values(self, label: str, measure: Measure) -> dict[int, float]:
        """Give an arm's regret by seed, as on all clients."""
        runs, first = self.found[label], self.found[self.alone[0]]
        found = {}
        for seed, run in runs.items():
            few = len(run.curves[f"{measure} by client"])
            scale = 1.0
            if self.arms[label].series == "alone" and label != self.alone[0] and few < self.n_clients:
                if seed not in first:
                    continue
                matched = float(np.mean(first[seed].curves[f"{measure} by client"][:few]))
                scale = first[seed].figures[measure] / matched
            found[seed] = scale * run.figures[measure]
        return found

    def clients(self, label: str, over: str | None = None) -> Clients | None:
        """Compare every client with itself alone, run by run; None where clients were left out.

        Args:
            label: The arm.
            over: The arm alone; the best of them on all clients unless one is named.
        """
        pairs = self._pairs(label, over)
        return _compared(*map(np.concatenate, zip(*pairs, strict=True))) if pairs else None

    def typical_clients(self, label: str, over: str | None = None) -> Clients | None:
        """Compare what clients have on average over the seeds that draw them; None where seeds draw others."""
        pairs = self._pairs(label, over)
        runs = self.found[label].values()
        drawn = [run.curves["number by client"] for run in runs if "number by client" in run.curves]
        if not pairs or not len(pairs) == len(drawn) == len(runs):
            return None
        order = np.concatenate(drawn).astype(np.int64)
        sums = (np.bincount(order, np.concatenate(side)) for side in zip(*pairs, strict=True))
        ours, alone = (np.asarray(total, dtype=np.float64) for total in sums)
        return _compared(ours[alone > 0.0], alone[alone > 0.0])

    def _pairs(self, label: str, over: str | None) -> list[tuple[FloatArray, FloatArray]]:
        """Regrets of an arm and of one alone, by client and seed; none where clients were left out."""
        own = [name for name in self.alone if not self._partial(name)]
        base = over or min(own, key=lambda name: np.mean(list(self.values(name, "mean").values())))
        pairs = [
            (_by_client(run), _by_client(self.found[base][seed]))
            for seed, run in self.found[label].items()
            if seed in self.found[base]
        ]
        return [] if any(len(a) != len(b) for a, b in pairs) else pairs

    def _partial(self, label: str) -> bool:
        return any(len(_by_client(run)) < self.n_clients for run in self.found[label].values())


def _compared(ours: FloatArray, alone: FloatArray) -> Clients:
    ratios = ours / alone
    return Clients(float(np.mean(ratios > 1.0)), float(np.quantile(ratios, 0.9)))


def _by_client(run: Outcome) -> FloatArray:
    return np.array(run.curves["mean by client"])


def families(panels: Iterable[tuple[Panel, Found]]) -> list[Family]:
    """Give the panels of which at least one arm alone and one more are there."""
    every = (Family(panel=panel, found=found) for panel, found in panels)
    return [family for family in every if family.alone and len(family.arms) > len(family.alone)]
