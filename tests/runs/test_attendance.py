"""Clients that are away, late, or silent because a hidden channel lets them: what changes and what must not."""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Broadcast
from privbo.reports.report import report
from privbo.runs.altered import Attendance, unreliable
from privbo.runs.in_process import in_process
from privbo.runs.loop import Clock, play
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import open_run, plan_run
from privbo.runs.spec import Spec, Times
from privbo.testing import toy_problem
from tests.builders import SIMULATED as EVERYBODY, problem as flat_problem, same_releases, stopped
from tests.conformance.cases import bumps, problem
from tests.deployment.federations import make, releases
from tests.whole_run import clinic
from tests.whole_run.test_whole_run import SPACE
from tests.whole_run.worlds import SHORT, Outcome, play as play_world

ALGORITHM = pb.DPFTSDE(n_features=8, own=pb.OwnModel(n_features=16, fit_steps=2, n_candidates=32))
PRIVACY = pb.Privacy(noise_multiplier=1.0, sample_rate=0.5, noise="simulation")
EVERYONE = np.arange(2000)


def run(privacy=PRIVACY, rounds=3, **settings):
    return pb.run(problem(), ALGORITHM, privacy=privacy, rounds=rounds, seed=3, **settings)


def test_dropouts_come_at_their_rate_and_stay_for_their_time():
    attendance = Attendance(dropout=0.2, away_for=3, seed=5)
    gone = np.array([attendance.away(r, EVERYONE) for r in range(8)])
    fresh = np.array([Attendance(dropout=0.2, seed=5).away(r, EVERYONE) for r in range(8)])
    # 16,000 coins: standard deviation of the share 0.0032; six of them happen once in 5e8.
    assert fresh.mean() == pytest.approx(0.2, abs=0.019)
    for r in range(8):
        np.testing.assert_array_equal(gone[r], fresh[max(0, r - 2) : r + 1].any(axis=0))


def test_who_is_away_depends_on_the_client_not_on_the_cohort():
    attendance = Attendance(dropout=0.5, late=0.5, seed=1)
    for who in (attendance.away, attendance.is_late):
        np.testing.assert_array_equal(who(4, np.array([7, 3])), who(4, np.arange(9))[[7, 3]])


class Echo:
    """Answers with its client's number and the round."""

    clients = np.arange(40)

    def respond(self, broadcast):
        return np.stack([self.clients, np.full(40, broadcast.round)], axis=1).astype(float)

    def snapshot(self):
        return {"own": np.array(1)}

    def restore(self, snapshot):
        assert set(snapshot) == {"own"}


def test_late_answers_are_the_round_befores_and_survive_a_restart():
    attendance = Attendance(late=0.4, dropout=0.1, seed=2)
    cohort = unreliable(Echo(), attendance)
    for r in range(4):
        found = cohort.respond(Broadcast(round=r))
        late, away = attendance.is_late(r, Echo.clients), attendance.away(r, Echo.clients)
        expected = np.stack([Echo.clients, np.where(late, r - 1, r)], axis=1).astype(float)
        expected[away | (late & (r == 0))] = np.nan
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(cohort.respond(Broadcast(round=r)), expected)
        again = unreliable(Echo(), attendance)
        again.restore(cohort.snapshot())
        np.testing.assert_array_equal(again.respond(Broadcast(round=r)), expected)
        cohort = again


def test_absence_changes_neither_noise_nor_charge():
    plain, torn = run(), run(attendance=Attendance(dropout=0.5, late=0.3, away_for=2, seed=1))
    empty = run(attendance=Attendance(dropout=1.0))
    for other in (torn, empty):
        assert [r.noise_stddev for r in other.releases] == [r.noise_stddev for r in plain.releases]
        assert other.epsilons() == plain.epsilons()
        assert [e.event for e in other.ledger.entries()] == [e.event for e in plain.ledger.entries()]
        assert not np.array_equal(other.releases[0].values, plain.releases[0].values)
    zeroed = run(control="zeroed")  # nobody's message arrives: exactly the noise alone
    np.testing.assert_array_equal(empty.releases[0].values, zeroed.releases[0].values)


