"""Formulas and names that several tests hold the accountant against."""

import itertools
import math

import mpmath as mp
import numpy as np
from dp_accounting import NeighboringRelation

from accountant.events import Adjacency


def neighboring_relation(adjacency: Adjacency) -> NeighboringRelation:
    """dp-accounting's name of our adjacency."""
    names = {Adjacency.ADD_OR_REMOVE_ONE: "ADD_OR_REMOVE_ONE", Adjacency.ZERO_OUT: "REPLACE_SPECIAL"}
    return NeighboringRelation[names.get(adjacency, "REPLACE_ONE")]


def normals(z, *parts):
    """Masses above and below x of a mixture of normal laws, from their weights and centers."""
    return lambda x: [sum(w * mp.ncdf(side * (c - x) / z) for w, c in parts) for side in (1, -1)]


def removed(q, z, loss):
    """Masses of P above and below a loss, and of Q, and how far out in the noise that is."""
    inside = (mp.exp(loss) - (1 - q)) / q
    x = z * z * mp.log(inside) + mp.mpf(1) / 2 if inside > 0 else -mp.inf
    return (*normals(z, (1 - q, 0), (q, 1))(x), *normals(z, (1, 0))(x)), x / z, (x - 1) / z


def turned(truth):
    """The other direction of a pair."""

    def other(q, z, loss):
        masses, *where = truth(q, z, -loss)
        return masses[::-1], *where

    return other


added = turned(removed)


def opposed(q, z, loss):
    """The same of a client that was replaced."""
    weight, half = (1 - q) * mp.exp(1 / (8 * z * z)) / q, mp.mpf(1) / 2
    x = 2 * z * z * (loss / 2 + mp.asinh(weight * mp.sinh(loss / 2)))
    masses = (mass for center in (half, -half) for mass in normals(z, (1 - q, 0), (q, center))(x))
    return tuple(masses), x / z, (abs(x) + half) / z


def hockey_stick(truth, q, z, epsilon):
    """Delta of one release: P's mass at losses above epsilon, without exp(epsilon) times Q's, at 30 digits."""
    mp.mp.dps = 30
    (p_above, _, q_above, _), *_ = truth(mp.mpf(q), mp.mpf(z), mp.mpf(epsilon))
    return p_above - mp.exp(mp.mpf(epsilon)) * q_above


def bisected(holds, low, high, steps=80):
    """The least number between two at which a condition holds, which holds from there on; ``high`` if nowhere."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def told_apart(x, gamma, one, two):
    """The integral of (P - gamma Q)_+ of two densities over a grid, the larger of both directions."""
    return max(float(np.sum(np.maximum(p - gamma * q, 0.0))) for p, q in ((one, two), (two, one))) * (x[1] - x[0])


def profile(pair, gammas):
    """E (dP/dQ - g)_+ of a pair; infinite ratios count."""
    tails = pair.tails(np.log(gammas))
    return tails.p_above - gammas * tails.q_above


def density(x, z, parts):
    """Of a mixture of normal laws, from their weights and centers."""
    return sum(w * np.exp(-0.5 * ((x - c) / z) ** 2) for w, c in parts) / (z * math.sqrt(2.0 * math.pi))


def cut_density(x, values, q, size, z):
    """Of the noisy sum of a Poisson sample of ``values`` that is cut to a size, every coin and every cut one by one."""
    centers = {}
    for coins in itertools.product((0, 1), repeat=len(values)):
        joined = [value for value, coin in zip(values, coins, strict=True) if coin]
        batches = list(itertools.combinations(joined, min(size, len(joined))))
        chance = math.prod(q if coin else 1.0 - q for coin in coins) / len(batches)
        for batch in batches:
            centers[sum(batch)] = centers.get(sum(batch), 0.0) + chance
    return density(x, z, zip(centers.values(), centers, strict=True))
