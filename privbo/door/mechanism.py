"""Release mechanisms: clipped, weighted, noisy sums, described so that they can be accounted.

The description is frozen and speaks of public numbers only; ``event`` says what it costs,
``sensitivity`` and ``noise_stddev`` what it does. Callers ask the mechanism, they never
recompute (the rule: noise_multiplier = noise standard deviation / L2 sensitivity under
the stated adjacency).

With Algorithm 1 of the DP-FTS-DE paper: vectors are clipped to ``S / sqrt(P)``, block b is
``(1/q) sum over sampled n of w[b, n] clip(v_n)``, and every entry gets independent noise.
What one client adds is bounded by ``(S / sqrt(P)) max_n ||w[:, n]|| / q``; the paper's noise
is ``z phi_max S / q``, which is up to sqrt(P) more than z times that.

Formal guarantees of one release, with z the noise's standard deviation over ``sensitivity()``:

| mechanism | unit, adjacency | who takes part | event |
|---|---|---|---|
| ``PrivateSum`` | one client, zero-out or replace-one | all clients (rate 1) | ``Gaussian(z)`` |
| ``PrivateSum`` | one client, zero-out or replace-one | secret Poisson sample | ``PoissonSampledGaussian(q, z)`` |
| ``PrivateSum`` | one client, zero-out or replace-one | secret sample of qN | ``FixedSizeSampledGaussian(N, qN, z)`` |
| ``PrivateSum`` | one client, zero-out or replace-one | at most B | ``TruncatedPoissonSampledGaussian(N, q, B, z)`` |
| ``PrivateSum`` | one client, zero-out | in k of T releases | ``RandomAllocationGaussian(T, k, z)``, for all T |
| ``PrivateSum`` with ``move`` | one reward or one record, replace-one | all clients | ``Gaussian(z)`` |
| ``PrivateSum`` with ``training`` | as above | all clients | the trainings and ``Gaussian(z)``, composed |
| ``AdaptiveSum`` (``privbo.door.adaptive``) | as its base | as its base | its base's: vectors and bits together |
| ``PrivateSum`` of guardians | as above, rate 1 or Poisson | as above | the same, for ``n_counted`` noises |
| ``PlainSum`` | none | all clients | ``NonPrivate()``: epsilon is infinite |

They hold whatever clients send (rows are clipped, absent ones count as zero), for public weights,
N, S, z and q; not under add-or-remove-one, which is refused because weights depend on N.
``calibration="paper"`` changes the noise, and the event states what that noise is really worth.

Where one reward or one record is the unit: a client's vector is a mean over its pulls, or a sum over its
records, so another value of one moves it by a known distance. Clipping is a projection onto a ball and brings vectors
no farther apart. Sums are truncated to a grid, which may part two nearby vectors by one grid step
per entry more; noise covers that too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from accountant.events import SLACK, Adjacency, Event, NonPrivate, compose
from accountant.sensitivity import sensitivity
from privbo.door.clipping import LARGEST_BOUND, SMALLEST_BOUND, UNIT_ROUNDOFF
from privbo.door.sampling import Sample
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request
from privbo.protocol.settings import require_one_of


def require_request(request: Request) -> None:
    """Refuse a request that no release can answer.

    Raises:
        ConfigurationError: If the dimension or the clipping norm is out of range.
    """
    if isinstance(request.dim, bool) or not isinstance(request.dim, (int, np.integer)) or request.dim < 1:
        raise ConfigurationError(f"dim={request.dim!r} must be an integer >= 1")
    require_number("clipping_norm", request.clipping_norm, SMALLEST_BOUND, LARGEST_BOUND)
    if request.unit_bound is not None:
        require_number("unit_bound", request.unit_bound, SMALLEST_BOUND, LARGEST_BOUND)
    if (request.unit_bound is None) != (request.unit == "client"):
        raise ConfigurationError(
            f"unit={request.unit!r}, unit_bound={request.unit_bound!r}: a bound belongs to every unit but 'client'; "
            "state both, or neither"
        )
    if type(request.group_size) is not int or request.group_size < 1:
        raise ConfigurationError(f"group_size={request.group_size!r} must be an integer >= 1")


def require_number(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number that is not finite or out of its range.

    Raises:
        ConfigurationError: Naming the number.
    """
    if isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise ConfigurationError(f"{name}={value!r} must be a finite number in [{low:g}, {high:g}]")


