"""Random allocation: its Rényi curve against integrals, every subset one by one, and Monte Carlo that only checks."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from accountant import renyi
from accountant.dp_event import to_dp_event
from accountant.errors import EventError
from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian, compose, repeat
from accountant.mechanisms.allocation import _added, _log_moments, allocation_divergence, allotted
from accountant.tight import numerical
from tests.accountant.builders import allocated

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def moment(rounds, k, z, order):
    """E_Q[(dP/dQ)^order] of integer order, every tuple of subsets one by one: E prod N(1_S)/N(0) is exp of overlaps."""
    subsets = [np.isin(np.arange(rounds), one).astype(float) for one in itertools.combinations(range(rounds), k)]
    total = 0.0
    for chosen in itertools.product(subsets, repeat=order):
        together = sum(chosen)
        total += math.exp((float(together @ together) - order * k) / (2 * z * z))
    return total / len(subsets) ** order


@pytest.mark.parametrize(("rounds", "z", "order"), [(2, 1.0, 2), (3, 0.7, 4), (5, 2.0, 3), (4, 1.0, 5), (1, 1.0, 3)])
def test_integer_orders_tuple_by_tuple(rounds, z, order):
    found = _log_moments(rounds, z, 8)[order] if rounds > 1 else (order - 1) * order / (2 * z * z)
    assert found == pytest.approx(math.log(moment(rounds, 1, z, order)), rel=1e-9)


@pytest.mark.parametrize(
    ("rounds", "k", "z", "order"), [(4, 2, 1.0, 2), (5, 2, 0.8, 2), (5, 3, 1.5, 3), (4, 4, 1.0, 2)]
)
def test_several_participations_cost_no_more_than_their_blocks(rounds, k, z, order):
    truth = math.log(moment(rounds, k, z, order)) / (order - 1)
    found = float(allocation_divergence(rounds, k, z, np.array([float(order)]))[0])
    assert truth * (1 - 1e-12) <= found <= 2.5 * truth
    if k == rounds:
        assert found == pytest.approx(truth, rel=1e-9)


def ratio_moment(z, power):
    """E_Q[R^power] of two rounds: the trapezoid rule over the plane, which no smooth integrand there resists."""
    reach = 12 + abs(power) / z
    t, step = np.linspace(-reach, reach, 1601, retstep=True)
    weight, w = np.exp(-0.5 * t * t) * step / math.sqrt(2 * math.pi), np.exp(t / z - 0.5 / z**2)
    return float(weight @ (0.5 * (w[:, None] + w[None, :])) ** power @ weight)


@pytest.mark.parametrize(("z", "b"), [(1.0, 1.0), (1.0, 1.5), (2.0, 4.0), (1.0, 4.0), (4.0, 2.5), (0.6, 1.0)])
def test_the_other_direction_by_quadrature(z, b):
    truth = math.log(ratio_moment(z, -b)) / b
    assert truth * (1 - 1e-10) <= _added(2, z, b) <= truth * (1 + 2e-3)


@pytest.mark.parametrize("order", [1.5, 4.0, 40.0, 3000.0])
def test_openly_and_seldom(order):
    """Never dearer than openly; k of k rounds is k Gaussians; many rounds cost as a Poisson sample of the same rate."""
    at = np.array([order])
    for rounds, k, z in ((1, 1, 1.0), (7, 7, 0.5), (100, 3, 0.01), (30, 4, 0.3)):
        found = float(allocation_divergence(rounds, k, z, at)[0])
        assert found <= k * order / (2 * z * z) * (1 + 1e-12)
        assert found == pytest.approx(k * order / (2 * z * z)) or rounds > k
    if 1.5 < order < 100:
        poisson = 10_000 * renyi.curve(
            PoissonSampledGaussian(sample_rate=1e-4, noise_multiplier=5.0), at, adjacency=ZERO
        )
        np.testing.assert_allclose(allocation_divergence(10_000, 1, 5.0, at), poisson, rtol=0.02)


def largest_stick(rounds, k, z, epsilon, trials):
    """Monte Carlo of both directions' hockey sticks, and the standard error of the larger; seeded, checks only."""
    rng = np.random.default_rng(7)
    x = z * rng.standard_normal((trials, rounds))
    member = np.argsort(rng.random((trials, rounds)), axis=1) < k
    subsets = np.array(
        [np.isin(np.arange(rounds), one) for one in itertools.combinations(range(rounds), k)], dtype=float
    )

    def loss(sample):
        return np.log(np.mean(np.exp(((sample - 0.5) / z**2) @ subsets.T), axis=1))

    sticks = [np.maximum(-np.expm1(epsilon - loss(x + member)), 0.0), np.maximum(-np.expm1(epsilon + loss(x)), 0.0)]
    means = [float(stick.mean()) for stick in sticks]
    larger = int(np.argmax(means))
    return means[larger], float(sticks[larger].std()) / math.sqrt(trials)


