import dataclasses

import numpy as np
import pytest

import privbo as pb
from accountant.errors import BudgetExceeded, CalibrationError
from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian
from privbo.plans.plan import price_plan
from privbo.protocol.messages import Request

REWARD = {"noise_multiplier": 3.0, "unit": "reward"}


def request(n_blocks: int = 1, n_clients: int = 10, concentrated: bool = False) -> Request:
    weights = np.full((n_blocks, n_clients), 1.0 / n_clients)
    if concentrated:
        weights = np.zeros((n_blocks, n_clients))
        for n in range(n_clients):
            weights[n % n_blocks, n] = n_blocks / n_clients
    return Request(dim=3, clipping_norm=2.0, weights=weights)


def test_a_target_is_met_from_below_and_not_wasted() -> None:
    terms = price_plan(pb.Privacy(epsilon=2.0), [request()] * 5, n_clients=10)
    assert terms.releases == 5
    assert 1.999 < min(terms.epsilon().values()) <= 2.0


def test_subsampling_and_multiplier() -> None:
    terms = price_plan(pb.Privacy(noise_multiplier=1.5, sample_rate=0.3), [request()] * 4, n_clients=10)
    assert terms.event.parts == ((PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.5), 4),)


def test_the_papers_noise_carries_its_true_multiplier() -> None:
    """Four regions: the paper's noise is worth 2z while weights are concentrated and z when they are uniform."""
    privacy = pb.Privacy(noise_multiplier=1.0, calibration="paper")
    spread = price_plan(privacy, [request(4, 8)], n_clients=8).event
    peaked = price_plan(privacy, [request(4, 8, concentrated=True)], n_clients=8).event
    assert spread.parts[0][0].noise_multiplier == pytest.approx(1.0)
    assert peaked.parts[0][0].noise_multiplier == pytest.approx(2.0)
    mixed = price_plan(privacy, [request(4, 8), request(4, 8, concentrated=True)], n_clients=8)
    assert sorted(part.noise_multiplier for part, _ in mixed.event.parts) == pytest.approx([1.0, 2.0])


def test_a_target_with_the_papers_noise_prices_rounds_as_they_are() -> None:
    plan = [request(4, 8, concentrated=True)] * 3 + [request(4, 8)] * 3
    paper = price_plan(pb.Privacy(epsilon=2.0, calibration="paper"), plan, n_clients=8)
    tight = price_plan(pb.Privacy(epsilon=2.0), plan, n_clients=8)
    for terms in (paper, tight):
        assert 1.999 < min(terms.epsilon().values()) <= 2.0
    assert paper.noise_multiplier < tight.noise_multiplier
    assert tight.event.parts == ((Gaussian(noise_multiplier=tight.noise_multiplier), 6),)


def test_deltas() -> None:
    assert pb.default_delta(40) == 1e-5
    assert pb.default_delta(10**6) == pytest.approx(1e-7)
    assert pb.paper_delta(200) == pytest.approx(200**-1.1)
    with pytest.warns(UserWarning, match=r"1/N = 0\.005"):
        assert pb.Privacy(epsilon=1.0, delta="paper").resolved_delta(200) == pb.paper_delta(200)


def test_a_baseline_costs_infinity_and_an_empty_plan_nothing() -> None:
    assert min(price_plan(pb.NoPrivacy(), [request()], n_clients=10).epsilon().values()) == np.inf
    assert set(price_plan(pb.NoPrivacy(), [], n_clients=10).epsilon().values()) == {0.0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "exactly one"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "exactly one"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": 1.0, "noise": "none"}, "noise"),
        ({"epsilon": 1.0, "delta": "papr"}, "delta"),
        ({"epsilon": 1.0, "budget": 2.0}, "own budget"),
        ({"epsilon": 1.0, "sample_rate": 1.1}, "sample_rate"),
        (REWARD | {"sample_rate": 0.5}, "sample_rate"),
        (REWARD | {"sampling": "fixed-size"}, "sampling"),
        (REWARD | {"calibration": "paper"}, "calibration"),
        (REWARD | {"adaptive_clipping": pb.AdaptiveClipping(count_stddev=9.0)}, "adaptive_clipping counts clients"),
    ],
)
def test_impossible_privacy(settings, words) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.Privacy(**settings)


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(CalibrationError, match="epsilon"):
        price_plan(pb.Privacy(epsilon=1e-9, delta=1e-12), [request()] * 5, n_clients=10)


def test_a_budget_too_small_for_the_plan_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match=r"1 release costs epsilon .* over the budget 0\.1"):
        price_plan(pb.Privacy(noise_multiplier=1.0, budget=0.1), [request()], n_clients=10)
    assert price_plan(pb.Privacy(noise_multiplier=1.0, budget=10.0), [request()], n_clients=10).releases == 1


def test_a_request_for_another_unit_than_the_privacys_is_refused() -> None:
    rewards = dataclasses.replace(request(), unit="reward", unit_bound=0.1)
    for privacy, wanted in ((pb.Privacy(**REWARD), request()), (pb.Privacy(noise_multiplier=3.0), rewards)):
        with pytest.raises(pb.ConfigurationError, match=f"for one {wanted.unit} only"):
            price_plan(privacy, [wanted], n_clients=10)


def test_rewards_enter_one_release_each_so_the_dearest_is_the_price() -> None:
    rewards = dataclasses.replace(request(), unit="reward", unit_bound=0.1)
    terms = price_plan(pb.Privacy(**REWARD), [rewards] * 5, n_clients=10)
    assert terms.event.parts == ((Gaussian(noise_multiplier=3.0), 1),)
    assert (terms.releases, terms.unit, terms.adjacency) == (5, "reward", Adjacency.REPLACE_ONE)
    target = price_plan(pb.Privacy(epsilon=2.0, unit="reward"), [rewards] * 5, n_clients=10)
    alone = price_plan(pb.Privacy(epsilon=2.0, unit="reward"), [rewards], n_clients=10)
    assert target.noise_multiplier == alone.noise_multiplier
