"""Clients of DP-FTS-DE: their answers, snapshots and failures; whole cohorts cut into shards, to the last bit."""

import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import privbo as pb
from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.evaluations import standardise
from privbo.algorithms.thompson.posterior import is_compiled
from privbo.algorithms.thompson.settings import OwnModel, Prior, shared_vectors
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, PlainEvaluate
from tests.thompson.conftest import GRID, MIXED, PLANE, bumps, machine_code, noisy_sum, play, setting

OWN = OwnModel(n_features=32, fit_steps=5, n_candidates=64)
SMALL = Variant(n_features=12, own=OWN, n_candidates=128)


@pytest.mark.parametrize("values", ["standardised", "raw"])
def test_answers_are_the_ridge_weights_of_the_history(values):
    algorithm, where = dataclasses.replace(SMALL, share="mean", values=values), setting()
    trace, cohort = play(algorithm, where)
    history, features = cohort.history(), algorithm.draw_features(where)
    for ask, answers in trace[:-1]:
        known = history.rounds <= ask.broadcast.round
        for n in range(where.n_clients):
            y = history.values[n, known]
            phi = features(torch.as_tensor(PLANE.embed(history.units[n, known]))).numpy()
            gram = phi.T @ phi + algorithm.noise * np.eye(12)
            modelled = (y - y.mean()) / y.std() if values == "standardised" else y
            expected = np.linalg.solve(gram, phi.T @ modelled)
            np.testing.assert_allclose(answers[n], expected, atol=1e-9)


def test_repeated_points_are_replaced_where_that_is_asked():
    """A draw from few features with a long length scale has its maximum in a corner, again and again."""
    sure = Prior(median=5.0, spread=0.1, low=4.0, high=6.0)
    own = OwnModel(draw="features", n_features=2, fit_steps=1, lengthscale=sure)

    again = {}
    for repeats in ("query", "replace"):
        _, cohort = play(dataclasses.replace(SMALL, own=own, repeats=repeats).local(), setting(rounds=12))
        units = cohort.history().units
        again[repeats] = sum(len(row) - len(np.unique(row, axis=0)) for row in units)
    assert again["query"] > 10
    assert again["replace"] == 0
    assert ((units > 0) & (units < 1)).all(axis=2).mean() > 0.2


def test_a_snapshot_does_not_follow_the_cohort():
    trace, _ = play(SMALL, setting())
    fresh = SMALL.cohort(setting(), clients=np.arange(6), evaluate=PlainEvaluate(bumps), seed=5)
    for index, (ask, _) in enumerate(trace):
        fresh.respond(ask.broadcast)
        if index == 1:
            before = fresh.snapshot()
            frozen = {key: array.copy() for key, array in before.items()}
    for key, array in frozen.items():
        np.testing.assert_array_equal(before[key], array)


def test_a_snapshot_of_other_clients_is_refused():
    cohort = SMALL.cohort(setting(), clients=np.array([1, 2]), evaluate=PlainEvaluate(bumps), seed=5)
    other = SMALL.cohort(setting(), clients=np.array([1, 3]), evaluate=PlainEvaluate(bumps), seed=5)
    with pytest.raises(ConfigurationError, match="other clients"):
        other.restore(cohort.snapshot())


def _broken(client, from_call):
    """An objective that fails for one client from its ``from_call``-th evaluation on."""
    calls = itertools.count()
    return lambda clients, units: np.where(
        (clients == client) & (next(calls) >= from_call), np.nan, bumps(clients, units)
    )


@pytest.mark.parametrize("from_call", [0, 3])
def test_a_failed_evaluation_is_an_absence_and_the_run_goes_on(from_call):
    trace, cohort = play(SMALL, setting(), _broken(client=2, from_call=from_call))
    healthy, _ = play(SMALL, setting())
    for (ask, answers), (_, whole) in zip(trace[:-1], healthy, strict=False):
        assert np.isnan(answers[2]).all() == (from_call == 0 or ask.broadcast.round >= 2)
        assert np.isfinite(np.delete(answers, 2, axis=0)).all()
        if ask.broadcast.round <= bool(from_call):
            np.testing.assert_array_equal(np.delete(answers, 2, axis=0), np.delete(whole, 2, axis=0))
    history = cohort.history()
    assert np.isfinite(history.values[2]).sum() == from_call
    assert np.isnan(history.recommended[2]).all() == (from_call == 0)
    assert np.isfinite(history.units).all()


