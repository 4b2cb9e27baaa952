"""Neighbouring worlds under samplings with a state of their own: a bounded cohort, and one allocation for a whole run.

With the allocation or the coins the same in both worlds a sum moves by what one client adds to it, in no more releases
than the client was allotted, and nothing else tells the worlds apart. ``private/``, with the allocation, is no output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import CASES, ROUNDS, Case
from tests.whole_run.test_whole_run import BY_CLIENT, Worlds, audit, configuration
from tests.whole_run.worlds import FULL, SHORT, Step

SAMPLINGS: dict[str, dict[str, Any]] = {
    "truncated-poisson": {"sampling": "truncated-poisson", "sample_rate": 0.6, "max_cohort": 2},
    "random-allocation": {"sampling": "random-allocation", "participations": 2},
}


BY_CLIENTS = [case for case in CASES if case.unit == "client" and not case.name.startswith("shared-prior")]


def privacy_of(case: Case, sampling: str) -> dict[str, Any]:
    found = SAMPLINGS[sampling]
    return found | {"participations": 1} if case.name == "scout" and "participations" in found else found  # one release


def tables_of(case: Case, sampling: str) -> dict[str, dict[str, Any]]:
    return {"run.toml": configuration(case, **privacy_of(case, sampling))}


def require_kept(case: Case, sampling: str, worlds: Worlds, folder: Path, steps: Sequence[Step]) -> list[float]:
    differing, moves = audit(tables_of(case, sampling), worlds, folder, steps)
    assert differing == [], differing
    assert max(moves) <= 1 + 1e-6
    if sampling == "random-allocation":
        # published norms, which everybody pays for beside the plan, are the last of more releases than rounds
        assert sum(move > 0 for move in moves[:ROUNDS]) <= privacy_of(case, sampling)["participations"], moves
    return moves


def test_one_client_moves_no_more_releases_than_it_was_allotted(tmp_path: Path) -> None:
    moves = require_kept(BY_CLIENTS[0], "random-allocation", ("absent", "changed"), tmp_path, SHORT)
    assert len(moves) > 2
    assert max(moves) > 0, "the worlds are one"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("worlds", BY_CLIENT, ids=str)
@pytest.mark.parametrize("case", BY_CLIENTS, ids=str)
def test_nothing_but_a_rounds_sum_tells_worlds_apart(case: Case, worlds: Worlds, sampling: str, tmp_path: Path) -> None:
    commands = FULL if case in BY_CLIENTS[:2] else SHORT
    require_kept(case, sampling, worlds, tmp_path, commands)
