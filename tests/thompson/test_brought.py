"""What clients know: evaluations from before the run, points that they want evaluated, and which of many are kept."""

import dataclasses
import math
import time

import numpy as np
import pandas as pd
import pytest

import privbo as pb
from privbo.algorithms.thompson.evaluations import kept_points
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.problem import ProblemSource
from privbo.runs.best import best_points
from privbo.runs.clients import WorkerSetup, clients_of
from privbo.testing import toy_problem
from privbo.testing.subject import noise_release
from tests.builders import play, same_releases, stopped

CLIENTS, ROUNDS = 5, 4
ALGORITHMS = [pb.SharedPrior(n_features=12, release_when="always"), pb.DPFTSDE(n_features=12, n_init=2)]
KNOWN = [({"x": 0.31, "n": 3}, 0.99), ({"x": 0.9, "n": 7}, 0.1), ({"x": 0.05, "n": 1}, 0.3)]


def score(client: int, params) -> float:
    return 1.0 - (params["x"] - 0.3) ** 2 - 0.01 * (params["n"] - 3) ** 2


PROBLEM = pb.Problem(space={"x": pb.Real(0, 1), "n": pb.Int(1, 9)}, objective=score, n_clients=CLIENTS)


def played(problem: pb.Problem, algorithm, **settings) -> pb.Record:
    """Behind a mechanism that passes on nobody's vector, so that clients differ by what they themselves know."""
    plain = {"privacy": pb.Privacy(noise_multiplier=1.0, noise="simulation"), "rounds": ROUNDS}
    return pb.run(problem, algorithm, **plain | {"seed": 2, "control": "zeroed"} | settings)


def brought(client: int):
    return {0: KNOWN, 1: KNOWN[:1]}.get(client, [])


def own(record: pb.Record, client: int) -> np.ndarray:
    """The points that a client evaluated in the run; what it brought along stands before them."""
    there = np.isfinite(record.clients.values[client])
    return record.clients.units[client][there][-n_queries(record) :]


def n_queries(record: pb.Record) -> int:
    return int((record.clients.rounds >= 0).sum()) + 2  # initial points


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["shared-prior", "dp-fts-de"])
def test_who_brings_evaluations_along_starts_with_them_and_nobody_else_notices(algorithm) -> None:
    without = played(PROBLEM, algorithm)
    found = played(dataclasses.replace(PROBLEM, earlier=brought), algorithm)
    assert n_queries(found) == n_queries(without)  # they cost nobody a round
    for client in range(2, CLIENTS):
        np.testing.assert_array_equal(own(found, client), own(without, client))
    for client in (0, 1):
        assert not np.array_equal(own(found, client)[2:], own(without, client)[2:])
        seen = found.clients.values[client]
        assert np.isfinite(seen).sum() == n_queries(found) + len(brought(client))
    assert (found.clients.evaluations == n_queries(found)).all()  # what was made before the run is none of them
    assert found.best(0).value >= 0.99
    for ours, theirs in zip(found.releases, without.releases, strict=True):
        assert ours.noise_stddev == theirs.noise_stddev


def vectors(algorithm, count: int) -> FloatArray:
    """What every client sends in every round, ``(rounds, n, dim)``; client 0 brings ``count`` evaluations along."""
    points = np.random.default_rng(1).integers(1, 10, (count, 2))
    known = [({"x": x / 10, "n": int(n)}, score(0, {"x": x / 10, "n": n})) for x, n in points]
    problem = dataclasses.replace(PROBLEM, earlier=lambda client: [] if client else known)
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    spec = pb.Spec(name="brought", problem=problem, algorithm=algorithm, privacy=privacy, rounds=ROUNDS)
    setting, rows = spec.setting(public_seed=5), list[FloatArray]()
    server = algorithm.server(setting)
    setup, evaluate = WorkerSetup(spec=spec, setting=setting, seed=3), problem.evaluator(on_failure=lambda *_: None)
    sides = clients_of(setup, np.arange(CLIENTS), evaluate)
    while ask := server.ask():
        answers = sides.answer(ask.broadcast, 0 if ask.request is None else ask.request.dim)
        if ask.request is not None:
            rows.append(answers / ask.request.clipping_norm)
        server.tell(noise_release(ask, ask.broadcast.round))
    return np.stack(rows)


