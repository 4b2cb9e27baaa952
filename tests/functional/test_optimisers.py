"""Measured gaps against certified rates; instances on which printed rates fail."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.first_order import (
    AcceleratedGradient,
    TripleAveraging,
)
from experiments.baselines.heavy_tailed import ClippedSSTM
from tests.functional.instances import DETERMINISTIC, STOCHASTIC, exact_value, minimum

TINY = 1e-9


def gaps(arm, n_steps):
    """Gap and rate after every step, exact values."""
    state, found, rates = arm.init(), [], []
    for k in range(1, n_steps + 1):
        state = arm.step(state)
        found.append(exact_value(arm, state.point) - minimum(arm))
        rates.append(arm.rate(state, k, 1e-7))
    return np.array(found), np.array(rates)


@pytest.mark.parametrize("draw", [*DETERMINISTIC, *STOCHASTIC], ids=lambda f: f.__name__)
def test_gap_is_below_the_certified_rate_on_100_instances(draw) -> None:
    """Under noise delta = 1e-7 per step: 100 x 60 looks raise a false alarm with probability below 6e-4, and
    in truth far less, because the bounds are loose; the seeds are fixed."""
    for seed in range(100):
        gap, rate = gaps(draw(np.random.default_rng([1 + (draw in STOCHASTIC), seed])), 60)
        assert (gap <= rate + TINY).all(), (seed, int(np.argmax(gap - rate)) + 1)
        assert (gap >= -TINY).all()


def printed(method):
    return dataclasses.replace(method, rates="printed")


def test_printed_rate_of_triple_averaging_fails_on_its_worst_function() -> None:
    """Golden: the worst 1-Lipschitz function for 16 steps from distance 1, the solution of the
    performance-estimation programme (PEPit 0.4, gap 1.09914 / sqrt 16), rounded to 6 digits."""
    data = json.loads((Path(__file__).parent / "golden" / "triple_averaging_worst_case.json").read_text())
    slopes, intercepts, start = (np.array(data[key]) for key in ("slopes", "intercepts", "start"))

    def f(x):
        return max(float((slopes @ x + intercepts).max()), 0.0)

    lipschitz = float(np.linalg.norm(slopes, axis=1).max())
    method = TripleAveraging(lipschitz=lipschitz, distance=float(np.linalg.norm(start)))
    assert lipschitz == pytest.approx(1.0, abs=1e-5)
    assert f(np.zeros(len(start))) < 1e-5  # the minimum, at distance 1 from the start
    state = method.init(start)
    for slope, intercept in zip(slopes[:16], intercepts[:16], strict=True):
        assert f(state.query) - (slope @ state.query + intercept) < 1e-5  # a subgradient at the query
        state = method.step(state, slope)
    assert f(state.point) > 1.09 * printed(method).rate(16, 0.0)
    assert 0.3 * method.rate(16, 0.0) < f(state.point) <= method.rate(16, 0.0)


@pytest.mark.parametrize("draw", [*DETERMINISTIC, *STOCHASTIC], ids=lambda f: f.__name__)
def test_steps_are_pure(draw) -> None:
    arm = draw(np.random.default_rng(5))
    start = arm.init()
    gradient = np.ones_like(start.query)
    before = start.query.copy()
    first, again = (arm.optimiser.step(start, gradient) for _ in range(2))
    np.testing.assert_array_equal(first.point, again.point)
    np.testing.assert_array_equal(first.query, again.query)
    np.testing.assert_array_equal(start.query, before)
    assert (start.k, first.k) == (0, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AcceleratedGradient(smoothness=0.0, distance=1.0),
        lambda: TripleAveraging(lipschitz=1.0, distance=1.0, gamma=0.0),
        lambda: ClippedSSTM(smoothness=1.0, distance=1.0, sigma=1.0, horizon=10, alpha=1.0),
    ],
)
def test_impossible_constants_are_refused(make) -> None:
    with pytest.raises(pb.ConfigurationError, match="="):
        make()
