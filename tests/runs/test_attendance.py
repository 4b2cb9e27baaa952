"""Clients that are away, late, or silent because a hidden channel lets them: what changes and what must not."""

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import Broadcast
from privbo.reports.report import report
from privbo.runs.altered import Attendance, unreliable
from privbo.runs.in_process import InProcess, in_process
from privbo.runs.loop import play
from privbo.runs.opening import open_run, plan_run
from privbo.runs.spec import Spec
from tests.builders import StoppedError, same_releases, stopping
from tests.conformance.cases import problem

OWN = pb.OwnModel(n_features=16, fit_steps=2, n_candidates=32)
ALGORITHM = pb.DPFTSDE(n_features=8, own=OWN)
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

    with pytest.raises(StoppedError):
        run(attendance=attendance, directory=tmp_path / "run", on_round=stopping(1))
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


class Open:
    """A transport that shows who sends."""

    hides_senders = False

    def collect(self, ask, ticket=None):
        raise AssertionError("nobody may be asked")


class Counting:
    hides_senders = True

    def __init__(self, made: InProcess):
        self.made = made

    def collect(self, ask, ticket=None):
        found = self.made.collect(ask, ticket)
        if ticket is not None:
            messages.append((int(np.isfinite(found).all(axis=1).sum()), int(ticket.senders.sum())))
        return found


messages = []


def opened(channel, seed=3):
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.4, channel=channel, noise="simulation")
    spec = Spec(name="x", problem=problem(), algorithm=ALGORITHM, privacy=privacy, rounds=3, seed=seed)
    return open_run(spec, plan_run(spec), None)


def test_only_the_sample_sends_and_only_where_nobody_sees_it():
    made = opened("anonymous")
    with pytest.raises(pb.ConfigurationError, match="does not hide who sends"):
        play(made, Open())
    assert not made.record.ledger.entries()  # refused before anything was charged
    messages.clear()
    play(made, Counting(in_process(made.setup, None, problem().evaluator(), None)))
    assert len(messages) == 3
    assert all(arrived == sampled < 7 for arrived, sampled in messages)
