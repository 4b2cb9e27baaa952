"""How the tight accountant puts its bounds together, on compositions of Gaussians sent through lattice and transform.

Their truth is known in closed form, so every end of every interval can be held against it, direction by direction.
"""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from accountant import gaussian_dp, renyi
from accountant.events import Adjacency, BestOfRandomRuns, Gaussian, Laplace, PoissonSampledGaussian, compose, repeat
from accountant.tight import numerical, refine

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
SAMPLED = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 4)


def direction(mu, count=1):
    """Equal Gaussian releases of total mu as one direction of a composition."""
    (pair,) = Gaussian(noise_multiplier=math.sqrt(count) / mu).pairs(ADD)
    return ((pair, count),)


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("slack", [1.0, 3.0])
def test_delta_of_one_direction_holds_the_truth_also_where_nothing_is_left_to_lose(count, slack):
    pairs = direction(1.2, count)
    for epsilon in np.arange(0.0, 14.0, 0.37):
        truth = math.exp(gaussian_dp.log_delta_from_mu(1.2, float(epsilon)))
        lower, upper = refine.delta_ends(pairs, float(epsilon), slack * truth)
        assert 0.0 <= lower <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= upper <= slack * truth * (1 + 1e-9)
        assert lower >= 0.97 * truth
        assert upper <= 1.03 * truth


def test_an_epsilon_beyond_the_reach_is_looked_at_again_with_a_longer_one():
    """At a bound of 0.1 the reach ends where a billionth of it is left; the truth there is far smaller, and found."""
    pairs = direction(1.0)
    bound = 0.1
    reach = refine.reach_for(pairs, bound * 1e-3)
    ceiling = 0.5 + reach
    assert refine.ceiling(pairs, reach) == pytest.approx(ceiling)
    for epsilon in (*np.linspace(4.0, ceiling - 0.01, 20), ceiling, ceiling + 0.01, 30.0):
        lower, upper = refine.delta_ends(pairs, float(epsilon), bound)
        truth = math.exp(gaussian_dp.log_delta_from_mu(1.0, float(epsilon)))
        assert 0.98 * truth <= lower <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= upper <= 1.02 * truth
    # enough is known where another direction is known to be larger
    assert refine.delta_ends(pairs, 30.0, bound, enough=1e-3) == (0.0, pytest.approx(bound * 1e-9))
    # a loss that ends at 2 cannot exceed 3
    (bounded,) = Laplace(scale_multiplier=0.5).pairs(ADD)
    lower, upper = refine.delta_ends(((bounded, 1),), 3.0, bound)
    assert lower == 0.0
    assert upper <= 1e-250


@pytest.mark.parametrize(("counts", "delta"), [((1,), 0.3), ((5, 2), 1e-5), ((10**6, 1), 1e-12)])
def test_all_releases_together_lose_a_millionth_of_delta_beyond_the_reach(counts, delta):
    pairs = tuple((None, count) for count in counts)
    reach = refine.reach_for(pairs, delta)
    assert sum(counts) * ndtr(-reach) == pytest.approx(1e-6 * delta, rel=1e-6)
    with pytest.raises(refine.OutOfRangeError):
        refine.reach_for(pairs, 1e-300)


def test_losses_too_large_to_be_exponentiated_are_noticed_where_a_cap_leaves_them():
    """Noise of a thousandth: a loss of half a million. Sampled at a rate of 1e-9 its cap is low, and it is priced."""
    (pair,) = Gaussian(noise_multiplier=1e-3).pairs(ADD)
    with pytest.raises(refine.OutOfRangeError):
        refine.epsilon_ends(((pair, 1),), 1e-5)
    with pytest.raises(refine.OutOfRangeError):
        refine.delta_ends(((pair, 1),), 4e5, 1.0)
    rare = PoissonSampledGaussian(sample_rate=1e-9, noise_multiplier=1e-3)
    found = numerical.epsilon_interval(repeat(rare, 20), 1e-8, adjacency=ADD)
    # the unit is drawn with probability 2e-8, and then known: more than delta, so only what the noise hides is left
    assert found.method == "renyi"
    found = numerical.epsilon_interval(repeat(rare, 20), 3e-8, adjacency=ADD)
    assert (found.lower, found.upper, found.method) == (0.0, 0.0, "numerical")


def test_a_composition_is_priced_in_both_directions_with_what_everybody_takes_part_in_merged():
    event = compose(
        [
            (Gaussian(noise_multiplier=0.5), 3),
            (PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=1.0), 2),
            (PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.5), 6),
            (Laplace(scale_multiplier=2.0), 4),
        ]
    )
    both = numerical._directions(event, ZERO)
    assert len(both) == 2
    for index, found in enumerate(both):
        sampled = [pair for pair, count in found if count == 6]
        assert sampled == [PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.5).pairs(ZERO)[index]] or (
            sampled[0].loss_range(2.0)
            == PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.5).pairs(ZERO)[index].loss_range(2.0)
        )
        (laplace,) = [pair for pair, count in found if count == 4 and pair.loss_range(0.0)[1] == 0.5]
        assert laplace.loss_range(1.0) == (-0.5, 0.5)
        # mu^2 = 3 * 4 + 2 in all: a Gaussian's mean loss is mu^2 / 2; four equal ones keep each at most 4
        (merged,) = [(pair, count) for pair, count in found if count == 4 and pair is not laplace]
        assert merged[1] * sum(merged[0].loss_range(1.0)) == pytest.approx(14.0, rel=1e-12)
        assert np.diff(merged[0].loss_range(1.0)) == pytest.approx([2 * math.sqrt(3.5)])
    assert len(numerical._directions(event, REPLACE)) == 1
    run = BestOfRandomRuns(run=SAMPLED, eta=1.0, gamma=0.5)
    found = numerical.epsilon_interval(run, 1e-5, adjacency=ZERO)
    assert (found.upper, found.method) == (renyi.epsilon(run, 1e-5, adjacency=ZERO), "renyi")
    assert 0.5 * found.upper < found.lower <= found.upper  # a test shows it
    assert numerical.quick_epsilon(run, 1e-5, adjacency=ZERO) == found.upper
    found = numerical.delta_interval(run, 2.0, adjacency=ZERO)
    assert (found.lower, found.upper, found.method) == (0.0, renyi.delta(run, 2.0, adjacency=ZERO), "renyi")
