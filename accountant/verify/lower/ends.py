"""Lower ends of epsilon and delta of whole compositions: what two neighbours of the events' own attain.

For every kind of event two laws P and Q are named that its statement admits, and some test tells them apart so well:

| event | the two neighbours |
|---|---|
| Gaussian | its worst pair; all Gaussians together are one |
| Poisson sample, mixture of Gaussians, Laplace | the worst pair, which data sets attain |
| sample of a fixed size | the pair that has the event's profile |
| truncated Poisson sample | others contribute zero: a Poisson sample at the chance of being in the batch (or below) |
| random allocation, any T and k | the worst pair itself, k of T rounds in a uniform subset |
| best of random runs | the run's neighbours, judged by a score of three values (below) |
| zero-concentrated | the Gaussian of that rho, which has no larger divergences than the event states |

Random allocation. The test is a sum of one score of every round's output. It is symmetric in the rounds, so given any
k-subset the sum has the law of k scores of N(1, z^2) and T - k of N(0, z^2), which is its law under the mixture, and
of T scores of N(0, z^2) under Q. That holds for every score; log(1 + y w), w the round's likelihood ratio, orders
outputs as a Poisson sample's ratio does at y = k / T and as the ratio for k = 1 does for y to 0; several y are tried.

Truncated Poisson samples. Where batches are small and mostly full every other unit may contribute minus the unit's own,
or minus half of it: a unit that takes a place then changes the sum twice. Along that contribution the sum is a mixture
of Gaussians, by the number of others whose coins came up and by whether the unit stays.

Selection. The best of K runs, f the probability generating function of K. A run's score says which of three sets its
output lies in: W (least), Y, V (best). The best lies in Y with probability f(1 - P(V)) - f(1 - P(V) - P(Y)), which
falls with P(V) and rises with P(Y), f being convex and rising; so bounds of P(V) and P(Y) bound it. V is where the
run's loss is low and Y where it is high: taking part makes V rarer, so that more selections fall on Y.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from accountant.verify import events
from accountant.verify.events import Adjacency, Basic, Composed
from accountant.verify.lower.sums import (
    EPS,
    REACH,
    TINY,
    Cells,
    FloatArray,
    Masses,
    Parts,
    Scored,
    Tail,
    cells,
    edges_of,
    laplace_tail,
    masses_of,
    normal_tail,
    summed,
)

_OPPOSING = (1.0, 0.75, 0.5, 0.35, 0.2)  # lengths of the others' contributions that are tried
_SMALL_BATCH, _MOSTLY, _MOST_JOINING = 32, 0.5, 1e3  # largest batch, least chance that it is full, largest mean
_OF_ONE, _OF_SEVERAL = (1.0, 0.1, 0.01), (1.0, 0.3)  # shares of k / T that are tried for y
_LARGEST_LOG = 600.0
_MOST = 10**9  # releases or rounds
_LEAST_NOISE = 1e-3  # less noise costs no less
_MOST_MU, _LEAST_MU = 1e6, 1e-100
_NOTHING = Cells(p=np.zeros(0), q=np.zeros(0))
_LEAST_DELTA = 1e-250
_PLACES = 200  # thresholds that are tried for either end of a selection's test
_MOST_ROUNDING = 1e-3  # of a generating function, beyond which nothing is said
_MOST_TERMS = 10**5  # of a binomial tail, to either side of its mean
_LGAMMA = 1e-14  # relative error


def lower_epsilon(paid: Composed, delta: float, adjacency: Adjacency) -> float:
    """Epsilon that ``paid`` costs at least at ``delta``; kinds that are unknown here are taken to cost nothing.

    Example:
        >>> from accountant.verify.events import Composed, RandomAllocationGaussian
        >>> event = RandomAllocationGaussian(n_rounds=100, participations=1, noise_multiplier=1.0)
        >>> 0.6 < lower_epsilon(Composed(parts=((event, 1),)), 1e-5, Adjacency.ZERO_OUT) < 0.622
        True
    """
    if any(isinstance(part, events.NonPrivate) for part, _ in paid.parts):
        return math.inf
    return max(_composed(paid, delta, adjacency, added=added).epsilon(delta) for added in (False, True))


def lower_delta(paid: Composed, epsilon: float, adjacency: Adjacency, *, near: float) -> float:
    """Delta that ``paid`` costs at least at ``epsilon``; tests are sought that show about ``near``."""
    if any(isinstance(part, events.NonPrivate) for part, _ in paid.parts):
        return 1.0
    near = min(max(near, _LEAST_DELTA), 0.5)
    return max(_composed(paid, near, adjacency, added=added).delta(epsilon) for added in (False, True))


def lower_tests(
    paid: Composed, deltas: Iterable[float], adjacency: Adjacency, *, added: bool
) -> list[tuple[FloatArray, FloatArray]]:
    """False-alarm rates, rounded up, and success rates, rounded down, of tests sought near ``deltas``."""
    found = [_composed(paid, delta, adjacency, added=added).tests() for delta in deltas]
    return [(alarms, success) for success, alarms in found]


def _composed(paid: Composed, delta: float, adjacency: Adjacency, *, added: bool) -> Cells:
    """Cells of all releases, for one order of the neighbours; none where nothing is known to cost anything."""
    releases = list(_releases(paid, delta, adjacency, added=added))
    if not releases:
        return _NOTHING
    if len(releases) == 1 and releases[0][1] == 1:
        return releases[0][0]
    each = [(one.merged(), count) for one, count in releases]
    p = [Scored(scores=one.losses, masses=one.p, count=count) for one, count in each]
    return summed(p, [Scored(scores=one.losses, masses=one.q, count=count) for one, count in each], delta)


def _releases(paid: Composed, delta: float, adjacency: Adjacency, *, added: bool) -> Iterator[tuple[Cells, int]]:
    """Cells of every release; all Gaussians are one release."""
    mu_squared = 0.0
    for part, n in paid.parts:
        count = min(n, _MOST)
        if (own := _mu_squared(part)) is not None:
            mu_squared += count * own
        elif not isinstance(part, events.Unknown) and len(
            (found := _cells(part, count, delta, adjacency, added=added)).p
        ):
            yield found, count
    if mu_squared > _LEAST_MU**2:  # rounded down
        yield _mixed(((1.0, 1.0),), ((1.0, 0.0),), 1.0 / math.sqrt(mu_squared) * (1.0 + 1e-12), added=added), 1


def _mu_squared(part: Basic) -> float | None:
    """Squared distance of what is a Gaussian pair."""
    match part:
        case events.Gaussian(noise_multiplier=z):
            return _squared(z)
        case events.ZeroConcentrated(rho=rho):
            return min(2.0 * rho, _MOST_MU**2)
        case events.RandomAllocationGaussian(n_rounds=rounds, participations=k, noise_multiplier=z) if k == rounds:
            return rounds * _squared(z)
        case events.PoissonSampledGaussian(noise_multiplier=z) | events.FixedSizeSampledGaussian(noise_multiplier=z):
            return _squared(z) if part.sample_rate == 1.0 else None
    return None


def _squared(z: float) -> float:
    """Squared distance at this noise, cut to what can be squared: a shorter one costs no more."""
    return min(1.0 / z, _MOST_MU) ** 2


def _cells(part: Basic, count: int, delta: float, adjacency: Adjacency, *, added: bool) -> Cells:  # noqa: PLR0911 - one per kind
    replacing = adjacency is Adjacency.REPLACE_ONE
    match part:
        case events.PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            return _mixed(*_sampled(q, opposed=replacing), z, added=added)
        case events.TruncatedPoissonSampledGaussian(noise_multiplier=z):
            alone = _mixed(*_sampled(least_rate(part), opposed=replacing), z, added=added)
            tried = [alone, *(_opposing(part, share, adjacency, added=added) for share in _OPPOSING)]
            usual = delta if count == 1 else math.sqrt(delta)  # of many releases rare losses decide less
            return max(tried, key=lambda one: one.epsilon(usual))
        case events.FixedSizeSampledGaussian(noise_multiplier=z):
            return _fixed_size(part.sample_rate, z)
        case events.MixtureOfGaussians(noise_multiplier=z):
            mixture = tuple(zip(part.chances, part.sensitivities, strict=True))
            return _mixed(mixture, ((1.0, 0.0),), z, added=added)
        case events.Laplace(scale_multiplier=b):
            return _mixed(*_sampled(1.0, opposed=False), b, added=added, tail=laplace_tail)
        case events.PoissonSampledLaplace(sample_rate=q, scale_multiplier=b):
            return _mixed(*_sampled(q, opposed=replacing and q < 1.0), b, added=added, tail=laplace_tail)
        case events.RandomAllocationGaussian():
            shares = _OF_ONE if part.participations == 1 else _OF_SEVERAL
            tried = [_allotted(part, delta, share, added=added) for share in (shares[:1] if added else shares)]
            return max(tried, key=lambda one: one.epsilon(delta))
        case events.BestOfRandomRuns():
            return _selected(part, delta, adjacency, added=added)
    raise TypeError(f"no neighbours are known for {part!r}; name them in accountant.verify.lower.ends")


def _sampled(q: float, *, opposed: bool) -> tuple[Parts, Parts]:
    """Weights and centers of one that takes part with chance ``q``, and of its neighbour."""
    if opposed:
        return ((1.0 - q, 0.0), (q, 0.5)), ((1.0 - q, 0.0), (q, -0.5))
    return (((1.0 - q, 0.0), (q, 1.0)) if q < 1.0 else ((1.0, 1.0),)), ((1.0, 0.0),)


def _opposing(
    part: events.TruncatedPoissonSampledGaussian, share: float, adjacency: Adjacency, *, added: bool
) -> Cells:
    """Cells where every other unit contributes minus ``share`` of what the unit does; none where that is no help."""
    n, q, size = part.n_clients, part.sample_rate, part.batch_size
    if size > min(_SMALL_BATCH, n - 1) or q == 1.0 or n * q > _MOST_JOINING:
        return _NOTHING
    (full, error), (staying, _) = _binomial(n - 1, q, size, n - 1), _binomial(n, q, size + 1, n)
    staying *= size / n
    if full < _MOSTLY or staying > 0.9 * full:
        return _NOTHING
    whole = 0.5 if adjacency is Adjacency.REPLACE_ONE else 1.0
    other = -whole if adjacency is Adjacency.REPLACE_ONE else 0.0
    back = share * whole
    joined = [(_binomial(n - 1, q, others, others)[0], -back * others) for others in range(size)]

    def law(own: float) -> Parts:
        """The unit's contribution is ``own``."""
        inside = [(chance * q, place + own) for chance, place in joined]
        out = [(chance * (1.0 - q), place) for chance, place in joined]
        return [*inside, *out, (staying, own - back * (size - 1)), (full - staying, -back * size)]

    absent = adjacency is Adjacency.ADD_OR_REMOVE_ONE
    return _mixed(
        law(whole), [*joined, (full, -back * size)] if absent else law(other), part.noise_multiplier,
        added=added, error=64.0 * error + 1e-12,
    )  # fmt: skip


