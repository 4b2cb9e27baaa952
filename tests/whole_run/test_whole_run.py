"""Neighbouring worlds through the command line: each round's sum moves within its sensitivity, nothing else differs.

The output of a run is everything outside ``private/``: names, sizes, bytes and times of files, exit codes, what
the terminal shows, the number of rounds. ``make test`` plays every algorithm in its worst world; ``make slow`` plays
every algorithm in every world through every command. ``test_beside`` plays sweeps, shared ledgers and restored
backups, ``test_federated`` clients on other machines, ``test_guarded`` runs in which nobody sees a vector.

Planted faults, one for every class of leak that was ever found, and the output that betrays each:

| fault | worlds | betrayed by |
|---|---|---|
| a ledger that went back is resumed (``test_beside``) | plain | ``run --resume`` draws a released round again |
| a total of realised charges (``test_beside``) | two runs, one ends early | ``report --json``: total below both plans |
| a headline without its publication | plain | ``report --json``: guaranteed below what was charged |
| one reward ends the run | absent, hostile | exit code and standard error of ``run`` |
| a typo is not refused before the first charge | plain | ``run`` releases rounds of failures |
| files tell when they were written | plain, slow | times of files in ``out/`` |
| the manifest tells the time | plain, slow | bytes of ``out/config.json`` |
| scores on the terminal | plain, absent | standard output of ``run`` |
| half the sensitivity is charged | plain, absent | a round's sum moves by twice what is stated |
"""

import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from unittest import mock

import numpy as np
import pytest

from privbo.algorithms.elimination.settings import Sharing
from privbo.algorithms.thompson.local_model import LocalModel
from privbo.cli import run as running
from privbo.door import mechanism
from privbo.door.sampling import Allocation, Sample
from privbo.protocol import problem as problems
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.problem import Evaluator
from privbo.runs import opening
from privbo.runs.best import CommonCohort, CommonServer
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import Record
from privbo.runs.sources import algorithm_table
from tests.conformance.cases import CASES, ROUNDS, VOTES, Case, without_none
from tests.whole_run.clinic import N_CLIENTS, N_RECORDS, WORLD
from tests.whole_run.worlds import DRY, EXPORT, FULL, HOME, NORMS, SHORT, moved, play, reach, underquoted

# Pairs of neighbouring worlds. Neighbours by client are with and without it (zero-out adjacency), so that a client
# that answers otherwise is held against one that answers nothing.
BY_CLIENT = (("plain", "absent"), ("absent", "changed"), ("absent", "hostile"), ("plain", "slow"))
BY_REWARD = (("plain", "one reward"), ("plain", "one failure"), ("plain", "slow"))
Worlds = tuple[str, str]
SPACE = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True}}


def configuration(case: Case, **privacy):
    final = {} if case.final is None else {"final": case.final}
    return final | {
        "name": "audited",
        "rounds": ROUNDS,
        "seed": 3,
        "problem": {"objective": "tests.whole_run.clinic:score", "n_clients": 6, "space": SPACE},
        "algorithm": without_none(algorithm_table(case.algorithm)),
        "privacy": {"noise_multiplier": 1.0, "unit": case.unit} | privacy,
    }


def worlds_of(case: Case) -> tuple[Worlds, ...]:
    return BY_CLIENT if case.unit == "client" else BY_REWARD


def audit(tables, worlds: Worlds, folder, steps) -> tuple[list[str], list[float]]:
    """What differs between two worlds or is quoted too small, and by how much each release differs."""
    first = play(folder / "world", tables, worlds[0], steps)
    second = play(folder / "world", tables, worlds[1], steps, earlier=first)
    begun = next(seen for name, seen in first.seen.items() if "run run.toml --out" in name)
    assert begun[0] == 0, begun
    assert first.drawn_again == second.drawn_again == []
    differing = first.differences(second)
    return differing + underquoted(first), moved(first, second) if "releases" not in differing else []


def require_bounded(table, worlds: Worlds, folder, steps=FULL) -> list[float]:
    """Nothing but releases differs, each by what is stated at most; gives by how much."""
    differing, moves = audit({"run.toml": table}, worlds, folder, steps)
    assert differing == [], differing
    assert max(moves) <= reach(table["algorithm"]["type"], worlds)
    return moves


def require_kept(case: Case, worlds: Worlds, folder, steps) -> None:
    moves = require_bounded(configuration(case), worlds, folder, steps)
    if worlds[1] == "slow":
        assert max(moves) == 0
    if worlds[1] in ("absent", "changed"):
        assert max(moves) > 0, "the worlds are one"
    if case.unit == "reward":  # one reward is in one release
        assert sum(move > 0 for move in moves) <= 1


@pytest.mark.parametrize("case", [*CASES, VOTES[0]], ids=str)
def test_nothing_but_a_rounds_sum_tells_neighbouring_worlds_apart(case: Case, tmp_path) -> None:
    require_kept(case, worlds_of(case)[2 if case.unit == "client" else 1], tmp_path, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "worlds"), [(c, w) for c in [*CASES, *VOTES] for w in worlds_of(c)], ids=str)
