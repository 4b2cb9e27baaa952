"""The curve audit piece by piece: its bounds, scores, worlds and curve against closed forms and brute force."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from accountant.events import Adjacency, PoissonSampledGaussian
from accountant.gaussian_dp import epsilon_from_mu
from accountant.tight import numerical
from privbo.audits import black_box as audit
from privbo.door.mechanism import PrivateSum, mechanism_for
from privbo.protocol.messages import Request
from tests.door.replayed_runs import ScriptedNoise

WEIGHTS = np.array([[0.3, 0.2, 0.6], [0.1, 0.2, 0.8]])  # the last client is the canary, of norm 1
EPSILONS = np.array(audit._EPSILONS)
THRESHOLDS = audit._THRESHOLDS
BOUND = 2.0 / math.sqrt(2)  # S = 2 over two blocks


def build(weights: np.ndarray = WEIGHTS, **settings) -> PrivateSum:
    request = Request(dim=1, clipping_norm=2.0, weights=weights)
    return mechanism_for(request, **{"noise_multiplier": 1.0, "sample_rate": 0.5} | settings)


# --- bounds on probabilities ----------------------------------------------------------------


def test_bounds_are_clopper_and_pearsons() -> None:
    counts, level = np.array([0.0, 1.0, 40.0, 99.0, 100.0]), 1e-6
    low, high = audit._lower(counts, 100, level), audit._upper(counts, 100, level)
    # What the bound says: at its probability, a count this far out has a chance of exactly ``level``.
    np.testing.assert_allclose(stats.binom.sf(counts[1:] - 1, 100, low[1:]), level, rtol=1e-6)
    np.testing.assert_allclose(stats.binom.cdf(counts[:-1], 100, high[:-1]), level, rtol=1e-6)
    assert (low[0], high[-1]) == (0.0, 1.0)
    assert low[-1] == pytest.approx(level ** (1 / 100))
    assert high[0] == pytest.approx(1 - level ** (1 / 100))


def test_counts_are_of_what_lies_strictly_above_each_threshold() -> None:
    sample = np.array([THRESHOLDS[7], THRESHOLDS[7], 7.0, 7.1, -5.0, -9.0, 0.1])
    expected = [int((sample > threshold).sum()) for threshold in THRESHOLDS]
    assert audit._counts_above(sample, len(sample)).tolist() == expected


def test_a_curve_is_read_from_either_tail_and_in_either_direction() -> None:
    """A tenth of one sample stands apart: its lower bound, less e^epsilon times the upper bound of none."""
    n, level = 4000, 1e-4
    apart = np.zeros(n)
    apart[: n // 10] = 3.0
    same = np.zeros(n)
    low = audit._lower(np.array([400.0]), n, level)[0]
    none = 1 - level ** (1 / n)
    expected = np.maximum(low - np.exp(EPSILONS) * none, 0.0)
    assert 0.08 < expected[0] < 0.1
    assert np.count_nonzero(expected) > 5
    for shift in (0.0, 4.9):  # the second is told apart by thresholds above five only
        one, other = apart + shift, same + shift
        for plus, minus in ((one, other), (other, one), (-one, -other), (-other, -one)):
            np.testing.assert_allclose(audit._measured_curve(plus, minus, level), expected, rtol=1e-12)
    assert audit._measured_curve(same, same, level).tolist() == [0.0] * len(EPSILONS)
    rng = np.random.default_rng(0)
    plus, minus = rng.normal(1.0, 1.0, 300), rng.normal(0.0, 1.2, 300)
    best = np.zeros(len(EPSILONS))
    for (one, other), tail in itertools.product(((plus, minus), (minus, plus)), (1, -1)):
        for threshold in THRESHOLDS:
            k, m = int((tail * one > threshold).sum()), int((tail * other > threshold).sum())
            low = stats.beta.ppf(level, k, 301 - k) if k else 0.0
            high = stats.beta.isf(level, m + 1, 300 - m) if m < 300 else 1.0
            best = np.maximum(best, low - np.exp(EPSILONS) * high)
    np.testing.assert_allclose(audit._measured_curve(plus, minus, level), best, rtol=1e-6)


def test_a_point_above_the_accountants_comes_before_any_below_and_shares_decide_among_equals() -> None:
    below, nearer, above = (0.0, 1e-3, 1e-2), (1.0, 5e-4, 1e-3), (2.0, 2e-6, 1e-6)
    assert audit._reached(below) == (False, 0.1)
    assert audit._reached(above) == (True, 2.0)
    assert audit._reached((3.0, 0.0, 0.0)) == (False, 0.0)
    assert max([below, nearer, above], key=audit._reached) == above
    assert max([below, nearer], key=audit._reached) == nearer


# --- what is measured -----------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_worlds_differ_in_the_canary_alone(adjacency: Adjacency) -> None:
    mechanism = build(adjacency=adjacency)
    gone = -4.0 if adjacency is Adjacency.REPLACE_ONE else 0.0
    for world, others in (("others zero", 0.0), ("others opposing", -4.0), ("alone", 0.0)):
        present, absent = audit._worlds(mechanism, WEIGHTS, 2, world)
        assert present.tolist() == [[others], [others], [4.0]]  # twice the clipping norm saturates
        assert absent.tolist() == [[others], [others], [gone]]


def test_scores_are_the_column_its_blocks_and_their_contrasts() -> None:
    found = list(audit._scores(np.array([3.0, 4.0, 0.0]), 2.0))
    expected = [
        ([0.6, 0.8, 0.0], 2.0),
        ([1.0, 0.0, 0.0], 2.0), ([1.0, 0.0, -1.0], 8**0.5),
        ([0.0, 1.0, 0.0], 2.0), ([-1.0, 1.0, 0.0], 8**0.5),
        ([0.0, 0.0, 1.0], 2.0), ([0.0, 1.0, -1.0], 8**0.5),
    ]  # fmt: skip
    assert [(direction.tolist(), stddev) for direction, stddev in found] == [
        (direction, pytest.approx(stddev)) for direction, stddev in expected
    ]
    ((alone, stddev),) = audit._scores(np.array([0.25]), 2.0)
    assert (alone.tolist(), stddev) == ([1.0], 2.0)
    level = [direction.tolist() for direction, _ in audit._scores(np.array([1.0, 1.0]), 1.0)]
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
    centre, spread = audit._expected(mechanism, WEIGHTS, rows, direction, 0.7)
    assert centre == pytest.approx(mean)
    assert spread == pytest.approx(math.sqrt(square - mean**2 + 0.7**2))


def test_releases_are_made_by_the_shipped_sums() -> None:
    mechanism = build()
    noise = ScriptedNoise(participants=np.array([True, True, False]))
    found = audit._release(mechanism, WEIGHTS, np.array([[9.0], [-9.0], [9.0]]), 5, noise)
    expected = (WEIGHTS[:, 0] - WEIGHTS[:, 1]) * BOUND / 0.5  # the third takes no part
    np.testing.assert_allclose(found, np.tile(expected, (5, 1)), rtol=1e-3)  # truncated to the grid
    assert [call[:2] for call in noise.drawn] == [("coins", (5, 3)), ("gaussian", (5, 2, 1))]


@pytest.mark.parametrize("rate", [1.0, 0.25])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_curve_to_stay_below_is_the_accountants(rate: float, adjacency: Adjacency) -> None:
    mechanism = build(sample_rate=rate, adjacency=adjacency)
    found = audit._accounted(mechanism)
    for epsilon, delta in zip(audit._EPSILONS, found, strict=True):
        interval = numerical.delta_interval(mechanism.event(), epsilon, adjacency=adjacency)
        assert interval.lower * (1 - 1e-9) <= delta <= interval.upper * (1 + 1e-3) + 1e-12
    if rate == 1.0:  # Balle and Wang (2018), theorem 8, at mu = 1
        phi = stats.norm.cdf
        exact = phi(0.5 - EPSILONS) - np.exp(EPSILONS) * phi(-0.5 - EPSILONS)
        np.testing.assert_allclose(found, exact, rtol=1e-5)
        assert np.all(np.array(found) >= exact * (1 - 1e-9))


def test_what_the_curve_may_be_off_by_is_added_and_the_dearest_pair_counts(monkeypatch) -> None:
    def pair(p_above: float):
        tails = SimpleNamespace(p_above=p_above, q_above=0.01, relative_error=0.1)
        return SimpleNamespace(tails=lambda _: tails)

    monkeypatch.setattr("accountant.tight.pairs.pairs_of", lambda *_: [pair(0.2), pair(0.5), pair(0.3)])
    kept = 0.01 * np.exp(EPSILONS)
    expected = np.maximum(0.5 - kept + 0.1 * (0.5 + kept), 0.0)
    np.testing.assert_allclose(audit._accounted(build()), expected, rtol=1e-12)


# --- the audit ------------------------------------------------------------------------------


def audited(monkeypatch, curve, *, weights=WEIGHTS, **settings):
    """An audit without noise whose measured curve is given, and the calls that asked for one."""
    calls = []

    def measured(plus, minus, level):
        calls.append((plus, minus, level))
        return curve(len(calls))

    monkeypatch.setattr(audit, "_measured_curve", measured)
    everyone = ScriptedNoise(participants=np.ones(1, dtype=bool))
    plain = {"noise": everyone, "world": "others zero"} | settings
    return audit.audit_curve(build, weights, **plain), calls


def test_every_sign_score_threshold_tail_and_direction_shares_the_false_alarm_rate(monkeypatch) -> None:
    found, calls = audited(monkeypatch, lambda _: np.zeros(len(EPSILONS)), trials=7, alpha=1e-3)
    assert (found.passed, found.world, found.trials, found.alpha) == (True, "others zero", 7, 1e-3)
    assert len(calls) == 2 * 5  # signs, and scores of two blocks
    np.testing.assert_allclose([level for *_, level in calls], 1e-3 / (2 * 5 * 49 * 4 * 2))
    directions = [[0.6, 0.8], [1, 0], [-1, 1], [0, 1], [-1, 1]]
    scale = np.array([1, 1, 2**0.5, 1, 2**0.5]) * build().noise_stddev()
    # Everybody takes part here, so a sum is its mean times 1 / q; the others send nothing.
    expected = [np.dot(d, WEIGHTS[:, 2]) * BOUND / 0.5 / s for d, s in zip(directions, scale, strict=True)]
    for sign in (0, 5):
        for (plus, minus, _), wanted in zip(calls[sign : sign + 5], expected, strict=True):
            np.testing.assert_allclose(plus, np.full(7, wanted), rtol=1e-3)
            np.testing.assert_allclose(minus, np.zeros(7), atol=1e-12)


def test_a_hundred_thousand_releases_and_one_false_alarm_in_a_million_unless_said_otherwise(monkeypatch) -> None:
    found, calls = audited(monkeypatch, lambda _: np.zeros(len(EPSILONS)), weights=WEIGHTS[:1])
    assert (found.trials, found.alpha) == (100_000, 1e-6)
    assert [(len(plus), len(minus)) for plus, minus, _ in calls] == [(100_000, 100_000)] * 2
    np.testing.assert_allclose([level for *_, level in calls], 1e-6 / (2 * 1 * 49 * 4 * 2))


@pytest.mark.parametrize("world", ["others zero", "others opposing", "alone"])
def test_both_signs_are_released_with_and_without_the_canary(monkeypatch, world: str) -> None:
    seen = []
    honest = audit._release

    def release(mechanism, weights, rows, trials, noise):
        seen.append((weights.tolist(), rows[:, 0].tolist()))
        return honest(mechanism, weights, rows, trials, noise)

    monkeypatch.setattr(audit, "_release", release)
    audited(monkeypatch, lambda _: np.zeros(len(EPSILONS)), world=world, trials=7)
    weights = WEIGHTS[:, [2]] if world == "alone" else WEIGHTS
    others = {"others zero": [0.0, 0.0], "others opposing": [-4.0, -4.0], "alone": []}[world]
    present, absent = np.array([*others, 4.0]), np.array([*others, 0.0])
    assert seen == [(weights.tolist(), rows.tolist()) for rows in (present, absent, -present, -absent)]


def test_opposing_clients_are_taken_out_by_their_mean_and_spread(monkeypatch) -> None:
    _, calls = audited(monkeypatch, lambda _: np.zeros(len(EPSILONS)), world="others opposing", trials=7)
    each = np.array([0.6, 0.8]) @ WEIGHTS * BOUND
    centre, spread = -each[0] - each[1], math.hypot(build().noise_stddev(), math.hypot(each[0], each[1]))
    plus, minus = (each[2] / 0.5 + centre / 0.5 - centre) / spread, (centre / 0.5 - centre) / spread
    for call in (calls[0], calls[5]):  # the negative canary's releases are mirrored
        np.testing.assert_allclose(call[0], np.full(7, plus), rtol=1e-3)
        np.testing.assert_allclose(call[1], np.full(7, minus), rtol=1e-3)


@pytest.mark.parametrize("call", [1, 10])
def test_one_point_above_the_curve_is_enough_and_one_on_it_is_not(monkeypatch, call: int) -> None:
    accounted = np.array(audit._accounted(build()))

    def curve(n: int, factor: float) -> np.ndarray:
        points = accounted / 2
        if n == call:
            points[3] = accounted[3] * factor
        return points

    on, _ = audited(monkeypatch, lambda n: curve(n, 1.0), trials=7)
    assert (on.passed, on.epsilon, on.delta_lower) == (True, 1.0, accounted[3])
    above, _ = audited(monkeypatch, lambda n: curve(n, 1.001), trials=7)
    assert (above.passed, above.epsilon, above.delta_claimed) == (False, 1.0, accounted[3])
    assert above.delta_lower == pytest.approx(1.001 * accounted[3])


# --- the bound on epsilon -------------------------------------------------------------------


def bounded(monkeypatch, with_canary, without, *, delta=1e-5, alpha=None, **settings) -> tuple[float, float]:
    """The bound where the canary's score takes the given shares of the stated move, its absence the others."""
    mechanism = build(**settings)
    move = BOUND / mechanism.rate  # the canary's column has norm 1
    gone = -4.0 if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    script = ScriptedNoise(participants=np.ones(3, dtype=bool))
    worlds = iter([(4.0, with_canary), (gone, without)])

    def release(given, weights, rows, trials, noise):
        canary, shares = next(worlds)
        assert (given, weights is WEIGHTS, noise is script, trials) == (mechanism, True, True, len(with_canary))
        assert rows.tolist() == [[0.0], [0.0], [canary]]
        return np.outer(shares, [0.6, 0.8]) * move

    monkeypatch.setattr(audit, "_release", release)
    chosen = {} if alpha is None else {"alpha": alpha}
    return audit.epsilon_lower_bound(
        mechanism, WEIGHTS, noise=script, delta=delta, trials=len(with_canary), **chosen
    )  # fmt: skip


