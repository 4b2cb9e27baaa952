"""Epsilon recomputed for an auditor: certified ends by numpy and the standard library, apart from the accountants.

Lower ends are tests between two neighbours (`accountant.verify.lower`). For upper ends, privacy losses of the
releases' dominating pairs (docs/proofs) are rounded up to a grid and added up by one FFT. What lies outside of the
transform's window is bounded by Chernoff and booked on the safe side, as is the transform's rounding. At full
participation the closed form answers (Balle and Wang 2018).

| releases | lower end | upper end |
|---|---|---|
| all clients take part (Gaussian) | exact | exact |
| samples (Poisson, fixed size), up to about 1e5 | a test, within 1 % | losses on a grid, within 1 % |
| more of them, or a tiny delta | a test, within 1 % up to 1e7 | Rényi divergences of Poisson samples, or none |
| Laplace, sampled Laplace, mixture of Gaussians | a test, within 1 % | none |
| random allocation: one participation | a test, within 1 % | none |
| random allocation: several | a test, 2 to 15 % below the accountant | none |
| truncated Poisson, rarely cut | a test, within 2 % | none |
| truncated Poisson, often cut | a test, 5 to 50 % below the accountant | none |
| zero-concentrated | the Gaussian of that rho, 5 to 10 % below Rényi's conversion | none |
| best of random runs | a test, 16 to 40 % below the accountant's bound, 80 % for four; sound, and loose | none |
| all of these together | a test of the sum of losses | where all are Gaussian |
| kinds that are unknown here | that of all others; none where there are no others | none |

A test never shows more than the releases cost. What it shows less is what the accountant's own upper end is loose by,
or the test is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from accountant.verify.events import (
    Adjacency,
    Basic,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
    Unknown,
)
from accountant.verify.lower.ends import lower_epsilon
from accountant.verify.lower.sums import FloatArray, Law, Scored, cumulant, normal_tail as _tail

# P(loss > l) under the first law of a dominating pair.
Above = Callable[[FloatArray], FloatArray]
Counted: TypeAlias = Gaussian | PoissonSampledGaussian | FixedSizeSampledGaussian
"""Of these upper ends are computed."""
Releases: TypeAlias = list[tuple[Counted, int]]

_ORDERS = np.arange(2, 257)
_FINEST = 2**20  # cells of one transform
_WIDTH = 2e-3  # of epsilon, that rounding may cost all releases together
_FAR = 30.0  # of a normal law, beyond which a tail is its density over a continued fraction
_CUT = 1e-4  # share of delta that may lie outside of the window, at each end


@dataclass(frozen=True, kw_only=True)
class Recomputation:
    """Ends of epsilon, and how they were found.

    Attributes:
        lower: Epsilon is at least this.
        upper: Epsilon is at most this.
        how: In words.
        is_whole: Whether every kind of event was counted; one that is unknown here costs nothing in ``lower``.
    """

    lower: float
    upper: float
    how: str
    is_whole: bool = True


def recomputed(paid: Composed, delta: float, adjacency: Adjacency) -> Recomputation | None:
    """Ends of epsilon at ``delta``; None where every kind of event is unknown here.

    Example:
        >>> event = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
        >>> found = recomputed(Composed(parts=((event, 40),)), 1e-5, Adjacency.ZERO_OUT)
        >>> 3.93 < found.lower < 3.957 < found.upper < 3.97
        True
    """
    events = [event for event, _ in paid.parts]
    if not all(isinstance(event, Basic) for event in events):
        raise TypeError("these are events of another package; read them: accountant.verify.events.composed(...)")
    if any(isinstance(event, NonPrivate) for event in events):
        return Recomputation(lower=math.inf, upper=math.inf, how="exact")
    if not events:
        return Recomputation(lower=0.0, upper=0.0, how="exact")
    if all(isinstance(event, Unknown) for event in events):
        return None
    counted = [(event, n) for event, n in paid.parts if isinstance(event, Counted)]
    if len(counted) < len(events):
        upper, how = math.inf, "a certified lower end by a test; upper ends are computed of Gaussian noise alone"
    elif all(event.sample_rate == 1.0 for event, _ in counted):
        found = _gaussian(math.sqrt(sum(n / event.noise_multiplier**2 for event, n in counted)), delta)
        return Recomputation(lower=found, upper=found, how="exact")
    else:
        upper, how = _upper(counted, delta, adjacency)
    is_whole = not any(isinstance(event, Unknown) for event in events)
    return Recomputation(lower=lower_epsilon(paid, delta, adjacency), upper=upper, how=how, is_whole=is_whole)


def _upper(paid: Releases, delta: float, adjacency: Adjacency) -> tuple[float, str]:
    """The upper end, infinite where there is none, and how both ends were found."""
    everybody = sum(n / event.noise_multiplier**2 for event, n in paid if event.sample_rate == 1.0)
    sampled = [(event, n) for event, n in paid if event.sample_rate < 1.0]
    top = _renyi(paid, delta)
    both = [[(_above(event, adjacency, added=added), n) for event, n in sampled] for added in (False, True)]
    upper = max(_above_all(direction, everybody, delta, top) for direction in both)
    if upper < math.inf:
        return upper, "certified ends, the lower by a test and the upper by privacy losses on a grid"
    return math.inf if top is None else top, "certified ends, the lower by a test and the upper by Rényi divergences"


def _gaussian(mu: float, delta: float) -> float:
    """Smallest epsilon with Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) <= delta (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        near, far = epsilon / mu - mu / 2, mu / 2 + epsilon / mu
        first = 0.5 * math.erfc(near / math.sqrt(2))
        if far < _FAR:  # and so exp(epsilon) <= exp(far^2 / 2) is a number
            return first - math.exp(epsilon) * 0.5 * math.erfc(far / math.sqrt(2)) - delta
        ratio = far  # of density to tail, Laplace's continued fraction; epsilon = far^2 / 2 - near^2 / 2
        for term in range(20, 0, -1):
            ratio = far + term / ratio
        return first - math.exp(-near * near / 2) / (math.sqrt(2 * math.pi) * ratio) - delta

    return _bisected(excess)


def _bisected(excess: Callable[[float], float]) -> float:
    """Smallest number >= 0 at which a falling function is no longer positive, from above; infinite beyond 1e120."""
    low, high = 0.0, 1.0
    if excess(0.0) <= 0:
        return 0.0
    while excess(high) > 0:
        high *= 2
        if high > 1e120:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _position(q: float, z: float, loss: FloatArray) -> FloatArray:
    """Where (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2) has this loss; -inf at and below its least."""
    with np.errstate(divide="ignore"):
        return np.asarray(z * z * np.log(np.maximum(1.0 + np.expm1(np.minimum(loss, 700.0)) / q, 0.0)) + 0.5)


def _above(event: Counted, adjacency: Adjacency, *, added: bool) -> Above:
    q, z = event.sample_rate, event.noise_multiplier

    def tail(x: FloatArray, center: float = 1.0) -> FloatArray:
        return (1 - q) * _tail(x / z) + q * _tail((x - center) / z)

    def above(loss: FloatArray) -> FloatArray:
        if isinstance(event, FixedSizeSampledGaussian):
            x = _position(q, z, np.abs(loss))
            return np.where(loss >= 0, tail(x), 1 - _tail(x / z))
        if adjacency is Adjacency.REPLACE_ONE:
            up = (1 - q) * np.sinh(np.clip(0.5 * loss, -300, 300)) * math.exp(0.125 / (z * z) - math.log(q))
            return tail(2 * z * z * (0.5 * loss + np.arcsinh(up)), 0.5)
        return _tail(-_position(q, z, -loss) / z) if added else tail(_position(q, z, loss))

    return above


def _above_all(releases: list[tuple[Above, int]], everybody: float, delta: float, top: float | None) -> float:
    """Upper epsilon of one order of the neighbours; infinite where the grid can't tell."""
    if everybody:
        mu = math.sqrt(everybody)
        releases = [*releases, (lambda loss: _tail(loss / mu - mu / 2), 1)]
    count = sum(n for _, n in releases)
    step = max(2.0**-16, _WIDTH * (8.0 if top is None else min(top, 50.0))) / count
    for _ in range(8):  # a wider step where the window does not fit
        if (found := _summed(releases, step, delta)) is not None:
            break
        step *= 2
    else:
        return math.inf
    losses, chances, slack = found

    def excess(epsilon: float) -> float:  # losses were rounded down, each by less than a step
        beyond = losses > epsilon - count * step
        return float(np.sum(chances[beyond] * -np.expm1(epsilon - count * step - losses[beyond]))) - (delta - slack)

    return _bisected(excess) * (1 + 1e-9)


def _summed(
    releases: list[tuple[Above, int]], step: float, delta: float
) -> tuple[FloatArray, FloatArray, float] | None:
    """Sums of all losses, each rounded down, their chances, and what these may lack or have in excess.

    None where the window is too wide for the step, or the slack too large for delta.
    """
    law = []
    for above, n in releases:
        if (one := _cells(above, n, step, delta * _CUT / (4 * n))) is None:
            return None
        law.append(one)
    low, high = (_end(law, sign, step, delta * _CUT) for sign in (-1.0, 1.0))
    size = 2 ** math.ceil(math.log2(max(2.0, (high - low) / step)))
    if size > _FINEST:
        return None
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for one in law:
        placed = np.bincount(one.scores.astype(np.int64) % size, one.masses, minlength=size)
        product = product * np.fft.rfft(placed) ** one.count
    start = math.floor(low / step)
    total = np.roll(np.fft.irfft(product, size), -(start % size))
    slack = 3 * delta * _CUT + size * len(law) * 2.0**-48  # both ends, what is left of the cells, and rounding
    if slack > delta / 2:
        return None
    return (start + np.arange(size)) * step, np.maximum(total, 0.0), slack


def _cells(above: Above, count: int, step: float, cut: float) -> Scored | None:
    """Chances of losses, each rounded down to a step; beyond the ends ``cut`` at most. None of too many."""
    high, low = step, -step
    while float(above(np.array([high]))[0]) > cut / 2 and high < 1e5:
        high *= 1.5
    while float(above(np.array([low]))[0]) < 1 - cut / 2 and low > -1e5:
        low *= 1.5
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first > _FINEST:
        return None
    at = np.arange(first, last + 1)
    chances = np.maximum(-np.diff(above(np.asarray(at * step, dtype=np.float64))), 0.0)
    return Scored(scores=at[:-1][chances > 0].astype(np.float64), masses=chances[chances > 0], count=count)


def _end(law: Law, sign: float, step: float, cut: float) -> float:
    """Where the sum of all losses lies beyond, on one side, with a chance of at most ``cut``, by Chernoff."""
    rates = np.geomspace(1e-2, 1e3, 60)
    ends = [(cumulant(law, sign * rate * step) - math.log(cut)) / rate for rate in rates]
    return sign * (float(min(ends)) + 2 * step)


def _renyi(paid: Releases, delta: float) -> float | None:
    """An upper bound of Gaussian and Poisson-sampled releases, zero-out or add-or-remove-one; None of others."""
    if any(isinstance(event, FixedSizeSampledGaussian) for event, _ in paid):
        return None
    spent = np.zeros(len(_ORDERS))
    for event, n in paid:
        spent += n * np.array([_divergence(int(a), event.sample_rate, event.noise_multiplier) for a in _ORDERS])
    # Proposition 12 of Canonne, Kamath and Steinke (2020).
    bounds = spent + np.log((_ORDERS - 1) / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return max(0.0, float(np.min(bounds)))


def _divergence(order: int, q: float, z: float) -> float:
    """Rényi divergence at an integer order (Mironov, Talwar and Zhang 2019, section 3.3)."""
    if q == 1.0:
        return order / (2 * z * z)
    k = np.arange(order + 1)
    choose = [math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in range(order + 1)]
    logs = np.array(choose) + (order - k) * math.log1p(-q) + k * math.log(q) + k * (k - 1) / (2 * z * z)
    top = float(np.max(logs))
    return max(0.0, (top + math.log(float(np.sum(np.exp(logs - top))))) / (order - 1))
