"""PF-PNE and PE against their pseudo-code, the silent stages, and where each guarantee ends."""

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.tree import locate
from privbo.algorithms.elimination.pulls import recommend
from privbo.algorithms.elimination.settings import NOISE_FAILURE, Partition, TreeSettings, noise_half_width
from privbo.protocol.messages import FloatArray, IntArray, PlainEvaluate, Setting
from tests.builders import release
from tests.elimination.test_fed_pne import SPACE, by_point, run

M = 12


def hills(clients: IntArray, units: FloatArray) -> FloatArray:
    """Two tents per client, 1-Lipschitz; the second is higher for every third client, lower on average."""
    x = units[:, 0]
    second = np.where(clients % 3 == 0, 0.9, 0.6)
    return np.asarray(np.maximum(0.8 - np.abs(x - 0.3 - 0.01 * np.sin(clients)), second - np.abs(x - 0.8)))


@pytest.mark.parametrize("stage2", ["printed", "in-phase", "warm", "optimistic"])
@pytest.mark.parametrize("centre", ["middle", "client"])
def test_every_client_spends_its_horizon_after_h0_releases(stage2: Any, centre: Any) -> None:
    recorder, result = run(pb.PFPNE(horizon=500, gap=0.04, stage2=stage2, centre=centre), hills, M)
    assert len(result.releases) == pb.PFPNE(gap=0.04).shared_depths - 1 == 4  # nothing can come of the root's
    for client in range(M):
        assert sum(n for _, n in recorder.of(client)) == 500
    assert np.all(np.isfinite(result.clients.recommended))


@pytest.mark.parametrize("stage2", ["in-phase", "optimistic", "warm"])
def test_a_client_keeps_an_optimum_the_average_gave_up(stage2: Any) -> None:
    """Client 0's best hill is not the average's; both double-checking forms find it, the one named warm gives it up."""
    algorithm = pb.PFPNE(horizon=1500, gap=0.01, nu1=0.5, c=0.02, stage2=stage2)
    _, result = run(algorithm, lambda clients, units: hills(np.where(clients == 0, 0, 1), units), M)
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
def test_who_missed_a_silent_round_eliminates_on_in_the_cells_it_had_left(stage2: Any) -> None:
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


def exceedances(width: float, runs: int) -> int:
    """Runs of 6 releases of 16 entries in which some noise leaves the width."""
    noise = np.random.default_rng(0).normal(0, 0.01, (runs, 6 * 16))
    return int(np.any(np.abs(noise) > width, axis=1).sum())


def test_noise_of_a_whole_run_stays_inside_its_half_width() -> None:
    """20,000 runs; at most 5 % may leave. 1,160 is 5.2 standard deviations above: false alarm 1e-7."""
    width = noise_half_width(0.01, 16, 6, 0)
    most = 20_000 * NOISE_FAILURE + 5.2 * math.sqrt(20_000 * NOISE_FAILURE * (1 - NOISE_FAILURE))
    assert exceedances(width, 20_000) <= most
    assert exceedances(0.8 * width, 20_000) > most  # a half-width that forgets a factor is caught
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
def test_a_heuristic_form_says_what_it_gives_up(algorithm: Any, words: list[str]) -> None:
    assert (algorithm.caveat is None) == (not words)
    assert all(word in (algorithm.caveat or "") for word in words)


def test_of_equal_bounds_that_of_the_point_pulled_last_counts() -> None:
    recorder, result = run(pb.ParallelXArmed(horizon=300), lambda clients, units: np.full(len(clients), 0.5), 3)
    assert result.clients.recommended[:, 0].tolist() == [recorder.of(client)[-1][0] for client in range(3)]


def test_many_turns_of_many_clients_are_judged_as_one_by_one() -> None:
    """Pairs of client and point are rare: they are looked up and not laid out."""
    generator, n_clients = np.random.default_rng(400), 400
    owners, places = generator.integers(60, size=300), generator.integers(20, size=300)
    worked, means = generator.integers(3, size=300), generator.integers(4, size=300) / 4.0  # quarters: sums are exact
    points, otherwise = generator.integers(9, size=(20, 1)) / 8.0, np.full((n_clients, 1), -1.0)
    found = recommend(owners, places, worked, means, lambda pulls: 1.0 / pulls, points, otherwise)
    for client in range(n_clients):
        bounds = [(-math.inf, -1, -1.0)]
        for point in np.unique(points):
            mine = np.flatnonzero((owners == client) & (points[places, 0] == point) & (worked > 0))
            if pulls := worked[mine].sum():
                bounds.append(((worked * means)[mine].sum() / pulls - 1.0 / pulls, mine[-1], point))
        assert found[client] == max(bounds)[2]
