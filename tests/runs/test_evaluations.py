"""``evaluations``, most calls of the objective by one client over a run, is kept by every algorithm and priced."""

import dataclasses
import logging
from functools import partial

import numpy as np
import pytest

import privbo as pb
from accountant.errors import BudgetExceeded
from experiments.baselines.best_arm import BestArm
from experiments.baselines.central_model import CentralModel
from experiments.baselines.dp_hype import DPHype
from experiments.baselines.flexible import FlexibleXArmed
from experiments.baselines.private_search import PrivateSearch
from experiments.examples.zoom import Zoom
from privbo.runs.altered import AlteredCohort
from privbo.runs.offer import always
from privbo.runs.sources import algorithms
from privbo.testing.subject import values_of
from tests.builders import SIMULATED, Changed, problem as flat_problem, same_releases, stopped
from tests.conformance.cases import problem
from tests.deployment.federations import make, releases, sites
from tests.executor_problem import Noting

# MultiTask evaluates its front and one point a round; it has no other number of evaluations.
EVERY = {name: kind() for name, kind in algorithms().items() if name != "multi-task"}
EVERY["dp-fts-de"] = pb.DPFTSDE(n_init=2, n_regions=1)  # the paper's have ten and four
EVERY |= {  # of the experiments
    "best-arm": BestArm(n_arms=4),
    "central-model": CentralModel(),
    "dp-hype": DPHype(n_candidates=24),
    "flexible": FlexibleXArmed(),
    "private-search": PrivateSearch(),
}
# Their multiplier is that of a run's only release, of which releases have their shares.
BY_SHARES = ("best-arm", "central-model", "private-search", "shared-prior")
OURS = ("dp-fts-de", "shared-prior", "f-lcb", "fed-pne", "pf-pne", "parallel")
# A scout has one round, of as many evaluations as the setting says.
RUNNING = {name: algorithm for name, algorithm in EVERY.items() if name != "scout"}
SHARING = {name: always(algorithm) for name, algorithm in RUNNING.items() if name != "pe"}
STRICT = pb.Privacy(epsilon=2.0, delta=1e-5, noise="simulation")


class Counted:
    """Clients with peaks of their own that count every call."""

    def __init__(self, n_clients: int) -> None:
        self.peaks = np.linspace(0.3, 0.7, n_clients)
        self.calls = np.zeros(n_clients, dtype=np.int64)

    def __call__(self, clients, units):
        np.add.at(self.calls, clients, 1)
        return np.asarray(np.exp(-4 * ((units - self.peaks[clients, None]) ** 2).sum(axis=1)))

    def problem(self) -> pb.Problem:
        return flat_problem(len(self.calls), space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, batch_objective=self)


@pytest.mark.parametrize("n_clients", [1, 40, 1000])
@pytest.mark.parametrize("evaluations", [7, 22])
@pytest.mark.parametrize("name", EVERY)
def test_no_client_evaluates_more_often(name: str, evaluations: int, n_clients: int) -> None:
    """Without the setting the same run calls more often, or this would show nothing."""
    if n_clients == 1000 and name in ("dp-fts-de", "shared-prior"):
        pytest.skip("a thousand clients' models take long and the rounds are the same")
    clients, algorithm = Counted(n_clients), dataclasses.replace(EVERY[name], evaluations=evaluations)
    pb.run(clients.problem(), algorithm, privacy=pb.NoPrivacy(), rounds=22, seed=0)
    assert clients.calls.max() <= evaluations
    assert clients.calls.min() >= 1


@pytest.mark.parametrize("name", SHARING)
def test_the_plan_has_the_releases_and_the_noise_of_so_few_evaluations(name: str) -> None:
    problem = Counted(40).problem()
    few = pb.plan(problem, dataclasses.replace(SHARING[name], evaluations=6), privacy=STRICT, rounds=40)
    many = pb.plan(problem, SHARING[name], privacy=STRICT, rounds=40)
    if name == "dp-hype":  # its only release is priced alike for any number of candidates
        assert few.releases == many.releases == 1
        return
    assert 1 <= few.releases < many.releases
    if name in BY_SHARES:
        assert few.noise_multiplier == pytest.approx(many.noise_multiplier)
    else:
        assert few.noise_multiplier < 0.95 * many.noise_multiplier
    assert max(min(few.epsilon().values()), min(many.epsilon().values())) <= 2.0


@pytest.mark.parametrize("name", OURS)
def test_fewer_than_one_round_takes_are_refused_before_any_call(name: str) -> None:
    clients, fine = Counted(3), {"nu1": 0.01} if hasattr(EVERY[name], "nu1") else {}
    algorithm = dataclasses.replace(EVERY[name], evaluations=5 if name == "f-lcb" else 2, **fine)
    with pytest.raises(pb.ConfigurationError, match="evaluations"):
        pb.run(clients.problem(), algorithm, privacy=pb.NoPrivacy(), rounds=22)
    assert clients.calls.sum() == 0


