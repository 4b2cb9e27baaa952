"""The audit: exact bias, warnings, the black-box attack, and publishing only against a charge."""

import dataclasses
import itertools
import json
import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

import privbo as pb
from accountant.events import Adjacency, Gaussian
from accountant.gaussian_dp import epsilon_from_mu
from accountant.tight import numerical
from privbo.audits import empirical
from privbo.audits.clipping import advise, agreement, price_of_norms, publish_norms
from privbo.audits.empirical import World, audit_curve, audit_run, epsilon_lower_bound, releases, scores
from privbo.cli.terminal import render
from privbo.door.adaptive import AdaptiveSum
from privbo.door.clipping import BOUND_FACTORS, clip_rows, measure_clipping
from privbo.door.noise import SimulatedNoise
from privbo.plans.plan import price_plan
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Records, Request
from privbo.reports.audit import audit_figures, write_audit
from privbo.runs.manifest import RunDirectory
from tests.accountant.builders import gaussian, poisson
from tests.builders import Changed, mechanism_for
from tests.conformance.cases import CASES, problem
from tests.door.replayed_runs import ScriptedNoise
from tests.reports.runs import small_run
from tests.statistical.faults import quieter


def test_a_run_is_audited_and_the_page_stays_private(tmp_path) -> None:
    result = small_run(tmp_path / "run", rounds=3)
    audit = pb.audit(result)
    assert [len(each.bias_by_region) for each in audit.rounds] == [2, 2, 2]
    assert audit.rounds[0].noise == pytest.approx(result.releases[0].noise_stddev * math.sqrt(16))
    assert audit.advice.use == "direction"
    assert audit.by_factor()[1.0] == pytest.approx(audit.advice.now)
    assert audit.advice.factor in audit.by_factor()
    drawn = {name: len(figure.series) for name, figure in audit_figures(audit).items()}
    assert (drawn["bias-and-noise"], drawn["norms"]) == (3, 5)  # a fan of three, the median and the bound
    assert audit.verdict.startswith(("Keep S = ", "S = "))
    with pytest.raises(pb.RunError, match="in memory"):
        pb.audit(dataclasses.replace(result, directory=None))


def planted(home, **change) -> tuple[str, ...]:
    """Warnings after every round's statistics were changed."""
    path = RunDirectory(home).clipping_path
    path.write_text("".join(f"{json.dumps(line | change)}\n" for line in read_lines(path)))
    return pb.audit(pb.load(home)).warnings


def test_the_patterns_that_matter_are_noticed(tmp_path) -> None:
    result = small_run(tmp_path / "run", rounds=2, privacy=pb.Privacy(noise_multiplier=0.5))
    home, noise = tmp_path / "run", result.releases[0].noise_stddev * 4
    calm = {"clipped_share": 0.3, "signal_by_block": [noise, noise], "bias_at": [10.0 * noise] * 6 + [0.1] + [0.1] * 6}
    assert planted(home, **calm) == ()
    assert "every vector was clipped" in planted(home, **calm | {"clipped_share": 1.0})[0]
    short = {"clipped_share": 0.0, "norm_quantiles": [1e-3]}
    assert "no vector was ever clipped" in planted(home, **calm | short)[0]
    assert planted(home, **calm | short | {"norm_quantiles": [result.spec.algorithm.bound]}) == ()
    assert "ten times the signal" in planted(home, **calm | {"signal_by_block": [0.0, noise / 11]})[0]


def swept(rows: np.ndarray, bound: float, noise: float) -> dict[float, float]:
    """Agreement by factor of a sum of equal weights whose noise has this norm at factor 1."""
    found = measure_clipping(
        rows, clip_rows(rows, bound), participants=np.ones(len(rows), dtype=bool),
        weights=np.full((1, len(rows)), 1 / len(rows)), bound=bound, rate=1.0,
    ).statistics()  # fmt: skip
    (signal,) = found["signal_by_block"]
    pairs = zip(BOUND_FACTORS, found["kept_at"], found["bias_at"], strict=True)
    return {f: agreement(signal=signal, kept=kept, bias=bias, noise=f * noise) for f, kept, bias in pairs}


def test_where_everything_is_clipped_there_is_nothing_to_gain_from_another_bound() -> None:
    """S from .03 to 1 gave the same signal-to-noise; advice from x.5 to x8 was given all the same."""
    generator = np.random.default_rng(5)
    rounds = [swept(100.0 * (generator.normal(size=(40, 8)) + 1.0), 1.0, 0.5) for _ in range(6)]
    found = advise("direction", rounds)
    assert (found.answer, found.factor, found.effect, found.at_edge) == ("nothing to gain", 1.0, 0.0, False)
    assert found.equal == (BOUND_FACTORS[0], BOUND_FACTORS[-1])
    words = "keep S = 1: no other that was tried would have given more, and any from 0.125 to 8 the same; "
    assert found.text(1.0).startswith(words)


