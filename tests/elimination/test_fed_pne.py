"""Fed-PNE, PF-PNE, PE and the parallel bandit against their pseudo-code; their edges, and where guarantees end."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

import privbo as pb
from experiments.baselines.tree import locate
from privbo.algorithms.elimination.pulls import recommend
from privbo.algorithms.elimination.settings import NOISE_FAILURE, Partition, TreeSettings, noise_half_width
from privbo.protocol.messages import FloatArray, IntArray, PlainEvaluate, Setting
from privbo.protocol.space import different
from tests.builders import release
from tests.elimination.test_edges import ALL

SPACE = pb.Space({"x": pb.Real(0, 1)})


def hills(clients: IntArray, units: FloatArray) -> FloatArray:
    """Two hills per client, moved a little; values in [0, 1]."""
    x = units[:, 0] + 0.01 * np.sin(clients)
    return np.asarray(0.5 + 0.3 * np.sin(7 * x) + 0.15 * np.cos(31 * x))


class Recorder:
    """Clients without noise whose pulls are noted: client, point and number."""

    def __init__(self, objective=hills) -> None:
        self.objective, self.seen = objective, list[tuple[int, float, int]]()

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        self.seen += [(int(c), float(x), int(n)) for c, x, n in zip(clients, units[:, 0], counts, strict=True)]
        return self.objective(clients, units)

    def of(self, client: int) -> list[tuple[float, int]]:
        return [(x, n) for who, x, n in self.seen if who == client and n]


def run(algorithm, objective=hills, n_clients: int = 20, **settings) -> tuple[Recorder, pb.Record]:
    """A run without privacy, and what its clients pulled."""
    recorder = Recorder(objective)
    problem = pb.Problem(space=SPACE, batch_objective=recorder, n_clients=n_clients, name="hills")
    return recorder, pb.run(problem, algorithm, **{"privacy": pb.NoPrivacy(), "rounds": 50, "seed": 1} | settings)


@pytest.mark.parametrize("form", [{"centre": "client"}, {"centre": "client", "clip": 0.01}, {"widen": 0.0}], ids=str)
def test_with_privacy_off_every_private_form_is_the_plain_algorithm(form) -> None:
    (found, _), (plain, _) = (run(pb.FedPNE(horizon=700, **more)) for more in (form, {}))
    assert found.seen == plain.seen


def test_the_cap_holds_after_the_first_phase() -> None:
    setting = Setting(space=SPACE, n_clients=300, rounds=9, public_seed=0)
    server = pb.FedPNE.heuristic(horizon=3000).server(setting)
    sizes = []
    while (ask := server.ask()) is not None and ask.request is not None:
        sizes.append(ask.request.dim)
        assert ask.request.clipping_norm == pytest.approx(0.15 * math.sqrt(ask.request.dim))
        server.tell(release(np.zeros((1, ask.request.dim)), 1.0))
    assert max(sizes[1:]) <= 8


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("algorithm", [pb.FedPNE(horizon=700), pb.ParallelXArmed(horizon=2000, nu1=0.5)], ids=str)
def test_noise_widens_every_comparison(algorithm, stays: bool) -> None:
    """A node goes exactly when it is behind by more than 2 b + 2 beta + nu1 rho^h, of the parallel bandit 2 b twice."""
    server = algorithm.server(Setting(space=SPACE, n_clients=20, rounds=3, public_seed=0))
    confidence, depth, (pulls, *_) = algorithm.confidence(20), server.phase.depth, server.phase.pulls
    spread, n_nodes = confidence.variation(depth), len(server.phase.nodes)
    apart = 3 * spread if isinstance(algorithm, pb.ParallelXArmed) else 2 * confidence.radius(int(pulls) * 20) + spread
    behind = apart + 2 * noise_half_width(0.01, n_nodes, 3, 20) + (-1e-6 if stays else 1e-6)
    values = np.full((1, n_nodes), -behind)
    values[0, 0] = 0.0
    server.tell(release(values, 0.01))
    assert len(server.phase.nodes) == (2 * n_nodes if stays else 2)


def test_the_plan_bounds_every_run() -> None:
    """No noise makes more releases than planned; noise that never eliminates makes fewer."""
    for n_clients, horizon in ((5, 900), (200, 10), (100, 5000), (1000, 5000)):
        setting = Setting(space=SPACE, n_clients=n_clients, rounds=100, public_seed=0)
        counts = set()
        for scale in (1e-9, 1e9):  # decisive, and hopeless, differences
            server = pb.FedPNE(horizon=horizon).server(setting)
            planned, made = len(list(server.plan())), 0
            while (ask := server.ask()) is not None and ask.request is not None:
                server.tell(release(np.arange(ask.request.dim, dtype=float)[None], scale, made))
                made += 1
            assert 1 <= made <= planned
            counts.add(made)
        assert max(counts) == planned


def test_rounds_limit_the_releases_and_the_rest_is_silent() -> None:
    recorder, result = run(pb.FedPNE(horizon=700), rounds=2)
    assert len(result.releases) == 2
    assert sum(n for _, n in recorder.of(0)) == 700
    assert recorder.of(0)[-1][1] > 600


def test_stop_leaves_the_rest_of_the_horizon() -> None:
    assert sum(n for _, n in run(pb.FedPNE(horizon=700, tail="stop"))[0].of(0)) < 700


def test_the_first_phase_is_split_as_far_as_the_horizon_holds() -> None:
    """A thousand clients would split the root into 64 nodes at once; with 5 pulls each it is 4."""
    server = pb.FedPNE(horizon=5).server(Setting(space=SPACE, n_clients=1000, rounds=5, public_seed=0))
    assert server.phase is not None
    assert server.phase.pulls.tolist() == [1, 1, 1, 1]


# ---- the papers' points and pulls


CASES = range(100)
Cell = tuple[float, float]
Pulls = list[tuple[float, int]]  # by the centres of nodes, in order


def surface(case: int, n_clients: int):
    """Random waves per client in [0, 1]: ``(n_clients, len(x))``."""
    generator = np.random.default_rng(case)
    places, heights = generator.uniform(0, 6.28, (n_clients, 3)), generator.uniform(0.05, 0.15, 3)
    speeds = generator.uniform(2, 30, 3)

    def values(x: FloatArray) -> FloatArray:
        common = places.mean(axis=0) + 0.3 * (places - places.mean(axis=0))
        waves = np.sin(speeds[:, None] * x[None, None, :] + common[:, :, None])
        return np.asarray(0.5 + (heights[None, :, None] * waves).sum(axis=1))

    return values


def of_each(values):
    """The same as clients' objective."""
    return lambda clients, units: np.asarray(values(units[:, 0])[clients, np.arange(len(clients))])


