"""Dose finding with PF-PNE: 300 health districts look for the vaccine dose that is best for each, at epsilon 2.

    python -m experiments.examples.dose_finding

With scarce vaccine a smaller dose protects more people, each a little less; which fraction is best
depends on a district's age pyramid, contacts, supply and epidemic. ``experiments/problems/covid.py`` says where
the model and its facts come from; districts are drawn from its countries. A trial's outcome is the share
of people not infected within a year, observed with noise. Regret is what trials cost: the shortfall of
their true outcomes against the district's best dose, summed over its 200 trials.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

import privbo as pb
from experiments.problems.covid import LOWEST_DOSE, model
from experiments.problems.environments import Environment
from privbo.protocol.messages import Algorithm

N_DISTRICTS, TRIALS, SEED = 300, 200, 0


def main() -> dict[str, dict[str, float]]:
    """Run it and its controls; returns regret and the recommended doses' shortfall per district."""
    districts = model(N_DISTRICTS, SEED)
    together = pb.PFPNE.heuristic(horizon=TRIALS, reward_range=(-0.05, 1.05))
    private = pb.Privacy(epsilon=2, noise="simulation")  # simulated districts: seeded noise is enough
    arms: dict[str, tuple[Algorithm, pb.Privacy | pb.NoPrivacy, Literal["zeroed"] | None]] = {
        "together": (together, private, None),
        "each alone": (together.local(), pb.NoPrivacy(), None),
        "noise alone": (together, private, "zeroed"),
    }
    found = {}
    for name, (algorithm, privacy, control) in arms.items():
        trials = Environment(districts, seed=SEED, noise="uniform", width=0.05, horizon=TRIALS)
        space = {"dose": pb.Real(LOWEST_DOSE, 1.0)}
        problem = pb.Problem(space=space, batch_objective=trials, n_clients=N_DISTRICTS, name="doses")
        result = pb.run(problem, algorithm, privacy=privacy, rounds=60, seed=SEED, control=control)
        reached = districts.values(np.arange(N_DISTRICTS), result.clients.recommended)
        regret, shortfall = trials.regret(trials.local_best)[-1], (districts.local_bests - reached).mean()
        found[name] = {"epsilon": result.epsilon(), "regret": float(regret), "shortfall": float(shortfall)}
        paid = f"epsilon {result.epsilon():.3g} at delta {result.delta:g}, {len(result.releases)} releases"
        print(f"{name}: {paid}; regret {regret:.2f} per district, chosen dose short by {shortfall:.4f}")
    return found


if __name__ == "__main__":
    main()
