"""The study of what sharing is worth: its judgement, its ratios and its tables."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments import peers_page
from experiments.outcome import Outcome, Task
from experiments.played import played, read
from experiments.plays import peers
from experiments.plays.worth import FIRST, FLOOR, judged, seen, share
from experiments.run import Options, write
from experiments.statistics import Estimate, ratio
from experiments.study import Arm, Panel, Study
from experiments.worth import Family
from experiments.worth_page import again, overall
from privbo.protocol.messages import Algorithm, ClientHistory

PROCESS = {
    "type": "experiments.problems.drawn_surfaces:gaussian_process",
    "n_clients": 5,
    "n_dims": 1,
    "correlation": 0.9,
}
QUICK = pb.DPFTSDE(own=pb.OwnModel(fit_steps=2, n_candidates=64, n_features=16), n_features=8)


def test_a_client_whose_trials_all_failed_has_lost_its_whole_range() -> None:
    """Until one succeeds; later failures change nothing."""
    values = np.array([[np.nan, np.nan, 0.5, np.nan], [np.nan] * 4])
    losses = np.array([[np.nan, np.nan, 0.2, np.nan], [np.nan] * 4])
    where = np.zeros((2, 4, 1))
    history = ClientHistory(units=where, values=values, rounds=np.arange(4), recommended=where[:, 0])
    np.testing.assert_array_equal(seen(losses, history), [[1.0, 1.0, 0.2, 0.2], [1.0] * 4])


def task(algorithm: Algorithm | None, **options: object) -> Task:
    return Task(
        problem=PROCESS,
        algorithm=algorithm,
        privacy=pb.NoPrivacy(),
        control=None,
        rounds=4,
        seed=1,
        options=options,  # type: ignore[arg-type]  # numbers are JSON
    )


def test_losses_are_floored_and_the_first_evaluations_left_out() -> None:
    found = judged(np.array([[0.9, 0.5, 0.3, 0.0], [0.9, 0.1, 0.1, 0.1]]), 0.25, None)
    assert (FIRST, FLOOR) == (2, 0.01)
    assert found.figures == pytest.approx({"mean": (0.155 + 0.1) / 2, "end": 0.055, "correlation": 0.25})
    assert found.curves["loss"] == pytest.approx([0.9, 0.3, 0.2, 0.055])
    assert found.curves["end by client"] == pytest.approx([0.01, 0.1])


def test_what_counts_is_the_point_that_looked_best() -> None:
    """Under noise that is not the best one: its loss may rise, and the smallest so far is smaller."""
    noisy = dataclasses.replace(task(QUICK.local()), problem=PROCESS | {"noise": 3.0}, rounds=12)
    assert np.any(np.diff(share(noisy).curves["loss"]) > 0)
    assert np.all(np.diff(share(task(QUICK.local())).curves["loss"]) <= 0)


@pytest.mark.parametrize("tool", ["optuna", "botorch"])
def test_another_tool_alone_evaluates_as_often_and_again_the_same(tool: str) -> None:
    pytest.importorskip(tool)
    mixed = {"type": "experiments.problems.systems:system", "name": "alarm", "n_clients": 3}
    for problem in (PROCESS, mixed):
        asked = dataclasses.replace(task(None, tool=tool, clients=1), problem=problem, rounds=2)
        found = peers.alone(asked)
        assert len(found.curves["loss"]) == 4
        assert len(found.curves["end by client"]) == 1
        assert found.figures["step"] > 0
        assert peers.alone(asked).curves == found.curves


# ---- ratios


def outcome(*clients: float) -> Outcome:
    """Regrets of an arm's clients, the same over all evaluations and in the end."""
    mean = float(np.mean(clients))
    values = list(clients)
    figures = {"mean": mean, "end": mean, "correlation": 0.7}
    return Outcome(figures=figures, curves={"mean by client": values, "end by client": values})


def arm(label: str, series: str, x: float | None = None, control: str | None = None) -> Arm:
    return Arm(label=label, problem=PROCESS, series=series, x=x, control=control)  # type: ignore[arg-type]  # "zeroed"


ARMS = (
    arm("alone, LogEI", "alone"),
    arm("alone, TPE", "alone"),
    arm("default, epsilon 2", "default", 2.0),
    arm("default, epsilon 2, sum zeroed", "default", 2.0, "zeroed"),
)


def panel(title: str = "family", purpose: str = "reporting", correlation: float | None = None) -> Panel:
    return Panel(title=title, arms=ARMS, seeds=2, columns={}, purpose=purpose, correlation=correlation)  # type: ignore[arg-type]  # the literals


FOUND = {
    "alone, LogEI": {0: outcome(0.2, 0.6), 1: outcome(0.3, 0.5)},
    "alone, TPE": {0: outcome(0.1), 1: outcome(0.3)},
    "default, epsilon 2": {0: outcome(0.1, 0.3), 1: outcome(0.1, 0.7)},
    "default, epsilon 2, sum zeroed": {0: outcome(0.4, 0.4), 1: outcome(0.4, 0.4)},
}
FAMILY = Family(panel=panel(), found=FOUND)


