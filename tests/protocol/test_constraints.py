"""Known constraints: formulas that every point keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.protocol.space import keeps

NAMES = {"a", "b", "kind"}
PARAMETERS = {"a": pb.Real(0, 1), "b": pb.Real(0, 1), "n": pb.Int(1, 8), "kind": pb.Categorical(["u", "v"])}
CONSTRAINTS = ("a + b <= 0.5", "n * a < 2 or kind == 'u'")


def kept(params: dict[str, Any]) -> bool:
    return params["a"] + params["b"] <= 0.5 and (params["n"] * params["a"] < 2 or params["kind"] == "u")


@pytest.mark.parametrize(
    ("text", "holds"),
    [("a + b <= 1", True), ("a * b > 0.2", False), ("not a < b", False), ("0 < a < b", True), ("kind == 'v'", True),
     ("max(a, b) - min(a, b) >= abs(-0.5)", True), ("1 / (a - 0.25) > 0", False), ("a < 1 and b > 0 or b > 2", True)],
)  # fmt: skip
def test_formulas(text: str, holds: bool) -> None:
    values = {"a": np.array([0.25]), "b": np.array([0.75]), "kind": np.array(["v"], dtype=object)}
    assert keeps(text, values, dict.fromkeys(NAMES, np.array([True]))).tolist() == [holds]


NO_FORMULAS = [
    "a +", "__import__('os').system('true')", "a.real > 0", "c < 1", "a ** 9 ** 9 > 0", "[a] == [b]", "lambda: 1",
    "a if b else 1", "open('x')", "(a := 1)", "f'{a}' == 'x'", "min() < 1", "a < 1; b < 1", "1j < a", "abs(a, b) < 1",
    "a < " + "(" * 500 + "1" + ")" * 500, "a < " + "-" * 5_000 + "1",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_FORMULAS, ids=range(len(NO_FORMULAS)))
def test_what_is_no_formula_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(pb.ConfigurationError, match="constraint"):
        pb.Space(PARAMETERS, [text])


def test_a_space_refuses_what_leaves_nearly_nothing_or_compares_unlike() -> None:
    with pytest.raises(pb.ConfigurationError, match=r"they leave 0\.\d% of the space"):
        pb.Space(PARAMETERS, ["a + b < 0.01"])
    with pytest.raises(pb.ConfigurationError, match="like with like"):
        pb.Space(PARAMETERS, ["kind < 3"])
    with pytest.raises(pb.ConfigurationError, match="does not keep the constraints"):
        pb.Space(PARAMETERS, CONSTRAINTS).encode({"a": 0.5, "b": 0.5, "n": 1, "kind": "u"})


def test_where_a_parameter_does_not_matter_its_constraints_hold() -> None:
    space = pb.Space({"k": pb.Categorical(["x", "y"]), "a": pb.Int(0, 3, when={"k": "y"})}, ["a >= 2"])
    assert [space.decode(unit) for unit in space.grid()] == [{"k": "x"}, {"k": "y", "a": 2}, {"k": "y", "a": 3}]


ASKED: list[dict[str, Any]] = []


def score(client: int, params: dict[str, Any]) -> float:
    ASKED.append(params)
    return 1.0 - (params["a"] - 0.7) ** 2 - (params["b"] - 0.4) ** 2  # best outside of what is allowed


@pytest.mark.parametrize("final", [None, "common"])
@pytest.mark.parametrize(
    "algorithm",
    [pb.SharedPrior(n_features=12, release_when="always"), pb.SharedPrior(n_features=12),
     pb.SharedPrior(n_features=12, acquisition="thompson"), pb.DPFTSDE(n_regions=1, n_features=12, n_init=2)],
    ids=["shared-prior", "shares nothing", "thompson", "dp-fts-de"],
)  # fmt: skip
def test_every_point_of_a_run_keeps_them(algorithm: Any, final: Any, tmp_path: Path) -> None:
    ASKED.clear()
    problem = pb.Problem(space=PARAMETERS, constraints=CONSTRAINTS, objective=score, n_clients=5)
    record = pb.run(
        problem, algorithm, privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"), rounds=4, seed=1,
        final=final, directory=tmp_path / "run",
    )  # fmt: skip
    assert len(ASKED) >= 25
    assert all(map(kept, ASKED))
    assert all(kept(best.params) for best in record.best())
    assert record.common is None or kept(record.common.params)
    assert pb.load(tmp_path / "run").spec.problem.search_space == problem.search_space


def test_a_finite_space_is_searched_over_what_is_allowed() -> None:
    space = pb.Space({"n": pb.Int(1, 6), "m": pb.Int(1, 6)}, ["n * m <= 6"])
    assert {(p["n"], p["m"]) for p in map(space.decode, space.grid())} == {
        (n, m) for n in range(1, 7) for m in range(1, 7) if n * m <= 6
    }
    exact = pb.DPFTSDE(n_regions=1, n_features=12, n_init=2, own=pb.OwnModel(draw="exact"))
    asked: list[tuple[int, int]] = []
    problem = pb.Problem(
        space=space, objective=lambda c, p: asked.append((p["n"], p["m"])) or float(p["n"] + p["m"]), n_clients=4
    )
    pb.run(problem, exact, privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"), rounds=4, seed=1)
    assert all(n * m <= 6 for n, m in asked)


def test_what_halves_boxes_or_climbs_refuses_them() -> None:
    problem = pb.Problem(
        space={"a": pb.Real(0, 1), "b": pb.Real(0, 1)}, constraints=["a < b"], objective=score, n_clients=8
    )
    halving = (pb.FedPNE(horizon=40), pb.PFPNE(horizon=40), pb.ParallelXArmed(horizon=40, nu1=5.0, rho=0.8))
    for algorithm in (*halving, pb.FederatedFLCB(), pb.DPFTSDE()):
        with pytest.raises(pb.ConfigurationError, match="constraints"):
            pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=3)


def test_an_algorithm_of_ones_own_that_chooses_other_points_has_none_of_them_evaluated(tmp_path: Path) -> None:
    """Whether the objective is called or asked: a client whose point nobody may evaluate has a failure, and is told."""
    run = {"privacy": pb.Privacy(noise_multiplier=1.0, noise="simulation"), "rounds": 3, "seed": 1}
    space = {"space": PARAMETERS, "constraints": CONSTRAINTS, "n_clients": 3}
    ASKED.clear()
    record = pb.run(pb.Problem(objective=score, **space), Zoom(), **run)
    n_points = 3 * Zoom().n_candidates * run["rounds"]
    assert 0 < len(ASKED) < n_points
    assert all(map(kept, ASKED))
    assert np.isnan(record.clients.values).sum() == n_points - len(ASKED)
    assert all("constraints" in words for words in record.failures.values())
    asked = pb.start(pb.Problem(objective="ask", **space), Zoom(), directory=tmp_path / "run", **run)
    while trials := asked.site.ask():
        for trial in trials:
            assert kept(trial.params)
            asked.site.tell(trial, score(trial.client, trial.params))
    found = asked.result()
    for ours, theirs in zip(found.releases, record.releases, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)
