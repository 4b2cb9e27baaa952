"""The loop, the result and the ledgers a run charges."""

import builtins
import dataclasses
import json
import os
import pickle
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from accountant.errors import LedgerError
from accountant.ledger import Budget
from accountant.verify.auditor import verify_bundle
from privbo.protocol.errors import RunError
from privbo.protocol.files import alone
from privbo.reports.bundle import write_bundle
from privbo.reports.diagnostics import diagnostics
from privbo.reports.report import report
from privbo.reports.report_page import document
from privbo.runs.clients import LocalWorker, WorkerTask
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory, derive_seed
from privbo.runs.record import Round, progress_bar
from privbo.runs.spec import Spec
from tests.builders import problem as flat_problem, stopped
from tests.conformance.cases import problem
from tests.deployment.federations import make

ALGORITHM = pb.DPFTSDE(n_features=8)
SIMULATED = pb.Privacy(noise_multiplier=2.0, noise="simulation")


def play(**settings) -> pb.Record:
    return pb.run(problem(), ALGORITHM, **{"privacy": SIMULATED, "rounds": 2, "seed": 1} | settings)


def test_result_answers_what_its_users_ask(tmp_path: Path) -> None:
    result = pb.run(problem(), ALGORITHM, privacy=pb.Privacy(epsilon=2.0), rounds=2, directory=tmp_path / "run")
    assert result.epsilon() == pytest.approx(2.0, abs=1e-3)
    assert result.epsilon() <= 2.0
    assert result.epsilon(1e-6) > result.epsilon(1e-5) == result.epsilon()
    assert result.epsilon(accountant="moments") > result.epsilon()
    with pytest.raises(pb.ConfigurationError, match="accountant='magic'"):
        result.epsilon(accountant="magic")
    best = result.best(client=3)
    assert best.value == np.nanmax(result.clients.values[3])
    assert best.params.keys() == {"x", "y"}
    with pytest.raises(pb.RunError, match="not registered"):
        result.best(client=99)
    assert pb.write_report(result, tmp_path / "page.html").read_text().startswith("<!doctype html>")
    private = RunDirectory(tmp_path / "run").private
    assert "PRIVATE" in (private / "README.txt").read_text()
    assert private.stat().st_mode & 0o077 == 0
    again = pb.load(tmp_path / "run")
    assert again.best(client=3) == best
    assert again.epsilon() == result.epsilon()
    assert again.ledger.head == result.ledger.head
    assert {entry.noise_source for entry in again.ledger.entries()} == {"secure"}


def test_no_clients_failure_changes_the_public_course_and_its_first_error_is_stored(tmp_path, capfd, caplog) -> None:
    def objective(client: int, params: dict) -> float:
        if client == 4:
            raise SystemExit("no data at clinic 4")
        return -1.7e308 if client == 5 else params["x"]

    shaky = pb.Problem(space=problem().space, objective=objective, n_clients=7, name="shaky")
    for algorithm in (ALGORITHM, pb.FedPNE(horizon=200, c=0.02, release_when="always"), pb.FederatedFLCB()):
        home = tmp_path / type(algorithm).__name__
        made = pb.run(shaky, algorithm, privacy=SIMULATED, rounds=2, seed=1, directory=home)
        assert len(made.releases) == made.plan.releases
        assert sum("clinic 4" in record.message for record in caplog.records) == 1
        caplog.clear()
        pb.write_report(made)
        for record in (made, pb.load(home)):
            with pytest.raises(pb.RunError, match="no finite value: SystemExit: no data at clinic 4"):
                record.best(client=4)
            assert list(record.failures) == [4, 5]
        assert diagnostics(RunDirectory(home)).first_errors == made.failures
        assert not [path for path in home.iterdir() if path.is_file() and b"clinic" in path.read_bytes()]
    assert "clinic" not in "".join(capfd.readouterr())


