import dataclasses

import numpy as np
import pytest
import torch

import privbo as pb
from accountant.events import FixedSizeSampledGaussian
from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.evaluations import standardise
from privbo.algorithms.thompson.settings import OwnModel, Prior, shared_vectors
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, PlainEvaluate
from tests.builders import SIMULATED, problem
from tests.thompson.conftest import PLANE, bumps, play, setting

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

    def repeated(repeats):
        algorithm = dataclasses.replace(SMALL, own=own, repeats=repeats).local()
        _, cohort = play(algorithm, setting(rounds=12))
        units = cohort.history().units
        return sum(len(row) - len(np.unique(row, axis=0)) for row in units), units

    often, _ = repeated("query")
    never, units = repeated("replace")
    assert often > 10
    assert never == 0
    assert ((units > 0) & (units < 1)).all(axis=2).mean() > 0.2


def test_a_snapshot_does_not_follow_the_cohort():
    trace, _ = play(SMALL, setting())
    fresh = SMALL.cohort(setting(), clients=np.arange(6), evaluate=PlainEvaluate(bumps), seed=5)
    fresh.respond(trace[0][0].broadcast)
    fresh.respond(trace[1][0].broadcast)
    before = fresh.snapshot()
    frozen = {key: array.copy() for key, array in before.items()}
    for ask, _ in trace[2:]:
        fresh.respond(ask.broadcast)
    for key, array in frozen.items():
        np.testing.assert_array_equal(before[key], array)


def test_a_snapshot_of_other_clients_is_refused():
    cohort = SMALL.cohort(setting(), clients=np.array([1, 2]), evaluate=PlainEvaluate(bumps), seed=5)
    other = SMALL.cohort(setting(), clients=np.array([1, 3]), evaluate=PlainEvaluate(bumps), seed=5)
    with pytest.raises(ConfigurationError, match="other clients"):
        other.restore(cohort.snapshot())


def _broken(client, from_call):
    """An objective that fails for one client from its ``from_call``-th evaluation on."""
    calls = [0]

    def evaluate(clients, units):
        calls[0] += 1
        values = bumps(clients, units)
        values[clients == client] = np.nan if calls[0] > from_call else values[clients == client]
        return values

    return evaluate


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


@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_fixed_size_sampling_of_a_run_has_its_own_sensitivity_and_event(calibration):
    """Against the formulas written out: two clients separate the sums, ``round(q N)`` of N are drawn."""
    algorithm = pb.DPFTSDE(n_regions=2, n_features=8, clipping_norm=3.0, weighting=pb.Weighting(sharpness=2.0))
    privacy = dataclasses.replace(SIMULATED, sample_rate=0.4, sampling="fixed-size", calibration=calibration)
    result = pb.run(problem(9, space=PLANE), algorithm, privacy=privacy, rounds=1, seed=1)
    (request,) = algorithm.server(setting(n_clients=9, rounds=1)).plan()
    *_, second, first = np.sort(np.linalg.norm(request.weights, axis=0))
    sensitivity = (first + second) * 3.0 / np.sqrt(2) / (4 / 9)
    stddev = sensitivity if calibration == "tight" else request.weights.max() * 3.0 / (4 / 9)
    assert result.releases[0].noise_stddev == pytest.approx(stddev, rel=1e-12)
    event = result.ledger.entries()[0].event
    assert isinstance(event, FixedSizeSampledGaussian)
    assert (event.n_clients, event.sample_size) == (9, 4)
    assert event.noise_multiplier == pytest.approx(stddev / sensitivity, rel=1e-12)