@pytest.mark.parametrize(("algorithm", "is_sent"), [(ALGORITHMS[0], False), (ALGORITHMS[1], True)])
def test_what_one_client_brings_along_moves_no_other_clients_vector(algorithm, is_sent: bool) -> None:
    """A cohort of all pads everybody's arrays to the longest history, which alone moves what the others compute.

    Clients of the shared prior answer with what the run had them evaluate; in round 1 that is public points.
    """
    without = vectors(algorithm, 0)
    assert np.isfinite(without).all()
    for count in (1, 3, 40):
        found = vectors(algorithm, count)
        np.testing.assert_array_equal(found[:, 1:], without[:, 1:])
        assert np.array_equal(found[:, 0], without[:, 0]) != is_sent


def test_a_run_that_goes_on_does_not_take_them_in_twice(tmp_path) -> None:
    problem = dataclasses.replace(PROBLEM, earlier=brought, enqueued=lambda client: [{"x": 0.5, "n": 2}] * 4)
    whole = played(problem, ALGORITHMS[1], control=None)
    asked = {"control": None, "directory": tmp_path / "run"}
    stopped(1, played, problem, ALGORITHMS[1], **asked)
    again = played(problem, ALGORITHMS[1], resume=True, **asked)
    np.testing.assert_array_equal(again.clients.units, whole.clients.units)
    same_releases(again, whole)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["shared-prior", "dp-fts-de"])
def test_enqueued_points_come_first(algorithm) -> None:
    good = [{"x": 0.31, "n": 3}, {"x": 0.29, "n": 4}, {"x": 0.3, "n": 3}]
    problem = dataclasses.replace(PROBLEM, enqueued=lambda client: good if client == 3 else [])
    found, without = played(problem, algorithm), played(PROBLEM, algorithm)
    encoded = np.array([problem.search_space.encode(params) for params in good])
    np.testing.assert_array_equal(own(found, 3)[:3], encoded)
    assert not (own(found, 3)[3] == encoded).all(axis=1).any()
    np.testing.assert_array_equal(own(found, 2), own(without, 2))


def test_what_tables_and_numpy_hold_is_taken_as_what_it_is() -> None:
    """A row, a category and a value of NumPy's, and a step that ``np.arange`` misses by 5e-17."""
    space = {"x": pb.Real(0, 0.3, step=0.1), "n": pb.Categorical([1, 2]), "k": pb.Categorical(["a", "b"])}
    row = pd.DataFrame({"x": np.arange(0, 0.31, 0.1), "n": [1] * 4, "k": ["b"] * 4}).iloc[3]
    given = [7, (row, np.float32(0.9)), ({"x": np.float64(0.3), "n": np.int64(1), "k": np.str_("b")}, np.int64(1))]
    assert row["x"] > 0.3
    evaluate = pb.Problem(space=space, objective=score, n_clients=1, earlier=lambda client: given).evaluator()
    found = evaluate.earlier(0)
    assert "TypeError" in evaluate.errors[0]  # of what is no pair, and of nothing else
    assert [value for _, value in found] == pytest.approx([0.9, 1.0])
    for unit, _ in found:
        assert evaluate.problem.search_space.decode(unit) == {"x": 0.3, "n": 1, "k": "b"}


def odd(client: int):
    if client == 1:
        raise ValueError("the archive is empty")
    return {
        0: [({"x": 3.0, "n": 3}, 0.5), ({"x": 0.3, "n": 3}, float("nan")), ({"x": 0.3, "n": 3}, "good")],  # type: ignore[list-item]  # a stranger's
        2: [({"x": 0.3}, 0.5)],
    }.get(client, [])


def test_what_can_not_be_used_is_its_clients_failure_and_changes_nothing() -> None:
    without = played(PROBLEM, ALGORITHMS[0])
    found = played(dataclasses.replace(PROBLEM, earlier=odd, enqueued=lambda client: [{"y": 1}]), ALGORITHMS[0])
    np.testing.assert_array_equal(found.clients.units, without.clients.units)
    assert set(found.failures) == set(range(CLIENTS))
    assert "the archive is empty" in found.failures[1]
    same_releases(found, without)


