"""Whole runs with guardians in one process: every algorithm, resumed, reported, refused."""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
from contextlib import suppress

import numpy as np
import pytest

import privbo as pb
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Unit
from accountant.ledger import Ledger
from accountant.verify.auditor import verify_bundle
from privbo.audits.clipping import publish_norms
from privbo.door.clipping import clip_rows
from privbo.door.noise import SimulatedNoise
from privbo.door.payload import vet_rows
from privbo.door.shares import NoisySum, joined
from privbo.door.sums import lattice_sums
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_lines
from privbo.reports.bundle import write_bundle
from privbo.reports.report import report
from privbo.runs.in_process import in_process
from privbo.runs.loop import play
from privbo.runs.opening import open_run, plan_run
from privbo.runs.record import load
from tests.accountant.builders import policy
from tests.builders import play as played, spec, stopped
from tests.cli.test_cli import privbo, ran
from tests.conformance.cases import CASES, ROUNDS, VOTES, Case, problem
from tests.deployment.federations import Federation, releases
from tests.guardians.test_flower import NAMES, guarded
from tests.guardians.test_guardian import Silence, circle, committee as local_of, declared
from tests.runs.test_kills import cut, ended, forked


def spec_of(case: Case, **privacy):
    asked = case.privacy(**{"trust": "guardians", "noise": "simulation"} | privacy)
    return spec(problem(), case.algorithm, privacy=asked, rounds=ROUNDS, seed=3, final=case.final)


@pytest.mark.parametrize("case", [*CASES, *VOTES], ids=str)
def test_with_noise_off_sums_are_those_of_a_trusted_server_to_the_last_grid_unit(case: Case) -> None:
    """Every round of every algorithm, its vote included; the run itself goes on with noise."""
    compared = []

    def gather_of(manifest):
        plan = manifest.plan
        silent = {
            name: dataclasses.replace(each, mechanism=plan.mechanism, noise=Silence(0), ledger=unheld(plan))
            for name, each in circle().items()
        }
        coins = SimulatedNoise(1)
        rounds = local_of(silent, Silence(0))

        def gather(round_, mechanism, request, answers):
            found = rounds.gather(round_, mechanism, request, answers)
            rows = vet_rows(answers, n_clients=plan.n_clients, dim=request.dim)
            everybody = np.ones((1, plan.n_clients), dtype=bool)
            clipped = clip_rows(rows, mechanism.applied_bound)
            trusted = lattice_sums(request.weights, clipped, everybody, mechanism.grid_step())[0].ravel()
            compared.append((found.tolist(), trusted.tolist()))
            return found + coins.gaussian(found.shape, mechanism.grid_scale())

        return gather

    asked = spec_of(case)
    opened = open_run(asked, plan_run(asked), None, gather=gather_of)
    record = play(opened, in_process(opened.setup, None, asked.problem.evaluator(), None))
    assert len(compared) == len(record.releases)
    assert all(found == trusted for found, trusted in compared)


def unheld(plan):
    """A ledger that holds everything a plan releases, under the name of these tests' run."""
    own = policy(n_clients=plan.n_clients, unit=Unit(plan.unit), adjacency=plan.adjacency)
    book = Ledger.create(None, own)
    if plan.schedule:
        book.reserve(declared(events=plan.schedule))
    return lambda: contextlib.nullcontext(book)


def guarded_run(directory=None, **changes):
    privacy = pb.Privacy(**{"epsilon": 4.0, "trust": "guardians"} | changes.pop("privacy", {}))
    return played(problem(), pb.DPFTSDE(n_features=8, n_init=2), privacy=privacy, directory=directory, **changes)


def test_a_run_with_secure_noise_leaves_two_ledgers_beside_its_own_and_signed_receipts(tmp_path) -> None:
    record = guarded_run(tmp_path / "run")
    assert [release.round for release in record.releases] == [0, 1, 2]
    own = [entry.event for entry in record.ledger.entries()]
    for name in NAMES:
        with Ledger.open(tmp_path / "run/private/guardians" / name / "ledger.sqlite") as book:
            assert [entry.event for entry in book.entries()] == own
            assert book.guarantees
            assert book.verify().ok
    said = [(row["round"], row["guardian"]) for row in read_lines(tmp_path / "run/guardians.jsonl")]
    assert said == list(itertools.product(range(3), NAMES))
    assert verify_bundle(write_bundle(tmp_path / "run").path).verified  # of their signatures, too
    assert not list((tmp_path / "run/private").rglob("rounds/*.npz"))
    assert not (tmp_path / "run/private/clipping.jsonl").exists()  # nobody saw what clipping did
    assert load(tmp_path / "run").ledger.verify().ok


