"""The study of what sharing is worth: its judgement, its ratios and its tables."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments import peers_page
from experiments.cells import algorithm_of
from experiments.outcome import Outcome, Task
from experiments.played import played, read
from experiments.plays import peers
from experiments.plays.worth import FIRST, FLOOR, judged, share, tree_parzen
from experiments.run import Options, write
from experiments.study import Arm, Panel, Study, study
from experiments.worth import Family, Ratio, families, geometric
from experiments.worth_page import again, overall
from privbo.protocol.messages import Algorithm

PROCESS = {
    "type": "experiments.problems.drawn_surfaces:gaussian_process",
    "n_clients": 5,
    "n_dims": 1,
    "correlation": 0.9,
}
QUICK = pb.DPFTSDE(own=pb.OwnModel(fit_steps=2, n_candidates=64, n_features=16), n_features=8)


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


def test_poisoned_clients_are_left_out_and_turn_the_mean_round() -> None:
    whole, poisoned = share(task(QUICK)), share(task(QUICK, poisoned=0.2))
    assert len(whole.curves["mean by client"]) == 5
    assert len(poisoned.curves["mean by client"]) == 4
    assert poisoned.paid is not None
    assert whole.paid is not None
    assert poisoned.paid.releases == whole.paid.releases == 4


def test_optuna_alone_evaluates_as_often() -> None:
    pytest.importorskip("optuna")
    found = tree_parzen(task(None))
    assert len(found.curves["loss"]) == 6
    assert found.paid is None
    assert tree_parzen(task(None)).curves == found.curves


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


def test_an_unknown_tool_is_named() -> None:
    with pytest.raises(pb.ConfigurationError, match="optuna, botorch"):
        peers.alone(task(None, tool="nobody", clients=1))


def test_the_engine_is_held_against_a_tool_on_the_clients_that_both_tuned() -> None:
    found = {
        peers_page.OURS: {0: outcome(0.2, 0.4, 9.0), 1: outcome(0.3, 0.3, 9.0)},
        "tool": {0: outcome(0.4, 0.4), 1: outcome(0.6, 0.6), 2: outcome(7.0)},
    }
    ratio = peers_page.ratio(found, "tool", "mean")
    assert (ratio.value, ratio.seeds) == (pytest.approx(0.6), 4)
    seen = peers_page.overall([(panel(), found)])
    assert "| family | 4 | 0.60 (" in seen.text


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
    found = Ratio.of(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    assert (found.value, found.error, found.seeds) == (0.5, 0.0, 3)
    # Residuals 2 - 1.5 and 1 - 1.5 over 1, standard deviation .7071, over root 2.
    assert Ratio.of(np.array([2.0, 1.0]), np.array([1.0, 1.0])).error == pytest.approx(0.5)
    assert Ratio.of(np.array([2.0]), np.array([1.0])).error == math.inf
    assert f"{Ratio(0.5, math.inf, 1):.2f} {Ratio(0.5, 0.1, 2):.2f}" == "0.50 0.50 (0.10)"


def test_upper_ends_grow_with_the_number_of_comparisons() -> None:
    """Student's t with nine degrees of freedom: 1.833 at 95 %, 4.3 for a hundred at once (.99949)."""
    one = Ratio(1.0, 0.02, 10)
    assert one.upper(1) == pytest.approx(1 + 1.8331 * 0.02, abs=1e-5)
    assert one.upper(100) == pytest.approx(1 + 4.77 * 0.02, abs=2e-3)
    assert one.lower(100) == pytest.approx(2.0 - one.upper(100))
    assert Ratio(1.0, math.inf, 1).upper(1) == math.inf


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


def test_geometric_means_of_families() -> None:
    found = geometric([Ratio(0.5, 0.05, 3), Ratio(2.0, 0.2, 9)])
    assert found.value == pytest.approx(1.0)
    assert found.error == pytest.approx(math.sqrt(0.02) / 2)
    assert found.seeds == 3


def test_families_need_an_arm_alone_and_another() -> None:
    alone = {label: FOUND[label] for label in ("alone, LogEI", "alone, TPE")}
    shared = {"default, epsilon 2": FOUND["default, epsilon 2"]}
    assert families([(panel(), alone), (panel(), shared)]) == []
    assert len(families([(panel(), FOUND)])) == 1


# ---- tables


def test_tables_over_all_families() -> None:
    stress = panel("noisy", "stress")
    found = overall([(panel("first", correlation=0.6), FOUND), (panel("second", "choosing"), FOUND), (stress, FOUND)])
    assert "| first | reporting | 2 | 0.60 | TPE / TPE | 2 | 1.00 (0.00) / 1.00 (0.00) | 1.33 (0.44) / " in found.text
    assert "**Bars**" not in found.text  # families of two clients are held to none
    assert "4 ratios, 2 with an error above 2 %" in found.text  # two arms of two families, the zeroed ones
    assert "| default, epsilon 2 | 25 % | 25 % |" in found.text
    assert "| noisy | default, epsilon 2 | 1.00 (0.00) / 1.00 (0.00) |" in found.text
    assert found.pictures["figure"].startswith(b"\x89PNG")
    assert json.loads(json.dumps(found.summary))["first"]["entries"]["default, epsilon 2"]["seeds"] == [0, 1]
    assert again(found.summary) == found


