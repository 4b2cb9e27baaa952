"""What every algorithm must do, whatever it optimises: tested through ask / respond / release / tell."""

from __future__ import annotations

import gc
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

import privbo as pb
from accountant.errors import BudgetExceeded
from privbo.protocol.messages import (
    Broadcast,
    ClientHistory,
    Cohort,
    FloatArray,
    PlainEvaluate,
    Release,
    Server,
    Setting,
)
from privbo.runs import cohorts as in_process
from privbo.runs.record import mean_best_so_far
from tests.conformance.cases import CASES, N_CLIENTS, ROUNDS, Case, bumps, problem


def subsampled(case: Case) -> pb.Privacy:
    """Half of the clients take part; everybody, where one reward is the unit."""
    return case.privacy(sample_rate=0.5 if case.unit == "client" else 1.0)


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def play(case: Case, **settings: Any) -> pb.Record:
    settings = {"privacy": case.privacy(), "rounds": ROUNDS, "seed": 3} | settings
    return pb.run(problem(), case.algorithm, **settings)


def values(result: pb.Record) -> FloatArray:
    return np.concatenate([r.values.ravel() for r in result.releases])


def test_runs_to_its_end_and_charges_exactly_its_plan(case: Case) -> None:
    result = play(case)
    plan = pb.plan(problem(), case.algorithm, privacy=case.privacy(), rounds=ROUNDS)
    entries = result.ledger.entries(result.run_id)
    assert len(entries) == len(result.releases) == plan.releases > 0
    assert result.ledger.event(result.run_id) == plan.event
    assert [r.sequence for r in result.releases] == [e.sequence for e in entries]
    assert result.ledger.verify().ok


def test_runs_to_its_budget_and_not_one_release_further(case: Case) -> None:
    result = play(case, privacy=case.privacy(noise_multiplier=None, epsilon=2.0))
    assert 1.99 < result.epsilon() <= 2.0
    last = result.ledger.entries()[-1]
    if not result.ledger.policy.disjoint:  # else one more release of other rewards costs nothing more
        with pytest.raises(BudgetExceeded):
            result.ledger.charge("r/more", last.event, run=last.run, noise_source=last.noise_source)
    assert len(result.ledger.entries()) == len(result.releases)


def test_the_sides_keep_the_protocol_by_type(case: Case) -> None:
    """A server is told releases; nothing in its signatures could carry a client's vector."""
    setting = _setting(case)
    server = case.algorithm.server(setting)
    cohort = case.algorithm.cohort(setting, clients=np.arange(2), evaluate=PlainEvaluate(bumps), seed=3)
    assert isinstance(server, Server)
    assert isinstance(cohort, Cohort)
    assert not isinstance(server, Cohort)
    if not type(server).__module__.startswith("privbo."):
        return  # a user's own may go without annotations; what it is told is watched at run time
    assert typing.get_type_hints(type(server).tell) == {"release": Release | None, "return": types.NoneType}
    for name in vars(type(server)):
        if callable(getattr(type(server), name)) and (name == "__init__" or not name.startswith("_")):
            found = str(typing.get_type_hints(getattr(type(server), name))).lower()
            assert "cohort" not in found, name
            assert "history" not in found, name


def test_every_client_learns_something(case: Case) -> None:
    result = play(case)
    history = result.clients
    assert history.values.shape[0] == N_CLIENTS
    assert np.isfinite(history.recommended).all()
    assert ((history.recommended >= 0) & (history.recommended <= 1)).all()
    curve = mean_best_so_far(history)
    assert (np.diff(curve) >= -1e-12).all()


def test_is_deterministic_under_seeds(case: Case) -> None:
    first, again, other = play(case), play(case), play(case, seed=4)
    np.testing.assert_array_equal(values(first), values(again))
    np.testing.assert_array_equal(first.clients.values, again.clients.values)
    assert not np.array_equal(values(first), values(other))


def test_secure_noise_is_never_repeated(case: Case, tmp_path: Path) -> None:
    secure = case.privacy(noise="secure")
    first = play(case, privacy=secure, directory=tmp_path / "a")
    again = play(case, privacy=secure, directory=tmp_path / "b")
    assert not np.array_equal(first.releases[0].values, again.releases[0].values)


class StoppedError(Exception):
    pass


