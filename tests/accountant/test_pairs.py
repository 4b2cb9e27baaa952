"""Dominating pairs against brute force: no allowed pair of data sets is told apart more easily."""

import itertools
import math

import numpy as np
import pytest

from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
)
from accountant.pairs import pairs_of

EDGES = np.linspace(-3.0, 3.0, 61)


def normal(grid, center, z):
    x, y = grid
    return np.exp(-((x - center[0]) ** 2 + (y - center[1]) ** 2) / (2 * z * z)) / (2 * math.pi * z * z)


def divergence(p, q, gamma, cell):
    return float(np.sum(np.maximum(p - gamma * q, 0.0)) * cell)


def angles():
    lengths = (0.0, 0.25, 0.5)
    turns = np.linspace(0.0, math.pi, 7)
    return itertools.product(lengths, lengths, turns)


def largest_replace_one(q, z, gamma, *, reach=0.5):
    """Over pairs of contributions in the plane, and the opposed pair itself."""
    axis = np.linspace(-8 * z, 8 * z, 321)
    grid, cell = np.meshgrid(axis, axis), (axis[1] - axis[0]) ** 2

    def mixture(center):
        return (1 - q) * normal(grid, (0.0, 0.0), z) + q * normal(grid, center, z)

    scale = reach / 0.5
    found = [
        divergence(mixture((scale * a, 0.0)), mixture((scale * b * math.cos(t), scale * b * math.sin(t))), gamma, cell)
        for a, b, t in angles()
    ]
    return max(found), divergence(mixture((0.5, 0.0)), mixture((-0.5, 0.0)), gamma, cell)


@pytest.mark.parametrize(("q", "z"), [(0.3, 0.5), (0.7, 1.0)])
@pytest.mark.parametrize("gamma", [0.4, 1.0, 1.3, 3.0])
def test_the_opposed_pair_is_the_worst(q, z, gamma):
    worst, opposed = largest_replace_one(q, z, gamma)
    assert worst <= opposed * (1 + 1e-9)


def test_longer_contributions_are_noticed():
    """Planted fault: contributions longer than half the sensitivity pass the opposed pair."""
    worst, opposed = largest_replace_one(0.3, 0.5, 1.3, reach=0.6)
    assert worst > opposed * 1.05


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=0.7), Adjacency.ZERO_OUT),
        (PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=0.7), Adjacency.REPLACE_ONE),
        (FixedSizeSampledGaussian(n_clients=10, sample_size=4, noise_multiplier=0.7), Adjacency.ZERO_OUT),
        (Gaussian(noise_multiplier=1.3), Adjacency.ZERO_OUT),
        (Laplace(scale_multiplier=0.8), Adjacency.ZERO_OUT),
    ],
)
def test_tails_are_those_of_one_likelihood_ratio(event, adjacency):
    """Between losses a < b the mass of P lies between e^a and e^b times the mass of Q."""
    for pair in pairs_of(event, adjacency):
        tails = pair.tails(EDGES)
        p, q = tails.p_above[:-1] - tails.p_above[1:], tails.q_above[:-1] - tails.q_above[1:]
        assert np.all(p >= -1e-15)
        assert np.all(p >= np.exp(EDGES[:-1]) * q - 1e-13)
        assert np.all(p <= np.exp(EDGES[1:]) * q + 1e-13)
        np.testing.assert_allclose(tails.p_above + tails.p_below, 1.0, rtol=1e-13)
        np.testing.assert_allclose(tails.q_above + tails.q_below, 1.0, rtol=1e-13)
        low, high = pair.loss_range(6.0)
        beyond = pair.tails(np.array([low - 1e-9, high + 1e-9]))
        assert beyond.p_below[0] <= 1e-9
        assert beyond.p_above[1] <= 1e-9


def test_the_two_poisson_directions_mirror_each_other():
    remove, add = pairs_of(PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=0.7), Adjacency.ZERO_OUT)
    forward, backward = remove.tails(EDGES), add.tails(-EDGES)
    np.testing.assert_allclose(forward.p_above, backward.q_below, rtol=1e-12)
    np.testing.assert_allclose(forward.q_above, backward.p_below, rtol=1e-12)


def test_an_event_without_a_pair_is_named():
    with pytest.raises(EventError, match="NonPrivate"):
        pairs_of(NonPrivate(), Adjacency.ZERO_OUT)
