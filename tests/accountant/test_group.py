"""Group privacy, mixtures of Gaussians and zero-concentrated events, held against densities and another library."""

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import accountant
from accountant import of_group, renyi
from accountant.dp_event import from_dp_event, to_dp_event
from accountant.errors import AccountingError, EventError
from accountant.events import Adjacency, MixtureOfGaussians, NonPrivate, ZeroConcentrated, compose
from accountant.tight import numerical
from tests.accountant.builders import allocated, best, fixed, gaussian, laplace, poisson
from tests.accountant.oracles import density, neighboring_relation, told_apart

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def alone(event):
    ((part, _),) = event.parts
    return part


def hockey_stick(event, epsilon):
    """Delta of a mixture by its densities: both directions' integrals of (P - e^epsilon Q)_+, and the larger."""
    z, last = event.noise_multiplier, event.sensitivities[-1]
    x = np.linspace(-14 * z, last + 14 * z, 200_001)
    p = density(x, z, zip(event.chances, event.sensitivities, strict=True))
    return told_apart(x, math.exp(epsilon), p, density(x, z, [(1.0, 0.0)]))


GROUPS = [(0.1, 1.0, 2), (0.01, 0.7, 3), (0.5, 2.0, 4), (0.9, 3.0, 3), (0.001, 1.0, 8), (0.3, 0.5, 2)]


@pytest.mark.parametrize(("q", "z", "k"), GROUPS)
def test_a_groups_delta_is_the_integral_of_its_densities(q, z, k):
    event = alone(of_group(poisson(q, z), k, adjacency=ZERO))
    for epsilon in (0.05, 0.5, 2.0):
        truth, found = hockey_stick(event, epsilon), numerical.delta_interval(event, epsilon, adjacency=ZERO)
        assert found.lower * (1 - 1e-7) <= truth <= found.upper * (1 + 1e-7)
        assert found.upper <= 1.02 * truth
        assert renyi.delta(event, epsilon, adjacency=ZERO) >= truth * (1 - 1e-7)
    still = event.chances[0]  # planted fault: the group's chances, but only one unit's length
    planted = replace(event, sensitivities=(0.0, 1.0), chances=(still, 1.0 - still))
    assert numerical.delta_interval(planted, 0.5, adjacency=ZERO).upper < hockey_stick(event, 0.5)


def test_a_mixture_without_a_zero_is_a_moved_gaussian_at_least():
    """Units always move the sum by c or by 2 c: between Gaussians of these lengths, and equal to one where alone."""
    mixed = MixtureOfGaussians(noise_multiplier=4.0, sensitivities=(1.0, 2.0), chances=(0.5, 0.5))
    ends = [numerical.epsilon(gaussian(4.0 / c), 1e-5, adjacency=ZERO) for c in (1.0, 2.0)]
    assert ends[0] < numerical.epsilon(mixed, 1e-5, adjacency=ZERO) < ends[1]
    one = MixtureOfGaussians(noise_multiplier=4.0, sensitivities=(2.0,), chances=(1.0,))
    found = numerical.epsilon_interval(one, 1e-5, adjacency=ZERO)
    assert found.lower <= ends[1] <= found.upper * (1 + 1e-9)
    assert found.upper - found.lower <= 2e-3 * ends[1]


@pytest.mark.parametrize(
    ("order", "q", "z", "k"), [*((order, 0.2, 1.5, 3) for order in (1.5, 2.0, 4.0, 17.0)), (1.5, 0.999, 1.0, 8)]
)
def test_a_mixtures_divergence_is_the_integral_of_its_densities(order, q, z, k):
    event = alone(of_group(poisson(q, z), k, adjacency=ZERO))
    x = np.linspace(-20 * z, k * order + 20 * z, 400_001)
    log_q = -0.5 * (x / z) ** 2 - 0.5 * math.log(2 * math.pi * z * z)
    lengths = np.array(event.sensitivities)
    s = (x[:, None] - 0.5 * lengths) * lengths / z**2 + np.log(event.chances)
    log_r = np.log(np.exp(s - s.max(axis=1)[:, None]).sum(axis=1)) + s.max(axis=1)
    both = [math.log(np.trapezoid(np.exp(log_q + power * log_r), x)) / (order - 1) for power in (order, 1 - order)]
    assert renyi.curve(event, [order], adjacency=ZERO)[0] == pytest.approx(max(both), rel=1e-9)


