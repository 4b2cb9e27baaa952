"""Models trained under differential privacy on the records that they score: what is paid, said and refused."""

import dataclasses
import math
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from accountant import Adjacency, Gaussian, PoissonSampledGaussian, compose, repeat
from accountant.errors import CalibrationError, EventError
from accountant.events import parts, to_dict
from accountant.tight import numerical
from accountant.verify.auditor import verify_bundle
from privbo.door.clipping import clip_rows
from privbo.door.noise import SimulatedNoise
from privbo.door.sums import noisy_sums
from privbo.protocol.messages import PlainEvaluate, Request, Setting
from privbo.protocol.problem import ProblemSource
from privbo.reports.bundle import write_bundle
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import planned_requests
from privbo.runs.recovery import recover
from privbo.runs.sources import load_problem
from privbo.training.plan import RecordPrivacy, priced
from tests.runs.test_evidence import copy

COUNT, TRAINING = 900, Gaussian(noise_multiplier=8.0)
PRIVACY = pb.Privacy(epsilon=2.0, delta=1e-6, unit="record", protects="records")


def problem(spent=TRAINING, training=TRAINING, **changes) -> pb.Problem:
    def objective(client: int, params):
        scores = np.full(COUNT, 1.0 - (params["dose"] - 0.4 - client / 100) ** 2)
        return scores if spent is None else (scores, spent)

    plain = {"n_clients": 8, "n_records": [COUNT] * 8, "training": training}
    return pb.Problem(space={"dose": pb.Real(0.0, 1.0)}, **{"objective": objective} | plain | changes)


def spec(algorithm, problem: pb.Problem, privacy: pb.Privacy, rounds: int) -> pb.Spec:
    return pb.Spec(name="one", problem=problem, algorithm=algorithm, privacy=privacy, rounds=rounds)


def test_the_price_before_the_run_includes_the_trainings_behind_the_release() -> None:
    plan = pb.plan(problem(), privacy=PRIVACY, rounds=5)
    plain = pb.plan(problem(None, None), privacy=PRIVACY, rounds=5)
    assert (plan.releases, plan.training) == (1, repeat(TRAINING, 4))
    assert plan.event == compose([(TRAINING, 4), Gaussian(noise_multiplier=plan.noise_multiplier)])
    assert 0.999 * 2.0 < numerical.epsilon(plan.event, 1e-6, adjacency=Adjacency.REPLACE_ONE) <= 2.0
    # Gaussian differential privacy adds in squares: 1 / z^2 and four times 1 / 8^2 are what 1 / z0^2 was alone.
    left = 1.0 / plain.noise_multiplier**2 - 4.0 / 64.0
    assert plan.noise_multiplier == pytest.approx(left**-0.5, rel=1e-3)
    assert "trainings" not in plain.unit_text


def test_trainings_that_leave_nothing_for_the_release_are_refused_before_data() -> None:
    with pytest.raises(CalibrationError, match="a part whose cost does not fall with the noise"):
        pb.plan(problem(training=Gaussian(noise_multiplier=1.0)), privacy=PRIVACY, rounds=5)


def test_one_charge_holds_both_and_every_view_says_so(tmp_path) -> None:
    record = pb.run(problem(), privacy=PRIVACY, rounds=2, seed=0, directory=tmp_path / "run")
    assert record.failures == {}
    assert [entry.event for entry in record.ledger.entries()] == [record.plan.event]
    assert record.epsilon() == pytest.approx(2.0, rel=2e-3)
    words = "the price includes every site's trainings: 4 x (Gaussian, multiplier 8)"
    loaded = pb.load(tmp_path / "run")
    assert words in loaded.plan.unit_text
    assert words in pb.report(loaded).unit_text
    assert (loaded.plan.training, loaded.plan.event) == (record.plan.training, record.plan.event)
    found = verify_bundle(write_bundle(tmp_path / "run").path)
    assert (found.problems, found.uncounted) == ([], [])
    assert any("1 release, declared in row 1 before the first; 1 made" in line for line in found.statement)


@pytest.mark.parametrize(
    "spent",
    [None, Gaussian(noise_multiplier=7.9), repeat(TRAINING, 2), "a word"],
    ids=("none", "louder", "two", "word"),
)
def test_an_evaluation_whose_training_cost_something_else_counts_as_failed(spent) -> None:
    evaluate = problem(spent).evaluator()
    assert np.isnan(evaluate(np.array([3]), np.array([[0.5]])))
    assert "problem.training declares Gaussian(noise_multiplier=8.0)" in evaluate.errors[3]
    paid = problem(repeat(TRAINING, 1)).evaluator()
    assert paid(np.array([3]), np.array([[0.5]])) == pytest.approx(1.0 - 0.07**2)