def mu_of(errors: int, trials: int, alpha: float, rate: float) -> float:
    total_error = 2 * stats.beta.isf(alpha, errors + 1, 2 * trials - errors)  # Clopper and Pearson's upper end
    return 2 * stats.norm.ppf((1 + (1 - total_error) / rate) / 2)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_bound_follows_from_the_errors_of_the_threshold_midway(monkeypatch, adjacency: Adjacency) -> None:
    middle = 0.5 if adjacency is Adjacency.ZERO_OUT else 0.0
    with_canary, without = np.full(200, middle + 0.01), np.full(200, middle - 0.01)
    with_canary[:7] = middle - 0.01
    without[:3] = middle + 0.01
    found, claimed = bounded(monkeypatch, with_canary, without, sample_rate=1.0, adjacency=adjacency)
    assert found == pytest.approx(epsilon_from_mu(mu_of(10, 200, 0.05, 1.0), 1e-5), rel=1e-3)
    assert claimed == pytest.approx(epsilon_from_mu(1.0, 1e-5), rel=1e-3)
    stricter, _ = bounded(monkeypatch, with_canary, without, sample_rate=1.0, adjacency=adjacency, alpha=1e-6)
    assert stricter == pytest.approx(epsilon_from_mu(mu_of(10, 200, 1e-6, 1.0), 1e-5), rel=1e-3)


