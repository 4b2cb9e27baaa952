"""Curve audit: a black-box lower bound on what a mechanism leaks, against its accountant.

A canary sends a saturating vector of either sign; in three worlds (other clients zero,
other clients opposing it, no other clients) many releases with and without the canary are
told apart by thresholds on linear scores of what came out. Every threshold gives a lower
confidence bound on a point of the hockey-stick curve, delta(epsilon) = sup over events of
P - e^epsilon Q; one above the accountant's curve is a proof, up to the false-alarm rate,
that the mechanism does not do what its event says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from accountant.events import Adjacency, PoissonSampledGaussian, parts
from accountant.tight import numerical
from privbo.door import sums
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.messages import FloatArray

World: TypeAlias = Literal["others zero", "others opposing", "alone"]

_EPSILONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_THRESHOLDS = np.linspace(-5.0, 7.0, 49)


@dataclass(frozen=True, kw_only=True)
class CurveAudit:
    """Outcome of auditing one mechanism in one world.

    Attributes:
        passed: Whether no point of the measured curve lies above the accountant's.
        world: The world it was measured in: what the other clients send.
        epsilon: Where the measured curve comes closest to (or passes) the accountant's.
        delta_lower: Lower confidence bound there.
        delta_claimed: The accountant's value there.
        trials: Releases per side.
        alpha: False-alarm rate of the whole audit.
    """

    passed: bool
    world: World
    epsilon: float
    delta_lower: float
    delta_claimed: float
    trials: int
    alpha: float


def audit_curve(
    build: Callable[[FloatArray], PrivateSum],
    weights: FloatArray,
    *,
    noise: NoiseSource,
    world: World,
    trials: int = 100_000,
    alpha: float = 1e-6,
) -> CurveAudit:
    """Measure a mechanism's hockey-stick curve in one world and hold it against its event.

    Args:
        build: The mechanism for given weights (in the world "alone" one client has any).
        weights: Public weights, ``(n_blocks, n_clients)``; the canary is the client with
            the largest column norm.
        noise: Source of noise and participation, as used by the release.
        world: What the other clients send.
        trials: Releases with and without the canary, each.
        alpha: Probability that a sound mechanism fails, at most.
    """
    canary = int(np.argmax(np.linalg.norm(weights, axis=0)))
    if world == "alone":
        weights, canary = weights[:, [canary]], 0
    mechanism = build(weights)
    present, absent = _worlds(mechanism, weights, canary, world)
    # Releases for the negative canary are mirrored, so that one set of thresholds serves both signs.
    outputs = [
        sign * _release(mechanism, weights, sign * rows, trials, noise)
        for sign in (1.0, -1.0)
        for rows in (present, absent)
    ]
    accounted = _accounted(mechanism)
    scores = list(_scores(weights[:, canary], mechanism.noise_stddev()))
    # Both signs, all scores, thresholds and directions are tested at once; each test needs two bounds.
    level = alpha / (2 * len(scores) * len(_THRESHOLDS) * 4 * 2)
    points = []
    for plus, minus in (outputs[:2], outputs[2:]):
        for direction, stddev in scores:
            # Thresholds follow from public numbers, so no trial is spent on finding them.
            centre, spread = _expected(mechanism, weights, absent, direction, stddev)
            seen = ((released @ direction - centre) / spread for released in (plus, minus))
            measured = _measured_curve(next(seen), next(seen), level)
            points += list(zip(_EPSILONS, measured.tolist(), accounted, strict=True))
    epsilon, bound, delta = max(points, key=_reached)
    return CurveAudit(
        passed=bound <= delta,
        world=world,
        epsilon=epsilon,
        delta_lower=bound,
        delta_claimed=delta,
        trials=trials,
        alpha=alpha,
    )


def _reached(point: tuple[float, float, float]) -> tuple[bool, float]:
    """Rank a measured point: above the accountant's or not, then by its share of the accountant's."""
    _, bound, delta = point
    return bound > delta, bound / delta if delta > 0 else 0.0


def epsilon_lower_bound(
    mechanism: PrivateSum,
    weights: FloatArray,
    *,
    noise: NoiseSource,
    delta: float,
    trials: int = 100_000,
    alpha: float = 0.05,
) -> tuple[float, float]:
    """Lower confidence bound on epsilon at ``delta`` of one release, and the accountant's value.

    The canary takes part with probability q, the stated rate, and then moves its score by
    mu noise standard deviations. With Gaussian noise the total variation between its
    presence and its absence is q (2 Phi(mu / 2) - 1), and every test errs at least that much
    less than 1: fpr + fnr >= 1 - q (2 Phi(mu / 2) - 1). So an upper bound on the two rates of
    one threshold on the score bounds mu from below, and the epsilon of a sampled Gaussian
    with that mu bounds the mechanism's. At rate 1 nothing but this is used; below it the
    statement is: either participation is not sampled at the stated rate, or epsilon is at
    least this. The errors of both worlds are independent trials; among such sums with a
    given mean the binomial has the widest tails (Hoeffding 1956), so one Clopper-Pearson
    bound over 2 x ``trials`` covers them.

    Returns:
        The bound (infinite if presence shows more than any noise at that rate would let
        it) and the accountant's epsilon.
    """
    from scipy.special import ndtri

    canary = int(np.argmax(np.linalg.norm(weights, axis=0)))
    present, absent = _worlds(mechanism, weights, canary, "others zero")
    direction, scale = next(_scores(weights[:, canary], mechanism.noise_stddev()))
    with_canary = _release(mechanism, weights, present, trials, noise) @ direction / scale
    without = _release(mechanism, weights, absent, trials, noise) @ direction / scale
    # The best threshold lies midway between the canary's score and its absence's, both stated.
    each = np.linalg.norm(weights[:, canary]) * mechanism.applied_bound / mechanism.rate / scale
    middle = each / 2 if mechanism.adjacency is Adjacency.ZERO_OUT else 0.0
    errors = np.asarray(np.sum(without > middle) + np.sum(with_canary <= middle), dtype=np.float64)
    apart = max(0.0, 1.0 - 2.0 * float(_upper(errors, 2 * trials, alpha))) / mechanism.rate
    mu = 2.0 * float(ndtri((1.0 + apart) / 2)) if apart < 1 else np.inf
    claimed = numerical.epsilon(mechanism.event(), delta, adjacency=mechanism.adjacency)
    return _epsilon_of(mu, mechanism, delta), claimed


def _epsilon_of(mu: float, mechanism: PrivateSum, delta: float) -> float:
    """Certified lower epsilon of a Gaussian, sampled at the mechanism's rate, whose shift is ``mu``."""
    if mu in (0.0, np.inf):
        return mu
    event = PoissonSampledGaussian(sample_rate=mechanism.rate, noise_multiplier=1.0 / mu)
    return numerical.epsilon_interval(event, delta, adjacency=mechanism.adjacency).lower


