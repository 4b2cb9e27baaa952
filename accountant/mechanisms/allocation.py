"""Gaussian sums of a whole run, every unit taking part in exactly k of T rounds at secret random times.

**Rényi divergences.** With Q = N(0, z^2 I) over T rounds, w_i = dN(e_i, z^2 I)/dQ and R = (w_1 + ... + w_T) / T the
pair for k = 1 is P = R Q against Q. At integer orders (w_i independent, E w^j = exp(j (j-1) / (2 z^2)), multinomial
theorem)

    E_Q[R^a] = a! T^-a [x^a] (sum over j of x^j exp(j (j-1) / (2 z^2)) / j!)^T,                                   (1)

a power of a polynomial with positive terms, so nothing cancels. Between integers log E_Q[R^a] is convex in a, so the
chord is above it. Exchanged, log E_Q[R^-b] with b = a - 1, by Gamma(b) R^-b = int u^(b-1) exp(-u R) du,

    E_Q[R^-b] = 1/Gamma(b) int exp(b y) phi(e^y / T)^T dy,   phi(v) = E exp(-v w),                                   (2)

whose integrand is log-concave in y: exp(-e^x) is the survival function of a Gumbel law, and phi(e^y) that of it
with Gaussian noise. Where (2) is not evaluated, Jensen's inequality bounds it: log R >= mean of log w_i, so
D_a(Q || P) <= 1/(2 z^2) + (a - 1) / (2 T z^2). No order costs more than taking part openly, a k / (2 z^2).

For k > 1 split the rounds at random into k blocks, of T // k rounds or one more, and draw one round of each: a uniform
k-subset, whatever the blocks' sizes. Telling the blocks only helps the adversary (joint quasi-convexity), and given
them the rounds are k independent allocations of one, whose divergences add up.

**Dominating pair** of one participation in m rounds, from the law of a mean. With Q = N(0, z^2 I) over m rounds and P
the uniform mixture of N(e_i, z^2 I), the ratio dP/dQ is the mean R of m independent w_i = dN(e_i, z^2 I)/dQ, log w_i
normal with mean -1/(2 z^2) and variance 1/z^2 under Q. The pair's profile is H_g(P || Q) = E (R - g)_+. Let w' have the
law of w with the mass of every cell between two points of a grid split between its ends so that mass and mean are kept:
then E f(w) <= E f(w') for convex f, which stays true of sums of independent ones. So whatever is put on the grid in
this way, and summed, and put on it again, has a larger profile at every g: it dominates the pair, in both directions,
and enters compositions like any other.

The grid is geometric (points exp(j h), so that a sum's place depends on the distance of its terms alone), and is
made twice as fine, which changes nothing, wherever the law has drawn together. Beyond the last point a cell's other
end is infinity: P-mass there, of Q none. Below the first one mass is lifted to it; what that could take from the
exchanged direction is booked as infinite loss of that one. All masses are sums of positive terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from accountant.errors import EventError
from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.gaussian import Gaussian
from accountant.mechanisms.pair import EPS, NODES, FloatArray, Pair, Tails, ndtr

_LARGEST_ORDER = 256  # beyond it an order is answered by taking part openly
_ROUNDING = 1e-13  # of the terms' logarithms, booked as cost
_FAR = 45.0  # an integrand is followed until it has fallen by exp(-45)
_LEAST_PHI = 1e-4  # below it phi loses digits
LEAST_NOISE = 0.05  # below it no curve and no pair is computed: a single ratio is too large to be exponentiated
_POINTS = 1400  # of a grid, at most one and a half times as many
_MANY_ROUNDS = 4096  # beyond so many rounds twice as many points
_MOST_ROUNDS = 2**24  # of more the pair of so many is taken: a mean of more ratios is smaller in convex order
_REACH = 13.0  # standard deviations of a single log ratio
_CELL_ERROR = 1e-12  # relative, of a cell's normal mass
_UNHEARD = 1e-40  # mass that may be moved to a law's ends


class RandomAllocationGaussian(Basic):
    """A whole run of Gaussian sums: every unit takes part in exactly k of T rounds, at secret random times.

    Every unit's set of rounds is a uniform k-subset, drawn once before the first round, independently of all others';
    also called balls in bins (k = 1). It is one event for all T releases, each a sum that must not be divided by the
    realised number of participants; later queries may depend on earlier answers. The worst pair, exact, is the
    uniform mixture over k-subsets S of N(1_S, z^2 I) against N(0, z^2 I), both directions: given S, what the run
    answers is made round by round from 1_S and noise alone, along the direction that the unit contributes, whatever
    that depends on. It holds under add-or-remove-one and zero-out, where the others' rounds do not depend on the
    unit; under replace-one nothing is stated.

    For k > 1 it is priced as k independent allocations of one, each of T // k rounds or one more, an upper bound (the
    module has the proof); these have a dominating pair. The lower end of an interval is a test's of the worst pair
    itself (``accountant.verify.lower``).

    Proof: docs/proofs/random-allocation.md.

    .. versionadded:: 0.3.0

    Attributes:
        n_rounds: T, number of releases.
        participations: k, 1 to ``n_rounds``.
        noise_multiplier: z, noise standard deviation of one release over one contribution's sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, renyi
        >>> event = RandomAllocationGaussian(n_rounds=100, participations=1, noise_multiplier=1.0)
        >>> openly = Gaussian(noise_multiplier=1.0)
        >>> prices = [renyi.epsilon(one, 1e-5, adjacency=Adjacency.ZERO_OUT) for one in (event, openly)]
        >>> prices[0] < 0.7 * prices[1]
        True
    """

    words = (
        "Gaussian over {n_rounds} rounds, each client in {participations} at random times, "
        "multiplier {noise_multiplier:.4g}"
    )
    sampling = "random allocation: every client in exactly {participations} of {n_rounds} releases, at secret times"
    is_attained = False
    unsound: ClassVar = {Adjacency.REPLACE_ONE: "is not stated under replace-one: no pair is proven; state zero-out"}

    n_rounds: int
    participations: int
    noise_multiplier: float

    @property
    def sample_rate(self) -> float:
        """Chance that one given unit is in one given release: k / T."""
        return self.participations / self.n_rounds

    @property
    def gaussian_releases(self) -> int:
        return self.participations

    @property
    def n_releases(self) -> int:
        return self.n_rounds

    def blocks(self) -> tuple[tuple[Basic, int], ...]:
        """One participation in each block of rounds."""
        size, longer = divmod(self.n_rounds, self.participations)
        openly, plan = self.seen_samples()[0], ((size, self.participations - longer), (size + 1, longer))
        return tuple((openly if n == 1 else replace(self, n_rounds=n, participations=1), k) for n, k in plan if k)

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        """Of one participation, where its noise lets a single ratio be exponentiated."""
        if self.participations > 1 or self.n_rounds == 1 or self.noise_multiplier < LEAST_NOISE:
            return ()
        return allotted(min(self.n_rounds, _MOST_ROUNDS), self.noise_multiplier)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        z, k = self.noise_multiplier, self.participations
        total = sum(times * _one(block.n_releases, z, orders) for block, times in self.blocks())
        return np.asarray(np.minimum(total, k * orders / (2.0 * z * z)), dtype=np.float64)

    def seen_samples(self) -> tuple[Basic, int]:
        return Gaussian(noise_multiplier=self.noise_multiplier), self.participations

    def dp_event(self, factor: float) -> DpCall:
        raise EventError(f"dp-accounting has no event for {self!r}")


def _one(rounds: int, z: float, orders: FloatArray) -> FloatArray:
    """One participation in so many rounds."""
    openly = orders / (2.0 * z * z)
    if rounds == 1:
        return openly
    few = orders <= _LARGEST_ORDER
    out = openly.copy()
    if np.any(few):
        top = 2 ** math.ceil(math.log2(max(2.0, float(orders[few].max()))))
        at_integers = _log_moments(rounds, z, top)
        a = orders[few]
        log_moment = np.interp(a, np.arange(1, top + 1), at_integers[1:])
        removed = log_moment / (a - 1.0)
        added = np.array([_added(rounds, z, max(1.0, float(order) - 1.0)) for order in a])
        out[few] = np.minimum(openly[few], np.maximum(removed, added))
    return np.asarray(out, dtype=np.float64)


@lru_cache(maxsize=64)
def _log_moments(rounds: int, z: float, top: int) -> FloatArray:
    """Upper bounds of log E_Q[R^a] at a = 0, 1, ..., top, by (1)."""
    from scipy.special import gammaln

    j = np.arange(top + 1, dtype=np.float64)
    base = j * (j - 1.0) / (2.0 * z * z) - gammaln(j + 1.0)
    power = np.where(j == 0.0, 0.0, -np.inf)
    left = rounds
    while left:
        if left & 1:
            power = _product(power, base)
        left >>= 1
        if left:
            base = _product(base, base)
    log_moment = gammaln(j + 1.0) - j * math.log(rounds) + power
    size = gammaln(j + 1.0) + j * (1.0 + math.log(rounds)) + j * j / (2.0 * z * z)
    value = np.maximum(log_moment, 0.0) + _ROUNDING * size
    value[:2] = 0.0
    return np.asarray(value, dtype=np.float64)


def _product(f: FloatArray, g: FloatArray) -> FloatArray:
    """Logs of the coefficients of a product, up to the same degree."""
    n = len(f)
    index = np.arange(n)[:, None] - np.arange(n)[None, :]
    terms = np.where(index >= 0, f[None, :] + g[index], -np.inf)
    peak = terms.max(axis=1)
    return np.asarray(peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1)), dtype=np.float64)


@lru_cache(maxsize=4096)
def _added(rounds: int, z: float, b: float) -> float:
    """Upper bound of log E_Q[R^-b] / b: (2), or Jensen's."""
    jensen = (1.0 + b / rounds) / (2.0 * z * z)
    if z < LEAST_NOISE:
        return jensen

    end, at_end, slope = _phi_end(z)
    if -rounds * slope < 1.05 * b:  # the peak lies where phi has no digits left
        return jensen

    def log_integrand(y: FloatArray) -> FloatArray:
        log_v = y - math.log(rounds)
        beyond = at_end + slope * (log_v - end)
        logs = np.where(log_v > end, beyond, _log_phi(z, np.minimum(log_v, end)))
        return np.asarray(b * y + rounds * logs, dtype=np.float64)

    low = (math.lgamma(b + 1.0) - _FAR) / b  # below it lies less than exp(-45) of the integral, which is at least 1
    high = max(low, end + math.log(rounds)) + _FAR / (-rounds * slope - b)
    coarse = np.linspace(low, high, 513)
    values = log_integrand(coarse)
    peak = int(np.argmax(values))
    inside = np.flatnonzero(values >= values[peak] - _FAR)
    low, high = float(coarse[max(inside[0] - 1, 0)]), float(coarse[min(inside[-1] + 1, 512)])
    # |integrand| grows by at most cos(x)^-b at distance x from the line: at x = 1/sqrt(b + 1) the step leaves exp(-40)
    step = 0.15 / math.sqrt(b + 1.0)
    y = np.asarray(low + step * np.arange(math.ceil((high - low) / step) + 1), dtype=np.float64)
    logs = log_integrand(y)
    top = float(logs.max())
    total = step * float(np.exp(logs - top).sum())
    # where the chord's extension begins the slope jumps by less than itself: the rule may lack step^2 / 8 of the jump
    total += (
        0.125 * step**2 * rounds * -slope * math.exp(min(0.0, b * (end + math.log(rounds)) + rounds * at_end - top))
    )
    log_moment = top + math.log(total) - math.lgamma(b)
    slack = 1e-12 * (1.0 + b * (1.0 + math.log(rounds)))
    return float(min(jensen, (max(0.0, log_moment) + slack) / b))


