"""Neighbouring worlds through the command line: each round's sum moves within its sensitivity, nothing else differs.

The output of a run is everything outside ``private/``: names, sizes, bytes and times of files, exit codes, what
the terminal shows, the number of rounds. ``make test`` plays every algorithm in its worst world; ``make slow`` plays
every algorithm in every world through every command.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from privbo.algorithms.elimination.sharing import RewardRange
from privbo.cli import run as running
from privbo.protocol import problem as problems
from privbo.protocol.errors import ConfigurationError
from privbo.runs import opening
from privbo.runs.algorithms import algorithm_table
from privbo.runs.manifest import RunDirectory
from tests.conformance.cases import CASES, ROUNDS, Case
from tests.whole_run.worlds import FULL, SHORT, moved, play

# Pairs of neighbouring worlds. Neighbours by client are with and without it (zero-out adjacency), so that a client
# that answers otherwise is held against one that answers nothing.
BY_CLIENT = (("plain", "absent"), ("absent", "changed"), ("absent", "hostile"), ("plain", "slow"))
BY_REWARD = (("plain", "one reward"), ("plain", "one failure"), ("plain", "slow"))
Worlds = tuple[str, str]
SPACE = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True}}


def without_none(table: Any) -> Any:
    """A table for a configuration file, which knows no None."""
    return {k: without_none(v) for k, v in table.items() if v is not None} if isinstance(table, dict) else table


def configuration(case: Case) -> dict[str, Any]:
    return {
        "name": "audited",
        "rounds": ROUNDS,
        "seed": 3,
        "problem": {"objective": "tests.whole_run.clinic:score", "n_clients": 6, "space": SPACE},
        "algorithm": without_none(algorithm_table(case.algorithm)),
        "privacy": {"noise_multiplier": 1.0, "noise": "simulation", "unit": case.unit},
    }


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A process's first run imports libraries, which warn once on the terminal."""
    play(tmp_path_factory.mktemp("warm") / "world", configuration(CASES[0]), "plain", SHORT)


def worlds_of(case: Case) -> tuple[Worlds, ...]:
    return BY_CLIENT if case.unit == "client" else BY_REWARD


def audit(case: Case, worlds: Worlds, folder: Path, commands: Any) -> tuple[list[str], list[float]]:
    """What differs between two worlds, and by how much each release does."""
    table = configuration(case)
    first = play(folder / "world", table, worlds[0], commands)
    second = play(folder / "world", table, worlds[1], commands, earlier=first)
    assert first.seen[" ".join(commands[0])][0] == 0, first.seen[" ".join(commands[0])]
    differing = first.differences(second)
    return differing, moved(first, second) if first.releases.keys() == second.releases.keys() else []


def require_kept(case: Case, worlds: Worlds, folder: Path, commands: Any) -> None:
    differing, moves = audit(case, worlds, folder, commands)
    assert differing == [], differing
    assert max(moves) <= 1 + 1e-6
    if worlds[1] == "slow":
        assert max(moves) == 0
    if worlds[1] in ("absent", "changed"):
        assert max(moves) > 0, "the worlds are one"
    if case.unit == "reward":  # one reward is in one release
        assert sum(move > 0 for move in moves) <= 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_but_a_rounds_sum_tells_neighbouring_worlds_apart(case: Case, tmp_path: Path) -> None:
    require_kept(case, worlds_of(case)[2 if case.unit == "client" else 1], tmp_path, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "worlds"), [(c, w) for c in CASES for w in worlds_of(c)], ids=str)
def test_nothing_but_a_rounds_sum_tells_any_worlds_apart_by_any_command(
    case: Case, worlds: Worlds, tmp_path: Path
) -> None:
    require_kept(case, worlds, tmp_path, FULL)


def refused(self: RewardRange, rewards: Any) -> Any:
    if self.excludes(rewards).any():
        raise ConfigurationError("a reward lies outside")
    return rewards


def to_the_microsecond() -> str:
    return datetime.now(UTC).isoformat()


def shows_scores(*given: Any, **named: Any) -> Any:
    return CARRY_OUT(*given, **named | {"show_private": True})


CARRY_OUT = running.carry_out
FED = next(case for case in CASES if case.name == "fed-pne")
PLANTED: dict[str, tuple[Worlds, Callable[[], Any], str]] = {
    "one reward ends the run": (
        ("absent", "hostile"),
        lambda: mock.patch.object(RewardRange, "admit", refused),
        "run run.toml --out out",
    ),
    "files tell when they were written": (
        ("plain", "slow"),
        lambda: mock.patch.object(RunDirectory, "settle", return_value=None),
        "run run.toml --out out: out/",
    ),
    "the manifest tells the time": (
        ("plain", "slow"),
        lambda: mock.patch.object(opening, "today", to_the_microsecond),
        "run run.toml --out out: out/config.json",
    ),
    "scores on the terminal": (
        ("plain", "absent"),
        lambda: mock.patch.object(running, "carry_out", shows_scores),
        "run run.toml --out out",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_betrayed(fault: str, tmp_path: Path) -> None:
    worlds, plant, where = PLANTED[fault]
    with plant():
        differing, _ = audit(FED, worlds, tmp_path, SHORT)
    assert any(name.startswith(where) for name in differing), differing


def test_a_typo_that_is_not_refused_burns_the_budget_and_is_betrayed(tmp_path: Path) -> None:
    table = configuration(FED)
    table["problem"]["objective"] = "tests.whole_run.test_whole_run:mistyped"
    refused_run = play(tmp_path / "world", table, "plain", SHORT)
    assert not [name for name in refused_run.seen if ": out" in name]
    with mock.patch.object(problems, "require_call", return_value=None):
        burnt = play(tmp_path / "world", table, "plain", SHORT)
    assert len(burnt.releases) > 0


def mistyped(params: dict) -> float:
    return 0.0
