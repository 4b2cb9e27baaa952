"""What the private forms promise: noise stays inside its half-width, the optimum's cell survives."""

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.tree import locate
from privbo.algorithms.elimination.settings import NOISE_FAILURE, Partition, noise_half_width
from privbo.protocol.messages import FloatArray, Release, Setting

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
