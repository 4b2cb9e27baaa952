"""Five systems of our own making that clients tune: formulas of textbooks, with every client's own constants.

Nothing was chosen on them. A value is a number that a client would measure at its own system; clients' constants
differ by some tenths, so that what suits one suits others in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr

import privbo as pb
from experiments.problems.surfaces import Surfaces, on_points, spread_out
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Parameter, Space

# Values at settings ``(n, n_embedded)`` in the cube, with constants ``(n, n_constants)``, about 1 each; ``(n,)``.
System: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
_CONSTANTS = 5


def dosing(units: FloatArray, own: FloatArray) -> FloatArray:
    """A drug's benefit at steady state less its toxicity and the burden of taking it, by dose and interval."""
    dose, interval = 10.0 * 30.0 ** units[:, 0], 4.0 + 20.0 * units[:, 1]
    rate, volume = 0.12 * own[:, 0], 20.0 * own[:, 1]
    highest = dose / volume / -np.expm1(-rate * interval)
    times = np.linspace(0.0, 1.0, 5)[:, None]
    levels = highest * np.exp(-rate * interval * times)
    half, toxic = 1.5 * own[:, 2], 6.0 * own[:, 3]
    benefit = (levels**2 / (levels**2 + half**2)).mean(axis=0)
    harm = highest**4 / (highest**4 + toxic**4)
    return np.asarray(benefit - 0.9 * harm - 0.25 * own[:, 4] * (24.0 - interval) / 20.0)


def stock(units: FloatArray, own: FloatArray) -> FloatArray:
    """Less the logarithm of the cost a day of a store that orders a lot when its stock falls to a level, by both."""
    demand, delay, spread = 20.0 * own[:, 0], 4.0 * own[:, 1], 6.0 * own[:, 2]
    lot, level = 20.0 * 20.0 ** units[:, 0], 20.0 + 130.0 * units[:, 1]
    deviation = spread * np.sqrt(delay)
    z = (level - demand * delay) / deviation
    missing = deviation * (np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) - z * (1.0 - ndtr(z)))
    held = lot / 2.0 + np.maximum(level - demand * delay, 0.0)
    return np.asarray(-np.log(60.0 * own[:, 3] * demand / lot + 0.2 * held + 8.0 * own[:, 4] * missing * demand / lot))


def descent(units: FloatArray, own: FloatArray) -> FloatArray:
    """Less the logarithm of the loss after noisy gradient steps on a bowl, by rate, momentum and batch."""
    rate, momentum, batch = 10.0 ** (-2.5 + 2.5 * units[:, 0]), 0.98 * units[:, 1], 2.0 ** (8.0 * units[:, 2])
    curvatures = np.geomspace(0.05, 2.0, 6)[:, None] * own[:, 0]
    steps = np.maximum(240.0 * own[:, 1] / np.sqrt(batch), 12.0)
    noise = 0.5 * own[:, 2] / batch
    # Slowest mode of heavy-ball iterations, and the noise's stationary variance (Polyak 1964; Mandt et al. 2017).
    trace = 1.0 + momentum - rate * curvatures
    root = np.sqrt((trace**2 - 4.0 * momentum).astype(complex))
    shrink = np.maximum(np.abs(trace + root), np.abs(trace - root)) / 2.0
    left = np.exp(np.minimum(2.0 * steps * np.log(np.maximum(shrink, 1e-3)), 6.0))
    wander = rate * noise / np.maximum(1.0 - momentum, 0.02)
    return np.asarray(-np.log10((0.5 * curvatures * left + wander).sum(axis=0) + 1e-4 * own[:, 3]))


