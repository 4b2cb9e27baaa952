"""Every opening makes the same check over all that stands on disk, before anything is drawn."""

import itertools
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from accountant.errors import LedgerError, PrivacyError
from accountant.ledger import Ledger
from accountant.ledger.pricing import odometer
from accountant.verify.auditor import verify_bundle
from privbo.cli.clients import own_points
from privbo.cli.ledger import verify
from privbo.cli.run import report_run
from privbo.comparisons.sweep import compare
from privbo.door.door import Door
from privbo.protocol.files import read_lines
from privbo.reports.bundle import write_bundle
from privbo.reports.report_page import document
from privbo.runs.manifest import RunDirectory
from privbo.runs.recovery import recover
from tests.builders import put_back
from tests.cli.test_cli import privbo
from tests.conformance.cases import CASES, Case, problem

ALGORITHM = pb.DPFTSDE(n_features=8)
ROUNDS = 4
PARTS = {
    "ledger": ("ledger.sqlite", "ledger.sqlite-wal"),
    "commits": ("ledger.sqlite.commits",),
    "history": ("history.jsonl",),
    "clients": ("private/clients-0.states",),
}


def play(home: Path, **settings) -> pb.Record:
    asked = {"privacy": pb.Privacy(epsilon=0.5), "rounds": ROUNDS, "seed": 1} | settings
    return pb.run(problem(), ALGORITHM, directory=home, **asked)