def test_clients_that_choose_no_points_take_none(tmp_path) -> None:
    named = ProblemSource(objective="a:b", earlier="a:c", n_clients=CLIENTS, space=PROBLEM.search_space.parameters)
    settings = {"privacy": pb.Privacy(epsilon=8), "rounds": ROUNDS, "directory": tmp_path / "run"}
    for given in ({"earlier": brought}, {"source": named}, {"earlier": brought, "objective": "ask"}):
        begin = pb.start if "objective" in given else pb.run
        with pytest.raises(pb.ConfigurationError, match=r"problem\.earlier: clients of FedPNE take no points"):
            begin(dataclasses.replace(PROBLEM, **given), pb.FedPNE(horizon=40), **settings)
    assert not list(tmp_path.iterdir())
    with pytest.raises(pb.ConfigurationError, match=r"enqueued can't be called"):
        dataclasses.replace(PROBLEM, enqueued=lambda client, place: [])
    for name in ("earlier", "enqueued"):  # only evaluations are asked for
        with pytest.raises(pb.ConfigurationError, match=rf"{name}='ask' is no function; write {name}\(client\)"):
            dataclasses.replace(PROBLEM, **{name: "ask"})


def test_points_enqueued_at_the_desk_are_asked_for_next(tmp_path) -> None:
    problem = dataclasses.replace(PROBLEM, objective="ask", enqueued=lambda client: [{"x": 0.125, "n": 1}])
    run = pb.start(
        problem, ALGORITHMS[0], directory=tmp_path / "run", rounds=3, seed=2,
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
    )  # fmt: skip
    run.site.ask()
    with pytest.raises(pb.ConfigurationError, match="client=9 is not here"):
        run.site.enqueue(9, {"x": 0.25, "n": 2})
    for x in (0.25, 0.75):
        run.site.enqueue(4, {"x": x, "n": 2})
    while trials := run.site.ask():
        for trial in trials:
            run.site.tell(trial, score(trial.client, trial.params))
    run.result()
    assert [trial.params["x"] for trial in run.site.trials(4)][:3] == [0.125, 0.25, 0.75]
    assert 0.25 not in [trial.params["x"] for trial in run.site.trials(3)]


def test_a_client_that_models_failures_stays_away_from_where_its_trials_fail() -> None:
    """Eight clients alone, twelve rounds: beyond the exploring start most trials fall over the cliff, or few do."""
    space = {"x": pb.Real(0, 1), "y": pb.Real(0, 1)}
    cliff = pb.Problem(space=space, objective=lambda _, at: at["x"] if at["x"] <= 0.6 else math.nan, n_clients=8)
    failed = {}
    assert pb.SharedPrior().failures == "worst"
    for failures in ("ignored", "worst"):
        own = pb.OwnModel(fit_steps=20, n_candidates=128)
        algorithm = pb.SharedPrior(own=own, n_features=12, failures=failures).local()
        record = pb.run(cliff, algorithm, privacy=pb.NoPrivacy(), rounds=12, seed=4)
        later = record.clients.rounds > 2
        failed[failures] = float(np.isnan(record.clients.values[:, later]).mean())
        assert all(best.params["x"] <= 0.6 for best in record.best())
    assert failed["worst"] < 0.5 * failed["ignored"], failed


@pytest.mark.parametrize("name", ["earlier", "enqueued"])
def test_what_clients_bring_along_is_given_within_their_time(name: str) -> None:
    def given(client: int):
        while client == 1:
            time.sleep(0.05)
        return [({"x": 0.5, "n": 2}, 1.0)] if name == "earlier" else [{"x": 0.5, "n": 2}]

    evaluate = dataclasses.replace(PROBLEM, **{name: given}).evaluator(evaluation_seconds=0.5)
    if name == "earlier":
        assert [len(evaluate.earlier(client)) for client in (0, 1)] == [1, 0]
    else:
        units = np.zeros((2, 2))
        assert (evaluate.chosen(np.arange(2), units, 0) != units).any(axis=1).tolist() == [True, False]
    assert "TimeoutError" in evaluate.errors[1]


