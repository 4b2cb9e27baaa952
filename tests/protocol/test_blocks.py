"""Sample and aggregate: one record moves one score, whatever the learner does."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.problem import TrainAndScore

COUNTS = (23, 40)


def learner(data: list[FloatArray]) -> TrainAndScore:
    def train_and_score(client: int, params: Mapping[str, object], rows: IntArray) -> float:
        mine = data[client][rows]
        if np.any(mine > 1e6):
            raise ValueError("a record that the learner can't read")
        return float(np.tanh(mine.mean() + mine.std()))

    return train_and_score


def scored(changed: float | None, n_blocks: int = 5) -> FloatArray:
    data = [np.random.default_rng(client).random(count) for client, count in enumerate(COUNTS)]
    if changed is not None:
        data[0][7] = changed
    return pb.in_blocks(learner(data), n_records=COUNTS, n_blocks=n_blocks)(0, {"x": 0.5})


def moved(changed: float) -> int:
    """How many scores another value of one record changes."""
    return int(np.sum(~((a := scored(None)) == (b := scored(changed))) & ~(np.isnan(a) & np.isnan(b))))


@pytest.mark.parametrize("changed", [0.0, 1e3, np.nan, 1e9])
def test_one_record_moves_one_score_even_if_its_block_fails(changed: float) -> None:
    assert moved(changed) == 1


def test_every_record_is_in_one_block() -> None:
    seen: list[int] = []
    pb.in_blocks(lambda _c, _p, rows: seen.extend(rows.tolist()) or 0.0, n_records=COUNTS, n_blocks=7)(1, {})
    assert sorted(seen) == list(range(COUNTS[1]))


@pytest.mark.parametrize("n_blocks", [0, 24])
def test_a_block_without_a_record_is_refused(n_blocks: int) -> None:
    with pytest.raises(pb.ConfigurationError, match="the fewest records of a client, 23"):
        pb.in_blocks(learner([]), n_records=COUNTS, n_blocks=n_blocks)


def accuracy(client: int, params: Mapping[str, object], rows: IntArray) -> float:
    return float(np.exp(-((float(str(params["x"])) - 0.4) ** 2)) - 0.001 * len(rows) - 0.01 * client)


def test_a_run_releases_the_mean_of_blocks() -> None:
    objective = pb.in_blocks(accuracy, n_records=[400] * 6, n_blocks=50)
    assert pickle.loads(pickle.dumps(objective))(0, {"x": 0.4}).shape == (50,)  # noqa: S301 (our own bytes)
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=objective, n_clients=6, n_records=[50] * 6)
    privacy = pb.Privacy(epsilon=8.0, delta=1e-6, unit="record", protects="records", noise="simulation")
    record = pb.run(problem, pb.MultiTask(release_when="always"), privacy=privacy, rounds=2, seed=0)
    (release,) = record.releases
    assert record.epsilon() == pytest.approx(8.0, rel=2e-3)
    assert np.abs(release.values).max() < 50 * 0.5 + 7 * release.noise_stddev
