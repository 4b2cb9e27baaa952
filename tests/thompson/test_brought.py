"""What clients bring along: evaluations from before the run, and points that they want evaluated."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import privbo as pb
from privbo.protocol.messages import FloatArray
from privbo.protocol.problem import ProblemSource
from privbo.runs.clients import WorkerSetup, clients_of
from privbo.runs.spec import Spec
from privbo.testing.subject import noise_release
from tests.builders import same_releases, stopped

CLIENTS, ROUNDS = 5, 4
ALGORITHMS = [pb.SharedPrior(n_features=12, release_when="always"), pb.DPFTSDE(n_features=12, n_init=2)]
KNOWN = [({"x": 0.31, "n": 3}, 0.99), ({"x": 0.9, "n": 7}, 0.1), ({"x": 0.05, "n": 1}, 0.3)]


def score(client: int, params: dict[str, Any]) -> float:
    return 1.0 - (params["x"] - 0.3) ** 2 - 0.01 * (params["n"] - 3) ** 2


PROBLEM = pb.Problem(space={"x": pb.Real(0, 1), "n": pb.Int(1, 9)}, objective=score, n_clients=CLIENTS)


def played(problem: pb.Problem, algorithm: Any, **settings: Any) -> pb.Record:
    """Behind a mechanism that passes on nobody's vector, so that clients differ by what they themselves know."""
    plain: dict[str, Any] = {"privacy": pb.Privacy(noise_multiplier=1.0, noise="simulation"), "rounds": ROUNDS}
    return pb.run(problem, algorithm, **plain | {"seed": 2, "control": "zeroed"} | settings)


def brought(client: int) -> list[tuple[dict[str, Any], float]]:
    return {0: KNOWN, 1: KNOWN[:1]}.get(client, [])


def own(record: pb.Record, client: int) -> np.ndarray:
    """The points that a client evaluated in the run; what it brought along stands before them."""
    there = np.isfinite(record.clients.values[client])
    return record.clients.units[client][there][-n_queries(record) :]


def n_queries(record: pb.Record) -> int:
    return int((record.clients.rounds >= 0).sum()) + 2  # initial points


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["shared-prior", "dp-fts-de"])
def test_who_brings_evaluations_along_starts_with_them_and_nobody_else_notices(algorithm: Any) -> None:
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


def vectors(algorithm: Any, count: int) -> FloatArray:
    """What every client sends in every round, ``(rounds, n, dim)``; client 0 brings ``count`` evaluations along."""
    points = np.random.default_rng(1).integers(1, 10, (count, 2))
    known = [({"x": x / 10, "n": int(n)}, score(0, {"x": x / 10, "n": n})) for x, n in points]
    problem = dataclasses.replace(PROBLEM, earlier=lambda client: [] if client else known)
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    spec = Spec(name="brought", problem=problem, algorithm=algorithm, privacy=privacy, rounds=ROUNDS)
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
def test_what_one_client_brings_along_moves_no_other_clients_vector(algorithm: Any, is_sent: bool) -> None:
    """A cohort of all pads everybody's arrays to the longest history, which alone moves what the others compute.

    Clients of the shared prior answer with what the run had them evaluate; in round 1 that is public points.
    """
    without = vectors(algorithm, 0)
    assert np.isfinite(without).all()
    for count in (1, 3, 40):
        found = vectors(algorithm, count)
        np.testing.assert_array_equal(found[:, 1:], without[:, 1:])
        assert np.array_equal(found[:, 0], without[:, 0]) != is_sent


def test_a_run_that_goes_on_does_not_take_them_in_twice(tmp_path: Path) -> None:
    problem = dataclasses.replace(PROBLEM, earlier=brought, enqueued=lambda client: [{"x": 0.5, "n": 2}] * 4)
    whole = played(problem, ALGORITHMS[1], control=None)
    asked = {"control": None, "directory": tmp_path / "run"}
    stopped(1, played, problem, ALGORITHMS[1], **asked)
    again = played(problem, ALGORITHMS[1], resume=True, **asked)
    np.testing.assert_array_equal(again.clients.units, whole.clients.units)
    same_releases(again, whole)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["shared-prior", "dp-fts-de"])
def test_enqueued_points_come_first(algorithm: Any) -> None:
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


def odd(client: int) -> list[tuple[dict[str, Any], float]]:
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


def test_clients_that_choose_no_points_take_none(tmp_path: Path) -> None:
    named = ProblemSource(objective="a:b", earlier="a:c", n_clients=CLIENTS, space=PROBLEM.search_space.parameters)
    settings: dict[str, Any] = {"privacy": pb.Privacy(epsilon=8), "rounds": ROUNDS, "directory": tmp_path / "run"}
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


def test_points_enqueued_at_the_desk_are_asked_for_next(tmp_path: Path) -> None:
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
    def given(client: int) -> list[Any]:
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