def test_a_bound_that_drowns_the_sum_in_noise_is_advised_against_and_an_edge_is_called_one() -> None:
    """Vectors of norm 1 under a bound of 4: a quarter of it shortens nobody; of 64: the grid ends before that."""
    directions = np.random.default_rng(6).normal(size=(6, 40, 8)) + 2.0
    unit = directions / np.linalg.norm(directions, axis=2, keepdims=True)
    found = advise("direction", [swept(rows, 4.0, 4.0) for rows in unit])
    assert (found.answer, found.at_edge) == ("smaller", False)
    assert found.factor <= 0.25 * 1.42
    assert found.effect > 2 * found.standard_error > 0
    far = advise("direction", [swept(rows, 64.0, 64.0) for rows in unit])
    assert (far.factor, far.at_edge) == (BOUND_FACTORS[0], True)
    assert "edge of what was tried" in far.text(64.0)


def test_the_effect_that_is_estimated_is_the_cosine_that_noise_leaves() -> None:
    """Against noise that is drawn: 4,000 draws, a bound at 5 standard errors."""
    generator = np.random.default_rng(7)
    rows = generator.normal(size=(40, 64)) + 0.5
    estimated = swept(rows, 2.0, 1.5)
    meant = rows.mean(axis=0)
    for factor in (0.25, 1.0, 4.0):
        drawn = clip_rows(rows, 2.0 * factor).mean(axis=0) + factor * 1.5 / 8 * generator.normal(size=(4000, 64))
        cosines = drawn @ meant / np.linalg.norm(drawn, axis=1) / np.linalg.norm(meant)
        # the expectation of a ratio is not the ratio of expectations: a percent at 64 dimensions
        assert estimated[factor] == pytest.approx(cosines.mean(), abs=0.01 + 5 * cosines.std() / math.sqrt(4000))


def test_one_round_is_no_ground_for_advice_and_magnitude_has_its_own() -> None:
    steep = {0.5: -0.2, 1.0: -1.0, 2.0: -3.0}
    assert advise("magnitude", [steep]).answer == "nothing to gain"
    found = advise("magnitude", [steep, {0.5: -0.3, 1.0: -1.0, 2.0: -2.0}, steep])
    assert (found.factor, found.at_edge, found.now) == (0.5, True, 1.0)
    assert found.effect == pytest.approx(0.8 - 0.1 / 3)
    assert "lowered the release's error" in found.text(3.0)
    wild = advise("magnitude", [{1.0: -1.0, 2.0: -1.0 + gain} for gain in (5.0, -4.0, 0.5)])
    assert wild.answer == "nothing to gain"  # half a gain on average, and nine of noise


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_the_black_box_audit_of_a_plan(tmp_path, rate: float) -> None:
    result = small_run(tmp_path / "run", rounds=2, privacy=pb.Privacy(epsilon=2.0, sample_rate=rate))
    found = audit_run(result, trials=4000)
    assert {row.world for row in found} == {"others zero", "others opposing", "alone"}
    assert all(row.passed for row in found)
    # 3 % above the truth is an event of probability below 1e-6 at far fewer trials.
    assert 0 < found[0].epsilon_lower < 1.5 * found[0].epsilon_claimed
    with pytest.raises(pb.ConfigurationError, match="claims nothing"):
        audit_run(pb.run(problem(), pb.DPFTSDE(), privacy=pb.NoPrivacy(), rounds=1), trials=1000)


def test_page_and_terminal_round_what_was_attacked_down_and_what_is_claimed_up(tmp_path) -> None:
    row = empirical.Empirical(
        event="e", world="alone", trials=1000, passed=True, epsilon=1.0, delta_lower=0.012349, delta_claimed=0.0123449,
        delta=1.23449e-5, epsilon_lower=0.98765, epsilon_claimed=1.23441, alpha=1e-6, n_mechanisms=1,
    )  # fmt: skip
    made = empirical.Audit(name="x", clipping=None, empirical=(row,) * 3)
    page, (first, second, *_) = write_audit(made, tmp_path / "audit.html").read_text(), map(str, render(made))
    assert "epsilon at least 0.9876 by attack (95 % confidence), at most 1.235 by the claim, at delta 1.235e-05" in page
    assert "0.9876 (attack) <= epsilon <= 1.235 (claim) at delta 1.235e-05" in second
    assert "delta measured at least 0.01234, claimed 0.01235" in first
    assert all(f">{number}</td>" in page for number in ("0.01234", "0.01235"))