# ---- clients of an algorithm of the user's own: what one of them raises is its own failure, and its own alone

N_CLIENTS, ROUNDS, BAD = 7, 3, 2


def throw(error: BaseException) -> None:
    raise error


ERRORS = (np.linalg.LinAlgError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError)
RAISED = {kind.__name__: partial(throw, kind()) for kind in ERRORS} | {
    "RecursionError": lambda: deeper(0),
    "another shape": lambda: np.zeros((1, 3)),
    "no array": lambda: "text",
    "two clients": lambda: np.zeros((2, 8)),
}


def deeper(level: int) -> int:
    return deeper(level + 1) + 1


@dataclasses.dataclass(frozen=True)
class Fragile(Zoom):
    """Zoom, whose code for one client fails in a way of its own where that client's data is odd."""

    fault: str = ""
    when: int = 1
    where: str = "respond"

    def cohort(self, setting, *, clients, evaluate, seed: int):
        if self.where == "made" and self.fault and BAD in clients and len(clients) < N_CLIENTS:
            RAISED[self.fault]()
        odd = self.fault and BAD in clients
        inner = super().cohort(setting, clients=clients, evaluate=evaluate, seed=seed)

        def respond(broadcast):
            found = inner.respond(broadcast)
            fails = odd and self.where == "respond" and broadcast.round >= self.when
            return RAISED[self.fault]() if fails else found

        def snapshot():
            if odd and self.where == "snapshot":
                RAISED[self.fault]()
            return inner.snapshot()

        return Changed(inner, respond=respond, snapshot=snapshot)


def played(algorithm, **settings) -> pb.Record:
    return pb.run(problem(), algorithm, privacy=SIMULATED, rounds=ROUNDS, seed=3, **settings)


@pytest.mark.parametrize("where", ["respond", "made", "snapshot"])
@pytest.mark.parametrize("fault", RAISED)
def test_whatever_a_clients_own_code_raises_is_that_clients_absence_and_changes_nothing_else(fault, where) -> None:
    """Held against the same client being away from that round on: the same numbers, bit for bit."""
    if where != "respond" and fault in ("another shape", "no array", "two clients"):
        pytest.skip("only an answer has a shape")
    odd, first = played(Fragile(fault=fault, where=where)), int(where == "respond")
    away = played(Away(first=first))
    same_releases(odd.releases[: first + 1], away.releases[: first + 1])
    assert len(odd.releases) == ROUNDS == len(odd.ledger.entries()) == len(away.ledger.entries())
    assert set(odd.failures) == {BAD}
    assert fault in odd.failures[BAD] or "shape" in odd.failures[BAD] or "could not convert" in odd.failures[BAD]
    assert np.isfinite(odd.clients.values[np.arange(N_CLIENTS) != BAD]).any(axis=1).all()


@dataclasses.dataclass(frozen=True)
class Away(Zoom):
    """Zoom without the answers of one client from a round on."""

    first: int = 0

    def cohort(self, setting, **named):
        def silenced(answers, round_: int):
            return np.where(((round_ >= self.first) & (inner.clients == BAD))[:, None], np.nan, answers)

        inner = super().cohort(setting, **named)
        return AlteredCohort(cohort=inner, alter=silenced)