def test_below_rate_one_the_bound_is_that_of_a_sampled_gaussian(monkeypatch) -> None:
    with_canary, without = np.full(2000, 0.49), np.full(2000, 0.49)
    with_canary[:900] = 0.51
    found, _ = bounded(monkeypatch, with_canary, without, sample_rate=0.5)
    event = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=1 / mu_of(1100, 2000, 0.05, 0.5))
    interval = numerical.epsilon_interval(event, 1e-5, adjacency=Adjacency.ZERO_OUT)
    assert found == pytest.approx(interval.lower, rel=1e-6)
    assert found <= interval.upper


def test_a_score_at_the_threshold_says_absent(monkeypatch) -> None:
    settings = {"sample_rate": 1.0, "adjacency": Adjacency.REPLACE_ONE}  # whose threshold is exactly 0
    assert bounded(monkeypatch, np.zeros(500), np.full(500, -1.0), **settings)[0] == 0.0
    right, _ = bounded(monkeypatch, np.ones(500), np.zeros(500), **settings)
    assert right == pytest.approx(epsilon_from_mu(mu_of(0, 500, 0.05, 1.0), 1e-5), rel=1e-3)


def test_a_presence_that_always_shows_is_beyond_any_noise_and_one_that_never_shows_proves_nothing(monkeypatch) -> None:
    assert bounded(monkeypatch, np.ones(500), np.zeros(500), sample_rate=0.5)[0] == math.inf
    assert bounded(monkeypatch, np.zeros(500), np.zeros(500), sample_rate=0.5)[0] == 0.0