def test_what_a_model_tells_of_a_record_is_charged() -> None:
    """All scores follow a model that one record moves by half a deviation; 20,000 releases of each of two worlds.

    The sum then tells which side the model fell on. A Gaussian release alone allows .080 of total variation, with its
    training .212; found is that of the training alone, .197, at a standard error of .005.
    """
    count, trials, training = 60, 20_000, Gaussian(noise_multiplier=2.0)
    privacy = pb.Privacy(noise_multiplier=5.0, delta=1e-6, unit="record", protects="records", noise="simulation")

    def world(record: float) -> pb.Problem:
        secret = np.random.default_rng(int(record) + 1)

        def objective(_client: int, _params):
            model = record + secret.normal(0.0, 2.0)
            return np.full(count, float(model > 0.5)), training

        return problem(objective=objective, n_clients=1, n_records=[count], training=training)

    asked = spec(pb.MultiTask(front=1, release_when="always"), world(0.0), privacy, 1)
    (request,) = planned_requests(asked)
    made = privacy.mechanism(request, 5.0)
    seen = []
    for record in (0.0, 1.0):
        evaluate = world(record).evaluator()
        values = evaluate(np.zeros(trials, dtype=np.int64), np.full((trials, 1), 0.5))
        rows = clip_rows(count * (values[:, None] - 0.5), made.applied_bound)
        noise = SimulatedNoise(int(record)).stream("0")
        everybody = np.ones((1, 1), dtype=bool)
        sums = [noisy_sums(made, request.weights, row[None], everybody, noise)[0, 0, 0] for row in rows]
        seen.append(np.mean(np.array(sums) > 0.0))
    apart = seen[1] - seen[0]

    def variation(event) -> float:
        return float(numerical.delta(event, 0.0, adjacency=Adjacency.REPLACE_ONE))

    assert made.event() == compose([training, Gaussian(noise_multiplier=5.0)])
    assert apart < variation(made.event()) + 0.025
    assert apart > variation(Gaussian(noise_multiplier=5.0)) + 0.08  # planted: a price without the training is broken
    assert apart > 0.8 * variation(made.event())


def test_a_persons_records_are_trained_on_together() -> None:
    several = dataclasses.replace(PRIVACY, epsilon=8.0, records_per_person=2)
    assert pb.plan(problem(), privacy=several, rounds=5).training == repeat(Gaussian(noise_multiplier=4.0), 4)
    sampled = PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=2.0)
    assert pb.plan(problem(training=sampled), privacy=PRIVACY, rounds=5).training == repeat(sampled, 4)
    with pytest.raises(EventError, match="of 2 units together nothing tight is proven"):
        pb.plan(problem(training=sampled), privacy=several, rounds=5)


def test_where_clients_are_hidden_training_costs_nothing_more() -> None:
    assert pb.plan(problem(), pb.SharedPrior(), privacy=pb.Privacy(epsilon=8.0), rounds=9).training is None


QUIET = Gaussian(noise_multiplier=20.0)
ALL = {"horizon": 60, "release_when": "always"}
ELIMINATIONS = [
    (pb.FedPNE(c=0.02, cap=4, **ALL), [8, 8, 8, 16]),
    (pb.FedPNE(c=0.02, **ALL), [8, 16, 32, 48]),  # 60 pulls, of which the phases before take 8, 2 and 2 at least
    (pb.PFPNE(c=0.02, cap=4, **ALL), [1, 2, 4, 4]),
    (pb.ParallelXArmed(nu1=5.0, rho=0.8, **ALL), [1, 2, 4, 8]),
]


@pytest.mark.parametrize(("algorithm", "most"), ELIMINATIONS, ids=lambda one: getattr(one, "type", ""))
def test_every_release_of_an_elimination_pays_for_the_models_that_its_pulls_may_train(algorithm, most) -> None:
    """What earlier releases leave to pull changes no price: a round's number alone decides it."""
    asked = problem(QUIET, QUIET)
    privacy = dataclasses.replace(PRIVACY, epsilon=8.0)
    plan = pb.plan(asked, algorithm, privacy=privacy, rounds=4)
    one = Gaussian(noise_multiplier=plan.noise_multiplier)
    assert plan.training == repeat(QUIET, sum(most))
    assert 0.999 * 8.0 < numerical.epsilon(plan.event, 1e-6, adjacency=Adjacency.REPLACE_ONE) <= 8.0
    record = pb.run(asked, algorithm, privacy=privacy, rounds=4, seed=0)
    assert record.failures == {}
    made, calls = [release.round for release in record.releases], record.clients.calls
    assert len(made) >= 3
    assert calls is not None
    for entry, round_ in zip(record.ledger.entries(), made, strict=True):
        assert entry.event == compose([(QUIET, most[round_]), one])
        assert (calls[:, record.clients.rounds == round_].sum(axis=1) <= most[round_]).all()


def test_a_recovery_charges_the_models_of_a_lost_release_again(tmp_path) -> None:
    home, privacy = tmp_path / "run", dataclasses.replace(PRIVACY, epsilon=8.0)

    def backup(event: pb.Round) -> None:
        if event.index == 0:
            copy(home, tmp_path / "old", ("ledger", "commits"))

    algorithm = ELIMINATIONS[0][0]
    with pb.run(
        problem(QUIET, QUIET), algorithm, privacy=privacy, rounds=2, directory=home, on_round=backup
    ).ledger as whole:
        lost = whole.entries()[-1].event
    copy(tmp_path / "old", home, ("ledger", "commits"))
    recover(RunDirectory(home))
    with pb.load(home).ledger as ledger:
        (again,) = ledger.book().paid_again
    assert dict(parts(again)) == dict(parts(lost))
    assert dict(parts(lost))[QUIET] == 8


