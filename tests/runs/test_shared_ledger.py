"""Runs one after another on the same people: what five of them cost together fits a bound half a percent above it."""

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import pytest

import accountant
import privbo as pb
from accountant.errors import BudgetExceeded, LedgerError, PrivacyError
from accountant.ledger import Ledger
from accountant.ledger.pricing import Left, total
from accountant.verify.auditor import verify_bundle
from accountant.wording import upper_text
from privbo.cli.ledger import left as left_of_path
from privbo.cli.main import app
from privbo.cli.terminal import render
from privbo.comparisons.sweep import run_sweep
from privbo.comparisons.sweep_file import read_sweep
from privbo.plans.cost import guarantee
from privbo.reports.bundle import write_bundle
from privbo.reports.report import ledger_view, report
from privbo.reports.report_page import document, statement
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.spec import read_spec
from tests.builders import stopped
from tests.cli.test_cli import toml
from tests.comparisons.test_compare import PRIVATE
from tests.conformance.cases import problem

RUNS, ROUNDS, DELTA = 5, 20, 1e-5
EVERYONE = 10.85  # 100 releases to everybody cost 3.98 at delta 1e-5
SAMPLED = 0.936156  # 100 releases at rate .1 cost 8.00
"""Noise multipliers of the two cases; under the Rényi rule of an older ledger they are refused at 4.31 and 10.96."""


def play(shared: pb.SharedLedger, home: Path, *, rehearse: bool = True, **privacy) -> None:
    settings = {"privacy": pb.Privacy(**privacy, delta=DELTA), "rounds": ROUNDS, "ledger": shared, "directory": home}
    pb.run(problem(), pb.FederatedFLCB(), rehearse=rehearse, **settings).ledger.close()


def ledger_of(home: Path, **settings) -> pb.SharedLedger:
    return pb.SharedLedger(path=str(home / "people.sqlite"), population="ward", delta=DELTA, **settings)


def test_five_runs_without_sampling_fit_their_exact_price(tmp_path: Path) -> None:
    exact = accountant.epsilon(noise_multiplier=EVERYONE, rounds=RUNS * ROUNDS, delta=DELTA, adjacency="zero-out")
    shared = ledger_of(tmp_path, epsilon=1.0001 * exact)
    for number in range(RUNS):
        play(shared, tmp_path / str(number), noise_multiplier=EVERYONE)
    record = pb.load(tmp_path / "0")
    assert record.ledger.policy.budget.rule == "gaussian"
    assert record.ledger.check(accountant.Composed()).spent == pytest.approx(exact, rel=1e-9)
    for delta in (DELTA, 1e-7):
        everybody = total(record.ledger.book(), delta)
        bound = record.ledger.policy.budget.epsilon if delta == DELTA else math.inf
        priced = accountant.epsilon(noise_multiplier=EVERYONE, rounds=100, delta=delta, adjacency="zero-out")
        assert priced <= everybody.epsilon <= min(bound, 1.001 * priced)
        assert everybody.rule.endswith("kept since its creation (exact where all clients take part)")
    with pytest.raises(BudgetExceeded, match="over the budget"):
        play(shared, tmp_path / "more", noise_multiplier=EVERYONE)
    record.ledger.close()


def test_five_runs_with_secret_samples_fit_the_slots_that_were_reserved_for_them(tmp_path: Path) -> None:
    plan = {"noise_multiplier": SAMPLED, "sample_rate": 0.1}
    tight = accountant.epsilon(**plan, rounds=RUNS * ROUNDS, delta=DELTA, adjacency="zero-out")
    releases = [pb.DeclaredReleases(count=RUNS * ROUNDS, **plan)]
    shared = ledger_of(tmp_path, epsilon=1.0001 * tight, rule="envelope", releases=releases)
    for number in range(RUNS):
        quieter = {"noise_multiplier": SAMPLED * (1.0 + number), "sample_rate": 0.1 / (1.0 + number)}
        play(shared, tmp_path / str(number), **quieter)
    record = pb.load(tmp_path / "0")
    assert record.ledger.check(accountant.Composed()).spent == tight
    everybody = total(record.ledger.book(), DELTA)
    assert everybody.epsilon == tight
    assert everybody.rule.endswith("kept since its creation (slots reserved and priced tightly together; free: none)")
    found = report(record)  # the run alone costs less, at the plan's own price
    assert found.guarantee.guaranteed == found.smallest_epsilon < tight
    off_plan = record.ledger.entries(record.run_id)[1:]
    left = guarantee(off_plan, record.ledger.policy, plan=record.plan.event, delta=1e-6)
    slots = accountant.epsilon(**plan, rounds=RUNS * ROUNDS, delta=1e-6, adjacency="zero-out")
    assert (left.guaranteed, left.because) == (slots, "every charge passed the ledger's filter (Envelope)")
    with pytest.raises(BudgetExceeded, match=r"free: none.*no data was touched"):
        play(shared, tmp_path / "more", noise_multiplier=50.0, sample_rate=0.01)
    record.ledger.close()