def _worlds(mechanism: PrivateSum, weights: FloatArray, canary: int, world: World) -> tuple[FloatArray, FloatArray]:
    """Everybody's vectors (of length one) with the canary, and the neighbour's."""
    long = 2.0 * mechanism.clipping_norm
    rows = np.full((weights.shape[1], 1), -long if world == "others opposing" else 0.0)
    absent = rows.copy()
    rows[canary] = long
    absent[canary] = -long if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    return rows, absent


def _release(
    mechanism: PrivateSum, weights: FloatArray, rows: FloatArray, trials: int, noise: NoiseSource
) -> FloatArray:
    """Independent releases of the same vectors by the shipped code, ``(trials, n_blocks)``."""
    participation = sums.draw_participation(mechanism, trials, noise)
    clipped = clip_rows(rows, mechanism.applied_bound)
    return sums.noisy_sums(mechanism, weights, clipped, participation, noise)[:, :, 0]


def _scores(column: FloatArray, stddev: float) -> Iterator[tuple[FloatArray, float]]:
    """Linear scores with the standard deviation their noise should have: the best one, blocks, contrasts."""
    yield column / np.linalg.norm(column), stddev
    n_blocks = len(column)
    if n_blocks == 1:
        return
    for block in range(n_blocks):
        yield np.eye(n_blocks)[block], stddev
        contrast = np.eye(n_blocks)[block] - np.eye(n_blocks)[block - 1]
        yield np.sign(contrast @ column or 1.0) * contrast, stddev * 2**0.5


def _expected(
    mechanism: PrivateSum, weights: FloatArray, rows: FloatArray, direction: FloatArray, stddev: float
) -> tuple[float, float]:
    """Mean and standard deviation of a score, by the mechanism's own description."""
    each = direction @ (weights * clip_rows(rows, mechanism.applied_bound)[:, 0])
    sampled = np.sum(each**2) * (1 - mechanism.rate) / mechanism.rate
    return float(each.sum()), float(np.sqrt(stddev**2 + sampled))


def _accounted(mechanism: PrivateSum) -> list[float]:
    """The event's hockey-stick curve: P(L > epsilon) - e^epsilon Q(L > epsilon) of its dominating pairs."""
    from accountant.tight.pairs import pairs_of

    epsilons = np.asarray(_EPSILONS)
    curve = np.zeros(len(epsilons))
    (event, _), *_ = parts(mechanism.event())
    for pair in pairs_of(event, mechanism.adjacency):
        tails = pair.tails(epsilons)
        lost, kept = tails.p_above, np.exp(epsilons) * tails.q_above
        curve = np.maximum(curve, lost - kept + tails.relative_error * (lost + kept))
    return curve.tolist()


def _measured_curve(plus: FloatArray, minus: FloatArray, level: float) -> FloatArray:
    """Lower bounds on delta at ``_EPSILONS`` from all thresholds, both tails and both directions."""
    trials = len(plus)
    curve = np.zeros(len(_EPSILONS))
    for first, second in ((plus, minus), (minus, plus)):
        for tail in (1.0, -1.0):
            counts = [_counts_above(tail * sample, trials) for sample in (first, second)]
            low, high = _lower(counts[0], trials, level), _upper(counts[1], trials, level)
            gaps = low[None, :] - np.exp(_EPSILONS)[:, None] * high[None, :]
            curve = np.maximum(curve, gaps.max(axis=1))
    return curve


def _counts_above(sample: FloatArray, trials: int) -> FloatArray:
    return np.asarray(trials - np.searchsorted(np.sort(sample), _THRESHOLDS, side="right"), dtype=np.float64)


def _lower(count: FloatArray, trials: int, level: float) -> FloatArray:
    """Clopper and Pearson's lower bound on a probability."""
    from scipy.special import betaincinv

    return np.where(count > 0, betaincinv(np.maximum(count, 1.0), trials - count + 1, level), 0.0)


def _upper(count: FloatArray, trials: int, level: float) -> FloatArray:
    """Clopper and Pearson's upper bound on a probability."""
    from scipy.special import betainccinv

    return np.where(count < trials, betainccinv(count + 1, np.maximum(trials - count, 1.0), level), 1.0)
