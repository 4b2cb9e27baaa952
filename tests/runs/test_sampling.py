"""Runs with a bounded cohort, and with every client in exactly k releases: priced, charged, killed and gone on with."""

import contextlib
import hashlib
import os
import signal
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from accountant import numerical
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, Gaussian, RandomAllocationGaussian, TruncatedPoissonSampledGaussian, compose
from accountant.ledger import Ledger
from privbo.plans.calibration import calibrate
from privbo.protocol.files import read_lines
from privbo.reports.report import report
from privbo.runs.manifest import KeptAllocation, RunDirectory
from privbo.runs.recovery import recover
from tests.builders import problem as flat_problem, same_releases, stopped
from tests.conformance.cases import CASES, N_CLIENTS, Case, problem
from tests.runs.test_kills import forked

ROUNDS, TIMES = 6, 2
ALGORITHM = pb.DPFTSDE(n_features=8)
ALLOTTED = {"sampling": "random-allocation", "participations": TIMES}
CUT = {"sampling": "truncated-poisson", "sample_rate": 0.6, "max_cohort": 3}


def play(home, asked, **settings) -> pb.Record:
    privacy = pb.Privacy(**({} if "epsilon" in asked else {"noise_multiplier": 2.0}) | asked)
    return pb.run(problem(), ALGORITHM, privacy=privacy, rounds=ROUNDS, seed=1, directory=home, **settings)


def kept(home) -> np.ndarray:
    return KeptAllocation(home=RunDirectory(home), run=RunDirectory(home).manifest().run_id).kept().table


def took_part(home) -> dict[int, int]:
    """PRIVATE: number of participants by round, as the door noted them."""
    return {row["round"]: row["n_participants"] for row in read_lines(RunDirectory(home).clipping_path)}


def test_a_run_never_has_more_clients_in_a_release_than_its_bound(tmp_path) -> None:
    made = play(tmp_path / "run", CUT | {"epsilon": 3.0})
    ((event, count),) = made.event.parts
    assert isinstance(event, TruncatedPoissonSampledGaussian)
    assert (event.batch_size, event.n_clients, count) == (3, N_CLIENTS, ROUNDS)
    assert 2.99 < made.epsilon() <= 3.0
    assert max(took_part(tmp_path / "run").values()) <= 3
    assert report(made).samplers == (
        "truncated Poisson: every client by its own secret coin, rate 0.6, and at most 3 of them",
    )


def test_a_run_has_every_client_in_exactly_k_releases_for_one_price(tmp_path) -> None:
    home = tmp_path / "run"
    made = play(home, ALLOTTED | {"epsilon": 3.0})
    table = kept(home)
    assert table.shape == (N_CLIENTS, ROUNDS)
    assert np.all(table.sum(axis=1) == TIMES)
    assert took_part(home) == dict(enumerate(table.sum(axis=0).tolist()))
    z = made.plan.noise_multiplier
    event = RandomAllocationGaussian(n_rounds=ROUNDS, participations=TIMES, noise_multiplier=z)
    assert made.event == made.plan.event == made.ledger.event() == compose([event])
    assert 2.99 < made.epsilon() <= 3.0
    openly = numerical.epsilon(compose([(Gaussian(noise_multiplier=z), TIMES)]), 1e-5, adjacency=Adjacency.ZERO_OUT)
    assert made.epsilon() < openly
    found = report(made)
    assert (found.releases, found.planned_releases, found.total.releases) == (ROUNDS, ROUNDS, ROUNDS)
    assert {row.cumulative_epsilon for row in found.entries} == {made.epsilon()}  # paid whole with the first
    assert found.guarantee.guaranteed == made.epsilon()
    assert {row.event for row in found.entries} == {event}
    assert found.samplers == ("random allocation: every client in exactly 2 of 6 releases, at secret times",)
    assert found.dp_event == "UnsupportedDpEvent()"
    public = [path for path in home.iterdir() if path.is_file()]
    assert not [path for path in public if b"allocation.npz" in path.read_bytes()]


@pytest.mark.parametrize(
    "asked", [ALLOTTED, CUT | {"noise": "simulation"}, ALLOTTED | {"noise": "simulation"}], ids=str
)
def test_a_run_that_is_ended_again_and_again_goes_on_with_the_same_allocation(asked, tmp_path) -> None:
    home, tables = tmp_path / "run", []
    for at in (0, 1, ROUNDS - 1):
        stopped(at, play, home, asked, resume=at > 0)
        if "participations" in asked:
            tables.append(kept(home))
    made = play(home, asked, resume=True)
    assert len(made.releases) == len(made.ledger.entries()) == ROUNDS
    assert len(made.ledger.book().reservations) == 1
    assert all(np.array_equal(table, tables[0]) for table in tables)
    if "noise" in asked:  # as if it had never been ended
        same_releases(made, play(tmp_path / "whole", asked))