# ---- models of long histories: which points are kept, that they are a client's own, and that short ones are untouched

GENERATOR = np.random.default_rng(4)
UNITS, VALUES = GENERATOR.random((6, 60, 2)), GENERATOR.standard_normal((6, 60))
VALUES[3, ::3] = -np.inf
VALUES[5, np.delete(np.arange(60), [4, 30])] = -np.inf


def plainly(units: FloatArray, values: FloatArray, count: int, parts) -> list[int]:
    """The rule for one client, one point after the other; what is unknown is chosen last."""
    places, known = range(len(values)), values > -np.inf
    orders = {"best": values, "newest": np.where(known, places, -1)}
    chosen = set[int]()
    for order in (orders[part] for part in parts if part in orders):
        chosen.update(sorted(places, key=lambda i, by=order: (-by[i], i))[: count // len(parts)])
    while len(chosen) < count:
        near = {i: min((np.square(units[i] - units[j]).sum() for j in chosen), default=np.inf) for i in places}
        left = [i for i in places if i not in chosen]
        chosen.add(max(left, key=lambda i, near=near: (near[i] if known[i] else -1.0, -i)))
    return sorted(chosen)


@pytest.mark.parametrize("parts", [("best", "newest", "spread"), ("best",), ("newest",), ("spread",)])
def test_what_is_kept_is_a_clients_own_points_by_the_rule(parts):
    expected = [plainly(units, values, 24, parts) for units, values in zip(UNITS, VALUES, strict=True)]
    assert kept_points(UNITS, VALUES, 24, parts).tolist() == expected


def test_a_client_uses_the_point_that_was_best_on_average_and_not_the_luckiest_draw():
    generator = np.random.default_rng(0)
    means = {"a": 0.6, "b": 0.5, "c": 0.5}
    problem = pb.Problem(
        space={"k": pb.Categorical(tuple(means))}, n_clients=12,
        objective=lambda _, params: means[params["k"]] + generator.normal(scale=0.5),
    )  # fmt: skip
    history = pb.run(problem, pb.SharedPrior(n_features=8), privacy=pb.NoPrivacy(), rounds=12, seed=0).clients
    for best in best_points(history, problem.search_space, range(12)):
        units, values = history.units[best.client], history.values[best.client]
        own = [values[(units == unit).all(axis=1)].mean() for unit in np.unique(units, axis=0)]
        assert best.value == pytest.approx(max(own))


@pytest.mark.parametrize(("recommended", "value"), [(0.2, 0.1), (np.nan, 0.5)])
def test_a_value_counts_as_often_as_there_are_calls_behind_it(recommended: float, value: float):
    history = ClientHistory(
        units=np.array([[[0.2], [0.2], [0.8]]]), values=np.array([[1.0, 0.0, 0.5]]), rounds=np.arange(3),
        recommended=np.array([[recommended]]), calls=np.array([[1, 9, 0]]),
    )  # fmt: skip
    (best,) = best_points(history, pb.Space({"x": pb.Real(0, 1)}), [0])
    assert (best.params["x"], best.value) == (pytest.approx(0.2 if value == 0.1 else 0.8), pytest.approx(value))


@pytest.mark.parametrize("name", ["shared-prior", "dp-fts-de", "dp-fts-de, exact"])
def test_a_limit_changes_nothing_below_it_and_runs_go_on_above_it(name: str):
    def algorithm(max_points: int | None):
        if name == "shared-prior":
            return pb.SharedPrior(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8))
        draw = "exact" if name.endswith("exact") else "paths"
        return pb.DPFTSDE(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8, draw=draw, n_candidates=64))

    def played(max_points: int | None, **settings) -> ClientHistory:
        asked = {"privacy": pb.NoPrivacy(), "rounds": 14} | settings
        return play(toy_problem(4), algorithm(max_points), **asked).clients

    whole, same, less = (played(count) for count in (None, 100, 8))
    np.testing.assert_array_equal(same.units, whole.units)
    assert not np.array_equal(less.units, whole.units)
    assert np.isfinite(less.values).all()
    np.testing.assert_array_equal(played(8, executor="threads", jobs=3).units, less.units)
