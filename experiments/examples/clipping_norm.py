"""Audit a clipping norm: too small is biased, too large is noisy; find one on simulated clients, then check it.

    python -m experiments.examples.clipping_norm

Choosing a bound by looking at private norms is a release nobody paid for. Here the clients are simulated, so
anybody may look: three runs with bounds around the default, what the audit says of each, and the run with
the bound it advises. Last, the mechanism of that run is attacked as a black box.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import privbo as pb
from privbo.audits.empirical import audit_run
from privbo.protocol.messages import FloatArray, IntArray

N_CLIENTS, ROUNDS, TRIALS = 60, 8, 2000
BOUNDS = (5.5, 22.0, 88.0)


def clients() -> pb.Problem:
    """Simulated clients: a bump each, slightly moved."""
    centres = np.random.default_rng(0).uniform(0.4, 0.6, size=(N_CLIENTS, 2))

    def score(numbers: IntArray, units: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-8 * ((units - centres[numbers]) ** 2).sum(axis=1)))

    space = {"x": pb.Real(0, 1), "y": pb.Real(0, 1)}
    return pb.Problem(space=space, batch_objective=score, n_clients=N_CLIENTS, name="clipping")


def run(bound: float, home: Path) -> pb.Record:
    """One run with its clipping norm; kept in a folder, since the audit reads its private part."""
    algorithm, privacy = pb.DPFTSDE(clipping_norm=bound), pb.Privacy(epsilon=4, noise="simulation")
    folder = home / f"bound-{bound:g}"
    return pb.run(clients(), algorithm, privacy=privacy, rounds=ROUNDS, seed=0, directory=folder)


def main(home: Path) -> dict[float, float]:
    """Runs with several bounds and the advised one; returns the advised factor by bound."""
    factors = {}
    for bound in BOUNDS:
        audit = pb.audit(run(bound, home))
        last, factors[bound] = audit.rounds[-1], audit.advice.factor
        print(f"clipped {last.clipped_share:.0%}, bias {last.bias:.2f}, noise {last.noise:.2f}", end=" ")
        print(f"beside a signal of {last.signal:.2f}. {audit.verdict}")
        print("".join(f"    {warning}\n" for warning in audit.warnings), end="")
    chosen = BOUNDS[-1] * factors[BOUNDS[-1]]
    result = run(chosen, home)
    audit = pb.audit(result)
    factors[chosen] = audit.advice.factor
    print(f"{audit.verdict} Epsilon {result.epsilon():.2f} as before")
    for attack in audit_run(result, trials=TRIALS):
        verdict = "within the claim" if attack.passed else "CONTRADICTS THE CLAIM"
        print(f"attack with {attack.world}: one release costs at least {attack.epsilon_lower:.2f}", end=", ")
        print(f"claimed {attack.epsilon_claimed:.2f} at delta {attack.delta:g}: {verdict}")
    return factors


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()))
