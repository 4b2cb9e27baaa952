"""PF-PNE and PE against their pseudo-code, the silent stages, and where each guarantee ends."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.tree import locate
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.forest import Forest
from privbo.algorithms.elimination.pulls import recommend
from privbo.algorithms.elimination.settings import NOISE_FAILURE, Confidence, Partition, TreeSettings, noise_half_width
from privbo.protocol.messages import FloatArray, IntArray, PlainEvaluate, Release, Setting
from privbo.protocol.space import Space
from tests.elimination.test_fed_pne import pf_pne

PLAIN = pb.NoPrivacy()
M = 12


def hills(clients: IntArray, units: FloatArray) -> FloatArray:
    """Two tents per client, 1-Lipschitz; the second is higher for every third client, lower on average."""
    x = units[:, 0]
    second = np.where(clients % 3 == 0, 0.9, 0.6)
    return np.asarray(np.maximum(0.8 - np.abs(x - 0.3 - 0.01 * np.sin(clients)), second - np.abs(x - 0.8)))


class Environment:
    """Noiseless clients that remember every pull."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, int]] = []

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        self.seen += [(int(c), float(x), int(n)) for c, x, n in zip(clients, units[:, 0], counts, strict=True)]
        return hills(clients, units)


def play(algorithm: Any, **settings: Any) -> tuple[Environment, pb.Record]:
    environment = Environment()
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=environment, n_clients=M, name="hills")
    return environment, pb.run(problem, algorithm, **({"privacy": PLAIN, "rounds": 50, "seed": 1} | settings))


def reference(horizon: int, shared: int, *, tail: str) -> list[dict[float, int]]:
    def values(x: FloatArray) -> FloatArray:
        return np.stack([hills(np.full(len(x), client), x[:, None]) for client in range(M)])

    return pf_pne(values, M, horizon, 2, shared, tail=tail)


def counts(environment: Environment, client: int) -> dict[float, int]:
    found: dict[float, int] = {}
    for who, x, n in environment.seen:
        if who == client and n:
            found[x] = found.get(x, 0) + n
    return found


@pytest.mark.parametrize("tail", ["commit", "printed"])
@pytest.mark.parametrize(("gap", "shared"), [(0.3, 2), (0.04, 5)])
def test_the_printed_form_plays_the_pseudo_code(tail: str, gap: float, shared: int) -> None:
    environment, result = play(pb.PFPNE(horizon=900, gap=gap, stage2="printed", tail=tail))
    assert len(result.releases) == shared
    assert [counts(environment, client) for client in range(M)] == reference(900, shared, tail=tail)


@pytest.mark.parametrize("tail", ["commit", "printed"])
def test_alone_it_is_pe(tail: str) -> None:
    environment, result = play(PersonalElimination(horizon=900, stage2="printed", tail=tail))
    assert result.releases == ()
    assert [counts(environment, client) for client in range(M)] == reference(900, 0, tail=tail)


@pytest.mark.parametrize("stage2", ["printed", "in-phase", "warm", "optimistic"])
@pytest.mark.parametrize("centre", ["middle", "client"])
def test_every_client_spends_its_horizon_after_h0_releases(stage2: Any, centre: Any) -> None:
    environment, result = play(pb.PFPNE(horizon=500, gap=0.04, stage2=stage2, centre=centre))
    assert len(result.releases) == pb.PFPNE(gap=0.04).shared_depths == 5
    for client in range(M):
        assert sum(counts(environment, client).values()) == 500
    assert np.all(np.isfinite(result.clients.recommended))


@pytest.mark.parametrize("stage2", ["in-phase", "optimistic"])
def test_a_client_keeps_an_optimum_the_average_gave_up(stage2: Any) -> None:
    """Every third client's best hill is not the average's; both double-checking forms find it."""
    _, result = play(pb.PFPNE(horizon=1500, gap=0.04, c=0.05, stage2=stage2))
    found = result.clients.recommended[:, 0]
    assert np.all(np.abs(found[::3] - 0.8) < 0.03)
    assert np.all(np.abs(np.delete(found, np.s_[::3]) - 0.3) < 0.06)


def test_warm_gives_the_double_check_up() -> None:
    """What the average removed is gone: the named price of starting below its survivors."""
    only_left = lambda clients, units: hills(np.where(clients == 0, 0, 1), units)  # noqa: E731 (a line says it)
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=only_left, n_clients=M, name="hills")
    found = {
        stage2: pb.run(
            problem,
            pb.PFPNE(horizon=1500, gap=0.01, nu1=0.5, c=0.02, stage2=stage2),
            privacy=PLAIN,
            rounds=50,
            seed=1,
        ).clients.recommended[0, 0]
        for stage2 in ("warm", "optimistic")
    }
    assert abs(found["optimistic"] - 0.8) < 0.03
    assert abs(found["warm"] - 0.3) < 0.06