def split(cells: list[Cell], k: int) -> list[Cell]:
    return [(a + (b - a) * j / k, a + (b - a) * (j + 1) / k) for a, b in cells for j in range(k)]


def fed_pne(mean, m: int, horizon: int, k: int, tail: str) -> tuple[Pulls, float]:
    """Algorithm 1 of Fed-PNE with nu1 = 1, rho = 1/2, c = .1, c1 = 1: pulls, and the last whole phase's best node."""
    log = math.log(horizon * m)

    def tau(h: int) -> int:
        return math.ceil(0.1**2 * log * 4**h)

    active, h, t, played, best = [(0.0, 1.0)], 0, 0, [], (0.0, 1.0)
    while t < horizon:
        while len(active) * tau(h) < m or h == 0:
            active, h = split(active, k), h + 1
        pulls = math.ceil(tau(h) / m)
        if len(active) * pulls > horizon - t:
            if tail == "commit":
                return [*played, (sum(best) / 2, horizon - t)], sum(best) / 2
            for cell in active:
                now = min(pulls, horizon - t)
                played += [(sum(cell) / 2, now)] if now else []
                t += now
            break
        means = [mean(cell) for cell in active]
        played += [(sum(cell) / 2, pulls) for cell in active]
        t += pulls * len(active)
        b = 0.1 * math.sqrt(log / (m * pulls))
        top = max(means)
        best = active[means.index(top)]
        active = split([cell for cell, mu in zip(active, means, strict=True) if not mu + b + 0.5**h < top - b], k)
        h += 1
    return played, sum(best) / 2