def test_everybody_in_a_group_is_one_contribution_of_k_times_the_length():
    for adjacency in Adjacency:
        assert of_group(gaussian(6.0), 3, adjacency=adjacency) == gaussian(2.0, 1)
        assert alone(of_group(laplace(6.0), 3, adjacency=adjacency)) == laplace(2.0)
    assert alone(of_group(poisson(1.0, 6.0), 3, adjacency=ZERO)) == gaussian(2.0)
    assert alone(of_group(ZeroConcentrated(rho=0.1, xi=0.2), 2, adjacency=REPLACE)) == ZeroConcentrated(
        rho=0.4, xi=0.6000000000000001
    )
    assert alone(of_group(NonPrivate(), 5, adjacency=ZERO)) == NonPrivate()
    assert of_group(accountant.Composed(), 5, adjacency=ZERO) == accountant.Composed()
    assert of_group(poisson(0.1, 1.0, 3), 1, adjacency=REPLACE) == poisson(0.1, 1.0, 3)
    twice = of_group(of_group(poisson(0.1, 1.0), 2, adjacency=ZERO), 2, adjacency=ZERO)
    assert alone(twice).chances == pytest.approx(alone(of_group(poisson(0.1, 1.0), 4, adjacency=ZERO)).chances)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (poisson(0.1, 1.0), REPLACE),
        (fixed(9, 3, 1.0), ZERO),
        (allocated(9, 2, 1.0), ZERO),
        (best(poisson(0.1, 9.0)), REPLACE),
    ],
)
def test_a_group_of_which_nothing_tight_is_proven_is_refused(event, adjacency):
    with pytest.raises(EventError, match=r"of 2 units together nothing tight is proven .* price one unit alone"):
        of_group(event, 2, adjacency=adjacency)


@pytest.mark.parametrize("k", [2, 3])
def test_a_selection_is_for_a_group_what_its_theorem_says_of_the_groups_runs(k):
    """Gaussian runs: a group of k is one unit at a k-th of the noise, so the selection of those runs is known."""

    def price(event):
        return numerical.epsilon(event, 1e-5, adjacency=ZERO)

    loud, quiet = (best(gaussian(z, 3), gamma=0.25) for z in (9.0, 9.0 / k))
    assert price(of_group(loud, k, adjacency=ZERO)) == pytest.approx(price(quiet))
    run = poisson(0.5, 6.0, 8)
    group = price(of_group(best(run, gamma=0.25), k, adjacency=ZERO))
    # Above one unit's, and above what the group pays for one run; a group left at one unit's price is caught.
    assert group > max(1.5 * price(best(run, gamma=0.25)), price(of_group(run, k, adjacency=ZERO)))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_a_group_is_a_whole_number_of_units(size):
    with pytest.raises(AccountingError, match="must be a whole number of units, at least 1"):
        of_group(gaussian(1.0), size, adjacency=ZERO)


def test_the_front_door_prices_and_calibrates_for_a_group():
    plan = {"rounds": 100, "sample_rate": 0.05, "delta": 1e-6}
    prices = [accountant.epsilon(noise_multiplier=2.0, **plan, group=k) for k in (1, 2, 4)]
    assert prices[0] == accountant.epsilon(noise_multiplier=2.0, **plan)
    assert prices[0] < prices[1] < prices[2]
    z = accountant.noise_multiplier(epsilon=2.0, **plan, group=3)
    assert 1.995 <= accountant.epsilon(noise_multiplier=z, **plan, group=3) <= 2.0
    with pytest.raises(EventError, match="nothing tight is proven"):
        accountant.epsilon(noise_multiplier=2.0, **plan, group=2, adjacency="replace-one")


# --- zero-concentrated --------------------------------------------------------------------------


def test_zero_concentrated_events_add_up_and_cost_what_another_library_says():
    event = compose([(ZeroConcentrated(rho=0.02), 5), ZeroConcentrated(rho=0.01, xi=0.05), poisson(0.1, 2.0, 10)])
    curve = renyi.curve(event, [2.0, 8.0], adjacency=ZERO)
    rest = renyi.curve(poisson(0.1, 2.0, 10), [2.0, 8.0], adjacency=ZERO)
    assert curve == pytest.approx(rest + 0.05 + 0.11 * np.array([2.0, 8.0]))
    found = numerical.epsilon_interval(event, 1e-5, adjacency=ZERO)
    assert found.method == "renyi"
    assert 0.85 * found.upper < found.lower < found.upper  # the Gaussian of that rho
    theirs = RdpAccountant(neighboring_relation=neighboring_relation(ZERO)).compose(to_dp_event(event, adjacency=ZERO))
    assert found.upper <= theirs.get_epsilon(1e-5) <= 1.02 * found.upper
    assert 1e-5 <= numerical.delta(event, found.upper, adjacency=ZERO) * (1 + 1e-6) <= 1.001e-5


def test_a_sample_of_what_is_only_zero_concentrated_is_refused():
    theirs = dp.PoissonSampledDpEvent(0.1, dp.dp_event.ZCDpEvent(0.1))
    with pytest.raises(EventError, match="of samples only those are known that Gaussian queries are asked of"):
        from_dp_event(theirs, adjacency=ZERO)
