"""Figure 4: F-LCB over the five CIFAR-10 models; needs the archive, wants a GPU."""

from __future__ import annotations

from pathlib import Path

from experiments.baselines import architectures
from experiments.cifar import CIFAR10
from experiments.cifar_arms import run


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # one device
    """Run and write."""
    pulls, count = (200, seeds or 10) if scale == "paper" else (10, seeds or 1)
    run(CIFAR10, architectures.CIFAR10, out, pulls=pulls, seeds=count)
