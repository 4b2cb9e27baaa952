"""Compute ``accounting_grid.json``: dp-accounting's privacy-loss distributions on 500 settings.

Run once, by hand: ``python tests/golden/make_accounting_grid.py OUT.json`` (about an hour).
Settings are drawn from a fixed seed; none is dropped. Each row keeps dp-accounting's
pessimistic epsilon (connect-the-dots, both adjacency directions) at a discretisation
interval that is halved until the value moves by less than 0.05 % or the time is spent, and
its optimistic epsilon (privacy buckets: rounds every loss down) at that interval; ``null``
where dp-accounting gives none. Rows without sampling are closed form and hold
mpmath's value in both places.
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

import mpmath
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

SEED = 20240611
SECONDS = 45


def settings():
    """520 settings: (list of (kind, q, z, count), delta)."""
    rng = np.random.default_rng(SEED)

    def log_uniform(low, high):
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    def delta():
        return log_uniform(1e-10, 0.1)

    for _ in range(400):
        count = round(log_uniform(1, 1e5))
        yield [("poisson", log_uniform(1e-4, 1), log_uniform(0.3, 50), count)], delta()
    for _ in range(40):
        yield [("gaussian", 1.0, log_uniform(0.3, 50), round(log_uniform(1, 1e5)))], delta()
    for _ in range(60):
        n_parts = int(rng.integers(2, 9))
        scale = log_uniform(0.5, 20)
        parts = []
        for _ in range(n_parts):
            q, z = log_uniform(1e-3, 1), max(0.3, min(50.0, scale * log_uniform(0.5, 2)))
            parts.append(("poisson", q, z, round(log_uniform(1, 1e3))))
        yield parts, delta()
    for _ in range(20):
        z = log_uniform(0.5, 5)
        yield [("laplace", 1.0, 2 * z, int(rng.integers(1, 50))), ("gaussian", 1.0, z, 3)], delta()


def gaussian_epsilon(z, count, delta):
    """Closed form of the composed Gaussian mechanism, 60 digits."""
    mpmath.mp.dps = 60
    mu = mpmath.sqrt(count) / mpmath.mpf(z)

    def gap(eps):
        tail = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
        return mpmath.log(tail) - mpmath.log(mpmath.mpf(delta))

    if gap(mpmath.mpf(0)) <= 0:
        return 0.0
    high = mu * mu / 2 + mu * mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(delta)))
    low = mpmath.mpf(0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    return float(high)


def compose(parts, delta, interval, pessimistic):
    """dp-accounting's epsilon of the composition."""
    total = None
    for kind, q, z, count in parts:
        options = {"value_discretization_interval": interval, "pessimistic_estimate": pessimistic}
        if kind == "laplace":
            one = pld.from_laplace_mechanism(z, use_connect_dots=True, **options)
        else:
            one = pld.from_gaussian_mechanism(z, sampling_prob=q, use_connect_dots=True, **options)
        part = one.self_compose(count) if count > 1 else one
        total = part if total is None else total.compose(part)
    return total.get_epsilon_for_delta(delta)


def finite(value):
    """The value, or None where it is infinite or no number."""
    return value if math.isfinite(value) else None


def alarm(*_):
    raise TimeoutError


def rough_interval(parts, delta):
    """A start: a hundredth of one release's typical loss, or of the whole."""
    variance = sum(c * min(q * q * math.expm1(min(1 / z**2, 50)), 1 / z**2) for _, q, z, c in parts)
    return max(1e-7, 0.05 * math.sqrt(variance / sum(c for *_, c in parts)))


def oracle(parts, delta):
    """(optimistic, pessimistic, interval, seconds)."""
    interval, start = rough_interval(parts, delta), time.time()
    low = high = used = None
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        while True:
            previous, high, used = high, finite(compose(parts, delta, interval, True)), interval
            settled = None not in (previous, high) and abs(previous - high) <= max(5e-4 * high, 1e-5)
            if settled or time.time() - start > SECONDS / 6:
                break
            interval *= 0.5
        low = finite(compose(parts, delta, used, False))
    except (TimeoutError, MemoryError, ValueError, OverflowError, ZeroDivisionError) as error:
        print("   oracle stopped:", type(error).__name__, error, flush=True)
    finally:
        signal.alarm(0)
    return low, high, used, time.time() - start


def main(path):
    """Write all rows."""
    logging.disable(logging.WARNING)
    rows = []
    for index, (parts, delta) in enumerate(settings()):
        if all(kind == "gaussian" for kind, *_ in parts):
            exact = gaussian_epsilon(parts[0][2], parts[0][3], delta)
            low = high = exact
            interval, seconds = None, 0.0
        else:
            low, high, interval, seconds = oracle(parts, delta)
        rows.append({"parts": parts, "delta": delta, "optimistic": low, "pessimistic": high, "interval": interval})
        print(index, parts[:2], f"{delta:.2e}", low, high, interval, f"{seconds:.1f}s", flush=True)
        if index % 20 == 19:
            write(path, rows)
    write(path, rows)


def write(path, rows):
    """Store what there is."""
    source = f"dp-accounting {version('dp-accounting')} privacy_loss_distribution, connect-the-dots; seed {SEED}"
    Path(path).write_text(json.dumps({"source": source, "rows": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
