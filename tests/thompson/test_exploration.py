"""Where clients explore: probabilities, regions, first points; and the named random streams that these are drawn of."""

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy.stats import qmc

import privbo as pb
from privbo.algorithms.thompson.exploration import Cut, Regions, Weighting, first_points
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms, public_stream
from privbo.protocol.messages import PlainEvaluate
from tests.thompson.conftest import FINITE, MIXED, PLANE, bumps, setting


def test_own_probability_is_one_less_a_power_of_the_iteration():
    found = [pb.Exploration(power=2.0, scale=0.5).own_probability(iteration) for iteration in (1, 2, 10)]
    assert found == pytest.approx([0.5, 0.875, 0.995])


@pytest.mark.parametrize(
    ("count", "splits"), [(1, (1, 1)), (2, (2, 1)), (3, (3, 1)), (4, (2, 2)), (6, (3, 2)), (8, (4, 2))]
)
def test_factors_go_round_the_coordinates(count, splits):
    regions = Regions.of(count, PLANE)
    assert regions.splits == splits
    assert regions.count == count


THREE = pb.Space({"kind": pb.Categorical(("a", "b", "c")), "depth": pb.Int(1, 4), "rate": pb.Real(1e-3, 1.0, log=True)})


# Appendix B: a_t - 1 is 15 for five iterations, then falls linearly to 0 in five.
SYNTHETIC = {1: 15.0, 5: 15.0, 6: 15.0, 7: 11.25, 8: 7.5, 9: 3.75, 10: 0.0, 40: 0.0}


@pytest.mark.parametrize(
    ("weighting", "ratios"),
    [
        (Weighting(schedule="synthetic"), {t: np.exp(a) for t, a in SYNTHETIC.items()}),
        (Weighting(sharpness=9.0), {1: np.exp(9), 11: np.exp(9), 40: 1.0}),  # "weights 1"
        (Weighting(sharpness=1000.0, form="linear"), {1: 1000.0, 11: 1000.0, 40: 1.0}),  # "weights 2"
        (Weighting(sharpness=40.0, form="square"), {1: 1600.0, 11: 1600.0, 40: 1.0}),  # "weights 3"
        (Weighting(schedule="constant"), {1: np.exp(15), 1000: np.exp(15)}),  # App. B.2.5
    ],
    ids=["synthetic", "weights 1", "weights 2", "weights 3", "non-adaptive"],
)
def test_the_papers_weightings_against_a_plain_loop(weighting, ratios):
    for iteration, ratio in ratios.items():
        found = weighting.weights(iteration, np.arange(7) % 3, 3)
        for region in range(3):
            raw = [ratio if client % 3 == region else 1.0 for client in range(7)]
            for client in range(7):
                assert found[region, client] == pytest.approx(raw[client] / sum(raw), rel=1e-12)


CUTS = (Cut(parameter="rate", at=(1e-2, 0.5)), Cut(parameter="depth", at=(3,)), Cut(parameter="kind", at=("b",)))


def test_explicit_cuts_put_every_value_where_a_reader_expects_it():
    regions = Regions.cut(CUTS, THREE)
    assert regions.count == 12
    assert regions.splits == (2, 2, 3)
    for kind, depth, rate in itertools.product("abc", (1, 2, 3, 4), (1e-3, 9e-3, 1e-2, 0.4, 0.5, 1.0)):
        where = THREE.encode({"kind": kind, "depth": depth, "rate": rate})
        expected = ((kind != "a") * 2 + (depth >= 3)) * 3 + (rate >= 1e-2) + (rate >= 0.5)
        assert regions.index(where) == expected


IMPOSSIBLE = {"nothing": [(1,)], "rate": [(), (0.5, 0.1), (1e-3,), (1.0,), (7.0,)], "depth": [(1,)], "kind": [("z",)]}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_cuts_are_refused(name):
    for at in IMPOSSIBLE[name]:
        with pytest.raises(pb.ConfigurationError):
            Regions.cut((Cut(parameter=name, at=at),), THREE)
    with pytest.raises(pb.ConfigurationError, match="once"):
        Regions.cut((CUTS[0], CUTS[0]), THREE)


def test_a_finite_space_is_not_asked_twice():
    points = first_points(setting(FINITE, n_clients=50), np.arange(50), 8)
    assert all(len(np.unique(row, axis=0)) == 8 for row in points)
    more = first_points(setting(FINITE, n_clients=3), np.arange(3), 12)  # the space has ten points
    assert all(len(np.unique(row, axis=0)) >= 8 for row in more)


def drawn_for_all(seed, n_clients, count, n_dims):
    """The definition: everybody's flips, level by level, and everybody's last digits from one generator."""
    generator, levels = public_stream(seed, Stream.INITIAL), (count - 1).bit_length()
    cells = (qmc.Sobol(n_dims, scramble=False).random(1 << levels)[:count] * (1 << levels)).astype(np.int64)
    taken = np.zeros((n_clients, count, n_dims), dtype=np.int64)
    for level in range(levels):
        above, digit = cells >> (levels - level), cells >> (levels - level - 1) & 1
        flips = generator.integers(2, size=(n_clients, 1 << level, n_dims))
        taken = 2 * taken + (digit ^ np.take_along_axis(flips, np.broadcast_to(above, taken.shape), axis=1))
    return (taken + generator.random(taken.shape)) / (1 << levels)


@pytest.mark.parametrize("n_clients", [1, 7, 30])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_groups_draw_their_own_points_and_they_are_those_of_all(n_clients, count):
    where = setting(PLANE, n_clients=n_clients, public_seed=11)
    whole = PLANE.snap(drawn_for_all(11, n_clients, count, PLANE.n_dims))
    for group in (np.arange(n_clients), np.arange(n_clients // 2, n_clients), np.arange(n_clients)[::-3]):
        np.testing.assert_array_equal(first_points(where, group, count), whole[group])
    assert first_points(where, np.arange(0), count).shape == (0, count, PLANE.n_dims)


def test_a_groups_points_take_its_own_share_of_memory():
    """Everybody's, of a million clients, would be hundreds of megabytes."""
    where = setting(PLANE, n_clients=1_000_000)
    tracemalloc.start()
    try:
        first_points(where, np.arange(999_000, 1_000_000), 10)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


# ---- named random streams: whose they are, that they are numpy's bit for bit, and initial points of them

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
