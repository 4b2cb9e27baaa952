"""Federated F-LCB: the best of three functions among 1,000 clients, at user level."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import privbo as pb
from accountant import Gaussian, repeat
from experiments.outcome import Task
from experiments.plays.f_lcb import federated
from experiments.problems.three_functions import N_CLIENTS, algorithm, problem
from experiments.summary import tight
from privbo.algorithms.functional.federated import Search, answers
from privbo.protocol.messages import Setting
from privbo.runs.opening import plan_run

SETTING = Setting(space=problem(0, 4).search_space, n_clients=4, rounds=12, public_seed=0)


def run_one(seed, epsilon, control):
    """One run of the experiment."""
    task = Task(
        problem={"type": "experiments.problems.three_functions:problem"},
        algorithm=algorithm(),
        privacy=pb.Privacy(epsilon=epsilon, noise="simulation"),
        control=control,
        rounds=60,
        seed=seed,
        options={},
    )
    return federated(task)


def test_best_of_three_among_1000_clients_at_epsilon_4() -> None:
    """The bar is 9 of 10; a choice at random passes it with probability below 4e-4."""
    assert N_CLIENTS == 1000
    runs = [run_one(seed, 4.0, None) for seed in range(10)]
    assert sum(run.figures["right"] for run in runs) >= 9
    assert all(tight(run.paid)[1] <= 4.0 for run in runs)
    assert np.mean([run.figures["loss"] for run in runs]) < 0.02


@pytest.mark.slow
def test_the_noise_alone_finds_nothing() -> None:
    """Control: the clients' sum set to zero; at random 9 of 10 would be right with probability below 4e-4."""
    assert sum(run_one(seed, 4.0, "zeroed").figures["right"] for seed in range(10)) < 9


def test_the_plan_is_fixed_and_stopping_early_quotes_it(tmp_path) -> None:
    made = problem(0, 200)
    eager = dataclasses.replace(algorithm(), tolerance=3.0)
    privacy = pb.Privacy(epsilon=8.0)
    result = pb.run(made, eager, privacy=privacy, rounds=30, seed=1, directory=tmp_path / "run")
    assert 3 <= len(result.releases) < 30
    assert result.plan.releases == 30
    planned = pb.plan(made, eager, privacy=privacy, rounds=30).epsilon()
    assert result.epsilon() == pytest.approx(min(planned.values()))


def test_widths_and_the_first_rate_are_neither_too_small_nor_three_times_too_large() -> None:
    """Against the noise's own quantile over all 2 K T ends, and the gap of the steepest straight slope there is."""
    chosen, noise = algorithm(), 0.1
    search = Search(chosen, SETTING)
    arms, n_dims = len(search.arms.coordinates), len(search.arms.free)
    search.absorb(0, np.zeros(n_dims + 1), noise=noise)
    delta = 1.0 / (arms * SETTING.rounds**2 + 1)
    exact = stats.norm.isf(delta / (2 * arms * SETTING.rounds)) * noise / chosen.loss_scale
    width, rate = search.bounds.width[0], search.bounds.rate[0]
    gap = chosen.gradient_bound / math.sqrt(n_dims) * n_dims * max(chosen.start, 1 - chosen.start)
    for lower, bound in ((exact, width), (gap, rate)):
        assert 0.3 * bound < lower <= bound  # the planted faults: three tenths, and more than three times


def test_local_clients_search_alone() -> None:
    result = pb.run(problem(1, 6), algorithm().local(), privacy=pb.NoPrivacy(), rounds=40, seed=0)
    assert result.releases == ()
    chosen = (result.clients.recommended[:, 0] * 3).astype(int)
    assert (chosen == int(problem(1, 6).best_values[0])).all()


