"""Sums of some of a round's clients: no process has to hold everybody's vectors. PRIVATE until noise is added to them.

Clients are clipped and summed group by group, wherever a group is; what a group hands on is its integer sums on the
release's grid and what clipping did. Integers add up without rounding, so the sums are those of one piece, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from privbo.door import sums
from privbo.door.adaptive import AdaptiveSum, clip_bits
from privbo.door.clipping import ClipMeasures, clip_rows, measure_clipping
from privbo.door.inbox import vet_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import BoolArray
from privbo.protocol.messages import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Partial:
    """PRIVATE: sums of some clients, without noise.

    Attributes:
        totals: In units of the release's grid, ``(n_blocks, dim)``.
        bits: Of an adaptive bound, in units of the bits' grid; None where the bound is fixed.
        measures: Clipping of these clients.
    """

    totals: IntArray
    bits: int | None
    measures: ClipMeasures


class Sealed:
    """What only guardians can read; the door hands it to them as it is."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Summing:
    """SECRET: sums of a release to be made of some clients, with who of them takes part.

    Attributes:
        mechanism: The release's.
        dim: Length of a vector.
        weights: ``(n_blocks, n)``.
        participants: ``(n,)``.
    """

    mechanism: PrivateSum | AdaptiveSum
    dim: int
    weights: FloatArray
    participants: BoolArray

    def of(self, part: slice) -> Summing:
        """Give the sums of some of these clients."""
        return replace(self, weights=self.weights[:, part], participants=self.participants[part])

    def __call__(self, answers: object) -> Partial:
        """Clip and sum the answers of these clients, ``(n, dim)``; whatever is malformed contributes nothing."""
        rows = vet_rows(answers, n_clients=len(self.participants), dim=self.dim)
        vectors = self.mechanism.vectors if isinstance(self.mechanism, AdaptiveSum) else self.mechanism
        clipped = clip_rows(rows, vectors.applied_bound)
        whole = self.participants[None]
        return Partial(
            totals=sums.lattice_sums(self.weights, clipped, whole, vectors.grid_step())[0],
            bits=self._bits(rows) if isinstance(self.mechanism, AdaptiveSum) else None,
            measures=measure_clipping(
                rows,
                clipped,
                participants=self.participants,
                weights=self.weights,
                bound=vectors.vector_bound,
                rate=vectors.rate,
            ),
        )

    def _bits(self, rows: FloatArray) -> int | None:
        """Count of vectors within the adaptive bound, by the same participants, on the bits' grid."""
        if not isinstance(self.mechanism, AdaptiveSum):
            return None
        bits = self.mechanism.bits
        sent = clip_rows(clip_bits(rows, self.mechanism.vectors.vector_bound), bits.applied_bound)
        one = np.ones((1, len(rows)))
        return int(sums.lattice_sums(one, sent, self.participants[None], bits.grid_step())[0, 0, 0])


def together(parts: Sequence[Partial]) -> Partial:
    """Add up the sums of groups that have no client in common."""
    bits = [part.bits for part in parts if part.bits is not None]
    return Partial(
        totals=np.sum([part.totals for part in parts], axis=0, dtype=np.int64),
        bits=sum(bits) if bits else None,
        measures=ClipMeasures.together([part.measures for part in parts]),
    )
