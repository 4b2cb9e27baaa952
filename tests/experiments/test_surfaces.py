"""Families of surfaces: what is stated of them holds, and real ones are what scikit-learn says."""

from pathlib import Path

import numpy as np
import pytest

from experiments.problems.drawn_surfaces import gaussian_process, shifted
from experiments.problems.model_scores import METRICS, SCALINGS
from experiments.problems.model_surfaces import TUNINGS, model, shards, surfaces
from experiments.problems.surfaces import Surfaces
from experiments.problems.systems import SYSTEMS, system
from privbo.protocol.messages import ClientHistory, FloatArray


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def history(units: FloatArray) -> ClientHistory:
    n, k, _ = units.shape
    return ClientHistory(units=units, values=np.zeros((n, k)), rounds=np.arange(k), recommended=units[:, 0])


DRAWN = {
    "GP 1-D": gaussian_process(0, 7, 1, 0.5),
    "GP 4-D": gaussian_process(0, 7, 4, 0.5),
    "camel": shifted(0, "camel", 7),
    "ackley": shifted(0, "ackley", 7, shift=0.3),
    **{name: system(0, name, 7) for name in SYSTEMS},
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_point_is_better_than_the_best_and_regret_is_in_units_of_the_range(name: str) -> None:
    surface: Surfaces = DRAWN[name]
    units = np.random.default_rng(1).random((7, 2000, surface.space.n_dims))
    losses = surface.losses(history(units))
    assert losses.min() >= 0.0
    assert 0.9 < losses.max() <= 1.03  # the worst of 2000 random points is nearly the worst of 4096 spread ones
    better = surface.values(np.repeat(np.arange(7), 2000), units.reshape(14000, -1)).reshape(7, -1)
    assert np.all(better.max(axis=1) <= surface.best + 1e-3 * (surface.best - surface.low))


def test_processes_have_the_variance_and_the_correlation_they_state() -> None:
    """Over 60 draws of 6 dimensions: one correlation has a standard deviation of about .1, the mean .013."""
    drawn = [gaussian_process(seed, 12, 6, 0.6) for seed in range(60)]
    assert np.mean([one.correlation() for one in drawn]) == pytest.approx(0.6, abs=0.065)
    assert np.mean([np.mean(one.probes**2) for one in drawn]) == pytest.approx(1.0, abs=0.1)
    assert gaussian_process(0, 5, 2, 1.0).correlation() == pytest.approx(1.0)


def test_observation_noise_is_the_stated_share_of_the_spread_and_repeats() -> None:
    """2000 observations: the standard deviation is known to 1.6 %."""
    first, again = (gaussian_process(0, 1, 2, 0.5, noise=0.5) for _ in range(2))
    clients, units = np.zeros(2000, dtype=np.int64), np.full((2000, 2), 0.3)
    seen = first.observe(clients, units)
    np.testing.assert_array_equal(seen, again.observe(clients, units))
    assert seen.std() / first.probes[0].std() == pytest.approx(0.5, rel=0.12)
    assert first.losses(history(units[None])).std() < 1e-12


# ---- real ones


def test_kernel_ridge_is_scikit_learns() -> None:
    from sklearn.kernel_ridge import KernelRidge

    found = surfaces("kernel-ridge", 3, 0).reshape(3, 20, 20)
    for client, half in enumerate(shards(TUNINGS["kernel-ridge"], 3, 0)):
        for i, j in ((0, 5), (10, 10), (19, 0)):
            alpha, gamma = np.geomspace(1e-4, 1e2, 20)[i], np.geomspace(1e-4, 1.0, 20)[j]
            fit = KernelRidge(alpha=alpha, gamma=gamma, kernel="rbf").fit(half.x, half.y - half.y.mean())
            rest = fit.predict(half.validation_x) + half.y.mean() - half.validation_y
            expected = max(-1.0, 1 - np.mean(rest**2) / half.validation_y.var())
            assert found[client, i, j] == pytest.approx(expected, abs=1e-6)


def test_nearest_neighbours_are_scikit_learns() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    found = surfaces("nearest-neighbours", 2, 0).reshape(2, 12, 2, len(METRICS), len(SCALINGS))
    for client, half in enumerate(shards(TUNINGS["nearest-neighbours"], 2, 0)):
        k = len(half.y) // 2  # the last level
        fit = KNeighborsClassifier(k, metric="cityblock").fit(half.x, half.y)
        shares = k * fit.predict_proba(half.validation_x) + 1 / len(fit.classes_)
        shares /= shares.sum(axis=1, keepdims=True)
        at = np.searchsorted(fit.classes_, half.validation_y)
        known = np.isin(half.validation_y, fit.classes_)
        likely = np.where(known, shares[np.arange(len(at)), np.minimum(at, len(fit.classes_) - 1)], 0.0)
        expected = np.log(np.maximum(likely, 5e-3)).mean()
        assert found[client, -1, 0, METRICS.index("cityblock"), 0] == pytest.approx(expected, abs=1e-9)


def test_a_surface_is_looked_up_where_its_level_stands_and_kept(tmp_path: Path) -> None:
    surface = model(4, "support-vectors", 2)
    table = surfaces("support-vectors", 2, 1).reshape(2, 4, 9, 9)
    unit = surface.space.encode({"kernel": "poly", "C": 7, "gamma": 2})
    assert surface.values(np.array([1]), unit[None])[0] == table[1, 2, 7, 2]
    assert surface.best[1] == table[1].max()
    assert len(list((tmp_path / "privbo").iterdir())) == 1