def test_answers_are_clipped_gradients_and_scaled_losses() -> None:
    """Central differences of a quadratic are exact; a steep client is clipped, a failing one at its worst."""
    method = pb.FederatedFLCB(gradient_bound=0.5, reward_range=(-1.0, 1.0))
    space = pb.Space({"x": pb.Real(0, 1), "y": pb.Real(0, 1)})
    arms = method.arms(space)

    def evaluate(clients, units):
        steep = np.where(clients == 1, 100.0, 1.0)
        value = -steep * 0.5 * ((units - np.array([0.2, 0.4])) ** 2).sum(axis=1)
        return np.where(clients == 2, np.nan, np.where(clients == 3, np.sign(value + 0.025) * 1.7e308, value))

    points = np.tile([0.3, 0.5], (4, 1))
    vectors, values = answers(method, arms, evaluate, np.arange(4), points, points)
    np.testing.assert_allclose(vectors[0, :2], [0.1, 0.1], atol=1e-9)
    assert vectors[0, 2] == pytest.approx(method.loss_scale * 0.01)
    assert np.linalg.norm(vectors[1, :2]) == pytest.approx(0.5)
    assert vectors[1, 2] == pytest.approx(0.5)  # the loss reached its bound
    np.testing.assert_array_equal(vectors[2], [0.0, 0.0, 0.5])
    assert np.isnan(values[2])
    assert np.isfinite(vectors[3]).all()  # its difference overflows
    assert np.linalg.norm(vectors[1]) <= method.clipping_norm * (1 + 1e-12)


def test_an_arm_that_never_works_is_never_announced_nor_used() -> None:
    """It would have the middle loss were its clients absent; alone, a client would ask for it for ever."""

    def objective(client: int, params) -> float:
        return math.nan if params["m"] == "a" else 0.3 - 0.2 * (params["x"] - 0.2) ** 2

    made = pb.Problem(
        space={"m": pb.Categorical(("a", "b")), "x": pb.Real(0, 1)}, objective=objective, n_clients=20, name="half"
    )
    for privacy in (pb.NoPrivacy(), pb.Privacy(epsilon=8.0, noise="simulation")):
        record = pb.run(made, pb.FederatedFLCB(arm="m"), privacy=privacy, rounds=9, seed=0)
        assert record.common.params["m"] == "b"
    record = pb.run(made, pb.FederatedFLCB(arm="m").local(), privacy=pb.NoPrivacy(), rounds=9, seed=0)
    assert (record.clients.recommended[:, 0] > 0.5).all()


def test_flat_clients_make_as_many_calls_as_others() -> None:
    """A slope of zero and the middle loss are an answer like any other."""
    flat = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.5, n_clients=2, name="flat")
    record = pb.run(flat, pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=4, seed=0)
    assert record.clients.evaluations.tolist() == [4 * 3 + 1] * 2


@pytest.mark.parametrize("n_free", [1, 4])
def test_certified_bounds_cover_what_differences_get_wrong(n_free: int) -> None:
    """A bowl in the corner, to which slopes at the border look one way; its minimum is 0."""
    method = pb.FederatedFLCB(difference=0.1, gradient_bound=20.0, reward_range=(-10.0, 0.0))
    space = pb.Space({f"x{i}": pb.Real(0, 1) for i in range(n_free)})
    search = Search(method, Setting(space=space, n_clients=1, rounds=200, public_seed=0))
    for _ in range(200):
        points = [search.arms.unit(0, where)[None] for where in (search.states[0].query, search.states[0].point)]
        bowl = lambda clients, units: -2.0 * ((units - 0.05) ** 2).sum(axis=1)  # noqa: E731 (a line says it)
        search.absorb(0, answers(method, search.arms, bowl, np.zeros(1, dtype=int), *points)[0][0], noise=0.0)
        assert search.bounds.lower[0] <= 1e-12


@pytest.mark.parametrize(
    ("method", "space"),
    [
        (pb.FederatedFLCB(arm="z"), {"x": pb.Real(0, 1)}),
        (pb.FederatedFLCB(arm="x"), {"x": pb.Real(0, 1)}),
        (pb.FederatedFLCB(), {"x": pb.Real(0, 1), "k": pb.Int(1, 4)}),
        (pb.FederatedFLCB(arm="c"), {"c": pb.Categorical(("a", "b"))}),
    ],
)
def test_spaces_without_arms_or_gradients_are_refused(method, space) -> None:
    with pytest.raises(pb.ConfigurationError, match="parameter"):
        method.arms(pb.Space(space))