def parallel(mean, m: int, horizon: int, k: int, _: str) -> tuple[Pulls, float]:
    """The parallel bandit with nu1 = 1, rho = 1/2, delta = 1/n: pulls, and the best node of the last whole depth."""
    active, depth, played, best = [(0.0, 1.0)], 0, [], (0.0, 1.0)
    while True:
        log = math.log(math.pi**2 * (depth + 1) ** 2 * len(active) / 3 * horizon)
        pulls = math.ceil(log / (2 * 0.25**depth * m))
        if sum(n for _, n in played) + pulls * len(active) > horizon:
            return played, sum(best) / 2
        played += [(sum(cell) / 2, pulls) for cell in active]
        means = [mean(cell) for cell in active]
        best = active[means.index(max(means))]
        kept = [cell for cell, mu in zip(active, means, strict=True) if mu >= max(means) - 3 * 0.5**depth]
        active, depth = split(kept, k), depth + 1


PAPERS = {
    "fed-pne": (fed_pne, pb.FedPNE.paper),
    "parallel": (parallel, pb.ParallelXArmed.paper),
}


@pytest.mark.parametrize("name", PAPERS)
def test_all_pulls_and_the_common_point_are_the_papers_in_a_hundred_cases(name: str) -> None:
    reference, paper = PAPERS[name]
    distinct = set()
    for case in CASES:
        generator = np.random.default_rng([7, case])
        m, k, horizon = int(generator.integers(1, 40)), int(generator.integers(2, 4)), int(generator.integers(60, 900))
        tail, values = ("printed", "commit")[case % 2], surface(case, m)
        more = {"tail": tail} if name == "fed-pne" else {"delta_b": (None, 1.0 / horizon)[case % 2]}
        algorithm = paper(horizon=horizon, nu1=1.0, rho=0.5, n_children=k, **more)
        recorder, made = run(algorithm, of_each(values), m, rounds=40, seed=case)
        mean = lambda cell, values=values: float(values(np.array([sum(cell) / 2])).mean())  # noqa: E731 (a line says it)
        pulls, wanted = reference(mean, m, horizon, k, tail)
        np.testing.assert_allclose(recorder.of(0), pulls, rtol=1e-12, err_msg=str(case))
        assert made.common is not None
        assert made.common.params["x"] == pytest.approx(wanted, abs=1e-9), case
        distinct.add(round(wanted, 6))
    assert len(distinct) > 20  # a constant answer would not do


def pf_pne(values, m: int, horizon: int, k: int, shared: int, *, tail: str = "printed") -> list[dict[float, int]]:
    """Algorithms 1 to 3 of PF-PNE with nu1 = 1, rho = 1/2, c = .1, c1 = 1: every client's pulls by point.

    ``shared`` is the most phases that are shared; without any it is PE.
    """
    c, log = 0.1, math.log(horizon * m)

    def tau(h: int) -> int:
        return math.ceil(c * c * log * 4**h)

    def own(cell: Cell) -> FloatArray:
        return np.asarray(values(np.array([sum(cell) / 2]))[:, 0])

    pulls: list[dict[float, int]] = [{} for _ in range(m)]
    said: list[dict[Cell, tuple[float, float]]] = []  # what the server keeps by depth, with its mean and radius
    counted: dict[tuple[int, Cell], int] = {}
    active, spent = [(0.0, 1.0)], 0
    while len(said) < shared and spent + len(active) * (each := math.ceil(tau(len(said)) / m)) <= horizon:
        for cell in active:
            counted[len(said), cell] = each
            for mine in pulls:
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + each
        spent += len(active) * each
        mu, radius = {cell: float(own(cell).mean()) for cell in active}, c * math.sqrt(log / (m * each))
        kept = [cell for cell in active if not mu[cell] + radius + 0.5 ** len(said) < max(mu.values()) - radius]
        said.append({cell: (mu[cell], radius) for cell in kept})
        active = split(kept, k)
    for client, mine in enumerate(pulls):
        cells, h, left, best = [(0.0, 1.0)], 0, horizon - spent, (0.0, 1.0)
        while left > 0:  # PE: what the server keeps is not pulled
            known = said[h] if h < len(said) else {}
            need = {cell: max(0, tau(h) - counted.get((h, cell), 0)) for cell in cells if cell not in known}
            if sum(need.values()) > left and tail == "commit":  # to the best of what is known by then
                at = {
                    cell: known.get(cell, (float(own(cell)[client]),))[0]
                    for cell in cells
                    if cell in known or (h, cell) in counted
                }
                best = max(at, key=lambda cell, at=at: at[cell], default=best)
                need, cells = {best: left}, []
            for cell, number in need.items():  # a depth that does not fit is pulled in order
                now = min(number, left)
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + now
                left -= now
            facts = {
                cell: known.get(cell)
                or (float(own(cell)[client]), c * math.sqrt(log / max(tau(h), counted.get((h, cell), 0))))
                for cell in cells
            }
            best = max(cells, key=lambda cell, facts=facts: facts[cell][0], default=best)
            cells = split(
                [x for x in cells if x in known or sum(facts[x]) + 0.5**h >= facts[best][0] - facts[best][1]], k
            )
            h += 1
    return [{x: n for x, n in mine.items() if n} for mine in pulls]


