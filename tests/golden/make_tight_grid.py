"""Compute ``tight_grid.json``: oracle values of epsilon where rounds are many, samples rare and noise is small.

``python -m tests.golden.make_tight_grid SECONDS`` adds rows for so many CPU seconds to those that are stored. 2,000
settings are drawn from a fixed seed, a quarter of them with rates of at most 1e-3, and made in the order in which
they were drawn (the file says how many there are); none is dropped. Each row keeps, under add-or-remove-one,

- dp-accounting's pessimistic epsilon (connect-the-dots) and its optimistic one (privacy buckets, which round every
  loss down) at a discretisation interval that is quartered until they agree to 1 % (or 1e-4), or ``ROW_SECONDS`` are
  spent; ``null`` where dp-accounting gives none in that time. Below a delta of about 1e-10 its transforms' rounding
  shows, in both directions;
- the epsilon of an independent quadrature, that shares no code with either: with M the moment generating function
  of the privacy loss under P, integrated over the output by the trapezoid rule,

      delta(epsilon) = 1 / (2 pi) * integral over u of exp(-s epsilon) M(s)^T / (s (s + 1)),  s = theta + i u,

  the larger of both directions; ``null`` where another tilt, half the steps and twice the range move it by more than
  2e-4 of itself;
- deltas of the same quadrature at shares of that epsilon, where they move by less than 1e-3.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from accountant import renyi
from accountant.events import Adjacency, PoissonSampledGaussian, compose

SEED = 20250307
N_SETTINGS = 2000
ROW_SECONDS = 8.0
SHARES = (0.5, 0.8, 1.0)
STORED = Path(__file__).parent / "tight_grid.json"


def settings():
    """All settings: (list of (q, z, count), delta); epsilon by Rényi divergences, the looser one, is at most 150."""
    rng = np.random.default_rng(SEED)

    def log_uniform(low, high):
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    found = 0
    while found < N_SETTINGS:
        low, high = (1e-7, 1e-3) if found % 4 == 0 else (1e-3, 1.0)
        n_parts = 1 if found % 8 < 7 else int(rng.integers(2, 5))
        spread = 1e7 if n_parts == 1 else 1e4
        parts = [(log_uniform(low, high), log_uniform(0.2, 100), round(log_uniform(1, spread))) for _ in range(n_parts)]
        delta = log_uniform(1e-14, 1e-2)
        event = compose((PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), count) for q, z, count in parts)
        if 1e-2 <= renyi.epsilon(event, delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE) <= 150.0:
            found += 1
            yield parts, delta


def composed(parts, delta, interval, pessimistic):
    """dp-accounting's epsilon of the composition."""
    total = None
    for q, z, count in parts:
        one = pld.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            use_connect_dots=True,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
        )
        part = one.self_compose(count) if count > 1 else one
        total = part if total is None else total.compose(part)
    return total.get_epsilon_for_delta(delta)


def alarm(*_):
    raise TimeoutError


def finite(value):
    """The value, or None where it is infinite or no number."""
    return value if value is not None and math.isfinite(value) else None


def library(parts, delta):
    """(optimistic, pessimistic, interval) of dp-accounting."""
    variance = sum(c * min(q * q * math.expm1(min(1 / z**2, 50)), 1 / z**2) for q, z, c in parts)
    interval = min(1e-2, max(1e-5, 0.05 * math.sqrt(variance / sum(c for *_, c in parts))))
    low = high = used = None
    signal.signal(signal.SIGVTALRM, alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, ROW_SECONDS)
    try:
        while True:
            new_high = finite(composed(parts, delta, interval, True))
            low, high, used = finite(composed(parts, delta, interval, False)), new_high, interval
            if None not in (low, high) and high - low <= max(0.01 * high, 1e-4):
                break
            interval *= 0.25
    except (TimeoutError, MemoryError, ValueError, OverflowError, ZeroDivisionError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return low, high, used


def losses(q, z, direction, n_nodes):
    """Trapezoid nodes of one release: the loss of P against Q at an output, and P's weight there."""
    x = np.linspace(-14.0 * z, 1.0 + 14.0 * z, n_nodes)
    step = (x[1] - x[0]) / z
    zero, one = (np.exp(-0.5 * ((x - c) / z) ** 2) * step / math.sqrt(2 * math.pi) for c in (0.0, 1.0))
    ratio = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + (x - 0.5) / z**2)
    near = (x - 0.5) / z**2 < 1.0
    ratio = np.where(near, np.log1p(q * np.expm1(np.minimum((x - 0.5) / z**2, 1.0))), ratio)
    return (ratio, (1 - q) * zero + q * one) if direction == "remove" else (-ratio, zero)


def log_moments(parts, direction, theta, u, n_nodes):
    """Log of M(theta + i u) of the whole composition."""
    total = np.zeros(len(u), dtype=complex)
    for q, z, count in parts:
        loss, weight = losses(q, z, direction, n_nodes)
        tilted = weight * np.exp(theta * loss)
        scale = tilted.sum()
        for begin in range(0, len(u), 256):
            few = u[begin : begin + 256]
            phase = np.outer(few, loss)
            # M / M(theta) - 1, whose parts are summed so that nothing of size 1 swallows them
            real, imaginary = -2.0 * np.sin(0.5 * phase) ** 2 @ tilted / scale, np.sin(phase) @ tilted / scale
            size = 0.5 * np.log1p(2.0 * real + real**2 + imaginary**2)
            total[begin : begin + 256] += count * (size + 1j * np.angle(1.0 + real + 1j * imaginary))
        total += count * math.log1p((weight * np.expm1(theta * loss)).sum())
    return total