def _mixed(p: Parts, q: Parts, scale: float, *, added: bool, tail: Tail = normal_tail, error: float = 0.0) -> Cells:
    """Cells of two mixtures whose weights err by ``error``, relatively."""
    scale = max(scale, _LEAST_NOISE)
    edges = edges_of(p, q, reach=REACH * scale if tail is normal_tail else 0.0)
    if not np.all(np.isfinite(edges)) or error >= 1.0:
        return _NOTHING
    laws = (masses_of(law, scale, edges, tail) for law in (p, q))
    one, other = (Masses(least=law.least * (1.0 - error), most=law.most * (1.0 + error)) for law in laws)
    return cells(other, one) if added else cells(one, other)


def _fixed_size(q: float, z: float) -> Cells:
    """The Poisson pair where its loss is positive, the same mirrored, and what is left at loss 0."""
    z = max(z, _LEAST_NOISE)
    if z > 1.0 / _LEAST_MU:
        return _NOTHING
    edges = np.concatenate([[0.5], 0.5 + np.linspace(0.0, 0.5 + 12.0 * z, 2048)[1:]])
    p, q_ = (masses_of(one, z, edges) for one in _sampled(q, opposed=False))
    left = 1.0 + 1e-12
    rest_least = max(0.0, 1.0 / left - float(np.sum(p.most[1:]) + np.sum(q_.most[1:])) * left)
    rest_most = max(0.0, left - float(np.sum(p.least[1:]) + np.sum(q_.least[1:])) / left)

    def mirrored(one: Masses, other: Masses) -> Masses:
        return Masses(
            least=np.concatenate([one.least[1:], other.least[1:], [rest_least]]),
            most=np.concatenate([one.most[1:], other.most[1:], [rest_most]]),
        )

    return cells(mirrored(p, q_), mirrored(q_, p))