def test_a_plan_that_is_refused_does_not_decide_the_rule_of_the_next(tmp_path: Path) -> None:
    shared = ledger_of(tmp_path, epsilon=4.0)
    with pytest.raises(BudgetExceeded, match="no data was touched"):
        play(shared, tmp_path / "dear", noise_multiplier=0.3, sample_rate=0.5)
    assert not Path(shared.path).exists()
    play(shared, tmp_path / "next", noise_multiplier=EVERYONE)
    with Ledger.open(shared.path) as ledger:
        assert ledger.policy.budget.rule == "gaussian"
    nowhere, seeded = dataclasses.replace(shared, path=str(tmp_path / "no" / "l")), {"noise": "simulation"}
    refused = [
        (shared, pb.Privacy(noise_multiplier=0.3), "no data was touched"),
        (shared, pb.Privacy(noise_multiplier=EVERYONE, **seeded), "simulations carry no guarantee"),
        (shared, pb.NoPrivacy(), r"admits Gaussian releases only.*a ledger of its own; nothing was charged"),
        (nowhere, pb.Privacy(noise_multiplier=9.0), "no folder .*no; make"),
    ]
    for on, privacy, words in refused:  # nor does it leave a directory that stops the next try
        settings = {"privacy": privacy, "rounds": 2, "ledger": on, "directory": tmp_path / "refused"}
        with pytest.raises(PrivacyError, match=words):
            pb.run(problem(), pb.FederatedFLCB(), rehearse=False, **settings)
    assert not (tmp_path / "refused").exists()


def test_a_first_run_opens_the_ledger_that_another_one_has_made_meanwhile(tmp_path, monkeypatch) -> None:
    shared = ledger_of(tmp_path, epsilon=4.0)
    play(shared, tmp_path / "first", noise_multiplier=EVERYONE)
    seen = iter([False, False])  # for the check before the run, and where its own is made
    monkeypatch.setattr("privbo.runs.opening.stands", lambda place: next(seen, True))
    play(shared, tmp_path / "second", rehearse=False, noise_multiplier=EVERYONE)
    with Ledger.open(shared.path) as ledger:
        assert len(ledger.book().plans) == 2


def test_a_relative_ledger_is_the_same_file_from_anywhere(tmp_path, monkeypatch, caplog) -> None:
    people, file, sub = tmp_path / "study" / "people.sqlite", tmp_path / "study" / "shared.toml", tmp_path / "sub"
    sub.mkdir()
    people.parent.mkdir()
    ledger = {"path": "people.sqlite", "population": "ward", "epsilon": 5.0, "delta": DELTA}
    file.write_text(toml(rounds=2, privacy={"epsilon": 4.0, "delta": DELTA}, ledger=ledger))
    first = read_spec(file)
    stopped(0, run_spec, first, Path(tmp_path / "s1"))
    monkeypatch.chdir(sub)
    assert read_spec(Path("../study/shared.toml")).digest() == first.digest()
    with pytest.raises(BudgetExceeded):
        run_spec(read_spec(Path("../study/shared.toml")), Path("../s2"))
    run_spec(RunDirectory(Path("../s1")).manifest().spec.loaded(), Path("../s1"), resume=True).ledger.close()
    pb.load("../s1").ledger.close()
    made = [record.getMessage() for record in caplog.records if record.name == "privbo"]
    assert made == [f"made a new ledger of ward, to which nothing was charged before: {people}"]
    assert list(tmp_path.rglob("people.sqlite")) == [people]
    (sub / people.name).write_bytes(people.read_bytes())
    people.unlink()
    with pytest.raises(pb.ConfigurationError, match=r"where no ledger is, and .*/sub/people.sqlite is one; write its"):
        read_spec(file)