def paper_f_lcb(answer, *, n_arms, n_dims, rounds, smoothness, steepest, width):
    """Algorithm 1 with Lan's accelerated method and the printed rate, written anew: the arm it returns, and where.

    ``answer(arm, query, point)`` gives a gradient, a loss and the noise of an entry; a loss is sent in units of width.
    """
    diameter, delta = math.sqrt(n_dims), 1.0 / (n_arms * rounds**2 + 1)
    tail = math.sqrt(2 * math.log(2 * n_arms * rounds / delta))
    far, near, ask = ([np.full(n_dims, 0.5) for _ in range(n_arms)] for _ in range(3))
    pulls, lower, upper = [0] * n_arms, [-math.inf] * n_arms, [math.inf] * n_arms
    for _ in range(rounds):
        arm = lower.index(min(lower))
        gradient, loss, noise = answer(arm, ask[arm], near[arm])
        sigma = noise * math.sqrt(n_dims)
        gamma = math.sqrt(2) * sigma / diameter
        if pulls[arm] == 0:
            rate = steepest * diameter
        else:
            rate = (2 * gamma * diameter + (4 * sigma * diameter / 3 if sigma else 0.0)) / math.sqrt(pulls[arm])
        lower[arm], upper[arm] = loss - rate - noise * width * tail, loss + noise * width * tail
        k = pulls[arm] = pulls[arm] + 1
        far[arm] = np.clip(far[arm] - gradient / (2 * smoothness / k + gamma * math.sqrt(k)), 0.0, 1.0)
        near[arm] = (1 - 2 / (k + 1)) * near[arm] + 2 / (k + 1) * far[arm]
        ask[arm] = (1 - 2 / (k + 2)) * near[arm] + 2 / (k + 2) * far[arm]
    best = upper.index(min(upper))
    return best, near[best]


def test_the_common_point_is_the_papers_in_a_hundred_cases() -> None:
    """Without noise the answers are the clients' exact means; with noise what was released."""
    found = set()
    for case in range(100):
        rng = np.random.default_rng([11, case])
        n_arms, n_dims, n_clients, rounds = (int(rng.integers(a, b)) for a, b in ((2, 5), (1, 4), (3, 9), (5, 25)))
        scales, centres = rng.uniform(0.2, 1.0, (n_arms, n_dims)), rng.uniform(0.1, 0.9, (n_clients, n_arms, n_dims))
        offsets = rng.uniform(0.0, 0.1, n_arms)

        def objective(clients, units, offsets=offsets, scales=scales, centres=centres):
            arms = np.minimum((units[:, 0] * len(offsets)).astype(int), len(offsets) - 1)
            return -offsets[arms] - (scales[arms] * (units[:, 1:] - centres[clients, arms]) ** 2).sum(axis=1) / 2

        space = {"arm": pb.Categorical(tuple(map(str, range(n_arms))))}
        problem = pb.Problem(
            space=space | {f"x{i}": pb.Real(0.0, 1.0) for i in range(n_dims)},
            batch_objective=objective,
            n_clients=n_clients,
        )
        paper = pb.FederatedFLCB.paper(arm="arm", gradient_bound=2.0, reward_range=(-4.0, 0.0), smoothness=1.0)
        noisy = pb.Privacy(noise_multiplier=0.05, noise="simulation")
        record = pb.run(problem, paper, privacy=noisy if case % 2 else pb.NoPrivacy(), rounds=rounds, seed=case)
        released = iter(record.releases)

        def answer(arm, query, point, case=case, released=released, made=(offsets, scales, centres)):
            release, (offsets, scales, centres) = next(released), made
            gradient = (scales[arm] * (query - centres[:, arm])).mean(axis=0)
            loss = offsets[arm] + (scales[arm] * (point - centres[:, arm]) ** 2).sum(axis=1).mean() / 2
            sent = release.values[0]
            if case % 2:
                return sent[:-1], 2.0 + sent[-1], release.noise_stddev
            np.testing.assert_allclose(sent, [*gradient, loss - 2.0], atol=1e-8)
            return gradient, loss, 0.0

        best, where = paper_f_lcb(
            answer, n_arms=n_arms, n_dims=n_dims, rounds=rounds, smoothness=1.0, steepest=2.0, width=1.0
        )
        assert record.common.params["arm"] == str(best), case
        np.testing.assert_allclose([record.common.params[f"x{i}"] for i in range(n_dims)], where, atol=1e-7)
        found.add((best, *where.round(3)))
    assert len(found) > 90  # a constant answer would not do


COUNTS = (50, 80)


def hospitals(record=None, **changes) -> pb.Problem:
    """Two sites whose records score .5; one record of the first may score otherwise."""

    def objective(client: int, params):
        found = np.full(COUNTS[client], 0.5)
        if record is not None and client == 0:
            found[7] = record(params)
        return found

    plain = {"objective": objective, "n_clients": 2, "n_records": COUNTS}
    return pb.Problem(space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, **plain | changes)


RECORDS = pb.Privacy(noise_multiplier=5.0, delta=1e-6, unit="record", protects="records", noise="simulation")