def test_a_run_whose_allocation_is_gone_or_anothers_is_refused(tmp_path) -> None:
    home, other = tmp_path / "run", tmp_path / "other"
    for path in (home, other):
        stopped(0, play, path, ALLOTTED)
    path = home / "private" / "allocation.npz"
    sound = path.read_bytes()
    before = (home / "history.jsonl").read_bytes()
    path.unlink()
    for content, words in (
        (None, "its allocation is gone; restore private/"),
        ((other / "private" / "allocation.npz").read_bytes(), "is the allocation of"),
        (sound[:-40], "is damaged"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises((LedgerError, pb.RunError), match=words):
            play(home, ALLOTTED, resume=True)
        assert (home / "history.jsonl").read_bytes() == before
    path.write_bytes(sound)
    assert len(play(home, ALLOTTED, resume=True).releases) == ROUNDS


AROUND_THE_FIRST = [(KeptAllocation, "keep", 0), (Ledger, "store_release", 1)]
EVERYWHERE = [
    (Ledger, "reserve", 0),
    (KeptAllocation, "keep", 0),
    *[(Ledger, name, turn) for name in ("charge", "store_release") for turn in range(ROUNDS)],
]


@contextlib.contextmanager
def killed_at(kind: type, name: str, turn: int, *, after: bool):
    """Ends the process, as kill -9 does, before or after the given call of a step."""
    step, calls = getattr(kind, name), iter(range(1000))

    def stopped(*given, **named):
        dies = next(calls) == turn
        found = None if dies and not after else step(*given, **named)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with mock.patch.object(kind, name, stopped):
        yield


def in_a_process(home, wire, asked, killed: contextlib.AbstractContextManager) -> int:
    """Play in a child; what it sends is noted. Gives the signal that ended it, 0 if it finished."""

    def sent(event: pb.Round) -> None:
        if event.release is not None:
            with wire.open("a") as out:
                out.write(f"{event.index} {hashlib.sha256(event.release.values.tobytes()).hexdigest()}\n")

    def work() -> None:
        with killed:
            play(home, asked, on_round=sent, resume=(home / "config.json").exists())

    child = forked(work)
    child.join()
    return child.exitcode


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("asked", "points"),
    [
        pytest.param(ALLOTTED, AROUND_THE_FIRST, id="around the first charge"),
        pytest.param(ALLOTTED, EVERYWHERE, marks=pytest.mark.slow, id="everywhere"),
        pytest.param(CUT, EVERYWHERE, marks=pytest.mark.slow, id="truncated-poisson"),
    ],
)
def test_no_kill_gives_a_round_two_outputs_or_a_run_two_allocations(asked, points, after, tmp_path) -> None:
    for number, point in enumerate(points):
        if point[0] is KeptAllocation and "participations" not in asked:
            continue
        home, wire = tmp_path / f"run{number}", tmp_path / f"wire{number}"
        assert in_a_process(home, wire, asked, killed_at(*point, after=after)) == -signal.SIGKILL, point
        path = home / "private" / "allocation.npz"
        first = path.read_bytes() if path.exists() else None
        with contextlib.suppress(FileNotFoundError, LedgerError), Ledger.open(home / "ledger.sqlite") as ledger:
            assert not ledger.entries() or first is not None or "participations" not in asked, "charged, then drawn"
        assert in_a_process(home, wire, asked, contextlib.nullcontext()) == 0, point
        assert first is None or path.read_bytes() == first, point
        sent = {tuple(line.split()) for line in wire.read_text().splitlines()}
        assert len(sent) == len({index for index, _ in sent}) == ROUNDS, point
        record = pb.load(home)
        assert record.ledger.verify().ok
        assert record.ledger.committed() == record.plan.event
        assert len(record.ledger.entries()) == ROUNDS
        if "participations" in asked:
            table = kept(home)
            assert all(table[:, at].sum() == n for at, n in took_part(home).items()), point
        record.ledger.close()


def test_a_run_whose_ledger_was_restored_pays_for_its_rounds_openly(tmp_path) -> None:
    home = tmp_path / "run"
    stopped(1, play, home, ALLOTTED)
    backup = {path: path.read_bytes() for path in home.glob("ledger.sqlite*")}
    play(home, ALLOTTED, resume=True).ledger.close()
    table = kept(home)
    for path in home.glob("ledger.sqlite*"):
        path.unlink()
        if path in backup:
            path.write_bytes(backup[path])
    with pytest.raises((pb.RunError, LedgerError)):
        play(home, ALLOTTED, resume=True)
    assert recover(RunDirectory(home)).releases >= ROUNDS - 2
    made = play(home, ALLOTTED, resume=True)
    assert np.array_equal(kept(home), table)
    allotted = made.plan.event
    extra = dict(made.event.parts)
    assert {part for part, _ in allotted.parts} < set(extra)
    assert extra[Gaussian(noise_multiplier=made.plan.noise_multiplier)] >= ROUNDS - 2
    assert made.epsilon() > 2 * min(made.plan.epsilon().values())


def test_a_vote_at_the_end_is_sampled_as_the_rounds_or_refused() -> None:
    privacy = pb.Privacy(noise_multiplier=2.0, noise="simulation", **CUT)
    made = pb.run(problem(), ALGORITHM, privacy=privacy, rounds=3, seed=1, final="common")
    assert len(made.releases) == made.plan.releases == 4
    with pytest.raises(pb.ConfigurationError, match="the vote has a noise of its own"):
        pb.plan(problem(), ALGORITHM, privacy=pb.Privacy(epsilon=3.0, **ALLOTTED), rounds=6, final="common")


def test_releases_of_unequal_noise_are_refused_with_the_remedy() -> None:
    prior = pb.SharedPrior(n_features=8, shares=(2.0, 1.0), release_when="always")
    once, often = (pb.Privacy(epsilon=3.0, sampling="random-allocation", participations=n) for n in (1, 9))
    with pytest.raises(pb.ConfigurationError, match=r"one noise multiplier; this plan's differ .*poisson"):
        pb.plan(problem(), prior, privacy=once, rounds=20)
    with pytest.raises(pb.ConfigurationError, match="participations=9, and the plan has 6 releases"):
        pb.plan(problem(), ALGORITHM, privacy=often, rounds=6)


@pytest.mark.parametrize("case", [case for case in CASES if case.unit == "client"], ids=str)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(ALLOTTED | {"participations": 1}, id="random-allocation"),
        pytest.param(CUT, marks=pytest.mark.slow, id="truncated-poisson"),
    ],
)
def test_every_algorithm_runs_under_it_or_is_refused_before_anybody_is_asked(case: Case, asked) -> None:
    privacy = case.privacy(**asked)
    plan = pb.plan(problem(), case.algorithm, privacy=privacy, rounds=3)
    made = pb.run(problem(), case.algorithm, privacy=privacy, rounds=3, seed=3)
    assert len(made.releases) == plan.releases
    assert made.event == plan.event


