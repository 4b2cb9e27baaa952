"""Searches for a common setting against plain re-implementations, their prices, and their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import privbo as pb
from experiments.baselines.central_model import CentralModel, expected_improvement, fit
from experiments.baselines.common import Scores, Votes
from experiments.baselines.dp_hype import DPHype
from experiments.baselines.private_search import PrivateSearch
from privbo.protocol.messages import FloatArray, Setting

N = 9
CENTRES = np.random.default_rng(5).uniform(0.2, 0.8, (N, 2))


def score(client: int, params: dict[str, Any]) -> float:
    """Between 0 and 1.2, so that clipping to [0, 1] matters; one client fails in a corner."""
    if client == 3 and params["x"] < 0.3:
        return math.nan
    return 1.2 * math.exp(-4 * ((params["x"] - CENTRES[client, 0]) ** 2 + (params["y"] - CENTRES[client, 1]) ** 2))


PROBLEM = pb.Problem(space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, objective=score, n_clients=N)
NOISY = pb.Privacy(noise_multiplier=1.0, noise="simulation")


def played(algorithm: Any, privacy: Any = None, rounds: int = 5) -> pb.Record:
    return pb.run(PROBLEM, algorithm, privacy=privacy or pb.NoPrivacy(), rounds=rounds, seed=2)


def scores_at(points: FloatArray) -> FloatArray:
    """Plain: one call of the objective after the other, ``(N, k)``."""
    return np.array([[score(n, {"x": x, "y": y}) for x, y in points] for n in range(N)])


def mean_scores(points: FloatArray) -> FloatArray:
    """Plain: clipped to [0, 1], a failure is the worst, less the middle, on average."""
    values = scores_at(points)
    return np.array(
        [sum((0.0 if math.isnan(v) else min(v, 1.0)) - 0.5 for v in column) / N for column in values.T.tolist()]
    )


def released(record: pb.Record) -> FloatArray:
    return np.concatenate([release.values[0] for release in record.releases])


def evaluated(record: pb.Record) -> FloatArray:
    """The common points, which all clients evaluated in the same order."""
    units = record.clients.units
    assert (units == units[0]).all()
    return units[0]


@pytest.mark.parametrize("sampler", ["sobol", "random"])
@pytest.mark.parametrize("privacy", [None, NOISY], ids=["exact", "noisy"])
def test_private_search_is_the_mean_of_clipped_scores_and_its_largest(sampler: Any, privacy: Any) -> None:
    record = played(PrivateSearch(n_candidates=4, sampler=sampler, evaluations=18), privacy)
    points, told = evaluated(record), released(record)
    assert [release.values.shape for release in record.releases] == [(1, 4)] * 4 + [(1, 2)]
    assert len(np.unique(points, axis=0)) == 18
    if privacy is None:
        assert np.allclose(told, mean_scores(points), atol=1e-12)
        assert int(told.argmax()) == int(mean_scores(points).argmax())
    else:
        assert {round(r.noise_stddev, 12) for r in record.releases} == {round(0.5 * math.sqrt(18) / N, 12)}
    assert (record.clients.recommended == points[told.argmax()]).all()


@pytest.mark.parametrize("privacy", [None, NOISY], ids=["exact", "noisy"])
def test_dp_hype_counts_votes_and_announces_the_most(privacy: Any) -> None:
    record = played(DPHype(n_candidates=12), privacy)
    points, told = evaluated(record), released(record)
    votes = [0] * 12
    for row in scores_at(points).tolist():
        votes[max(range(12), key=lambda k: -math.inf if math.isnan(row[k]) else row[k])] += 1
    assert len(record.releases) == 1
    if privacy is None:
        assert np.allclose(told * N, votes, atol=1e-9)
        assert (record.clients.recommended == points[votes.index(max(votes))]).all()
    else:
        assert record.releases[0].noise_stddev * N == pytest.approx(1.0, rel=1e-4)
        assert (record.clients.recommended == points[told.argmax()]).all()


def plain_model(points: FloatArray, means: FloatArray, stddev: float) -> tuple[float, float, float, FloatArray]:
    """Plain: log densities by scipy over the same grid; mean by least squares; one point at a time."""
    best: tuple[float, float, float, float, FloatArray] | None = None
    for length in np.geomspace(0.05, 2.0, 12):
        for height in np.geomspace(0.02, 1.0, 8):
            ell = length * math.sqrt(2)
            gram = np.array([[height**2 * plain_kernel(a, b, ell) for b in points] for a in points])
            gram += (stddev**2 + 1e-6 * height**2) * np.eye(len(points))
            inverse = np.linalg.inv(gram)
            mean = inverse.sum(axis=0) @ means / inverse.sum()
            score_ = multivariate_normal(np.full(len(points), mean), gram).logpdf(means)
            score_ += norm(math.log(0.3), 1).logpdf(math.log(length)) + norm(math.log(0.2), 1).logpdf(math.log(height))
            if best is None or score_ > best[0]:
                best = score_, mean, ell, height, inverse
    assert best is not None
    return best[1:]


def plain_kernel(a: FloatArray, b: FloatArray, ell: float) -> float:
    r = math.sqrt(5) * math.dist(a, b) / ell
    return (1 + r + r * r / 3) * math.exp(-r)


def test_the_central_model_is_the_plain_process_on_what_was_released() -> None:
    record = played(CentralModel(n_init=4, n_candidates=64), NOISY, rounds=6)
    points, told, stddev = evaluated(record), released(record), record.releases[0].noise_stddev
    assert [r.values.shape[1] for r in record.releases] == [4, 1, 1, 1, 1, 1]
    assert {round(r.noise_stddev, 12) for r in record.releases} == {round(0.5 * math.sqrt(9) / N, 12)}
    mean, ell, height, inverse = plain_model(points, told, stddev)
    expected = [
        mean
        + sum(height**2 * plain_kernel(p, q, ell) * w for q, w in zip(points, inverse @ (told - mean), strict=True))
        for p in points
    ]
    found = fit(points, told, np.full(len(told), stddev), 1.0)
    assert (found.mean, found.lengthscale, found.amplitude) == pytest.approx((mean, ell, height))
    assert found.at(points)[0] == pytest.approx(expected)
    assert (record.clients.recommended == points[int(np.argmax(expected))]).all()


def test_every_further_point_has_the_largest_expected_improvement() -> None:
    """The last point beats ten thousand others by the model of what was released before it."""
    record = played(CentralModel(n_init=6), rounds=8)
    points, told = evaluated(record), released(record)
    before = fit(points[:-1], told[:-1], np.zeros(len(told) - 1), 1.0)
    best = float(before.at(points[:-1])[0].max())
    others = np.random.default_rng(0).random((10_000, 2))
    gains = expected_improvement(*before.at(others), best)
    chosen = expected_improvement(*before.at(points[-1:]), best)[0]
    # Its own candidates are a thousand and some: the best of ten times as many is hardly better.
    assert chosen > 0.9 * gains.max() > 0.0
    assert np.mean(gains < chosen) > 0.99


# ---- prices


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(PrivateSearch(n_candidates=4), 5), (PrivateSearch(n_candidates=3, evaluations=20), 9), (DPHype(), 1),
     (CentralModel(n_init=4), 17)],
)  # fmt: skip
def test_a_search_costs_one_gaussian_release_however_many_rounds_it_takes(algorithm: Any, rounds: int) -> None:
    one = pb.plan(PROBLEM, DPHype(), privacy=NOISY, rounds=1)
    plan = pb.plan(PROBLEM, algorithm, privacy=NOISY, rounds=rounds)
    assert plan.epsilon()["gaussian_dp"] == pytest.approx(one.epsilon()["gaussian_dp"], rel=1e-6)
    record = played(algorithm, pb.Privacy(epsilon=2.0, noise="simulation"), rounds)
    assert 1.99 < record.epsilon() <= 2.0
    assert len(record.ledger.entries()) == len(record.releases) == plan.releases


# ---- forms


def setting(space: Any = None, unit: Any = "client") -> Setting:
    return Setting(space=space or PROBLEM.search_space, n_clients=N, rounds=5, public_seed=1, unit=unit)


@pytest.mark.parametrize(
    "form", [Scores(low=-1.0, high=2.0), Votes(ballot="single"), Votes(ballot="graded")], ids=lambda f: str(f)[:20]
)
@pytest.mark.parametrize("unit", ["client", "reward"])
def test_answers_keep_their_bounds(form: Any, unit: Any) -> None:
    """Against values far outside, failures in every place, and one reward exchanged for another."""
    generator = np.random.default_rng(0)
    values = generator.normal(0, 3, (400, 6))
    values[generator.random(values.shape) < 0.3] = np.nan
    values[0] = np.nan
    request = form.request(6, 6, 1, setting(unit=unit))
    vectors = form.vectors(values[:, None], unit)
    norms = np.linalg.norm(vectors, axis=1)
    assert np.nanmax(norms) <= request.clipping_norm * (1 + 1e-12)
    if unit == "client":
        assert request.unit_bound is None
        assert np.isnan(vectors[0]).all()
        return
    moved = values.copy()
    moved[np.arange(400), generator.integers(0, 6, 400)] = generator.choice([np.nan, -9.0, 9.0], 400)
    apart = np.nan_to_num(form.vectors(moved[:, None], unit)) - np.nan_to_num(vectors)
    largest = np.linalg.norm(apart, axis=1).max()
    assert 0.5 * request.unit_bound < largest <= request.unit_bound


def test_where_a_client_fails_at_some_points_these_are_its_worst() -> None:
    form = Scores(low=0.0, high=1.0)
    told = form.vectors(np.array([[[0.75, np.nan]], [[np.nan, np.nan]]]), "client")
    assert np.array_equal(told, [[0.25, -0.5], [np.nan, np.nan]], equal_nan=True)
    votes = Votes(ballot="single").vectors(np.array([[[np.nan, -3.0]], [[2.0, 5.0]]]), "client")
    assert votes.tolist() == [[0.0, 1.0], [0.0, 1.0]]


# ---- edges


@pytest.mark.parametrize("algorithm", [PrivateSearch(n_candidates=4), DPHype(n_candidates=40), CentralModel()])
def test_a_small_space_is_searched_whole_and_no_point_twice(algorithm: Any) -> None:
    space = {"k": pb.Int(1, 4), "kind": pb.Categorical(["a", "b"]), "g": pb.Int(0, 1, when={"kind": "b"})}
    problem = pb.Problem(space=space, objective=lambda client, p: p["k"] / 4 - 0.1 * (p["kind"] == "a"), n_clients=5)
    record = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=40)
    points = evaluated(record)
    assert len(points) == len(np.unique(points, axis=0)) == 12
    best = record.best(client=0).params
    assert (best["k"], best["kind"]) == (4, "b")


def test_alone_every_client_keeps_its_own_best_and_models_its_own_scores() -> None:
    for algorithm in (PrivateSearch(), DPHype(), CentralModel()):
        record = played(algorithm.local(), rounds=8)
        history = record.clients
        best = np.nan_to_num(history.values, nan=-1.0).argmax(axis=1)
        assert (history.recommended == history.units[np.arange(N), best]).all()
    assert len({tuple(row) for row in history.units[:, -1].tolist()}) == N
