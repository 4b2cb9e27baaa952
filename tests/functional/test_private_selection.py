"""Random numbers of runs: their distribution, their price, and what they return."""

from __future__ import annotations

import math

import numpy as np
import pytest

import privbo as pb
from accountant import renyi
from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian, compose
from accountant.gaussian_dp import delta as gaussian_delta
from privbo.functional.private_selection import (
    PoissonRuns,
    TruncatedNegativeBinomial,
    orders,
    select,
)

ADJACENCY = Adjacency.ADD_OR_REMOVE_ONE


def curve_of(event):
    return lambda at: renyi.curve(event, at, adjacency=ADJACENCY)


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (0.0, 0.05), (0.5, 0.2), (-0.5, 0.01)])
def test_number_of_runs(eta, gamma) -> None:
    """20,000 draws; the mean within 6 standard errors (false alarms below 1e-8)."""
    runs = TruncatedNegativeBinomial(eta=eta, gamma=gamma)
    rng = np.random.default_rng(0)
    drawn = np.array([runs.draw(rng) for _ in range(20_000)])
    assert drawn.min() >= 1
    assert abs(drawn.mean() - runs.mean) < 6 * drawn.std() / math.sqrt(len(drawn))


def test_eta_one_is_geometric() -> None:
    runs = TruncatedNegativeBinomial(eta=1.0, gamma=0.25)
    assert runs.mean == pytest.approx(4.0)
    rng = np.random.default_rng(1)
    ones = np.mean([runs.draw(rng) == 1 for _ in range(20_000)])
    assert abs(ones - 0.25) < 6 * math.sqrt(0.25 * 0.75 / 20_000)


def test_price_of_the_geometric_distribution() -> None:
    """Theorem 2 at one Gaussian, by hand: eps(l) = l/(2 z^2), the second order optimised on a fine grid."""
    z, runs = 4.0, TruncatedNegativeBinomial(eta=1.0, gamma=0.1)
    at = orders()
    found = runs.curve(curve_of(Gaussian(noise_multiplier=z)), at)
    m = np.exp(np.linspace(math.log(1.01), math.log(2000), 20_000))
    extra = (2 * (1 - 1 / m) * m / (2 * z * z) + 2 * math.log(10) / m).min()
    by_hand = at / (2 * z * z) + extra + math.log(10) / (at - 1)
    np.testing.assert_allclose(found, by_hand, rtol=2e-3)
    assert (found >= by_hand - 1e-9).all()  # a coarser grid can only cost more


def test_pure_privacy_of_one_run_is_at_most_tripled() -> None:
    """Liu and Talwar 2019 / Corollary 3: an (e, 0)-DP run repeated geometrically costs at most 3 e."""
    epsilon, runs = 0.1, TruncatedNegativeBinomial(eta=1.0, gamma=0.01)
    found = runs.curve(lambda at: np.full_like(at, epsilon), np.array([1e5, 1e6, 1e9]))
    assert found[-1] <= 3 * epsilon * 1.001


def test_price_of_poisson_runs() -> None:
    """Theorem 6 at one Gaussian, by hand at three orders; dearer than one run, cheaper than 20."""
    z, mean = 2.0, 20.0
    event = Gaussian(noise_multiplier=z)

    def delta_of(epsilon):
        return gaussian_delta(event, epsilon, adjacency=ADJACENCY)

    at = np.array([1.2, 1.5, 2.0])
    found = PoissonRuns(mean=mean).curve(curve_of(event), at, delta_of=delta_of)
    by_hand = [
        order / (2 * z * z) + mean * delta_of(math.log(1 + 1 / (order - 1))) + math.log(mean) / (order - 1)
        for order in at
    ]
    np.testing.assert_allclose(found, by_hand, rtol=1e-9)
    many = PoissonRuns(mean=mean).curve(curve_of(event), orders(), delta_of=delta_of)
    price = min(renyi.epsilon_at_orders(many, orders(), 1e-5))
    single = renyi.epsilon(event, 1e-5, adjacency=ADJACENCY)
    assert single < price < renyi.epsilon(compose([(event, 20)]), 1e-5, adjacency=ADJACENCY)


def test_selection_costs_more_than_one_run_and_less_than_all() -> None:
    """DP-SGD runs: 480 steps at q = 1/16; ten runs composed are the alternative."""
    one = compose([(PoissonSampledGaussian(sample_rate=1 / 16, noise_multiplier=3.0), 480)])
    at = orders()
    runs = TruncatedNegativeBinomial(eta=0.0, gamma=0.02)  # about 12.5 runs
    found = min(renyi.epsilon_at_orders(runs.curve(curve_of(one), at), at, 1e-5))
    single = renyi.epsilon(one, 1e-5, adjacency=ADJACENCY)
    composed = renyi.epsilon(compose([(one, 12)]), 1e-5, adjacency=ADJACENCY)
    assert single < found < composed


def test_select_returns_the_best_of_its_runs() -> None:
    seen = []

    def run_one(candidate):
        seen.append(candidate)
        return [0.3, 0.1, 0.2][candidate]

    rng = np.random.default_rng(3)
    drawn = select(run_one, 3, TruncatedNegativeBinomial(eta=1.0, gamma=0.05), rng)
    assert drawn.runs == len(seen)
    assert drawn.score == min([0.3, 0.1, 0.2][c] for c in seen)
    nothing = select(run_one, 3, PoissonRuns(mean=1e-9), rng)
    assert (nothing.chosen, nothing.runs) == (None, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TruncatedNegativeBinomial(eta=-1.0, gamma=0.5),
        lambda: TruncatedNegativeBinomial(eta=1.0, gamma=1.0),
        lambda: PoissonRuns(mean=0.0),
    ],
)
def test_impossible_distributions_are_refused(make) -> None:
    with pytest.raises(pb.ConfigurationError, match="="):
        make()