@dataclass(frozen=True, kw_only=True)
class WeightGeometry:
    """Geometry of a matrix of public weights ``(n_blocks, n_clients)``.

    Attributes:
        n_blocks: P, number of weighted sums released together.
        n_clients: N, number of registered clients.
        largest_weight: phi_max, the largest entry.
        largest_norms: ``||w[:, n]||_2`` of the two clients where it is largest, ascending; one where N is 1.
        largest_total: max over b of ``sum over n of w[b, n]``.
    """

    n_blocks: int
    n_clients: int
    largest_weight: float
    largest_norms: tuple[float, ...]
    largest_total: float

    @staticmethod
    def of(weights: FloatArray) -> WeightGeometry:
        """Check weights and give their geometry.

        Raises:
            ConfigurationError: If the weights are not a matrix of finite numbers in
                [0, 1e100] of which one is positive.
        """
        kind, shape = getattr(weights, "dtype", type(weights).__name__), getattr(weights, "shape", None)
        if not isinstance(weights, np.ndarray) or weights.ndim != 2 or kind != np.float64 or 0 in weights.shape:
            raise ConfigurationError(
                f"weights of type {kind} and shape {shape} must be a float64 matrix (n_blocks >= 1, n_clients >= 1)"
            )
        largest = float(weights.max())
        if not np.all(np.isfinite(weights)) or weights.min() < 0 or largest > LARGEST_BOUND:
            raise ConfigurationError(
                f"weights between {weights.min()!r} and {largest!r} must be finite and lie in "
                f"[0, {LARGEST_BOUND:g}]; they are the server's own numbers, so nothing is released"
            )
        if largest < SMALLEST_BOUND:
            raise ConfigurationError("all weights are zero, so there is nothing to release; drop the request")
        norms = np.sort(np.linalg.norm(weights, axis=0))
        return WeightGeometry(
            n_blocks=weights.shape[0],
            n_clients=weights.shape[1],
            largest_weight=largest,
            largest_norms=tuple(norms[-2:].tolist()),
            largest_total=float(weights.sum(axis=1).max()),
        )


# Noise is 2^16 to 2^17 grid units: fine enough to cost nothing, coarse enough that the
# rounding errors of floating-point noise vanish in it (docs/noise.md).
GRID_BITS = 16


@dataclass(frozen=True, kw_only=True)
class UnitMove:
    """Distance that one reward, or the records of one person, move clients' vectors.

    Proof: docs/proofs/one-reward.md, docs/proofs/one-record.md.

    Attributes:
        bound: L2 distance between the vectors a client sends for two values of one.
        n_entries: Released entries, all blocks together.
        group_size: Most of them that are replaced together. Each may be another client's: clipping bounds what one
            moves, and not what they move together.
    """

    bound: float
    n_entries: int
    group_size: int = 1

    def after_clipping(self, vector_bound: float, noise_multiplier: float) -> float:
        """Largest distance between the clipped, truncated vectors, all clients together, per unit of weight.

        With z times this distance as noise, a grid step is at most 2^-16 of the noise, so
        truncation adds at most ``z sqrt(entries) 2^-16`` of the distance itself for each of them.

        Raises:
            ConfigurationError: If that is more than half of it.
        """
        entries = self.group_size * math.sqrt(self.n_entries)
        coarse = noise_multiplier * entries * 2.0**-GRID_BITS
        if coarse > 0.5:
            raise ConfigurationError(
                f"noise_multiplier={noise_multiplier!r} is too large for {self.n_entries} entries with a unit "
                f"smaller than a client; keep it below {2 ** (GRID_BITS - 1) / entries:.4g}"
            )
        rounding = 4 * (self.n_entries + 64) * UNIT_ROUNDOFF * vector_bound
        distance = min(self.bound, 2.0 * vector_bound) + rounding
        return self.group_size * distance / (1.0 - coarse)


def require_unit(sample_rate: float, sampling: str, calibration: str, adjacency: Adjacency) -> None:
    """Refuse settings under which the price of one reward, or of one record, is not known.

    Raises:
        ConfigurationError: Naming the setting.
    """
    if sample_rate != 1.0:
        raise ConfigurationError(
            f"sample_rate={sample_rate!r}: with a unit smaller than a client all clients take part; set sample_rate=1"
        )
    if sampling != "poisson":
        raise ConfigurationError(f"sampling={sampling!r} says nothing about one reward or one record; leave it out")
    if calibration != "tight":
        raise ConfigurationError(f"calibration={calibration!r} is the paper's noise for one client; use 'tight'")
    if adjacency != Adjacency.REPLACE_ONE:
        raise ConfigurationError(
            f"adjacency={adjacency!r}: a reward or a record is replaced by another one, never removed; use replace-one"
        )