def test_clients_asked_one_by_one_give_what_all_of_them_at_once_give(tmp_path) -> None:
    class AtOnce(Zoom):
        answers_together = True

    apart, together = played(Zoom()), played(AtOnce())
    np.testing.assert_allclose(values_of(apart), values_of(together), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(apart.clients.values, together.clients.values)


def test_a_run_of_separate_clients_goes_on_where_it_was_stopped(tmp_path) -> None:
    fragile = Fragile(fault="SystemExit", when=0)
    stopped(1, played, fragile, directory=tmp_path / "run")
    record = played(fragile, directory=tmp_path / "run", resume=True)
    same_releases(record, played(fragile))
    assert set(record.failures) == {BAD}


def test_an_algorithm_whose_clients_fail_on_made_up_values_is_refused_before_the_first_charge(tmp_path) -> None:
    class Mistyped(Zoom):
        def cohort(self, setting, **named):
            inner = super().cohort(setting, **named)
            return Changed(inner, respond=lambda _: inner.respnd)

    with pytest.raises(pb.ConfigurationError, match=r"made-up values.*respnd.*[Nn]othing was charged"):
        pb.run(problem(), Mistyped(), privacy=pb.Privacy(epsilon=2), rounds=ROUNDS, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_at_a_site_a_clients_error_is_its_own_and_not_its_neighbours(tmp_path) -> None:
    table = {"type": "tests.runs.test_evaluations:Fragile", "fault": "SystemExit", "when": 0}
    federation = make(tmp_path / "odd", table)
    federation.play()
    made, (first, *_) = releases(federation), sites(federation)
    np.testing.assert_allclose(made[0].values, played(Away(first=0)).releases[0].values, rtol=0, atol=1e-12)
    assert np.isfinite(first["values"]).any(axis=1).sum() == first["values"].shape[0] - 1


# ---- a rehearsal before a run exists: it stops a typo for nothing, and costs no evaluation

PRIVATE = pb.Privacy(noise_multiplier=4.0)
REWARDS = pb.Privacy(noise_multiplier=4.0, unit="reward")
JOBS = {"serial": {}, "threads": {"executor": "threads", "jobs": 2}}
dosed = partial(flat_problem, space={"dose": pb.Real(0, 1)})


def failing(*clients: int) -> pb.Problem:
    return dosed(20, objective=lambda client, params: params["Dose" if client in clients else "dose"])


@pytest.mark.parametrize("executor", JOBS)
def test_a_typo_of_all_clients_makes_no_directory_and_no_ledger(executor: str, tmp_path) -> None:
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward")
    asked = {"privacy": PRIVATE, "rounds": 2, "directory": tmp_path / "run"} | JOBS[executor]
    with pytest.raises(pb.RehearsalError, match=r"none of 20 clients has a value \(KeyError 20\)"):
        pb.run(failing(*range(20)), pb.SharedPrior(), ledger=people, **asked)
    assert not list(tmp_path.iterdir())
    made = pb.run(failing(*range(20)), pb.DPFTSDE(n_features=8), rehearse=False, **asked)
    assert len(made.ledger.entries()) == 2


def test_who_fails_in_a_rehearsal_is_told_to_the_private_side_and_the_run_goes_on(tmp_path, caplog, capfd) -> None:
    with caplog.at_level(logging.WARNING, "privbo.private"):
        made = pb.run(failing(3), pb.DPFTSDE(n_features=8), privacy=PRIVATE, rounds=2, directory=tmp_path / "run")
    said = [record.message for record in caplog.records if record.name == "privbo.private"]
    assert said == ["client 3: KeyError: 'Dose'", "rehearsal: 1 of 20 clients have no value (KeyError 1)"]
    assert len(made.ledger.entries()) == 2
    assert made.failures == {3: "KeyError: 'Dose'"} == pb.load(tmp_path / "run").failures
    assert "KeyError" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", OURS)
def test_a_run_takes_its_rehearsal_over_so_that_no_evaluation_is_made_twice(name: str, tmp_path) -> None:
    privacy = PRIVATE if name in OURS[:3] else REWARDS
    calls, found = list[int](), []
    shown = dosed(6, objective=lambda client, params: calls.append(client) or params["dose"])
    asked = {"privacy": privacy, "rounds": 2, "seed": 3}
    for rehearse in (True, False):
        made = pb.run(shown, EVERY[name], directory=tmp_path / f"{rehearse}", rehearse=rehearse, **asked)
        found.append((made.clients.units[:, 0].tolist(), sorted(calls)))
        calls.clear()
    assert found[0] == found[1]


@pytest.mark.parametrize(("executor", "jobs"), [("serial", 1), ("processes", 2)])
def test_workers_rehearse_too(executor: str, jobs: int, tmp_path) -> None:
    calls = Noting(tmp_path / "calls")
    noted = pb.Problem(space=problem().space, objective=calls, n_clients=7)
    asked = {"privacy": PRIVATE, "rounds": 1, "seed": 1, "executor": executor, "jobs": jobs}
    pb.run(noted, pb.SharedPrior(), directory=tmp_path / "run", **asked)
    assert len(calls.lines()) == len(set(calls.lines())) == 7 * (1 + pb.SharedPrior().n_init)


def misspelt(client: int, params: dict, rows: np.ndarray) -> float:
    return params["Dose"]


@pytest.mark.parametrize("executor", JOBS)
@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (pb.in_blocks(misspelt, n_records=[40] * 3, n_blocks=8), ["client 0, block 0 failed"]),
        (lambda client, params: np.full(8, np.nan), []),
        (lambda client, params: np.full(8, 55.0), []),  # percent
    ],
)
def test_scores_of_records_that_were_all_clipped_are_no_value(objective, words, executor, tmp_path, caplog) -> None:
    clipped = dosed(3, objective=objective, n_records=[8] * 3)
    records = pb.Privacy(epsilon=20.0, delta=1e-6, unit="record", protects="records")
    with pytest.raises(pb.RehearsalError, match="none of 3 clients has a value"):
        pb.run(clipped, privacy=records, rounds=4, directory=tmp_path / "run", **JOBS[executor])
    assert not (tmp_path / "run").exists()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "privbo.private"):
        assert "score_range" in pb.check(clipped).failures[2]
    assert [r.message for r in caplog.records if "client 0, block" in r.message] == words
    assert ("KeyError: 'Dose'" in caplog.text) == bool(words)
    in_range = dataclasses.replace(clipped, objective=lambda client, _: np.r_[np.full(7, 55.0), 0.5 * (client == 1)])
    assert pb.check(in_range).text == "each of 3 clients has a value"


