"""The most that sharing can bring, from public numbers, before anything is charged."""

import numpy as np
import pytest

import privbo as pb
from privbo.plans.plan import price_plan, signal_to_noise
from privbo.protocol.messages import Request


def mean(n_clients, dim=16, norm=2.0, noise_scale=1.0):
    weights = np.full((1, n_clients), 1 / n_clients)
    return Request(dim=dim, clipping_norm=norm, weights=weights, noise_scale=noise_scale)


def test_it_is_the_norm_of_equal_answers_beside_the_expected_norm_of_the_noise():
    """40 vectors of norm 2 have a mean of norm 2; noise of standard deviation 2 z / 40 in 16 numbers has norm .2 z."""
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40)], n_clients=40)
    assert plan.largest_over_noise == pytest.approx(2.0)
    assert (
        plan.outlook == "at best, with all clients answering alike, what they share has 2 times the norm of its noise"
    )
    four = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40)] * 4, n_clients=40)
    assert four.largest_over_noise == pytest.approx(4.0)
    quarters = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40, noise_scale=2.0)] * 4, n_clients=40)
    assert quarters.largest_over_noise == pytest.approx(2.0)
    assert quarters.epsilon()["tight"] == pytest.approx(plan.epsilon()["tight"], rel=1e-6)


def test_each_kind_of_release_has_its_two_norms():
    """The first release has a mean of norm 2 under noise of norm 5 x 2 / 40 x 4 = 1; the others' is twice as loud."""
    requests = [mean(40), mean(40, noise_scale=2.0), mean(40, noise_scale=2.0)]
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), requests, n_clients=40)
    found = signal_to_noise((plan.mechanism(request), request) for request in requests)
    assert [(kind.count, round(kind.largest_sum, 9), round(kind.noise, 9)) for kind in found] == [(1, 2, 1), (2, 2, 2)]
    assert found[1].text == "each of 2 releases: largest possible sum of norm 2 versus noise of expected norm 2"
    assert (found[0].largest_sum / found[0].noise) ** 2 + 2 * 1.0 == pytest.approx(plan.largest_over_noise**2)


def test_several_regions_are_one_vector():
    weights = np.full((4, 40), 1 / 40)
    request = Request(dim=4, clipping_norm=2.0, weights=weights)
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), [request], n_clients=40)
    (mechanism,) = plan.mechanisms
    stacked = np.sqrt(4) * mechanism.vector_bound  # four copies of a vector of norm 2 / sqrt(4)
    assert plan.largest_over_noise == pytest.approx(stacked / (mechanism.noise_stddev() * np.sqrt(16)))


def test_below_its_noise_it_says_so_and_what_to_do():
    plan = price_plan(pb.Privacy(noise_multiplier=50.0), [mean(40)], n_clients=40)
    assert "cannot beat its noise: even if all 40 clients answer alike" in plan.outlook
    assert "0.2 times the norm of its noise" in plan.outlook


def test_what_was_given_up_is_named_and_costs_nothing():
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=40)
    plan = pb.plan(problem, privacy=pb.Privacy(epsilon=0.1), rounds=9)
    assert (plan.releases, plan.epsilon()["tight"], plan.noise_multiplier) == (0, 0.0, None)
    assert plan.largest_over_noise < 1
    assert plan.outlook.startswith("nothing is released or charged: even if all 40 clients answered alike")


def test_without_noise_or_sharing_there_is_nothing_to_say():
    assert price_plan(pb.NoPrivacy(), [mean(40)], n_clients=40).outlook is None
    assert price_plan(pb.Privacy(epsilon=1.0), [], n_clients=40).outlook is None
