"""The paper's figures at the size of their bars; drivers write what they promise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import f_lcb_cauchy, f_lcb_inexact, f_lcb_nonsmooth, f_lcb_smooth
from experiments.f_lcb_figures import run_seed
from experiments.f_lcb_suites import smooth_arms


def summary(module, out, **settings):
    module.main(out, **({"scale": "paper", "seeds": None, "jobs": 1} | settings))
    assert (out / "figure.png").stat().st_size > 10_000
    assert (out / "table.md").read_text().count("|") > 10
    return json.loads((out / "summary.json").read_text())


def test_smooth_suite(tmp_path) -> None:
    """Prototype: regret 89 (5), pulls 181 / 14 / 8, best arm 10 of 10."""
    row = summary(f_lcb_smooth, tmp_path)["rates"]["certified"]
    assert row["best_chosen"] == row["best_most_pulled"] == row["runs"] == 10
    assert abs(row["regret"] - 89.0) < 0.15 * 89.0
    assert row["regret_after_round_100"] < 0.02 * row["regret"]
    np.testing.assert_allclose(row["pulls"], [181, 14, 8], atol=3)
    assert row["runs_below_bound"] == 10
    assert row["violations"] == 0


@pytest.mark.parametrize("module", [f_lcb_nonsmooth, f_lcb_inexact], ids=lambda m: m.__name__.split("_")[-1])
def test_nonsmooth_and_inexact_suites(module, tmp_path) -> None:
    rates = summary(module, tmp_path)["rates"]
    for row in rates.values():
        assert row["best_chosen"] >= 9
        assert row["violations"] == 0
    assert rates["printed"]["best_most_pulled"] >= 9
    certified = [row for name, row in rates.items() if name != "printed"]
    assert all(row["runs_below_bound"] == 10 for row in certified)


def test_cauchy_figure(tmp_path) -> None:
    found = summary(f_lcb_cauchy, tmp_path, scale="small")["policies"]
    assert all(np.isfinite(row["regret"]) for row in found.values())
    assert found["SGD-UCB-SMoM-F"]["regret"] < 0.8 * found["SGD-UCB-SMoM-F, printed index"]["regret"]


def test_a_wrong_best_arm_would_be_noticed() -> None:
    """Planted fault: with the suite's order reversed the count of right choices is zero."""
    run = run_seed(lambda seed, rates: smooth_arms(seed, rates)[::-1], 0, budget=203, rates="certified", delta=None)
    assert run["best"] == 2
    assert run["chosen"] == 2
    assert int(np.argmax(run["pulls"])) == 2
