"""Neighbouring worlds around a run: backups that are restored, ledgers that runs share, and sweeps."""

import dataclasses
import shutil
from unittest import mock

import pytest

import privbo as pb
from accountant.events import Composed, compose
from accountant.ledger.book import Book
from privbo.runs import opening
from tests.builders import put_back
from tests.conformance.cases import CASES, Case
from tests.whole_run.test_whole_run import BY_CLIENT, FED, Worlds, configuration
from tests.whole_run.worlds import EXPORT, HOME, SHORT, Outcome, Step, moved, play, reach, require_alike, underquoted

LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite.commits")
RESUMED: tuple[Step, ...] = (
    ("run", "--resume", HOME),
    ("ledger", "verify", HOME),
    ("ledger", "recover", HOME, "--yes"),
)


def went_back(case: Case, world: str, folder, earlier: Outcome | None = None, steps=()):
    """Play a run, restore its ledger and commit log as they were after the first release, and go on."""
    backup = folder / "private" / "backup"

    def keep(made: int) -> None:
        if made == 1 and not backup.exists():
            put_back(folder / HOME, backup, LEDGER)

    def restore(_) -> None:
        put_back(backup, folder / HOME, LEDGER)

    shutil.rmtree(backup, ignore_errors=True)
    tables = {"run.toml": configuration(case)}
    return play(folder, tables, world, (SHORT[0], restore, *(steps or RESUMED)), earlier, keep)


def test_a_ledger_that_went_back_draws_nothing_again_in_any_world(tmp_path) -> None:
    first = went_back(FED, "absent", tmp_path / "world")
    second = went_back(FED, "hostile", tmp_path / "world", first)
    assert first.drawn_again == second.drawn_again == []
    assert first.seen["2 run --resume out"][0] == 2
    assert "has seen row" in first.seen["2 run --resume out"][2]
    assert first.differences(second) == []


def several(case: Case) -> Case:
    """Give a case of several releases: of a single one nothing can be lost behind a backup that holds it."""
    if not isinstance(case.algorithm, pb.SharedPrior):
        return case
    return dataclasses.replace(case, algorithm=dataclasses.replace(case.algorithm, schedule=(0, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("worlds", BY_CLIENT, ids=str)
@pytest.mark.parametrize(
    "case", [several(case) for case in CASES if case.unit == "client" and case.name != "scout"], ids=str
)
def test_a_run_that_was_recovered_goes_on_alike_in_any_worlds(case: Case, worlds: Worlds, tmp_path) -> None:
    steps = (*RESUMED, ("run", "--resume", HOME, "--json"), ("report", HOME, "--json"))
    first = went_back(case, worlds[0], tmp_path / "world", steps=steps)
    second = went_back(case, worlds[1], tmp_path / "world", first, steps)
    assert first.seen["4 ledger recover out --yes"][0] == first.seen["5 run --resume out --json"][0] == 0
    assert first.drawn == second.drawn
    assert first.differences(second) == []
    assert max(moved(first, second)) <= reach(case.name, worlds)


def test_a_resumption_that_does_not_look_is_betrayed(tmp_path) -> None:
    with mock.patch.object(opening, "require_agreement", return_value=None):
        found = went_back(FED, "plain", tmp_path / "world", steps=RESUMED[:1])
    assert [name.rpartition("/")[2] for name in found.drawn_again] == ["1"]  # then the history disagrees


# Four rounds are planned, three fit the horizon: the run ends early, and the plan is paid for whole.
EARLY = {
    "algorithm": {"type": "fed-pne", "horizon": 60, "c": 0.02, "release_when": "always"},
    "ledger": {"path": "people.sqlite", "population": "ward"},
}
TWICE: tuple[Step, ...] = (
    ("run", "first.toml", "--dry-run", "--json"),
    ("run", "second.toml", "--dry-run", "--json"),
    ("run", "first.toml", "--out", HOME),
    ("run", "second.toml", "--out", "other"),
    EXPORT,
    ("report", "other", "--json"),
    ("compare", HOME, "other", "--out", "compared", "--json"),
)


def two_runs(**settings):
    table = configuration(FED) | EARLY
    return {"first.toml": table | settings, "second.toml": table | settings | {"name": "second"}}


def realised(book: Book) -> Composed:
    return compose(entry.event for entry in book.entries)


def test_the_total_of_runs_that_share_a_ledger_is_no_less_than_their_plans(tmp_path) -> None:
    first = play(tmp_path / "world", two_runs(), "plain", TWICE)
    second = play(tmp_path / "world", two_runs(), "absent", TWICE, first)
    require_alike(first, second)
    assert underquoted(first) == []


def test_a_total_of_what_happened_to_be_released_is_betrayed(tmp_path) -> None:
    together = mock.patch.object(Book, "declared_together", property(lambda _: True))
    with together, mock.patch.object(Book, "committed", property(realised)):
        found = underquoted(play(tmp_path / "world", two_runs(), "plain", TWICE))
    assert [words.partition(":")[0] for words in found] == ["5 report other --json"]
    assert "total" in found[0]


SWEEP = {
    "name": "levels",
    "config": "run.toml",
    "seeds": 2,
    "data": "private",
    "grid": {"rounds": [2, 3]},
    "ledger": {"path": "people.sqlite", "population": "ward", "epsilon": 100.0, "delta": 1e-5},
}
SWEPT: tuple[Step, ...] = tuple(
    ("compare", "sweep.toml", "--out", "swept", "--jobs", "1", *also)
    for also in (
        (),  # it asks, and nobody is there to answer
        ("--yes",),
        ("--json",),
        ("--recommend", "epsilon=50", "--json", "--yes"),  # refused: naming the best would tell of scores
        ("--finished", "--trust"),
        ("--private",),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("worlds", BY_CLIENT, ids=str)
@pytest.mark.parametrize("algorithm", ["fed-pne", "dp-fts-de", "shared-prior"])
def test_nothing_but_what_is_paid_for_tells_the_worlds_of_a_sweep_apart(algorithm, worlds, tmp_path) -> None:
    case = next(case for case in CASES if case.name == algorithm)
    tables = {"run.toml": configuration(case), "sweep.toml": SWEEP}
    first = play(tmp_path / "world", tables, worlds[0], SWEPT)
    second = play(tmp_path / "world", tables, worlds[1], SWEPT, first)
    assert [seen[0] for name, seen in first.seen.items() if ": " not in name] == [2, 0, 0, 2, 0, 0]
    moves = require_alike(first, second)
    if worlds[1] in ("absent", "changed"):
        assert max(moves) > 0, "the worlds are one"
