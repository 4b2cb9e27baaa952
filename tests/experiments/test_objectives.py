"""Test functions, shifted clients, and the book an environment keeps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from experiments.baselines.regular_features import regular_features
from experiments.problems.drawn_surfaces import gaussian_process, shifted
from experiments.problems.environments import Environment, Shifted, draw_noise
from experiments.problems.model_surfaces import model, surfaces
from experiments.problems.objectives import BRANIN_BOTTOM, BRANIN_TOP, CAMEL_BOTTOM, CAMEL_TOP, FUNCTIONS, GRIEWANK_TOP
from experiments.problems.systems import SYSTEMS, system
from privbo.algorithms.thompson.features import FourierFeatures
from privbo.protocol.messages import ClientHistory, FloatArray
from tests.thompson.test_features import _correlation, _draw, _largest_kernel_error


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_lie_in_the_unit_interval_and_the_optimum_is_one(name: str) -> None:
    named = FUNCTIONS[name]
    points = np.random.default_rng(0).random((200_000, named.n_dims))
    values = named.function(np.concatenate([points, np.round(points[:2000])]))  # corners, too
    assert values.min() >= 0.0
    assert values.max() <= named.maximum + 1e-9
    near = np.clip(np.array(named.optimum) + 1e-6 * (points[:1000] - 0.5), 0, 1)
    assert named.function(near).max() <= named.maximum + 1e-9
    if named.others:
        best = named.function(np.array([named.optimum, *named.others]))
        np.testing.assert_allclose(best, 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "point", "value"),
    [
        ("branin", (-5.0, 0.0), 308.1290960),
        ("branin", (0.0, 0.0), 55.6021126),
        ("camel", (2.0, 1.0), 5.7333333),
        ("camel", (1.0, -0.5), 0.9833333),
        ("griewank", (9.4294928, 8.8946607), 2.0419767),
        ("griewank", (math.pi, 0.0), 2.0024674),
    ],
)
def test_unseen_functions_have_their_textbook_values(name: str, point: tuple[float, float], value: float) -> None:
    """From the formulas at those points, by hand; nothing on a fine grid is larger than what they are divided by."""
    low, high, bottom, top = {
        "branin": ((-5, 0), (10, 15), BRANIN_BOTTOM, BRANIN_TOP),
        "camel": ((-2, -1), (2, 1), CAMEL_BOTTOM, CAMEL_TOP),
        "griewank": ((-5, -5), (10, 10), 0.0, GRIEWANK_TOP),
    }[name]
    unit = (np.array(point) - low) / (np.array(high) - low)
    assert bottom + (1 - FUNCTIONS[name].function(unit)) * (top - bottom) == pytest.approx(value, abs=2e-6)
    side = np.linspace(0, 1, 401)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    assert 0.0 <= FUNCTIONS[name].function(grid).min() < 1e-3


@pytest.mark.parametrize("noise", ["uniform", "inside", "normal-inside"])
@pytest.mark.parametrize("count", [1, 30, 60, 400])
def test_mean_noise_has_mean_zero_and_the_variance_of_single_pulls(noise: str, count: int) -> None:
    """20,000 draws: the mean is within 5.5 standard errors (false alarm 4e-8), the variance within 8 %."""
    generator = np.random.default_rng([3, count])
    means = np.full(20_000, 0.3)
    single = draw_noise(generator, noise, np.full(100_000, 0.3), np.ones(100_000, dtype=int), 0.2)
    drawn = draw_noise(generator, noise, means, np.full(20_000, count), 0.2)
    assert abs(drawn.mean()) < 5.5 * drawn.std() / np.sqrt(20_000)
    assert drawn.var() * count == pytest.approx(single.var(), rel=0.08)
    if noise != "uniform":
        assert np.all(abs(means + drawn - 0.5) <= 0.5)


def test_the_book_knows_every_pull_in_order() -> None:
    model = Shifted(FUNCTIONS["garland"], 2, seed=0)
    environment = Environment(model, seed=0, horizon=6)
    units = np.array([[0.2], [0.4], [0.6]])
    environment.pull(np.array([0, 0, 1]), units, np.array([2, 1, 3]))
    environment(np.array([0, 1]), units[:2])
    worth = model.values(np.zeros(3, dtype=int), units)
    first = worth[[0, 0, 1, 0]]
    second = worth[[2, 2, 2, 1]]
    best = environment.global_best
    np.testing.assert_allclose(environment.regret(best)[:4], np.cumsum(best - (first + second) / 2))
    assert environment.pulls.tolist() == [4, 4]


# ---- families of surfaces: what is stated of them holds, and real ones are what scikit-learn says


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
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
    surface = DRAWN[name]
    units = np.random.default_rng(1).random((7, 2000, surface.space.n_dims))
    losses = surface.losses(history(units))
    assert losses.min() >= 0.0
    assert 0.9 < losses.max() <= 1.03  # the worst of 2000 random points is nearly the worst of 4096 spread ones
    better = surface.values(np.repeat(np.arange(7), 2000), units.reshape(14000, -1)).reshape(7, -1)
    assert np.all(better.max(axis=1) <= surface.best + 1e-3 * (surface.best - surface.low))


def test_observation_noise_is_the_stated_share_of_the_spread_and_repeats() -> None:
    """2000 observations: the standard deviation is known to 1.6 %."""
    first, again = (gaussian_process(0, 1, 2, 0.5, noise=0.5) for _ in range(2))
    clients, units = np.zeros(2000, dtype=np.int64), np.full((2000, 2), 0.3)
    seen = first.observe(clients, units)
    np.testing.assert_array_equal(seen, again.observe(clients, units))
    assert seen.std() / first.probes[0].std() == pytest.approx(0.5, rel=0.12)
    assert first.losses(history(units[None])).std() < 1e-12


# ---- real ones


def test_a_surface_is_looked_up_where_its_level_stands_and_kept(tmp_path) -> None:
    surface = model(4, "support-vectors", 2)
    table = surfaces("support-vectors", 2, 1).reshape(2, 4, 9, 9)
    unit = surface.space.encode({"kernel": "poly", "C": 7, "gamma": 2})
    assert surface.values(np.array([1]), unit[None])[0] == table[1, 2, 7, 2]
    assert surface.best[1] == table[1].max()
    assert len(list((tmp_path / "privbo").iterdir())) == 1


# ---- a Fourier series of the kernel against the kernel itself


# What a series over a lattice leaves out is computed, not estimated: these errors are exact up to rounding.
@pytest.mark.parametrize(
    ("n_embedded", "n_features", "lengthscale", "kernel", "error"),
    [
        (1, 50, 0.03, "se", 2e-4),
        (2, 64, 0.3, "se", 2e-3),
        (2, 200, 0.3, "matern52", 2e-2),
        (2, 400, 0.3, "matern32", 4e-2),
        (3, 400, 0.3, "se", 1e-2),
    ],
)
def test_few_regular_features_give_the_kernel(n_embedded, n_features, lengthscale, kernel, error):
    points = np.random.default_rng(1).random((200, n_embedded))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1) / lengthscale
    regular = regular_features(n_features // 2, n_embedded, lengthscale, kernel)(torch.as_tensor(points)).numpy()
    paired = _draw(n_features, n_embedded, lengthscale, kernel)(torch.as_tensor(points)).numpy()
    regular, paired = (np.abs(one @ one.T - _correlation(kernel, distance)).max() for one in (regular, paired))
    assert regular < error
    assert paired > 10 * regular


def test_regular_features_without_their_powers_are_caught():
    features = regular_features(32, 2, 0.3, "se")
    flat = FourierFeatures(frequencies=features.frequencies)
    assert _largest_kernel_error(flat, "se", 0.3) > 0.1
    assert flat.digest != features.digest


@given(kernel=st.sampled_from(["se", "matern52", "matern32"]), half=st.integers(1, 20), n_embedded=st.integers(1, 4))
def test_every_point_has_unit_norm(kernel, half, n_embedded):
    phi = regular_features(half, n_embedded, 0.1, kernel)(torch.rand(7, 3, n_embedded, dtype=torch.float64))
    np.testing.assert_allclose(torch.linalg.vector_norm(phi, dim=-1).numpy(), 1.0, rtol=1e-12)
