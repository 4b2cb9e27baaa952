"""Trials that somebody else evaluates: asked, told, late, killed, typed in."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.audits.clipping import publish_norms
from privbo.cli.main import app
from privbo.protocol.files import read_lines
from privbo.runs.loop import run_spec
from privbo.runs.spec import Spec
from privbo.runs.trials import TRIALS, Journal, PendingTrials, Trial
from privbo.testing.subject import noise_release
from tests.builders import same_releases
from tests.cli.test_cli import X, toml
from tests.conformance.cases import ALIKE, CASES, ROUNDS, VOTES, Case, problem
from tests.deployment.federations import SITES, make, releases, sites

ROOT = Path(__file__).parents[2]


def score(client: int, params: dict) -> float:
    return float(np.exp(-8.0 * ((params["x"] - 0.4 - 0.02 * (client % 3)) ** 2 + (np.log10(params["y"]) + 1.0) ** 2)))


def asked_problem(n_clients: int = 4, objective="ask") -> pb.Problem:
    return pb.Problem(space=problem().space, objective=objective, n_clients=n_clients, name="bumps")


called_problem = partial(asked_problem, objective=score)
sites_problem, sites_asked_problem = partial(called_problem, 7), partial(asked_problem, 7)


def tell_all(site: pb.Site, value=lambda trial: score(trial.client, trial.params)) -> None:
    while trials := site.ask():
        for trial in trials:
            site.tell(trial, value(trial))


def evaluations(record: pb.Record):
    """Every client's points and values in order."""
    units, values = record.clients.units, record.clients.values
    return [np.column_stack([u, v])[np.isfinite(v)] for u, v in zip(units, values, strict=True)]


QUICKLY = {
    "dp-fts-de", "shared-prior", "fed-pne", "parallel", "pf-pne optimistic", "f-lcb", "scout", "shared-prior, vote",
    "f-lcb guardians",
}  # fmt: skip
EVERY = [
    pytest.param(case, trust, id=name, marks=() if name in QUICKLY else pytest.mark.slow)
    for trust, cases in (("server", [*CASES, *ALIKE, *VOTES]), ("guardians", CASES))
    for case in cases
    for name in [f"{case} {trust}".removesuffix(" server")]
]