def test_no_public_artefact_tells_a_time_of_day(tmp_path: Path) -> None:
    def objective(client: int, params: dict) -> float:
        time.sleep(0.003 if client == 2 else 0.0)
        return params["x"]

    slow = pb.Problem(space=problem().space, objective=objective, n_clients=7, name="slow")
    made = pb.run(slow, ALGORITHM, privacy=pb.Privacy(epsilon=2.0), rounds=3, directory=tmp_path / "run")
    assert {entry.time for entry in made.ledger.entries()} == {made.manifest.created}
    made.ledger.close()
    pb.write_report(pb.load(tmp_path / "run"), tmp_path / "run" / "report.html")
    RunDirectory(tmp_path / "run").settle(made.manifest.created)
    public = [path for path in (tmp_path / "run").iterdir() if path.name != "private"]
    assert {path.name for path in public} >= {"config.json", "ledger.sqlite", "history.jsonl", "report.html"}
    for path in public:
        assert not re.search(made.manifest.created.encode() + b"[T ][0-9]", path.read_bytes()), path
        assert path.stat().st_mtime % 86400 == 0, path


def test_a_run_is_played_by_one_program_at_a_time_and_read_by_any(tmp_path: Path) -> None:
    play = partial(pb.run, problem(), ALGORITHM, privacy=pb.Privacy(epsilon=2.0), rounds=2, rehearse=False)
    served, words = make(tmp_path / "served"), "another program, or an earlier session of this one, is at work here"
    for home, begun in {
        tmp_path / "run": partial(play, directory=tmp_path / "run"),
        served.run.path: served.play,
    }.items():
        with alone(home / "private", wait=False), pytest.raises(pb.RunError, match=words):
            begun()
        assert not (home / "config.json").exists()

    def on_round(event: pb.Round) -> None:
        with pytest.raises(pb.RunError, match=words):
            play(directory=tmp_path / "run", resume=True)
        pb.load(tmp_path / "run").ledger.close()

    made = play(directory=tmp_path / "run", on_round=on_round)
    assert play(directory=tmp_path / "run", resume=True).ledger.head == made.ledger.head


def test_an_error_that_is_kept_keeps_no_ledger_open(tmp_path: Path) -> None:
    def interrupt(_: pb.Round) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as kept:
        pb.run(problem(), ALGORITHM, privacy=pb.Privacy(epsilon=2.0), rounds=2, directory=tmp_path, on_round=interrupt)
    assert kept.traceback
    assert (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "ledger.sqlite-wal").exists()


def test_a_runs_default_directory_tells_the_day_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    homes = [pb.run(problem(), ALGORITHM, privacy=pb.Privacy(epsilon=2.0), rounds=1).home.path for _ in range(2)]
    assert all((home / "ledger.sqlite").exists() for home in homes)
    assert play().directory is None  # a simulation needs none
    names = [home.name for home in homes]
    assert all(re.fullmatch(r"bumps-[0-9]{8}-[0-9a-f]{6}", name) for name in names)
    assert len(set(names)) == 2


@pytest.mark.parametrize("noise", ["secure", "exact"])
def test_a_private_run_without_a_place_for_its_ledger_is_refused(noise) -> None:
    spec = dataclasses.replace(play().spec, privacy=dataclasses.replace(SIMULATED, noise=noise))
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledger"):
        run_spec(spec, None)


def test_a_record_is_opened_again_elsewhere_and_an_unfinished_one_says_so(tmp_path, monkeypatch) -> None:
    stopped(1, play, directory=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"is not finished; go on with it first: privbo\.run"):
        pb.load("run").best()
    play(directory="run", resume=True).ledger.close()
    record = pb.load("run")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(record)).best() == pb.load(tmp_path / "run").best()  # noqa: S301 (our own)
    with pytest.raises(RunError, match="give it one"):
        pickle.dumps(play())
    with ThreadPoolExecutor(1) as pool, pytest.raises(LedgerError, match=r"another thread's; privbo\.load"):
        pool.submit(record.epsilon).result()