def stop_after(index: int) -> Callable[[pb.Round], None]:
    def on_round(event: pb.Round) -> None:
        if event.index == index:
            raise StoppedError

    return on_round


@pytest.mark.parametrize("index", range(ROUNDS))
def test_resumes_to_the_same_end(case: Case, index: int, tmp_path: Path) -> None:
    whole = play(case)
    home = tmp_path / "run"
    with pytest.raises(StoppedError):
        play(case, directory=home, on_round=stop_after(index))
    resumed = play(case, directory=home, resume=True)
    np.testing.assert_array_equal(values(resumed), values(whole))
    np.testing.assert_array_equal(resumed.clients.values, whole.clients.values)
    assert len(resumed.ledger.entries()) == len(whole.ledger.entries())


def test_refuses_to_resume_another_run(case: Case, tmp_path: Path) -> None:
    home = tmp_path / "run"
    play(case, directory=home)
    with pytest.raises(pb.RunError, match="rounds"):
        play(case, directory=home, resume=True, rounds=ROUNDS + 1)
    with pytest.raises(pb.RunError, match="already holds a run"):
        play(case, directory=home)


@dataclass
class Spoiled:
    """A cohort some of whose answers are replaced on the way."""

    cohort: Cohort
    spoil: Callable[[FloatArray, int], Any]
    seen: list[FloatArray] = field(default_factory=list)

    @property
    def clients(self) -> Any:
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> Any:
        answers = self.cohort.respond(broadcast)
        self.seen.append(answers)
        return self.spoil(answers.copy(), broadcast.round)

    def snapshot(self) -> Mapping[str, Any]:
        return self.cohort.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self.cohort.restore(snapshot)

    def history(self) -> ClientHistory:
        return self.cohort.history()


@dataclass(frozen=True)
class Wrapped:
    """An algorithm whose sides are wrapped; described to the run as the algorithm itself."""

    algorithm: Any
    on_cohort: Annotated[Callable[[Cohort], Any], Field(exclude=True)] = lambda cohort: cohort
    on_server: Annotated[Callable[[Server], Any], Field(exclude=True)] = lambda server: server
    caveat = None
    is_certified = False

    def local(self) -> Any:
        return self.algorithm.local()

    def server(self, setting: Setting) -> Server:
        return self.on_server(self.algorithm.server(setting))

    def cohort(self, setting: Setting, **settings: Any) -> Cohort:
        return self.on_cohort(self.algorithm.cohort(setting, **settings))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_survives_dropouts(case: Case, share: float) -> None:
    def drop(answers: FloatArray, round_: int) -> FloatArray:
        absent = np.random.default_rng([9, round_]).random(len(answers)) < share
        answers[absent] = np.nan
        return answers

    result = pb.run(
        problem(),
        Wrapped(case.algorithm, on_cohort=lambda c: Spoiled(c, drop)),
        privacy=subsampled(case),
        rounds=ROUNDS,
        seed=3,
    )
    plain = play(case, privacy=subsampled(case))
    assert len(result.releases) == len(plain.releases)
    # With one reward as the unit the grid's share of the noise follows the number of nodes, which may differ.
    tolerance = 0.0 if case.unit == "client" else 1e-4
    assert [r.noise_stddev for r in result.releases] == pytest.approx(
        [r.noise_stddev for r in plain.releases], rel=tolerance, abs=0.0
    )
    assert all(np.isfinite(r.values).all() for r in result.releases)
    if share == 1.0:  # nobody answers: noise only, and the same noise as ever
        assert all(np.abs(r.values).max() < 8 * r.noise_stddev for r in result.releases)


