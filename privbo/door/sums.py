"""The arithmetic of a release: integer sums on a grid, integer noise, division by the rate.

This is the only code that turns clients' vectors into public numbers. It takes a batch of
participations, so that an audit can run many trials through the very same lines; a real
release is a batch of one.

Clients may be clipped and summed group by group, so no process has to hold all clients' vectors. What a group hands on,
PRIVATE until noise is added, is its integer sums on the release's grid and what clipping did. Integers add up without
rounding, so the sums are those of one piece, bit for bit.

Sites may also make releases themselves: every site adds noise to its own block before anything leaves it. A site's half
charges its own ledger and stores what it sends before it sends it (``privbo.flower.site``), so noise is drawn once. The
server puts the blocks together. For a site that is absent it adds the same noise to zero, as the door does for an
absent client. Proof: docs/proofs/one-record.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from privbo.door.adaptive import AdaptiveSum, clip_bits
from privbo.door.clipping import ClipMeasures, clip_rows, measure_clipping
from privbo.door.mechanism import PlainSum, PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.payload import Clipping, vet_rows
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, FloatArray, IntArray, Request
from privbo.protocol.settings import JsonObject


def lattice_sums(
    weights: FloatArray,
    clipped: FloatArray,
    participation: BoolArray,
    step: float,
    *,
    entries_at_once: int = 2**22,
) -> IntArray:
    """Exact sums of weighted vectors, each truncated toward zero to multiples of ``step``.

    Truncation moves every coordinate toward zero, so no norm grows; integer addition has
    no rounding and no order.

    Args:
        weights: ``(n_blocks, n_clients)``.
        clipped: Clipped vectors, ``(n_clients, dim)``, finite.
        participation: ``(n_trials, n_clients)``.
        step: A power of two.
        entries_at_once: Weighted entries held in memory; the sums do not depend on it.

    Returns:
        Sums in units of ``step``, ``(n_trials, n_blocks, dim)``.
    """
    (n_blocks, n_clients), dim, n_trials = weights.shape, clipped.shape[1], len(participation)
    totals = np.zeros((n_trials, n_blocks * dim), dtype=np.int64)
    chunk = max(1, entries_at_once // (n_blocks * dim))
    for start in range(0, n_clients, chunk):
        part = slice(start, start + chunk)
        units = lattice_units(weights[:, part], clipped[part], step)
        totals += participation[:, part].astype(np.int64) @ units
    return totals.reshape(n_trials, n_blocks, dim)


def lattice_units(weights: FloatArray, clipped: FloatArray, step: float) -> IntArray:
    """Weighted vectors, truncated toward zero to multiples of ``step``, ``(n_clients, n_blocks * dim)``."""
    weighted = weights.T[:, :, None] * clipped[:, None, :]
    return np.trunc(weighted / step).astype(np.int64).reshape(len(weighted), -1)


def noisy_sums(
    mechanism: PrivateSum,
    weights: FloatArray,
    clipped: FloatArray,
    participation: BoolArray,
    noise: NoiseSource,
) -> FloatArray:
    """Released values of clipped vectors, ``(n_trials, n_blocks, dim)``.

    Noise is drawn for every entry of every trial, whichever clients take part and whatever they
    sent; a trial without participants is noise only.
    """
    return hidden(mechanism, lattice_sums(weights, clipped, participation, mechanism.grid_step()), noise)


def hidden(mechanism: PrivateSum, totals: IntArray, noise: NoiseSource) -> FloatArray:
    """Released values of sums in units of the grid, of whatever shape: their noise is added to them."""
    noisy = totals + noise.gaussian(totals.shape, mechanism.grid_scale())
    return np.asarray(noisy.astype(np.float64) * mechanism.grid_step() / mechanism.sample.rate)


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
        bits = None
        if isinstance(self.mechanism, AdaptiveSum):  # the count within the bound, by the same participants
            counted = self.mechanism.bits
            sent = clip_rows(clip_bits(rows, vectors.vector_bound), counted.applied_bound)
            bits = int(lattice_sums(np.ones((1, len(rows))), sent, whole, counted.grid_step())[0, 0, 0])
        return Partial(
            totals=lattice_sums(self.weights, clipped, whole, vectors.grid_step())[0],
            bits=bits,
            measures=measure_clipping(
                rows,
                clipped,
                participants=self.participants,
                weights=self.weights,
                bound=vectors.vector_bound,
                rate=vectors.sample.rate,
            ),
        )


def together(parts: Sequence[Partial]) -> Partial:
    """Add up the sums of groups that have no client in common."""
    bits = [part.bits for part in parts if part.bits is not None]
    return Partial(
        totals=np.sum([part.totals for part in parts], axis=0, dtype=np.int64),
        bits=sum(bits) if bits else None,
        measures=ClipMeasures.together([part.measures for part in parts]),
    )


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
    statistics: JsonObject | None


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
        whole = clip_rows(rows, np.inf)
        measures = measure_clipping(
            rows, whole, participants=participants, weights=request.weights, bound=np.inf, rate=1.0
        )
        return Answer(values=np.asarray(request.weights @ whole), clipping=None, statistics=measures.statistics())
    summing = Summing(mechanism=mechanism, dim=request.dim, weights=request.weights, participants=participants)
    return noisy(mechanism, summing(rows), noise)


def noisy(mechanism: PrivateSum | AdaptiveSum, whole: Partial, noise: NoiseSource) -> Answer:
    """Add noise to the sums of all clients, divide by the rate."""
    vectors = mechanism.vectors if isinstance(mechanism, AdaptiveSum) else mechanism
    values = hidden(vectors, whole.totals[None], noise)[0]
    clipping = None
    if isinstance(mechanism, AdaptiveSum) and whole.bits is not None:
        total = hidden(mechanism.bits, np.array([[[whole.bits]]], dtype=np.int64), noise)[0, 0, 0]
        fraction = 0.5 + float(total) / whole.measures.n_clients
        clipping = Clipping(norm=mechanism.clipping_norm, fraction=fraction)
    return Answer(values=values, clipping=clipping, statistics=whole.measures.statistics())


# Coarser than a release's grid: a training makes millions of numbers, and what rounding in the
# noise transform can add to epsilon shrinks with the cell (docs/noise.md).
_GRID_BITS = 10


def noisy_gradient_sum(
    gradients: FloatArray, *, clipping_norm: float, noise_multiplier: float, noise: NoiseSource
) -> FloatArray:
    """Sum of clipped gradients plus Gaussian noise of ``noise_multiplier`` times ``clipping_norm``, as in DP-SGD.

    Gradients are clipped in real arithmetic, truncated toward zero to multiples of a power of
    two and summed as integers, so one record moves the sum by at most the clipping norm,
    exactly; the noise is an integer too (``docs/noise.md``). What it can't promise is that
    frameworks compute one record's gradient to the last bit independently of the other
    records in its batch.

    Proof: docs/proofs/poisson.md.

    Args:
        gradients: One row per sampled record, ``(n, dim)``; perhaps none. A row that is not
            finite contributes nothing.
        clipping_norm: Bound on one row's norm.
        noise_multiplier: z under add-or-remove-one.
        noise: Secret source.

    Returns:
        ``(dim,)``; noise is in every entry, whichever clients were sampled.
    """
    stddev = noise_multiplier * clipping_norm
    step = math.ldexp(1.0, math.frexp(stddev)[1] - 1 - _GRID_BITS)
    everyone = np.ones((1, len(gradients)), dtype=bool)
    total = lattice_sums(np.ones((1, len(gradients))), clip_rows(gradients, clipping_norm), everyone, step)[0, 0]
    return np.asarray((total + noise.gaussian(total.shape, stddev / step)).astype(np.float64) * step)


_FARTHEST = 64.0  # noise standard deviations, which no noise reaches


def blocks_of(weights: FloatArray) -> IntArray:
    """Give the block of every client, ``(n_clients,)``, where each has a block of its own.

    Args:
        weights: Public weights, ``(n_blocks, n_clients)``.

    Raises:
        ConfigurationError: If a block sums two clients, or a client enters no block or two.

    Example:
        >>> blocks_of(np.eye(3)).tolist()
        [0, 1, 2]
    """
    entered = weights > 0
    if weights.shape[0] != weights.shape[1] or np.any(entered.sum(axis=0) != 1) or np.any(entered.sum(axis=1) != 1):
        raise ConfigurationError(
            f"privacy.trust='sites': this algorithm sums {weights.shape[1]} sites into {weights.shape[0]} blocks, and "
            "a site can add noise to a block of its own only; use MultiTask(), or set privacy.trust='server'"
        )
    return np.asarray(np.argmax(entered, axis=0))


def own_blocks(
    mechanism: PrivateSum, request: Request, rows: FloatArray, clients: IntArray, noise: NoiseSource
) -> FloatArray:
    """Give the released blocks of some clients, ``(n, dim)``: clipped, on the grid, under their noise.

    Args:
        mechanism: Of the whole release.
        request: What is asked for.
        rows: Their vectors, ``(n, dim)``, not finite where absent.
        clients: Their numbers, ``(n,)``.
        noise: Their secret source, for this round.

    Raises:
        ConfigurationError: If the request has no block of its own for every client.
    """
    blocks = blocks_of(request.weights)[clients]
    weights = request.weights[blocks, clients][None]
    units = lattice_units(weights, clip_rows(rows, mechanism.applied_bound), mechanism.grid_step())
    return hidden(mechanism, units, noise)


def joined_blocks(mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource) -> IntArray:
    """Put what sites released into a release, in grid units, ``(n_blocks * dim,)``.

    Args:
        mechanism: Of the whole release.
        request: What was asked for.
        rows: What every client sent, ``(n_clients, dim)``. A row that is not finite, or farther out than the bound
            and all noise, counts as absent.
        noise: Source of the noise for absent clients.
    """
    blocks, largest = blocks_of(request.weights), float(request.weights.max()) * mechanism.vector_bound
    farthest = largest + _FARTHEST * mechanism.noise_stddev()
    there = (np.isfinite(rows) & (np.abs(rows) <= farthest)).all(axis=1)
    totals = noise.gaussian(rows.shape, mechanism.grid_scale())
    totals[there] = np.rint(rows[there] / mechanism.grid_step()).astype(np.int64)
    return np.asarray(totals[np.argsort(blocks)].reshape(-1), dtype=np.int64)