def by_point(pulls: Pulls) -> Counter[float]:
    """Pulls of every point, whatever node they were made for."""
    found = Counter[float]()
    for x, n in pulls:
        found[round(x, 9)] += n
    return found


def test_all_pulls_and_every_clients_point_are_the_papers_in_a_hundred_cases() -> None:
    """Every third case is PE: nothing is shared."""
    distinct, shares = set(), set()
    for case in CASES:
        generator = np.random.default_rng([8, case])
        m, k, horizon = int(generator.integers(2, 12)), int(generator.integers(2, 4)), int(generator.integers(60, 600))
        gap, values, tail = float(generator.uniform(0.02, 0.5)), surface(case, m), ("printed", "commit")[case % 2]
        algorithm = pb.PFPNE.paper(horizon=horizon, nu1=1.0, rho=0.5, n_children=k, gap=gap, tail=tail)
        depths = max(1, math.ceil(math.log(gap) / math.log(0.5))) if case % 3 else 0
        recorder, made = run(algorithm if depths else algorithm.local(), of_each(values), m, rounds=40, seed=case)
        pulls = pf_pne(values, m, horizon, k, depths, tail=tail)
        assert [by_point(recorder.of(client)) for client in range(m)] == [by_point([*n.items()]) for n in pulls], case
        # The papers name no point that a client returns: it is that with the largest lower bound of its own pulls.
        radius = 0.1 * math.sqrt(math.log(horizon * m))
        wanted = [
            max(mine, key=lambda x, n=mine, i=i, v=values: float(v(np.array([x]))[i, 0]) - radius / math.sqrt(n[x]))
            for i, mine in enumerate(pulls)
        ]
        found = [made.best(client).params["x"] for client in range(m)]
        assert found == pytest.approx(wanted, abs=1e-9), case
        distinct.update(round(x, 6) for x in wanted)
        shares.add(len(made.releases))
    assert len(distinct) > 50  # a constant answer would not do
    assert len(shares) > 2


# ---- the tree of cells

shapes = st.tuples(st.integers(1, 4), st.sampled_from([2, 3]))


