"""Compute ``renyi_mpmath.json``: Rényi divergences of the Poisson-sampled Gaussian, 40 digits.

Run once, by hand: ``python tests/golden/make_renyi_golden.py OUT.json`` (some minutes). Orders
1.01 to 200, sample rates 1e-6 to 1, noise multipliers 0.3 to 50, from a fixed seed plus
the corners; mpmath integrates E[(1 + u)^a - 1 - a u] over unit panels at 40 digits.
"""

import json
import sys
from itertools import product
from pathlib import Path

import mpmath as mp
import numpy as np

SEED = 7


def divergence(q, z, a):
    """Rényi divergence at order a of (1-q) N(0, z^2) + q N(1, z^2) from N(0, z^2)."""
    q, z, a = mp.mpf(q), mp.mpf(z), mp.mpf(a)

    def integrand(t):
        u = q * mp.expm1(t / z - 1 / (2 * z * z))
        return mp.npdf(t) * ((1 + u) ** a - 1 - a * u)

    top = a / z + 12
    panels = int((top + 12) / min(1, z)) + 2
    return mp.log1p(mp.quad(integrand, mp.linspace(-12, top, panels), maxdegree=4)) / (a - 1)


def settings():
    """Corners of the range, then 150 random points."""
    yield from product([1e-6, 0.5, 1.0], [0.3, 50.0], [1.01, 200.0])
    rng = np.random.default_rng(SEED)
    for _ in range(150):
        q = float(10 ** rng.uniform(-6, 0))
        z = float(0.3 * (50 / 0.3) ** rng.random())
        yield q, z, float(1.01 + 10 ** rng.uniform(-2, 2.29))


def main(path):
    """Write all rows."""
    mp.mp.dps = 40
    rows = []
    for q, z, a in settings():
        rows.append([q, z, a, mp.nstr(divergence(q, z, a), 20)])
        print(rows[-1], flush=True)
    text = {"source": f"mpmath {mp.__version__}, 40 digits; seed {SEED}", "rows": rows}
    Path(path).write_text(json.dumps(text, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