def _allotted(part: events.RandomAllocationGaussian, delta: float, share: float, *, added: bool) -> Cells:
    """Cells of the sum of all rounds' scores."""
    rounds, k, z = part.n_rounds, part.participations, max(part.noise_multiplier, _LEAST_NOISE)
    if rounds > _MOST or z > 1.0 / _LEAST_MU:
        return _NOTHING
    absent, present = ((1.0, 0.0),), ((1.0, 1.0),)
    edges = edges_of(absent, present, reach=REACH * z)
    out, taking_part = (masses_of(parts, z, edges) for parts in (absent, present))
    middle = np.concatenate([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])
    score = np.log1p(share * k / rounds * np.exp(np.minimum((middle - 0.5) / (z * z), _LARGEST_LOG)))
    p, q = [(taking_part, k), (out, rounds - k)], [(out, rounds)]
    if added:
        p, q, score = q, p, -score
    return summed(
        [Scored(scores=score, masses=one.least, count=count) for one, count in p if count],
        [Scored(scores=score, masses=one.most, count=count) for one, count in q if count],
        delta,
    )


def _selected(part: events.BestOfRandomRuns, delta: float, adjacency: Adjacency, *, added: bool) -> Cells:
    """Two cells: the best run's output lies in Y, or it does not."""
    run = _composed(part.run, delta, adjacency, added=added)
    if not len(run.p) or _rounding(part) > _MOST_ROUNDING:
        return _NOTHING
    order = np.argsort(-run.losses)
    slack = 4.0 * EPS * len(order)
    high_p, high_q = np.cumsum(run.p[order]) * (1.0 - slack), np.cumsum(run.q[order]) * (1.0 + slack)
    low_p = np.append(np.cumsum(run.p[order][::-1])[::-1] * (1.0 - slack), 0.0)
    chances = np.concatenate([np.geomspace(1e-9, 0.5, _PLACES // 2), 1.0 - np.geomspace(1e-9, 0.5, _PLACES // 2)])
    picks = np.unique(np.searchsorted(high_p, chances * high_p[-1])).clip(0, len(order) - 1)
    y, v = (grid.ravel() for grid in np.meshgrid(picks, picks, indexing="ij"))
    y, v = y[y <= v], v[y <= v]  # Y ends with the one cell and W with the other
    under_p = difference(part, high_p[v], high_p[y], lower=True)
    under_q = difference(part, np.minimum(high_q[v], 1.0), np.minimum(high_q[y], 1.0), lower=False)
    gain = under_p - delta
    best = int(np.argmax(np.where(gain > 0.0, np.log(np.maximum(gain, TINY)) - np.log(under_q), -math.inf)))
    in_v, not_in_y = low_p[v[best : best + 1] + 1], low_p[y[best : best + 1] + 1]
    most = float(difference(part, 1.0 - in_v, 1.0 - not_in_y, lower=False)[0])
    chosen, rest = float(under_p[best]), 1.0 - most
    p, q = np.array([chosen, rest]), np.array([float(under_q[best]), 1.0])
    return Cells(p=p[p > 0.0], q=q[p > 0.0])


def difference(part: events.BestOfRandomRuns, one: FloatArray, less: FloatArray, *, lower: bool) -> FloatArray:
    """A bound of f(one) - f(one - less), f the probability generating function of K, convex and rising."""
    eta, log_gamma = part.eta, math.log(part.gamma)
    ends = [np.log1p(-(1.0 - part.gamma) * np.clip(x, 0.0, 1.0)) for x in (one, one - less)]
    if eta == 0.0:
        at, before = (logs / log_gamma for logs in ends)
        scale = -(1.0 - part.gamma) / log_gamma
    else:
        at, before = (np.expm1(-eta * logs) / math.expm1(-eta * log_gamma) for logs in ends)
        scale = eta * (1.0 - part.gamma) / math.expm1(-eta * log_gamma)
    relative = _rounding(part)
    at_end, at_begin = (scale * np.exp(-(1.0 + eta) * logs) * less for logs in ends)
    if lower:
        return np.maximum(at - before - relative * at, at_begin * (1.0 - relative))
    return np.minimum(at - before + relative * at, at_end * (1.0 + relative)) + TINY


def _rounding(part: events.BestOfRandomRuns) -> float:
    """Relative error of f: 1 - (1 - gamma) x is at least gamma, and is raised to at most the power 2 + |eta|."""
    if abs(part.eta * math.log(part.gamma)) > _LARGEST_LOG:
        return math.inf
    return 64.0 * EPS * (2.0 + abs(part.eta)) * (1.0 - math.log(part.gamma)) / part.gamma


def least_rate(part: events.TruncatedPoissonSampledGaussian) -> float:
    """The chance of being in the batch, q P(X < B) + (B / N) P(Bin(N, q) > B), rounded down; X is Bin(N - 1, q)."""
    n, q, size = part.n_clients, part.sample_rate, part.batch_size
    if size >= n:
        return q
    if q == 1.0:
        return size / n
    (free, error), (full, _) = _binomial(n - 1, q, 0, size - 1), _binomial(n, q, size + 1, n)
    return (q * free + (size / n) * full) * max(0.0, 1.0 - 2.0 * error)


def _binomial(n: int, q: float, first: int, last: int) -> tuple[float, float]:
    """The chance that Bin(n, q) lies between two numbers, and its relative error; terms far from the mean are left out.

    What is left out is less than exp(-60): it lowers a chance, and is no more than the error of one that is not tiny.
    Where n q is at most a thousand, nothing below the mean is left out.
    """
    center, far = n * q, min(40.0 * math.sqrt(n * q * (1.0 - q)) + 40.0, _MOST_TERMS)
    first, last = max(first, math.floor(center - far)), min(last, math.ceil(center + far))
    if first > last:
        return 0.0, 0.0
    at = np.arange(first, last + 1)
    whole = math.lgamma(n + 1.0)
    ways = np.array([whole - math.lgamma(i + 1.0) - math.lgamma(n - i + 1.0) for i in at.tolist()])
    logs = np.minimum(ways + at * math.log(q) + (n - at) * math.log1p(-q), 0.0)
    rounding = _LGAMMA * (4.0 * whole + 8.0 * n * (abs(math.log(q)) * q + abs(math.log1p(-q))) + 1e3)
    return float(np.exp(logs).sum()), rounding
