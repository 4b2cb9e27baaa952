"""Gaussian sum that moves by a secret length, such as a group's in a Poisson sample.

P = sum of p_j N(c_j, z^2) against Q = N(0, z^2), and the other way. With s_j = (2 c_j x - c_j^2) / (2 z^2) the ratio is
r(x) = sum over j of p_j exp(s_j). It grows with x. For complex x with |Im x| < pi z^2 / c, c the largest length, all
its terms lie in one half-plane and it has no zero.

The loss grows with the output (falls, in the other direction), so an edge is one output, found by Newton's method:
with the length 0 apart, log(exp(loss) - p_0) is convex in x with a slope between the least and the largest c_j / z^2,
and every term alone bounds x from above, whence the steps fall to the root from the right.

**Claim.** Let S be a random set with chances p_S, and |v_S| <= c_S. Then the pair of sum p_S N(v_S, z^2 I) against
N(0, z^2 I) is dominated by that of sum p_S N(c_S, z^2) against N(0, z^2), in both directions.

**Proof.** Under N(0, z^2 I) the likelihood ratio is r = sum p_S exp(X_S - Var(X_S) / 2) with X_S = <x, v_S> / z^2.
These are jointly Gaussian, with covariances <v_S, v_T> / z^2 <= c_S c_T / z^2: those of the second pair, in which
X_S = c_S x / z^2. By Kahane's inequality (1986) E f(r) is no smaller where covariances are larger, for every convex f.
Both directions' hockey sticks are such: E (r - g)_+ and E (1 - g r)_+. What the others contribute shifts both laws
alike and does not depend on the group's coins; told, it only helps the adversary. (Also Ganesh 2024, by another proof.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from accountant.errors import AccountingError, EventError
from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import EPS, NODES, FloatArray, Pair, Tails, both_directions, gaussian_tails
from accountant.mechanisms.quadrature import LOG_SQRT_2PI, Grid, capped, divergence, line, step_of, top_of

_FAR: Final = 30.0  # of an exponent, beyond which nothing is subtracted from it
_CHUNK: Final = 4096
_STEPS: Final = 100
_LEAST = 1e-300  # a chance that underflows is at least this
_MOST = 512  # lengths of one event


class MixtureOfGaussians(Basic):
    """A Gaussian sum that one unit, or a group of them, moves by a length drawn in secret.

    The worst pair is the mixture of N(c_j, z^2) with chances p_j against N(0, z^2), both directions
    (the module has the proof for vectors; it is the event of a group in a Poisson sample). It is
    stated under add-or-remove-one and zero-out.

    Proof: docs/proofs/groups.md.

    .. versionadded:: 0.3.0

    Attributes:
        noise_multiplier: z, the noise's standard deviation in the unit of the lengths; positive.
        sensitivities: c_j, lengths of at least 0 that rise; the last is positive.
        chances: p_j, positive, one for every length; they sum to 1.

    Example:
        >>> from accountant import Adjacency, PoissonSampledGaussian, numerical, repeat
        >>> two = MixtureOfGaussians(noise_multiplier=2.0, sensitivities=(0.0, 1.0), chances=(0.75, 0.25))
        >>> one = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
        >>> prices = [numerical.epsilon(repeat(event, 40), 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (two, one)]
        >>> abs(prices[0] - prices[1]) < 1e-6
        True
    """

    is_attained = True
    structured = ("sensitivities", "chances")
    unsound: ClassVar = {Adjacency.REPLACE_ONE: "is not stated under replace-one: no pair is proven; state zero-out"}

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.structured:
            try:
                object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
            except (TypeError, ValueError) as error:
                raise EventError(f"MixtureOfGaussians.{name} must be numbers, got {getattr(self, name)!r}") from error
        lengths, chances = self.sensitivities, self.chances
        rising = all(low < high for low, high in itertools.pairwise((-math.ulp(0.0), *lengths)))
        if not (lengths and rising and 0.0 < lengths[-1] < math.inf):
            raise EventError(f"MixtureOfGaussians.sensitivities must rise from at least 0, got {lengths!r}")
        one = len(chances) == len(lengths) and min(chances) > 0.0 and abs(math.fsum(chances) - 1.0) <= 1e-14
        if not one:
            raise EventError(
                f"MixtureOfGaussians.chances must be positive, one for each length, and sum to 1, got {chances!r}"
            )

    @property
    def text(self) -> str:
        length, z = f"{self.sensitivities[-1]:.4g}", f"{self.noise_multiplier:.4g}"
        return f"Gaussian, moved by a secret length of up to {length}, multiplier {z}"

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        z, furthest, chances = self.noise_multiplier, self.sensitivities[-1], self.chances
        present = tuple(zip(chances, self.sensitivities, strict=True))
        still = chances[0] if self.sensitivities[0] == 0.0 else 1.0

        def tails(x: FloatArray) -> Tails:  # a normal one errs by the rounding of t^2 / 2 in its exponent, and more
            t = np.minimum(np.abs(x) / z + furthest / z, 40.0 + furthest / z)
            error = np.asarray(EPS * (8.0 + 2.0 * len(chances) + 2.0 * t * t), dtype=np.float64)
            return gaussian_tails(present, ((1.0, 0.0),), z, x, error)

        return both_directions(
            z,
            furthest,
            loss=lambda x: ratio(self, x)[1],
            position=lambda loss: np.concatenate([_root(self, few) for few in _chunks(loss)]),
            tails=tails,
            line=_points,
            # of an edge: rounding, chances that sum to 1 to a few eps, and cancellation at the low end
            loss_error=4.0 * _rounding(self) + 64.0 * EPS * (len(chances) + 1.0 / still),
        )

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        """With 1 / z the largest length in standard deviations; were all as long, it only cost more."""
        z = self.noise_multiplier / self.sensitivities[-1]

        def sampled(few: FloatArray) -> FloatArray:  # the larger direction's, by the trapezoid rule
            t = line(z, top_of(few))
            excess, log_ratio = ratio(self, t * self.noise_multiplier)
            log_weight = np.log(step_of(z)) - LOG_SQRT_2PI - 0.5 * t * t
            removed = Grid(log_weight=log_weight, excess=excess, log_ratio=log_ratio)
            return np.maximum(divergence(removed, few), divergence(removed.exchanged(), few))

        return capped(sampled, orders, z, step_of(z))

    def for_group(self, size: int, adjacency: Adjacency) -> MixtureOfGaussians:
        return joined(self.noise_multiplier, dict(zip(self.sensitivities, self.chances, strict=True)), size)

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        law = {"sensitivities": list(self.sensitivities), "sampling_probs": list(self.chances)}
        return DpCall("MixtureOfGaussiansDpEvent", {"standard_deviation": self.noise_multiplier, **law})


def joined(z: float, one: Mapping[float, float], size: int) -> MixtureOfGaussians:
    """The event of a sum of ``size`` independent lengths, each drawn with the chances of ``one``."""
    if size * (len(one) - 1) > _MOST:
        raise EventError(f"group={size} of a sampled release has too many lengths; at most {_MOST} are priced")
    total = {0.0: 1.0}
    for _ in range(size):
        grown: dict[float, float] = {}
        for before, chance in total.items():
            for length, added in one.items():
                grown[before + length] = grown.get(before + length, 0.0) + chance * added
        total = grown
    lengths = sorted(total)
    chances = tuple(max(total[length], _LEAST) for length in lengths)
    return MixtureOfGaussians(noise_multiplier=z, sensitivities=tuple(lengths), chances=chances)


def _points(low: float, high: float, z: float) -> tuple[FloatArray, FloatArray]:
    """Points between low and high with log weights of N(0, z^2)."""
    x = np.linspace(low, high, NODES)
    t = x / z
    return x, -0.5 * t * t + math.log(t[1] - t[0]) - LOG_SQRT_2PI


def _chunks(values: FloatArray) -> list[FloatArray]:
    """Some values at a time: every one has a term for each length."""
    return [values[begin : begin + _CHUNK] for begin in range(0, len(values), _CHUNK)]


def ratio(event: MixtureOfGaussians, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Likelihood ratio less 1, capped where it would overflow, and its log, at every output, shape ``(n,)`` each."""
    chances, lengths, found = np.array(event.chances), np.array(event.sensitivities), []
    for few in _chunks(x):
        s = (few[:, None] - 0.5 * lengths) * lengths / event.noise_multiplier**2
        peak = s.max(axis=1)
        excess = np.expm1(np.minimum(s, 300.0)) @ chances
        near = (peak < _FAR) & (excess > -0.5)  # at less than a half 1 + excess has lost digits
        far = np.log(np.exp(s - peak[:, None]) @ chances) + peak
        found.append((excess, np.where(near, np.log1p(np.where(near, excess, 0.0)), far)))
    excesses, logs = zip(*found, strict=True)
    return np.concatenate(excesses), np.concatenate(logs)


def _root(event: MixtureOfGaussians, loss: FloatArray) -> FloatArray:
    """The x at which log r is ``loss``; -inf at and below the log of the chance of length 0."""
    lengths, chances = np.array(event.sensitivities), np.array(event.chances)
    moved = lengths > 0.0
    still, rest = float(chances[~moved].sum()), float(chances[moved].sum())
    inside = np.expm1(np.minimum(loss, 30.0)) + rest
    left = (loss >= 30.0) | (inside > 16.0 * EPS)
    near = np.log(np.where(left, np.maximum(inside, EPS), 1.0))
    target = np.where(loss < 30.0, near, loss + np.log1p(-still * np.exp(-np.maximum(loss, 30.0))))
    lengths, log_chances = lengths[moved], np.log(chances[moved])
    slopes = lengths / event.noise_multiplier**2
    x = np.min((target[:, None] - log_chances) / slopes + 0.5 * lengths, axis=1)
    for _ in range(_STEPS):
        terms = log_chances + (x[:, None] - 0.5 * lengths) * slopes
        peak = terms.max(axis=1)
        weights = np.exp(terms - peak[:, None])
        total = weights.sum(axis=1)
        gap = np.log(total) + peak - target
        if np.all(np.abs(gap[left]) <= _rounding(event)):
            return np.where(left, x, -math.inf)
        x = x - gap * total / (weights @ slopes)
    raise AccountingError(f"no output was found for every loss of {event.text}; use the Rényi accountant")


def _rounding(event: MixtureOfGaussians) -> float:
    """Difference that rounding may leave between equal losses: exponents are sums of numbers of this size."""
    far = event.sensitivities[-1] / event.noise_multiplier
    return 16.0 * EPS * (4.0 + far * far + 45.0 * far - math.log(min(event.chances)))
