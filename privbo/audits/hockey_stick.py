"""Hockey-stick curves, delta(epsilon) = sup over events of P - e^epsilon Q: measured in samples, and accounted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accountant.events import Adjacency, Event, parts
from privbo.protocol.messages import FloatArray

if TYPE_CHECKING:
    from accountant.mechanisms.pair import Pair

EPSILONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
THRESHOLDS = np.linspace(-5.0, 7.0, 49)
N_BOUNDS = len(THRESHOLDS) * 2 * 2 * 2  # of one measured curve: thresholds, tails, directions, ends


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured point beside the accountant's curve.

    Attributes:
        epsilon: Where both are taken.
        lower: Lower confidence bound on delta, in [0, 1].
        claimed: The accountant's delta, in [0, 1].
    """

    epsilon: float
    lower: float
    claimed: float

    @property
    def above(self) -> bool:
        """Tell whether the measured bound contradicts the claim."""
        return self.lower > self.claimed


def lower_confidence(counts: FloatArray, trials: int, level: float) -> FloatArray:
    """Bound probabilities from below by Clopper and Pearson's rule (1934).

    Args:
        counts: Successes among ``trials``, any shape.
        trials: Independent trials.
        level: Chance that a bound lies above its probability, at most.

    Example:
        >>> lower_confidence(np.array([0.0, 10.0]), 10, 0.05).round(3)
        array([0.   , 0.741])
    """
    from scipy.special import betaincinv

    return np.where(counts > 0, betaincinv(np.maximum(counts, 1.0), trials - counts + 1, level), 0.0)


def upper_confidence(counts: FloatArray, trials: int, level: float) -> FloatArray:
    """Bound probabilities from above by Clopper and Pearson's rule (1934).

    Args:
        counts: Successes among ``trials``, any shape.
        trials: Independent trials.
        level: Chance that a bound lies below its probability, at most.

    Example:
        >>> upper_confidence(np.array([0.0, 10.0]), 10, 0.05).round(3)
        array([0.259, 1.   ])
    """
    from scipy.special import betainccinv

    return np.where(counts < trials, betainccinv(counts + 1, np.maximum(trials - counts, 1.0), level), 1.0)


def measured_curve(plus: FloatArray, minus: FloatArray, level: float) -> FloatArray:
    """Lower bounds on delta at ``EPSILONS``, over all thresholds, both tails and both directions.

    All of them hold at once with a chance of at least 1 - ``N_BOUNDS`` x ``level``.

    Args:
        plus: Scores in one world, ``(n,)``.
        minus: Scores in its neighbour, ``(n,)``.
        level: False-alarm rate of one confidence bound.

    Example:
        >>> measured_curve(np.full(1000, 3.0), np.zeros(1000), 1e-6)[:3].round(3)
        array([0.973, 0.969, 0.964])
    """
    trials = len(plus)
    curve = np.zeros(len(EPSILONS))
    for first, second in ((plus, minus), (minus, plus)):
        for tail in (1.0, -1.0):
            seen, unseen = (_counts_above(tail * sample, trials) for sample in (first, second))
            low, high = lower_confidence(seen, trials, level), upper_confidence(unseen, trials, level)
            gaps = low[None, :] - np.exp(EPSILONS)[:, None] * high[None, :]
            curve = np.maximum(curve, gaps.max(axis=1))
    return curve


def _counts_above(sample: FloatArray, trials: int) -> FloatArray:
    return np.asarray(trials - np.searchsorted(np.sort(sample), THRESHOLDS, side="right"), dtype=np.float64)


def accounted_curve(event: Event, adjacency: Adjacency) -> FloatArray:
    """Upper bounds on delta at ``EPSILONS`` of one release.

    Args:
        event: The price of the release.
        adjacency: The ledger's adjacency.

    Example:
        >>> from accountant import Gaussian
        >>> accounted_curve(Gaussian(noise_multiplier=1.0), Adjacency.ZERO_OUT)[:2].round(6)
        array([0.382925, 0.307711])
    """
    (basic, _), *_ = parts(event)
    return curve_of(basic.pairs(adjacency))


def curve_of(pairs: Iterable[Pair]) -> FloatArray:
    """The largest P(L > epsilon) - e^epsilon Q(L > epsilon) of dominating pairs at ``EPSILONS``, rounding added.

    Args:
        pairs: Dominating pairs of one release, one for each direction of the neighbours.
    """
    epsilons = np.asarray(EPSILONS)
    curve = np.zeros(len(epsilons))
    for pair in pairs:
        tails = pair.tails(epsilons)
        lost, kept = tails.p_above, np.exp(epsilons) * tails.q_above
        curve = np.maximum(curve, lost - kept + tails.relative_error * (lost + kept))
    return curve


def closest_point(measured: FloatArray, accounted: FloatArray) -> Point:
    """The point that comes nearest to the accountant's curve, by its share of it; any above come before any below.

    Args:
        measured: Measured curves, ``(n_curves, n_epsilons)``.
        accounted: The accountant's, ``(n_epsilons,)``.

    Example:
        >>> closest_point(np.array([[0.1, 0.02] + 8 * [0.0]]), np.array([0.4, 0.04] + 8 * [1e-3]))
        Point(epsilon=0.25, lower=0.02, claimed=0.04)
    """
    points = (
        Point(epsilon=epsilon, lower=lower, claimed=claimed)
        for curve in measured.tolist()
        for epsilon, lower, claimed in zip(EPSILONS, curve, accounted.tolist(), strict=True)
    )
    return max(points, key=lambda point: (point.above, point.lower / point.claimed if point.claimed > 0 else 0.0))
