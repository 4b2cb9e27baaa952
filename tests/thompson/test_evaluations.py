"""Models of long histories: which points are kept, that they are a client's own, and that short ones are untouched."""

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.evaluations import kept_points

GENERATOR = np.random.default_rng(4)
UNITS, VALUES = GENERATOR.random((5, 60, 2)), GENERATOR.standard_normal((5, 60))
VALUES[3, ::3] = -np.inf
THIRDS = ("best", "newest", "spread")


def test_the_best_the_newest_and_the_farthest_are_kept_in_order():
    kept = kept_points(UNITS, VALUES, 30, THIRDS)
    assert kept.shape == (5, 30)
    for row, chosen in enumerate(kept):
        assert (np.diff(chosen) > 0).all()
        known = np.flatnonzero(VALUES[row] > -np.inf)
        assert set(known[-10:]) <= set(chosen)
        assert set(np.argsort(-VALUES[row])[:10]) <= set(chosen)
        assert set(chosen) <= set(known)
        left = np.setdiff1d(known, chosen)
        near = np.linalg.norm(UNITS[row, left][:, None] - UNITS[row, chosen], axis=-1).min(axis=1)
        # By chance, not by distance, the farthest that is left is farther away.
        by_chance = np.random.default_rng(row).choice(known, 30, replace=False)
        others = np.setdiff1d(known, by_chance)
        far = np.linalg.norm(UNITS[row, others][:, None] - UNITS[row, by_chance], axis=-1).min(axis=1)
        assert near.max() < far.max()


@pytest.mark.parametrize("rule", ["best", "newest"])
def test_a_single_rule_keeps_nothing_else(rule: str):
    order = VALUES if rule == "best" else np.where(np.isfinite(VALUES), np.arange(60), -1)
    expected = np.sort(np.argsort(-order, axis=1, kind="stable")[:, :24], axis=1)
    np.testing.assert_array_equal(kept_points(UNITS, VALUES, 24, (rule,)), expected)


def test_spread_points_alone_leave_no_hole():
    """Greedy farthest points are at most twice as far from any point as the best choice, and no two are closer."""
    chosen = kept_points(UNITS, VALUES, 24, ("spread",))
    for row in (0, 1, 2, 4):
        apart = np.linalg.norm(UNITS[row, chosen[row]][:, None] - UNITS[row, chosen[row]], axis=-1)
        left = np.setdiff1d(np.arange(60), chosen[row])
        near = np.linalg.norm(UNITS[row, left][:, None] - UNITS[row, chosen[row]], axis=-1).min(axis=1)
        assert near.max() <= apart[~np.eye(24, dtype=bool)].min()


def test_a_clients_points_do_not_depend_on_who_else_is_asked():
    whole = kept_points(UNITS, VALUES, 24, THIRDS)
    for row in range(5):
        np.testing.assert_array_equal(kept_points(UNITS[[row]], VALUES[[row]], 24, THIRDS)[0], whole[row])


def test_where_too_few_are_known_all_of_them_are_kept():
    values = np.full((1, 60), -np.inf)
    values[0, [4, 30]] = 1.0, 2.0
    assert {4, 30} <= set(kept_points(UNITS[:1], values, 12, THIRDS)[0])


def hill(client: int, params: dict[str, float]) -> float:
    return -((params["x"] - 0.1 * client) ** 2) - (params["y"] - 0.6) ** 2


def play(algorithm, **settings) -> pb.Record:
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    problem = pb.Problem(space=space, objective=hill, n_clients=4)
    return pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=14, seed=1, **settings)


@pytest.mark.parametrize("name", ["shared-prior", "dp-fts-de", "dp-fts-de, exact"])
def test_a_limit_changes_nothing_below_it_and_runs_go_on_above_it(name: str):
    def algorithm(max_points: int | None):
        if name == "shared-prior":
            return pb.SharedPrior(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8))
        draw = "exact" if name.endswith("exact") else "paths"
        return pb.DPFTSDE(n_features=8, own=pb.OwnModel(max_points=max_points, fit_steps=8, draw=draw, n_candidates=64))

    whole, same, less = (play(algorithm(count)).clients for count in (None, 100, 8))
    np.testing.assert_array_equal(same.units, whole.units)
    assert not np.array_equal(less.units, whole.units)
    assert np.isfinite(less.values).all()
    parts = play(algorithm(8), executor="threads", jobs=3).clients
    np.testing.assert_array_equal(parts.units, less.units)
