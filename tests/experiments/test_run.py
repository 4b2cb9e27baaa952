"""A study from end to end, its table, and what may be reused."""

import csv
import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

import privbo as pb
from experiments.cells import algorithm_of, privacy_of
from experiments.outcome import Outcome, Paid
from experiments.run import Options, write
from experiments.statistics import Estimate, Measure, geometric, mean, paired
from experiments.stored import rows_of as stored_rows
from experiments.study import Arm, Panel, Picture, Study, study, titles
from experiments.summary import printed, summarise
from experiments.table import table
from privbo.algorithms.thompson.settings import ThompsonSettings
from privbo.protocol.messages import Setting

SMALL = {"n_regions": 2, "n_features": 8, "n_init": 2, "own": {"n_features": 16, "fit_steps": 2, "n_candidates": 64}}


def figure(name: str) -> Study:
    """A figure of the paper on three clients, two rounds and small models."""
    found = study(name, "small")
    panel = found.panels[-1]
    arms = tuple(
        dataclasses.replace(
            arm,
            problem={"type": "tests.experiments.worlds:tiny"},
            rounds=2,
            algorithm={**arm.algorithm, **SMALL, "n_regions": min(2, int(arm.algorithm["n_regions"]))},
        )
        for arm in panel.arms
    )
    return dataclasses.replace(found, panels=(dataclasses.replace(panel, arms=arms, first_seed=0, seeds=2),))


def summary(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())["panels"]["synthetic"]


def test_one_figure_from_end_to_end_is_resumed_and_shared(tmp_path: Path) -> None:
    out = tmp_path / "dp-fts-de-5"
    write(figure("dp-fts-de-5"), out, Options(scale="small", jobs=1))
    first = (out / "summary.json").read_bytes()
    cells = sorted((tmp_path / "cells").iterdir())
    assert len(cells) == 2 * 7  # three controls and four arms, two seeds
    kept = {path: path.stat().st_mtime_ns for path in cells[1:]}
    cells[0].unlink()
    write(figure("dp-fts-de-5"), out, Options(scale="small", jobs=1))
    assert (out / "summary.json").read_bytes() == first
    assert sorted((tmp_path / "cells").iterdir()) == cells
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "table.md").read_text()
    assert text.startswith("`python -m experiments dp-fts-de-5 --scale small`. The paper: Both components")
    found = summary(out)
    arms = "FTS-DE, equal weights", "FTS-DE"
    even, whole = (np.array(found[arm]["measures"]["cumulative"]["by_seed"]) for arm in arms)
    assert f"** {np.mean(whole - even):+.2f} ± " in text.partition("equal weights are worse")[2].splitlines()[0]
    with (out / "table.csv").open() as file:
        lines = {line["arm"]: line for line in csv.DictReader(file)}
    assert float(lines["FTS-DE"]["cumulative"]) == pytest.approx(whole.mean(), rel=1e-4)
    gain = lines["FTS-DE"]["cumulative minus FTS-DE, equal weights"]
    assert float(gain) == pytest.approx(np.mean(whole - even), rel=1e-4)
    assert (out / "figure.pdf").read_bytes().startswith(b"%PDF")
    # Whatever a study is called: another one with the same arms runs nothing.
    write(dataclasses.replace(figure("dp-fts-de-5"), name="other"), tmp_path / "other", Options(scale="small", jobs=1))
    assert sorted((tmp_path / "cells").iterdir()) == cells


def test_what_is_finished_is_shown_and_older_code_named(tmp_path: Path) -> None:
    chosen, out = figure("dp-fts-de-12a"), tmp_path / "dp-fts-de-12a"
    shown = Options(scale="small", seeds=3, jobs=1, finished=True)
    with pytest.raises(pb.ConfigurationError, match="two finished runs"):
        write(chosen, out, shown)
    write(chosen, out, Options(scale="small", seeds=3, jobs=1))
    assert {tuple(row["seeds"]) for row in summary(out).values()} == {(0, 1, 2)}
    assert list(summary(out)) == [arm.label for arm in chosen.panels[0].arms]
    newest = (out / "table.md").read_text()
    for path in (tmp_path / "cells").iterdir():
        content = json.loads(path.read_text())
        content["code"]["parts"]["privbo's code"] = "older"
        (path.parent / f"{path.stem.partition('-')[0]}-0123456789abcdef.json").write_text(json.dumps(content))
        path.unlink()
    write(chosen, out, shown)
    text = (out / "table.md").read_text()
    assert "Made by older code: 15 cells by privbo " in text
    assert newest.splitlines()[4:14] == text.splitlines()[4:14]
    write(chosen, out, Options(scale="small", seeds=1, jobs=1))  # never taken for today's
    assert len([path for path in (tmp_path / "cells").iterdir() if "0123456789abcdef" not in path.name]) == 5


