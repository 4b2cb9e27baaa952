"""Spaces: points and their units, parameters under conditions, and constraints."""

import math
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.spatial.distance import pdist

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.algorithms.thompson.local_model import grid_index
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.space import Categorical, Int, Real, Space, keeps
from tests.builders import SIMULATED, problem as flat_problem, same_releases
from tests.conformance.cases import problem

PARAMETERS = st.one_of(
    st.builds(
        lambda low, width, log: Real(low, low * (1 + width), log),
        st.floats(1e-6, 1e6),
        st.floats(1e-3, 1e3),
        st.booleans(),
    ),
    st.builds(lambda low, n, log: Int(low, low + n, log), st.integers(1, 1000), st.integers(1, 500), st.booleans()),
    st.builds(lambda low, n: Real(low, low + 0.125 * n, step=0.125), st.integers(-9, 9), st.integers(1, 40)),
    st.builds(
        lambda low, n, step: Int(low, low + n * step, step=step),
        st.integers(-9, 9),
        st.integers(1, 9),
        st.integers(2, 5),
    ),
    st.builds(lambda n: Categorical(tuple(f"c{i}" for i in range(n))), st.integers(2, 6)),
)
SPACES = st.builds(
    lambda ps: Space({f"p{i}": p for i, p in enumerate(ps)}), st.lists(PARAMETERS, min_size=1, max_size=4)
)


@given(SPACES, st.data())
def test_snap_is_idempotent_and_what_encode_makes_of_the_same_decoded_values(space: Space, data: st.DataObject) -> None:
    unit = np.array(data.draw(st.lists(st.floats(0, 1), min_size=space.n_dims, max_size=space.n_dims)))
    snapped = space.snap(unit)
    np.testing.assert_allclose(space.snap(snapped), snapped, atol=1e-12)
    np.testing.assert_allclose(space.encode(space.decode(unit)), snapped, atol=1e-7)
    for found, wanted in zip(space.decode(snapped).values(), space.decode(unit).values(), strict=True):
        assert found == wanted or math.isclose(found, wanted)


def test_integer_bins_have_equal_width() -> None:
    units = np.linspace(0, 1, 30_001)
    values = [Int(1, 5).decode(u) for u in units]
    counts = np.bincount(values)[1:]
    assert counts.max() - counts.min() <= 2


def test_log_scales() -> None:
    assert Real(1e-2, 1e2, log=True).decode(0.5) == pytest.approx(1.0)
    assert Int(1, 1000, log=True).decode(0.0) == 1
    assert Int(1, 1000, log=True).decode(1.0) == 1000
    assert Int(1, 1000, log=True).decode(0.5) == 22  # sqrt(0.5 * 1000.5) = 22.4


def test_embedding_puts_choices_one_apart() -> None:
    space = Space({"kind": Categorical(("a", "b", "c")), "x": Real(0, 1)})
    assert space.n_embedded == 4
    points = space.embed([space.encode({"kind": k, "x": 0.25}) for k in "abc"])
    np.testing.assert_allclose(pdist(points), 1.0)


FINITE = Space({"n": Int(1, 3), "kind": Categorical((True, False))})
BRANCHED = {
    "a": Categorical(["x", "y"]),
    "b": Int(1, 4, when={"a": "y"}),
    "c": Categorical(["u", "v"], when={"a": ("x",)}),
}
MATTERING = Space({"k": Categorical(["x", "y"]), "a": Int(0, 3, when={"k": "y"})}, ["a >= 2"])
PRODUCTS = Space({"n": Int(1, 6), "m": Int(1, 6)}, ["n * m <= 6"])
GRIDS = [
    (FINITE, [{"n": n, "kind": kind} for n in (1, 2, 3) for kind in (True, False)]),
    (Space(BRANCHED), [{"a": "y", "b": n} for n in range(1, 5)] + [{"a": "x", "c": c} for c in "uv"]),
    (MATTERING, [{"k": "x"}, {"k": "y", "a": 2}, {"k": "y", "a": 3}]),  # elsewhere its constraints hold
    (PRODUCTS, [{"n": n, "m": m} for n in range(1, 7) for m in range(1, 7) if n * m <= 6]),
]


