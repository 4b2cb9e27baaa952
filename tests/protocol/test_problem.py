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


class Cancelled(BaseException):
    pass


class Wordless(BaseException):
    def __str__(self) -> str:
        raise ValueError("nothing to say")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), Cancelled(), Wordless(), GeneratorExit()])
def test_whatever_an_objective_raises_is_its_clients_failure(error: BaseException) -> None:
    def raises(client: int) -> float:
        if client == 1:
            raise error
        return float(client)

    def many(clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return np.array([raises(int(client)) for client in clients])

    one = pb.Problem(space=SPACE, objective=lambda client, params: raises(client), n_clients=5)
    batch = pb.Problem(space=SPACE, batch_objective=many, n_clients=5)
    for problem in (one, batch):
        kept: list[tuple[int, str]] = []
        values = problem.evaluator(on_failure=lambda *told, kept=kept: kept.append(told))(
            np.arange(5), np.zeros((5, 1))
        )
        np.testing.assert_array_equal(values, [0.0, np.nan, 2.0, 3.0, 4.0])
        assert [client for client, _ in kept] == [1]
        assert kept[0][1].startswith(type(error).__name__)


def test_an_operators_interrupt_passes() -> None:
    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    for problem in (
        pb.Problem(space=SPACE, objective=interrupted, n_clients=3),
        pb.Problem(space=SPACE, batch_objective=interrupted, n_clients=3),
    ):
        with pytest.raises(KeyboardInterrupt):
            problem.evaluator()(np.arange(3), np.zeros((3, 1)))


@pytest.mark.parametrize("bad", [1.7e308, -1.7e308, 1.01e100, np.inf, np.nan])
def test_values_no_sum_could_hold_count_as_failures(bad: float) -> None:
    one = pb.Problem(space=SPACE, objective=lambda c, p: bad if c == 1 else 1e100, n_clients=3)
    batch = pb.Problem(space=SPACE, batch_objective=lambda c, u: np.where(c == 1, bad, 1e100), n_clients=3)
    for problem in (one, batch):
        evaluate = problem.evaluator()
        np.testing.assert_array_equal(evaluate(np.arange(3), np.zeros((3, 1))), [1e100, np.nan, 1e100])
        assert set(evaluate.errors) == {1}


def test_a_wrong_shape_is_a_failure_of_those_it_speaks_of() -> None:
    evaluate = pb.Problem(space=SPACE, batch_objective=lambda c, u: np.zeros((len(c), 1)), n_clients=3).evaluator()
    assert np.isnan(evaluate(np.arange(3), np.zeros((3, 1)))).all()
    assert "shape (1, 1)" in evaluate.errors[0]
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