def test_an_audit_says_how_many_of_a_plans_mechanisms_it_attacked(tmp_path) -> None:
    requests = [Request(dim=1, clipping_norm=norm, weights=WEIGHTS) for norm in (1.0, 2.0, 2.0, 3.0, 4.0, 5.0)]
    plan = price_plan(pb.Privacy(noise_multiplier=1.0, delta=1e-5), requests, n_clients=3)
    found = empirical.audit_plan(plan, requests, trials=1000)
    audit = empirical.Audit(name="five", clipping=None, empirical=found)
    page = write_audit(audit, tmp_path / "audit.html").read_text()
    for text in (repr(audit), "\n".join(map(str, render(audit))), page):
        assert "9 attacks on 3 of 5 different mechanisms" in text


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith("zoom")], ids=str)
def test_norms_are_published_only_against_a_charge(tmp_path, case) -> None:
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=50.0, delta=1e-5)
    result = small_run(tmp_path / "run", case.algorithm, ledger=people, privacy=pb.Privacy(noise_multiplier=3.0))
    before, evaluated = result.ledger.entries(), result.clients.values.size
    found = publish_norms(result, noise_multiplier=2.0)
    assert found.noise_stddev == pytest.approx(2.0)
    assert abs(sum(found.counts) - 7) < 2.0 * math.sqrt(len(found.counts)) * 6
    assert publish_norms(result, noise_multiplier=2.0) == found
    (*same, paid) = result.ledger.entries()
    assert (same, paid.event) == (before, gaussian(2.0))
    assert pb.load(result.directory).clients.values.size == evaluated
    for ask in (price_of_norms, publish_norms):
        with pytest.raises(pb.ConfigurationError, match=r"published already, as Gaussian.*2\.0.*ask with its noise"):
            ask(result, noise_multiplier=3.0)


def test_a_non_private_baseline_keeps_its_statistics(tmp_path) -> None:
    """Nothing is clipped there: the bound is none, and there is nothing to audit."""
    result = pb.run(problem(), pb.DPFTSDE(n_features=8), privacy=pb.NoPrivacy(), rounds=1, directory=tmp_path / "run")
    assert read_lines(tmp_path / "run" / "private" / "clipping.jsonl")[0]["bound"] is None
    with pytest.raises(pb.RunError, match="no clip statistics"):
        pb.audit(result)


def test_a_run_without_releases_has_an_empty_history_and_nothing_to_audit(tmp_path) -> None:
    loud = pb.Privacy(noise_multiplier=500.0, noise="simulation")
    result = pb.run(problem(), pb.SharedPrior(n_features=8), privacy=loud, rounds=2, directory=tmp_path / "run")
    assert (len(pb.history(result)), list(pb.history(result)["sequence"])) == (0, [])
    with pytest.raises(pb.RunError, match="nothing was released"):
        pb.audit(result)


# ---- the curve audit: its worlds and scores against closed forms, and its verdicts on releases that are made up

WEIGHTS = np.array([[0.3, 0.2, 0.6], [0.1, 0.2, 0.8]])  # the last client is the canary, of norm 1
WORLDS = ["others zero", "others opposing", "alone"]
BOUND = 2.0 / math.sqrt(2)  # S = 2 over two blocks


def build(weights: np.ndarray = WEIGHTS, **settings):
    request = Request(dim=1, clipping_norm=2.0, weights=weights)
    return mechanism_for(request, **{"noise_multiplier": 1.0, "sample_rate": 0.5} | settings)


# --- what is measured -----------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_worlds_differ_in_the_canary_alone(adjacency: Adjacency) -> None:
    mechanism = build(adjacency=adjacency)
    gone = -4.0 if adjacency is Adjacency.REPLACE_ONE else 0.0
    assert empirical.heaviest_client(WEIGHTS) == 2
    for world, others in (("others zero", 0.0), ("others opposing", -4.0)):
        present, absent = empirical.neighbours(mechanism, 3, 2, world)
        assert present.tolist() == [[others], [others], [4.0]]  # twice the clipping norm saturates
        assert absent.tolist() == [[others], [others], [gone]]
    assert [rows.tolist() for rows in empirical.neighbours(mechanism, 1, 0, "alone")] == [[[4.0]], [[gone]]]


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
    samples = np.array(list(itertools.product([0, 1], repeat=3)))
    chances, score = np.where(samples, 0.25, 0.75).prod(axis=1), (samples * clipped) @ WEIGHTS.T @ direction / 0.25
    mean = chances @ score
    centre, spread = empirical.moments(mechanism, WEIGHTS, rows, direction, 0.7)
    assert centre == pytest.approx(mean)
    assert spread == pytest.approx(math.sqrt(chances @ (score - mean) ** 2 + 0.7**2))


