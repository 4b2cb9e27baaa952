"""What a client of DP-FTS-DE returns is the paper's, by Algorithms 1 and 2 written anew.

The run's coins, normal draws and initial points are those of its streams, and the points of clients that act on their
own posteriors are taken from their histories: everything else is computed here.
"""

import math

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.streams import Stream, client_normals, client_uniforms
from privbo.runs.manifest import derive_seed

CASES = range(100)
TINY = 1e-6  # noise that moves no argmax, so that releases are clipped sums
CHEAP = pb.OwnModel(kernel="se", draw="exact", refit_every=0, max_points=None)


def surface(case: int, n_clients: int):
    """Random waves per client in [0, 1], as three numbers per wave."""
    generator = np.random.default_rng(case)
    return np.stack([generator.uniform(low, high, (n_clients, 3)) for low, high in ((0.05, 0.15), (2, 30), (0, 6.28))])


def values_of(waves, clients, x):
    heights, speeds, phases = waves[:, clients]
    return np.asarray(0.5 + (heights * np.sin(speeds * x[:, None] + phases)).sum(axis=1))


def phi(x, frequencies, phases):
    """Random Fourier features of unit length, ``(len(x), M)``."""
    cosines = np.cos(x[:, None] * frequencies[:, 0] + phases)
    return np.asarray(cosines / np.linalg.norm(cosines, axis=1, keepdims=True))


def weights(t: int, n_clients: int, n_regions: int):
    """phi_n^(i) of iteration t: a softmax with a = 15, held for 10 iterations, at temperature a / (a_t - 1)."""
    top = 16.0 if t <= 10 else 16.0 - 15.0 * (t - 11) / 29
    logits = np.array([[(top - 1.0) * (n % n_regions == i) for n in range(n_clients)] for i in range(n_regions)])
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def draw(phis, y, level: float, prior, noise):
    """omega_n,t from N(nu, lambda Sigma^-1), Sigma = Phi' Phi + lambda I, by Matheron's rule."""
    gap = y - phis @ prior - math.sqrt(level) * noise
    return np.asarray(
        prior
        + np.linalg.lstsq(
            np.vstack([phis, math.sqrt(level) * np.eye(len(prior))]),
            np.concatenate([gap, np.zeros(len(prior))]),
            rcond=None,
        )[0]
    )


def best_of(case: int, record: pb.Record, algorithm: pb.DPFTSDE, waves, size: int, z: float, q: float) -> list[int]:
    """The paper's answer of every client, as a value of x."""
    n, rounds, regions = waves.shape[1], record.spec.rounds, algorithm.n_regions
    grid, seed, level = (np.arange(size) + 0.5) / size, derive_seed(case, "clients"), 1e-6
    setting = record.spec.setting(record.manifest.public_seed)
    public = algorithm.draw_features(setting)
    everyone = np.arange(n)
    own = record.clients
    x = {m: list(own.units[m, own.rounds < 0, 0]) for m in range(n)}
    home = np.minimum((np.array([x[m] for m in range(n)]) * regions).astype(int), regions - 1)
    assert (home == (everyone % regions)[:, None]).all()  # every client begins in its own region
    y = {m: list(values_of(waves, np.full(len(x[m]), m), np.array(x[m]))) for m in range(n)}
    releases = iter(record.releases)
    for t in range(rounds):
        share = weights(t + 1, n, regions)
        priors = client_normals(seed, everyone, t, Stream.SHARED_SAMPLE, (algorithm.n_features,))
        noises = client_normals(seed, everyone, t, Stream.SHARED_NOISE, (len(x[0]),))
        release, total = next(releases), np.zeros((regions, algorithm.n_features))
        for m in range(n):
            omega = draw(
                phi(np.array(x[m]), public.frequencies, public.phases), np.array(y[m]), level, priors[m], noises[m]
            )
            bound = algorithm.bound / math.sqrt(regions) if z else math.inf  # S is of private runs only
            total += share[:, [m]] * omega / max(1.0, float(np.linalg.norm(omega)) / bound)
        assert release.noise_stddev == pytest.approx(z * share.max() * algorithm.bound / q)
        if z <= TINY:
            np.testing.assert_allclose(release.values, total, atol=2e-4)
        heights = (
            phi(grid, public.frequencies, public.phases)
            * release.values[np.minimum((grid * regions).astype(int), regions - 1)]
        ).sum(axis=1)
        everybodys = float(grid[int(np.argmax(heights))])
        own_probability = 1.0 - 1.0 / (t + 1)
        coins = client_uniforms(seed, everyone, t + 1, Stream.CHOICE)[:, 0]
        for m in range(n):
            queried = float(own.units[m, own.rounds == t + 1, 0][0])
            if not coins[m] < own_probability:
                assert queried == pytest.approx(everybodys, abs=1e-12), (case, t, m)
            x[m].append(queried)
            y[m].extend(values_of(waves, np.array([m]), np.array([queried])))
    return [round(x[m][int(np.argmax(y[m]))] * size - 0.5) for m in range(n)]


def test_every_clients_point_is_the_papers_in_a_hundred_cases() -> None:
    distinct = set()
    for case in CASES:
        generator = np.random.default_rng([19, case])
        n, regions, rounds = (int(generator.integers(*ends)) for ends in ((4, 9), (1, 4), (3, 6)))
        size, (z, q) = int(generator.integers(30, 80)), ((0.0, 1.0), (TINY, 1.0), (0.5, 0.5))[case % 3]
        waves = surface(case, n)

        def play(clients, units, waves=waves):
            return values_of(waves, clients, units[:, 0])

        problem = pb.Problem(space={"x": pb.Int(0, size - 1)}, batch_objective=play, n_clients=n)
        paper = pb.DPFTSDE.paper(n_init=2, clipping_norm=float(generator.uniform(2.0, 12.0)))
        paper = pb.DPFTSDE(**{**vars(paper), "n_regions": regions, "own": CHEAP})
        privacy = (
            pb.Privacy(noise_multiplier=z, sample_rate=q, calibration="paper", noise="simulation")
            if z
            else pb.NoPrivacy()
        )
        record = pb.run(problem, paper, privacy=privacy, rounds=rounds, seed=case)
        wanted = best_of(case, record, paper, waves, size, z, q)
        assert [record.best(client).params["x"] for client in range(n)] == wanted, case
        distinct.update(wanted)
    assert len(distinct) > 30  # a constant answer would not do