def test_silent_rounds_are_public() -> None:
    """Their number is the same whatever the clients see."""
    lengths = set()
    for value in (0.0, 1.0):
        problem = pb.Problem(
            space={"x": pb.Real(0, 1)},
            batch_objective=lambda clients, units, v=value: np.full(len(clients), v),
            n_clients=M,
            name="flat",
        )
        seen: list[int] = []
        pb.run(
            problem,
            pb.PFPNE(horizon=400, stage2="in-phase"),
            privacy=PLAIN,
            rounds=9,
            on_round=lambda r, s=seen: s.append(r.index),
        )
        lengths.add(len(seen))
    assert len(lengths) == 1


def one_tree(client: int, horizon: int, confidence: Confidence, noise: FloatArray) -> list[float]:
    """The optimistic tree of one client, written out with dictionaries; nothing shared."""
    nodes: dict[tuple[int, int], list[float]] = {(0, 0): [], (1, 0): [], (1, 1): []}
    path_points = []

    def bound(h: int, i: int) -> float:
        pulls = nodes[h, i]
        upper = math.inf
        if pulls:
            upper = float(np.mean(pulls)) + float(confidence.radius(len(pulls))) + confidence.variation(h)
        if (h + 1, 2 * i) in nodes:
            upper = min(upper, max(bound(h + 1, 2 * i), bound(h + 1, 2 * i + 1)))
        return upper

    for turn in range(horizon):
        h, i = 0, 0
        while (h + 1, 2 * i) in nodes and (h == 0 or len(nodes[h, i]) >= confidence.threshold(h)):
            h, i = h + 1, 2 * i + (bound(h + 1, 2 * i + 1) >= bound(h + 1, 2 * i))
        x = (i + 0.5) / 2**h
        path_points.append(x)
        nodes[h, i].append(float(hills(np.array([client]), np.array([[x]]))[0]) + noise[turn])
        if (h + 1, 2 * i) not in nodes and len(nodes[h, i]) >= confidence.threshold(h):
            nodes[h + 1, 2 * i], nodes[h + 1, 2 * i + 1] = [], []
    return path_points


def test_the_forest_is_one_optimistic_tree_per_client() -> None:
    confidence = Confidence(horizon=150, n_clients=3, nu1=1.0, rho=0.5, c=0.1, c1=1.0)
    forest = Forest.roots(3, Partition(n_dims=1), Space({"x": pb.Real(0, 1)}), confidence)
    noise = np.random.default_rng(5).uniform(-0.1, 0.1, (3, 150))
    played: list[FloatArray] = []
    for turn in range(150):
        path = forest.select()
        points = forest.points[np.arange(3), path[-1]]
        played.append(points[:, 0])
        forest.receive(path, hills(np.arange(3), points) + noise[:, turn])
    for client in range(3):
        np.testing.assert_array_equal([p[client] for p in played], one_tree(client, 150, confidence, noise[client]))


def test_local_control_keeps_the_way_clients_go_on() -> None:
    assert pb.PFPNE(stage2="printed").local().stage2 == "printed"
    assert pb.PFPNE(stage2="warm").local().stage2 == "in-phase"
    assert pb.PFPNE().local().stage2 == "optimistic"


@pytest.mark.parametrize("stage2", ["printed", "in-phase", "warm"])
def test_who_missed_a_silent_round_eliminates_on_in_the_cells_it_had_left(stage2: Any) -> None:
    """It plays the depth that it missed in the next round, and ends where one does that missed none."""
    space = Space({"x": pb.Real(0.0, 1.0)})
    algorithm, setting = (
        pb.PFPNE(horizon=400, c=0.02, stage2=stage2),
        Setting(space=space, n_clients=2, rounds=30, public_seed=1),
    )
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
            values = None if ask.request is None else ask.request.weights @ answer
            server.tell(
                None
                if values is None
                else Release(round=ask.broadcast.round, values=values, noise_stddev=1e-6, sequence=1, head="")
            )
        ends.append(np.sort(cohort.history().values, axis=1))
    np.testing.assert_array_equal(ends[0], ends[1])


# ---- the point a client would use: never worse than another it has seen, by its own confidence

