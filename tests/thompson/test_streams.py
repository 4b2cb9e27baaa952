"""Named random streams: whose they are, that they are numpy's bit for bit, and initial points of them."""

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.exploration import Regions
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms
from privbo.protocol.messages import PlainEvaluate
from tests.thompson.conftest import MIXED, PLANE, bumps, setting

CLIENTS = np.array([0, 1, 7, 1000, 2**31, 2**40 + 3])


@pytest.mark.parametrize("count", [1, 3, 4, 5, 64])
@pytest.mark.parametrize("seed", [0, 3, 2**62 + 11])
def test_draws_are_those_of_numpys_generators(seed: int, count: int):
    for round_, stream in ((0, Stream.INITIAL), (5, Stream.CHOICE)):
        expected = [g.random(count) for g in client_streams(seed, CLIENTS, round_, stream)]
        np.testing.assert_array_equal(client_uniforms(seed, CLIENTS, round_, stream, count), expected)
        expected = [g.standard_normal(count) for g in client_streams(seed, CLIENTS, round_, stream)]
        np.testing.assert_array_equal(client_normals(seed, CLIENTS, round_, stream, (count,)), expected)


def test_draws_of_many_clients_are_those_of_each_alone():
    """600,000 normals: some 4,000 in the layers' wedges, and 160 in the tail."""
    clients = np.concatenate([np.arange(594), CLIENTS]).astype(np.int64)
    draws = client_normals(2**62 + 11, clients, 5, Stream.PRIOR, (100, 10))
    expected = [g.standard_normal((100, 10)) for g in client_streams(2**62 + 11, clients, 5, Stream.PRIOR)]
    np.testing.assert_array_equal(draws, expected)
    assert np.abs(draws).max() > 3.66  # beyond which a ziggurat's tail is drawn


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["plane", "mixed"])
@pytest.mark.parametrize("start", ["region", "everywhere"])
def test_initial_points_are_those_of_every_clients_own_stream(space, start: str):
    algorithm, where = pb.DPFTSDE(n_features=8, n_regions=4, start=start, n_init=3), setting(n_clients=30, space=space)
    cohort = algorithm.cohort(where, clients=np.arange(30), evaluate=PlainEvaluate(bumps), seed=5)
    cohort.respond(algorithm.server(where).ask().broadcast)
    regions = algorithm.regions(where) if start == "region" else Regions.of(1, space)
    homes = np.arange(30) % 4 if start == "region" else np.zeros(30, dtype=int)
    units = cohort.history().units
    for client, generator in enumerate(client_streams(5, np.arange(30), 0, Stream.INITIAL)):
        home = int(regions.index(units[client])[0]) if start == "region" else int(homes[client])
        np.testing.assert_array_equal(units[client, :3], regions.sample(home, 3, space, generator))


def test_streams_keep_their_numbers():
    # Frozen at first release: resumed runs rely on it.
    first = [generator.random() for generator in client_streams(2026, np.array([0, 41]), 3, Stream.CHOICE)]
    np.testing.assert_allclose(first, [0.826214091932845, 0.17345451877228646], rtol=1e-15)
    drawn = [
        next(client_streams(seed, np.array([0]), round_, purpose)).random()
        for seed in (1, 2)
        for round_ in (1, 2)
        for purpose in (Stream.CHOICE, Stream.INITIAL)
    ]
    assert len(set(drawn)) == 8
