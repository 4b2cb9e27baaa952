"""The curve audit: its worlds and scores against closed forms, and its verdicts on releases that are made up."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from accountant.events import Adjacency, PoissonSampledGaussian
from accountant.gaussian_dp import epsilon_from_mu
from accountant.tight import numerical
from privbo.audits import empirical
from privbo.audits.empirical import (
    audit_curve,
    epsilon_lower_bound,
    heaviest_client,
    moments,
    neighbours,
    releases,
    scores,
)
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import SimulatedNoise
from privbo.protocol.messages import Request
from tests.builders import mechanism_for
from tests.door.replayed_runs import ScriptedNoise

WEIGHTS = np.array([[0.3, 0.2, 0.6], [0.1, 0.2, 0.8]])  # the last client is the canary, of norm 1
WORLDS = ["others zero", "others opposing", "alone"]
EPSILONS = np.array(empirical.EPSILONS)
BOUND = 2.0 / math.sqrt(2)  # S = 2 over two blocks


def build(weights: np.ndarray = WEIGHTS, **settings) -> PrivateSum:
    request = Request(dim=1, clipping_norm=2.0, weights=weights)
    return mechanism_for(request, **{"noise_multiplier": 1.0, "sample_rate": 0.5} | settings)


# --- what is measured -----------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_worlds_differ_in_the_canary_alone(adjacency: Adjacency) -> None:
    mechanism = build(adjacency=adjacency)
    gone = -4.0 if adjacency is Adjacency.REPLACE_ONE else 0.0
    assert heaviest_client(WEIGHTS) == 2
    for world, others in (("others zero", 0.0), ("others opposing", -4.0)):
        present, absent = neighbours(mechanism, 3, 2, world)
        assert present.tolist() == [[others], [others], [4.0]]  # twice the clipping norm saturates
        assert absent.tolist() == [[others], [others], [gone]]
    assert [rows.tolist() for rows in neighbours(mechanism, 1, 0, "alone")] == [[[4.0]], [[gone]]]


def test_scores_are_the_column_its_blocks_and_their_contrasts() -> None:
    found = list(scores(np.array([3.0, 4.0, 0.0]), 2.0))
    expected = [
        ([0.6, 0.8, 0.0], 2.0),
        ([1.0, 0.0, 0.0], 2.0), ([1.0, 0.0, -1.0], 8**0.5),
        ([0.0, 1.0, 0.0], 2.0), ([-1.0, 1.0, 0.0], 8**0.5),
        ([0.0, 0.0, 1.0], 2.0), ([0.0, 1.0, -1.0], 8**0.5),
    ]  # fmt: skip
    assert [(direction.tolist(), stddev) for direction, stddev in found] == [
        (direction, pytest.approx(stddev)) for direction, stddev in expected
    ]
    ((alone, stddev),) = scores(np.array([0.25]), 2.0)
    assert (alone.tolist(), stddev) == ([1.0], 2.0)
    level = [direction.tolist() for direction, _ in scores(np.array([1.0, 1.0]), 1.0)]
    assert level[2] == [1.0, -1.0]  # a contrast that the canary does not move keeps its sign


def test_a_score_has_the_mean_and_spread_of_all_samples_and_the_noise() -> None:
    mechanism, direction = build(sample_rate=0.25), np.array([0.6, 0.8])
    rows = np.array([[5.0], [-0.5], [-9.0]])
    clipped = np.array([BOUND, -0.5, -BOUND])
    mean = square = 0.0
    for who in itertools.product([0, 1], repeat=3):
        chance = 0.25 ** sum(who) * 0.75 ** (3 - sum(who))
        score = direction @ (WEIGHTS @ (np.array(who) * clipped)) / 0.25
        mean, square = mean + chance * score, square + chance * score**2
    centre, spread = moments(mechanism, WEIGHTS, rows, direction, 0.7)
    assert centre == pytest.approx(mean)
    assert spread == pytest.approx(math.sqrt(square - mean**2 + 0.7**2))


def test_releases_are_made_by_the_shipped_sums() -> None:
    noise = ScriptedNoise(participants=np.array([True, True, False]))
    found = releases(build(), WEIGHTS, np.array([[9.0], [-9.0], [9.0]]), 5, noise)
    expected = (WEIGHTS[:, 0] - WEIGHTS[:, 1]) * BOUND / 0.5  # the third takes no part
    np.testing.assert_allclose(found, np.tile(expected, (5, 1)), rtol=1e-3)  # truncated to the grid
    assert [call[:2] for call in noise.drawn] == [("coins", (5, 3)), ("gaussian", (5, 2, 1))]


# --- the audit ------------------------------------------------------------------------------


def worth(seen: int, trials: int, level: float) -> np.ndarray:
    """The curve's bounds where one world shows something in ``seen`` of its trials and the other never."""
    return stats.beta.ppf(level, seen, trials - seen + 1) - np.exp(EPSILONS) * (1 - level ** (1 / trials))