CLIENTS = 12
SEARCHES: dict[str, TreeSettings] = {
    "fed-pne": pb.FedPNE(horizon=60),
    "heuristic": pb.FedPNE.heuristic(horizon=60),
    "stop": pb.FedPNE(horizon=60, tail="stop"),
    "parallel": pb.ParallelXArmed(horizon=60),
    "printed": pb.PFPNE(horizon=60, stage2="printed"),
    "in-phase": pb.PFPNE(horizon=60, stage2="in-phase"),
    "warm": pb.PFPNE(horizon=60, stage2="warm"),
    "optimistic": pb.PFPNE(horizon=60),
    "pe": pb.PFPNE(horizon=60).local(),
}


class Seen:
    """Clients with peaks of their own, 0.05 to 0.95, that note every reward."""

    def __init__(self) -> None:
        self.rewards: dict[tuple[int, float], list[float]] = defaultdict(list)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        found = 1.0 - np.abs(units[:, 0] - (0.05 + 0.9 * clients / (CLIENTS - 1)))
        for client, unit, reward in zip(clients, units[:, 0], found, strict=True):
            self.rewards[int(client), float(unit)].append(float(reward))
        return np.asarray(found)


@pytest.mark.parametrize("name", SEARCHES)
def test_no_point_a_client_has_seen_is_better_by_its_own_confidence(name: str) -> None:
    """The lower bounds are computed here from every single reward, not from the clients' tables."""
    algorithm, seen = SEARCHES[name], Seen()
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=seen, n_clients=CLIENTS)
    rewards = seen.rewards
    result = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=8, seed=0)
    radius = algorithm.confidence(CLIENTS).radius
    lower = {key: np.mean(values) - float(radius(len(values))) for key, values in rewards.items()}
    for client in range(CLIENTS):
        chosen = float(result.clients.recommended[client, 0])
        assert lower[client, chosen] >= max(bound for (who, _), bound in lower.items() if who == client) - 1e-12


def plainly(owners: IntArray, places: IntArray, worked: IntArray, means: FloatArray, points: FloatArray) -> FloatArray:
    """The same with radius 1 / pulls, one client and point after the other."""
    found = np.full((owners.max() + 1, points.shape[1]), -1.0)
    for client in np.unique(owners):
        bounds = []
        for point in np.unique(points, axis=0):
            mine = (owners == client) & (points[places] == point).all(axis=1) & (worked > 0)
            if mine.any():
                pulls = worked[mine].sum()
                mean = (worked[mine] * means[mine]).sum() / pulls
                bounds.append((mean - 1.0 / pulls, np.flatnonzero(mine)[-1], tuple(point)))
        if bounds:
            found[client] = max(bounds)[2]
    return found


@pytest.mark.parametrize("n_clients", [3, 400])  # dense pairs of client and point, and rare ones
def test_many_turns_are_judged_as_one_by_one(n_clients: int) -> None:
    generator = np.random.default_rng(n_clients)
    owners, places = generator.integers(n_clients, size=300), generator.integers(20, size=300)
    worked, means = generator.integers(3, size=300), generator.integers(4, size=300) / 4.0  # quarters: sums are exact
    points = generator.integers(3, size=(20, 2)) / 2.0
    otherwise = np.full((owners.max() + 1, 2), -1.0)
    found = recommend(owners, places, worked, means, lambda pulls: 1.0 / pulls, points, otherwise)
    np.testing.assert_array_equal(found, plainly(owners, places, worked, means, points))


# ---- what the private forms promise: noise stays inside its half-width, the optimum's cell survives

SPACE = pb.Space({"x": pb.Real(0, 1)})
OPTIMUM = 0.3217


def exceedances(width: float, runs: int) -> int:
    """Runs of 6 releases of 16 entries in which some noise leaves the width."""
    noise = np.random.default_rng(0).normal(0, 0.01, (runs, 6 * 16))
    return int(np.any(np.abs(noise) > width, axis=1).sum())