def copy(source: Path, target: Path, parts) -> None:
    """Put parts of one run in place of another's."""
    put_back(source, target, [name for part in parts for name in PARTS[part]])


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and a backup of all of it after its second round."""
    root = tmp_path_factory.mktemp("evidence")

    def backup(event: pb.Round) -> None:
        if event.index == 1:
            copy(root / "run", root / "old", tuple(PARTS))

    play(root / "run", on_round=backup).ledger.close()
    return root / "run", root / "old"


@pytest.fixture
def home(twice: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(twice[0], tmp_path / "run")


OPENINGS = {
    "resume": lambda home: play(home, resume=True),
    "load": pb.load,
    "report": report_run,
    "compare": lambda home: compare([home], data="private"),
    "audit": lambda home: pb.audit(pb.load(home)),
}


def images(home: Path) -> dict[str, object]:
    """Everything on disk; of the database its rows, because SQLite moves them between its own files."""
    found: dict[str, object] = {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and "sqlite" not in path.suffix
    }
    with closing(sqlite3.connect(home / "ledger.sqlite")) as connection:
        return found | {"rows": list(connection.iterdump())}


def refused_everywhere(home: Path, words: str) -> None:
    """No opening goes on, none changes a file, and verify says what disagrees."""
    before = images(home)
    for name, opening in OPENINGS.items():
        with pytest.raises(PrivacyError, match=words):
            opening(home)
        assert images(home) == before, name
    assert not verify(home).verified
    assert images(home) == before


OTHERS = [part for part in PARTS if part != "ledger"]
BEHIND = [some for count in range(1, len(PARTS)) for some in itertools.combinations(OTHERS, count)]
ROLLED_BACK = [("ledger",), *(("ledger", *others) for others in BEHIND if len(others) < len(OTHERS))]


@pytest.mark.parametrize("parts", ROLLED_BACK, ids="+".join)
def test_a_ledger_restored_from_a_backup_is_refused_by_every_opening_and_draws_nothing(parts, twice, home) -> None:
    copy(twice[1], home, parts)
    refused_everywhere(home, r"was committed and is gone|has seen row|holds no release of it")
    assert len(read_lines(home / "history.jsonl")) == (ROUNDS + 1 if "history" not in parts else 2)


@pytest.mark.parametrize("parts", BEHIND, ids="+".join)
def test_what_lags_behind_its_ledger_loses_nothing_and_draws_nothing_again(parts, twice, home) -> None:
    whole = read_lines(home / "history.jsonl")
    copy(twice[1], home, parts)
    head = pb.load(home).ledger.head
    assert play(home, resume=True).ledger.head == head
    assert read_lines(home / "history.jsonl") == whole


def edited(home: Path, edit) -> None:
    """Change config.json, and compute its own digest anew, as a forger would."""
    content = json.loads((home / "config.json").read_text())
    edit(content)
    digest = pb.Spec.from_dict(content["spec"]).digest()
    (home / "config.json").write_text(json.dumps(content | {"digest": digest}))


def quieter(content: dict) -> None:
    for part in content["plan"]["event"]["parts"]:
        part[0]["noise_multiplier"] *= 10


EDITS = {
    "a cheaper event": quieter,
    "a larger delta": lambda c: c["plan"].update(delta=0.3),
    "fewer releases": lambda c: c["plan"].update(releases=1),
    "another target": lambda c: c["spec"]["privacy"].update(epsilon=0.1),
    "another number of rounds": lambda c: c["spec"].update(rounds=2),
    "a caveat less": lambda c: c.update(caveat="all is well"),
    "another public seed": lambda c: c.update(public_seed=5),
    "another name": lambda c: c.update(run_id="other"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_configuration_is_not_what_the_ledger_binds(edit: str, home: Path) -> None:
    edited(home, EDITS[edit])
    for name in ("load", "report", "compare"):
        with pytest.raises(pb.RunError, match=r"config\.json is not what the run was made with|binds no plan"):
            OPENINGS[name](home)
    assert not verify(home).verified
    with pytest.raises(PrivacyError):
        play(home, resume=True)


def test_what_is_absent_is_named(home: Path) -> None:
    shutil.rmtree(home / "private")
    for reads in (write_bundle, own_points):  # which would sign with another key, and send to sites that never were
        with pytest.raises(pb.RunError, match=r"restore .* from a copy"):
            reads(home)
    found = verify(home)
    assert found.verified
    assert {"private/clients-0.states", "sites' records"} <= set(found.absent)
    (home / "history.jsonl").unlink()
    assert "history.jsonl" in verify(home).absent


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("clients-0.states", damaged, r"clients-0.states is damaged before its end"),
        ("clients-0.states", lambda path: path.write_bytes(b""), r"clients-0.states is damaged before its end"),
        ("clients-0.states", Path.unlink, r"lacks clients' states, and they have answered"),
        ("clients-0.states", lambda path: path.rename(path.with_name("clients-3.states")), "lacks clients' states"),
        ("../ledger.sqlite", Path.unlink, "ledger.sqlite is gone though clients have answered"),
        ("errors.jsonl", lambda path: path.write_text('{"client\n'), r"errors.jsonl can't be read"),
        ("seed.json", lambda path: path.write_text('{"seed": null}'), r"seed.json holds no seed"),
    ],
)
def test_a_file_that_is_gone_or_damaged_ends_a_resumed_run(name: str, spoil, words: str, home: Path) -> None:
    spoil(home / "private" / name)
    with pytest.raises(pb.RunError, match=rf"{words}.*; restore it from a copy"):
        play(home, resume=True)


def test_a_history_that_says_other_things_of_a_release_is_refused(home: Path) -> None:
    path = home / "history.jsonl"
    rows = read_lines(path)
    rows[1]["norm"] *= 1.5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused_everywhere(home, "what the ledger's stored release does not; restore that file from a copy")
    with pytest.raises(pb.RunError, match="nothing is uncertain"):
        recover(RunDirectory(home))


def test_a_run_that_was_cut_off_before_its_ledger_was_bound_begins_when_resumed(home: Path, tmp_path: Path) -> None:
    copy(tmp_path / "nothing", home, tuple(PARTS))
    with pytest.raises(LedgerError, match="no file"):
        pb.load(home)
    assert len(play(home, resume=True).releases) == ROUNDS


def test_the_plan_is_bound_before_the_first_release_and_every_head_binds_it(twice: tuple[Path, Path]) -> None:
    content = json.loads((twice[0] / "config.json").read_text())
    with Ledger.open(twice[0] / "ledger.sqlite") as ledger:
        book = ledger.book()
        first = book.reservations[0]
        assert (first.sequence, first.declared.run, first.declared.releases) == (1, content["run_id"], ROUNDS)
        assert (first.declared.settings, first.declared.stopping) == (content["digest"], "any time")
        assert book.entries[0].previous == first.digest


# ---- recovery: what a lost ledger leaves uncertain is paid for once more, and every view says so for ever


@pytest.fixture
def rolled_back(twice: tuple[Path, Path], home: Path) -> Path:
    """The run whose ledger and commit log are those of the backup."""
    copy(twice[1], home, ("ledger", "commits"))
    return home


@pytest.mark.parametrize("parts", ROLLED_BACK, ids="+".join)
def test_a_recovered_run_goes_on_and_pays_for_every_release_that_had_left(parts, twice, home) -> None:
    copy(twice[1], home, parts)
    old = read_lines(home / "history.jsonl")
    found = recover(RunDirectory(home))
    with pb.load(twice[0]).ledger as before, pb.load(home).ledger as after:
        left = {e.release_id for e in before.entries()} - {e.release_id for e in after.entries()}
        plan, recovery = after.book().reservations
        assert recovery.declared.releases == found.releases >= len(left) > 0
        assert set(after.book().left(plan.run)) == set(plan.declared.slots)
    record = play(home, resume=True)
    assert len(record.releases) == len(record.ledger.entries()) == ROUNDS
    assert read_lines(home / "history.jsonl")[: len(old)] == old  # evidence is only ever added to
    assert verify(home).verified


@pytest.mark.parametrize("parts", [("history",), ("clients",), ("commits",)], ids="+".join)
def test_rounds_that_were_released_again_after_all_was_put_back_are_charged_again(parts, twice, home) -> None:
    copy(twice[1], home, tuple(PARTS))
    play(home, resume=True).ledger.close()
    copy(twice[0], home, parts)
    with pytest.raises(PrivacyError):
        pb.load(home)
    found = recover(RunDirectory(home))
    assert found.releases >= ROUNDS - 2  # all that followed the backup
    assert found.lost > 0
    assert verify(home).verified


def test_a_recovery_beyond_the_policy_is_made_and_said(rolled_back: Path) -> None:
    edited(rolled_back, lambda content: content["spec"].update(policy={"epsilon": 0.6, "delta": 1e-5}))
    beyond = "beyond its policy: with what was recovered all runs come to epsilon 0."
    assert beyond in recover(RunDirectory(rolled_back)).text
    assert beyond in verify(rolled_back).text


def test_what_was_recovered_is_priced_by_an_odometer_and_said_in_every_view(rolled_back: Path) -> None:
    home = rolled_back
    assert recover(RunDirectory(home)).releases == ROUNDS - 2
    play(home, resume=True).ledger.close()
    record = pb.load(home)
    paid = record.ledger.committed()
    assert sum(count for _, count in paid.parts) == 2 * ROUNDS - 2
    expected = odometer([paid], record.delta, adjacency=record.plan.adjacency)
    assert record.epsilons() == {"odometer": expected}
    assert expected > record.plan.epsilon()["renyi"]
    found = report_run(home, write=False).report
    assert found.smallest_epsilon == found.guarantee.guaranteed == found.total.epsilon == expected
    assert "odometer" in found.guarantee.because
    assert "charged once more" in found.ledger.text
    assert "charged once more" in document(found).render()
    assert found.right_guess > 0.5
    checked = verify_bundle(write_bundle(home).path)
    assert checked.verified, checked.problems
    assert f"charges again {ROUNDS - 2} lost releases of" in " ".join(checked.statement)
    with pytest.raises(pb.RunError, match="nothing is uncertain"):
        recover(RunDirectory(home))


def test_a_recovery_names_its_price_and_charges_nobody_unasked(rolled_back: Path) -> None:
    refused = privbo("ledger", "recover", str(rolled_back))
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    with Ledger.open(rolled_back / "ledger.sqlite", recovering=True) as ledger:
        assert not ledger.book().paid_again
    price, total = (float(found) for found in re.findall(r"epsilon ([0-9.]+) at delta", refused.stderr))
    assert privbo("ledger", "recover", str(rolled_back), "--yes").returncode == 0
    assert price < pb.load(rolled_back).epsilon() == pytest.approx(total, rel=1e-3)


def test_a_second_loss_is_paid_for_again(rolled_back: Path, tmp_path: Path) -> None:
    home, backup = rolled_back, tmp_path / "backup"
    recover(RunDirectory(home))
    copy(home, backup, tuple(PARTS))
    play(home, resume=True).ledger.close()
    copy(backup, home, ("ledger", "commits"))
    with pytest.raises(pb.RunError, match="has seen row"):
        play(home, resume=True)
    recover(RunDirectory(home))
    record = play(home, resume=True)
    assert sum(count for _, count in record.ledger.committed().parts) == 3 * ROUNDS - 4
    assert verify(home).verified


def test_a_release_lost_twice_behind_its_standing_charge_is_paid_for_twice(tmp_path, monkeypatch) -> None:
    home, close = tmp_path / "run", Door.close

    def closed(*given):
        copy(home, tmp_path / "open", ("ledger", "commits"))
        return close(*given)

    monkeypatch.setattr(Door, "close", closed)
    play(home).ledger.close()
    for losses in (1, 2, 3):
        copy(tmp_path / "open", home, ("ledger", "commits"))
        with pytest.raises(pb.RunError, match="the ledger holds no release of it"):
            play(home, resume=True)
        recover(RunDirectory(home))
        with play(home, resume=True).ledger as ledger:
            assert sum(count for _, count in ledger.committed().parts) == ROUNDS + losses
        assert verify(home).verified


def test_a_ledger_that_lost_even_its_first_row_is_bound_again(home: Path, tmp_path: Path) -> None:
    with pb.load(home).ledger as ledger:
        policy = ledger.policy
    copy(tmp_path / "nothing", home, ("ledger", "commits"))
    Ledger.create(home / "ledger.sqlite", policy).close()
    with pytest.raises(pb.RunError, match="binds no plan"):
        play(home, resume=True)
    assert recover(RunDirectory(home)).releases == ROUNDS
    assert len(play(home, resume=True).releases) == ROUNDS
    assert verify(home).verified


# A scout has one release: nothing of it can be lost behind a backup that holds it.
@pytest.mark.parametrize("case", [case for case in CASES if case.name != "scout"], ids=str)
def test_clients_of_every_algorithm_answer_a_recovered_run(case: Case, tmp_path: Path) -> None:
    """Their state may be ahead of the rounds that are asked again."""
    home = tmp_path / "run"
    settings = {"privacy": case.privacy(noise="secure"), "rounds": 4, "seed": 1, "directory": home}

    def backup(event: pb.Round) -> None:
        if event.index == 0:
            copy(home, tmp_path / "old", tuple(PARTS))

    pb.run(problem(), case.algorithm, on_round=backup, **settings).ledger.close()
    copy(tmp_path / "old", home, ("ledger", "commits"))
    recover(RunDirectory(home))
    again = pb.run(problem(), case.algorithm, resume=True, **settings)
    assert all(np.isfinite(release.values).all() for release in again.releases)
    assert verify(home).verified