@pytest.mark.parametrize("vectors", [np.zeros((2, 12)), np.full((1, 12), np.nan), np.zeros(12)])
def test_malformed_vectors_are_refused(vectors):
    with pytest.raises(ConfigurationError, match="vectors"):
        shared_vectors(Broadcast(round=1, arrays={"vectors": vectors}), (1, 12))


def test_standardise_ignores_what_is_missing():
    values = np.array([[1.0, np.nan, 3.0], [2.0, 2.0, 2.0], [np.nan] * 3, [0.1, 0.1, 0.1 + 1e-15]])
    found, scale = standardise(values, np.isfinite(values))
    np.testing.assert_allclose(found, [[-1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(scale, [1, 1, 1, 1])
    np.testing.assert_allclose(standardise(10 * values[:1], np.isfinite(values[:1]))[1], [10])


# ---- whole cohorts cut into shards: every client's points, answers and models to the last bit

N, ROUNDS = 10, 9
CHEAP = pb.OwnModel(fit_steps=8, n_candidates=64)
FORMS = {
    "log-ei": (pb.SharedPrior(own=CHEAP), PLANE),
    "log-ei, mixed": (pb.SharedPrior(own=CHEAP), MIXED),
    "thompson": (pb.SharedPrior(own=CHEAP, acquisition="thompson"), PLANE),
    "paper": (pb.DPFTSDE(own=CHEAP), PLANE),
    "paper, mixed": (pb.DPFTSDE(own=CHEAP), MIXED),
    "exact": (pb.DPFTSDE(own=replace(CHEAP, draw="exact")), PLANE),
    "exact, grid": (pb.DPFTSDE(own=replace(CHEAP, draw="exact", n_candidates=400)), GRID),
    "exact, common": (pb.DPFTSDE(own=replace(CHEAP, draw="exact", n_candidates=400, refit_every=0)), GRID),
    "features": (pb.DPFTSDE(own=replace(CHEAP, draw="features")), MIXED),
}


def failing(clients, units):
    """Of every seventh client the right half of the first coordinate fails."""
    return np.where((clients % 7 == 0) & (units[:, 0] > 0.5), np.nan, bumps(clients, units))


def played(algorithm, where, shards):
    """Everything the clients answer, evaluate and fit, from cohorts that hear the same broadcasts."""
    server, rng, found = algorithm.server(where), np.random.default_rng(0), {}
    cohorts = [algorithm.cohort(where, clients=part, evaluate=PlainEvaluate(failing), seed=3) for part in shards]
    while (ask := server.ask()) is not None:
        answers = np.concatenate([cohort.respond(ask.broadcast) for cohort in cohorts])
        found[f"answers of round {ask.broadcast.round}"] = answers
        server.tell(None if ask.request is None else noisy_sum(ask, answers, rng))
    for name in set(cohorts[0].snapshot()) - {"rounds"}:
        found[name] = np.concatenate([cohort.snapshot()[name] for cohort in cohorts])
    return found


@pytest.mark.parametrize("used", [True, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_a_client_does_not_depend_on_the_sharding(form, used):
    algorithm, space = FORMS[form]
    where = setting(n_clients=N, rounds=ROUNDS, space=space)
    with machine_code(used=used):
        whole = played(algorithm, where, [np.arange(N)])
        assert any(values.size for name, values in whole.items() if name.startswith("answers"))
        for parts in (3, N):
            for name, values in played(algorithm, where, np.array_split(np.arange(N), parts)).items():
                np.testing.assert_array_equal(values, whole[name], err_msg=f"{name} in {parts} shards")


def test_small_runs_do_not_wait_for_a_compiler_whoever_takes_part():
    """40 clients of 20 rounds on a processor are the last, of 10 with draws."""
    small = setting(n_clients=40, rounds=20)
    assert not is_compiled(small)
    assert is_compiled(setting(n_clients=41, rounds=20))
    assert is_compiled(setting(n_clients=40, rounds=21))
    assert is_compiled(small, draws=True)
    assert not is_compiled(setting(n_clients=40, rounds=10), draws=True)
    assert not is_compiled(replace(small, n_clients=10_000, device="cuda"), draws=True)
