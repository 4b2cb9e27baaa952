"""Figure 4's protocol where CIFAR-10 is not at hand: its five models on scikit-learn's digits.

The 8x8 images are enlarged to the models' 32x32 and repeated over three channels. A pull is
40 Adam steps at 1e-4, batch 64. On one core a pull of the residual network takes a minute or two.
"""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.baselines import architectures
from experiments.cifar_arms import Task, best_device, study
from experiments.digits_arms import load_digits
from privbo.training.private_neural import Split


def task(seed: int) -> Task:
    """A seed's split of the enlarged digits."""
    found = load_digits(seed, device=best_device())
    split = Split(
        train_x=enlarged(found.split.train_x),
        train_y=found.split.train_y,
        validation_x=enlarged(found.split.validation_x),
        validation_y=found.split.validation_y,
    )
    return Task(split=split, test_x=enlarged(found.test_x), test_y=found.test_y)


def enlarged(images: torch.Tensor) -> torch.Tensor:
    """``(n, 1, 8, 8)`` in [0, 1] as ``(n, 3, 32, 32)`` in [-1, 1]."""
    large = torch.nn.functional.interpolate(images, scale_factor=4, mode="bilinear", align_corners=False)
    return large.mul(2.0).sub(1.0).expand(-1, 3, -1, -1).contiguous()


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # one device
    """Run and write."""
    pulls, count = (200, seeds or 10) if scale == "paper" else (20, seeds or 1)
    study("digits", task, architectures.CIFAR10, out, pulls=pulls, seeds=count, device=best_device())