def alarm(units: FloatArray, own: FloatArray) -> FloatArray:
    """Less the cost of false, missed and late alarms, by threshold, window and the statistic (three choices)."""
    threshold, window = 4.5 * units[:, 0], 2.0 + 28.0 * units[:, 1]
    shift = 0.8 * own[:, 0]
    gains = np.stack([np.sqrt(window), 1.0 + 0.9 * np.log(window), 1.6 * window**0.3 * own[:, 1]], axis=1)
    costs = np.stack([1.0 * window, 0.8 * window, 0.5 * window], axis=1)
    chosen = units[:, 2:5].argmax(axis=1)
    rows = np.arange(len(units))
    false = 1.0 - ndtr(threshold)
    missed = ndtr(threshold - shift * gains[rows, chosen])
    return np.asarray(-(6.0 * own[:, 2] * false + 2.0 * own[:, 3] * missed + 0.03 * own[:, 4] * costs[rows, chosen]))


def service(units: FloatArray, own: FloatArray) -> FloatArray:
    """Less the logarithm of the delay and price of a service, by timeout, copies, cache and batching."""
    timeout, copies = 0.05 * 40.0 ** units[:, 0], 1.0 + 5.0 * units[:, 1]
    cache, batch = units[:, 2], 1.0 + 31.0 * units[:, 3] ** 2
    mean, spread = 0.12 * own[:, 0] * batch**0.25, 0.7 * own[:, 1]
    hit = 0.8 * cache ** (0.6 * own[:, 2])
    load = np.minimum(0.9 * own[:, 3] * (1.0 - hit) / (copies * batch**0.5) * 3.0, 0.97)
    done = np.clip(ndtr(np.log(timeout / mean) / spread), 0.05, 1.0)
    delay = (1.0 - hit) * (mean / (1.0 - load) + timeout * (1.0 - done) / done) + 0.02 * batch**0.5
    price = 0.03 * own[:, 4] * copies + 0.12 * cache**2
    return np.asarray(-np.log(delay + price))


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A system with what is tuned and how much clients differ.

    Attributes:
        system: Its values.
        parameters: What is tuned.
        spread: Standard deviation of a client's constants, in natural logarithms.
    """

    system: System
    parameters: dict[str, Parameter]
    spread: float


SYSTEMS = {
    "dosing": _Made(system=dosing, parameters={"dose": pb.Real(0, 1), "interval": pb.Real(0, 1)}, spread=0.3),
    "stock": _Made(system=stock, parameters={"lot": pb.Real(0, 1), "level": pb.Int(0, 40)}, spread=0.15),
    "descent": _Made(
        system=descent,
        parameters={"rate": pb.Real(0, 1), "momentum": pb.Real(0, 1), "batch": pb.Int(0, 8)},
        spread=0.4,
    ),
    "alarm": _Made(
        system=alarm,
        parameters={
            "threshold": pb.Real(0, 1),
            "window": pb.Int(2, 30),
            "statistic": pb.Categorical(("mean", "logarithm", "sum")),
        },
        spread=0.25,
    ),
    "service": _Made(
        system=service,
        parameters={name: pb.Real(0, 1) for name in ("timeout", "copies", "cache", "batch")},
        spread=0.3,
    ),
}


def system(seed: int, name: str, n_clients: int, noise: float = 0.0) -> Surfaces:
    """Give clients of a system, each with constants of its own around those of the seed.

    Args:
        seed: Of the constants.
        name: Of the system: ``"dosing"``, ``"stock"``, ``"descent"``, ``"alarm"`` or ``"service"``.
        n_clients: N.
        noise: See ``Surfaces``.

    Raises:
        ConfigurationError: If there is no such system.
    """
    if name not in SYSTEMS:
        raise pb.ConfigurationError(f"system {name!r} is none of {', '.join(SYSTEMS)}")
    made, space = SYSTEMS[name], Space(SYSTEMS[name].parameters)
    generator = np.random.default_rng([seed, 79])
    common = made.spread * generator.standard_normal(_CONSTANTS)
    own = np.exp(common + made.spread * generator.standard_normal((n_clients, _CONSTANTS)))

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        return made.system(np.asarray(space.embed(units)), own[clients])

    return spread_out(name, seed, space, values, partial(on_points, values, n_clients), noise)
