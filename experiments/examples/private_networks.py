"""Choose a network under DP-SGD: F-LCB spreads 12 private training pulls over four networks, at epsilon 4.

    python -m experiments.examples.private_networks        (needs the extra opacus)

The data is central here, and the unit of privacy is one record: Opacus clips and noises gradients, every
pull's steps are paid for on the training records' ledger before the first batch, and every validation loss
leaves through the door, paid for on the validation records' ledger. The networks see scikit-learn's digits.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from experiments.baselines.f_lcb import RateViolated, f_lcb
from experiments.baselines.neural import RatedArm, accuracy
from experiments.problems.digits import load_digits, network
from privbo.training.plan import RecordPrivacy, priced
from privbo.training.search import central_run

NETWORKS = ("conv-4", "mlp-64", "mlp-3", "pooled")
PULLS, STEPS = 12, 40
N_TRAINING, N_VALIDATION = 1000, 400


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The chosen network, and what the search for it cost."""

    chosen: str
    pulls: dict[str, int]
    test_accuracy: float
    epsilon: dict[str, float]


def main(home: Path) -> Chosen:
    """Run the search with durable ledgers in a folder; returns what was chosen and paid."""
    torch.set_num_threads(1)
    digits = load_digits(0, n_train=N_TRAINING, n_validation=N_VALIDATION)
    privacy = RecordPrivacy(epsilon=4.0, delta=1e-5, pulls=PULLS, steps=STEPS, noise="simulation")
    run = central_run(priced(privacy, n_training=N_TRAINING, n_validation=N_VALIDATION), directory=home, seed=0)
    arms = [
        RatedArm(
            name=name,
            model=network(name),
            data=digits.split,
            optimiser=partial(torch.optim.SGD, lr=0.5),
            trainer=run.trainer,
            judge=run.judge,
            steps=STEPS,
            seed=index,
            reference=math.log(10),  # the loss of a guess, so that a bad start is no advantage
        )
        for index, name in enumerate(NETWORKS)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # the rate of a network is a heuristic
        found = f_lcb(arms, budget=PULLS)
    chosen = found.chosen if found.chosen is not None else 0
    model = found.states[chosen].model
    pulls = dict(zip(NETWORKS, found.pulls.tolist(), strict=True))
    reached = accuracy(model, digits.test_x, digits.test_y)
    result = Chosen(chosen=arms[chosen].name, pulls=pulls, test_accuracy=reached, epsilon=run.plan.epsilon())
    print(f"chosen: {result.chosen}, test accuracy {result.test_accuracy:.3f}; pulls: {result.pulls}")
    print("epsilon at delta 1e-5:", ", ".join(f"{part} {value:.2f}" for part, value in result.epsilon.items()))
    print(f"charges: {len(run.training.entries())} training, {len(run.validation.entries())} validation, in {home}")
    return result


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()))
