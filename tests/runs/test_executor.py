"""Who works on clients changes no number, and no evaluation that was journalled is made again."""

import dataclasses
import os
import pickle
import signal
import threading
import time

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import privbo as pb
from privbo.cli.run import carry_out
from privbo.protocol.files import read_json
from privbo.protocol.problem import Memory
from privbo.protocol.processes import portable
from privbo.reports.diagnostics import diagnostics
from privbo.runs.clients import WorkerTask
from privbo.runs.in_process import groups_of, in_process
from privbo.runs.loop import play as run_over, run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import open_run, plan_run
from privbo.runs.spec import Spec, read_spec
from privbo.runs.states import States, applied, difference
from privbo.runs.worker_pool import ServedWorker
from tests.builders import StoppedError, same_releases
from tests.cli.test_cli import toml
from tests.conformance import cases
from tests.conformance.cases import CASES, ROUNDS, VOTES, Case
from tests.executor_problem import Noting, problem

SAMPLED = pb.Privacy(noise_multiplier=1.0, sample_rate=0.6, noise="simulation")


def play(objective: Noting, **settings) -> pb.Record:
    asked = {"privacy": SAMPLED, "rounds": 4, "seed": 3} | settings
    return pb.run(problem(objective), pb.SharedPrior(n_features=8, release_when="always"), **asked)