@pytest.mark.parametrize(("case", "trust"), EVERY)
def test_points_are_those_of_respond_to_the_last_bit(case: Case, trust: str, tmp_path: Path) -> None:
    """Four clients that are asked and told one by one, against the same clients whose objective ``respond`` calls."""
    asked = {"privacy": case.privacy(trust=trust), "rounds": ROUNDS, "seed": 3, "final": case.final}
    expected = pb.run(called_problem(), case.algorithm, **asked)
    run = pb.start(asked_problem(), case.algorithm, directory=tmp_path / "run", **asked)
    tell_all(run.site)
    found = run.result()
    for ours, theirs in zip(evaluations(found), evaluations(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)  # cohorts pad clients that ask less often than others
    same_releases(found, expected)
    assert expected.releases
    assert found.common == expected.common
    assert found.best() == expected.best()


FAST = pb.FederatedFLCB()
PLAIN: dict = {"privacy": pb.Privacy(noise_multiplier=1.0, noise="simulation"), "rounds": 3, "seed": 5}


ALONE = Spec(name="asked", problem=asked_problem(), algorithm=FAST, privacy=PLAIN["privacy"], rounds=4)


def client_alone(folder: Path, patience: float | None) -> PendingTrials:
    """Client 1 of a run, as a process that starts anew makes it."""
    folder.mkdir(exist_ok=True)

    def made(clients, evaluate):
        return ALONE.cohort(ALONE.setting(5), clients=clients, evaluate=evaluate, seed=1)

    own = {"clients": np.array([1]), "made": made, "evaluate": ALONE.problem.evaluator()}
    return PendingTrials(**own, spec=ALONE, folder=folder, patience=patience)


def questions():
    """The first three rounds of a run; what was released does not matter."""
    server, found = ALONE.server(ALONE.setting(5)), []
    for number in range(3):
        ask = server.ask()
        found.append(ask.broadcast)
        server.tell(noise_release(ask, number))
    return found


@contextmanager
def people(*folders: Path):
    """Somebody at every folder, who evaluates its trials as long as the block lasts."""
    over = threading.Event()
    crowd = [threading.Thread(target=evaluate, args=(folder, over)) for folder in folders]
    for person in crowd:
        person.start()
    try:
        yield
    finally:
        over.set()
        for person in crowd:
            person.join()


def told(client: PendingTrials, rounds):
    """Answers of a client that is told everything at once."""
    with people(client.folder):
        return [client.answer(broadcast, 3) for broadcast in rounds]


def test_who_is_told_late_is_absent_and_then_goes_on_where_it_was(tmp_path: Path) -> None:
    """Round 0's trial waits through rounds 0 and 1, in processes that end, and is told before round 2 comes."""
    rounds, snapshot = questions(), {}
    for broadcast in rounds[:2]:
        client = client_alone(tmp_path / "late", 0.05)
        client.restore(snapshot)
        assert np.isnan(client.answer(broadcast, 3)).all()
        snapshot = client.snapshot()
        # The second round asks for nothing: the first one is not finished.
        assert len(client.journal.trials) == 1
    late, untroubled = client_alone(tmp_path / "late", None), client_alone(tmp_path / "whole", None)
    late.restore(snapshot)
    np.testing.assert_array_equal(told(late, rounds[2:])[0], told(untroubled, [rounds[0], rounds[2]])[1])
    np.testing.assert_array_equal(late.history().units, untroubled.history().units)
    assert not list((tmp_path / "late" / "asked").glob("000001*"))  # nothing waits for it


def test_clients_look_for_what_was_enqueued_while_others_ask(tmp_path: Path) -> None:
    """2,000 trials are looked through again and again while another client's thread asks for 50 more."""
    journal, errors, over = Journal(path=tmp_path / "trials.jsonl"), list[Exception](), threading.Event()
    journal.begin(np.arange(2), asked_problem().search_space, takes_points=True)
    some = np.zeros((2000, journal.space.n_dims))
    journal.ask(0, 0, 0, some)

    def look() -> None:
        try:
            while not over.is_set():
                journal.next_enqueued(1)
        except RuntimeError as error:
            errors.append(error)

    thread, interval = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for place in range(50):
            journal.ask(0, 1, place, some[:1])
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
    assert not errors


def test_a_failure_is_told_as_one_and_a_told_value_stands(tmp_path: Path) -> None:
    run = pb.start(asked_problem(2), FAST, directory=tmp_path / "run", **PLAIN)
    first, *_ = run.site.ask()
    assert run.site.ask()[0] == first  # the same until it is told
    run.site.report(first, 1, 0.3)
    run.site.report(first, 1, 0.5)  # in place of the first
    with pytest.raises(pb.ConfigurationError, match="step=-1 must be"):
        run.site.report(first, -1, 0.5)
    with pytest.raises(pb.ConfigurationError, match="one number"):
        run.site.tell(first, [1.0, 2.0])  # type: ignore[arg-type]  # several objectives are refused
    with pytest.raises(pb.ConfigurationError, match="tell a failure"):
        run.site.tell(first, float("nan"))
    with pytest.raises(pb.ConfigurationError, match="either a value or a failure"):
        run.site.tell(first)
    told = run.site.tell(first, failure="the furnace broke")
    assert (told.state, told.failure, told.steps) == ("failed", "the furnace broke", ((1, 0.5),))
    assert run.site.tell(first, failure="the furnace broke") == told  # a messenger that asks twice
    with pytest.raises(pb.RunError, match="stands"):
        run.site.tell(first, 0.5)
    with pytest.raises(pb.RunError, match="no trial 99"):
        run.site.tell(99, 0.5)
    tell_all(run.site)
    record = run.result()
    assert "furnace" in record.failures[first.client]
    table = pb.Site(tmp_path / "run").trials_dataframe()
    assert list(table.columns[:4]) == ["number", "client", "round", "value"]
    assert set(table["state"]) == {"COMPLETE", "FAIL"}
    assert table["params_x"].between(0.0, 1.0).all()
    assert not list((tmp_path / "run").glob("trials*"))  # the private side alone


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pb.RunError, match="no trial was asked"):
        pb.Site(tmp_path)
    with pytest.raises(pb.ConfigurationError, match=r"use privbo\.start"):  # it waited without a word
        pb.run(asked_problem(), FAST, directory=tmp_path / "run", **PLAIN)
    with pytest.raises(pb.ConfigurationError, match="no directory"):
        run_spec(Spec(problem=asked_problem(), algorithm=FAST, name="memory", **PLAIN), None)
    with pytest.raises(pb.ConfigurationError, match=r"use privbo\.run"):
        pb.start(called_problem(), FAST, directory=tmp_path / "run", **PLAIN)
    journal = Journal(path=tmp_path / TRIALS)
    journal.begin(np.array([0]), asked_problem().search_space, takes_points=False)
    journal.ask(0, 0, 0, np.array([[0.5, 0.5]]))
    with pytest.raises(pb.RunError, match="asked at"):
        journal.ask(0, 0, 0, np.array([[0.25, 0.5]]))
    with pytest.raises(pb.ConfigurationError, match="none can be enqueued"):
        journal.enqueue(0, {"x": 0.5, "y": 0.1})
    with pytest.raises(pb.RunError, match="another search space"):
        journal.begin(np.array([0]), pb.Space({"z": pb.Real(0, 1)}), takes_points=False)


