"""The fourteen epsilons the DP-FTS-DE paper and its notebook print, to two decimals.

Source: Dai, Low, Jaillet, NeurIPS 2021, Figure 2 (N=200, T=40), and the authors' landmine
notebook (N=29, T=60); delta = N^-1.1, moments accountant at lambda = 1..32.
"""

import numpy as np
import pytest

from accountant import moments
from accountant.events import Adjacency, FixedSizeSampledGaussian, Laplace, PoissonSampledGaussian, repeat

PAPER = [
    (200, 40, 0.15, 1.0, 5.93),
    (200, 40, 0.25, 1.0, 9.91),
    (200, 40, 0.50, 1.0, 20.12),
    (200, 40, 0.25, 1.2, 7.39),
    (200, 40, 0.25, 1.5, 5.22),
    (29, 60, 0.35, 1.0, 15.17),
    (29, 60, 0.35, 1.6, 7.12),
    (29, 60, 0.35, 2.0, 5.14),
    (29, 60, 0.35, 3.0, 3.05),
    (29, 60, 0.35, 4.0, 2.16),
    (29, 60, 0.10, 1.0, 3.75),
    (29, 60, 0.15, 1.0, 5.98),
    (29, 60, 0.20, 1.0, 7.69),
    (29, 60, 0.25, 1.0, 9.82),
]


@pytest.mark.parametrize(("n", "rounds", "q", "z", "epsilon"), PAPER)
def test_paper(n, rounds, q, z, epsilon):
    event = repeat(PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), rounds)
    found = moments.epsilon(event, n**-1.1, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    # the authors print 3.75 and 7.39 where the value is 3.7548 and 7.3906: two decimals, rounded
    assert round(found, 2) == epsilon


@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.2, 0.9])
@pytest.mark.parametrize("z", [0.3, 1.0, 7.0, 50.0])
def test_series_agrees_with_quadrature(q, z):
    event = PoissonSampledGaussian(sample_rate=q, noise_multiplier=z)
    lambdas = np.arange(1.0, 33.0)
    quadrature = lambdas * event.renyi_curve(lambdas + 1.0, Adjacency.ZERO_OUT)
    series = moments.log_moments(event, adjacency=Adjacency.ZERO_OUT)
    np.testing.assert_allclose(series, quadrature, rtol=1e-12)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_log_moments_are_those_of_the_adjacency(adjacency):
    """Abadi's alpha(lambda) is lambda times the divergence at order lambda + 1, whatever is released."""
    lambdas = np.arange(1.0, 33.0)
    sampled = PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=1.3)
    for event in (
        sampled,
        PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=1.3),
        FixedSizeSampledGaussian(n_clients=9, sample_size=4, noise_multiplier=1.3),
        Laplace(scale_multiplier=2.0),
    ):
        wanted = lambdas * event.renyi_curve(lambdas + 1.0, adjacency)
        np.testing.assert_allclose(moments.log_moments(event, adjacency=adjacency), wanted, rtol=1e-12)
    zero, one = (moments.log_moments(sampled, adjacency=a) for a in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE))
    assert np.all(one < 0.99 * zero)  # of the same multiplier; the same noise is half of it there