@pytest.mark.parametrize(("blocks", "n_scores"), [([0], 1), ([0, 1], 5)])
def test_every_sign_score_threshold_tail_and_direction_shares_the_false_alarm_rate(blocks, n_scores: int) -> None:
    """Releases without noise tell every trial apart, so the bound is a closed form of its level."""
    everyone = ScriptedNoise(participants=np.ones(1, dtype=bool))
    found = audit_curve(build, WEIGHTS[blocks], noise=everyone, world="others zero", trials=400, alpha=1e-3)
    assert not found.passed
    bounds = worth(400, 400, 1e-3 / (2 * n_scores * 49 * 4 * 2))
    assert found.delta_lower == pytest.approx(bounds[empirical.EPSILONS.index(found.epsilon)], rel=1e-9)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_leak_of_one_sign_of_the_canary_is_seen(sign: float, world: str) -> None:
    """The canary stands last; nothing shows of the other sign, nor of its absence."""

    def leaking(mechanism, weights, rows, trials, noise):
        assert weights.shape[1] == len(rows) == (1 if world == "alone" else 3)
        made = releases(mechanism, weights, rows, trials, noise)
        return made + 10 * sign * mechanism.noise_stddev() * (sign * rows[-1, 0] > 0)

    found = [
        audit_curve(build, WEIGHTS, noise=SimulatedNoise(1), world=world, trials=2000, release=release)
        for release in (releases, leaking)
    ]
    assert [audit.passed for audit in found] == [True, False]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_opposing_clients_are_taken_out_by_their_mean_and_spread(sign: float) -> None:
    """Scores on either side of a threshold, 2.5 spreads beyond the mean of what the others send, tell worlds apart."""
    centre, spread = -(0.3 + 0.2) * 2.0, math.sqrt((0.6 * 2.0 / 0.5) ** 2 + (0.3**2 + 0.2**2) * 2.0**2)

    def release(mechanism, weights, rows, trials, noise):
        beyond = 2.51 if sign * rows[2, 0] > 0 else 2.49
        mirrored = -np.sign(rows[0, 0])  # the others oppose the canary
        return np.full((trials, 1), mirrored * (centre + spread * beyond))

    settings = {"noise": SimulatedNoise(1), "world": "others opposing", "trials": 400, "alpha": 1e-3}
    found = audit_curve(build, WEIGHTS[:1], release=release, **settings)
    bounds = worth(400, 400, 1e-3 / (2 * 49 * 4 * 2))
    assert found.delta_lower == pytest.approx(bounds[empirical.EPSILONS.index(found.epsilon)], rel=1e-9)


# --- the bound on epsilon -------------------------------------------------------------------


def bounded(with_canary, without, *, delta=1e-5, alpha=None, **settings) -> tuple[float, float]:
    """The bound where the canary's score takes the given shares of the stated move, its absence the others."""
    mechanism = build(**settings)
    move = BOUND / mechanism.sample.rate  # the canary's column has norm 1
    gone = -4.0 if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    shares = {4.0: with_canary, gone: without}  # by what the canary sends

    def release(mechanism, weights, rows, trials, noise):
        assert rows[:2].tolist() == [[0.0], [0.0]]
        return np.outer(shares[float(rows[2, 0])][:trials], WEIGHTS[:, 2]) * move

    chosen = {} if alpha is None else {"alpha": alpha}
    noise, trials = SimulatedNoise(1), len(with_canary)
    return epsilon_lower_bound(mechanism, WEIGHTS, noise=noise, delta=delta, trials=trials, release=release, **chosen)


def mu_of(errors: int, trials: int, alpha: float, rate: float) -> float:
    total_error = 2 * stats.beta.isf(alpha, errors + 1, 2 * trials - errors)  # Clopper and Pearson's upper end
    return 2 * stats.norm.ppf((1 + (1 - total_error) / rate) / 2)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_bound_follows_from_the_errors_of_the_threshold_midway(adjacency: Adjacency) -> None:
    middle = 0.5 if adjacency is Adjacency.ZERO_OUT else 0.0
    with_canary, without = np.full(200, middle + 0.01), np.full(200, middle - 0.01)
    with_canary[:7] = middle - 0.01
    without[:3] = middle + 0.01
    found, claimed = bounded(with_canary, without, sample_rate=1.0, adjacency=adjacency)
    assert found == pytest.approx(epsilon_from_mu(mu_of(10, 200, 0.05, 1.0), 1e-5), rel=1e-3)
    assert claimed == pytest.approx(epsilon_from_mu(1.0, 1e-5), rel=1e-3)
    stricter, _ = bounded(with_canary, without, sample_rate=1.0, adjacency=adjacency, alpha=1e-6)
    assert stricter == pytest.approx(epsilon_from_mu(mu_of(10, 200, 1e-6, 1.0), 1e-5), rel=1e-3)


def test_below_rate_one_the_bound_is_that_of_a_sampled_gaussian() -> None:
    with_canary, without = np.full(2000, 0.49), np.full(2000, 0.49)
    with_canary[:900] = 0.51
    found, _ = bounded(with_canary, without, sample_rate=0.5)
    event = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=1 / mu_of(1100, 2000, 0.05, 0.5))
    interval = numerical.epsilon_interval(event, 1e-5, adjacency=Adjacency.ZERO_OUT)
    assert found == pytest.approx(interval.lower, rel=1e-6)
    assert found <= interval.upper


def test_a_score_at_the_threshold_says_absent() -> None:
    settings = {"sample_rate": 1.0, "adjacency": Adjacency.REPLACE_ONE}  # whose threshold is exactly 0
    assert bounded(np.zeros(500), np.full(500, -1.0), **settings)[0] == 0.0
    right, _ = bounded(np.ones(500), np.zeros(500), **settings)
    assert right == pytest.approx(epsilon_from_mu(mu_of(0, 500, 0.05, 1.0), 1e-5), rel=1e-3)


def test_a_presence_that_always_shows_is_beyond_any_noise_and_one_that_never_shows_proves_nothing() -> None:
    assert bounded(np.ones(500), np.zeros(500), sample_rate=0.5)[0] == math.inf
    assert bounded(np.zeros(500), np.zeros(500), sample_rate=0.5)[0] == 0.0
