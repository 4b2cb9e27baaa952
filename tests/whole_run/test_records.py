"""Neighbouring worlds that differ in one record of one site, through the command line.

A record's score may be anything, NaN included; what breaks a whole evaluation is no score of one record, and
``docs/proofs/one-record.md`` says so. Planted: a score that is not clipped, and a front that follows a site's values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from privbo.algorithms.thompson.local_model import LocalModel
from privbo.protocol.problem import Evaluator
from tests.whole_run.clinic import N_CLIENTS, N_RECORDS
from tests.whole_run.test_whole_run import ROUNDS, SPACE, audit
from tests.whole_run.worlds import FULL, SHORT, Step

WORLDS = (("plain", "changed"), ("plain", "slow"), ("plain", "no number"))


def configuration(goal: str = "own") -> dict[str, Any]:
    return {
        "name": "audited",
        "rounds": ROUNDS,
        "seed": 3,
        "problem": {
            "objective": "tests.whole_run.clinic:scores",
            "n_clients": N_CLIENTS,
            "n_records": [N_RECORDS] * N_CLIENTS,
            "space": SPACE,
        },
        "algorithm": {"type": "multi-task", "release_when": "always", "goal": goal},
        "privacy": {"noise_multiplier": 1.0, "unit": "record", "protects": "records"},
    }


def require_kept(worlds: tuple[str, str], folder: Path, steps: tuple[Step, ...], goal: str = "own") -> None:
    differing, moves = audit({"run.toml": configuration(goal)}, worlds, folder, steps)
    assert differing == [], differing
    assert max(moves) <= 1 + 1e-6
    assert (max(moves) > 0.05) == (worlds[1] != "slow"), "the worlds are one"


@pytest.mark.parametrize("goal", ["own", "common"])
def test_nothing_but_releases_tells_apart_what_a_record_is(goal: str, tmp_path: Path) -> None:
    """A common setting has two releases, the second at points that follow from the first."""
    require_kept(WORLDS[0], tmp_path, SHORT, goal)


@pytest.mark.slow
@pytest.mark.parametrize("worlds", WORLDS, ids=str)
def test_nothing_but_the_release_tells_any_records_apart_by_any_command(
    worlds: tuple[str, str], tmp_path: Path
) -> None:
    require_kept(worlds, tmp_path, FULL)


def test_a_score_that_is_not_clipped_is_betrayed(tmp_path: Path) -> None:
    def unclipped(self: Evaluator, returned: Any, client: int) -> tuple[float, bool]:
        return (40.0 * returned[0] + sum(returned[1:])) / len(returned), False

    with mock.patch.object(Evaluator, "_value", unclipped):
        _, moves = audit({"run.toml": configuration()}, WORLDS[0], tmp_path, SHORT)
    assert max(moves) > 1.5


def test_a_second_release_at_points_of_a_sites_own_is_betrayed(tmp_path: Path) -> None:
    """Points that follow unreleased values and are told: here by the number of rounds."""

    def told(*given: Any) -> Any:
        points = PROPOSE(*given)
        print("next", points)
        return points

    with mock.patch.object(LocalModel, "propose", told), mock.patch("privbo.runs.in_process.printed_to", unheard):
        differing, _ = audit({"run.toml": configuration()}, WORLDS[0], tmp_path, SHORT)
    assert any(name.startswith("0 run run.toml --out out") for name in differing), differing


def unheard(_: object) -> Any:
    return mock.MagicMock()


PROPOSE = LocalModel.propose