def height(value: float, **more: object) -> Arm:
    play = "tests.experiments.worlds:square"
    problem = {"type": "tests.experiments.worlds:tiny"}
    return Arm(label=f"h={value:g}", play=play, problem=problem, options={"height": value}, **more)


def test_players_series_ratios_and_slopes_are_data(tmp_path: Path) -> None:
    panel = Panel(
        title="heights",
        arms=[height(1.0, x=1.0, series="s"), height(2.0, x=2.0, series="s"), height(8.0, seeds=1)],
        seeds=2,
        columns={"mean": "{cumulative:.2f±}", "runs": "{runs}", "over": "{over[h=1]:.2f}", "none": "{last:.1f}"},
        contrasts=[["h=2", "h=1"]],
        ratios=[["*", "h=1"]],
        slope=[1.0, 2.0],
    )
    pictures = {
        "figure": Picture(kind="trade-off"),
        "bars": Picture(of="figure", kind="bars"),
        "curves": Picture(of="figure", measure="loss"),
    }
    write(Study(name="heights", title="t", panels=[panel], pictures=pictures), tmp_path / "out", Options(jobs=1))
    text = (tmp_path / "out/table.md").read_text()
    assert "| h=1 | 1.50 ± 0.50 | 2 | 1.00 | - |" in text
    assert "| h=8 | 8.00 ± 0.00 | 1 | 8.00 | - |" in text
    assert "- h=2 minus h=1: +1.000 ± 0.000 (2 runs)" in text
    assert f"1 to 2: {np.log(2.5 / 1.5) / np.log(2):.2f}" in text
    assert all((tmp_path / f"out/{name}.png").stat().st_size > 2000 for name in pictures)


def outcomes(by_seed: dict[int, float], **more: Paid) -> dict[int, Outcome]:
    return {seed: Outcome(figures={"cumulative": value}, **more) for seed, value in by_seed.items()}


def test_differences_and_ratios_are_paired() -> None:
    pair = [["h=1", "h=2"]]
    panel = Panel(title="p", arms=[height(1.0), height(2.0)], seeds=3, columns={}, contrasts=pair, ratios=pair)
    found = {"h=1": outcomes({1: 3.0, 2: 7.0}), "h=2": outcomes({2: 6.0, 0: 16.0, 1: 1.0})}
    rows = summarise(panel, found)
    assert rows["h=1"].minus["h=2"]["cumulative"].by_seed == (2.0, 1.0)
    one = rows["h=1"].over["h=2"]
    # Residuals 3 - 10/7 and 7 - 60/7 over 3.5, by the delta method.
    assert (one.value, one.count, one.error) == (pytest.approx(10 / 7), 2, pytest.approx(11 / 7 / 3.5))
    shown = table(panel, rows)
    assert f"- h=1 / h=2 = 1.43 [{one.interval[0]:.2f}, {one.interval[1]:.2f}]" in shown
    stored = json.loads(json.dumps({label: row.to_dict() for label, row in rows.items()}))
    assert table(panel, stored_rows(panel, stored)) == shown


def rows_of(regions: dict[str, int], *, noise_by_regions: bool) -> tuple[dict, dict[str, str]]:
    silent = {"local TS", "DE start, uniform steps"}
    algorithms = {label: {"type": "dp-fts-de", "n_regions": n} for label, n in regions.items()}
    panel = Panel(
        title="p",
        arms=[Arm(label=label, problem={"type": "m:f"}, algorithm=made) for label, made in algorithms.items()],
        seeds=1,
        columns={"zeroed": "{minus[zeroed]:.0f}"},
        controls=sorted(silent),
        noise_by_regions=noise_by_regions,
    )
    found = {label: outcomes({0: float(i)}, paid=paid(0 if label in silent else 3)) for i, label in enumerate(regions)}
    rows = summarise(panel, found)
    lines = [line for line in table(panel, rows).splitlines() if line.startswith("| ") and "arm" not in line]
    return rows, dict(line.strip("| ").split(" | ") for line in lines)


def paid(releases: int) -> Paid:
    z = 1.0 if releases else None
    return Paid(n_clients=29, releases=releases, noise_multiplier=z, event={}, adjacency="zero-out")


