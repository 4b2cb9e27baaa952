"""The arithmetic behind ``privbo calibrate``: the one missing number of a homogeneous plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from accountant import calibrate as solve
from accountant.events import Adjacency
from accountant.tight import numerical
from accountant.tight.numerical import Interval, epsilon_table
from privbo.protocol.errors import ConfigurationError

_ADJACENCY = Adjacency.ZERO_OUT


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A homogeneous plan of Poisson-sampled Gaussian releases and its price.

    Attributes:
        rounds: Number of releases, at least 1.
        sample_rate: q, probability with which a client takes part in a release, in (0, 1].
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.
        delta: The probability that is added to epsilon's bound, in (0, 1).
        adjacency: What neighbouring data sets are.
        epsilon: Upper bounds on epsilon by accountant.
        interval: Certified lower and upper end of the tight accountant, and the method that found them.
    """

    rounds: int
    sample_rate: float
    noise_multiplier: float
    delta: float
    adjacency: Adjacency
    epsilon: Mapping[str, float]
    interval: Interval


def calibrate(
    *,
    rounds: int | None,
    sample_rate: float | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
) -> Calibration:
    """Find the one of four numbers that is None; the result meets the target from the safe side.

    Args:
        rounds: Number of releases, at least 1.
        sample_rate: q, in (0, 1].
        noise_multiplier: z, in (0, 1e9].
        epsilon: Target, in (0, 1e9].
        delta: The probability that is added to epsilon's bound, in (0, 1).

    Raises:
        ConfigurationError: If not exactly one number is missing or a value is out of range.
        CalibrationError: If nothing in the allowed range reaches the target.

    Example:
        >>> found = calibrate(rounds=40, sample_rate=1.0, noise_multiplier=None, epsilon=4.0, delta=1e-5)
        >>> round(found.noise_multiplier, 2), found.epsilon["tight"] <= 4.0
        (6.84, True)
    """
    given = {
        "rounds": rounds,
        "sample_rate": sample_rate,
        "noise_multiplier": noise_multiplier,
        "epsilon": epsilon,
    }
    bounds = {"rounds": math.inf, "sample_rate": 1.0, "noise_multiplier": 1e9, "epsilon": 1e9}
    if rounds is not None and rounds < 1:
        raise ConfigurationError(f"rounds={rounds!r} (--releases) must be 1 or more")
    for name, value in given.items():
        if value is not None and not 0 < value <= bounds[name]:
            raise ConfigurationError(f"{name}={value!r} must lie in (0, {bounds[name]:g}]")
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta={delta!r} must lie in (0, 1)")
    reals = sample_rate, noise_multiplier, epsilon  # whole numbers are reals, too
    sample_rate, noise_multiplier, epsilon = (None if value is None else float(value) for value in reals)
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
            missing = ", ".join(name for name, value in given.items() if value is None) or "none"
            raise ConfigurationError(
                f"give three of {', '.join(given)}, and leave out the one to find; rounds (--releases) are whole; "
                f"missing: {missing}"
            )
    event = solve.poisson(q, z, t)
    return Calibration(
        rounds=t,
        sample_rate=q,
        noise_multiplier=z,
        delta=delta,
        adjacency=_ADJACENCY,
        epsilon=epsilon_table(event, delta, adjacency=_ADJACENCY),
        interval=numerical.epsilon_interval(event, delta, adjacency=_ADJACENCY),
    )
