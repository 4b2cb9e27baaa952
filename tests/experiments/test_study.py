"""Studies are data: every file can be read at both scales, and says what the papers say."""

import json
from pathlib import Path

import pytest

import privbo as pb
from experiments import study as module
from experiments.cells import algorithm_of, privacy_of
from experiments.study import study, titles
from privbo.algorithms.thompson.settings import ThompsonSettings
from privbo.protocol.messages import Setting

STORED = Path(__file__).parents[2] / "docs/results"
CONTROLS = {"local TS", "DP-FTS-DE, sum zeroed", "DE start, uniform steps"}
FIGURES = [name for name in titles() if name.startswith("dp-fts-de-") and name != "dp-fts-de-clipped"]


def setting(arm: module.Arm, n_clients: int) -> Setting:
    """Plans touch no data, so they need none of the data sets."""
    space = pb.Space({"a": pb.Real(0.0, 1.0), "b": pb.Real(0.0, 1.0)})
    return Setting(space=space, n_clients=n_clients, rounds=arm.rounds, public_seed=0)


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", titles())
def test_every_study_reads_at_both_scales(name: str, scale: module.Scale) -> None:
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
    for panel in study(name, "small").panels:
        assert {arm.label for arm in panel.arms} > CONTROLS
        for arm in panel.arms:
            algorithm = algorithm_of(arm.algorithm)
            assert isinstance(algorithm, ThompsonSettings)
            alone = arm.label in ("local TS", "DE start, uniform steps")
            switch = getattr(algorithm, "local_after", None)
            last = arm.rounds if switch is None else min(arm.rounds, switch)
            assert len(list(algorithm.server(setting(arm, 29)).plan())) == (0 if alone else last)


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