def test_noise_alone_stands_in_for_arms_of_as_many_regions_only() -> None:
    regions = {
        "local TS": 2,
        "DP-FTS-DE, sum zeroed": 2,
        "DP-FTS-DE, P=2": 2,
        "DP-FTS-DE, P=3": 3,
        "DP-FTS-DE, P=1": 1,
        "DP-FTS-DE, P=1, sum zeroed": 1,
        "DP-FTS, q=0.1": 1,
        "ours, epsilon 1": 2,
        "ours, epsilon 2": 2,
        "ours, epsilon 2, sum zeroed": 2,
    }
    rows, shown = rows_of(regions, noise_by_regions=True)
    assert {label: text for label, text in shown.items() if text != "-"} == {
        "DP-FTS-DE, P=2": "1",
        "DP-FTS-DE, P=1": "-1",
        "DP-FTS, q=0.1": "1",
        "ours, epsilon 2": "-1",
    }
    assert set(rows["ours, epsilon 1"].minus) == {"local TS"}
    _, shown = rows_of(regions, noise_by_regions=False)
    assert {label for label, text in shown.items() if text != "-"} == {"DP-FTS-DE, P=1", "ours, epsilon 2"}


def test_printed_prices_are_the_papers() -> None:
    (panel,) = study("dp-fts-de-3a", "paper").panels
    arm = next(arm for arm in panel.arms if arm.label == "DP-FTS-DE, q=0.35, z=1")
    plan = dataclasses.replace(paid(60), n_clients=29)
    assert round(printed(arm, plan) or 0, 2) == 15.17
    assert printed(dataclasses.replace(arm, privacy={}), plan) is None
    assert printed(arm, paid(0)) is None


def test_the_command_line_says_what_is_missing(tmp_path, monkeypatch, capsys) -> None:
    from experiments.__main__ import main

    monkeypatch.setenv("PRIVBO_DATA", os.fspath(tmp_path / "nowhere"))
    assert main(["f-lcb-cifar10", "--jobs", "1", "--out", os.fspath(tmp_path / "no")]) == 2
    assert "is not there; put it there" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "worth: what sharing is worth" in capsys.readouterr().out


