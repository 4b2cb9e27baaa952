"""Compute ``tight_grid.json``: oracle values of epsilon where rounds are many, samples rare and noise is small.

Run once, by hand: ``python -m tests.golden.make_tight_grid OUT.json`` (hours; each row is printed). 2,000 settings are
drawn from a fixed seed, a quarter of them with rates of at most 1e-3; none is dropped. Each row keeps, under
add-or-remove-one,

- ``quadrature``: epsilon by ``tests.golden.loss_quadrature``, that shares no code with the accountant or with
  dp-accounting, rounded to seven digits; ``null`` where its two lines do not agree to 1e-4. ``curve`` has its deltas
  at .5, .8 and 1 times that epsilon, ``null`` where they do not agree to 5e-4;
- ``pessimistic`` and ``optimistic``: dp-accounting's epsilons (connect-the-dots; privacy buckets, which round every
  loss down), at a discretisation ``interval`` that is quartered until they agree to 1 % (or 1e-4), or ``seconds`` of
  CPU are spent (of the stored rows 8 in the first 180, 2 or .7 in others); ``null`` where dp-accounting gives none in
  that time. They are rounded to seven digits, away from each other. ``seconds`` is ``null`` where it was not asked:
  below a delta of about 1e-9 its transforms' rounding shows, in both directions.
"""

import json
import logging
import math
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from accountant import renyi
from accountant.events import Adjacency, PoissonSampledGaussian, compose
from tests.golden.loss_quadrature import solve

SEED = 20250307
N_SETTINGS = 2000
ROW_SECONDS = 0.7
COLUMNS = ("parts", "delta", "quadrature", "curve", "optimistic", "pessimistic", "interval", "seconds")


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


def rounded(value, *, up=None):
    """Seven digits of a value, moved up or down where asked; None stays None."""
    if not value:
        return value
    near = float(f"{value:.6e}")
    if up is None or (near >= value if up else near <= value):
        return near
    ulp = 10.0 ** (math.floor(math.log10(abs(value))) - 6)
    return float(f"{near + ulp if up else near - ulp:.6e}")


def row_of(parts, delta):
    """Epsilon and a curve of delta from the characteristic function, then dp-accounting's two epsilons."""
    epsilon, curve = solve(parts, delta)
    low, high, interval = library(parts, delta)
    theirs = [rounded(low, up=False), rounded(high, up=True), rounded(interval), ROW_SECONDS]
    return [parts, delta, rounded(epsilon), [rounded(one) for one in curve], *theirs]


def main(path):
    """Write all rows."""
    logging.disable(logging.WARNING)
    np.seterr(all="ignore")
    lines = []
    for parts, delta in settings():
        lines.append(json.dumps(row_of(parts, delta), separators=(",", ":")))
        print(lines[-1], flush=True)
    source = f"dp-accounting {version('dp-accounting')} privacy_loss_distribution and a quadrature; seed {SEED}"
    text = ",\n".join(lines)
    Path(path).write_text(f'{{"source": "{source}", "columns": {json.dumps(COLUMNS)}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