def test_what_would_be_refused_is_refused_before_anybody_evaluates(tmp_path) -> None:
    calls = list[int]()
    counted = dosed(4, objective=lambda client, _: calls.append(client) or 0.5)
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=1.0, delta=1e-6)
    asked = {"privacy": PRIVATE, "rounds": 2, "directory": tmp_path / "run"}
    for refused in ({"policy": pb.Policy(epsilon=0.01, delta=1e-6)}, {"ledger": people}):
        with pytest.raises((pb.PolicyError, BudgetExceeded)):
            pb.run(counted, pb.DPFTSDE(n_features=8), **asked, **refused)
    assert not calls
    assert not list(tmp_path.iterdir())


def test_check_counts_kinds_and_keeps_the_constraints() -> None:
    def score(client: int, params: dict) -> float:
        if client < 3:
            raise ValueError(f"client {client}")
        return float("nan") if client == 3 else params["x"]

    found = pb.check(flat_problem(6, constraints=("x > 0.9",), objective=score))
    assert found.kinds == {"ValueError": 3, "no usable value": 1}
    assert found.n_clients == 6
    assert repr(found).startswith("<Rehearsal: 4 of 6 clients have no value (ValueError 3, no usable value 1); ")
    assert "client 0" not in repr(found)
    assert found.failures[0] == "ValueError: client 0"
    assert pb.check(dosed(6), clients=[0, 5]).n_clients == 2
    with pytest.raises(pb.ConfigurationError, match=r"clients are 0\.\.5"):
        pb.check(dosed(6), clients=[6])


def test_check_names_points_brought_along_that_a_run_would_leave_out() -> None:
    brought = {
        "earlier": lambda client: [({"x": 5.0 if client == 1 else 0.5}, 1.0)],
        "enqueued": lambda client: [{"x": 0.3}, {"y" if client == 3 else "x": 0.5}],
    }
    found = pb.check(flat_problem(**brought))
    assert (sorted(found.dropped), found.failures, pb.check(flat_problem()).dropped) == ([1, 3], {}, {})
    assert found.text == "each of 4 clients has a value; points that 2 brought along are left out"


def test_rewards_outside_their_range_are_no_value(tmp_path) -> None:
    """Scores in percent: every reward would be clipped to the same one."""
    percent = dosed(3, objective=lambda client, params: 80.0 * (client < 2))
    found = pb.check(percent, algorithm=pb.PFPNE(horizon=40))
    assert sorted(found.failures) == [0, 1]
    assert "a reward of 80 is clipped to reward_range=(0.0, 1.0)" in found.failures[0]
    assert not pb.check(percent, algorithm=pb.PFPNE(horizon=40, reward_range=(0, 100))).failures
    all_of_them = dataclasses.replace(percent, objective=lambda client, params: 80.0)
    whole_batch = dosed(3, batch_objective=lambda clients, units: np.full(3, np.nan))
    for valueless in (all_of_them, whole_batch):
        with pytest.raises(pb.RehearsalError, match=r"none of 3 clients has a value \(no usable value 3\)"):
            pb.run(valueless, pb.PFPNE(horizon=40), privacy=REWARDS, rounds=2, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("noise", ["simulation", "secure"])
def test_what_objectives_draw_is_repeatable_in_simulations_alone(noise: str, tmp_path) -> None:
    """A model that is trained with noise of its own under a seed that everybody reads would hide nothing."""
    objective = lambda client, params: float(np.random.random())  # noqa: E731, NPY002 (an objective may use it)
    run = partial(pb.run, dosed(4, objective=objective), pb.FedPNE(), rounds=2, seed=1)
    privacy, homes = pb.Privacy(epsilon=8.0, noise=noise), (tmp_path / "first", tmp_path / "second")
    values = [run(privacy=privacy, directory=home).clients.values[:, 0] for home in homes]
    assert np.array_equal(*values) == (noise == "simulation")
