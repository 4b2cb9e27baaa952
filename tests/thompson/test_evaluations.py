"""Models of long histories: which points are kept, that they are a client's own, and that short ones are untouched."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.evaluations import kept_points
from privbo.algorithms.thompson.settings import Part
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.runs.best import best_points
from privbo.testing import toy_problem
from tests.builders import play

GENERATOR = np.random.default_rng(4)
UNITS, VALUES = GENERATOR.random((6, 60, 2)), GENERATOR.standard_normal((6, 60))
VALUES[3, ::3] = -np.inf
VALUES[5, np.delete(np.arange(60), [4, 30])] = -np.inf


def plainly(units: FloatArray, values: FloatArray, count: int, parts: tuple[Part, ...]) -> list[int]:
    """The rule for one client, one point after the other; what is unknown is chosen last."""
    places, known = range(len(values)), values > -np.inf
    orders = {"best": values, "newest": np.where(known, places, -1)}
    chosen = set[int]()
    for order in (orders[part] for part in parts if part in orders):
        chosen.update(sorted(places, key=lambda i, by=order: (-by[i], i))[: count // len(parts)])
    while len(chosen) < count:
        near = {i: min((np.square(units[i] - units[j]).sum() for j in chosen), default=np.inf) for i in places}
        left = [i for i in places if i not in chosen]
        chosen.add(max(left, key=lambda i, near=near: (near[i] if known[i] else -1.0, -i)))
    return sorted(chosen)


@pytest.mark.parametrize("parts", [("best", "newest", "spread"), ("best",), ("newest",), ("spread",)])
def test_what_is_kept_is_a_clients_own_points_by_the_rule(parts: tuple[Part, ...]):
    expected = [plainly(units, values, 24, parts) for units, values in zip(UNITS, VALUES, strict=True)]
    assert kept_points(UNITS, VALUES, 24, parts).tolist() == expected


def test_a_client_uses_the_point_that_was_best_on_average_and_not_the_luckiest_draw():
    generator = np.random.default_rng(0)
    means = {"a": 0.6, "b": 0.5, "c": 0.5}
    problem = pb.Problem(
        space={"k": pb.Categorical(tuple(means))}, n_clients=12,
        objective=lambda _, params: means[params["k"]] + generator.normal(scale=0.5),
    )  # fmt: skip
    history = pb.run(problem, pb.SharedPrior(n_features=8), privacy=pb.NoPrivacy(), rounds=12, seed=0).clients
    nowhere = dataclasses.replace(history, recommended=np.full_like(history.recommended, np.nan))
    for found in (history, nowhere):  # by the algorithm, and by what the client itself has seen
        for best in best_points(found, problem.search_space, range(12)):
            units, values = history.units[best.client], history.values[best.client]
            own = [values[(units == unit).all(axis=1)].mean() for unit in np.unique(units, axis=0)]
            assert best.value == pytest.approx(max(own))


@pytest.mark.parametrize(("recommended", "value"), [(0.2, 0.1), (np.nan, 0.5)])
def test_a_value_counts_as_often_as_there_are_calls_behind_it(recommended: float, value: float):
    history = ClientHistory(
        units=np.array([[[0.2], [0.2], [0.8]]]), values=np.array([[1.0, 0.0, 0.5]]), rounds=np.arange(3),
        recommended=np.array([[recommended]]), calls=np.array([[1, 9, 0]]),
    )  # fmt: skip
    (best,) = best_points(history, pb.Space({"x": pb.Real(0, 1)}), [0])
    assert (best.params["x"], best.value) == (pytest.approx(0.2 if value == 0.1 else 0.8), pytest.approx(value))


@pytest.mark.parametrize("name", ["shared-prior", "dp-fts-de", "dp-fts-de, exact"])
def test_a_limit_changes_nothing_below_it_and_runs_go_on_above_it(name: str):
    def algorithm(max_points: int | None):
        if name == "shared-prior":
            return pb.SharedPrior(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8))
        draw = "exact" if name.endswith("exact") else "paths"
        return pb.DPFTSDE(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8, draw=draw, n_candidates=64))

    def played(max_points: int | None, **settings: Any) -> ClientHistory:
        asked = {"privacy": pb.NoPrivacy(), "rounds": 14} | settings
        return play(toy_problem(4), algorithm(max_points), **asked).clients

    whole, same, less = (played(count) for count in (None, 100, 8))
    np.testing.assert_array_equal(same.units, whole.units)
    assert not np.array_equal(less.units, whole.units)
    assert np.isfinite(less.values).all()
    np.testing.assert_array_equal(played(8, executor="threads", jobs=3).units, less.units)
