import errno
import logging
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.problem import Memory, row_type
from privbo.protocol.processes import watched_interrupts
from tests.builders import problem
from tests.protocol.test_processes import DRAWS


def test_failures_become_nan_and_are_told_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    def objective(client: int, params: dict) -> float:
        if client == 0:
            raise RuntimeError("broken pipe")
        return float("inf") if client == 1 else params["x"]

    moved: list[int] = []
    evaluate = problem(3, objective=objective).evaluator(lambda: moved.append(1))
    with caplog.at_level(logging.WARNING, logger="privbo.private"):
        for _ in range(3):
            values = evaluate(np.arange(3), np.full((3, 1), 0.25))
    assert np.isnan(values[:2]).all()
    assert values[2] == 0.25
    assert (len(caplog.records), len(moved)) == (2, 9)
    assert evaluate.errors[0] == "RuntimeError: broken pipe"


Cancelled = type("Cancelled", (BaseException,), {})
Wordless = type("Wordless", (BaseException,), {"__str__": lambda self: 1 / 0})
Silent = type("Silent", (BaseException,), {"__str__": lambda self: sys.exit(7)})
RAISED = [ValueError("no"), SystemExit(3), Cancelled(), Wordless(), Silent(), GeneratorExit(), KeyboardInterrupt()]