__all__ = ["Mechanism", "PlainSum", "PrivateSum", "WeightGeometry", "mechanism_for"]

Calibration: TypeAlias = Literal["tight", "paper"]


@dataclass(frozen=True, kw_only=True)
class PrivateSum:
    """Noisy weighted sums of clipped vectors over a secret random sample of clients.

    Proof: docs/proofs/gaussian-sum.md.

    Attributes:
        clipping_norm: S; every vector is clipped to ``S / sqrt(n_blocks)``.
        geometry: What the public weights look like.
        noise_multiplier: Nominal z. With ``calibration="tight"`` it is the multiplier of
            the event; with ``"paper"`` the noise is ``z phi_max S / q`` and the event carries
            the multiplier which that noise really is.
        sample: Rule by which participants are drawn, of the same clients; q is its rate.
        adjacency: ``ZERO_OUT`` (one client's vector against zero) or ``REPLACE_ONE``.
        calibration: See ``noise_multiplier``.
        move: None where the unit is one client; else how far one reward, or one record, moves a client's
            vector. Then all clients take part, and units are replaced, not removed.
        n_noises: Independent noises in a release: one, or one of every guardian.
        n_counted: Number of them that the event counts on: an observer may know the others.
        training: As in ``Request``; the event of the release includes it.

    Raises:
        ConfigurationError: If a number is out of its range, for add-or-remove
            adjacency (weights and N are public constants here, so leaving means zero), or where a
            setting says nothing about a unit smaller than a client.

    Example:
        >>> import numpy as np
        >>> weights = np.full((1, 40), 1 / 40)
        >>> sample = Sample(n_clients=40, sample_rate=0.25)
        >>> made = PrivateSum(
        ...     clipping_norm=2.0, geometry=WeightGeometry.of(weights), noise_multiplier=1.5, sample=sample
        ... )
        >>> made.sensitivity(), made.noise_stddev()
        (0.2, 0.30000000000000004)
        >>> made.event()
        PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.5)
    """

    clipping_norm: float
    geometry: WeightGeometry
    noise_multiplier: float
    sample: Sample
    adjacency: Adjacency = Adjacency.ZERO_OUT
    calibration: Calibration = "tight"
    move: UnitMove | None = None
    n_noises: int = 1
    n_counted: int = 1
    training: Event | None = None

    def __post_init__(self) -> None:
        require_number("clipping_norm", self.clipping_norm, SMALLEST_BOUND, LARGEST_BOUND)
        if not 1 <= self.n_counted <= self.n_noises:
            raise ConfigurationError(f"n_counted={self.n_counted!r} must lie between 1 and n_noises={self.n_noises!r}")
        require_number("noise_multiplier", self.noise_multiplier, 1e-6, 1e9)
        if self.sample.n_clients != self.geometry.n_clients:
            raise ConfigurationError(
                f"a sample of {self.sample.n_clients} clients, and weights of {self.geometry.n_clients}; draw from the "
                "same clients"
            )
        require_one_of(Calibration, calibration=self.calibration)
        if self.adjacency not in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
            raise ConfigurationError(
                f"adjacency={self.adjacency!r} does not fit public weights over a fixed number of clients; "
                "use zero-out (a client leaves by contributing zero) or replace-one"
            )
        if self.sample.is_allocation and self.adjacency is not Adjacency.ZERO_OUT:
            raise ConfigurationError("sampling='random-allocation' has no proven price under replace-one; use zero-out")
        if self.move is not None:
            require_unit(self.sample.sample_rate, self.sample.sampling, self.calibration, self.adjacency)

    @property
    def vector_bound(self) -> float:
        """``S / sqrt(P)``, the stated bound on one client's vector."""
        return self.clipping_norm / math.sqrt(self.geometry.n_blocks)

    @property
    def applied_bound(self) -> float:
        """The bound vectors are clipped to: lower than stated by what later roundings can add."""
        return self.vector_bound * (1.0 - 2.0 * (self.geometry.n_blocks + 64) * UNIT_ROUNDOFF)

    def _sum_sensitivity(self) -> float:
        """L2 sensitivity of the concatenated sums, before division by the rate."""
        norms = self.geometry.largest_norms
        if self.move is not None:
            return norms[-1] * self.move.after_clipping(self.vector_bound, self.noise_multiplier)
        return sensitivity(norms, self.vector_bound, adjacency=self.adjacency, sampler=self.sample.sampler)

    def _sum_stddev(self) -> float:
        """Standard deviation of the counted noises together, before division by the rate."""
        if self.calibration == "paper":
            return self.noise_multiplier * self.geometry.largest_weight * self.clipping_norm
        return self.noise_multiplier * self._sum_sensitivity()

    def _one_stddev(self) -> float:
        """Standard deviation of one noise, before division by the rate."""
        if self.n_counted == 1:
            return self._sum_stddev()
        return self._sum_stddev() * (1.0 + 2.0 * SLACK) / math.sqrt(self.n_counted)

    def sensitivity(self) -> float:
        """L2 sensitivity of the released values under the stated adjacency."""
        return self._sum_sensitivity() / self.sample.rate

    def noise_stddev(self) -> float:
        """Standard deviation of the noise in every released entry, of all noises together."""
        return math.sqrt(self.n_noises) * self._one_stddev() / self.sample.rate

    def largest_norm(self) -> float:
        """Norm of the released values without their noise where every client answers alike, as loud as it may."""
        return math.sqrt(self.geometry.n_blocks) * self.geometry.largest_total * self.vector_bound

    def grid_step(self) -> float:
        """Power of two on which sums and noise are integers; depends on public numbers only.

        Raises:
            ConfigurationError: If 64-bit integers cannot hold both the sum and its noise.
        """
        fine = math.frexp(self._one_stddev())[1] - 1 - GRID_BITS
        room = math.frexp(self.geometry.largest_total * self.vector_bound)[1] - 61
        step = math.ldexp(1.0, max(fine, room))
        if self._one_stddev() / step < 2.0**10:
            raise ConfigurationError(
                f"noise of {self._one_stddev():.3g} is too small compared with sums of up to "
                f"{self.geometry.largest_total * self.vector_bound:.3g}; raise noise_multiplier"
            )
        if self.move is not None and room > fine:
            raise ConfigurationError(
                "the noise for one unit is too small compared with the sums; make sums of fewer rewards or records"
            )
        return step

    def grid_scale(self) -> float:
        """Standard deviation of one noise of the sums in grid units."""
        return self._one_stddev() / self.grid_step()

    def event(self) -> Event:
        """Price of one release; the multiplier is the noise over the true sensitivity."""
        if self.calibration == "tight":
            multiplier = self.noise_multiplier
        else:
            multiplier = self._sum_stddev() / self._sum_sensitivity()
        released = self.sample.event(multiplier)
        return released if self.training is None else compose([self.training, released])