def test_a_run_with_absences_resumes_to_the_same_end(tmp_path):
    attendance = Attendance(dropout=0.3, late=0.5, seed=1)
    whole = run(attendance=attendance)
    stopped(1, run, attendance=attendance, directory=tmp_path / "run")
    with pytest.raises(pb.RunError, match="attendance"):
        run(directory=tmp_path / "run", resume=True)
    resumed = run(attendance=attendance, directory=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.releases[-1].values, whole.releases[-1].values)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_a_hidden_channel_saves_messages_and_changes_no_number(sampling, tmp_path):
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.4, sampling=sampling, noise="simulation")
    hidden = pb.Privacy(**(vars(privacy) | {"channel": "anonymous"}))
    all_send = run(privacy, directory=tmp_path / "open")
    some_send = run(hidden, directory=tmp_path / "hidden")
    same_releases(all_send, some_send)
    assert all_send.epsilons() == some_send.epsilons()
    share = 0.4 if sampling == "poisson" else 3 / 7
    assert some_send.plan.sending_share == pytest.approx(share)
    sent = [report(r).utility.communication for r in (all_send, some_send)]
    assert sent[0].bytes_up_per_client == 3 * 8 * 8
    assert sent[1].bytes_up_per_client == round(share * 3 * 8 * 8)
    assert sent[1].bytes_down_per_client == sent[0].bytes_down_per_client
    assert "on average" in pb.write_report(some_send, tmp_path / "page.html").read_text()


@dataclass
class Carrying:
    """A transport by a function."""

    collect: Callable[..., Any]
    hides_senders: bool = False


def test_only_the_sample_sends_and_only_where_nobody_sees_it():
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.4, channel="anonymous", noise="simulation")
    spec = Spec(name="x", problem=problem(), algorithm=ALGORITHM, privacy=privacy, rounds=3, seed=3)
    made, messages = open_run(spec, plan_run(spec), None), []
    with pytest.raises(pb.ConfigurationError, match="does not hide who sends"):
        play(made, Carrying(lambda *_: pytest.fail("nobody may be asked")))
    assert not made.record.ledger.entries()  # refused before anything was charged
    clients = in_process(made.setup, None, problem().evaluator(), None)

    def counted(ask, ticket=None):
        found = clients.collect(ask, ticket)
        if ticket is not None:
            messages.append((int(np.isfinite(found).all(axis=1).sum()), int(ticket.senders.sum())))
        return found

    play(made, Carrying(counted, hides_senders=True))
    assert len(messages) == 3
    assert all(arrived == sampled < 7 for arrived, sampled in messages)


# ---- times on a declared grid: a round lasts its declared time, whoever is slow, absent or quick

START, ROUND = 1_800_000_000.0, 60.0


@dataclass
class Time:
    """A clock that moves when somebody waits or works."""

    now: float = START + 7.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


def seen_at(seconds: float, home, times: Times | None = Times(round_seconds=ROUND)) -> tuple[list[float], Any]:  # noqa: B008 (frozen)
    """When rounds were told of, and the public history, of a run whose clients take so long."""
    moments, clock = [], Time()
    spec = Spec(name="x", problem=problem(), algorithm=ALGORITHM, privacy=EVERYBODY, rounds=3, seed=3, times=times)
    opened = open_run(spec, plan_run(spec), RunDirectory(home))
    keeper = Clock(times=times, now=lambda: clock.now, sleep=clock.wait)
    working = Carrying(lambda *_: clock.wait(seconds) or np.full((7, 8), np.nan))
    play(opened, working, lambda _: moments.append(clock.now - START), clock=keeper)
    return moments, [{k: row[k] for k in ("round", "ended") if k in row} for row in read_lines(home / "history.jsonl")]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.003, [120.0, 180.0, 240.0, 300.0]),  # the last one is of local work
        (53.9, [120.0, 180.0, 240.0, 300.0]),
        (61.0, [180.0, 300.0, 420.0, 540.0]),  # what is computed beside the evaluations is not cut off
    ],
)
def test_a_round_ends_at_a_point_of_its_grid_however_long_its_clients_take(seconds, expected, tmp_path) -> None:
    moments, lines = seen_at(seconds, tmp_path / "run")
    ended = [datetime.fromisoformat(line["ended"]).timestamp() - START for line in lines]
    assert moments == ended == expected


