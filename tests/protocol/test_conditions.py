"""Parameters that matter only beside certain values of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.local_model import grid_index
from tests.conformance.cases import problem

PARAMETERS = {
    "kernel": pb.Categorical(["linear", "rbf", "poly"]),
    "C": pb.Real(1e-2, 1e2, log=True),
    "gamma": pb.Real(1e-3, 1e1, log=True, when={"kernel": ["rbf", "poly"]}),
    "shape": pb.Categorical(["full", "low"], when={"kernel": "poly"}),
    "degree": pb.Int(2, 5, when={"kernel": "poly", "shape": "full"}),
}
SPACE = pb.Space(PARAMETERS)
MATTERS = {
    ("linear", None): {"kernel", "C"},
    ("rbf", None): {"kernel", "C", "gamma"},
    ("poly", "low"): {"kernel", "C", "gamma", "shape"},
    ("poly", "full"): {"kernel", "C", "gamma", "shape", "degree"},
}


def test_points_have_what_matters_and_points_that_differ_in_nothing_else_are_one() -> None:
    units = np.random.default_rng(0).random((2_000, SPACE.n_dims))
    snapped = SPACE.snap(units)
    np.testing.assert_array_equal(SPACE.snap(snapped), snapped)
    decoded = [SPACE.decode(unit) for unit in snapped]
    for raw, unit, params in zip(units, snapped, decoded, strict=True):
        assert params.keys() == MATTERS[params["kernel"], params.get("shape")]
        assert SPACE.decode(raw) == params
        np.testing.assert_allclose(SPACE.encode(params), unit, atol=1e-12)
    one = {"kernel": "linear", "C": 1.0}
    same = [np.array([1 / 6, 0.5, *rest]) for rest in np.random.default_rng(1).random((20, 3))]
    assert len({SPACE.snap(unit).tobytes() for unit in same}) == 1
    assert SPACE.decode(same[0]) == one
    assert len({SPACE.embed(unit).tobytes() for unit in same}) == 1


def test_a_grid_has_every_point_once_and_finds_it_again() -> None:
    space = pb.Space(
        {
            "a": pb.Categorical(["x", "y"]),
            "b": pb.Int(1, 4, when={"a": "y"}),
            "c": pb.Categorical(["u", "v", "w"], when={"a": ("x",)}),
        }
    )
    grid = space.grid()
    assert len(grid) == 4 + 3
    assert len({tuple(space.decode(unit).items()) for unit in grid}) == 7
    order = np.array([3, 0, 6, 1])
    np.testing.assert_array_equal(grid_index(space, grid, grid[order][None])[0], order)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"x": pb.Real(0, 1, when={"k": "a"}), "k": pb.Categorical(["a", "b"])}, "stands before it"),
        ({"n": pb.Int(0, 3), "x": pb.Real(0, 1, when={"n": 2})}, "must be a Categorical"),
        ({"k": pb.Categorical(["a", "b"]), "x": pb.Real(0, 1, when={"k": "c"})}, "'c' is none of"),
    ],
)
def test_conditions_that_speak_of_nothing_are_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.Space(parameters)


def test_values_that_do_not_belong_together_are_refused() -> None:
    for params in (
        {"kernel": "linear", "C": 1.0, "gamma": 1.0},
        {"kernel": "rbf", "C": 1.0},
        {"kernel": "poly", "C": 1.0, "gamma": 1.0, "shape": "low", "degree": 2},
    ):
        with pytest.raises(pb.ConfigurationError, match="do not match"):
            SPACE.encode(params)


def score(client: int, params: dict[str, Any]) -> float:
    assert params.keys() == MATTERS[params["kernel"], params.get("shape")]
    near = -((np.log10(params["C"]) - 1.0) ** 2)
    below = {"linear": 0.5, "rbf": 0.0, "poly": 1.0}[params["kernel"]] + abs(params.get("gamma", 1.0) - 1.0)
    return float(np.exp(near - below))


@pytest.mark.parametrize(
    "algorithm",
    [pb.SharedPrior(n_features=12, release_when="always"), pb.DPFTSDE(n_regions=1, n_features=12, n_init=2),
     pb.FedPNE(horizon=60, c=0.02)],
    ids=["shared-prior", "dp-fts-de", "fed-pne"],
)  # fmt: skip
def test_runs_over_a_space_with_conditions(algorithm: Any, tmp_path: Path) -> None:
    found = pb.Problem(space=PARAMETERS, objective=score, n_clients=4)
    record = pb.run(
        found, algorithm, privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"), rounds=4, seed=1,
        directory=tmp_path / "run",
    )  # fmt: skip
    assert not record.failures
    for best in record.best():
        assert best.params.keys() == MATTERS[best.params["kernel"], best.params.get("shape")]
    back = pb.load(tmp_path / "run")
    assert back.spec.problem.search_space == record.spec.problem.search_space
    assert back.best() == record.best()


def test_what_cuts_or_climbs_refuses_conditions() -> None:
    spaced = pb.Problem(space=PARAMETERS, objective=score, n_clients=8)
    for algorithm, words in ((pb.DPFTSDE(), "n_regions=1"), (pb.FederatedFLCB(), "no gradient everywhere")):
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.plan(spaced, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=3)


def test_conditions_and_constraints_are_a_part_of_the_run() -> None:
    def spec(problem: pb.Problem) -> pb.Spec:
        settings = {"algorithm": pb.SharedPrior(), "privacy": pb.Privacy(epsilon=2.0), "rounds": 3}
        return pb.Spec(name="a", problem=problem, **settings)

    plain = str(spec(problem()).departures())
    assert not any(word in plain for word in ('"when"', "step", "constraints"))
    without = PARAMETERS | {name: pb.Real(1e-3, 1e1, log=True) for name in ("gamma", "shape", "degree")}
    spaces = ({"space": PARAMETERS}, {"space": without}, {"space": without, "constraints": ["C < gamma"]})
    found = [spec(pb.Problem(objective=score, n_clients=4, **space)) for space in spaces]
    assert len({each.digest() for each in found}) == 3
    assert all(pb.Spec.from_dict(each.to_dict()).digest() == each.digest() for each in found)
