"""Test functions, shifted clients, and the book an environment keeps."""

import math

import numpy as np
import pytest

from experiments.problems.covid import simulate, world
from experiments.problems.environments import Environment, Shifted, draw_noise
from experiments.problems.objectives import (
    BRANIN_BOTTOM,
    BRANIN_TOP,
    CAMEL_BOTTOM,
    CAMEL_TOP,
    FUNCTIONS,
    GRIEWANK_TOP,
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_lie_in_the_unit_interval_and_the_optimum_is_one(name: str) -> None:
    named = FUNCTIONS[name]
    points = np.random.default_rng(0).random((200_000, named.n_dims))
    corners = np.round(points[:2000])
    values = np.concatenate([named.function(points), named.function(corners)])
    assert values.min() >= 0.0
    assert values.max() <= named.maximum + 1e-9
    near = np.clip(np.array(named.optimum) + 1e-6 * (points[:1000] - 0.5), 0, 1)
    assert named.function(near).max() <= named.maximum + 1e-9


@pytest.mark.parametrize("name", ["branin", "camel", "himmelblau"])
def test_functions_with_several_optima_reach_their_maximum_at_each(name: str) -> None:
    named = FUNCTIONS[name]
    for optimum in (named.optimum, *named.others):
        assert named.function(np.array(optimum)) == pytest.approx(1.0, abs=1e-9)


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
        assert np.all((means + drawn >= 0) & (means + drawn <= 1))


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


def test_an_epidemic_conserves_people_and_vaccine_helps() -> None:
    countries = world(6, seed=1)
    doses = np.array([0.0, 0.15, 0.5, 1.0])
    infected, dead = simulate(countries, doses)
    assert np.all((infected > 0) & (infected < 1))
    assert np.all(dead < infected)
    assert np.all(infected[:, 1:] < infected[:, :1])
    assert np.all(dead[:, 1:] < dead[:, :1])