def test_a_shared_ledger_reserves_the_whole_and_an_envelope_refuses_it(tmp_path) -> None:
    people = {"population": "ward", "epsilon": 8.0, "delta": 1e-5}
    renyi = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), rule="renyi", **people)
    for number in range(2):
        made = play(tmp_path / str(number), ALLOTTED | {"noise_multiplier": 4.0}, ledger=renyi)
        assert made.ledger.committed(made.run_id) == made.plan.event
        made.ledger.close()
    with Ledger.open(tmp_path / "people.sqlite") as ledger:
        assert len(ledger.entries()) == 2 * ROUNDS
        assert sum(count for _, count in ledger.event().parts) == 2
    slots = [pb.DeclaredReleases(count=20, noise_multiplier=3.0)]
    envelope = pb.SharedLedger(path=str(tmp_path / "slots.sqlite"), rule="envelope", releases=slots, **people)
    with pytest.raises(BudgetExceeded, match="no free slots of this ledger's envelope dominate"):
        play(tmp_path / "refused", ALLOTTED | {"noise_multiplier": 4.0}, ledger=envelope)


def test_over_a_channel_that_hides_who_sends_only_those_allotted_send(tmp_path) -> None:
    made = play(tmp_path / "run", ALLOTTED | {"channel": "anonymous"})
    assert made.plan.sending_share == TIMES / ROUNDS
    assert took_part(tmp_path / "run") == dict(enumerate(kept(tmp_path / "run").sum(axis=0).tolist()))


@pytest.mark.parametrize(("n_clients", "participations", "releases"), [(8, 1, 0), (8, 2, 0), (20, 1, 2), (20, 2, 2)])
def test_an_allotted_run_with_too_little_signal_is_planned(n_clients: int, participations: int, releases: int) -> None:
    privacy = pb.Privacy(epsilon=1.0, sampling="random-allocation", participations=participations)
    assert pb.plan(flat_problem(n_clients), pb.SharedPrior(), privacy=privacy, rounds=20).releases == releases


def test_whole_numbers_are_calibrated_as_other_numbers() -> None:
    whole = calibrate(rounds=40, sample_rate=1, noise_multiplier=2, epsilon=None, delta=1e-5)
    assert whole == calibrate(rounds=40, sample_rate=1.0, noise_multiplier=2.0, epsilon=None, delta=1e-5)