@pytest.mark.parametrize(("space", "points"), GRIDS)
def test_a_grid_has_every_point_once_and_finds_it_again(space: Space, points) -> None:
    grid = space.grid()
    assert sorted(map(str, map(space.decode, grid))) == sorted(map(str, points))
    order = np.random.default_rng(0).permutation(len(grid))
    np.testing.assert_array_equal(grid_index(space, grid, grid[order][None])[0], order)
    assert space.grid(limit=len(points) - 1) is None
    assert Space(dict(space.parameters) | {"real": Real(0, 1)}).grid() is None


def test_choices_are_told_apart_by_type() -> None:
    space = Categorical((1, True, "1"))
    assert [space.decode(space.encode(c)) for c in (1, True, "1")] == [1, True, "1"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Real(1, 1), "below"),
        (lambda: Real(0, 1, log=True), "low > 0"),
        (lambda: Real(float("nan"), 1), "finite"),
        (lambda: Int(0.5, 2), "valid integer"),
        (lambda: Categorical(("a",)), "two choices"),
        (lambda: Categorical(("a", "a")), "twice"),
        (lambda: Categorical((math.nan, 1.0)), "NaN"),
        (lambda: Space({}), "empty"),
        (lambda: Space({"x": 3}), "use Real"),
        (lambda: Space({"x": Real(0, 1)}).encode({"y": 1}), "do not match"),
        (lambda: Space({"x": Real(0, 1)}).encode({"x": 2}), "outside"),
        (lambda: Space({"x": Real(0, 1)}).encode({"x": float("nan")}), "finite"),
        (lambda: Space({"n": Int(0, 3)}).encode({"n": 1.5}), "not an integer"),
        (lambda: Space({"k": Categorical(("a", "b"))}).encode({"k": "c"}), "none of"),
        (lambda: Real(0.0, 1.0, step=0.3), r"write high=0\.9"),
        (lambda: Int(1, 64, step=16), "write high=49$"),
        (lambda: Int(0, 2, step=5), "smaller step"),
        (lambda: Int(0, 10**400), "1e12"),
        (lambda: Real(0.1, 1.0, log=True, step=0.1), "go not together"),
        (lambda: Real(0.0, 1.0, step=0.0), "above 0"),
        (lambda: Real(0.0, 1.0, step=0.25).encode(0.3), "no whole number of steps"),
        (lambda: Real(0.0, 0.3, step=0.1).encode(0.3 + 1e-9), "outside"),
        (lambda: pb.Problem(space=CONSTRAINED, constraints="a < b", objective=min, n_clients=3), "should be a list"),
        (
            lambda: flat_problem(space=pb.Space({"C": Int(0, 9)}), constraints=["C < 1"]),
            "belong to the Space; give them there",
        ),
        (lambda: Categorical({"a", "b"}), r"choices=\{.*\}: a set has no order; give a list"),
        (lambda: Space({"x": Real(0, 1, when={"k": "a"}), "k": Categorical(["a", "b"])}), "stands before it"),
        (lambda: Space({"n": Int(0, 3), "x": Real(0, 1, when={"n": 2})}), "must be a Categorical"),
        (lambda: Space({"k": Categorical(["a", "b"]), "x": Real(0, 1, when={"k": "c"})}), "'c' is none of"),
        (lambda: SPACE.encode(POLY | {"kernel": "linear"}), "do not match"),
        (lambda: SPACE.encode({"kernel": "rbf", "C": 1.0}), "do not match"),
        (lambda: SPACE.encode(POLY | {"shape": "low", "degree": 2}), "do not match"),
        (lambda: Space(CONSTRAINED, ["a + b < 0.01"]), r"they leave 0\.\d% of the space"),
        (lambda: Space(CONSTRAINED, ["kind < 3"]), "like with like"),
        (lambda: Space(CONSTRAINED, ["zz > 1"]), "'zz' is none of the parameters"),
        (lambda: Space(CONSTRAINED, CONSTRAINTS).encode({"a": 0.5, "b": 0.5, "n": 1, "kind": "u"}), "not keep the"),
    ],
)
def test_impossible_spaces_are_refused(make, words) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_steps() -> None:
    tenths = [Real(0.0, 0.3, step=0.1).decode(u) for u in (0.1, 0.4, 0.6, 0.9)]
    assert tenths == [0.0, 0.1, 0.2, 0.3]  # not 0.30000000000000004
    assert Space({"a": Int(16, 64, step=16), "b": Real(0, 1, step=0.5)}).grid().shape == (12, 2)
    assert Real(0.0, 0.3, step=0.1).encode(0.3) == Real(0.0, 0.3, step=0.1).encode(0.1 * 3) == 0.875
    assert Real(-0.3, 0.0, step=0.1).encode(-0.1 * 3) == 0.125