def test_noise_of_a_whole_run_stays_inside_its_half_width() -> None:
    """20,000 runs; at most 5 % may leave. 1,160 is 5.2 standard deviations above: false alarm 1e-7."""
    width = noise_half_width(0.01, 16, 6)
    most = 20_000 * NOISE_FAILURE + 5.2 * math.sqrt(20_000 * NOISE_FAILURE * (1 - NOISE_FAILURE))
    assert exceedances(width, 20_000) <= most
    assert exceedances(0.8 * width, 20_000) > most  # a half-width that forgets a factor is caught


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
        server.tell(Release(round=0, values=values[None], noise_stddev=noise, sequence=0, head=""))
    return False


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
def test_the_certified_form_keeps_the_optimum(noise: float) -> None:
    """400 runs; the promise is a loss of at most 1/M + 0.05; 44 losses are 5.1 deviations above (false alarm 1e-6)."""
    n_clients, runs = 400, 400
    bound = 1 / n_clients + NOISE_FAILURE
    most = runs * bound + 5.1 * math.sqrt(runs * bound * (1 - bound))
    assert sum(loses(pb.FedPNE(), n_clients, noise, seed) for seed in range(runs)) <= most


def test_without_widening_the_optimum_is_lost() -> None:
    """The planted fault of the test above: comparisons that ignore the noise."""
    lost = sum(loses(pb.FedPNE(widen=0.0), 400, 0.1, seed) for seed in range(400))
    assert lost > 400 * (1 / 400 + NOISE_FAILURE) + 5.1 * math.sqrt(400 * 0.0525 * 0.9475)


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
def test_a_heuristic_form_says_what_it_gives_up(algorithm: Any, words: list[str]) -> None:
    assert (algorithm.caveat is None) == (not words)
    assert all(word in (algorithm.caveat or "") for word in words)


# ---- the parallel X-armed bandit: its rule, its loss bound, its private margin


def cone(clients: IntArray, units: FloatArray) -> FloatArray:
    """1-Lipschitz with its top at 0.37: nu1 = 1/2 bounds the variation of the whole interval from its centre."""
    return np.asarray(0.9 - np.abs(units[:, 0] - 0.37))


def play_parallel(n_players: int, **settings: Any) -> tuple[pb.Record, float]:
    problem = pb.Problem(space=SPACE, batch_objective=cone, n_clients=n_players, name="cone")
    algorithm = pb.ParallelXArmed(**({"horizon": 2000, "nu1": 0.5, "rho": 0.5} | settings))
    result = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=60, seed=1)
    return result, 0.9 - float(cone(np.zeros(1, dtype=int), result.clients.recommended[:1])[0])


def test_more_players_go_deeper_and_keep_the_bound() -> None:
    depths = []
    for n_players in (1, 4, 16, 64):
        result, loss = play_parallel(n_players)
        depth = len(result.releases) - 1
        depths.append(depth)
        assert loss <= 6 * 0.5 * 0.5**depth
    assert depths == sorted(depths)
    assert depths[-1] >= depths[0] + 2


def test_pulls_follow_the_formula() -> None:
    algorithm = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5, delta_b=0.01)
    for depth, nodes, players in ((0, 1, 1), (3, 4, 16), (6, 8, 4)):
        wanted = math.log(math.pi**2 * (depth + 1) ** 2 * nodes / (3 * 0.01)) / (2 * (0.5 * 0.5**depth) ** 2 * players)
        assert algorithm.pulls_per_player(depth, nodes, players) == math.ceil(wanted)
    assert pb.ParallelXArmed(horizon=100).pulls_per_player(3, 4, 4) == pb.ParallelXArmed(
        horizon=100, delta_b=0.01
    ).pulls_per_player(3, 4, 4)


@pytest.mark.parametrize(("behind", "stays"), [(-1e-9, True), (1e-9, False)])
def test_keeps_what_lies_within_three_variations_and_two_noise_widths(behind: float, stays: bool) -> None:
    setting = Setting(space=SPACE, n_clients=16, rounds=4, public_seed=0)
    server = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5).server(setting)
    ask = server.ask()
    assert ask is not None
    server.tell(Release(round=0, values=np.zeros((1, 1)), noise_stddev=0.02, sequence=0, head=""))
    margin = 3 * 0.25 + 2 * noise_half_width(0.02, 2, 4)
    values = np.array([[0.0, -margin - behind]])
    server.tell(Release(round=1, values=values, noise_stddev=0.02, sequence=1, head=""))
    ask = server.ask()
    assert ask is not None
    assert ask.request is not None
    assert ask.request.dim == (4 if stays else 2)


def test_pulls_stay_within_the_horizon_and_the_plan() -> None:
    result, _ = play_parallel(4, horizon=500)
    plan = pb.plan(
        pb.Problem(space=SPACE, batch_objective=cone, n_clients=4),
        pb.ParallelXArmed(horizon=500, nu1=0.5, rho=0.5),
        privacy=pb.NoPrivacy(),
        rounds=60,
    )
    assert 1 <= len(result.releases) <= plan.releases
