"""Active nodes of clients in the silent stage (private)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.algorithms.elimination.confidence import Confidence
from privbo.protocol.messages import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


def checkpoints(threshold: int, *, in_phase: bool) -> list[int]:
    """Pulls per node at which a phase looks at the means: the threshold, or 1, 2, 4, ... up to it."""
    if not in_phase:
        return [threshold]
    return [2**j for j in range((threshold - 1).bit_length())] + [threshold]


@dataclass
class Pairs:
    """Active (client, node) pairs of one depth, sorted by client; all arrays ``(p,)``."""

    owners: IntArray
    nodes: IntArray
    counts: IntArray
    means: FloatArray
    radii: FloatArray
    protected: BoolArray

    def __len__(self) -> int:
        return len(self.owners)

    def where(self, keep: BoolArray) -> Pairs:
        """The pairs that are kept."""
        return Pairs(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))

    def best(self) -> IntArray:
        """For every pair the position of its client's pair with the largest mean; unknown means lose."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        means = np.where(np.isnan(self.means), -np.inf, self.means)
        first = np.flatnonzero(np.diff(self.owners, prepend=self.owners[0] - 1))
        lengths = np.diff(np.append(first, len(self)))
        top = np.repeat(np.maximum.reduceat(means, first), lengths)
        positions = np.where(means == top, np.arange(len(self)), len(self))
        return np.asarray(np.repeat(np.minimum.reduceat(positions, first), lengths))

    def merge(self, asked: IntArray, fresh: FloatArray, pulls: IntArray, confidence: Confidence) -> None:
        """Add the means of new pulls to the pairs at ``asked``; failed pulls count for nothing."""
        good = ~np.isnan(fresh)
        asked, fresh, pulls = asked[good], fresh[good], pulls[good]
        before = self.counts[asked]
        total = before + pulls
        old = np.where(before > 0, self.means[asked], 0.0)
        self.means[asked] = (old * before + fresh * pulls) / total
        self.counts[asked] = total
        self.radii[asked] = confidence.radius(total)

    def stays(self, variation: float) -> BoolArray:
        """Whether ``mu + b + nu1 rho^h >= mu_best - b_best``; protected and unknown nodes stay."""
        best = self.best()
        lower = self.means[best] - self.radii[best]
        drop = self.means + self.radii + variation < lower
        return ~drop | self.protected