@pytest.mark.parametrize("moved", [False, True])
def test_a_run_goes_on_on_the_ledger_that_it_began_with_and_in_a_project_that_was_moved_on_the_one_there(
    moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()

    def play(home: Path, **settings: Any) -> pb.Record:
        shared = pb.SharedLedger(path=cast("str", Path("people.sqlite")), population="ward")
        asked = {"privacy": pb.Privacy(noise_multiplier=EVERYONE), "rounds": 2, "ledger": shared}
        return pb.run(problem(), pb.FederatedFLCB(), directory=home, **asked, **settings)

    monkeypatch.chdir(before)
    stopped(0, play, before / "run")
    before.rename(after) if moved else after.mkdir()
    monkeypatch.chdir(after)
    home = (after if moved else before) / "run"
    play(home, resume=True).ledger.close()
    assert moved or not any(after.iterdir())
    assert len(pb.load(home).releases) == 2


def test_the_bound_and_what_has_been_charged_of_it_are_the_same_two_numbers_on_every_page(tmp_path: Path) -> None:
    shared = ledger_of(tmp_path, epsilon=5.0)
    for number in range(2):
        play(shared, tmp_path / str(number), epsilon=2.0)
    with (record := pb.load(tmp_path / "0")).ledger:
        found, listed, left = report(record), ledger_view(record), record.ledger.left()
        assert 2.0 < left.spent < 4.0  # two runs of epsilon 2, which do not add up
        for delta in (DELTA, 1e-7):
            priced, there = total(record.ledger.book(), delta), record.ledger.left(delta)
            assert (priced.epsilon, priced.charged) == (pytest.approx(there.bound), there.spent)
            assert priced.bound == there.bound
    views = [document(found).render(), statement(found).render(), repr(listed), found.facts["all runs on this ledger"]]
    views += [" ".join(map(str, render(shown))) for shown in (found, listed)]
    for view in (*views, left.words):
        assert f"; {upper_text(left.spent)} of it has been charged so far" in view
        assert "the bound that this ledger keeps for all of its runs" in view
        assert "spent" not in view.replace("everything that was spent", "")
    for view in views:
        assert "at most epsilon 5 at delta 1e-05 for 2 runs together: the bound" in view
    lines = verify_bundle(write_bundle(tmp_path / "0").path).statement
    quoted = next(line for line in lines if line.startswith("This ledger:"))
    assert "at most epsilon 5 at delta 1e-05 quoted, for 2 runs together; its bound: 5 at delta 1e-05" in quoted
    charged = next(line for line in lines if line.startswith("All together: "))
    assert float(charged.split()[2].rstrip(",")) == pytest.approx(left.spent, rel=1e-4)
    assert charged.endswith("as if all had been planned beforehand")
    assert left_of_path(str(tmp_path / "1")) == left  # the run's directory names the ledger that it shares


def test_a_bound_that_a_recovery_passed_is_not_called_kept() -> None:
    left = Left(delta=1e-5, spent=6.0, bound=5.0, rule="gaussian", noise_multiplier=None)
    assert left.words.endswith("it was passed: 6 has been charged so far")


# ---- runs and private sweeps whose population's ledger is in a real PostgreSQL


def written(config: Path, path: str, **ledger: object) -> None:
    """The small problem's configuration on a ledger."""
    ledger = {"path": path, "population": "ward", "epsilon": 2.5, "delta": 1e-5} | ledger
    config.write_text(toml(rounds=2, privacy={"noise_multiplier": 4.0}, ledger=ledger))


def command(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def test_runs_share_a_database_and_are_refused_together(server, tmp_path, capsys) -> None:
    config, address = tmp_path / "run.toml", server.address("ward", tmp_path / "ward.commits")
    written(config, address)
    with pytest.raises(LedgerError, match="ledger make"):
        command("run", config, "--out", tmp_path / "early")
    command("ledger", "make", config, "--owner", server.url("owner"), "--trust")
    assert "ward.commits" in capsys.readouterr().out
    for name in ("first", "second"):
        command("run", config, "--out", tmp_path / name)
    with pytest.raises(BudgetExceeded):
        command("run", config, "--out", tmp_path / "third")
    command("ledger", "verify", tmp_path / "second")
    record = pb.load(tmp_path / "first")
    with record.ledger as ledger:
        assert ledger.guarantees
        assert len({entry.run for entry in ledger.entries()}) == 2
    written(config, str(tmp_path / "file.sqlite"))
    with pytest.raises(pb.ConfigurationError, match="is a file"):
        command("ledger", "make", config, "--owner", server.url("owner"), "--trust")


def test_a_sweep_over_private_data_pays_into_a_database_and_not_into_a_file_of_a_cluster(server, tmp_path) -> None:
    address, config = server.address("sweep", tmp_path / "sweep.commits"), tmp_path / "one.toml"
    written(config, address, epsilon=20.0)
    command("ledger", "make", config, "--owner", server.url("owner"), "--trust", "--set", "ledger.rule=gaussian")
    path = tmp_path / "sweep.toml"
    bound = 'epsilon = 20.0\ndelta = 1e-5\nrule = "gaussian"\n'
    path.write_text(PRIVATE.format(path=tmp_path / "people.sqlite", bound=bound))
    with pytest.raises(pb.ConfigurationError, match="PostgreSQL"):
        run_sweep(read_sweep(path), tmp_path / "out", scheduler="tcp://127.0.0.1:1")
    assert not (tmp_path / "people.sqlite").exists()
    path.write_text(PRIVATE.format(path=address, bound=bound).replace("seeds = 2", "seeds = 1"))
    with pytest.raises(pb.ConfigurationError, match="does not answer"):
        run_sweep(read_sweep(path), tmp_path / "out", scheduler="tcp://127.0.0.1:1")
    found = run_sweep(read_sweep(path), tmp_path / "out", jobs=1)
    with Ledger.open(address) as ledger:
        assert len({reservation.run for reservation in ledger.book().reservations}) == 2
        assert ledger.verify().ok
    assert found.comparisons[0].total is not None