@pytest.mark.parametrize(
    ("parameter", "bound"),
    [
        (Real(0.01, 0.1, step=0.01), 0.07),
        (Real(0, 1, step=0.1), 0.3),
        (Real(1e-3, 1e2, log=True), 0.07),
        (Real(-1, 2), 0.3),
    ],
)
def test_constraints_judge_what_is_evaluated(parameter: Real, bound: float) -> None:
    units = np.random.default_rng(0).random((5, 200))
    assert [[parameter.decode(u) for u in row] for row in units] == parameter.values(units).tolist()
    for sign, holds in {"<=": operator.le, ">=": operator.ge}.items():
        space = Space({"r": parameter, "s": Real(0, 1)}, [f"r {sign} {bound}", "s <= 0.3"])
        given = space.decode(space.encode({"r": bound, "s": 0.3}))  # a point on the bound is one of the space
        assert holds(given["r"], bound)
        assert list(given.values()) == pytest.approx([bound, 0.3], rel=1e-14)
    if parameter.step is not None:
        with pytest.raises(ConfigurationError, match="does not keep"):
            Space({"r": parameter}, [f"r < {bound}"]).encode({"r": bound})


@pytest.mark.parametrize(
    "given", [np.array([16, 32]), list(np.array([16, 32])), tuple(np.array([16, 32], dtype=object))]
)
def test_choices_of_numpy_are_what_they_are(given) -> None:
    assert repr(Categorical(given).choices) == "(16, 32)"
    assert repr(Categorical(np.array([True, False])).choices) == "(True, False)"
    assert Real(0, 1, when={"k": np.array(["a"])}).when == {"k": ("a",)}
    held = np.ones(2)
    counted = flat_problem(2, n_records=given, best_values=held)
    assert repr(counted.n_records) == "(16, 32)"
    assert counted.best_values is held


# ---- parameters that matter only beside certain values of others

CONDITIONAL = {
    "kernel": pb.Categorical(["linear", "rbf", "poly"]),
    "C": pb.Real(1e-2, 1e2, log=True),
    "gamma": pb.Real(1e-3, 1e1, log=True, when={"kernel": ["rbf", "poly"]}),
    "shape": pb.Categorical(["full", "low"], when={"kernel": "poly"}),
    "degree": pb.Int(2, 5, when={"kernel": "poly", "shape": "full"}),
}
SPACE, POLY = pb.Space(CONDITIONAL), {"kernel": "poly", "C": 1.0, "gamma": 1.0}
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


def score(client: int, params) -> float:
    assert params.keys() == MATTERS[params["kernel"], params.get("shape")]
    near = -((np.log10(params["C"]) - 1.0) ** 2)
    below = {"linear": 0.5, "rbf": 0.0, "poly": 1.0}[params["kernel"]] + abs(params.get("gamma", 1.0) - 1.0)
    return float(np.exp(near - below))