def test_releases_are_made_by_the_shipped_sums() -> None:
    noise = ScriptedNoise(participants=np.array([True, True, False]))
    found = releases(build(), WEIGHTS, np.array([[9.0], [-9.0], [9.0]]), 5, noise)
    expected = (WEIGHTS[:, 0] - WEIGHTS[:, 1]) * BOUND / 0.5  # the third takes no part
    np.testing.assert_allclose(found, np.tile(expected, (5, 1)), rtol=1e-3)  # truncated to the grid
    assert [call[:2] for call in noise.drawn] == [("coins", (5, 3)), ("gaussian", (5, 2, 1))]


# --- the audit ------------------------------------------------------------------------------


def worth(epsilon: float, level: float, trials: int = 400) -> float:
    """The curve's bound where one world shows something in all of its trials and the other never."""
    return stats.beta.ppf(level, trials, 1) - math.exp(epsilon) * (1 - level ** (1 / trials))


@pytest.mark.parametrize(("blocks", "n_scores"), [([0], 1), ([0, 1], 5)])
def test_every_sign_score_threshold_tail_and_direction_shares_the_false_alarm_rate(blocks, n_scores: int) -> None:
    """Releases without noise tell every trial apart, so the bound is a closed form of its level."""
    everyone = ScriptedNoise(participants=np.ones(1, dtype=bool))
    found = audit_curve(build, WEIGHTS[blocks], noise=everyone, world="others zero", trials=400, alpha=1e-3)
    assert not found.passed
    assert found.delta_lower == pytest.approx(worth(found.epsilon, 1e-3 / (2 * n_scores * 49 * 4 * 2)), rel=1e-9)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_leak_of_one_sign_of_the_canary_is_seen(sign: float, world: str) -> None:
    """The canary stands last; nothing shows of the other sign, nor of its absence."""

    def leaking(mechanism, weights, rows, trials, noise):
        assert weights.shape[1] == len(rows) == (1 if world == "alone" else 3)
        made = releases(mechanism, weights, rows, trials, noise)
        return made + 10 * sign * mechanism.noise_stddev() * (sign * rows[-1, 0] > 0)

    for release, sound in ((releases, True), (leaking, False)):
        found = audit_curve(build, WEIGHTS, noise=SimulatedNoise(1), world=world, trials=2000, release=release)
        assert found.passed is sound


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
    assert found.delta_lower == pytest.approx(worth(found.epsilon, 1e-3 / (2 * 49 * 4 * 2)), rel=1e-9)


def verdicts(built, faults: tuple, world: World, weights: np.ndarray = WEIGHTS) -> list[bool]:
    """Whether a mechanism passes with each of the faults: 20,000 releases a side, false alarms 1e-6 an audit."""
    settings = {"world": world, "trials": 20_000}
    found = (audit_curve(partial(built, fault), weights, noise=SimulatedNoise(1), **settings) for fault in faults)
    return [point.passed for point in found]


def test_a_mechanism_that_claims_too_much_is_caught() -> None:
    """Planted: the event says four times the noise that is drawn."""

    def built(claimed: float, weights: np.ndarray) -> Changed:
        return Changed(build(weights, sample_rate=1.0), event=lambda: gaussian(claimed))

    assert verdicts(built, (1.0, 4.0), "others zero") == [True, False]


@pytest.mark.parametrize("n_counted", [1, 2, 3])
@pytest.mark.parametrize("world", WORLDS)
def test_as_many_noises_of_guardians_are_drawn_as_are_counted(n_counted: int, world: World) -> None:
    """Planted: half of every guardian's noise."""

    def built(factor: float, weights: np.ndarray):
        return quieter(build(weights, sample_rate=1.0, n_noises=3, n_counted=n_counted), factor)

    assert verdicts(built, (1.0, 0.5), world) == [True, False]