def test_without_a_grid_the_history_names_no_time_and_rounds_end_when_they_do(tmp_path) -> None:
    assert seen_at(5.0, tmp_path / "run", None) == ([12.0, 17.0, 22.0, 27.0], [{"round": n} for n in range(4)])


def test_a_resumed_run_keeps_the_times_at_which_its_rounds_ended_and_waits_for_none(tmp_path, monkeypatch) -> None:
    times = Times(round_seconds=0.2)
    given: dict[str, Any] = {"privacy": EVERYBODY, "rounds": 3, "seed": 3, "directory": tmp_path, "times": times}
    pb.run(problem(), pb.FederatedFLCB(), **given)
    before = read_lines(tmp_path / "history.jsonl")
    assert all("ended" in row for row in before)
    assert not all(row["released"] for row in before)  # the last round is of local work
    monkeypatch.setattr(Clock, "_wait", lambda *_: pytest.fail("it waits again"))
    pb.run(problem(), pb.FederatedFLCB(), **given, resume=True)
    assert read_lines(tmp_path / "history.jsonl") == before


@pytest.mark.parametrize(
    ("unit", "limit", "refused"),
    [
        ("reward", {"times": Times(round_seconds=60.0)}, "times=Times"),
        ("record", {"times": Times(round_seconds=60.0)}, "times=Times"),
        ("record", {"evaluation_seconds": 5.0}, "evaluation_seconds=5"),
        ("reward", {"evaluation_seconds": 5.0}, None),
    ],
)
def test_one_slow_reward_or_record_may_not_fail_others(unit: Any, limit: dict[str, Any], refused: str | None) -> None:
    protects: Any = "records" if unit == "record" else None
    privacy = pb.Privacy(noise_multiplier=2.0, delta=1e-6, unit=unit, protects=protects)
    sites = flat_problem(7, objective=lambda client, params: [0.5], n_records=[1] * 7)
    with pytest.raises(pb.ConfigurationError, match=f"{refused}.*{unit}.*leave") if refused else nullcontext():
        plan_run(Spec(name="x", problem=sites, algorithm=pb.FedPNE(), privacy=privacy, rounds=1, **limit))


def score(client: int, params: dict) -> float:
    """As the whole-run audit's clinics, with one that hangs."""
    if client == clinic.OTHER and os.environ.get(clinic.WORLD) == "hangs":
        time.sleep(3600)
    return clinic.score(client, params)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["hangs", "slow", "hostile"])
def test_neighbouring_worlds_on_a_grid_publish_the_same_at_the_same_times(world: str, tmp_path) -> None:
    """In real time, through the command line; a client that hangs or is hostile is held against one that is absent."""
    stated = {"objective": "tests.runs.test_attendance:score", "n_clients": clinic.N_CLIENTS, "space": SPACE}
    chosen = {"privacy": {"noise_multiplier": 1.0, "noise": "simulation"}, "times": {"round_seconds": 6.0}}
    algorithm = {"type": "dp-fts-de", "n_features": 8}
    table = {"name": "audited", "rounds": 2, "seed": 3, "problem": stated, "algorithm": algorithm} | chosen

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


@pytest.mark.slow
def test_over_flower_a_site_that_hangs_lengthens_no_round(tmp_path) -> None:
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
    assert ends("hangs", "tests.runs.test_attendance:hanging") == [6.0, 6.0, 6.0]


def hanging() -> pb.Problem:
    """The conformance problem, one of whose clients hangs."""
    return toy_problem(score=lambda clients, units: time.sleep(3600) if 3 in clients else bumps(clients, units))


def test_a_reward_enters_no_second_release_late() -> None:
    privacy = pb.Privacy(noise_multiplier=2.0, unit="reward")
    planned = partial(pb.plan, flat_problem(), pb.FedPNE(release_when="always"), privacy=privacy, rounds=3)
    with pytest.raises(pb.ConfigurationError, match=r"attendance.late=0.5, privacy.unit='reward': .* set late=0"):
        planned(attendance=Attendance(late=0.5))
    assert planned(attendance=Attendance(dropout=0.5)).releases > 0
