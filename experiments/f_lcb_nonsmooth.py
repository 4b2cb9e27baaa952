"""Figure 2: F-LCB on three piecewise linear functions (eq. 21), triple averaging, 1000 rounds."""

from __future__ import annotations

from pathlib import Path

from experiments.f_lcb_figures import figure
from experiments.f_lcb_suites import nonsmooth_arms

CASES = {"certified": ("certified", None), "printed": ("printed", None)}


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # seconds on one core
    """Run and write; both scales are the paper's."""
    figure(nonsmooth_arms, budget=1003, cases=CASES, seeds=seeds or 10, out=out, title="nonsmooth, eq. 21")
