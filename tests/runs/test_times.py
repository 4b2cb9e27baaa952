"""Times on a declared grid: a round lasts its declared time, whoever is slow, absent or quick."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Ask, FloatArray
from privbo.runs.loop import Clock, play
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import open_run, plan_run
from privbo.runs.spec import Spec, Times
from tests.conformance.cases import bumps, problem
from tests.deployment.federations import make
from tests.deployment.reading import releases
from tests.whole_run import clinic
from tests.whole_run.worlds import SHORT, Outcome, play as play_world

START, ROUND = 1_800_000_000.0, 60.0
PRIVACY = pb.Privacy(noise_multiplier=1.0, noise="simulation")
ALGORITHM = pb.DPFTSDE(n_features=8, own=pb.OwnModel(n_features=16, fit_steps=2, n_candidates=32))


class Time:
    """A clock that moves when somebody waits or works."""

    def __init__(self) -> None:
        self.now = START + 7.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Working:
    """Clients whose answers take a time that depends on their data."""

    hides_senders = False

    def __init__(self, clock: Time, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def collect(self, ask: Ask, ticket: object = None) -> FloatArray:
        self.clock.wait(self.seconds)
        return np.full((7, 8), np.nan)


def seen_at(seconds: float, home: Path, times: Times | None = Times(round_seconds=ROUND)) -> tuple[list[float], Any]:  # noqa: B008 (frozen)
    """When rounds were told of, and the public history, of a run whose clients take so long."""
    moments, clock = [], Time()
    spec = Spec(name="x", problem=problem(), algorithm=ALGORITHM, privacy=PRIVACY, rounds=3, seed=3, times=times)
    opened = open_run(spec, plan_run(spec), RunDirectory(home))
    keeper = Clock(times=times, now=lambda: clock.now, sleep=clock.wait)
    play(opened, Working(clock, seconds), lambda _: moments.append(clock.now - START), clock=keeper)
    return moments, [{k: row[k] for k in ("round", "ended") if k in row} for row in read_lines(home / "history.jsonl")]


def test_a_round_ends_at_its_declared_time_however_long_its_clients_take(tmp_path: Path) -> None:
    quick, slow = seen_at(0.003, tmp_path / "quick"), seen_at(53.9, tmp_path / "slow")
    assert quick == slow
    moments, lines = quick
    assert moments == [120.0, 180.0, 240.0, 300.0]  # the last one is of local work
    ended = [datetime.fromisoformat(line["ended"]).timestamp() for line in lines]
    assert ended == [START + moment for moment in moments]


def test_without_a_grid_the_history_names_no_time_and_rounds_end_when_they_do(tmp_path: Path) -> None:
    moments, lines = seen_at(5.0, tmp_path / "run", None)
    assert moments == [12.0, 17.0, 22.0, 27.0]
    assert all(set(line) == {"round"} for line in lines)


def test_a_round_that_overruns_ends_at_a_point_of_the_grid(tmp_path: Path) -> None:
    """What is computed beside the clients' evaluations is not cut off; its time shows in whole rounds at most."""
    moments, _ = seen_at(61.0, tmp_path / "run")
    assert moments == [180.0, 300.0, 420.0, 540.0]


def test_a_resumed_run_keeps_the_times_at_which_its_rounds_ended(tmp_path: Path) -> None:
    times = Times(round_seconds=0.2)
    given: dict[str, Any] = {"privacy": PRIVACY, "rounds": 3, "seed": 3, "directory": tmp_path, "times": times}
    pb.run(problem(), pb.FederatedFLCB(), **given)
    before = read_lines(tmp_path / "history.jsonl")
    assert all("ended" in row for row in before)
    pb.run(problem(), pb.FederatedFLCB(), **given, resume=True)
    assert read_lines(tmp_path / "history.jsonl") == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"round_seconds": 0.0}, r"times\.round_seconds=0"),
        ({"round_seconds": float("inf")}, r"times\.round_seconds"),
        ({"round_seconds": 7.0, "client_seconds": 1.0}, "declare longer rounds"),
    ],
)
def test_impossible_grids_are_refused_before_anything_is_charged(
    settings: dict[str, float], words: str, tmp_path: Path
) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.run(
            problem(),
            pb.FederatedFLCB(),
            privacy=PRIVACY,
            rounds=1,
            directory=tmp_path / "run",
            times=Times(**settings),
        )
    assert not (tmp_path / "run").exists()


def score(client: int, params: dict) -> float:
    """As the whole-run audit's clinics, with one that hangs."""
    if client == clinic.OTHER and os.environ.get(clinic.WORLD) == "hangs":
        time.sleep(3600)
    return clinic.score(client, params)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["hangs", "slow", "hostile"])
def test_neighbouring_worlds_on_a_grid_publish_the_same_at_the_same_times(world: str, tmp_path: Path) -> None:
    """In real time, through the command line; a client that hangs or is hostile is held against one that is absent."""
    table = {
        "name": "audited",
        "rounds": 2,
        "seed": 3,
        "problem": {"objective": "tests.runs.test_times:score", "n_clients": clinic.N_CLIENTS, "space": SPACE},
        "algorithm": {"type": "dp-fts-de", "n_features": 8},
        "privacy": {"noise_multiplier": 1.0, "noise": "simulation"},
        "times": {"round_seconds": 6.0},
    }

    def outcome(name: str, earlier: Outcome | None = None) -> tuple[Outcome, float]:
        begun = time.monotonic()

        def both_begin_at_one_time() -> float:
            return START + time.monotonic() - begun

        with mock.patch("time.time", both_begin_at_one_time):
            found = play_world(tmp_path / "world", {"run.toml": table}, name, SHORT, earlier)
        return found, time.monotonic() - begun

    outcome("plain")  # a process's first run imports libraries
    first, lasted = outcome("plain" if world == "slow" else "absent")
    second, lasts = outcome(world, first)
    assert first.differences(second) == []
    assert len(first.releases) == 2
    assert abs(lasted - lasts) < 3.0  # less than a round


SPACE = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True}}


@pytest.mark.slow
def test_over_flower_a_site_that_hangs_lengthens_no_round(tmp_path: Path) -> None:
    def ends(name: str, factory: str) -> list[float]:
        federation = make(tmp_path / name, "dp-fts-de", rounds=3, factory=factory)
        with (federation.home / "run.toml").open("a") as file:
            file.write("\n[times]\nround_seconds = 6.0\n")
        federation.play()
        assert len(releases(federation)) == 3
        lines = read_lines(federation.run.history_path)
        found = [datetime.fromisoformat(line["ended"]).astimezone(UTC).timestamp() for line in lines]
        assert all(end % 6.0 == 0.0 for end in found)
        return list(np.diff(found))

    assert ends("plain", "tests.conformance.small:problem") == [6.0, 6.0, 6.0]
    assert ends("hangs", "tests.runs.test_times:hanging") == [6.0, 6.0, 6.0]


def hanging() -> pb.Problem:
    """The conformance problem, one of whose clients hangs."""
    plain = problem()

    def objective(clients: Any, units: Any) -> FloatArray:
        if 3 in clients:
            time.sleep(3600)
        return bumps(clients, units)

    return pb.Problem(space=plain.space, batch_objective=objective, n_clients=plain.n_clients, name=plain.name)