@given(shape=shapes, depth=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_locate_finds_the_cell_of_a_point(shape: tuple[int, int], depth: int, seed: int) -> None:
    d, k = shape
    partition = Partition(n_dims=d, n_children=k)
    points = np.vstack([np.random.default_rng(seed).random((20, d)), np.zeros(d), np.ones(d)])
    nodes = locate(partition, depth, points)
    half = 0.5 / np.array([float(k) ** len(range(i, depth, d)) for i in range(d)])
    assert np.all(np.abs(points - partition.centres(depth, nodes)) <= half + 1e-12)
    np.testing.assert_array_equal(locate(partition, depth, partition.centres(depth, nodes)), nodes)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize(
    ("space", "deepest"),
    [
        ({"a": pb.Int(0, 8), "b": pb.Categorical(("x", "y"))}, {2: 8, 3: 4}),
        ({"a": pb.Int(1, 100, log=True)}, {2: 10, 3: 6}),  # the bin of 100 is a 533rd part
        ({"a": pb.Real(0, 1, step=0.25), "b": pb.Real(0, 1)}, {2: 62, 3: 39}),
    ],
)
def test_the_tree_of_a_finite_space_ends_where_every_value_has_a_cell(space, deepest, k: int) -> None:
    setting = Setting(space=pb.Space(space), n_clients=3, rounds=9, public_seed=0)
    partition = pb.FedPNE(n_children=k).partition(setting)
    assert partition.max_depth == deepest[k]
    if partition.max_depth < 20:
        nodes = np.arange(k**partition.max_depth)
        points = different(partition.points(setting.space, np.full(len(nodes), partition.max_depth), nodes))
        assert len(points) == (100 if len(space) == 1 else 18)


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("k", [2, 3])
def test_the_deepest_cells_are_still_apart(d: int, k: int) -> None:
    partition = Partition(n_dims=d, n_children=k)
    nodes = np.array([k**partition.max_depth - 2, k**partition.max_depth - 1])
    first, second = partition.centres(partition.max_depth, nodes)
    assert np.any(first != second)
    with pytest.raises(pb.ConfigurationError, match="resolution"):
        partition.centres(partition.max_depth + 1, nodes)


# ---- PF-PNE and PE: the silent stages, and where each guarantee ends

M = 12


def tents(clients: IntArray, units: FloatArray) -> FloatArray:
    """Two tents per client, 1-Lipschitz; the second is higher for every third client, lower on average."""
    x = units[:, 0]
    second = np.where(clients % 3 == 0, 0.9, 0.6)
    return np.asarray(np.maximum(0.8 - np.abs(x - 0.3 - 0.01 * np.sin(clients)), second - np.abs(x - 0.8)))


@pytest.mark.parametrize("stage2", ["printed", "in-phase", "warm", "optimistic"])
@pytest.mark.parametrize("centre", ["middle", "client"])
def test_every_client_spends_its_horizon_after_h0_releases(stage2, centre) -> None:
    recorder, result = run(pb.PFPNE(horizon=500, gap=0.04, stage2=stage2, centre=centre), tents, M)
    assert len(result.releases) == pb.PFPNE(gap=0.04).shared_depths - 1 == 4  # nothing can come of the root's
    for client in range(M):
        assert sum(n for _, n in recorder.of(client)) == 500
    assert np.all(np.isfinite(result.clients.recommended))


@pytest.mark.parametrize("stage2", ["in-phase", "optimistic", "warm"])
def test_a_client_keeps_an_optimum_the_average_gave_up(stage2) -> None:
    """Client 0's best hill is not the average's; both double-checking forms find it, the one named warm gives it up."""
    algorithm = pb.PFPNE(horizon=1500, gap=0.01, nu1=0.5, c=0.02, stage2=stage2)
    _, result = run(algorithm, lambda clients, units: tents(np.where(clients == 0, 0, 1), units), M)
    found, (top, near) = result.clients.recommended[:, 0], (0.3, 0.06) if stage2 == "warm" else (0.8, 0.03)
    assert abs(found[0] - top) < near
    assert np.all(np.abs(found[1:] - 0.3) < 0.06)


@pytest.mark.parametrize("rho", [0.9, 0.1])
def test_no_phase_is_shared_more_by_rounding(rho: float) -> None:
    """The logarithms' quotient for .9^4 is 4 and a bit, as those for .1^5, .1^7 and .1^10."""
    assert [pb.PFPNE(gap=rho**k, rho=rho).shared_depths for k in range(1, 12)] == list(range(1, 12))


def test_local_control_keeps_the_way_clients_go_on() -> None:
    assert pb.PFPNE(stage2="printed").local().stage2 == "printed"
    assert pb.PFPNE(stage2="warm").local().stage2 == "in-phase"
    assert pb.PFPNE().local().stage2 == "optimistic"


@pytest.mark.parametrize("stage2", ["printed", "in-phase", "warm"])
def test_who_missed_a_silent_round_eliminates_on_in_the_cells_it_had_left(stage2) -> None:
    """It plays the depth that it missed in the next round, and ends where one does that missed none."""
    algorithm = pb.PFPNE(horizon=400, c=0.02, stage2=stage2)
    setting = Setting(space=SPACE, n_clients=2, rounds=30, public_seed=1)
    evaluate = PlainEvaluate(lambda _, units: np.asarray(1.0 - np.abs(units[:, 0] - 0.8)))
    ends = []
    for to_miss in (0, 1):
        missed, server = 0, algorithm.server(setting)
        cohort = algorithm.cohort(setting, clients=np.arange(2), evaluate=evaluate, seed=0)
        while (ask := server.ask()) is not None:
            if ask.request is None and missed < to_miss and int(ask.broadcast.arrays["alone"]) > 0:
                missed += 1
                server.tell(None)
                continue
            answer = cohort.respond(ask.broadcast)
            server.tell(None if ask.request is None else release(ask.request.weights @ answer, 1e-6))
        ends.append(np.sort(cohort.history().values, axis=1))
    np.testing.assert_array_equal(ends[0], ends[1])


# ---- the point a client would use: never worse than another it has seen, by its own confidence

SEARCHES: dict[str, TreeSettings] = {
    **{name: dataclasses.replace(algorithm, horizon=60) for name, algorithm in ALL.items()},
    "stop": pb.FedPNE(horizon=60, tail="stop"),
    "in-phase": pb.PFPNE(horizon=60, stage2="in-phase"),
}


def peaks(clients: IntArray, units: FloatArray) -> FloatArray:
    """Clients with peaks of their own, 0.05 to 0.95."""
    return np.asarray(1.0 - np.abs(units[:, 0] - (0.05 + 0.9 * clients / (M - 1))))


@pytest.mark.parametrize("name", SEARCHES)
def test_no_point_a_client_has_seen_is_better_by_its_own_confidence(name: str) -> None:
    """The lower bounds are computed here from all pulls that were made, not from the clients' tables."""
    algorithm = SEARCHES[name]
    recorder, result = run(algorithm, peaks, M, rounds=8, seed=0)
    for client in range(M):
        pulls = by_point(recorder.of(client))
        rewards = peaks(np.full(len(pulls), client), np.array([*pulls])[:, None])
        lower = dict(zip(pulls, rewards - algorithm.confidence(M).radius(np.array([*pulls.values()])), strict=True))
        assert lower[round(float(result.clients.recommended[client, 0]), 9)] >= max(lower.values()) - 1e-8


# ---- what the private forms promise: noise stays inside its half-width, the optimum's cell survives

OPTIMUM = 0.3217


def test_noise_of_a_whole_run_stays_inside_its_half_width() -> None:
    """20,000 runs of 6 releases of 16 entries; at most 5 % may leave.

    1,160 is 5.2 standard deviations above: false alarm 1e-7.
    """
    largest = np.abs(np.random.default_rng(0).normal(0, 0.01, (20_000, 6 * 16))).max(axis=1)
    width = noise_half_width(0.01, 16, 6, 0)
    most = 20_000 * NOISE_FAILURE + 5.2 * math.sqrt(20_000 * NOISE_FAILURE * (1 - NOISE_FAILURE))
    assert (largest > width).sum() <= most
    assert (largest > 0.8 * width).sum() > most  # a half-width that forgets a factor is caught
    step = 2.0**-16 * 0.01  # of the grid to which every client's entry is truncated
    assert noise_half_width(0.01, 16, 6, 10**6) == pytest.approx(width + 10**6 * step)


def tent(x: FloatArray) -> FloatArray:
    """Lipschitz with constant 1.9: nu1 = 1 bounds the variation of a cell from its centre."""
    return np.asarray(0.97 - 1.9 * np.abs(x - OPTIMUM))


def loses(algorithm: pb.FedPNE, n_clients: int, noise: float, seed: int) -> bool:
    """Whether a run on the average itself, with release noise only, ever drops the optimum's cell."""
    generator = np.random.default_rng([7, seed])
    server = algorithm.server(Setting(space=SPACE, n_clients=n_clients, rounds=8, public_seed=0))
    partition = Partition(n_dims=1)
    while (ask := server.ask()) is not None and ask.request is not None:
        phase = server.phase
        assert phase is not None
        if locate(partition, phase.depth, np.array([[OPTIMUM]]))[0] not in phase.nodes:
            return True
        values = tent(partition.centres(phase.depth, phase.nodes)[:, 0]) + generator.normal(0, noise, len(phase.nodes))
        server.tell(release(values[None], noise))
    return False


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
def test_the_certified_form_keeps_the_optimum(noise: float) -> None:
    """400 runs; the promise is a loss of at most 1/M + 0.05; 44 losses are 5.1 deviations above (false alarm 1e-6)."""
    n_clients, runs = 400, 400
    bound = 1 / n_clients + NOISE_FAILURE
    most = runs * bound + 5.1 * math.sqrt(runs * bound * (1 - bound))
    assert sum(loses(pb.FedPNE(), n_clients, noise, seed) for seed in range(runs)) <= most
    if noise == 0.1:  # planted: comparisons that ignore the noise
        assert sum(loses(pb.FedPNE(widen=0.0), n_clients, noise, seed) for seed in range(runs)) > most


@pytest.mark.parametrize("centre", ["client", "middle"])
def test_a_clients_vector_fits_the_certified_bound(centre: str) -> None:
    """Any rewards in the range, whole vector: norm at most half the width times sqrt K, so nothing is clipped."""
    generator = np.random.default_rng(3)
    for k in (1, 2, 7, 64):
        means = np.concatenate([generator.uniform(-0.1, 1.1, (200, k)), generator.choice([-0.1, 1.1], (200, k))])
        sharing = pb.FedPNE(reward_range=(-0.1, 1.1), centre=centre).sharing
        norms = np.linalg.norm(sharing.vector(means), axis=1)
        assert norms.max() <= sharing.clipping_norm(k) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (pb.FedPNE.heuristic(), ["cap of 8 drops nodes untested", "clipping at 0.15 sqrt(K) biases", "may be lost"]),
        (pb.FedPNE(widen=0.5), ["widened by 0.5"]),
        (pb.PFPNE.heuristic(), ["cap of 8", "biases", "only advises"]),
        (pb.PFPNE.heuristic(stage2="warm"), ["An optimum may be lost"]),
        (pb.ParallelXArmed(clip=0.1), ["clipping at 0.1 sqrt(K)"]),
        (pb.FedPNE(), []),
        (pb.PFPNE(clip=0.5), []),
        (pb.ParallelXArmed(), []),
    ],
)
def test_a_heuristic_form_says_what_it_gives_up(algorithm, words: list[str]) -> None:
    assert (algorithm.caveat is None) == (not words)
    assert all(word in (algorithm.caveat or "") for word in words)


