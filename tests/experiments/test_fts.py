"""Federated Thompson sampling as first published, against the choice written out plainly."""

import numpy as np
import torch

import privbo as pb
from experiments.baselines.fts import FTS
from privbo.algorithms.thompson.exploration import Exploration
from privbo.algorithms.thompson.settings import OwnModel
from privbo.algorithms.thompson.streams import Stream, client_streams
from tests.thompson.conftest import play, setting

SPACE = pb.Space({"x": pb.Int(0, 99)})
SMALL = OwnModel(kernel="se", n_features=16, fit_steps=2, n_candidates=64)
ALGORITHM = FTS(
    n_features=8, n_init=3, features="phase", lengthscale=0.1, exploration=Exploration(power=0.0), own=SMALL
)  # every coin falls for the others


def test_a_federated_step_maximises_the_draw_of_a_picked_agent():
    where = setting(space=SPACE, n_clients=5, rounds=3)
    trace, cohort = play(ALGORITHM, where, seed=5)
    grid = SPACE.grid(100)
    heights = ALGORITHM.draw_features(where)(torch.as_tensor(SPACE.embed(grid))).numpy()
    history, distinct = cohort.history(), set()
    for ask, _ in trace[1:]:
        round_, vectors = ask.broadcast.round, ask.broadcast.arrays["vectors"]
        assert vectors.shape == (5, 8)
        at = np.flatnonzero(history.rounds == round_)[0]
        for client, stream in enumerate(client_streams(5, np.arange(5), round_, Stream.REPLACEMENT)):
            picked = int(stream.integers(5))
            distinct.add(picked)
            np.testing.assert_allclose(history.units[client, at], grid[np.argmax(heights @ vectors[picked])])
    assert len(distinct) > 2


def test_no_vector_is_mixed_with_another_or_clipped():
    where = setting(space=SPACE, n_clients=5, rounds=2)
    trace, _ = play(ALGORITHM, where)
    for ask, answers in trace[:-1]:
        np.testing.assert_array_equal(ask.request.weights, np.eye(5))
        assert np.linalg.norm(answers, axis=1).max() < ask.request.clipping_norm / np.sqrt(5)
    assert len(list(ALGORITHM.server(where).plan())) == 2
