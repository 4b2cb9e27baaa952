"""The arithmetic behind ``privbo calibrate``: the one missing number of a homogeneous plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accountant import calibrate as solve
from accountant.epsilon import epsilon_table
from accountant.events import Adjacency
from privbo.protocol.errors import ConfigurationError

_ADJACENCY = Adjacency.ZERO_OUT


def calibrate(
    *,
    rounds: int | None,
    sample_rate: float | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
) -> dict[str, Any]:
    """Find the one of four numbers that is None; the result meets the target from the safe side.

    Returns:
        All five numbers; ``epsilon`` by accountant.

    Raises:
        ConfigurationError: If not exactly one number is missing or a value is out of range.
        CalibrationError: If nothing in the allowed range reaches the target.
    """
    given = {
        "rounds": rounds,
        "sample_rate": sample_rate,
        "noise_multiplier": noise_multiplier,
        "epsilon": epsilon,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ConfigurationError(
            f"give three of {', '.join(given)} and leave out the one to find; missing: {', '.join(missing) or 'none'}"
        )
    _check(given, delta)
    found = _solve(rounds, sample_rate, noise_multiplier, epsilon, delta)
    event = solve.poisson(found.sample_rate, found.noise_multiplier, found.rounds)
    return {
        "rounds": found.rounds,
        "sample_rate": found.sample_rate,
        "noise_multiplier": found.noise_multiplier,
        "delta": delta,
        "adjacency": _ADJACENCY.value,
        "epsilon": epsilon_table(event, delta, adjacency=_ADJACENCY),
    }


@dataclass(frozen=True, kw_only=True)
class _Plan:
    rounds: int
    sample_rate: float
    noise_multiplier: float


def _solve(
    rounds: int | None, sample_rate: float | None, noise_multiplier: float | None, epsilon: float | None, delta: float
) -> _Plan:
    match rounds, sample_rate, noise_multiplier, epsilon:
        case int(t), float(q), float(z), None:
            pass
        case int(t), float(q), None, float(target):
            z = solve.noise_multiplier(
                lambda z: solve.poisson(q, z, t), epsilon=target, delta=delta, adjacency=_ADJACENCY
            )
        case int(t), None, float(z), float(target):
            q = solve.sample_rate(z, rounds=t, epsilon=target, delta=delta, adjacency=_ADJACENCY)
        case None, float(q), float(z), float(target):
            t = solve.rounds(z, sample_rate=q, epsilon=target, delta=delta, adjacency=_ADJACENCY)
        case _:
            raise ConfigurationError("rounds must be an integer, the other numbers floats")
    return _Plan(rounds=t, sample_rate=q, noise_multiplier=z)


def _check(given: dict[str, float | None], delta: float) -> None:
    bounds = {"rounds": (1, float("inf")), "sample_rate": (0, 1), "noise_multiplier": (0, 1e9), "epsilon": (0, 1e9)}
    for name, value in given.items():
        low, high = bounds[name]
        if value is not None and not (low < value <= high or (name == "rounds" and value >= 1)):
            raise ConfigurationError(f"{name}={value!r} must lie in ({low:g}, {high:g}]")
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta={delta!r} must lie in (0, 1)")