def delta_by_quadrature(parts, direction, epsilon, *, fine):
    """Return a function epsilon -> delta near ``epsilon``, from one quadrature."""
    spread = math.sqrt(sum(c * _variance(q, z, direction, math.inf) for q, z, c in parts))
    bulk = math.sqrt(sum(c * _variance(q, z, direction, 0.03 * epsilon) for q, z, c in parts))
    # well below Chernoff's tilt, where rare large losses weigh more than the period of the sum can hold
    theta = (0.6 if fine else 0.45) * _chernoff(parts, direction, epsilon)
    length = 2.0 * math.pi * (1 if fine else 0.5) / (epsilon + 25.0 / max(1.0, theta / 3.0) + 20.0 * spread + 0.5)
    step = length if not fine else 0.5 * length
    top = (14.0 if fine else 7.0) / max(bulk, 1e-5)
    n_points = int(top / step) + 2
    n_nodes = 6001 if fine else 3001
    if n_points * n_nodes * len(parts) > 3e8:
        return None
    u = step * np.arange(n_points)
    log_m = log_moments(parts, direction, theta, u, n_nodes)
    s = theta + 1j * u
    factor = np.where(u == 0.0, 0.5, 1.0) * step / math.pi

    def delta(at):
        return float(np.sum(factor * (np.exp(log_m - s * at) / (s * (s + 1.0))).real))

    return delta


def _variance(q, z, direction, most):
    loss, weight = losses(q, z, direction, 2001)
    return float(weight @ np.where(np.abs(loss) < most, np.minimum(loss**2, 1.0), 0.0))


def _chernoff(parts, direction, epsilon):
    """The tilt of Chernoff's bound, at least a third over epsilon: nothing is lost to cancellation there."""
    grid = np.geomspace(0.6 / epsilon, 3e4, 60)
    laws = [(losses(q, z, direction, 2001), c) for q, z, c in parts]
    values = [sum(c * _log_moment(law, tilt) for law, c in laws) - tilt * epsilon for tilt in grid]
    return float(grid[int(np.argmin(values))])


def _log_moment(law, tilt):
    loss, weight = law
    terms = np.log(np.maximum(weight, 1e-300)) + tilt * loss
    return float(terms.max() + np.log(np.exp(terms - terms.max()).sum()))


def solved(function, target, guess):
    """The epsilon at which a falling delta(epsilon) meets the target, within a factor 3 of the guess."""
    low, high = 0.3 * guess, 3.0 * guess
    if not function(low) > target > function(high):
        return None
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return high


def quadrature(parts, delta, guess):
    """Epsilon by the characteristic function and pairs (epsilon, delta) near it; (None, []) where none settles."""
    found, pairs = [], []
    for direction in ("remove", "add"):
        functions = [delta_by_quadrature(parts, direction, guess, fine=fine) for fine in (False, True)]
        if None in functions:
            return None, []
        ends = [solved(function, delta, guess) for function in functions]
        if direction == "add" and None in ends and found:
            break  # far below the other direction
        if None in ends or abs(ends[0] - ends[1]) > 2e-4 * ends[1]:
            return None, []
        found.append(ends[1])
        pairs.append(functions)
    curve = []
    for share in SHARES:
        at = share * max(found)
        deltas = [[function(at) for function in functions] for functions in pairs]
        if all(abs(coarse - fine) <= 1e-3 * fine for coarse, fine in deltas):
            curve.append([at, max(fine for _, fine in deltas)])
    return max(found), curve


def main(seconds):
    """Add rows, or what stored rows lack, until the seconds are spent."""
    logging.disable(logging.WARNING)
    np.seterr(all="ignore")
    rows = json.loads(STORED.read_text())["rows"] if STORED.exists() else []
    start = time.process_time()
    for index, (parts, delta) in enumerate(settings()):
        if time.process_time() - start > seconds:
            break
        if index == len(rows):
            low, high, interval = library(parts, delta)
            rows.append({"parts": parts, "delta": delta, "optimistic": low, "pessimistic": high, "interval": interval})
        row = rows[index]
        if "curve" not in row:
            high = row["pessimistic"]
            usable = high is not None and 1e-3 < high < 200.0
            row["quadrature"], row["curve"] = quadrature(parts, delta, high) if usable else (None, [])
            print(
                index,
                parts,
                f"{delta:.2e}",
                *list(row.values())[2:6],
                f"{time.process_time() - start:.0f}s",
                flush=True,
            )
        if index % 20 == 19:
            write(rows)
    write(rows)


def write(rows):
    """Store what there is."""
    source = f"dp-accounting {version('dp-accounting')} privacy_loss_distribution and a quadrature; seed {SEED}"
    text = ",\n".join(json.dumps(row) for row in rows)
    STORED.write_text(f'{{"source": "{source}", "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main(float(sys.argv[1]))