PRIOR, THOMPSON = pb.SharedPrior(n_features=12, release_when="always"), pb.DPFTSDE(n_regions=1, n_features=12, n_init=2)


@pytest.mark.parametrize("algorithm", [PRIOR, THOMPSON, pb.FedPNE(horizon=60, c=0.02)], ids=lambda a: type(a).__name__)
def test_runs_over_a_space_with_conditions(algorithm, tmp_path) -> None:
    found = pb.Problem(space=CONDITIONAL, objective=score, n_clients=4)
    record = pb.run(found, algorithm, privacy=SIMULATED, rounds=4, seed=1, directory=tmp_path / "run")
    assert not record.failures
    for best in record.best():
        assert best.params.keys() == MATTERS[best.params["kernel"], best.params.get("shape")]
    back = pb.load(tmp_path / "run")
    assert back.spec.problem.search_space == record.spec.problem.search_space
    assert back.best() == record.best()


def test_conditions_and_constraints_are_a_part_of_the_run() -> None:
    def spec(problem: pb.Problem) -> pb.Spec:
        settings = {"algorithm": pb.SharedPrior(), "privacy": pb.Privacy(epsilon=2.0), "rounds": 3}
        return pb.Spec(name="a", problem=problem, **settings)

    plain = str(spec(problem()).departures())
    assert not any(word in plain for word in ('"when"', "step", "constraints"))
    without = CONDITIONAL | {name: pb.Real(1e-3, 1e1, log=True) for name in ("gamma", "shape", "degree")}
    spaces = ({"space": CONDITIONAL}, {"space": without}, {"space": without, "constraints": ["C < gamma"]})
    found = [spec(pb.Problem(objective=score, n_clients=4, **space)) for space in spaces]
    assert len({each.digest() for each in found}) == 3
    assert all(pb.Spec.from_dict(each.to_dict()).digest() == each.digest() for each in found)


# ---- known constraints: formulas that every point keeps

NAMES = {"a", "b", "kind", "true"}
CONSTRAINED = {"a": pb.Real(0, 1), "b": pb.Real(0, 1), "n": pb.Int(1, 8), "kind": pb.Categorical(["u", "v"])}
CONSTRAINTS = ("a + b <= 0.5", "n * a < 2 or kind == 'u'")


def kept(params) -> bool:
    return params["a"] + params["b"] <= 0.5 and (params["n"] * params["a"] < 2 or params["kind"] == "u")


@pytest.mark.parametrize(
    ("text", "holds"),
    [("a + b <= 1", True), ("a * b > 0.2", False), ("not a < b", False), ("0 < a < b", True), ("kind == 'v'", True),
     ("true", True), ("not true or a > b", False),
     ("max(a, b) - min(a, b) >= abs(-0.5)", True), ("1 / (a - 0.25) > 0", False), ("a < 1 and b > 0 or b > 2", True)],
)  # fmt: skip
def test_formulas(text: str, holds: bool) -> None:
    values = {"a": np.array([0.25]), "b": np.array([0.75]), "kind": np.array(["v"], dtype=object)}
    values["true"] = np.array([True], dtype=object)
    assert keeps(text, values, dict.fromkeys(NAMES, np.array([True]))).tolist() == [holds]


NO_FORMULAS = [
    "a +", "__import__('os').system('true')", "a.real > 0", "c < 1", "a ** 9 ** 9 > 0", "[a] == [b]", "lambda: 1",
    "a if b else 1", "open('x')", "(a := 1)", "f'{a}' == 'x'", "min() < 1", "a < 1; b < 1", "1j < a", "abs(a, b) < 1",
    "a + b", "a and b < 1", "not a", "kind", "1",
    "a < " + "(" * 500 + "1" + ")" * 500, "a < " + "-" * 5_000 + "1",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_FORMULAS, ids=range(len(NO_FORMULAS)))