def test_what_run_would_refuse_start_refuses_before_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is started twice, other settings of a resumed run, an executor that has nothing to do."""
    home = tmp_path / "run"
    tell_all(pb.start(asked_problem(), FAST, directory=home, **PLAIN).site)
    for settings, words in [
        ({}, "already holds a run"),
        ({"rounds": 4, "resume": True}, "made with rounds = 3"),
        ({"executor": "threads"}, "drop the executor"),
        ({"evaluation_seconds": 5.0}, "leave evaluation_seconds out"),
    ]:
        with pytest.raises((pb.RunError, pb.ConfigurationError), match=words):
            pb.start(asked_problem(), FAST, directory=home, **PLAIN | settings)
    with pytest.raises(pb.RunError, match="is a file; name another"):
        pb.start(asked_problem(), FAST, directory=home / "config.json", **PLAIN)
    monkeypatch.chdir(tmp_path)
    krebs = dataclasses.replace(asked_problem(), name="Krebs a/b")
    named = pb.start(krebs, privacy=PLAIN["privacy"], rounds=1)
    assert (named.directory.parent, named.directory.name[:10]) == (tmp_path / "runs", "Krebs-a-b-")
    named.site.ask()
    beside = pb.Site(Path("runs", named.directory.name))
    monkeypatch.chdir(home)  # wherever the program is by then
    tell_all(beside)
    tell_all(named.site)
    assert isinstance(named.result().spec.algorithm, pb.SharedPrior)


def test_a_cell_that_is_run_again_goes_on_with_the_session_that_plays(tmp_path: Path) -> None:
    first = pb.start(asked_problem(), FAST, directory=tmp_path, **PLAIN)
    assert first.site.ask()
    again = pb.start(asked_problem(), FAST, directory=tmp_path, resume=True, **PLAIN)
    assert again is first
    with pytest.raises(pb.RunError, match="an earlier session of this one, is at work here"):
        run_spec(pb.load(tmp_path).spec, tmp_path, resume=True)
    tell_all(again.site)
    ended = again.result()
    other = pb.start(asked_problem(), FAST, directory=tmp_path, resume=True, **PLAIN)
    assert other is not first
    assert other.result().ledger.head == ended.ledger.head


def test_a_client_that_is_not_here_is_refused_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    run = pb.start(asked_problem(2), pb.SharedPrior(n_features=8), directory=tmp_path / "run", **PLAIN)
    _, second, *_ = open_trials(tmp_path / "run", 2)
    for ask in (run.site.ask, run.site.trials, lambda client: app(["trials", str(tmp_path / "run"), "--client", "2"])):
        with pytest.raises(pb.ConfigurationError, match=r"client=2 is not here; those that are: \[0, 1\]"):
            ask(2)
    run.site.enqueue(np.int64(1), {"x": 0.5, "y": 0.1})
    number = run.site.trials_dataframe()["number"].iloc[0]
    with pytest.raises(pb.ConfigurationError, match="one number"):
        run.site.tell(number, 10**400)
    run.site.report(number, np.int64(1), np.float32(0.5))
    assert run.site.tell(number, np.float32(0.5)).steps == ((1, 0.5),)
    assert run.site.tell(second, failure=ValueError("burnt")).failure == "burnt"
    tell_all(run.site)
    assert run.result().best()
    with pytest.raises(pb.RunError, match="the run is over"):
        run.site.enqueue(1, {"x": 0.5, "y": 0.1})


def start(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "privbo.cli", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, start_new_session=True, text=True, **options)


def open_trials(home: Path, count: int, seconds: float = 60.0) -> tuple[Trial, ...]:
    """Trials that wait, once there are so many."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (home / "private" / TRIALS).exists() and len(found := pb.Site(home).ask(wait=0.0)) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError("nobody asked")


