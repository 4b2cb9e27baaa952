"""The shared prior: its releases and their price, its pool, its clients; and the scout that says how alike they are."""

import dataclasses

import numpy as np
import pytest

import privbo as pb
from accountant import Gaussian
from accountant.events import parts
from privbo.algorithms.thompson.scout import Likeness, Scout, likeness, standard_error
from privbo.audits.clipping import publish_norms
from privbo.door.clipping import clip_rows
from privbo.protocol.messages import FloatArray, IntArray, PlainEvaluate
from privbo.runs.record import replay
from tests.builders import mechanism_for, release
from tests.thompson.conftest import FINITE, MIXED, PLANE, answered, bumps, play, setting

OWN = pb.OwnModel(fit_steps=8, n_candidates=64)
SMALL = pb.SharedPrior(n_features=12, own=OWN)
NOISY = pb.Privacy(noise_multiplier=0.5, noise="simulation")


def problem(n_clients=40, space=PLANE, objective=bumps):
    return pb.Problem(space=space, batch_objective=objective, n_clients=n_clients)


def test_the_plan_lists_its_releases_by_their_shares():
    plan = pb.plan(problem(), pb.SharedPrior(), privacy=pb.Privacy(epsilon=2.0), rounds=20)
    multipliers = [event.noise_multiplier for event, count in parts(plan.event) for _ in range(count)]
    shares = np.array([1, 1]) / 2
    np.testing.assert_allclose(sorted(multipliers), sorted(plan.noise_multiplier / np.sqrt(shares)), rtol=1e-12)
    # Gaussian budgets add in squares: together they cost what one release at the nominal multiplier costs.
    alone = pb.plan(
        problem(), pb.SharedPrior(schedule=(0,)), privacy=pb.Privacy(noise_multiplier=plan.noise_multiplier), rounds=20
    )
    assert parts(alone.event) == ((Gaussian(noise_multiplier=plan.noise_multiplier), 1),)
    assert min(plan.epsilon().values()) == pytest.approx(min(alone.epsilon().values()), rel=1e-6)
    assert 1.999 < min(plan.epsilon().values()) <= 2.0


@pytest.mark.parametrize(
    ("largest", "settings", "rounds", "releases"),
    [
        *((None, {}, rounds, releases) for rounds, releases in ((1, 0), (2, 1), (5, 1), (6, 2), (8, 2), (30, 2))),
        *((largest, {}, 9, releases) for largest, releases in ((4, 0), (5, 1), (8, 1), (9, 2))),
        (4, {"repeats": "query"}, 9, 2),
        (40, {"n_init": 30}, 9, 2),
        (None, {"n_init": 1, "schedule": (0, 3)}, 9, 1),
        (None, {"n_init": 2, "schedule": (0, 3)}, 9, 2),
    ],
)
def test_a_release_is_planned_that_a_round_uses_of_two_points_while_two_are_left(largest, settings, rounds, releases):
    """Three points are known after round 1, seven after round 5; with one left there is nothing to choose.

    A client centres its values, so one point says nothing.
    """
    space = PLANE if largest is None else pb.Space({"k": pb.Int(1, largest)})
    plan = pb.plan(problem(space=space), pb.SharedPrior(**settings), privacy=NOISY, rounds=rounds)
    assert plan.releases == releases