def test_nothing_but_a_rounds_sum_tells_any_worlds_apart_by_any_command(case: Case, worlds: Worlds, tmp_path) -> None:
    require_kept(case, worlds, tmp_path, FULL)


SAMPLED = {
    "poisson": {"sample_rate": 0.5},
    "fixed size": {"sample_rate": 0.5, "sampling": "fixed-size"},
    "adaptive clipping": {"adaptive_clipping": {"count_stddev": 10.0}},
    "seeded noise": {"noise": "simulation"},
    "the paper's noise": {"calibration": "paper"},
    "an anonymous channel": {"sample_rate": 0.5, "channel": "anonymous"},
}


@pytest.mark.slow
@pytest.mark.parametrize("worlds", BY_CLIENT, ids=str)
@pytest.mark.parametrize("privacy", SAMPLED)
def test_nothing_but_a_rounds_sum_tells_worlds_apart_however_it_is_released(privacy, worlds, tmp_path) -> None:
    require_bounded(configuration(CASES[0], **SAMPLED[privacy]), worlds, tmp_path)


def refused(self: Sharing, rewards):
    if self.excludes(rewards).any():
        raise ConfigurationError("a reward lies outside")
    return rewards


def shows_scores(*given, **named):
    return CARRY_OUT(*given, **named | {"show_private": True})