def test_killed_between_ask_and_tell_it_asks_the_same_and_ends_the_same(tmp_path: Path) -> None:
    """kill -9 while three trials wait; one of them is told while nothing runs."""
    space = X | {"y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True}}
    stated = {"objective": "ask", "n_clients": 3, "space": space}
    chosen = {"algorithm": {"type": "f-lcb"}, "privacy": {"noise_multiplier": 1.0, "noise": "simulation"}}
    (tmp_path / "lab.toml").write_text(toml(name="lab", seed=5, problem=stated, **chosen))
    home, quiet = tmp_path / "run", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = start("run", str(tmp_path / "lab.toml"), "--out", str(home), **quiet)
    before = open_trials(home, 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    site = pb.Site(home)
    site.tell(before[0], score(before[0].client, before[0].params))
    process = start("run", "--resume", str(home), **quiet)
    tell_all(site)
    assert process.wait(timeout=60) == 0
    found = pb.load(home)
    expected = pb.run(called_problem(3), FAST, **PLAIN, directory=tmp_path / "whole", name="lab")
    np.testing.assert_array_equal(found.clients.units, expected.clients.units)
    np.testing.assert_array_equal(found.clients.values, expected.clients.values)
    norms = [row["norm"] for row in read_lines(home / "history.jsonl") if row["released"]]
    assert norms == [float(np.linalg.norm(release.values)) for release in expected.releases]
    asked = site.trials()
    assert {trial.number: trial.unit for trial in before}.items() <= {t.number: t.unit for t in asked}.items()
    assert len({(trial.client, trial.round, trial.unit) for trial in asked}) == len(asked)


def test_somebody_types_numbers_until_the_run_is_over(tmp_path: Path) -> None:
    """The command line's own process, with a person at its standard input."""
    run = pb.start(asked_problem(3), FAST, directory=tmp_path / "run", **PLAIN)
    open_trials(tmp_path / "run", 3)
    typed = "".join(f"{line}\n" for line in ["soon", "0.5", "-0.25", "failed the oven was cold", *["0.75"] * 200])
    person = start("tell", str(tmp_path / "run"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said, _ = person.communicate(typed, timeout=120)
    assert person.returncode == 0
    assert "'soon' is no number" in said
    assert "x = 0." in said
    assert run.result().best()
    assert [trial.value for trial in run.site.trials()][:4] == [0.5, -0.25, None, 0.75]


def test_trials_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = pb.start(asked_problem(2), FAST, directory=tmp_path / "run", **PLAIN)
    open_trials(tmp_path / "run", 2)
    home = str(tmp_path / "run")

    def said(*arguments: str) -> str:
        app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    listed = json.loads(said("trials", home, "--client", "1", "--json"))["trials"]
    assert [(trial["client"], trial["state"]) for trial in listed] == [(1, "open")]
    assert "-0.5" in said("tell", home, str(listed[0]["number"]), "-0.5")
    assert "0.5" in said("trials", home, "--all")
    with pytest.raises(pb.ConfigurationError, match="--failed REASON"):
        said("tell", home, "1")
    with pytest.raises(pb.ConfigurationError, match="its number"):
        said("tell", home, "--failed", "broke")
    assert "failed: broke" in said("tell", home, "1" if listed[0]["number"] == 2 else "2", "--failed", "broke")
    tell_all(run.site)
    run.result()
    assert "the run is over" in said("trials", home)


@pytest.mark.parametrize("final", [None, pytest.param("common", marks=pytest.mark.slow)])
def test_a_federation_of_people_over_flower_finishes_and_every_site_knows(final: str | None, tmp_path: Path) -> None:
    """Every site's trials are told from outside; the numbers are those of the same sites with an objective."""
    table = {"type": "f-lcb"} if final is None else {"type": "dp-fts-de", "n_features": 12, "n_init": 2}
    called = make(tmp_path / "called", table, factory="tests.runs.test_asked:sites_problem", final=final)
    called.play()
    asked = make(tmp_path / "asked", table, factory="tests.runs.test_asked:sites_asked_problem", final=final)
    with people(*(asked.root / name / "kept" for name in SITES)):
        asked.play()
    same_releases(releases(asked), releases(called))
    for ours, theirs in zip(sites(asked), sites(called), strict=True):
        np.testing.assert_array_equal(ours["units"], theirs["units"])
    for name in asked.sites:
        site = pb.Site(asked.root / name / "kept")
        assert site.over
        assert site.ask() == ()  # it does not wait


def evaluate(folder: Path, over: threading.Event) -> None:
    while not over.is_set():
        try:
            for trial in pb.Site(folder).ask(wait=0.05):
                pb.Site(folder).tell(trial, score(trial.client, trial.params))
        except pb.RunError:
            time.sleep(0.02)  # the first round has not begun


def test_norms_of_clients_that_were_asked_can_be_published(tmp_path: Path) -> None:
    """Their last answers are made again from what is kept; nobody is asked anything."""
    secure = PLAIN | {"privacy": pb.Privacy(noise_multiplier=4.0)}
    run = pb.start(asked_problem(), FAST, directory=tmp_path / "run", **secure)
    tell_all(run.site)
    record, asked = run.result(), run.site.trials()
    with record.ledger as ledger:
        before = len(ledger.entries())
        publish_norms(record, noise_multiplier=8.0)
        assert len(ledger.entries()) == before + 1
    assert run.site.trials() == asked


def public_side(home: Path) -> dict[str, object]:
    """Names, sizes and dates of a run's public files, and its history but for heads, which follow the run's name."""
    files = {p.name: (p.stat().st_size, p.stat().st_mtime) for p in home.iterdir() if p.name != "private"}
    lines = [{k: v for k, v in row.items() if k != "head"} for row in read_lines(home / "history.jsonl")]
    return {"files": files, "history": lines}


def test_nothing_public_depends_on_what_is_told_in_which_order_or_whether_it_is(tmp_path: Path) -> None:
    """The clients' sum set to zero: values, failures, reports and the order of telling leave no other trace."""
    tellers = {
        "values": lambda trial: {"value": score(trial.client, trial.params)},
        "other values": lambda trial: {"value": 1e6 * trial.client},
        "failures": lambda trial: {"failure": "x" * 50},
    }
    found = {}
    for name, teller in tellers.items():
        run = pb.start(asked_problem(2), FAST, directory=tmp_path / name, name="lab", control="zeroed", **PLAIN)
        while trials := run.site.ask():
            for trial in trials if name == "values" else reversed(trials):
                run.site.report(trial, 1, float(trial.number))
                run.site.tell(trial, **teller(trial))
        run.result()
        found[name] = public_side(tmp_path / name)
    assert found["values"]["history"]
    assert found["values"] == found["other values"] == found["failures"]