def asked_of(record, algorithm, **changes) -> pb.Spec:
    plain = {"problem": hospitals(record), "algorithm": algorithm, "privacy": RECORDS, "rounds": 4}
    return pb.Spec(name="hospitals", **plain | changes)


def sent(record, algorithm: pb.FederatedFLCB):
    asked = asked_of(record, algorithm)
    setting = asked.setting(3)
    server = algorithm.server(setting)
    cohort = algorithm.cohort(setting, clients=np.arange(2), evaluate=asked.problem.evaluator(), seed=0)
    ask = server.ask()
    assert ask is not None
    return cohort.respond(ask.broadcast), ask.request


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_one_record_moves_slopes_and_loss_by_its_share(start: float) -> None:
    """A record that scores 1 to the right and above and 0 elsewhere, and its opposite: reached where the cube ends."""
    algorithm = pb.FederatedFLCB(start=start, difference=0.1)

    def high(params) -> float:
        return float(params["x"] > start or params["y"] > start)

    ups, request = sent(high, algorithm)
    downs, _ = sent(lambda params: 1.0 - high(params), algorithm)
    moved = np.linalg.norm(ups - downs, axis=1)
    slope = 2 / (COUNTS[0] * 0.1) if start == 0.0 else 1 / (COUNTS[0] * 0.1)
    by_hand = np.hypot(np.sqrt(2) * slope, algorithm.loss_scale / COUNTS[0])
    assert moved == pytest.approx([by_hand, 0.0])
    assert request.unit == "record"
    assert moved[0] <= request.unit_bound
    if start == 0.0:
        assert request.unit_bound == pytest.approx(by_hand, rel=1e-9)
    wild, _ = sent(lambda params: 1e9 * (2 * high(params) - 1), algorithm)
    np.testing.assert_array_equal(wild, ups)  # clipped one by one


@pytest.mark.parametrize(
    "algorithm", [pb.FederatedFLCB(), pb.FedPNE.heuristic(horizon=400, release_when="always")], ids=["f-lcb", "fed-pne"]
)
def test_a_persons_records_at_two_sites_move_two_clipped_vectors(algorithm) -> None:
    """At these settings clipping bounds what one record moves, and not what two do, each at another site."""
    both = {"privacy": dataclasses.replace(RECORDS, records_per_person=2)}
    asked = (asked_of(None, algorithm, **changes) for changes in ({}, both))
    one, two = (next(iter(plan_run(spec).mechanisms)).sensitivity() for spec in asked)
    assert two == pytest.approx(2 * one, rel=1e-2)
    assert two >= 2 * one


def test_a_server_that_asks_outside_of_the_cube_moves_no_record_further() -> None:
    """The ends of a difference would lie 1e-7 apart, and one record move a slope by a million of its shares."""
    algorithm = pb.FederatedFLCB(difference=0.05)
    setting, sent_by = asked_of(None, algorithm).setting(3), []
    bound = algorithm.request(setting).unit_bound
    for high in (0.0, 1.0):
        evaluate = hospitals(lambda params, high=high: high if params["x"] >= 1.0 else 0.5).evaluator()
        query = np.full((1, setting.space.n_dims), 1.05 - 1e-7)
        vectors, _ = answers(algorithm, algorithm.arms(setting.space), evaluate, np.arange(1), query, query)
        sent_by.append(vectors[0])
    assert 0.1 * bound < np.linalg.norm(sent_by[1] - sent_by[0]) <= bound


def test_a_run_that_hides_records_costs_all_of_its_rounds() -> None:
    algorithm = pb.FederatedFLCB(difference=0.1)
    record = pb.run(hospitals(), algorithm, privacy=RECORDS, rounds=4, seed=1)
    assert record.plan.event == repeat(Gaussian(noise_multiplier=5.0), 4)
    _, request = sent(None, algorithm)
    assert record.releases[0].noise_stddev == pytest.approx(5.0 * request.unit_bound / 2, rel=1e-2)
    fine = pb.FederatedFLCB(difference=1e-9)  # slopes of one record alone reach the gradient's bound
    _, loud = sent(None, fine)
    assert loud.unit_bound == pytest.approx(2 * fine.clipping_norm)
    with pytest.raises(pb.ConfigurationError, match=r"reward_range=\(0.0, 2.0\) must be score_range=\(0.0, 1.0\)"):
        pb.plan(hospitals(), pb.FederatedFLCB(reward_range=(0.0, 2.0)), privacy=RECORDS, rounds=4)