@pytest.mark.parametrize("error", [*RAISED, RecursionError()], ids=lambda error: type(error).__name__)
def test_whatever_an_objective_raises_is_its_clients_failure(error: BaseException) -> None:
    def raises(client: int) -> float:
        if client == 1:
            raise error
        return float(client)

    def many(clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return np.array([raises(int(client)) for client in clients])

    for settings in ({"objective": lambda client, params: raises(client)}, {"batch_objective": many}):
        kept: list[tuple[int, str]] = []
        evaluate = problem(5, **settings).evaluator(on_failure=lambda *told, kept=kept: kept.append(told))
        values = evaluate(np.arange(5), np.zeros((5, 1)))
        np.testing.assert_array_equal(values, [0.0, np.nan, 2.0, 3.0, 4.0])
        assert [client for client, _ in kept] == [1]
        assert kept[0][1].startswith(type(error).__name__)


@pytest.mark.parametrize("kind", ["objective", "batch_objective"])
def test_only_an_interrupt_that_the_operator_sent_ends_the_run(kind: str, request: pytest.FixtureRequest) -> None:
    """The same error class: raised by the objective, and by the handler of a signal that really came."""
    sends = False

    def interrupted(*_: object) -> float:
        if sends:
            os.kill(os.getpid(), signal.SIGINT)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with watched_interrupts() as stopped:
        evaluate = problem(3, **{kind: interrupted}).evaluator(stopped=stopped)
        assert np.isnan(evaluate(np.arange(3), np.zeros((3, 1)))).all()
        assert set(evaluate.errors.values()) == {"KeyboardInterrupt: "}
        sends = True
        with pytest.raises(KeyboardInterrupt):
            evaluate(np.arange(3), np.zeros((3, 1)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_callback_raises_ends_the_run_and_is_no_clients_failure() -> None:
    def stop() -> None:
        raise RuntimeError("the operator has seen enough")

    evaluate = problem(3).evaluator(stop)
    with pytest.raises(RuntimeError, match="seen enough") as raised:
        evaluate(np.arange(3), np.zeros((3, 1)))
    assert evaluate.ends(ValueError("made of it on the way")) is raised.value
    assert evaluate.errors == {}


def stops_its_own_clock() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGALRM})
    time.sleep(60)


LIMITED = {
    "hangs": (lambda: time.sleep(60), "TimeoutError: no value within 1.5 s"),
    "leaves a child": (lambda: subprocess.run(["sleep", "60"], check=True), "TimeoutError: no value within"),
    "stops its own clock": (stops_its_own_clock, "TimeoutError: no value within"),
    "ends its process": (lambda: os._exit(7), "its process ended with code 7"),
}


@pytest.mark.parametrize(("does", "batched"), [*((one, False) for one in LIMITED), ("hangs", True)])
def test_whoever_overruns_its_time_fails_alone_and_is_told_so_on_its_own_side(does: str, batched: bool) -> None:
    def one(client: int) -> float:
        return LIMITED[does][0]() if client == 1 else float(client)

    def many(clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return np.array([one(int(client)) for client in clients])

    settings = {"batch_objective": many} if batched else {"objective": lambda client, params: one(client)}
    evaluate = problem(3, **settings).evaluator(client_seconds=1.5)
    started = time.monotonic()
    for _ in range(2):  # the second time its time is used up, and nothing is started any more
        np.testing.assert_array_equal(evaluate(np.arange(3), np.zeros((3, 1))), [0.0, np.nan, 2.0])
    assert time.monotonic() - started < 30
    assert set(evaluate.errors) == {1}
    assert evaluate.errors[1].startswith(LIMITED[does][1])
    evaluate.renew()
    np.testing.assert_array_equal(evaluate(np.array([0, 2]), np.zeros((2, 1))), [0.0, 2.0])


def test_values_and_errors_of_a_limited_call_are_those_of_a_plain_one() -> None:
    values = {0: 0.25, 2: np.float32(0.5), 3: 1e101}

    def moody(client: int, params: dict):
        if client == 1:
            raise SystemExit("enough")
        return values.get(client, "text")

    plain, limited = (problem(5, objective=moody).evaluator(client_seconds=limit) for limit in (None, 20.0))
    everyone = np.arange(5), np.zeros((5, 1))
    np.testing.assert_array_equal(plain(*everyone), limited(*everyone))
    assert plain.errors == limited.errors
    assert set(plain.errors) == {1, 3, 4}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_one_client_or_block_draws_moves_no_other(draw) -> None:
    def values(extra: int, seed: int | None) -> list[float]:
        scores: dict[tuple[int, int], float] = {}

        def score(client: int, params: dict, rows: np.ndarray) -> float:
            block = client, int(rows.min())
            for _ in range(extra if block == (0, 0) else 0):
                draw()
            if extra and block == (0, 0):
                raise KeyboardInterrupt  # no operator's
            return scores.setdefault(block, draw())

        blocks = pb.in_blocks(score, n_records=[6] * 3, n_blocks=3)
        evaluate = problem(3, objective=blocks, n_records=[3] * 3).evaluator(seed=seed)
        evaluate.memory = Memory(np.arange(3), 1, lambda rows: None)
        before = draw()
        evaluate(np.arange(3), np.zeros((3, 1)))
        assert before not in scores.values()
        return [drawn for block, drawn in scores.items() if block != (0, 0)]

    assert values(0, seed=1) == values(2, seed=1) != values(0, seed=2)
    assert len(set(values(0, seed=1))) == 8
    assert values(0, seed=None) != values(0, seed=None)


def test_generators_stand_as_before_and_each_evaluation_draws_anew() -> None:
    drawn: list[float] = []
    evaluate = problem(1, objective=lambda c, p: drawn.append(random.random()) or 0.0).evaluator(seed=1)
    evaluate.memory = Memory(np.arange(1), 1, lambda rows: None)
    before = random.getstate()
    for round_ in (0, 0, 1):
        evaluate.memory.begin(round_, np.empty(0, dtype=row_type(1)))
        evaluate(np.zeros(2, dtype=np.int64), np.zeros((2, 1)))
    assert random.getstate() == before
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4


def test_a_failure_that_no_disk_holds_ends_nothing() -> None:
    def full(client: int, reason: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def objective(client: int, params: dict) -> float:
        raise ValueError("x" * 100_000)

    evaluate = problem(2, objective=objective).evaluator(on_failure=full)
    assert np.isnan(evaluate(np.arange(2), np.zeros((2, 1)))).all()
    assert len(evaluate.errors[0]) == 10_000


@pytest.mark.parametrize("bad", [-1.7e308, 1.01e100, np.nan])
def test_values_no_sum_could_hold_count_as_failures(bad: float) -> None:
    one = {"objective": lambda c, p: bad if c == 1 else 1e100}
    for settings in (one, {"batch_objective": lambda c, u: np.where(c == 1, bad, 1e100)}):
        evaluate = problem(3, **settings).evaluator()
        np.testing.assert_array_equal(evaluate(np.arange(3), np.zeros((3, 1))), [1e100, np.nan, 1e100])
        assert set(evaluate.errors) == {1}


def test_a_wrong_shape_is_a_failure_of_those_it_speaks_of() -> None:
    evaluate = problem(3, batch_objective=lambda c, u: np.zeros((len(c), 1))).evaluator()
    assert np.isnan(evaluate(np.arange(3), np.zeros((3, 1)))).all()
    assert "shape (1, 1)" in evaluate.errors[0]
    evaluate = problem(3, batch_objective=lambda c, u: 1.0 / (c - 1.0)).evaluator()
    with np.errstate(divide="ignore"):
        assert np.isnan(evaluate(np.arange(3), np.zeros((3, 1)))[1])
