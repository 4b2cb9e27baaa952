"""Clients acting alone: every kind of draw on every kind of space, and the device setting."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.own import OwnActors, chunks, grid_index
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms
from privbo.protocol.messages import PlainEvaluate, Setting
from privbo.protocol.space import Int, Space
from tests.thompson.conftest import FINITE, MIXED, PLANE, bumps, play, setting

GRID = Space({"x": Int(0, 40), "y": Int(1, 9, log=True)})
OWN = OwnModel(n_features=32, fit_steps=5, n_candidates=64)


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE, GRID], ids=["plane", "mixed", "finite", "grid"])
@pytest.mark.parametrize(
    "change", [{"draw": "exact"}, {"draw": "features"}, {"draw": "exact", "refit_every": 0}], ids=str
)
def test_a_client_alone_draws_as_in_the_cohort(space, change):
    own = dataclasses.replace(OWN, n_candidates=400 if space is GRID else 64, **change)
    algorithm, where = Variant(n_features=12, own=own).local(), setting(space, rounds=3)
    trace, whole = play(algorithm, where)
    for client in (0, 4):
        alone = algorithm.cohort(where, clients=np.array([client]), evaluate=PlainEvaluate(bumps), seed=5)
        for ask, _ in trace:
            alone.respond(ask.broadcast)
        np.testing.assert_allclose(alone.history().units[0], whole.history().units[client], atol=1e-6)


@pytest.mark.parametrize("draw", ["paths", "exact", "features"])
@pytest.mark.parametrize("refit_every", [0, 1, 2])
def test_local_clients_improve_with_every_kind_of_draw(draw, refit_every):
    own = OwnModel(draw=draw, refit_every=refit_every, n_features=64, n_candidates=200, fit_steps=10)
    _, cohort = play(Variant(own=own).local(), setting(rounds=8))
    history = cohort.history()
    assert np.maximum.accumulate(history.values, axis=1).mean(axis=0)[-1] > 0.93  # ten uniform points reach 0.83


def _actors(own, space, n, t, scale=1.0):
    """Actors and what they know: n clients with t random canonical points."""
    generator = np.random.default_rng(3)
    units = space.snap(generator.random((n, t, space.n_dims)))
    values = generator.normal(size=(n, t))
    observations = Observations(
        embedded=torch.as_tensor(space.embed(units)),
        values=torch.as_tensor(values),
        mask=torch.ones(n, t, dtype=torch.bool),
        scale=torch.full((n,), scale, dtype=torch.float64),
    )
    where = Setting(space=space, n_clients=n, rounds=4, public_seed=11)
    return OwnActors(own, where, clients=np.arange(n), seed=5), observations, units


def test_an_inflation_of_nothing_is_the_posterior_mean_whatever_the_draw():
    # With next to no randomness every kind of draw is the exact posterior mean, so all choose its maximiser.
    found = []
    for draw, refit_every in (("exact", 0), ("exact", 5), ("paths", 0)):
        own = OwnModel(draw=draw, refit_every=refit_every, n_candidates=400, inflation=1e-9, fit_steps=1, n_features=8)
        if refit_every:
            still = Prior(median=0.4, spread=1e-3, low=0.39999, high=0.40001)
            one = Prior(median=1.0, spread=1e-3, low=0.99999, high=1.00001)
            own = dataclasses.replace(own, lengthscale=still, outputscale=one, noise_variance=1e-2)
        actors, observations, units = _actors(own, GRID, n=6, t=9)
        found.append(actors.maximisers(np.arange(6), observations, units, 1))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_known_noise_is_scaled_to_standardised_values():
    """A variance of 0.04 on values that were divided by 2 is one of 0.01 on values as they are."""
    found = []
    for variance, scale in ((0.04, 2.0), (0.01, 1.0), (0.5, 1.0)):
        own = OwnModel(refit_every=0, noise_variance=variance, n_features=32, n_candidates=64)
        actors, observations, units = _actors(own, PLANE, n=4, t=9, scale=scale)
        found.append(actors.maximisers(np.arange(4), observations, units, 1))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("space", [FINITE, GRID], ids=["finite", "grid"])
def test_grid_points_are_found_again(space):
    grid = space.grid()
    order = np.random.default_rng(0).permutation(len(grid))
    np.testing.assert_array_equal(grid_index(space, grid, grid[order][None])[0], order)


@pytest.mark.parametrize("draw", ["paths", "exact"])
def test_chunks_change_no_choice(draw):
    own = dataclasses.replace(OWN, draw=draw)
    actors, observations, units = _actors(own, PLANE, n=7, t=5)
    whole = actors.maximisers(np.arange(7), observations, units, 1)
    pieces = chunks(np.arange(7), 2**30, torch.device("cpu"))  # more than a processor works on at once
    assert [len(piece) for piece in pieces] == [1] * 7
    assert [len(piece) for piece in chunks(np.arange(7), actors.entries(5), torch.device("cpu"))] == [7]
    again, observations, units = _actors(own, PLANE, n=7, t=5)
    for piece in pieces:
        rows = torch.as_tensor(piece)
        np.testing.assert_allclose(
            again.maximisers(piece, observations.rows(rows), units[piece], 1), whole[piece], atol=1e-6
        )


_MAKERS = {
    getattr(torch, n)
    for n in ["ones", "zeros", "empty", "full", "eye", "arange", "tensor", "as_tensor", "linspace", "randn", "rand"]
}


class _Placement(TorchFunctionMode):
    """Notes every tensor that our code makes without naming a device."""

    def __init__(self):
        super().__init__()
        self.astray, self.made = [], 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        frame = sys._getframe(1)
        if function in _MAKERS and "/privbo/algorithms/thompson/" in frame.f_code.co_filename:
            self.made += 1
            if kwargs.get("device") is None and not isinstance(args[0], torch.Tensor):
                self.astray.append((frame.f_code.co_name, function.__name__))
        return function(*args, **kwargs)


@pytest.mark.parametrize(
    "own",
    [{}, {"draw": "exact"}, {"draw": "exact", "refit_every": 0}, {"draw": "features", "noise_variance": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("share", ["mean", "sample"])
def test_every_tensor_is_made_on_the_chosen_device(own, share):
    for space, features in ((PLANE, "paired"), (FINITE, "phase")):
        algorithm = Variant(n_features=12, share=share, features=features, own=dataclasses.replace(OWN, **own))
        with _Placement() as placement:
            play(algorithm, setting(space, rounds=2))
        assert placement.made > 10
        assert placement.astray == []


def test_a_tensor_without_a_device_is_caught():
    space = {"torch": torch}
    source = "def planted():\n    torch.ones(2)\n"
    exec(compile(source, "/privbo/algorithms/thompson/planted.py", "exec"), space)  # noqa: S102 (a planted fault)
    with _Placement() as placement:
        space["planted"]()
    assert placement.astray == [("planted", "ones")]


def test_streams_depend_on_seed_client_round_and_purpose_only():
    clients = np.array([3, 1, 2])
    draws = client_normals(7, clients, 4, Stream.PRIOR, (6,))
    np.testing.assert_array_equal(client_normals(7, clients[1:2], 4, Stream.PRIOR, (6,))[0], draws[1])
    others = [
        client_normals(8, clients, 4, Stream.PRIOR, (6,)),
        client_normals(7, clients, 5, Stream.PRIOR, (6,)),
        client_normals(7, clients, 4, Stream.SHARED_SAMPLE, (6,)),
    ]
    everything = np.concatenate([draws, *others])
    assert len(np.unique(everything)) == everything.size


def test_streams_are_standard():
    # 200,000 normals and uniforms of 2,000 clients: means within 5.5 standard errors (one in 2.6e7 each).
    normals = client_normals(1, np.arange(2000), 0, Stream.PRIOR, (100,))
    assert abs(normals.mean()) < 5.5 / np.sqrt(normals.size)
    assert abs((normals**2).mean() - 1) < 5.5 * np.sqrt(2 / normals.size)
    # Between clients: correlations of neighbours' streams.
    assert abs((normals[1:] * normals[:-1]).mean()) < 5.5 / np.sqrt(normals.size)
    uniforms = np.array([client_uniforms(1, np.arange(2000), round_, Stream.CHOICE)[:, 0] for round_ in range(100)])
    assert abs(uniforms.mean() - 0.5) < 5.5 * np.sqrt(1 / 12 / uniforms.size)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1


def test_streams_keep_their_numbers():
    # Frozen at first release: resumed runs rely on it.
    first = [generator.random() for generator in client_streams(2026, np.array([0, 41]), 3, Stream.CHOICE)]
    np.testing.assert_allclose(first, [0.826214091932845, 0.17345451877228646], rtol=1e-15)


def test_clients_generators_are_independent_of_each_other():
    """Kept side by side and drawn from in turns, each gives what it gives alone."""
    clients = np.array([0, 41, 7])
    alone = [generator.random(3) for generator in client_streams(2026, clients, 3, Stream.CHOICE)]
    kept = list(client_streams(2026, clients, 3, Stream.CHOICE))
    in_turns = np.array([[generator.random() for generator in kept] for _ in range(3)])
    np.testing.assert_array_equal(in_turns.T, alone)
    np.testing.assert_array_equal(in_turns[0], client_uniforms(2026, clients, 3, Stream.CHOICE)[:, 0])
