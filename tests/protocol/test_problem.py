import logging

import numpy as np
import pytest

import privbo as pb

SPACE = {"x": pb.Real(0.0, 1.0)}


def test_failures_become_nan_and_are_told_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    def objective(client: int, params: dict) -> float:
        if client == 0:
            raise RuntimeError("broken pipe")
        return float("inf") if client == 1 else params["x"]

    evaluate = pb.Problem(space=SPACE, objective=objective, n_clients=3).evaluator()
    with caplog.at_level(logging.WARNING, logger="privbo.private"):
        for _ in range(3):
            values = evaluate(np.arange(3), np.full((3, 1), 0.25))
    assert np.isnan(values[:2]).all()
    assert values[2] == 0.25
    assert len(caplog.records) == 2
    assert evaluate.errors[0] == "RuntimeError: broken pipe"


def test_batch_objective_is_checked() -> None:
    evaluate = pb.Problem(space=SPACE, batch_objective=lambda c, u: np.zeros((len(c), 1)), n_clients=3).evaluator()
    with pytest.raises(pb.ConfigurationError, match="one value per client"):
        evaluate(np.arange(3), np.zeros((3, 1)))
    evaluate = pb.Problem(space=SPACE, batch_objective=lambda c, u: 1.0 / (c - 1.0), n_clients=3).evaluator()
    with np.errstate(divide="ignore"):
        assert np.isnan(evaluate(np.arange(3), np.zeros((3, 1)))[1])


def test_every_evaluation_moves_the_progress() -> None:
    moved = []
    problem = pb.Problem(space=SPACE, objective=lambda c, p: 0.0, n_clients=3)
    problem.evaluator(lambda: moved.append(1))(np.arange(3), np.zeros((3, 1)))
    assert len(moved) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_clients": 0}, "n_clients"),
        ({"n_clients": 1.5}, "n_clients"),
        ({"objective": None}, "exactly one"),
        ({"batch_objective": lambda c, u: u}, "exactly one"),
        ({"space": {}}, "empty"),
    ],
)
def test_impossible_problems(settings, words) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.Problem(**{"space": SPACE, "objective": lambda c, p: 0.0, "n_clients": 3} | settings)