def test_of_equal_bounds_that_of_the_point_pulled_last_counts() -> None:
    recorder, result = run(pb.ParallelXArmed(horizon=300), lambda clients, units: np.full(len(clients), 0.5), 3)
    assert result.clients.recommended[:, 0].tolist() == [recorder.of(client)[-1][0] for client in range(3)]


@pytest.mark.parametrize("levels", [1, 4])
def test_many_turns_of_many_clients_are_judged_as_one_by_one(levels: int) -> None:
    """Pairs of client and point are rare: they are looked up and not laid out. Of one level are many equal bounds."""
    generator, n_clients = np.random.default_rng(400), 400
    owners, places = generator.integers(60, size=300), generator.integers(20, size=300)
    worked, means = generator.integers(3, size=300), generator.integers(levels, size=300) / 4.0  # exact sums
    points, otherwise = generator.integers(9, size=(20, 1)) / 8.0, np.full((n_clients, 1), -1.0)
    found = recommend(owners, places, worked, means, lambda pulls: 1.0 / pulls, points, otherwise)
    for client in range(n_clients):
        bounds = [(-math.inf, -1, -1.0)]
        for point in np.unique(points):
            mine = np.flatnonzero((owners == client) & (points[places, 0] == point) & (worked > 0))
            if pulls := worked[mine].sum():
                bounds.append(((worked * means)[mine].sum() / pulls - 1.0 / pulls, mine[-1], point))
        assert found[client] == max(bounds)[2]
