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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.baselines.neural import accuracy
from experiments.digits_arms import convolutional, load_digits, perceptron, pooled
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import f_lcb
from privbo.training.central import central_run
from privbo.training.plan import RecordPrivacy
from privbo.training.private_neural import PrivateNeuralArm

NETWORKS = {
    "conv-4": partial(convolutional, 4),
    "mlp-64": partial(perceptron, 64),
    "mlp-3": partial(perceptron, 3),
    "pooled": pooled,
}
PULLS, STEPS = 12, 40
N_TRAINING, N_VALIDATION = 1000, 400


def main(home: Path) -> dict[str, Any]:
    """Run the search with durable ledgers in a folder; returns what was chosen and paid."""
    torch.set_num_threads(1)
    digits = load_digits(0, n_train=N_TRAINING, n_validation=N_VALIDATION)
    privacy = RecordPrivacy(epsilon=4.0, delta=1e-5, pulls=PULLS, steps=STEPS, noise="simulation")
    run = central_run(privacy, n_training=N_TRAINING, n_validation=N_VALIDATION, directory=home, seed=0)
    arms = [
        PrivateNeuralArm(
            name=name,
            model=make,
            data=digits.split,
            optimiser=partial(torch.optim.SGD, lr=0.5),
            trainer=run.trainer,
            judge=run.judge,
            steps=STEPS,
            seed=index,
            reference=math.log(10),  # the loss of a guess, so that a bad start is no advantage
        )
        for index, (name, make) in enumerate(NETWORKS.items())
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # the rate of a network is a heuristic
        found = f_lcb(arms, budget=PULLS)
    chosen = found.chosen if found.chosen is not None else 0
    model = found.states[chosen].model
    result = {
        "chosen": arms[chosen].name,
        "pulls": dict(zip(NETWORKS, found.pulls.tolist(), strict=True)),
        "test accuracy": accuracy(model, digits.test_x, digits.test_y),
        "epsilon": run.epsilon(),
    }
    print(f"chosen: {result['chosen']}, test accuracy {result['test accuracy']:.3f}; pulls: {result['pulls']}")
    print("epsilon at delta 1e-5:", ", ".join(f"{part} {value:.2f}" for part, value in result["epsilon"].items()))
    print(f"charges: {len(run.training.entries())} training, {len(run.validation.entries())} validation, in {home}")
    return result


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()))
