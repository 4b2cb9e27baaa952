"""Formulas and names that several tests hold the accountant against."""

import itertools
import math

import mpmath as mp
import numpy as np
from dp_accounting import NeighboringRelation

from accountant.events import Adjacency
from accountant.tight.numerical import Interval


def neighboring_relation(adjacency: Adjacency) -> NeighboringRelation:
    """dp-accounting's name of our adjacency."""
    names = {Adjacency.ADD_OR_REMOVE_ONE: "ADD_OR_REMOVE_ONE", Adjacency.ZERO_OUT: "REPLACE_SPECIAL"}
    return NeighboringRelation[names.get(adjacency, "REPLACE_ONE")]


def interval_problems(found: Interval, low: float | None, high: float | None, absolute: float) -> list[str]:
    """Everything that is wrong with an interval, given another library's optimistic and pessimistic epsilon."""
    checks = {
        "no interval": 0.0 <= found.lower <= found.upper < math.inf,
        "wide": found.upper - found.lower <= max(0.005 * found.upper, absolute),
        "upper below the optimistic value": low is None or found.upper >= low * (1 - 1e-9),
        "lower above the pessimistic value": high is None or found.lower <= high * (1 + 1e-9),
        "upper more than 1 % above the pessimistic value": high is None
        or found.upper <= max(1.01 * high, high + absolute),
    }
    return [words for words, holds in checks.items() if not holds]


def exact_delta(q, z, epsilon, mean_p, mean_q):
    """delta of one release of mixtures (1-q) N(0) + q N(mean), by mpmath at 30 digits."""
    mp.mp.dps = 30
    q, z, epsilon = mp.mpf(q), mp.mpf(z), mp.mpf(epsilon)

    def density(x, mean):
        return ((1 - q) * mp.npdf(x, 0, z) + q * mp.npdf(x, mean, z)) if mean is not None else mp.npdf(x, 0, z)

    def gap(x):
        return density(x, mean_p) - mp.exp(epsilon) * density(x, mean_q)

    sign = 1 if (mean_p or 0) > (mean_q or 0) else -1
    low, high = (mp.mpf(-60) * z, mp.mpf(60) * z + 2)
    for _ in range(300):
        middle = (low + high) / 2
        positive = gap(middle) > 0
        if sign > 0:
            low, high = (low, middle) if positive else (middle, high)
        else:
            low, high = (middle, high) if positive else (low, middle)

    def mass(mean):
        def tail(m):
            return mp.ncdf(-sign * (high - m) / z)

        return tail(0) if mean is None else (1 - q) * tail(0) + q * tail(mean)

    return mass(mean_p) - mp.exp(epsilon) * mass(mean_q)


def one_release(q, z, epsilon):
    """Delta of one sampled release, the larger of both directions."""
    return max(exact_delta(q, z, epsilon, *pair) for pair in ((mp.mpf(1), None), (None, mp.mpf(1))))


def cut_density(x, values, q, size, z):
    """Of the noisy sum of a Poisson sample of ``values`` that is cut to a size, every coin and every cut one by one."""
    centers = {}
    for coins in itertools.product((0, 1), repeat=len(values)):
        joined = [value for value, coin in zip(values, coins, strict=True) if coin]
        batches = list(itertools.combinations(joined, min(size, len(joined))))
        chance = math.prod(q if coin else 1.0 - q for coin in coins) / len(batches)
        for batch in batches:
            centers[sum(batch)] = centers.get(sum(batch), 0.0) + chance
    scale = z * math.sqrt(2.0 * math.pi)
    return sum(chance * np.exp(-0.5 * ((x - center) / z) ** 2) / scale for center, chance in centers.items())