@lru_cache(maxsize=256)
def _phi_end(z: float) -> tuple[float, float, float]:
    """Where phi falls to its last good digits: log v there, log phi, and a slope that it exceeds nowhere beyond."""
    low, high = -50.0, 50.0 / z + 1.0 / (z * z)
    for _ in range(60):
        middle = 0.5 * (low + high)
        large = _log_phi(z, np.array([middle]))[0] > math.log(_LEAST_PHI)
        low, high = (middle, high) if large else (low, middle)
    before, at = _log_phi(z, np.array([low - 0.05, low]))
    return low, float(at), float((at - before) / 0.05)  # log phi is concave: it stays below its chord's extension


def _log_phi(z: float, log_v: FloatArray) -> FloatArray:
    """Log of E exp(-v w), log w normal with mean -1/(2 z^2) and variance 1/z^2: trapezoid, rounded up."""
    step = min(0.25, 0.2 * z)
    t = np.arange(-12.0, 12.0 + 1.0 / z + step, step)
    weight = np.exp(-0.5 * t * t) * step / math.sqrt(2.0 * math.pi)
    exponent = np.minimum(log_v[:, None] + (t / z - 0.5 / (z * z))[None, :], 50.0)
    missing = -np.expm1(-np.exp(exponent)) @ weight
    return np.asarray(np.log1p(-np.minimum(missing * (1.0 - 1e-12), 1.0 - 1e-15)), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """A law that is larger, in convex order, than that of the mean of ``rounds`` ratios.

    Attributes:
        rounds: Number of them.
        spacing: h.
        start: Number of the first point, exp(start h).
        masses: Under Q, point by point.
        infinite: P-mass of an infinite ratio.
        lifted: Q-mass that was lifted to the first point.
        error: Relative error of every mass.
    """

    rounds: int
    spacing: float
    start: int
    masses: FloatArray
    infinite: float
    lifted: float
    error: float


def allotted(rounds: int, z: float) -> tuple[Pair, Pair]:
    """Both directions of one participation in so many rounds, with noise multiplier ``z``."""
    law = _mean(rounds, z, _POINTS if rounds <= _MANY_ROUNDS else 2 * _POINTS)
    points, q = _points(law.spacing, law.start, len(law.masses)), law.masses
    p = q * np.exp(points)
    exchanged = np.asarray(-points[::-1])
    rounding = law.error + 8.0 * EPS * (1.0 + float(np.abs(points).max()))
    slip = _CELL_ERROR * (1.0 + float(np.abs(points).max())) * (1.0 + math.log2(rounds))
    removed = _pair(points, p, q, infinite=law.infinite, error=rounding, slip=slip)
    return removed, _pair(exchanged, q[::-1], p[::-1], infinite=law.lifted, error=rounding, slip=slip)


def _pair(loss: FloatArray, p: FloatArray, q: FloatArray, *, infinite: float, error: float, slip: float) -> Pair:
    """Atoms of both masses at rising losses, and P-mass of infinite loss."""
    p_up, q_up = (np.append(np.cumsum(masses[::-1])[::-1], 0.0) for masses in (p, q))
    p_down, q_down = (np.append(0.0, np.cumsum(masses)) for masses in (p, q))

    def tails(edges: FloatArray) -> Tails:
        above = np.searchsorted(loss, edges, side="right")
        error_there = np.full(len(edges), error)
        return Tails(p_up[above] + infinite, p_down[above], q_up[above], q_down[above], error_there)

    def loss_range(t: float) -> tuple[float, float]:
        rare = float(ndtr(-t))
        low = int(np.searchsorted(p_down[1:], rare))
        high = len(loss) - 1 - int(np.searchsorted((p_up[:-1] + infinite)[::-1], rare))
        return float(loss[min(low, len(loss) - 1)]), float(loss[max(high, 0)]) if infinite <= rare else math.inf

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        low, high = loss_range(t)
        inside = np.flatnonzero((loss >= low) & (loss <= high) & (p > 0.0))
        groups = np.array_split(inside, min(NODES, len(inside)))
        mass = np.array([p[group].sum() for group in groups])
        center = np.array([float(p[group] @ loss[group]) for group in groups]) / mass
        return center, np.log(mass)

    return Pair(tails=tails, loss_range=loss_range, loss_error=slip, nodes=nodes)


@lru_cache(maxsize=64)
def _mean(rounds: int, z: float, size: int) -> _Mean:
    """By doubling: the mean of 2n ratios is that of two means of n."""
    if rounds == 1:
        return _single(z, size)
    half = _mean(rounds // 2, z, size)
    whole = _fine(_mixed(half, half), size)
    return whole if rounds % 2 == 0 else _fine(_mixed(whole, _single(z, size)), size)


def _single(z: float, size: int) -> _Mean:
    """One ratio, log-normal, put on the grid."""
    low, high = -0.5 / (z * z) - _REACH / z, 0.5 / (z * z) + _REACH / z
    spacing = (high - low) / size
    start = math.floor(low / spacing)
    points = _points(spacing, start, size + 2)
    under_q, under_p = z * points + 0.5 / z, z * points - 0.5 / z
    q, p = _cells(under_q), _cells(under_p)
    ratio = np.exp(points)
    up = np.clip((p - ratio * q) / (ratio * math.expm1(spacing)), 0.0, q)
    up[-1] = 0.0  # beyond the last point: all of Q's mass to it, what P has more to infinity
    masses = q - up
    masses[1:] += up[:-1]
    lifted = float(ndtr(under_q[0]))
    masses[0] += lifted
    return _Mean(
        rounds=1,
        spacing=spacing,
        start=start,
        masses=masses,
        infinite=max(0.0, float(p[-1] - ratio[-1] * q[-1])),
        lifted=lifted,
        error=_CELL_ERROR,
    )


def _points(spacing: float, start: int, count: int) -> FloatArray:
    return np.asarray(spacing * (start + np.arange(count)), dtype=np.float64)


def _cells(t: FloatArray) -> FloatArray:
    """Normal mass between consecutive places, and last beyond all of them."""
    mass = np.where(t[1:] < 0.0, ndtr(t[1:]) - ndtr(t[:-1]), ndtr(-t[:-1]) - ndtr(-t[1:]))
    return np.append(mass, ndtr(-t[-1]))


def _mixed(one: _Mean, other: _Mean) -> _Mean:
    """The mean of the ratios of both, put on the finer of both grids."""
    spacing = min(one.spacing, other.spacing)
    one, other = _refined(one, spacing), _refined(other, spacing)
    a, b, rounds = one.masses, other.masses, one.rounds + other.rounds
    distances = other.start - one.start + np.arange(1 - len(a), len(b))
    share = one.rounds / rounds
    place = np.logaddexp(math.log(share), math.log1p(-share) + spacing * distances) / spacing
    below = np.floor(place).astype(np.int64)
    up = np.clip(np.expm1(spacing * (place - below)) / math.expm1(spacing), 0.0, 1.0)
    start = min(one.start, other.start)
    masses = np.zeros(max(one.start + len(a), other.start + len(b)) + 2 - start)
    apart = distances - other.start + one.start
    for distance, cell, share_up in zip(apart.tolist(), below.tolist(), up.tolist(), strict=True):
        first, last = max(0, -distance), min(len(a), len(b) - distance)
        both = a[first:last] * b[first + distance : last + distance]
        at = one.start + first + cell - start
        masses[at : at + len(both)] += both * (1.0 - share_up)
        masses[at + 1 : at + 1 + len(both)] += both * share_up
    return _Mean(
        rounds=rounds,
        spacing=spacing,
        start=start,
        masses=masses,
        infinite=share * one.infinite + (1.0 - share) * other.infinite,
        lifted=one.lifted + other.lifted,
        error=one.error + other.error + EPS * (8.0 + len(distances)),
    )


def _refined(law: _Mean, spacing: float) -> _Mean:
    """The same law on a grid that is some times twice as fine."""
    times = round(law.spacing / spacing)
    masses = np.zeros(times * (len(law.masses) - 1) + 1)
    masses[::times] = law.masses
    return replace(law, spacing=law.spacing / times, start=law.start * times, masses=masses)


def _fine(law: _Mean, size: int) -> _Mean:
    """The same law without ends of negligible mass, on as fine a grid as there are points for."""
    points = _points(law.spacing, law.start, len(law.masses))
    p = law.masses * np.exp(points)
    first = int(np.searchsorted(np.cumsum(law.masses), _UNHEARD))
    last = len(p) - 1 - int(np.searchsorted(np.cumsum(p[::-1]), _UNHEARD))
    masses = law.masses[first : last + 1].copy()
    masses[0] += law.masses[:first].sum()
    masses[-1] += (beyond := law.masses[last + 1 :].sum())
    law = replace(
        law,
        start=law.start + first,
        masses=masses,
        lifted=law.lifted + float(law.masses[:first].sum()),
        infinite=law.infinite + max(0.0, float(p[last + 1 :].sum() - beyond * math.exp(points[last]))),
    )
    return _refined(law, law.spacing / 2 ** max(0, math.floor(math.log2(size / len(masses)) + 0.5)))
