"""From the clients' rows to the numbers of one release, and the private notes of its making."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privbo.door import sums
from privbo.door.adaptive import AdaptiveSum
from privbo.door.clipping import ClipStatistics, clip_rows, clip_statistics
from privbo.door.mechanism import PlainSum, PrivateSum
from privbo.door.noise import BoolArray, NoiseSource
from privbo.door.partial import Partial, Summing
from privbo.door.payload import Clipping
from privbo.protocol.messages import FloatArray, Request


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything one release is made of.

    Attributes:
        values: Public, ``(n_blocks, dim)``.
        clipping: Public: bound and noisy fraction within it, if the bound adapts.
        statistics: PRIVATE; None where guardians hold the shares.
    """

    values: FloatArray
    clipping: Clipping | None
    statistics: ClipStatistics | None


def draw_participants(mechanism: PrivateSum | PlainSum | AdaptiveSum, noise: NoiseSource) -> BoolArray:
    """Draw who takes part in one release, ``(n_clients,)``; secret."""
    if isinstance(mechanism, PlainSum):
        return np.ones(mechanism.geometry.n_clients, dtype=bool)
    private = mechanism.base if isinstance(mechanism, AdaptiveSum) else mechanism
    return np.asarray(sums.draw_participation(private, 1, noise)[0])


def answer(
    mechanism: PrivateSum | PlainSum | AdaptiveSum,
    request: Request,
    rows: FloatArray,
    participants: BoolArray,
    noise: NoiseSource,
) -> Answer:
    """Clip, sum, add noise, divide by the rate.

    Args:
        mechanism: What was charged.
        request: What was asked for.
        rows: One vector per client, ``(n_clients, dim)``, not finite where absent.
        participants: Who takes part, ``(n_clients,)``.
        noise: Source of the noise.
    """
    if isinstance(mechanism, PlainSum):
        return _plain(request.weights, rows)
    summing = Summing(mechanism=mechanism, dim=request.dim, weights=request.weights, participants=participants)
    return noisy(mechanism, summing(rows), noise)


def noisy(mechanism: PrivateSum | AdaptiveSum, whole: Partial, noise: NoiseSource) -> Answer:
    """Add noise to the sums of all clients, divide by the rate."""
    vectors = mechanism.vectors if isinstance(mechanism, AdaptiveSum) else mechanism
    values = sums.hidden(vectors, whole.totals[None], noise)[0]
    clipping = None
    if isinstance(mechanism, AdaptiveSum) and whole.bits is not None:
        total = sums.hidden(mechanism.bits, np.array([[[whole.bits]]], dtype=np.int64), noise)[0, 0, 0]
        fraction = 0.5 + float(total) / whole.measures.n_clients
        clipping = Clipping(norm=mechanism.clipping_norm, fraction=fraction)
    return Answer(values=values, clipping=clipping, statistics=whole.measures.statistics())


def _plain(weights: FloatArray, rows: FloatArray) -> Answer:
    everyone = np.ones(len(rows), dtype=bool)
    whole = clip_rows(rows, np.inf)
    statistics = clip_statistics(rows, whole, participants=everyone, weights=weights, bound=np.inf, rate=1.0)
    return Answer(values=np.asarray(weights @ whole), clipping=None, statistics=statistics)