@pytest.mark.parametrize(("rounds", "k", "z"), [(5, 1, 1.0), (6, 2, 1.5), (8, 3, 1.0)])
def test_monte_carlo_stays_below(rounds, k, z):
    """40,000 trials, five standard errors: false alarms below 3e-7 each. The lower end lies below it too."""
    event = allocated(rounds, k, z)
    for epsilon in (0.3, 1.5):
        found, error = largest_stick(rounds, k, z, epsilon, 40_000)
        interval = numerical.delta_interval(event, epsilon, adjacency=ZERO)
        assert interval.lower <= found + 5 * error
        assert found - 5 * error <= interval.upper
    found, error = largest_stick(rounds, k, z, 0.3, 40_000)  # planted fault: priced at three times the noise
    assert found - 5 * error > renyi.delta(allocated(rounds, k, 3 * z), 0.3, adjacency=ZERO)


def test_intervals_compositions_and_refusals():
    event = compose([allocated(50, 2, 2.0), Gaussian(noise_multiplier=8.0)])
    found = numerical.epsilon_interval(event, 1e-5, adjacency=ZERO)
    assert found.method == "numerical"
    assert 0.95 * found.upper <= found.lower < found.upper
    assert found.upper < numerical.epsilon(
        compose([repeat(Gaussian(noise_multiplier=2.0), 2), Gaussian(noise_multiplier=8.0)]), 1e-5, adjacency=ZERO
    )
    with pytest.raises(EventError, match="not stated under replace-one"):
        renyi.epsilon(event, 1e-5, adjacency=REPLACE)
    with pytest.raises(EventError, match="dp-accounting has no event"):
        to_dp_event(event, adjacency=ADD)
    with pytest.raises(EventError, match="participations must be at most n_rounds=3, got 4"):
        allocated(3, 4, 1.0)


def profile(pair, gammas):
    """E (dP/dQ - g)_+ of a pair; infinite ratios count."""
    tails = pair.tails(np.log(gammas))
    return tails.p_above - gammas * tails.q_above


@pytest.mark.parametrize(("rounds", "z"), [(2, 1.0), (3, 0.7), (3, 2.5)])
def test_the_pair_of_one_participation_is_never_below_the_truth(rounds, z):
    """Brute force over a mesh of all rounds' ratios, each cell's mean in its place: below the truth, and near it."""
    cells = 1200 if rounds == 2 else 110
    edges = np.linspace(-10 - 1 / z, 10 + 1 / z, cells + 1)
    under_q, under_p = np.diff(ndtr(edges)), np.diff(ndtr(edges - 1 / z))
    ratio = np.divide(under_p, under_q, out=np.zeros(cells), where=under_q > 0)
    mesh = [ratio.reshape([-1 if at == axis else 1 for at in range(rounds)]) for axis in range(rounds)]
    weight = [under_q.reshape([-1 if at == axis else 1 for at in range(rounds)]) for axis in range(rounds)]
    mean, mass = sum(mesh) / rounds, math.prod(weight)
    gammas = np.array([0.3, 0.8, 1.0, 1.3, 2.5, 8.0])
    truth = np.array([float(np.sum(mass * np.maximum(mean - g, 0.0))) for g in gammas])
    back = np.array([float(np.sum(mass * np.maximum(1.0 - g * mean, 0.0))) for g in gammas])
    for pair, true in zip(allotted(rounds, z), (truth, back), strict=True):
        found = profile(pair, gammas)
        assert np.all(found >= true * (1 - 1e-12))
        assert np.all(found <= true * (1 + (8e-3 if rounds == 2 else 4e-2)) + 1e-5)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_two_rounds_by_quadrature(epsilon):
    """Both directions over the plane; the upper end is within 1 % of the truth and never below."""
    t, step = np.linspace(-11, 12, 2401, retstep=True)
    normal = np.exp(-0.5 * t * t) * step / math.sqrt(2 * math.pi)
    q = normal[:, None] * normal[None, :]
    ratio = 0.5 * (np.exp(t - 0.5)[:, None] + np.exp(t - 0.5)[None, :])
    g = math.exp(epsilon)
    truth = max(float(np.sum(q * np.maximum(ratio - g, 0))), float(np.sum(q * np.maximum(1 - g * ratio, 0))))
    found = numerical.delta(allocated(2, 1, 1.0), epsilon, adjacency=ZERO)
    assert truth * (1 - 1e-4) <= found <= truth * 1.01