def require_same(found: pb.Record, expected: pb.Record) -> None:
    """Releases, points and values are equal to the last bit."""
    same_releases(found, expected)
    mine, theirs = found.clients, expected.clients
    for name in ("rounds", "values", "recommended"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    made = np.isfinite(mine.values)
    np.testing.assert_array_equal(mine.units[made], theirs.units[made])


@pytest.mark.parametrize("case", [*CASES, *VOTES], ids=lambda case: case.name)
def test_points_and_releases_do_not_depend_on_how_clients_are_grouped(case: Case):
    privacies, jobs = [case.privacy()], (7,)  # every client by itself
    if case.name in ("shared-prior", "fed-pne"):
        privacies += [pb.NoPrivacy(), case.privacy(sample_rate=0.4)]
        jobs = (2, 7)
    if case.name == "shared-prior":
        privacies += [case.privacy(adaptive_clipping=pb.AdaptiveClipping(count_stddev=20.0))]
    for privacy in privacies:
        runs = [
            pb.run(cases.problem(), case.algorithm, privacy=privacy, rounds=ROUNDS, seed=3, final=case.final, **asked)
            for asked in ({}, *({"executor": "threads", "jobs": count} for count in jobs))
        ]
        for parts in runs[1:]:
            require_same(parts, runs[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in one process, whose objective holds its calls."""
    return play(Noting(tmp_path_factory.mktemp("whole") / "calls"))


def test_processes_give_the_same_and_one_that_dies_is_replaced_without_repeating(whole, tmp_path, capfd):
    parts = Noting(tmp_path / "parts", deadly=5)
    require_same(play(parts, executor="processes", jobs=2, directory=tmp_path / "run"), whole)
    assert parts.path.with_suffix(".died").exists()
    assert sorted(set(parts.lines())) == sorted(whole.spec.problem.objective.lines())
    assert parts.repeated() <= 1  # that which was under way when the process died
    assert "seen by 6" in capfd.readouterr().out
    assert len(play(Noting(tmp_path / "again"), directory=tmp_path / "run", resume=True).releases) == 1
    assert not Noting(tmp_path / "again").lines()
    assert read_json(tmp_path / "run" / "private" / "groups.json")["first"] == [0, 3]


@pytest.mark.slow
def test_a_client_that_ends_its_process_every_time_is_absent_and_the_run_goes_on(tmp_path):
    record = play(Noting(tmp_path / "calls", always=2), executor="processes", jobs=2)
    assert np.isnan(record.clients.values[2]).all()
    assert np.isfinite(np.delete(record.clients.values, 2, axis=0)).all()
    assert "its process ended with code 3" in record.failures[2]
    assert Noting(tmp_path / "calls").repeated() <= 2  # what was under way when its process died, twice


class Unmakeable:
    """Can be sent and not made again, whatever other libraries teach pickle about errors (Dask's do)."""

    def __reduce__(self):
        return int, ("no number",)


class OddError(Exception):
    """An error of another signature than its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_that_no_other_process_can_make_again_is_told_in_its_own_words():
    """Whoever reads it would take it for the death of the worker."""
    held = ValueError("no luck")
    for odd in (held, OddError("no", "luck")):
        odd.holds = Unmakeable()
        with pytest.raises(pb.RunError, match=f"{type(odd).__name__}: no luck"):
            raise pickle.loads(cloudpickle.dumps(portable(odd)))  # noqa: S301 (made in this line)


def test_an_evaluation_that_takes_too_long_fails_alone(tmp_path):
    started = time.monotonic()
    record = play(Noting(tmp_path / "calls", slow=1), rounds=1, evaluation_seconds=0.5)
    assert time.monotonic() - started < 25.0
    assert np.isnan(record.clients.values[1]).all()
    assert np.isfinite(np.delete(record.clients.values, 1, axis=0)).all()
    assert "no value within 0.5 s" in record.failures[1]


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_run_stopped_inside_a_round_repeats_no_evaluation(executor, tmp_path):
    whole = play(Noting(tmp_path / "whole"), privacy=pb.NoPrivacy())
    calls, home, left = Noting(tmp_path / "calls"), tmp_path / "run", [5, 11, 17, 18]

    def stop() -> None:
        if left and len(calls.lines()) >= left[0]:
            left.pop(0)
            raise StoppedError

    jobs = 1 if executor == "serial" else 3
    spec = dataclasses.replace(whole.spec, problem=problem(calls), executor=executor, jobs=jobs)
    for resume in (False, True, True, True):
        with pytest.raises(StoppedError):
            run_spec(spec, home, resume=resume, on_evaluation=stop)
    require_same(run_spec(spec, home, resume=True), whole)
    assert sorted(calls.lines()) == sorted(Noting(tmp_path / "whole").lines())


def test_a_journal_of_another_point_is_not_believed(tmp_path):
    kept, clients, units = [], np.arange(3), np.full((3, 2), 0.25)
    first = Memory(clients, 2, kept.append)
    _, left = first.recall(clients, units, None)
    assert left.tolist() == [0, 1, 2]
    first.keep(left[:2], np.array([1.0, 2.0]))
    first.keep(2, np.nan)
    second = Memory(clients, 2, kept.append)
    second.begin(0, np.concatenate(kept))
    moved = units.copy()
    moved[1, 1] = np.nextafter(0.25, 1.0)
    values, left = second.recall(clients, moved, None)
    assert left.tolist() == [1]
    np.testing.assert_array_equal(values, [1.0, np.nan, np.nan])
    assert second.recall(clients, units, None)[1].tolist() == [0, 1, 2]  # the second evaluation of each
    second.begin(1, np.concatenate(kept))
    assert second.recall(clients, units, None)[1].tolist() == [0, 1, 2]  # another round


def test_resuming_a_finished_run_with_its_controls_evaluates_nothing(tmp_path):
    noting = {"factory": "tests.executor_problem:from_file", "arguments": {"path": str(tmp_path / "calls")}}
    chosen = {"algorithm": {"type": "shared-prior", "n_features": 8}, "privacy": {"noise_multiplier": 1.0}}
    (tmp_path / "run.toml").write_text(toml(rounds=4, controls=["local", "zeroed"], problem=noting, **chosen))
    spec = read_spec(tmp_path / "run.toml")
    carry_out(spec, tmp_path / "run", resume=False, progress=False)
    calls = Noting(tmp_path / "calls")
    made = len(calls.lines())
    assert made == 3 * 7 * (4 + pb.SharedPrior().n_init)
    scores = diagnostics(RunDirectory(tmp_path / "run")).mean_best_score
    carry_out(spec, tmp_path / "run", resume=True, progress=False)
    assert len(calls.lines()) == made
    assert diagnostics(RunDirectory(tmp_path / "run")).mean_best_score == scores


def test_a_worker_goes_on_when_what_it_has_told_is_kept(tmp_path):
    """Who asks again has written it down; a kill before that repeats one evaluation, and not the next one, too."""
    calls = Noting(tmp_path / "calls")
    spec = Spec(name="x", problem=problem(calls, 1), algorithm=pb.FedPNE(), privacy=pb.NoPrivacy(), rounds=2, seed=1)
    opened = open_run(spec, plan_run(spec), None)
    ask = opened.server.ask()
    worker = ServedWorker(dataclasses.replace(opened.setup, seed=1))
    worker.begin(WorkerTask(group=(0, 1), broadcast=ask.broadcast, dim=ask.request.dim))
    for made in (1, 2):
        while not worker.update(5.0)[0]:
            pass
        time.sleep(0.2)
        assert len(calls.lines()) == made


def test_executors_that_there_are_not_and_problems_that_cannot_be_sent_are_refused_before_anything_is_made(tmp_path):
    calls, lock = Noting(tmp_path / "calls"), threading.Lock()
    held = problem(lambda client, params: 0.0 if lock else 1.0)
    refused = [(problem(calls), executor, "executor=") for executor in ("fibres", "dask", "ray", 7)]
    refused += [(problem(calls), "dask:127.0.0.1:1", r"does not answer|not installed")]
    refused += [(held, executor, "can't be sent to workers") for executor in ("processes", "dask:127.0.0.1:8786")]
    for asked, executor, words in refused:
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.run(asked, pb.SharedPrior(), privacy=SAMPLED, rounds=1, executor=executor, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not calls.lines()


def test_states_that_are_paged_out_come_back_as_they_were(whole, tmp_path, monkeypatch):
    spec = dataclasses.replace(whole.spec, problem=problem(Noting(tmp_path / "calls")))
    home = RunDirectory(tmp_path / "run")
    opened = open_run(spec, plan_run(spec), home)
    made = in_process(opened.setup, home, spec.problem.evaluator(), None)
    paged = dataclasses.replace(made, groups=groups_of(7, 3))
    monkeypatch.setattr("privbo.runs.in_process.RESIDENT", 0)
    record = run_over(opened, paged)
    require_same(dataclasses.replace(record, _clients=paged.history()), whole)
    assert len(home.all_states()) == 3
    assert not Noting(tmp_path / "calls").repeated()
    paged.end()


def test_dask_workers_give_the_same(whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "processes": False}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        require_same(play(Noting(tmp_path / "calls"), executor=client), whole)
    with pytest.raises(pb.ConfigurationError, match="Client that runs"):
        play(Noting(tmp_path / "closed"), executor=client)
    assert sorted(Noting(tmp_path / "calls").lines()) == sorted(whole.spec.problem.objective.lines())


@pytest.mark.slow
def test_a_dask_worker_killed_inside_a_round_is_replaced(whole, tmp_path):
    distributed, calls = pytest.importorskip("distributed"), Noting(tmp_path / "calls", seconds=0.05)
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        worker = next(iter(client.run(os.getpid).values()))

        def kill():
            while len(calls.lines()) < 10:
                time.sleep(0.01)
            os.kill(worker, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        require_same(play(calls, executor=client), whole)
        killer.join()
    assert set(calls.lines()) == set(whole.spec.problem.objective.lines())
    assert calls.repeated() <= 1


# ---- clients' states are appended to, survive a cut at any byte, and are rewritten before they have doubled for long

STAMP, NEXT = {"round": 3, "sequence": 7, "head": "ab"}, {"round": 4, "sequence": 8, "head": "cd"}
ARRAYS = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
    elements=st.sampled_from([0.0, -0.0, 1.5, np.nan, np.inf]),
)


def require_same_states(found, expected):
    found, expected = (  # the sign of a zero, too
        {name: (array.dtype, array.shape, array.tobytes()) for name, array in state.items()}
        for state in (found, expected)
    )
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), ARRAYS), st.dictionaries(st.sampled_from("abc"), ARRAYS))
def test_a_state_is_the_one_before_and_what_changed(old, new):
    require_same_states(applied(old, difference(old, new)), new)
    require_same_states(applied(None, difference(None, new)), new)
    assert not difference(new, new)


def state(t: int) -> dict[str, np.ndarray]:
    values = np.arange(50 * t, dtype=np.float64).reshape(t, 50).T
    return {"values": np.ascontiguousarray(values), "rounds": np.arange(t), "fit": np.full(50, float(t))}


def test_a_file_cut_at_any_byte_holds_the_last_whole_state_and_goes_on(tmp_path):
    states = States(path=tmp_path / "clients-0.states")
    assert states.load() is states.stamp() is None
    states.append(difference(None, state(8)), STAMP)
    first = states.path.stat().st_size
    states.append(difference(state(8), state(9)), NEXT)
    whole = states.path.read_bytes()
    for size in {*range(first, len(whole), 37), len(whole) - 1}:
        states.path.write_bytes(whole[:size])
        require_same_states(states.load(), state(8))
        assert states.stamp() == STAMP
        States(path=states.path).append(difference(state(8), state(9)), NEXT)
        require_same_states(states.load(), state(9))
        assert states.stamp() == NEXT


def test_what_a_long_run_writes_grows_like_its_history_and_not_like_its_square(tmp_path):
    written = {}
    for rounds in (100, 400):
        states, last, total = States(path=tmp_path / f"clients-{rounds}.states"), None, 0
        for t in range(1, rounds + 1):
            before = states.path.stat().st_size if states.path.exists() else 0
            states.append(difference(last, state(t)), STAMP)
            last, after = state(t), states.path.stat().st_size
            total += after - before if after > before else after + sum(a.nbytes for a in last.values())
        require_same_states(states.load(), state(rounds))
        assert states.path.stat().st_size < 3 * sum(a.nbytes for a in last.values()) + 1200 * rounds
        written[rounds] = total
    assert written[400] < 6 * written[100]  # 16 times if the whole were written every round