@pytest.mark.parametrize("algorithm", [pb.MultiTask(release_when="always"), pb.FederatedFLCB()])
def test_what_an_objective_changes_for_the_whole_process_is_put_back(algorithm, tmp_path, monkeypatch) -> None:
    """One record decided whether a run ended, by numbers that underflow, and where its files were sought."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    seen, of_records = set(), isinstance(algorithm, pb.MultiTask)

    def scores(client: int, params: dict) -> object:
        seen.add((np.geterr()["under"], Path.cwd()))
        np.seterr(all="ignore" if client else "raise")
        os.chdir("elsewhere")
        return [1e-170 * params["x"], *[0.0] * 8] if of_records else 1e-170 * params["x"]

    asked = flat_problem(3, objective=scores, n_records=[9] * 3 if of_records else None)
    of_one = {"unit": "record", "protects": "records"} if of_records else {}
    privacy = pb.Privacy(noise_multiplier=5.0, **of_one)
    with np.errstate(all="raise"):
        made = pb.run(asked, algorithm, privacy=privacy, rounds=3, directory=Path("run"))
        assert set(np.geterr().values()) == {"raise"}
    assert (seen, made.failures) == ({("raise", tmp_path)}, {})
    assert made.home.path == tmp_path / "run"


def test_what_clients_code_prints_at_any_time_of_a_run_goes_where_it_is_asked_for(tmp_path, capfd) -> None:
    """Their history is made once more at the end of a run, and a thread of theirs may be late; ``run`` leaves both."""

    def talking(worker: LocalWorker, task: WorkerTask) -> object:
        print("round" if task.broadcast else "history")
        return work(worker, task)

    work, spec = LocalWorker.work, Spec(name="x", problem=problem(), algorithm=ALGORITHM, privacy=SIMULATED, rounds=2)
    for output in (tmp_path / "output.txt", None):
        with mock.patch.object(LocalWorker, "work", talking):
            run_spec(spec, None, output=output, on_round=lambda _: print("between"))
        said = "".join(capfd.readouterr())
        assert set((said if output is None else output.read_text()).split()) == {"round", "history", "between"}
        assert output is None or not said


def test_a_run_is_not_resumed_with_its_parameters_in_another_order(tmp_path: Path) -> None:
    """Points are kept by place: in another order x's values would be handed out as y's."""
    play(directory=tmp_path / "run")
    turned = dataclasses.replace(problem(), space=dict(reversed(problem().search_space.parameters.items())))
    with pytest.raises(pb.RunError, match=r"space's order = 'x, y', now it is 'y, x'"):
        pb.run(turned, ALGORITHM, privacy=SIMULATED, rounds=2, seed=1, directory=tmp_path / "run", resume=True)


def test_simulation_says_so_everywhere() -> None:
    result = play()
    found = report(result)
    assert not found.has_secret_noise
    assert {entry.noise_source for entry in result.ledger.entries()} == {"simulation"}
    assert [entry.plan_position for entry in result.ledger.entries()] == [0, 1]
    assert "simulation, not a guarantee" in document(found).render()


def test_a_run_that_fits_its_budget_exactly_may_be_resumed(tmp_path: Path) -> None:
    """What is charged already counts once: the plan is not asked for again on top of it."""
    privacy = pb.Privacy(epsilon=2.0, noise="simulation")
    stopped(0, play, privacy=privacy, directory=tmp_path / "run")
    resumed = play(privacy=privacy, directory=tmp_path / "run", resume=True)
    assert len(resumed.ledger.entries()) == 2
    assert resumed.ledger.policy.budget == Budget(epsilon=2.0, delta=resumed.plan.delta)
    assert not resumed.ledger.check(resumed.ledger.event()).allowed  # twice the plan does not fit


def test_adaptive_clipping_moves_the_bound_within_the_same_price_and_resumes(tmp_path: Path) -> None:
    adaptive = pb.AdaptiveClipping(count_stddev=2.0, learning_rate=1.0)
    privacy = pb.Privacy(noise_multiplier=2.0, noise="simulation", adaptive_clipping=adaptive)
    fixed, moved = play(rounds=4), play(rounds=4, privacy=privacy)
    assert moved.epsilon() == fixed.epsilon()
    assert moved.ledger.event() == fixed.ledger.event()
    spread = [release.noise_stddev for release in moved.releases]
    assert len(set(spread)) > 1
    assert len({release.noise_stddev for release in fixed.releases}) == 1

    stopped(2, play, rounds=4, privacy=privacy, directory=tmp_path / "run")
    resumed = play(rounds=4, privacy=privacy, directory=tmp_path / "run", resume=True)
    assert [release.noise_stddev for release in resumed.releases] == spread


def test_exact_noise_runs(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    result = play(privacy=pb.Privacy(noise_multiplier=2.0, noise="exact"), directory=tmp_path / "run", rounds=1)
    assert {entry.noise_source for entry in result.ledger.entries()} == {"exact"}
    assert report(result).has_secret_noise


# ---- what a run keeps


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "does not exist"), ("[1]", "JSON object"), ("{", "not a JSON"),
     ('{"format": 1}', "make the run anew from its configuration"), ('{"format": 4}', "make the run anew")],
)  # fmt: skip
def test_what_is_no_run_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=words):
        pb.load(tmp_path)


# ---- progress at a terminal, in a log, and below a notebook's cell, where no widgets are installed


class ZMQInteractiveShell:
    """A notebook's shell, by the name that tells it."""