@pytest.mark.parametrize(
    ("unit", "settings"), [(0.5, {"sample_rate": 1.0}), (0.5, {}), (1.0, {"adjacency": Adjacency.REPLACE_ONE})], ids=str
)
@pytest.mark.parametrize("world", WORLDS)
def test_an_adaptive_bound_is_attacked_with_its_bits(unit: float, settings: dict, world: World) -> None:
    """Planted: a third of the noise, of vectors and of bits."""

    def built(part: str | None, weights: np.ndarray) -> AdaptiveSum:
        made = AdaptiveSum(base=build(weights, **settings), clipping_norm=3.0, count_stddev=1.5 * unit)
        if part is not None:
            object.__setattr__(made, part, quieter(getattr(made, part), 0.33))
        return made

    assert verdicts(built, (None, "vectors", "bits"), world) == [True, False, False]


def test_an_adaptive_runs_bits_are_attacked() -> None:
    """20,000 releases a side; the lower end is .975 of the claim, deviation .013 (30 audits): each end nine away."""
    privacy = pb.Privacy(noise_multiplier=1.0, adaptive_clipping=pb.AdaptiveClipping(count_stddev=0.6))
    found = audit_run(pb.run(problem(), pb.DPFTSDE(n_features=8), privacy=privacy, rounds=1), trials=20_000)
    assert all(row.passed for row in found)
    assert 0.8 < found[0].epsilon_lower / found[0].epsilon_claimed < 1.1
    assert "count of who is within" in found[0].event


@pytest.mark.parametrize("training", [gaussian(0.8), gaussian(8.0)], ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_a_release_of_trained_models_is_held_against_its_sum_alone(training: Gaussian, world: World) -> None:
    """Planted: a quarter of the noise, z 4 that is worth 1."""
    request = Records(counts=(50, 50, 50), low=0.0, high=1.0, training=training).request(1)
    whole = request.weights

    def built(factor: float, weights: np.ndarray):
        described = dataclasses.replace(request, weights=weights)
        return quieter(mechanism_for(described, noise_multiplier=4.0, adjacency=Adjacency.REPLACE_ONE), factor)

    assert verdicts(built, (1.0, 0.25), world, whole) == [True, False]
    _, claimed = epsilon_lower_bound(built(1.0, whole), whole, noise=SimulatedNoise(1), delta=1e-5, trials=100)
    assert claimed == pytest.approx(epsilon_from_mu(0.25, 1e-5), rel=1e-3)


# --- the bound on epsilon -------------------------------------------------------------------


def bounded(with_canary, without, *, level=(), **settings) -> tuple[float, float]:
    """The bound where the canary's score takes the given shares of the stated move, its absence the others."""
    mechanism = build(**settings)
    move = BOUND / mechanism.sample.rate  # the canary's column has norm 1
    gone = -4.0 if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    shares = {4.0: with_canary, gone: without}  # by what the canary sends

    def release(mechanism, weights, rows, trials, noise):
        assert rows[:2].tolist() == [[0.0], [0.0]]
        return np.outer(shares[float(rows[2, 0])][:trials], WEIGHTS[:, 2]) * move

    how = {"noise": SimulatedNoise(1), "delta": 1e-5, "trials": len(with_canary), "release": release} | dict(level)
    return epsilon_lower_bound(mechanism, WEIGHTS, **how)


def mu_of(errors: int, trials: int, alpha: float, rate: float) -> float:
    total_error = 2 * stats.beta.isf(alpha, errors + 1, 2 * trials - errors)  # Clopper and Pearson's upper end
    return 2 * stats.norm.ppf((1 + (1 - total_error) / rate) / 2)


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_bound_follows_from_the_errors_of_the_threshold_midway(adjacency: Adjacency) -> None:
    middle = 0.5 if adjacency is Adjacency.ZERO_OUT else 0.0
    with_canary, without = (middle + np.repeat([-0.01, 0.01], counts) for counts in ([7, 193], [197, 3]))
    found, claimed = bounded(with_canary, without, sample_rate=1.0, adjacency=adjacency)
    assert found == pytest.approx(epsilon_from_mu(mu_of(10, 200, 0.05, 1.0), 1e-5), rel=1e-3)
    assert claimed == pytest.approx(epsilon_from_mu(1.0, 1e-5), rel=1e-3)
    stricter, _ = bounded(with_canary, without, sample_rate=1.0, adjacency=adjacency, level={"alpha": 1e-6})
    assert stricter == pytest.approx(epsilon_from_mu(mu_of(10, 200, 1e-6, 1.0), 1e-5), rel=1e-3)


def test_below_rate_one_the_bound_is_that_of_a_sampled_gaussian() -> None:
    found, _ = bounded(np.repeat([0.51, 0.49], [900, 1100]), np.full(2000, 0.49), sample_rate=0.5)
    event = poisson(0.5, 1 / mu_of(1100, 2000, 0.05, 0.5))
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
