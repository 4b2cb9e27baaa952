"""A scout's estimate on surfaces of known correlation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.scout import Likeness, Scout, likeness, standard_error
from privbo.protocol.messages import FloatArray, IntArray
from tests.builders import release

N, SEEDS = 60, 40
PRIVATE = pb.Privacy(epsilon=1.0, noise="simulation")


def mixed(share: float, seed: int) -> pb.Problem:
    """Clients whose values at any point are a common draw and one of their own."""
    generator = np.random.default_rng([seed, 77])
    table = np.sqrt(share) * generator.normal(size=4096) + np.sqrt(1 - share) * generator.normal(size=(N, 4096))

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        return table[clients, np.minimum((units[:, 0] * 4096).astype(np.int64), 4095)]

    return pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=values, n_clients=N)


def scouted(problem: pb.Problem, seed: int, privacy: Any = PRIVATE, n_points: int = 16) -> tuple[Likeness, float]:
    """The estimate, and the truth at the same points."""
    record = pb.run(problem, Scout(evaluations=n_points), privacy=privacy, rounds=1, seed=seed)
    pairs = np.corrcoef(record.clients.values)
    return likeness(record.releases[0], n_clients=N), float((pairs.sum() - N) / (N * (N - 1)))


def misses(share: float, spoil: float = 1.0) -> FloatArray:
    """Errors in units of the stated standard error, over seeds; ``spoil`` plants a wrong noise level."""
    found = []
    for seed in range(SEEDS):
        estimate, truth = scouted(mixed(share, seed), seed)
        found.append((estimate.correlation * spoil - truth) / estimate.standard_error)
    return np.array(found)


# 40 standardised errors: their mean is N(0, 1/40) and the sum of their squares about chi-squared of 40. Beyond 5.2
# standard errors of the mean, or a root mean square outside of (0.5, 1.65), false alarms stay below 1e-6.
def holds(errors: FloatArray) -> bool:
    return bool(abs(errors.mean()) < 5.2 / np.sqrt(SEEDS) and 0.5 < np.sqrt(np.mean(errors**2)) < 1.65)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_estimate_is_within_its_error_of_the_truth(share: float) -> None:
    """Planted: an estimate that forgot something."""
    assert holds(misses(share))
    assert share < 0.9 or not holds(misses(share, spoil=1.3))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_error_to_expect_is_the_spread_of_estimates_over_drawn_noise(share: float) -> None:
    # 4000 estimates: their standard deviation has a relative error of 1 / sqrt(8000) = .011 where they are normal, and
    # below .02 with the tails of a sum of squares. Beyond 12 % false alarms stay below 1e-6.
    generator, noise = np.random.default_rng(5), 0.2
    common, own = generator.normal(size=16), generator.normal(size=(N, 16))
    vectors = np.sqrt(share) * common + np.sqrt(1 - share) * own
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    truth = float(((vectors @ vectors.T).sum() - N) / (N * (N - 1)))
    means = vectors.mean(axis=0) + noise * generator.normal(size=(4000, 1, 16))
    found = [likeness(release(mean, noise), n_clients=N).correlation for mean in means]
    expected = standard_error(truth, n_clients=N, n_points=16, noise_stddev=noise)
    assert np.std(found) == pytest.approx(expected, rel=0.12)
    spoilt = standard_error(truth, n_clients=N, n_points=16, noise_stddev=1.2 * noise)
    assert np.std(found) != pytest.approx(spoilt, rel=0.12)


def test_the_report_has_the_estimate_of_a_scout_and_of_nothing_else() -> None:
    def run(algorithm: Any, **sampling: Any) -> pb.Record:
        return pb.run(mixed(0.6, 3), algorithm, privacy=replace(PRIVATE, **sampling), rounds=1, seed=3)

    record = run(Scout())
    assert pb.report(record).likeness == likeness(record.releases[0], n_clients=N)
    some = [run(Scout(), sample_rate=0.5, channel=channel) for channel in ("anonymous", "open")]
    for other in (run(pb.DPFTSDE(n_features=8)), run(Scout().local()), *some):
        assert pb.report(other).likeness is None


def test_the_estimate_is_the_correlation_where_there_is_no_noise() -> None:
    found, truth = scouted(mixed(0.6, 3), 3, pb.NoPrivacy(), 32)
    assert found.correlation == pytest.approx(truth, abs=1e-11)
    assert found.standard_error == 0.0


def test_a_client_without_an_answer_counts_as_unlike_and_a_constant_one_too() -> None:
    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        return np.where(clients < 30, units[:, 0], np.where(clients < 45, 1.0, np.nan))

    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=values, n_clients=N)
    record = pb.run(problem, Scout(), privacy=pb.NoPrivacy(), rounds=1, seed=3)
    # Thirty equal unit vectors: |s|^2 = 900, where N = 60 were expected to stand on the diagonal.
    assert likeness(record.releases[0], n_clients=N).correlation == pytest.approx((900 - N) / (N * (N - 1)))


def test_everybody_evaluates_the_same_public_points_once() -> None:
    record = pb.run(mixed(0.5, 1), Scout(evaluations=5), privacy=pb.NoPrivacy(), rounds=7, seed=1)
    assert record.clients.units.shape == (N, 5, 1)
    assert (record.clients.units == record.clients.units[:1]).all()
    assert len(np.unique(record.clients.units[0], axis=0)) == 5
    assert record.clients.rounds.tolist() == [0] * 5  # the round of the release; -1 is for what precedes one


def test_likeness_is_between_clients() -> None:
    with pytest.raises(pb.ConfigurationError, match="at least 2"):
        likeness(release(np.zeros((1, 4)), 0.0), n_clients=1)