CARRY_OUT, SENSITIVITY = running.carry_out, mechanism.sensitivity
FED = next(case for case in CASES if case.name == "fed-pne")
PUBLISHING = (DRY, SHORT[0], NORMS, ("report", HOME, "--json"), EXPORT)
RUN, SLOW = "0 run run.toml --out out", ("plain", "slow")
# Worlds, what is patched, and how the name begins of what differs or is quoted too small.
PLANTED: dict[str, tuple[Worlds, tuple[object, str, object], str]] = {
    "a headline without its publication": (SLOW, (Record, "publications", ()), "3 report out --json: guaranteed"),
    "one reward ends the run": (("absent", "hostile"), (Sharing, "admit", refused), RUN),
    "files tell when they were written": (SLOW, (RunDirectory, "settle", lambda *_: None), f"{RUN}: out/"),
    "the manifest tells the time": (
        SLOW,
        (opening, "today", lambda: str(datetime.now(UTC))),
        f"{RUN}: out/config.json",
    ),
    "scores on the terminal": (("plain", "absent"), (running, "carry_out", shows_scores), RUN),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_betrayed(fault: str, tmp_path) -> None:
    worlds, patched, where = PLANTED[fault]
    steps = PUBLISHING if "publication" in fault else SHORT
    with mock.patch.object(*patched):
        differing, _ = audit({"run.toml": configuration(FED)}, worlds, tmp_path, steps)
    assert any(name.startswith(where) for name in differing), differing


def test_half_the_sensitivity_is_betrayed_by_a_sum_that_moves_too_far(tmp_path) -> None:
    with mock.patch.object(mechanism, "sensitivity", lambda *given, **named: SENSITIVITY(*given, **named) / 2):
        _, moves = audit({"run.toml": configuration(CASES[0])}, ("plain", "absent"), tmp_path, SHORT)
    assert max(moves) == pytest.approx(2.0, rel=1e-3)


def test_a_typo_that_is_not_refused_burns_the_budget_and_is_betrayed(tmp_path) -> None:
    table = configuration(FED)
    table["problem"]["objective"] = "tests.whole_run.test_whole_run:mistyped"
    refused_run = play(tmp_path / "world", {"run.toml": table}, "plain", SHORT)
    assert not [name for name in refused_run.seen if ": out" in name]
    with mock.patch.object(problems, "require_call", return_value=None):
        rehearsed = play(tmp_path / "world", {"run.toml": table}, "plain", SHORT)
        at_once = ((*SHORT[0], "--no-rehearsal"), *SHORT[1:])
        burnt = play(tmp_path / "world", {"run.toml": table}, "plain", at_once)
    assert not [name for name in rehearsed.seen if ": out" in name]
    assert len(burnt.releases) > 0


def mistyped(params: dict) -> float:
    return 0.0


# ---- samplings with a state of their own: a bounded cohort, and one allocation for a whole run

SAMPLINGS = {
    "truncated-poisson": {"sampling": "truncated-poisson", "sample_rate": 0.6, "max_cohort": 2},
    "random-allocation": {"sampling": "random-allocation", "participations": 2},
}


BY_CLIENTS = [case for case in CASES if case.unit == "client" and not case.name.startswith("shared-prior")]


def privacy_of(case: Case, sampling: str):
    found = SAMPLINGS[sampling]
    return found | {"participations": 1} if case.name == "scout" and "participations" in found else found  # one release


def require_allotted(case: Case, sampling: str, worlds: Worlds, folder, steps) -> list[float]:
    moves = require_bounded(configuration(case, **privacy_of(case, sampling)), worlds, folder, steps)
    if sampling == "random-allocation":
        # published norms, which everybody pays for beside the plan, are the last of more releases than rounds
        assert sum(move > 0 for move in moves[:ROUNDS]) <= privacy_of(case, sampling)["participations"], moves
    return moves


def test_one_client_moves_no_more_releases_than_it_was_allotted(tmp_path) -> None:
    moves = require_allotted(BY_CLIENTS[0], "random-allocation", ("absent", "changed"), tmp_path, SHORT)
    assert len(moves) > 2
    assert max(moves) > 0, "the worlds are one"


def by_what_they_are(self: Sample, noise) -> Allocation:
    """Planted fault: the allocation depends on what clients are, here on the world that is played."""
    drawn = ALLOCATE(self, noise)
    return drawn._replace(table=np.roll(drawn.table, 1, axis=1)) if os.environ[WORLD] == "changed" else drawn


ALLOCATE = Sample.allocate


def test_an_allocation_that_depends_on_data_is_betrayed(tmp_path) -> None:
    tables = {"run.toml": configuration(BY_CLIENTS[0], **SAMPLINGS["random-allocation"])}
    with mock.patch.object(Sample, "allocate", by_what_they_are):
        _, moves = audit(tables, ("absent", "changed"), tmp_path, SHORT)
    assert max(moves) > 1 + 1e-6 or sum(move > 0 for move in moves) > 2, moves


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("worlds", BY_CLIENT, ids=str)
@pytest.mark.parametrize("case", BY_CLIENTS, ids=str)
def test_nothing_but_a_rounds_sum_tells_worlds_apart(case: Case, worlds: Worlds, sampling: str, tmp_path) -> None:
    commands = FULL if case in BY_CLIENTS[:2] else SHORT
    require_allotted(case, sampling, worlds, tmp_path, commands)


# ---- a vote that tells more than its release is betrayed by the audit of whole runs

CASE = VOTES[0]


@contextmanager
def told_before_the_noise():
    """A planted fault: how clear the vote was is computed from the ballots themselves."""
    sent = []
    respond = CommonCohort.respond

    def kept(self: CommonCohort, broadcast):
        sent[:] = [respond(self, broadcast)] if "final_candidates" in broadcast.arrays else sent
        return respond(self, broadcast)

    def plain(self: CommonServer):
        made = vars(self)["_released"]
        return None if made is None else replace(made, values=np.nansum(sent[0], axis=0, keepdims=True))

    told = property(plain, lambda self, made: vars(self).__setitem__("_released", made))
    answering = mock.patch.object(CommonCohort, "respond", kept)
    with answering, mock.patch.object(CommonServer, "released", told, create=True):
        yield


def test_a_vote_whose_ballots_are_told_is_betrayed(tmp_path) -> None:
    with told_before_the_noise():
        differing, _ = audit({"run.toml": configuration(CASE)}, ("plain", "absent"), tmp_path, SHORT)
    assert any("common.json" in name for name in differing), differing


# ---- neighbouring worlds that differ in one record of one site, through the command line

WORLDS = (("plain", "changed"), ("plain", "slow"), ("plain", "no number"))


def of_records(goal: str = "own"):
    plain = configuration(FED)
    scored = {"objective": "tests.whole_run.clinic:scores", "n_records": [N_RECORDS] * N_CLIENTS}
    return plain | {
        "problem": plain["problem"] | scored,
        "algorithm": {"type": "multi-task", "release_when": "always", "goal": goal},
        "privacy": {"noise_multiplier": 1.0, "unit": "record", "protects": "records"},
    }


RECORDS = [("own", WORLDS[0], SHORT), ("common", WORLDS[0], SHORT)]
RECORDS += [pytest.param("own", worlds, FULL, marks=pytest.mark.slow) for worlds in WORLDS]


@pytest.mark.parametrize(("goal", "worlds", "steps"), RECORDS, ids=str)
def test_nothing_but_releases_tells_apart_what_a_record_is(goal: str, worlds: Worlds, steps, tmp_path) -> None:
    """A common setting has two releases, the second at points that follow from the first."""
    moves = require_bounded(of_records(goal), worlds, tmp_path, steps)
    assert (max(moves) > 0.05) == (worlds[1] != "slow"), "the worlds are one"


def test_a_score_that_is_not_clipped_is_betrayed(tmp_path) -> None:
    def unclipped(self: Evaluator, returned, client: int) -> tuple[float, bool]:
        return (40.0 * returned[0] + sum(returned[1:])) / len(returned), False

    with mock.patch.object(Evaluator, "_value", unclipped):
        _, moves = audit({"run.toml": of_records()}, WORLDS[0], tmp_path, SHORT)
    assert max(moves) > 1.5


def test_a_second_release_at_points_of_a_sites_own_is_betrayed(tmp_path) -> None:
    """Points that follow unreleased values and are told: here by the number of rounds."""

    def told(*given):
        points = PROPOSE(*given)
        print("next", points)
        return points

    with mock.patch.object(LocalModel, "propose", told), mock.patch("privbo.runs.loop.printed_to"):
        differing, _ = audit({"run.toml": of_records()}, WORLDS[0], tmp_path, SHORT)
    assert any(name.startswith(RUN) for name in differing), differing


PROPOSE = LocalModel.propose