def test_what_is_no_formula_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(pb.ConfigurationError, match="constraint"):
        pb.Space(CONSTRAINED, [text])


ASKED = []


def constrained_score(client: int, params) -> float:
    ASKED.append(params)
    return 1.0 - (params["a"] - 0.7) ** 2 - (params["b"] - 0.4) ** 2  # best outside of what is allowed


@pytest.mark.parametrize("final", [None, "common"])
@pytest.mark.parametrize(
    "algorithm",
    [PRIOR, pb.SharedPrior(n_features=12), pb.SharedPrior(n_features=12, acquisition="thompson"), THOMPSON],
    ids=["shared-prior", "shares nothing", "thompson", "dp-fts-de"],
)
def test_every_point_of_a_run_keeps_them(algorithm, final, tmp_path) -> None:
    ASKED.clear()
    problem = pb.Problem(space=CONSTRAINED, constraints=CONSTRAINTS, objective=constrained_score, n_clients=5)
    home, settings = tmp_path / "run", {"privacy": SIMULATED, "rounds": 4, "seed": 1}
    record = pb.run(problem, algorithm, final=final, directory=home, **settings)
    assert len(ASKED) >= 25
    assert all(map(kept, ASKED))
    assert all(kept(best.params) for best in record.best())
    assert record.common is None or kept(record.common.params)
    assert pb.load(home).spec.problem.search_space == problem.search_space


def test_a_finite_space_is_searched_over_what_is_allowed() -> None:
    exact, asked = replace(THOMPSON, own=pb.OwnModel(draw="exact")), list[dict[str, int]]()
    products = flat_problem(space=PRODUCTS, objective=lambda _, params: asked.append(params) or sum(params.values()))
    pb.run(products, exact, privacy=SIMULATED, rounds=4, seed=1)
    assert all(params["n"] * params["m"] <= 6 for params in asked)


def test_what_cuts_halves_or_climbs_refuses_constraints_or_conditions() -> None:
    held, branched = flat_problem(8, constraints=["x < 0.5"]), flat_problem(8, space=CONDITIONAL)
    halving = (pb.FedPNE(horizon=40), pb.PFPNE(horizon=40), pb.ParallelXArmed(horizon=40, nu1=5.0, rho=0.8))
    refused = [(held, algorithm, "constraints") for algorithm in (*halving, pb.FederatedFLCB(), pb.DPFTSDE())]
    refused += [(branched, pb.DPFTSDE(), "n_regions=1"), (branched, pb.FederatedFLCB(), "no gradient everywhere")]
    for asked, algorithm, words in refused:
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.plan(asked, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=3)


def test_an_algorithm_of_ones_own_that_chooses_other_points_has_none_of_them_evaluated(tmp_path) -> None:
    """Whether the objective is called or asked: a client whose point nobody may evaluate has a failure, and is told."""
    run = {"privacy": SIMULATED, "rounds": 3, "seed": 1}
    space = {"space": CONSTRAINED, "constraints": CONSTRAINTS, "n_clients": 3}
    ASKED.clear()
    record = pb.run(pb.Problem(objective=constrained_score, **space), Zoom(), **run)
    n_points = 3 * Zoom().n_candidates * run["rounds"]
    assert 0 < len(ASKED) < n_points
    assert all(map(kept, ASKED))
    assert np.isnan(record.clients.values).sum() == n_points - len(ASKED)
    assert all("constraints" in words for words in record.failures.values())
    asked = pb.start(pb.Problem(objective="ask", **space), Zoom(), directory=tmp_path / "run", **run)
    while trials := asked.site.ask():
        for trial in trials:
            assert kept(trial.params)
            asked.site.tell(trial, constrained_score(trial.client, trial.params))
    same_releases(asked.result(), record)