def test_a_ratio_is_paired_by_seed() -> None:
    found = ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    assert (found.value, found.error, found.count) == (0.5, 0.0, 3)
    # Residuals 2 - 1.5 and 1 - 1.5 over 1, standard deviation .7071, over root 2.
    assert ratio(np.array([2.0, 1.0]), np.array([1.0, 1.0])).error == pytest.approx(0.5)
    assert ratio(np.array([2.0]), np.array([1.0])).error == math.inf
    assert f"{Estimate(0.5, math.inf, 1):.2f} {Estimate(0.5, 0.1, 2):.2f}" == "0.50 0.50 (0.10)"


def test_a_peer_on_a_few_clients_is_scaled_to_all_of_them() -> None:
    """TPE has half of the first arm's regret on its one client in seed 0, as much in seed 1; that arm's mean is .4."""
    assert FAMILY.values("alone, TPE", "mean") == pytest.approx({0: 0.2, 1: 0.4})
    found = played(FAMILY)
    assert found.best_alone("mean") == "alone, TPE"
    assert found.ratio("default, epsilon 2", "end").value == pytest.approx(0.6 / 0.6)
    assert FAMILY.correlation == 0.7
    assert Family(panel=panel(correlation=0.9), found=FOUND).correlation == 0.9


def test_clients_are_compared_one_by_one_with_our_own_arms() -> None:
    """.1/.2, .3/.6, .1/.3, .7/.5: one of four is worse."""
    found = FAMILY.clients("default, epsilon 2")
    assert found is not None
    assert found.worse == 0.25
    assert found.decile == pytest.approx(np.quantile([0.5, 0.5, 1 / 3, 1.4], 0.9))
    assert FAMILY.clients("alone, TPE") is None


# ---- tables


def test_tables_over_all_families() -> None:
    stress = panel("noisy", "stress")
    found = overall([(panel("first", correlation=0.6), FOUND), (panel("second", "choosing"), FOUND), (stress, FOUND)])
    assert "| first | 2 | 0.60 | 1.00 (0.00) | 1.33 (0.44) | 1.00 (0.00) |" in found.text
    assert "| second * | 2 |" in found.text
    assert "| **all held out** | 2 | 1 | 1.00 | 1.00 (first) | 0 | 1.00 | 1.00 (first) | 0 |" in found.text
    assert "| used in development | 2 | 1 | 1.00 | 1.00 (second) |" in found.text
    assert "| epsilon 2 | 25 % | 25 % |" in found.text
    assert "| noisy | 1.00 (0.00) | 1.33 (0.44) |" in found.text
    assert found.pictures["figure"].startswith(b"\x89PNG")
    assert json.loads(json.dumps(found.summary))["first"]["entries"]["default, epsilon 2"]["seeds"] == [0, 1]
    assert again(found.summary) == found


def test_other_tools_are_summed_up_over_families() -> None:
    """Ours over theirs: 1/2 and 2/1 on one family, so the tool is ahead by two errors nowhere; 3/2 twice on another."""
    ours, theirs = outcome(1.0, 2.0), outcome(2.0, 1.0)
    families = [
        (panel("one"), {peers_page.OURS: {0: ours}, "tool": {0: theirs}}),
        (panel("two"), {peers_page.OURS: {0: outcome(3.0, 3.0)}, "tool": {0: outcome(2.0, 2.0)}}),
        (panel("three"), {peers_page.OURS: {0: ours}}),
    ]
    seen = peers_page.overall(families)
    assert "| tool | 2 | 1.22 (0.25) | 1.22 (0.25) | 1 / 1 |" in seen.text
    assert peers_page.again(seen.summary) == seen


def test_a_study_shows_what_was_seen_over_all_panels(tmp_path: Path) -> None:
    """A player of heights: alone 2 and 3 in seeds 0 and 1."""
    arms = tuple(
        dataclasses.replace(one, play="tests.experiments.worlds:judged_square", options={"height": height})
        for one, height in zip(ARMS[::2], (2.0, 1.0), strict=True)
    )
    chosen = Study(
        name="worth",
        title="",
        panels=(Panel(title="one", arms=arms, seeds=2, columns={"mean": "{mean:.1f}"}, purpose="reporting"),),
        pictures={},
        overall="experiments.worth_page:overall",
    )
    write(chosen, tmp_path / "worth", Options(jobs=1))
    text = (tmp_path / "worth" / "table.md").read_text()
    assert "| one | 1 | 0.50 | 0.60" in text
    assert text.index("**Regret divided by that of the best independent method**") < text.index("**one**")
    kept = json.loads((tmp_path / "worth" / "summary.json").read_text())
    assert read(kept["overall"])[0].ratio("default, epsilon 2", "mean").value == pytest.approx(0.6)
    assert "curves" in kept["panels"]["one"]["alone, LogEI"]
    assert kept["panels"]["one"]["alone, LogEI"]["curves"] == {}
    assert (tmp_path / "worth" / "figure.png").exists()
