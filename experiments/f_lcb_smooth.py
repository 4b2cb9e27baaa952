"""Figure 1: F-LCB on three smooth functions (eq. 20), accelerated gradient, 200 rounds."""

from __future__ import annotations

from pathlib import Path

from experiments.f_lcb_figures import figure
from experiments.f_lcb_suites import smooth_arms

CASES = {"certified": ("certified", None), "printed": ("printed", None)}


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # seconds on one core
    """Run and write; both scales are the paper's."""
    figure(smooth_arms, budget=203, cases=CASES, seeds=seeds or 10, out=out, title="smooth, eq. 20")
