"""F-LCB over the CIFAR-100 candidates; needs the archive, wants a GPU."""

from __future__ import annotations

from pathlib import Path

from experiments.baselines import architectures
from experiments.cifar import CIFAR100
from experiments.cifar_arms import run


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # one device
    """Run and write."""
    pulls, count = (200, seeds or 10) if scale == "paper" else (22, seeds or 1)
    run(CIFAR100, architectures.CIFAR100, out, pulls=pulls, seeds=count)
