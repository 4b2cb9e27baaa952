"""Killed with -9 at any moment, again and again: no round of any run ever has two outputs.

Processes are forks of this one, which has imported everything, so that hundreds can be killed.
``PRIVBO_KILLS`` says how many: 150 in process and 50 of a server with its sites take some minutes.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import privbo as pb
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, Event
from accountant.ledger import Ledger
from accountant.tight.numerical import epsilon
from privbo.cli.main import main
from privbo.cli.run import report_run
from privbo.flower.server import serve
from privbo.protocol.files import read_lines
from privbo.runs.in_process import in_process
from privbo.runs.loop import play
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import Run, open_run, plan_run
from privbo.runs.spec import Spec
from tests.builders import StoppedError, stopping
from tests.cli.test_cli import privbo, toml
from tests.conformance.cases import problem
from tests.deployment.federations import Federation, make
from tests.deployment.grid import LoopGrid
from tests.runs.test_asked import start

CRASH = partial(toml, privacy={"noise_multiplier": 2.0})
KILLS = int(os.environ.get("PRIVBO_KILLS", "20"))
SITES_KILLS = max(4, KILLS // 3)


@dataclass
class Outputs:
    """Everything that ever left: stored releases, what histories say of them, and what sites sent.

    Attributes:
        seen: By name, the bytes that were seen first.
        twice: Names of what had other bytes later.
    """

    seen: dict[str, bytes] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    def look(self, home: RunDirectory, *sites: Path) -> None:
        """Note what stands there now; what was seen earlier has to be there, and the same."""
        here = f"{home.path}: "
        now = {here + name: content for root in (home.path, *sites) for name, content in _standing(root, home)}
        earlier = {name: content for name, content in self.seen.items() if name.startswith(here)}
        self.twice += [name for name, content in earlier.items() if now.get(name) != content]
        self.seen = now | self.seen

    def follow(self, work, home: RunDirectory, kills: int, dice: random.Random, *sites: Path) -> int:
        """Begin some work anew until it comes to its end, killed so often at most; give how often it was."""
        done, stopped = 0, True
        while stopped:
            process = forked(work)
            stopped = killed(process, home.path, dice) if done < kills else not ended(process)
            self.look(home, *sites)
            done += stopped
        return done


def _standing(root: Path, home: RunDirectory):
    if root != home.path:
        yield from ((str(path), path.read_bytes()) for path in root.glob("*/sent/*.npz"))
        return
    with suppress(LedgerError), Ledger.open(home.ledger_path) as ledger:
        charged = {entry.release_id for entry in ledger.entries()}
        for row in ledger.release_rows():
            assert row.release_id in charged
            yield row.release_id, row.body
    for line in read_lines(home.history_path):
        yield f"history of round {line['round']}", repr(sorted(line.items())).encode()


def forked(work) -> multiprocessing.process.BaseProcess:
    """A process of its own that does some work in silence, and ends with 0 if all went well."""

    def quiet() -> None:
        os.setsid()
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
        work()

    process = multiprocessing.get_context("fork").Process(target=quiet)
    process.start()
    return process


MOMENTS = ("ledger.sqlite-wal", "private/clients-0.states", "private/transport.jsonl", "history.jsonl")
"""What is written after a charge or a release, after clients or sites have answered, and after a round."""


def killed(process: multiprocessing.process.BaseProcess, home: Path, dice: random.Random) -> bool:
    """Kill a process just after it has written something, or at any time; False if it had ended well before."""
    watched = home / dice.choice(MOMENTS)
    before = _age(watched)
    if dice.random() < 0.2:
        process.join(dice.uniform(0.02, 1.2))
    else:
        while process.exitcode is None and _age(watched) == before:
            process.join(0.002)
        process.join(dice.uniform(0.0, 0.1))
    return cut(process)


def cut(process: multiprocessing.process.BaseProcess) -> bool:
    """Kill a process; False if it had ended well before."""
    if process.exitcode is None:
        process.kill()
        process.join()
        return True
    return not ended(process)


def _age(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        return path.stat().st_mtime_ns, path.stat().st_size
    return None


def ended(process: multiprocessing.process.BaseProcess) -> bool:
    """Wait for a process that ends well."""
    process.join()
    assert process.exitcode == 0, process.exitcode
    return True


def begin(config: Path, home: RunDirectory) -> None:
    """Run what a configuration says, or go on with it."""
    asked = ["--resume"] if home.config_path.exists() else [str(config), "--out"]
    sys.argv = ["privbo", "run", *asked, str(home.path)]
    main()


def played(folder: Path, kills: int, dice: random.Random) -> tuple[Outputs, int, int]:
    """Runs one after the other, killed so often in all: what left, kills, and runs that came to their end."""
    outputs, done, finished = Outputs(), 0, 0
    (folder / "crash.toml").write_text(CRASH(rounds=12))
    while done < kills:
        home = RunDirectory(folder / f"run-{finished}")
        done += outputs.follow(partial(begin, folder / "crash.toml", home), home, kills - done, dice)
        broadcasts = [row["sequence"] for row in read_lines(home.history_path) if row["released"]]
        with Ledger.open(home.ledger_path) as ledger:
            assert ledger.verify().ok
            assert len(ledger.release_rows()) == len(ledger.entries()) == 12
            assert broadcasts == [entry.sequence for entry in ledger.entries()]  # none is unpaid, none paid twice
        found = report_run(home.path, write=False).report
        assert found.releases == found.planned_releases == 12
        assert found.ledger.verified
        finished += 1
    return outputs, done, finished


@pytest.mark.parametrize(
    "wanted", [pytest.param(5, marks=pytest.mark.long), pytest.param(KILLS, marks=pytest.mark.slow)]
)
def test_no_round_of_a_run_killed_at_any_moment_has_two_outputs(wanted: int, tmp_path: Path) -> None:
    outputs, kills, finished = played(tmp_path, wanted, random.Random(1))
    assert outputs.twice == []
    assert kills == wanted
    print(f"{kills} kills in process, {finished} runs finished, {len(outputs.seen)} outputs, none twice")


@pytest.mark.slow
def test_no_round_of_a_federation_killed_at_any_moment_has_two_outputs(tmp_path: Path) -> None:
    """Server and sites, over the bytes of Flower's wire, die together at any moment and go on from their disks."""
    dice, outputs, kills, finished = random.Random(2), Outputs(), 0, 0
    while kills < SITES_KILLS:
        federation = make(tmp_path / str(finished), "dp-fts-de", rounds=8, privacy={"noise_multiplier": 4.0}, seed=None)
        folders = [federation.root / site / "kept" for site in federation.sites]
        kills += outputs.follow(partial(play_over, federation), federation.run, SITES_KILLS - kills, dice, *folders)
        with Ledger.open(federation.run.ledger_path) as ledger:
            assert ledger.verify().ok
            assert len(ledger.release_rows()) == len(ledger.entries()) == 8
        finished += 1
    assert outputs.twice == []
    print(
        f"{kills} kills of a server with its sites, {finished} runs finished, {len(outputs.seen)} outputs, none twice"
    )