HOSTILE: dict[str, Callable[[FloatArray], Any]] = {
    "nan": lambda a: np.full_like(a, np.nan),
    "infinite": lambda a: np.full_like(a, np.inf),
    "huge": lambda a: np.full_like(a, 1e300),
    "denormal": lambda a: np.full_like(a, 5e-324),
    "wrong shape": lambda a: np.zeros((len(a), a.shape[1] + 1)),
    "wrong rank": lambda a: a.ravel(),
    "too many rows": lambda a: np.vstack([a, a]),
    "integers": lambda a: np.ones(a.shape, dtype=np.int64),
    "complex": lambda a: a + 1j,
    "objects": lambda a: np.full(a.shape, "x", dtype=object),
    "nothing": lambda _: None,
    "empty": lambda _: np.zeros((0, 0)),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_survives_hostile_answers(case: Case, how: str) -> None:
    def spoil(answers: FloatArray, round_: int) -> Any:
        return HOSTILE[how](answers) if round_ % 2 == 0 else answers

    result = pb.run(
        problem(),
        Wrapped(case.algorithm, on_cohort=lambda c: Spoiled(c, spoil)),
        privacy=case.privacy(),
        rounds=ROUNDS,
        seed=3,
    )
    plan = pb.plan(problem(), case.algorithm, privacy=case.privacy(), rounds=ROUNDS)
    assert len(result.releases) == plan.releases
    assert all(np.isfinite(r.values).all() for r in result.releases)


def test_one_unit_moves_a_release_by_no_more_than_the_sensitivity(case: Case) -> None:
    """Same noise, one client's first answer replaced by a huge vector (or one moved as far as one reward can).

    The first release moves by at most its sensitivity, and not by much less.
    """
    request = next(iter(case.algorithm.server(_setting(case)).plan()))

    def silence(answers: FloatArray, _: int) -> FloatArray:
        answers[2] = 0.0
        return answers

    def move(answers: FloatArray, _: int) -> FloatArray:
        answers[2] = 1e6
        if request.reward_bound is not None:
            answers[2] = request.reward_bound / np.sqrt(request.dim)
        return answers

    first = []
    for spoil in (move, silence):
        algorithm = Wrapped(case.algorithm, on_cohort=lambda c, spoil=spoil: Spoiled(c, spoil))
        first.append(pb.run(problem(), algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3).releases[0])
    terms = pb.plan(problem(), case.algorithm, privacy=case.privacy(), rounds=ROUNDS)
    sensitivity = terms.mechanism(request).sensitivity()
    moved = np.linalg.norm(first[0].values - first[1].values)
    assert 0.25 * sensitivity < moved <= sensitivity  # this client need not be the one that counts most


def _setting(case: Case) -> Setting:
    return Setting(space=problem().search_space, n_clients=N_CLIENTS, rounds=ROUNDS, public_seed=5, unit=case.unit)


def parts_of(item: object) -> list[object]:
    """What an object holds: never a module, a class or a function's globals, which hold the whole program."""
    if isinstance(item, (type, types.ModuleType)):
        return []
    if isinstance(item, types.FunctionType):
        return [cell.cell_contents for cell in item.__closure__ or ()]
    if isinstance(item, types.FrameType):
        return list(item.f_locals.values())
    return gc.get_referents(item)


def reachable_arrays(root: object) -> list[np.ndarray]:
    """Every array and tensor that can be reached from an object."""
    seen, stack, arrays = set(), [root], []
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            arrays.append(item)
        elif hasattr(item, "detach") and hasattr(item, "numpy"):
            arrays.append(item.detach().cpu().numpy())
        else:
            stack.extend(parts_of(item))
    return arrays


def holds_a_row_of(root: object, answers: FloatArray) -> bool:
    """Whether an object reaches an array that contains a client's (non-zero) answer."""
    rows = {tuple(row) for row in answers if np.isfinite(row).all() and np.any(row)}
    for array in reachable_arrays(root):
        fits = array.dtype == np.float64 and array.ndim and array.shape[-1] == answers.shape[1]
        if fits and rows & {tuple(row) for row in array.reshape(-1, answers.shape[1])}:
            return True
    return False


@dataclass
class Watched:
    """A server that remembers its class's promises: it is told releases, nothing else."""

    server: Server
    told: list[Any] = field(default_factory=list)

    def plan(self) -> Any:
        return self.server.plan()

    def ask(self) -> Any:
        return self.server.ask()

    def tell(self, release: Release | None) -> None:
        assert release is None or type(release) is Release
        self.told.append(release)
        self.server.tell(release)


def test_the_server_never_holds_a_clients_vector(case: Case) -> None:
    servers: list[Watched] = []
    cohorts: list[Spoiled] = []

    def watch(server: Server) -> Watched:
        servers.append(Watched(server))
        return servers[-1]

    def keep(cohort: Cohort) -> Spoiled:
        cohorts.append(Spoiled(cohort, lambda answers, _: answers))
        return cohorts[-1]

    algorithm = Wrapped(case.algorithm, on_cohort=keep, on_server=watch)
    pb.run(problem(), algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3)
    answers = [a for a in cohorts[-1].seen if np.any(a)]
    assert len(answers) >= 1
    for server in servers:
        assert not any(holds_a_row_of(server, a) for a in answers)
    servers[-1].told.append({"leak": answers[0][:1].copy()})  # a planted leak is found
    assert holds_a_row_of(servers[-1], answers[0])


def test_a_round_answered_twice_is_answered_the_same(case: Case) -> None:
    setting = _setting(case)
    calls = []

    def evaluate(clients: Any, units: FloatArray) -> FloatArray:
        calls.append(len(clients))
        return bumps(clients, units)

    server = case.algorithm.server(setting)
    cohort = case.algorithm.cohort(setting, clients=np.arange(N_CLIENTS), evaluate=PlainEvaluate(evaluate), seed=3)
    ask = server.ask()
    assert ask is not None
    first = cohort.respond(ask.broadcast)
    count = len(calls)
    np.testing.assert_array_equal(cohort.respond(ask.broadcast), first)
    assert len(calls) == count


def test_a_cohort_of_one_is_that_client_in_a_large_cohort(case: Case) -> None:
    setting = _setting(case)
    server = case.algorithm.server(setting)

    def cohort(clients: list[int]) -> Cohort:
        return case.algorithm.cohort(setting, clients=np.array(clients), evaluate=PlainEvaluate(bumps), seed=3)

    everyone, single = cohort(list(range(N_CLIENTS))), cohort([4])
    for index in range(ROUNDS):
        ask = server.ask()
        assert ask is not None
        whole, alone = everyone.respond(ask.broadcast), single.respond(ask.broadcast)
        np.testing.assert_allclose(alone[0], whole[4], rtol=1e-6, atol=1e-9)
        server.tell(_noise_release(ask, index) if ask.request is not None else None)
    np.testing.assert_allclose(single.history().values[0], everyone.history().values[4], rtol=1e-6)


def _noise_release(ask: Any, index: int) -> Release:
    shape = (ask.request.n_blocks, ask.request.dim)
    noise = np.random.default_rng([1, index]).normal(0, 0.1, shape)
    return Release(round=ask.broadcast.round, values=noise, noise_stddev=0.1, sequence=index, head="")


def test_a_snapshot_is_the_whole_state(case: Case) -> None:
    setting = _setting(case)
    servers = [case.algorithm.server(setting) for _ in range(2)]
    cohorts = [
        case.algorithm.cohort(setting, clients=np.arange(N_CLIENTS), evaluate=PlainEvaluate(bumps), seed=3)
        for _ in range(2)
    ]
    for index in range(ROUNDS):
        ask, _ = (server.ask() for server in servers)
        assert ask is not None
        cohorts[0].respond(ask.broadcast)
        cohorts[1].restore(dict(cohorts[0].snapshot()))
        for server in servers:
            server.tell(_noise_release(ask, index) if ask.request is not None else None)
        cohorts.reverse()  # the restored one goes on
    for name, array in cohorts[0].snapshot().items():
        np.testing.assert_array_equal(array, cohorts[1].snapshot()[name], err_msg=name)


def test_failing_objectives_do_not_stop_the_run(case: Case) -> None:
    def moody(client: int, params: dict[str, Any]) -> float:
        if client == 1:
            raise ValueError("secret of client 1")
        if client == 2:
            return float("nan")
        return float(bumps(np.array([client]), np.array([[params["x"], 0.5]]))[0])

    shaky = pb.Problem(space=problem().space, objective=moody, n_clients=N_CLIENTS, name="shaky")
    result = pb.run(shaky, case.algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3)
    assert np.isnan(result.clients.values[1]).all()
    assert np.isfinite(result.clients.values[0]).any()
    assert all(np.isfinite(r.values).all() for r in result.releases)


def test_local_control_releases_nothing(case: Case) -> None:
    result = pb.run(problem(), case.algorithm.local(), privacy=pb.NoPrivacy(), rounds=ROUNDS, seed=3)
    assert result.releases == ()
    assert result.epsilon() == 0.0
    assert np.isfinite(result.clients.values).any()


def test_zeroed_control_releases_noise_alone(case: Case) -> None:
    result = play(case, control="zeroed")
    release = result.releases[0]
    assert np.abs(release.values).max() < 8 * release.noise_stddev
    assert isinstance(in_process.ZeroedCohort, type)
