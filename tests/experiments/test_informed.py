"""How far a client trusts what it is sent, against a plain regression per client."""

import dataclasses

import numpy as np
import pytest
import torch

import privbo as pb
from experiments.baselines.dp_fts_de import Variant
from experiments.baselines.informed import explain
from privbo.algorithms.thompson.exploration import Exploration
from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.settings import OwnModel
from privbo.protocol.messages import PlainEvaluate
from tests.thompson.conftest import FINITE, MIXED, PLANE, bumps, hyperparameters, play, setting

SMALL = OwnModel(n_features=16, fit_steps=2, n_candidates=32)


def _client(values, mask=None):
    values = np.atleast_2d(values)
    mask = np.ones(values.shape, dtype=bool) if mask is None else np.atleast_2d(mask)
    n, t = values.shape
    kept = np.where(mask, values, np.nan)
    standard = (kept - np.nanmean(kept, axis=1, keepdims=True)) / np.nanstd(kept, axis=1, keepdims=True)
    observations = Observations(
        embedded=torch.zeros(n, t, 1, dtype=torch.float64),
        values=torch.as_tensor(np.where(mask, standard, 0.0)),
        mask=torch.as_tensor(mask),
        scale=torch.ones(n, dtype=torch.float64),
    )
    return observations, hyperparameters(np.ones((n, 1)), outputscale=2.0, noise=0.02)


def test_the_regression_is_that_of_every_client_alone():
    generator = np.random.default_rng(0)
    heights, values = generator.normal(size=(3, 9)), generator.normal(size=(3, 9))
    values[0] += 3.0 * heights[0]
    mask = np.ones((3, 9), dtype=bool)
    mask[1, 2:5] = False
    observations, models = _client(values, mask)
    found = explain(observations, models, torch.as_tensor(heights), 0.0)
    for n in range(3):
        h, y = heights[n, mask[n]], observations.values[n].numpy()[mask[n]]
        slope, intercept = np.polyfit(h, y, 1)
        residual = y - slope * h - intercept
        np.testing.assert_allclose(found.slope[n], slope, rtol=1e-9)
        np.testing.assert_allclose(found.observations.values[n].numpy()[mask[n]], residual, atol=1e-9)
        assert (found.observations.values[n].numpy()[~mask[n]] == 0).all()
        share = residual @ residual / (y @ y)
        np.testing.assert_allclose(found.models.outputscale[n], 2.0 * max(share - 0.02, 0.05), rtol=1e-9)


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


def test_uniform_steps_share_nothing_and_keep_coins_and_start():
    shared = Variant(n_regions=2, n_features=8, own=SMALL, exploration=pb.Exploration(power=0.0, scale=0.5))
    uniform = Variant(n_regions=2, n_features=8, own=SMALL, exploration=shared.exploration, federated_step="uniform")
    where = setting(n_clients=40, rounds=1)
    assert not list(uniform.server(where).plan())
    (_, one), (trace, other) = play(shared, where), play(uniform, where)
    assert all(ask.request is None and answers.shape == (40, 0) for ask, answers in trace)
    a, b = one.history(), other.history()
    np.testing.assert_array_equal(a.units[:, :2], b.units[:, :2])
    same = (a.units[:, 2] == b.units[:, 2]).all(axis=1)  # those who trusted themselves did the same
    together = (a.units[:, 2] == np.median(a.units[~same, 2], axis=0)).all(axis=1)
    np.testing.assert_array_equal(together, ~same)
    assert 8 <= same.sum() <= 32
    assert len(np.unique(b.units[~same, 2], axis=0)) == (~same).sum()


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