def play_over(federation: Federation) -> None:
    serve(LoopGrid(federation.nodes()), federation.home, federation.run)


def test_a_round_that_is_drawn_again_is_betrayed(tmp_path: Path) -> None:
    """Planted: everything is restored from a copy made in the middle of a run, which goes on."""
    outputs, home = Outputs(), RunDirectory(tmp_path / "run")
    run = partial(pb.run, problem(), pb.DPFTSDE(n_features=8), directory=home.path)
    settings = {"privacy": pb.Privacy(noise_multiplier=2.0), "rounds": 3}

    def copied(event: pb.Round) -> None:
        if event.index == 0:
            shutil.copytree(home.path, tmp_path / "copy")

    run(on_round=copied, **settings).ledger.close()
    outputs.look(home)
    shutil.rmtree(home.path)
    shutil.copytree(tmp_path / "copy", home.path)
    run(resume=True, **settings).ledger.close()
    outputs.look(home)
    assert any("history of round" in name for name in outputs.twice)
    assert any("history" not in name for name in outputs.twice)


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    (tmp_path / "crash.toml").write_text(CRASH(rounds=60))
    home, pipes = tmp_path / "run", {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start("run", str(tmp_path / "crash.toml"), "--out", str(home), **pipes)
    deadline = time.monotonic() + 60
    while not read_lines(home / "history.jsonl"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    with pb.load(home).ledger as ledger:
        assert 0 < len(ledger.entries()) < 60
        assert ledger.verify().ok


# ---- runs that stop early give nothing back: their total holds their plans, not what happened to be released

RUNS, PLANNED, MADE, DELTA = 4, 4, 2, 1e-5
PLANS, RELEASES = 2.155, 1.4652


def opened(shared: pb.SharedLedger, home: Path) -> Run:
    algorithm = pb.FedPNE(horizon=400, c=0.02, releases=PLANNED, release_when="always")
    privacy = pb.Privacy(noise_multiplier=7.460263403993197, delta=DELTA)
    spec = Spec(name="four", problem=problem(), algorithm=algorithm, privacy=privacy, rounds=8, ledger=shared)
    plan = plan_run(spec)
    assert plan.releases == PLANNED
    return open_run(spec, plan, RunDirectory(home))


def stopped(run: Run) -> None:
    evaluate = problem().evaluator()
    with pytest.raises(StoppedError), run.record.ledger:
        play(run, in_process(run.setup, run.record.home, evaluate, None), stopping(MADE - 1))


def all_stopped(root: Path, *, together: bool = False, **bound) -> pb.SharedLedger:
    """Runs that stop early on one ledger, one after another or declared together."""
    shared = pb.SharedLedger(path=str(root / "people.sqlite"), population="ward", **bound)
    runs = (opened(shared, root / str(number)) for number in range(RUNS))
    for run in list(runs) if together else runs:
        stopped(run)
    return shared


def price(event: Event) -> float:
    return epsilon(event, DELTA, adjacency=Adjacency.ZERO_OUT)


GAUSSIAN = {"epsilon": 2.2, "delta": DELTA, "rule": "gaussian"}


@pytest.mark.parametrize(
    ("settings", "most", "rule"),
    [
        ({"together": True}, PLANS, "declared before the first release of any"),
        (GAUSSIAN, 2.2, "kept since its creation"),
        ({"epsilon": 4.0, "delta": DELTA, "rule": "renyi"}, 4.0, "kept since its creation"),
        ({}, 4.0, "an odometer"),
    ],
    ids=["together", "gaussian filter", "Rényi filter", "odometer"],
)
def test_the_total_of_runs_that_stopped_early_is_that_of_their_plans(settings, most, rule, tmp_path) -> None:
    all_stopped(tmp_path, **settings)
    with Ledger.open(tmp_path / "people.sqlite") as ledger:
        assert len(ledger.entries()) == RUNS * MADE
        assert price(ledger.event()) == pytest.approx(RELEASES, abs=1e-3)  # what was printed
        assert price(ledger.committed()) == pytest.approx(PLANS, abs=1e-3)
    for number in (0, RUNS - 1):
        found = json.loads(privbo("report", str(tmp_path / str(number)), "--json").stdout)["total"]
        assert PLANS - 1e-3 <= found["epsilon"] <= most + 1e-3
        assert rule in found["rule"]
        assert (found["releases"], found["runs"], found["delta"]) == (RUNS * PLANNED, RUNS, DELTA)


def test_what_stopped_runs_left_over_does_not_come_back(tmp_path: Path) -> None:
    """The four plans fit a bound of 2.2 and a fifth does not, though of sixteen slots eight were used."""
    shared = all_stopped(tmp_path, **GAUSSIAN)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        opened(shared, tmp_path / "fifth")
    run_id = RunDirectory(tmp_path / "0").manifest().run_id
    with Ledger.open(tmp_path / "people.sqlite") as ledger:  # what is left may still be spent by the run itself
        assert sum(ledger.book().left(run_id).values()) == PLANNED - MADE
