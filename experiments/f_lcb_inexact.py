"""Figure 3: F-LCB with noisy gradients (sigma = 2), stochastic accelerated gradient, 1500 rounds.

The rate in expectation is what the paper plays with; the one that holds with probability
1 - 1/(K T^2) is several times wider.
"""

from __future__ import annotations

from pathlib import Path

from experiments.f_lcb_figures import figure
from experiments.f_lcb_suites import inexact_arms

CASES = {
    "printed": ("printed", None),
    "certified in expectation": ("certified", 1.0),
    "certified": ("certified", None),
}


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # seconds on one core
    """Run and write; both scales are the paper's."""
    figure(inexact_arms, budget=1503, cases=CASES, seeds=seeds or 10, out=out, title="inexact, sigma = 2")