def played(label: str) -> None:
    with progress_bar(label, 4) as moved:
        for index in range(1, 5):
            moved(Round(index=index, release=None))


def test_below_a_notebooks_cell_one_line_counts_without_widgets(capsys: pytest.CaptureFixture[str]) -> None:
    module, handle = ModuleType("IPython.display"), mock.Mock()
    module.display = mock.Mock(return_value=handle)
    modules = {"IPython": ModuleType("IPython"), "IPython.display": module, "ipywidgets": None}
    shell = mock.patch.object(builtins, "get_ipython", ZMQInteractiveShell, create=True)
    with shell, mock.patch.dict(sys.modules, modules):
        played("ward\x1b[2J")
    calls = [*module.display.call_args_list, *handle.update.call_args_list]
    shown = [call.args[0]["text/plain"] for call in calls]
    assert [line.rpartition(" ")[2] for line in shown] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    assert [call.kwargs for call in calls] == [{"raw": True, "display_id": True}] + [{"raw": True}] * 4
    assert "\x1b" not in "".join(shown)
    assert capsys.readouterr().err == ""


def test_in_a_log_it_is_printed_once_and_without_times(capsys: pytest.CaptureFixture[str]) -> None:
    played("ward")
    said = capsys.readouterr().err
    assert "4/4" in said
    assert ":" not in said


# ---- a run that stands in ``stored_run`` as the first published format wrote it: every later version reads it

STORED = Path(__file__).with_name("stored_run")


def test_a_run_of_the_first_published_format_is_read_reported_and_bundled(tmp_path: Path) -> None:
    home = shutil.copytree(STORED, tmp_path / "run")
    (home / "private").mkdir()  # it is not stored here
    record = pb.load(home)
    with record.ledger:
        assert (record.spec.name, record.spec.rounds, record.plan.n_clients) == ("stored", 4, 5)
        assert record.spec.digest() == json.loads((STORED / "config.json").read_text())["digest"]
        assert 1.99 < record.epsilon() <= 2.0
        found = pb.report(record)
        assert found.ledger.verified
        assert found.releases == found.planned_releases == len(record.releases) == 2
        assert all(np.isfinite(release.values).all() for release in record.releases)
    checked = verify_bundle(write_bundle(home).path)
    assert checked.outcome == "VERIFIED", checked.problems


def test_streams_of_a_seed_differ() -> None:
    seeds = {derive_seed(root, stream) for root in (0, 1) for stream in ("public", "clients", "noise")}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
