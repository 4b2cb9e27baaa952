"""Recovery: what a lost ledger leaves uncertain is paid for once more, and every view says so for ever."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from accountant.ledger import Ledger
from accountant.ledger.pricing import odometer
from accountant.verify.auditor import verify_bundle
from privbo.cli.ledger import verify
from privbo.cli.run import report_run
from privbo.protocol.files import read_lines
from privbo.reports.bundle import write_bundle
from privbo.reports.report_page import document
from privbo.runs.manifest import RunDirectory
from privbo.runs.recovery import recover
from tests.cli.test_cli import privbo
from tests.conformance.cases import CASES, Case, problem
from tests.runs.test_evidence import PARTS, ROLLED_BACK, ROUNDS, copy, play, twice  # noqa: F401 (a fixture)


def rolled_back(twice: tuple[Path, Path], home: Path, parts: tuple[str, ...]) -> Path:  # noqa: F811 (a fixture)
    shutil.copytree(twice[0], home)
    copy(twice[1], home, parts)
    return home


@pytest.mark.parametrize("parts", ROLLED_BACK, ids="+".join)
def test_a_recovered_run_goes_on_and_pays_for_every_release_that_had_left(
    parts: tuple[str, ...],
    twice: tuple[Path, Path],  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    home = rolled_back(twice, tmp_path / "run", parts)
    old = read_lines(home / "history.jsonl")
    found = recover(RunDirectory(home))
    with pb.load(twice[0]).ledger as before, pb.load(home).ledger as after:
        left = {e.release_id for e in before.entries()} - {e.release_id for e in after.entries()}
        plan, recovery = after.book().reservations
        assert recovery.declared.releases == found.releases >= len(left) > 0
        assert set(after.book().left(plan.run)) == set(plan.declared.slots)
    record = play(home, resume=True)
    assert len(record.releases) == ROUNDS
    assert len(record.ledger.entries()) == ROUNDS
    assert read_lines(home / "history.jsonl")[: len(old)] == old  # evidence is only ever added to
    assert verify(home).verified


def test_what_was_recovered_is_priced_by_an_odometer_and_said_in_every_view(
    twice: tuple[Path, Path],  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    home = rolled_back(twice, tmp_path / "run", ("ledger", "commits"))
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


def test_a_recovery_names_its_price_and_charges_nobody_unasked(
    twice: tuple[Path, Path],  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    home = rolled_back(twice, tmp_path / "run", ("ledger", "commits"))
    refused = privbo("ledger", "recover", str(home))
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    with Ledger.open(home / "ledger.sqlite", recovering=True) as ledger:
        assert not ledger.book().paid_again
    price, total = (float(found) for found in re.findall(r"epsilon ([0-9.]+) at delta", refused.stderr))
    assert privbo("ledger", "recover", str(home), "--yes").returncode == 0
    assert price < pb.load(home).epsilon() == pytest.approx(total, rel=1e-3)


def test_a_second_loss_is_paid_for_again(twice: tuple[Path, Path], tmp_path: Path) -> None:  # noqa: F811 (a fixture)
    home = rolled_back(twice, tmp_path / "run", ("ledger", "commits"))
    recover(RunDirectory(home))
    backup = tmp_path / "backup"
    copy(home, backup, tuple(PARTS))
    play(home, resume=True).ledger.close()
    copy(backup, home, ("ledger", "commits"))
    with pytest.raises(pb.RunError, match="has seen row"):
        play(home, resume=True)
    recover(RunDirectory(home))
    record = play(home, resume=True)
    assert sum(count for _, count in record.ledger.committed().parts) == 3 * ROUNDS - 4
    assert verify(home).verified


def test_a_ledger_that_lost_even_its_first_row_is_bound_again(
    twice: tuple[Path, Path],  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    from accountant.ledger import Ledger

    home = tmp_path / "run"
    shutil.copytree(twice[0], home)
    with pb.load(home).ledger as ledger:
        policy = ledger.policy
    for name in (*PARTS["ledger"], *PARTS["commits"]):
        (home / name).unlink(missing_ok=True)
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
