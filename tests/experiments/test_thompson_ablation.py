import json

import numpy as np
import pytest

import privbo as pb
from experiments import thompson_ablation as module
from experiments.thompson_ablation import OURS, OURS_TIGHT, TIGHT, panels, ratio


def test_every_arm_pays_what_its_panel_says_and_carries_its_controls():
    for panel in panels("paper"):
        labels = [arm.label for arm in panel.arms]
        assert len(set(labels)) == len(labels)
        assert {label for pair in panel.contrasts for label in pair} <= set(labels)
        assert {"local TS", "DE start, uniform steps", "DP-FTS", "DP-FTS-DE", "DP-FTS-DE, sum zeroed"} <= set(labels)
        for arm in panel.arms:
            if isinstance(arm.privacy, pb.Privacy):
                assert arm.privacy.delta == pb.paper_delta(panel.of.n_clients)
                assert arm.label.endswith(f"epsilon {TIGHT}") is False or arm.privacy.epsilon == TIGHT


def test_functions_for_choosing_and_for_reporting_are_others():
    *reported, chosen = panels("paper")
    first = {seed for panel in reported for seed in range(panel.of.first_seed, panel.of.first_seed + panel.runs)}
    assert not first & set(range(chosen.of.first_seed, chosen.of.first_seed + chosen.runs))


def test_the_ratio_is_of_means_and_its_interval_holds_it():
    found = ratio([1.0, 2.0, 3.0, 2.0], [2.0, 4.0, 6.0, 4.0])
    assert found["ratio"] == pytest.approx(0.5)
    assert found["low"] == pytest.approx(0.5)
    wide = ratio(np.arange(1.0, 9.0), np.full(8, 4.0))
    assert wide["low"] < wide["ratio"] < wide["high"]


def test_it_writes_its_three_files(tmp_path, monkeypatch):
    first = panels("small")[0]
    wanted = {"local TS", "DE start, uniform steps", "DP-FTS", "DP-FTS-DE", "DP-FTS-DE, sum zeroed", OURS, OURS_TIGHT}
    few = module.replace(first, arms=tuple(arm for arm in first.arms if arm.label in wanted), runs=1)
    monkeypatch.setattr(module, "panels", lambda scale: (few,))
    module.main(tmp_path, scale="small", seeds=2, jobs=1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["panels"]["homogeneous"]) == wanted
    assert set(summary["verdicts"]["homogeneous"]["ratios"]) == {OURS, OURS_TIGHT}
    assert "delta = N^-1.1" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 10_000
