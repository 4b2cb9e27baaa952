"""Players at a size that takes seconds."""

import dataclasses
import json

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.dp_fts_de import Variant
from experiments.cells import Context, algorithm_of
from experiments.outcome import Outcome
from experiments.plays import elimination, f_lcb
from experiments.problems.clients import Clients
from experiments.problems.suites import smooth_arms
from experiments.run import Options, run
from experiments.study import study
from privbo.algorithms.thompson.exploration import Exploration
from privbo.algorithms.thompson.settings import OwnModel
from privbo.protocol.messages import PlainEvaluate
from tests.builders import same_releases
from tests.experiments.worlds import task
from tests.thompson.conftest import FINITE, MIXED, PLANE, bumps, play, setting

WORLD = {"function": "garland", "n_clients": 5, "horizon": 300}
SMALL = {"type": "experiments.problems.clients:Clients", "worlds": 1} | WORLD


def test_a_lost_optimum_is_seen() -> None:
    """A cap of two keeps one node per phase: under heavy noise that is a lottery."""
    lottery = algorithm_of({"type": "fed-pne", "cap": 2, "clip": 0.15, "centre": "client"})
    privacy = pb.Privacy(noise_multiplier=50.0, noise="simulation")
    world = SMALL | {"n_clients": 100, "horizon": 2000}
    given = (task(world, lottery, privacy=privacy, rounds=60, seed=seed) for seed in range(5))
    assert any(elimination.federated(one).figures["lost"] for one in given)


def test_some_clients_go_on_alone_after_all_of_them_shared() -> None:
    """The shared stage is the whole run's, release by release; whoever goes on plays the whole horizon."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-3, noise="simulation")
    made = algorithm_of({"type": "pf-pne", "gap": 0.1})
    whole, some = (
        elimination.federated(task(SMALL, made, privacy=privacy, rounds=60, options=options))
        for options in ({}, {"sampled": 3})
    )
    assert (some.figures["made"], some.figures["floats up"]) == (whole.figures["made"], whole.figures["floats up"])
    assert some.paid == whole.paid
    assert len(some.curves["local"]) == len(whole.curves["local"])
    assert 0.3 * whole.figures["local"] < some.figures["local"] < 3 * whole.figures["local"]

    def record(one: pb.PFPNE) -> pb.Record:
        problem = Clients(seed=1, **WORLD).environment().problem()
        return pb.run(problem, one, privacy=privacy, rounds=60, seed=1)

    algorithm = pb.PFPNE(gap=0.1, horizon=300, reward_range=(-0.1, 1.1), release_when="always")
    same_releases(record(elimination.shared_stage(algorithm)), record(algorithm))


# ---- F-LCB at the size of its bars


def test_a_wrong_best_arm_would_be_noticed() -> None:
    """Planted fault: with the first arm left out, another one is best, returned and most pulled."""
    whole, turned = (
        f_lcb.suite(task({"type": arms}, None, options={"budget": 203})).figures
        for arms in ("experiments.problems.suites:smooth_arms", f"{__name__}:turned_arms")
    )
    assert turned["returned"] == turned["most pulled"] == 1.0
    assert (turned["pulls 3"], turned["pulls 1"]) == (whole["pulls 1"], whole["pulls 3"])


def turned_arms(seed: int) -> list:
    return smooth_arms(seed)[::-1]


def test_cauchy_figure(tmp_path) -> None:
    run("f-lcb-cauchy", tmp_path, Options(scale="small", jobs=1))
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    (made,) = json.loads((tmp_path / "summary.json").read_text())["made"]  # no cells, so it is made here and now
    assert made.startswith(f"privbo {pb.__version__}, 20")
    (panel,) = study("f-lcb-cauchy", "small").panels
    found = f_lcb.cauchy(Context(panel=panel, seeds=range(5), out=tmp_path))
    regret = {name: np.mean([run.figures["regret"] for run in runs.values()]) for name, runs in found.items()}
    assert all(np.isfinite(list(regret.values())))
    assert max(regret["SGD-UCB-SMoM"], regret["SGD-UCB-SMoM-F"]) < 0.5 * regret["uniform play"]
    assert regret["SGD-UCB-SMoM-F"] < 0.4 * regret["SGD-UCB-SMoM-F, printed index"]  # which never settles
    assert isinstance(found["uniform play"][0], Outcome)
    assert regret["uniform play"] == pytest.approx(0.45 * 2500)


# ---- how far a client trusts what it is sent


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["plane", "mixed", "finite"])
@pytest.mark.parametrize(
    "own", [{}, {"draw": "exact"}, {"draw": "exact", "refit_every": 0}, {"draw": "features"}], ids=str
)
def test_an_informed_client_alone_behaves_as_in_the_cohort(space, own):
    own_model = dataclasses.replace(OwnModel(n_features=32, fit_steps=4, n_candidates=64), **own)
    algorithm = Variant(
        n_features=12, federated_step="informed", exploration=Exploration(power=0.0, scale=0.5), own=own_model
    )
    where = setting(space)
    trace, whole = play(algorithm, where)
    alone = algorithm.cohort(where, clients=np.array([2]), evaluate=PlainEvaluate(bumps), seed=5)
    for ask, answers in trace:
        np.testing.assert_allclose(alone.respond(ask.broadcast)[0], answers[2], atol=1e-6)
    np.testing.assert_allclose(alone.history().units[0], whole.history().units[2], atol=1e-6)


def test_a_variant_with_the_papers_settings_is_the_papers_algorithm_to_the_bit():
    """The studies' controls and the paper's arms then differ in nothing but what they name."""
    own = OwnModel(kernel="se", n_features=16, fit_steps=2, n_candidates=32)
    paper = dataclasses.replace(pb.DPFTSDE.paper(n_init=3), own=own)
    ours = dataclasses.replace(Variant.paper(n_init=3), own=own)
    assert paper.bound == ours.bound == 22.0
    (trace, one), (same, other) = (play(algorithm, setting(n_clients=8)) for algorithm in (paper, ours))
    for (ask, answers), (their_ask, theirs) in zip(trace, same, strict=True):
        np.testing.assert_array_equal(answers, theirs)
        if ask.request is not None:
            np.testing.assert_array_equal(ask.request.weights, their_ask.request.weights)
    np.testing.assert_array_equal(one.history().units, other.history().units)
    (_, one), (_, other) = (play(algorithm.local(), setting(n_clients=8)) for algorithm in (paper, ours))
    np.testing.assert_array_equal(one.history().units, other.history().units)