@pytest.mark.parametrize(("regret", "reached"), [(0.2, "yes"), (0.39, "no")])
def test_bars_hold_the_families_they_speak_of(regret: float, reached: str) -> None:
    many = {
        "alone, LogEI": {seed: outcome(*[0.4] * 40) for seed in range(2)},
        "default, epsilon 2": {seed: outcome(*[regret] * 40) for seed in range(2)},
    }
    three = panel("alike", correlation=0.6), panel("different", correlation=0.2), panel("made", "own", 0.6)
    text = overall([(one, many) for one in three]).text
    found = f"{regret / 0.4:.3f} (0.000)"
    for name, families_ in (("reporting", 1), ("own", 1), ("**all without a choice**", 2)):
        row = f"correlation >= 0.6 | {name} | {families_} | {found} / {found} | 0.75 / 0.85 | {reached} |"
        assert row in text


@pytest.mark.parametrize(("worse", "found"), [(0.48, 1), (0.41, 0), (0.3, 0)])
def test_an_arm_that_is_worse_in_every_seed_is_found_worse(worse: float, found: int) -> None:
    """Six seeds; regret alone moves by 10 % from seed to seed, and the arm's with it but for 5 %."""
    heights = np.linspace(0.95, 1.05, 6)
    arms = {
        "alone, LogEI": {seed: outcome(*[0.4 * h] * 4) for seed, h in enumerate(heights)},
        "default, epsilon 2": {seed: outcome(*[worse * h + 0.02 * (-1) ** seed] * 4) for seed, h in enumerate(heights)},
    }
    text = overall([(panel(), arms)]).text
    assert f"where it is found worse: {found}." in text
    assert f"not worse is not shown: {int(worse > 0.4)}." in text


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
    assert "| one | reporting | 1 | 0.50 | LogEI / LogEI | 2 | 0.60" in text
    assert text.index("**Over the best arm alone**") < text.index("**one**")
    kept = json.loads((tmp_path / "worth" / "summary.json").read_text())
    assert read(kept["overall"])[0].ratio("default, epsilon 2", "mean").value == pytest.approx(0.6)
    assert "curves" in kept["panels"]["one"]["alone, LogEI"]
    assert kept["panels"]["one"]["alone, LogEI"]["curves"] == {}
    assert (tmp_path / "worth" / "figure.png").exists()


# ---- the study


def test_the_study_has_the_families_and_levels_it_speaks_of() -> None:
    every = study("worth", "paper").panels
    plain = [one for one in every if one.purpose != "stress"]
    assert len(plain) >= 16
    assert sum(one.purpose in ("reporting", "own") for one in plain) >= len(plain) / 2
    kinds = {str(one.arms[0].problem.get("name", one.arms[0].problem["type"])) for one in plain}
    assert len(kinds) >= 4
    assert {12, 40, 200, 1000} <= {one.arms[0].problem["n_clients"] for one in plain}
    stated = {one.correlation for one in plain if one.correlation is not None}
    assert stated == {0.2, 0.6, 0.9}
    for one in plain:
        levels = {arm.x for arm in one.arms if arm.series == "default" and arm.control is None}
        zeroed = {arm.x for arm in one.arms if arm.series == "default" and arm.control == "zeroed"}
        assert levels - {None} == zeroed
        assert {0.5, 1.0, 2.0} <= zeroed
        assert sum(arm.series == "alone" for arm in one.arms) == 4
    stress = [one for one in every if one.purpose == "stress"]
    assert {one.arms[0].problem.get("noise") for one in stress} == {None, 0.1, 0.5}
    assert {arm.options.get("poisoned") for one in stress for arm in one.arms} == {None, 0.01, 0.05, 0.2}


@pytest.mark.parametrize("title", ["GP 2-D, .9, few", "Branin, shifted", "camel, shifted"])
def test_an_arm_of_every_kind_of_drawn_family_runs(title: str) -> None:
    """Two rounds at few clients through the run itself; models' surfaces are in ``test_surfaces``."""
    chosen = next(one for one in study("worth", "paper").panels if one.title == title)
    for arm in (chosen.arms[0], next(one for one in chosen.arms if one.label == "default, not private")):
        given = dataclasses.replace(task(algorithm_of(arm.algorithm)), problem=arm.problem | {"n_clients": 6}, rounds=3)
        found = share(given)
        assert len(found.curves["loss"]) == 5
        assert 0.01 <= found.figures["end"] <= found.figures["mean"] <= 1.0