def test_a_run_is_resumed_reported_replayed_and_audited(tmp_path):
    """Answers are as long as the norm that clips them: none is clipped, and no smaller norm is advised."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-5)
    small = pb.SharedPrior(own=OWN)
    ledger = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=50.0, delta=1e-5)
    asked = {"privacy": privacy, "rounds": 7, "seed": 1, "directory": tmp_path / "run", "ledger": ledger}
    record = pb.run(problem(n_clients=12), small, **asked)
    assert [release.round for release in record.releases] == [1, 5]
    again = pb.run(problem(n_clients=12), small, **asked, resume=True)
    np.testing.assert_array_equal(again.clients.units, record.clients.units)
    found = pb.load(tmp_path / "run")
    assert [ask.broadcast.round for ask, release in replay(found) if release is not None] == [1, 5]
    audit = pb.audit(found)
    assert [one.clipped_share for one in audit.rounds] == [0.0, 0.0]
    assert not any("never clipped" in warning or "ever clipped" in warning for warning in audit.warnings)
    assert publish_norms(found, noise_multiplier=2.0).round == 5
    assert len(found.ledger.entries()) == 3


def test_the_signal_is_the_clients_number_over_the_noise():
    once = dataclasses.replace(SMALL, schedule=(0,), release_when="always")
    half = pb.Privacy(epsilon=1.0, sample_rate=0.5)
    for privacy in (pb.Privacy(epsilon=1.0), pb.Privacy(noise_multiplier=3.0), half):
        z = pb.plan(problem(), once, privacy=privacy, rounds=9).noise_multiplier / privacy.sample_rate
        planned = pb.plan(problem(), SMALL, privacy=privacy, rounds=9).largest_over_noise
        # Shares of a budget are worth as much as the budget; a secret sample's price is not so simple.
        assert planned == pytest.approx((40 / z) / 12**0.5, rel=1e-3 if privacy is not half else 0.2)
    assert pb.plan(problem(), SMALL, privacy=pb.NoPrivacy(), rounds=9).largest_over_noise is None


@pytest.mark.parametrize(("z", "releases"), [(3.99, 2), (4.01, 0)])
def test_releases_take_a_signal_of_three_times_their_noise_whatever_its_length_is(z, releases):
    """12 clients, with the noise multiplier of one release for the whole budget: 12 / 3 is 4."""
    for n_features in (64, 12):
        algorithm, privacy = pb.SharedPrior(n_features=n_features), pb.Privacy(noise_multiplier=z)
        plan = pb.plan(problem(n_clients=12), algorithm, privacy=privacy, rounds=9)
        assert plan.releases == releases
        assert plan.largest_over_noise == pytest.approx(12 / z / n_features**0.5, rel=1e-9)


@pytest.mark.parametrize(
    ("n_clients", "epsilon", "rounds", "releases"),
    [(12, 2.0, 20, [1, 5]), (12, 1.0, 20, [1, 5]), (12, 2.0, 5, [1]), (12, 0.5, 20, []), (6, 1.0, 20, [])],
)
def test_few_clients_release_everything_or_nothing(n_clients, epsilon, rounds, releases):
    few, privacy = problem(n_clients=n_clients), pb.Privacy(epsilon=epsilon, delta=1e-5, noise="simulation")
    spec = pb.Spec(name="few", problem=few, algorithm=pb.SharedPrior(), privacy=privacy, rounds=rounds)
    assert list(spec.played.releases(spec.setting(0))) == releases
    assert spec.plan.releases == len(releases)
    assert min(spec.plan.epsilon().values()) == pytest.approx(epsilon if releases else 0.0, rel=1e-3)
    assert (spec.remedy is None) == bool(releases)


def test_answers_are_the_ridge_weights_of_the_history_of_length_one():
    where = setting(rounds=8)
    trace, cohort = play(SMALL, where)
    history, features = cohort.history(), SMALL.draw_features(where)
    asked = [(ask, answers) for ask, answers in trace if ask.request is not None]
    assert [ask.broadcast.round for ask, _ in asked] == [1, 5]
    for ask, answers in asked:
        known = history.rounds <= ask.broadcast.round
        expected = answered(features, PLANE, history.units[:, known], history.values[:, known])
        np.testing.assert_allclose(answers, expected, atol=1e-9)
        clipped = clip_rows(answers, mechanism_for(ask.request, noise_multiplier=1.0).applied_bound)
        np.testing.assert_array_equal(clipped, answers)  # clipping leaves them as they are


def test_a_trial_that_failed_is_answered_with_as_the_worst_one():
    """Also where it is the newest. Planted: ``failures="ignored"`` answers otherwise, or not at all."""

    def steep(clients, units):
        return np.where(units[:, 0] > 0.5, np.nan, bumps(clients, units))

    where, features = setting(rounds=8, n_clients=12), SMALL.draw_features(setting(rounds=8))
    answers = {}
    for failures in ("worst", "ignored"):
        trace, cohort = play(dataclasses.replace(SMALL, failures=failures), where, evaluate=steep, until=2)
        answers[failures] = trace[1][1]
    history = cohort.history()
    known = np.isfinite(history.values)
    some = known.any(axis=1)
    assert (some & ~known[:, -1]).any()
    np.testing.assert_array_equal(np.isfinite(answers["worst"]).all(axis=1), some)
    np.testing.assert_array_equal(np.isfinite(answers["ignored"]).all(axis=1), known[:, -1])
    y = np.where(known, history.values, np.where(known, history.values, np.inf).min(axis=1, keepdims=True))[some]
    np.testing.assert_allclose(answers["worst"][some], answered(features, PLANE, history.units[some], y), atol=1e-9)
    different = some & known[:, -1] & ~known.all(axis=1)
    assert not np.isclose(answers["worst"], answers["ignored"])[different].all(axis=1).any()


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
@pytest.mark.parametrize("acquisition", ["log-ei", "thompson"])
def test_no_point_is_evaluated_twice_while_the_space_has_others(space, acquisition):
    where, algorithm = setting(space, rounds=8), dataclasses.replace(SMALL, acquisition=acquisition)
    _, cohort = play(algorithm, where, evaluate=lambda clients, units: units.sum(axis=1))
    units = cohort.history().units  # ten evaluations; the finite space has ten points
    assert all(len(np.unique(row, axis=0)) == 10 for row in units)


def test_points_are_evaluated_again_where_that_is_asked():
    flat = setting(FINITE, rounds=30, n_clients=4)
    _, cohort = play(dataclasses.replace(SMALL, repeats="query"), flat)
    assert len(cohort.history().values[0]) == 32
    _, cohort = play(SMALL, flat)  # all points seen after eight rounds: it goes on all the same
    assert len(np.unique(cohort.history().units[0], axis=0)) == 10


def test_a_client_that_joins_late_starts_from_the_pool():
    """200 alike clients with little noise: after the first release all of them stand near the common top."""
    where = setting(n_clients=200, rounds=5)
    algorithm = pb.SharedPrior(own=OWN, explore=0)
    trace, _ = play(algorithm, where)
    _, alone = play(algorithm.local(), where)
    late = algorithm.cohort(where, clients=np.arange(200), evaluate=PlainEvaluate(bumps), seed=8)
    late.respond(trace[-1][0].broadcast)
    ours, theirs = (side.history().values[:, :4].max(axis=1).mean() for side in (late, alone))
    assert ours > theirs + 0.03


@pytest.mark.parametrize(("alike", "explored"), [(1.0, 1), (0.0, 2)])
def test_clients_explore_unless_the_pool_leads(alike, explored):
    """The first release of 60 equal clients ends their start; that of clients who have nothing in common does not."""
    where, rng = setting(n_clients=60, rounds=8), np.random.default_rng(0)
    noise = rng.standard_normal((60, 40))

    def surfaces(clients, units):
        waves = np.cos(units @ rng_waves + phases)
        own = (waves * noise[clients]).sum(axis=1)
        return alike * 6.0 * units.sum(axis=1) + (1.0 - alike) * own

    rng_waves, phases = 4.0 * rng.standard_normal((2, 40)), rng.uniform(0, 6.28, 40)
    _, cohort = play(SMALL, where, evaluate=surfaces)
    _, alone = play(dataclasses.replace(SMALL, schedule=()), where, evaluate=surfaces)
    same = (cohort.history().units[:, 2:4] == alone.history().units[:, 2:4]).all(axis=(0, 2))
    assert int(same.sum()) == explored


@pytest.mark.parametrize(("rounds", "explored"), [(1, 0), (4, 1), (8, 2), (40, 2)])
def test_a_short_run_explores_less(rounds, explored):
    assert pb.SharedPrior().exploring(setting(rounds=rounds)) == explored
    assert pb.SharedPrior(explore=3).exploring(setting(rounds=rounds)) == min(3, rounds)


def test_broadcasts_of_another_run_are_refused():
    where = setting()
    cohort = SMALL.cohort(where, clients=np.arange(6), evaluate=PlainEvaluate(bumps), seed=1)
    broadcast = SMALL.server(where).ask().broadcast
    for change, message in (
        ({"features": np.zeros(32, dtype=np.uint8)}, "random features differ"),
        ({"rounds": np.array(9)}, "use the same setting"),
        ({"pooled": np.zeros(5), "noise_stddev": np.array(0.1)}, "must be finite and of shape"),
        ({"pooled": np.zeros(12), "noise_stddev": np.array(0.1)}, "nothing was released yet"),
        ({"pooled": np.full(12, np.nan), "noise_stddev": np.array(0.1)}, "must be finite and of shape"),
    ):
        with pytest.raises(pb.ConfigurationError, match=message):
            cohort.respond(dataclasses.replace(broadcast, arrays={**broadcast.arrays, **change}))


# ---- a scout's estimate on surfaces of known correlation

N, SEEDS = 60, 40
PRIVATE = pb.Privacy(epsilon=1.0, noise="simulation")


def mixed(share: float, seed: int) -> pb.Problem:
    """Clients whose values at any point are a common draw and one of their own."""
    generator = np.random.default_rng([seed, 77])
    table = np.sqrt(share) * generator.normal(size=4096) + np.sqrt(1 - share) * generator.normal(size=(N, 4096))

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        return table[clients, np.minimum((units[:, 0] * 4096).astype(np.int64), 4095)]

    return pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=values, n_clients=N)


def scouted(problem: pb.Problem, seed: int, privacy=PRIVATE, n_points: int = 16) -> tuple[Likeness, float]:
    """The estimate, and the truth at the same points."""
    record = pb.run(problem, Scout(evaluations=n_points), privacy=privacy, rounds=1, seed=seed)
    pairs = np.corrcoef(record.clients.values)
    return likeness(record.releases[0], n_clients=N), float((pairs.sum() - N) / (N * (N - 1)))


def misses(share: float, spoil: float = 1.0) -> FloatArray:
    """Errors in units of the stated standard error, over seeds; ``spoil`` plants a wrong noise level."""
    found = []
    for seed in range(SEEDS):
        estimate, truth = scouted(mixed(share, seed), seed)
        found.append((estimate.correlation * spoil - truth) / estimate.standard_error)
    return np.array(found)


# 40 standardised errors: their mean is N(0, 1/40) and the sum of their squares about chi-squared of 40. Beyond 5.2
# standard errors of the mean, or a root mean square outside of (0.5, 1.65), false alarms stay below 1e-6.
def holds(errors: FloatArray) -> bool:
    return bool(abs(errors.mean()) < 5.2 / np.sqrt(SEEDS) and 0.5 < np.sqrt(np.mean(errors**2)) < 1.65)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_estimate_is_within_its_error_of_the_truth(share: float) -> None:
    """Planted: an estimate that forgot something."""
    assert holds(misses(share))
    assert share < 0.9 or not holds(misses(share, spoil=1.3))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_error_to_expect_is_the_spread_of_estimates_over_drawn_noise(share: float) -> None:
    # 4000 estimates: their standard deviation has a relative error of 1 / sqrt(8000) = .011 where they are normal, and
    # below .02 with the tails of a sum of squares. Beyond 12 % false alarms stay below 1e-6.
    generator, noise = np.random.default_rng(5), 0.2
    common, own = generator.normal(size=16), generator.normal(size=(N, 16))
    vectors = np.sqrt(share) * common + np.sqrt(1 - share) * own
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    truth = float(((vectors @ vectors.T).sum() - N) / (N * (N - 1)))
    means = vectors.mean(axis=0) + noise * generator.normal(size=(4000, 1, 16))
    found = [likeness(release(mean, noise), n_clients=N).correlation for mean in means]
    expected = standard_error(truth, n_clients=N, n_points=16, noise_stddev=noise)
    assert np.std(found) == pytest.approx(expected, rel=0.12)
    spoilt = standard_error(truth, n_clients=N, n_points=16, noise_stddev=1.2 * noise)
    assert np.std(found) != pytest.approx(spoilt, rel=0.12)


def test_the_report_has_the_estimate_of_a_scout_and_of_nothing_else() -> None:
    def run(algorithm, **sampling) -> pb.Record:
        return pb.run(mixed(0.6, 3), algorithm, privacy=dataclasses.replace(PRIVATE, **sampling), rounds=1, seed=3)

    record = run(Scout())
    assert pb.report(record).likeness == likeness(record.releases[0], n_clients=N)
    some = [run(Scout(), sample_rate=0.5, channel=channel) for channel in ("anonymous", "open")]
    for other in (run(pb.DPFTSDE(n_features=8)), run(Scout().local()), *some):
        assert pb.report(other).likeness is None


def test_the_estimate_is_the_correlation_where_there_is_no_noise() -> None:
    found, truth = scouted(mixed(0.6, 3), 3, pb.NoPrivacy(), 32)
    assert found.correlation == pytest.approx(truth, abs=1e-11)
    assert found.standard_error == 0.0


def test_a_client_without_an_answer_counts_as_unlike_and_a_constant_one_too() -> None:
    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        return np.where(clients < 30, units[:, 0], np.where(clients < 45, 1.0, np.nan))

    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=values, n_clients=N)
    record = pb.run(problem, Scout(), privacy=pb.NoPrivacy(), rounds=1, seed=3)
    # Thirty equal unit vectors: |s|^2 = 900, where N = 60 were expected to stand on the diagonal.
    assert likeness(record.releases[0], n_clients=N).correlation == pytest.approx((900 - N) / (N * (N - 1)))


def test_everybody_evaluates_the_same_public_points_once() -> None:
    record = pb.run(mixed(0.5, 1), Scout(evaluations=5), privacy=pb.NoPrivacy(), rounds=7, seed=1)
    assert record.clients.units.shape == (N, 5, 1)
    assert (record.clients.units == record.clients.units[:1]).all()
    assert len(np.unique(record.clients.units[0], axis=0)) == 5
    assert record.clients.rounds.tolist() == [0] * 5  # the round of the release; -1 is for what precedes one


def test_likeness_is_between_clients() -> None:
    with pytest.raises(pb.ConfigurationError, match="at least 2"):
        likeness(release(np.zeros((1, 4)), 0.0), n_clients=1)
