"""Curve audit: a black-box lower bound on what a mechanism leaks, against its accountant.

A canary sends a saturating vector of either sign; in three worlds (other clients zero,
other clients opposing it, no other clients) many releases with and without the canary are
told apart by thresholds on linear scores of what came out. Every threshold gives a lower
confidence bound on a point of the hockey-stick curve, delta(epsilon) = sup over events of
P - e^epsilon Q; one above the accountant's curve is a proof, up to the false-alarm rate,
that the mechanism does not do what its event says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accountant.events import Adjacency, PoissonSampledGaussian
from accountant.tight import numerical
from privbo.audits.canary import Releases, World, heaviest_client, moments, neighbours, releases, scores
from privbo.audits.hockey_stick import N_BOUNDS, accounted_curve, closest_point, measured_curve, upper_confidence
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.messages import FloatArray


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
    release: Releases = releases,
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
        release: The code under audit; the shipped one unless said otherwise.
    """
    canary = heaviest_client(weights)
    if world == "alone":
        weights, canary = weights[:, [canary]], 0
    mechanism = build(weights)
    present, absent = neighbours(mechanism, weights.shape[1], canary, world)
    # Releases for the negative canary are mirrored, so that one set of thresholds serves both signs.
    outputs = [
        sign * release(mechanism, weights, sign * rows, trials, noise)
        for sign in (1.0, -1.0)
        for rows in (present, absent)
    ]
    tried = list(scores(weights[:, canary], mechanism.noise_stddev()))
    # Both signs and all scores are tested at once.
    level = alpha / (2 * len(tried) * N_BOUNDS)
    measured = []
    for plus, minus in (outputs[:2], outputs[2:]):
        for direction, stddev in tried:
            # Thresholds follow from public numbers, so no trial is spent on finding them.
            centre, spread = moments(mechanism, weights, absent, direction, stddev)
            seen = ((released @ direction - centre) / spread for released in (plus, minus))
            measured.append(measured_curve(next(seen), next(seen), level))
    found = closest_point(np.array(measured), accounted_curve(mechanism.event(), mechanism.adjacency))
    return CurveAudit(
        passed=not found.above,
        world=world,
        epsilon=found.epsilon,
        delta_lower=found.lower,
        delta_claimed=found.claimed,
        trials=trials,
        alpha=alpha,
    )


def epsilon_lower_bound(
    mechanism: PrivateSum,
    weights: FloatArray,
    *,
    noise: NoiseSource,
    delta: float,
    trials: int = 100_000,
    alpha: float = 0.05,
    release: Releases = releases,
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

    Args:
        mechanism: The mechanism that is attacked.
        weights: Public weights, ``(n_blocks, n_clients)``; the canary is the client with
            the largest column norm.
        noise: Source of noise and participation, as used by the release.
        delta: Where epsilon is bounded, in (0, 1).
        trials: Releases with and without the canary, each.
        alpha: Probability that the bound lies above a sound mechanism's epsilon, at most.
        release: The code under audit; the shipped one unless said otherwise.

    Returns:
        The bound (infinite if presence shows more than any noise at that rate would let
        it) and the accountant's epsilon.
    """
    from scipy.special import ndtri

    canary = heaviest_client(weights)
    present, absent = neighbours(mechanism, weights.shape[1], canary, "others zero")
    direction, scale = next(scores(weights[:, canary], mechanism.noise_stddev()))
    with_canary = release(mechanism, weights, present, trials, noise) @ direction / scale
    without = release(mechanism, weights, absent, trials, noise) @ direction / scale
    # The best threshold lies midway between the canary's score and its absence's, both stated.
    each = np.linalg.norm(weights[:, canary]) * mechanism.applied_bound / mechanism.rate / scale
    middle = each / 2 if mechanism.adjacency is Adjacency.ZERO_OUT else 0.0
    errors = np.asarray(np.sum(without > middle) + np.sum(with_canary <= middle), dtype=np.float64)
    apart = max(0.0, 1.0 - 2.0 * float(upper_confidence(errors, 2 * trials, alpha))) / mechanism.rate
    mu = 2.0 * float(ndtri((1.0 + apart) / 2)) if apart < 1 else np.inf
    claimed = numerical.epsilon(mechanism.event(), delta, adjacency=mechanism.adjacency)
    return _epsilon_of(mu, mechanism, delta), claimed


def _epsilon_of(mu: float, mechanism: PrivateSum, delta: float) -> float:
    """Certified lower epsilon of a Gaussian, sampled at the mechanism's rate, whose shift is ``mu``."""
    if mu in (0.0, np.inf):
        return mu
    event = PoissonSampledGaussian(sample_rate=mechanism.rate, noise_multiplier=1.0 / mu)
    return numerical.epsilon_interval(event, delta, adjacency=mechanism.adjacency).lower