@dataclass(frozen=True, kw_only=True)
class PlainSum:
    """A non-private baseline: weighted sums of all vectors, unclipped and without noise.

    Proof: docs/proofs/plans.md.

    Attributes:
        geometry: What the public weights look like.
    """

    geometry: WeightGeometry

    def event(self) -> Event:
        """Infinite cost at every delta."""
        return NonPrivate()

    def sensitivity(self) -> float:
        """Unbounded."""
        return math.inf

    def noise_stddev(self) -> float:
        """None is added."""
        return 0.0


Mechanism: TypeAlias = PrivateSum | PlainSum


def everybody(n_clients: int) -> Sample:
    """Describe a release of all clients."""
    return Sample(n_clients=n_clients)


def mechanism_for(
    request: Request,
    *,
    noise_multiplier: float | None,
    sample: Callable[[int], Sample] = everybody,
    **settings: Any,  # noqa: ANN401 (fields of PrivateSum, checked there)
) -> Mechanism:
    """Describe the mechanism that answers a request.

    Args:
        request: What is asked for.
        noise_multiplier: z; None is the plain sum.
        sample: Gives the rule by which participants are drawn, of so many clients.
        settings: Further fields of ``PrivateSum``.

    Raises:
        ConfigurationError: If the request or a setting is impossible.

    Example:
        >>> import numpy as np
        >>> request = Request(dim=3, clipping_norm=2.0, weights=np.full((1, 40), 1 / 40))
        >>> mechanism_for(request, noise_multiplier=1.5).event()
        Gaussian(noise_multiplier=1.5)
        >>> mechanism_for(request, noise_multiplier=None).event()
        NonPrivate()
    """
    require_request(request)
    geometry = WeightGeometry.of(request.weights)
    if noise_multiplier is None:
        return PlainSum(geometry=geometry)
    move = None
    if request.unit_bound is not None:
        n_entries = request.dim * geometry.n_blocks
        move = UnitMove(bound=request.unit_bound, n_entries=n_entries, group_size=request.group_size)
    return PrivateSum(
        clipping_norm=request.clipping_norm,
        geometry=geometry,
        noise_multiplier=noise_multiplier,
        sample=sample(geometry.n_clients),
        move=move,
        training=request.training,
        **settings,
    )