def test_one_cell_by_command_is_what_is_stored_bit_for_bit(tmp_path, monkeypatch, capsys) -> None:
    """The study is a file of its own; a stored number that is off by a thousandth is named."""
    from experiments import __main__ as command, one

    panel = Panel(title="heights", arms=[height(1.0), height(2.0)], seeds=2, columns={})
    chosen = Study(name="heights", title="t", panels=[panel], pictures={})
    write(chosen, tmp_path / "out", Options(jobs=1))
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    monkeypatch.setattr(one, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "study", lambda *_: chosen)
    monkeypatch.setattr(command, "titles", lambda: {"heights": "t"})
    (tmp_path / "results/some").mkdir(parents=True)
    arms = summary["panels"]["heights"]
    exact, values = arms["h=2"]["exact"], arms["h=2"]["measures"]["cumulative"]["by_seed"]
    for said, off, label, digest in (
        ("bit for bit what is stored", 1.0, "h=2", exact),
        ("equal to five digits", 1.00001, "h=2", ["", ""]),
        ("differs in cumulative", 1.001, "h=2", ["", ""]),
        ("not stored", 1.0, "another", exact),
    ):
        row = arms.popitem()[1] | {"exact": digest}
        row["measures"]["cumulative"]["by_seed"] = [value * off for value in values]
        arms[label] = row
        (tmp_path / "results/some/heights.json").write_text(json.dumps(summary))
        assert command.main(["heights", "--arm", "h=2", "--seed", "1"]) == 0
        assert said in capsys.readouterr().out
    assert command.main(["heights", "--arm", "h=3", "--seed", "1"]) == 2
    assert "choose one of 'h=1', 'h=2'" in capsys.readouterr().err
    for more, labels in (((), ["h=1", "h=2"]), (("--arm", "h=1"), ["h=1"])):
        assert command.main(["heights", "--show", *more]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert [arm["label"] for arm in shown["panels"][0]["arms"]] == labels


# ---- studies are data: every file can be read at both scales, and says what the papers say

STORED = Path(__file__).parents[2] / "docs/results"
CONTROLS = {"local TS", "DP-FTS-DE, sum zeroed", "DE start, uniform steps"}
FIGURES = [name for name in titles() if name.startswith("dp-fts-de-") and name != "dp-fts-de-clipped"]


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", titles())
def test_every_study_reads_at_both_scales(name: str, scale) -> None:
    found = study(name, scale)
    assert len({panel.title for panel in found.panels}) == len(found.panels)
    for panel in found.panels:
        labels = {arm.label for arm in panel.arms}
        assert len(labels) == len(panel.arms)
        assert {label for pair in (*panel.contrasts, *panel.ratios) for label in pair} <= labels | {"*"}
        if panel.arms:  # else what is collected has labels of its own
            assert {claim.than for claim in panel.claims} <= labels
            assert all(claim.of(labels) for claim in panel.claims)
        assert panel.picture in {*found.pictures, ""}
        for arm in panel.arms:
            assert not arm.algorithm or algorithm_of(arm.algorithm)
            if "price_of" not in arm.privacy:
                privacy = privacy_of(arm.privacy)
                assert isinstance(privacy, pb.NoPrivacy) or privacy.noise == "simulation"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_carries_its_controls_and_can_be_planned(name: str) -> None:
    space = pb.Space({"a": pb.Real(0.0, 1.0), "b": pb.Real(0.0, 1.0)})  # plans touch no data
    for panel in study(name, "small").panels:
        assert {arm.label for arm in panel.arms} > CONTROLS
        for arm in panel.arms:
            algorithm = algorithm_of(arm.algorithm)
            assert isinstance(algorithm, ThompsonSettings)
            alone = arm.label in ("local TS", "DE start, uniform steps")
            switch = getattr(algorithm, "local_after", None)
            last = arm.rounds if switch is None else min(arm.rounds, switch)
            setting = Setting(space=space, n_clients=29, rounds=arm.rounds, public_seed=0)
            assert len(list(algorithm.server(setting).plan())) == (0 if alone else last)


PAGES = ("dp-fts-de", "dp-fts-de-better", "elimination", "f-lcb")


@pytest.mark.parametrize(
    "path", sorted(path for page in PAGES for path in (STORED / page).glob("*.json")), ids=lambda path: path.stem
)
def test_published_numbers_are_of_the_arms_that_there_are(path: Path) -> None:
    """Every arm in the pages' data is an arm of its study, and no panel is missing."""
    name = next(name for name in (path.stem, f"{path.parent.name}-{path.stem}") if name in titles())
    panels = {panel.title: {arm.label for arm in panel.arms} for panel in study(name, "paper").panels}
    for title, rows in json.loads(path.read_text())["panels"].items():
        assert set(rows) <= panels[title] or not panels[title]  # what is collected has labels of its own


def test_each_fills_in_values_and_texts(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("""
[shared.low]
privacy = {epsilon = "{e}", noise = "simulation"}
[shared.de]
algorithm = {type = "dp-fts-de"}
[shared.controls]
arms = [{label = "alone", algorithm = {type = "dp-fts-de", local = true}}]
[one]
title = "One"
seeds = {paper = 3, small = 1}
problem = {type = "m:f", n = 2}
columns."last" = "{last:.2f}"
panels = [{title = "n={n}", each = {n = [1, 2]}, problem = {n = "{n}"}}, {title = "large", only = "paper"}]
arms = [
  "controls",
  {use = ["low", "de"], label = "{w}, {e:g}", each = {w = ["a", "b"], e = [0.5, 1.0]}, zeroed = true},
]
""")
    found = study("one", "small", tmp_path)
    assert [(panel.title, panel.seeds) for panel in found.panels] == [("n=1", 1), ("n=2", 1)]
    assert [panel.title for panel in study("one", "paper", tmp_path).panels] == ["n=1", "n=2", "large"]
    arms = found.panels[1].arms
    assert [arm.problem["n"] for arm in arms] == [2] * 9
    assert arms[3].label == "a, 1"
    assert arms[3].privacy["epsilon"] == 1.0
    assert (arms[2].label, arms[2].control) == ("a, 0.5, sum zeroed", "zeroed")
    assert found.panels[0].columns == {"last": "{last:.2f}"}
    with pytest.raises(pb.ConfigurationError, match="'two' is unknown"):
        study("two", "small", tmp_path)


# ---- statistics of experiments: Student's numbers, which all published pages have, too


def test_means_are_tested_and_bounded_as_student_does():
    """Geometric ones by their logarithm; one value says nothing, and equal ones no more than their signs."""
    values = np.array([0.3, 0.9, -0.2, 0.6, 0.5])
    one, ratios = mean(values), geometric(Estimate(float(r), 0.1, 3) for r in np.exp(values))
    below, above = (ttest_1samp(values, 0.1, alternative=side).pvalue for side in ("less", "greater"))
    assert (one.below(0.1), one.above(0.1), ratios.above(math.exp(0.1))) == pytest.approx((below, above, above))
    both = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (*one.interval, *np.log(ratios.interval)) == pytest.approx((*both, *both))
    assert Measure(tuple(values)).over(3) == Measure((), (one.value, one.error)).over(5)
    single = mean([0.3])
    assert (single.below(1.0), single.above(0.0), single.interval) == (1.0, 1.0, (-math.inf, math.inf))
    assert f"{single:.2f} {Estimate(0.5, 0.1, 2):.2f}" == "0.30 0.50 (0.10)"
    assert (Estimate(0.5, 0.0, 4).below(1.0), Estimate(0.5, 0.0, 4).above(1.0)) == (0.5**4, 1.0)


def test_pairs_are_of_seeds_that_both_have():
    assert paired({2: 5.0, 1: 3.0, 7: 9.0}, {1: 1.0, 2: 2.0, 0: 4.0}).tolist() == [[3.0, 5.0], [1.0, 2.0]]
    assert paired({1: 3.0}, {2: 1.0}).shape == (2, 0)
