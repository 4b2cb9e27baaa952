"""PF-PNE and PE against their pseudo-code, the silent stages, and where each guarantee ends."""

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.forest import Forest
from privbo.algorithms.elimination.settings import Confidence, Partition
from privbo.protocol.messages import FloatArray, IntArray, PlainEvaluate, Release, Setting
from privbo.protocol.space import Space
from tests.elimination.test_paper_points import pf_pne

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
