"""Named random streams: whose they are, that they are numpy's bit for bit, and initial points of them."""

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.exploration import Regions
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms
from privbo.protocol.messages import PlainEvaluate
from tests.thompson.conftest import MIXED, PLANE, bumps, setting

CLIENTS = np.array([0, 1, 7, 1000, 2**31, 2**40 + 3])


def alone(seed, client, round_, stream):
    """A client's generator, made for it alone."""
    first, second = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    key = np.array([first, int(second) ^ int(client)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, round_, int(stream), 0]))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 64])
@pytest.mark.parametrize("seed", [0, 3, 2**62 + 11])
def test_draws_are_those_of_each_clients_own_generator(seed: int, count: int):
    for whose in ((0, Stream.INITIAL), (5, Stream.CHOICE)):
        expected = [alone(seed, client, *whose).random(count) for client in CLIENTS]
        np.testing.assert_array_equal(client_uniforms(seed, CLIENTS, *whose, count), expected)
        expected = [alone(seed, client, *whose).standard_normal(count) for client in CLIENTS]
        np.testing.assert_array_equal(client_normals(seed, CLIENTS, *whose, (count,)), expected)
        expected = [alone(seed, client, *whose).integers(7, dtype=np.uint32) for client in CLIENTS]
        drawn = [stream.integers(7, dtype=np.uint32) for stream in client_streams(seed, CLIENTS, *whose)]
        np.testing.assert_array_equal(drawn, expected)  # half a word, of which a client after it sees nothing


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["plane", "mixed"])
@pytest.mark.parametrize("start", ["region", "everywhere"])
def test_initial_points_are_those_of_every_clients_own_stream(space, start: str):
    algorithm, where = pb.DPFTSDE(n_features=8, n_regions=4, start=start, n_init=3), setting(n_clients=30, space=space)
    cohort = algorithm.cohort(where, clients=np.arange(30), evaluate=PlainEvaluate(bumps), seed=5)
    cohort.respond(algorithm.server(where).ask().broadcast)
    regions = algorithm.regions(where) if start == "region" else Regions.of(1, space)
    homes = np.arange(30) % 4 if start == "region" else np.zeros(30, dtype=int)
    units = cohort.history().units
    for client, home in enumerate(homes):
        corner = np.unravel_index(home, regions.splits)
        low, high = np.array([edges[i : i + 2] for edges, i in zip(regions.edges, corner, strict=True)]).T
        drawn = space.snap(low + alone(5, client, 0, Stream.INITIAL).random((400, space.n_dims)) * (high - low))
        np.testing.assert_array_equal(units[client, :3], drawn[regions.index(drawn) == home][:3])


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