def test_a_server_that_asks_for_more_models_than_are_planned_is_refused() -> None:
    """Planted: a phase of more pulls than its round has models, rounds beside the planned ones, and nodes in rows."""
    for algorithm, most in ELIMINATIONS:
        asked = spec(algorithm, problem(QUIET, QUIET), dataclasses.replace(PRIVACY, epsilon=8.0), 4)
        server = algorithm.server(asked.setting(0))
        honest = server.ask().broadcast
        assert server.request_for(honest).training == repeat(QUIET, most[0])
        pulls = np.full_like(honest.arrays["pulls"], most[0] + 1)
        louder = dataclasses.replace(honest, arrays=honest.arrays | {"pulls": pulls})
        for broadcast in (louder, *(dataclasses.replace(honest, round=round_) for round_ in (len(most), -1))):
            with pytest.raises(pb.ConfigurationError, match="models planned; none is"):
                server.request_for(broadcast)
        row = honest.arrays | {"nodes": np.arange(most[0] + 1)[None]}  # one row, whose length is 1
        for pulls in (row["pulls"], np.array(1), np.ones(1, dtype=np.int64), np.ones((1, most[0] + 1), dtype=np.int64)):
            hostile = dataclasses.replace(honest, arrays=row | {"pulls": pulls})
            objective = mock.Mock(return_value=np.zeros(2))
            evaluate = PlainEvaluate(objective)
            cohort = algorithm.cohort(asked.setting(0), clients=np.arange(2), evaluate=evaluate, seed=0)
            for give in (server.request_for, cohort.respond):
                with pytest.raises(pb.ConfigurationError, match=r"in one list|give one integer"):
                    give(hostile)
            objective.assert_not_called()


def test_a_file_declares_it_and_it_is_part_of_the_runs_identity() -> None:
    plain = {"objective": "somewhere:scores", "n_clients": 8, "n_records": [COUNT] * 8}
    privacy = {"epsilon": 2.0, "delta": 1e-6, "unit": "record", "protects": "records"}

    def told(multiplier: float) -> pb.Spec:
        training = {"type": "gaussian", "noise_multiplier": multiplier}
        space = {"dose": {"type": "real", "low": 0.0, "high": 1.0}}
        table = plain | {"space": space, "training": training}
        return pb.Spec.from_dict({"name": "told", "rounds": 5, "problem": table, "privacy": privacy})

    asked = told(8.0)
    assert asked.problem.training == TRAINING
    assert pb.Spec.from_dict(asked.to_dict()).digest() == asked.digest() != told(9.0).digest()
    with pytest.raises(pb.ConfigurationError, match="give the accountant's event of one training"):
        problem(training=2.0)
    with pytest.raises(pb.ConfigurationError, match=r"problem\.training=.*noise_multiplier"):
        told(-1.0)


def test_a_private_training_is_priced_for_a_record_that_is_replaced() -> None:
    """Replacing moves a sum of clipped gradients by twice the clipping norm, a mean of losses by twice its share."""
    plan = priced(RecordPrivacy(epsilon=4.0, pulls=1, steps=20), n_training=400, n_validation=100)
    train, judge = plan.noise_multipliers
    step = PoissonSampledGaussian(sample_rate=1 / 16, noise_multiplier=train / 2)
    assert plan.event == compose([(step, 20), Gaussian(noise_multiplier=judge / 2)])
    both = numerical.epsilon(plan.event, 1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert math.isfinite(both)
    assert both > plan.epsilon()["both"]
    declared = pb.plan(
        problem(training=plan.event), privacy=dataclasses.replace(PRIVACY, epsilon=60.0, delta=1e-5), rounds=5
    )
    assert declared.training == repeat(plan.event, 4)


class Forgetful(pb.MultiTask):
    """An algorithm of a user's that knows nothing of trainings."""

    def requests(self, setting: Setting) -> tuple[Request, ...]:
        return tuple(dataclasses.replace(request, training=None) for request in super().requests(setting))


def test_requests_without_the_trainings_behind_their_scores_are_refused_before_data() -> None:
    with pytest.raises(pb.ConfigurationError, match="Forgetful asks for scores and leaves out what training"):
        pb.plan(problem(), Forgetful(release_when="always"), privacy=PRIVACY, rounds=5)
    assert pb.plan(problem(None, None), Forgetful(release_when="always"), privacy=PRIVACY, rounds=5).releases == 1


def test_a_factory_that_declares_another_training_than_its_table_is_refused() -> None:
    where = "tests.multitask.test_trained:problem"
    stated = ProblemSource(factory=where, arguments={"training": None}, training=to_dict(TRAINING))
    with pytest.raises(pb.ConfigurationError, match="training"):
        load_problem(stated, "hospitals")
    same = dataclasses.replace(stated, arguments={})
    assert load_problem(same, "hospitals").training == TRAINING