def test_a_server_whose_ledger_was_rolled_back_gets_the_first_answers_again(tmp_path) -> None:
    """The server forgets round 2 and everything that has seen it; its guardians do not."""
    stopped(1, guarded_run, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first = guarded_run(tmp_path / "run", resume=True)
    for name in NAMES:
        shutil.rmtree(tmp_path / "copy/private/guardians" / name)
        shutil.copytree(tmp_path / "run/private/guardians" / name, tmp_path / "copy/private/guardians" / name)
    again = guarded_run(tmp_path / "copy", resume=True)
    assert again.releases[2].values.tolist() == first.releases[2].values.tolist()


def test_a_guardian_whose_ledger_is_gone_stops_the_run_with_a_word(tmp_path) -> None:
    stopped(0, guarded_run, tmp_path / "run")
    for path in (tmp_path / "run/private/guardians/guardian2").glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(RunError, match="restore it from its newest copy"):
        guarded_run(tmp_path / "run", resume=True)


def test_other_guardians_than_those_of_the_beginning_are_refused(tmp_path) -> None:
    stopped(0, guarded_run, tmp_path / "run")
    (tmp_path / "run/private/guardians/guardian1/sealing.key").unlink()
    with pytest.raises(RunError, match=r"guardian1 differ"):
        guarded_run(tmp_path / "run", resume=True)
    (tmp_path / "run/guardians.json").unlink()  # replaced on purpose
    assert len(guarded_run(tmp_path / "run", resume=True).releases) == 3


def test_runs_on_one_population_share_the_guardians_ledgers_too(tmp_path) -> None:
    shared = pb.SharedLedger(path=str(tmp_path / "ward.sqlite"), population="ward", epsilon=5.0, delta=1e-5)
    guarded_run(tmp_path / "one", privacy={"epsilon": 3.0}, ledger=shared)
    for name in NAMES:
        with Ledger.open(tmp_path / f"ward.sqlite.{name}") as book:
            assert len(book.entries()) == 3
    with pytest.raises(BudgetExceeded):
        guarded_run(tmp_path / "two", privacy={"epsilon": 4.5}, ledger=shared)


def test_a_report_says_in_its_first_lines_who_had_to_be_trusted(tmp_path) -> None:
    found = report(guarded_run(tmp_path / "run"))
    assert [each.against for each in found.exposures] == ["coalition", "guardian", "outsiders"]
    assert found.exposures[0].epsilon == found.smallest_epsilon
    assert "one of 2 guardians is honest" in found.trust
    assert found.trust.endswith("its operator sees every vector")
    lines = privbo("report", tmp_path / "run").stdout.splitlines()
    assert lines[1].startswith("trust: no party has to be trusted with a vector")
    assert lines[2].strip().startswith("against the server with all guardians but one: epsilon")
    page = (tmp_path / "run/report.html").read_text()
    assert page.index("No party has to be trusted with a vector") < page.index("What an attacker gains")
    assert "against one guardian: epsilon" in privbo("ledger", "show", tmp_path / "run").stdout
    table = json.loads(privbo("report", tmp_path / "run", "--json").stdout)
    assert [row["unknown"] for row in table["exposures"]] == [1, 1, 2]


def test_what_needs_a_door_that_sees_vectors_is_refused(tmp_path) -> None:
    done = ran("audit", guarded_run(tmp_path / "audited").directory, ends=2)
    assert "no party knows which were clipped" in done.stderr
    with pytest.raises(ConfigurationError, match="in a run with trust='guardians', unit='client' none does"):
        publish_norms(guarded_run(tmp_path / "run"), noise_multiplier=4.0)


def test_a_scout_trusts_nobody_whom_its_run_does_not_trust() -> None:
    from privbo.cli.scout import scouting

    asked = dataclasses.replace(spec_of(CASES[0]), privacy=pb.Privacy(epsilon=2.0, trust="guardians", guardians=3))
    assert scouting(asked, epsilon=1.0, n_points=6).privacy == pb.Privacy(epsilon=1.0, trust="guardians", guardians=3)


# ---- server, sites and guardians killed with -9 at any moment: no round has two noises, and nothing left unpaid

KILLS = int(os.environ.get("PRIVBO_KILLS", "100"))
WATCHED = (
    "server/run/ledger.sqlite-wal",
    "server/run/guardians.jsonl",
    "server/run/history.jsonl",
    "server/run/private/transport.jsonl",
    *(f"{site}/kept/*/sent/*.npz" for site in ("north", "west")),
    *(f"{name}/kept/*/{file}" for name in NAMES for file in ("ledger.sqlite-wal", "rounds/*.json", "rounds/*.npz")),
)


def age(root, pattern: str) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(root.glob(pattern)):
        with suppress(OSError):
            stat = path.stat()
            found.append((path.name, stat.st_mtime_ns, stat.st_size))
    return found


def killed(federation: Federation, dice: random.Random) -> bool:
    """Plays on in a process of its own and kills it just after something was written; False if it ended before."""
    pattern = dice.choice(WATCHED)
    before = age(federation.root, pattern)
    process = forked(federation.play)
    while process.exitcode is None and age(federation.root, pattern) == before:
        process.join(0.001)
    process.join(dice.choice([0.0, 0.0, 0.002, 0.01, 0.05]))
    return cut(process)


def standing(federation: Federation) -> dict[str, bytes]:
    """Everything that may have left: guardians' answers and statements, sites' ciphertexts, the server's releases."""
    found = {}
    ledgers = [*federation.root.glob("guardian*/kept/*/ledger.sqlite"), federation.run.ledger_path]
    for path in ledgers:
        with suppress(LedgerError), Ledger.open(path) as book:
            charged = {entry.release_id for entry in book.entries()}
            for row in book.release_rows():
                assert row.release_id in charged
                found[f"{path}: {row.release_id}"] = row.body
    for pattern in ("*/kept/*/sent/*.npz", "guardian*/kept/*/rounds/*.json"):
        found |= {str(path): path.read_bytes() for path in federation.root.glob(pattern)}
    return found


@pytest.mark.slow
def test_a_hundred_kills_leave_one_noise_to_every_round_and_none_unpaid(tmp_path) -> None:
    dice, done, run, outputs = random.Random(22), 0, 0, 0
    while done < KILLS:
        federation = guarded(tmp_path / f"run-{run}", seed=None)
        seen: dict[str, bytes] = {}
        while killed(federation, dice) if done < KILLS else not ended(forked(federation.play)):
            done += 1
            now = standing(federation)
            assert {name: now.get(name) for name in seen} == seen  # what left once is there, the same
            seen = now
        final = standing(federation)
        assert {name: final.get(name) for name in seen} == seen
        check(federation)
        outputs += len(final)
        run += 1
    assert outputs > 10 * run


def check(federation: Federation) -> None:
    """Every release of the server is the sum of answers that each guardian has charged, and stored, once."""
    books = [Ledger.open(path) for path in sorted(federation.root.glob("guardian*/kept/federated-*/ledger.sqlite"))]
    with Ledger.open(federation.run.ledger_path) as server:
        for entry, release in zip(server.entries(), releases(federation), strict=True):
            parts = []
            for book in books:
                assert [each.event for each in book.entries() if each.release_id == entry.release_id] == [entry.event]
                parts.append(NoisySum.decode(book.stored_release(entry.release_id) or b""))
            total = joined([part.total for part in parts]).astype(float)
            scale = total / release.values.ravel()
            assert scale.max() == pytest.approx(
                scale.min(), rel=1e-12
            )  # the grid's step, and nothing else, between them
    for book in books:
        assert len(book.entries()) == len(book.release_rows())
        book.close()
    found = verify_bundle(write_bundle(federation.run.path).path)  # no signature of a release was lost
    assert found.verified, found.problems
