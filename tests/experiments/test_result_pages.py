"""Pages from what is kept beside them: tables, pictures, numbers and verdicts."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments import one, result_pages, spend
from experiments.families_page import AIMS, ALONE, again
from experiments.frontier import best_alone, gain
from experiments.played import kept, read
from experiments.problems import client_families, later_families, third_families
from experiments.result_pages import refresh
from experiments.statistics import Measure, geometric
from experiments.stored import rows_of
from experiments.study import Claim, Panel, study, titles
from experiments.verdicts import Judged, judge, together
from experiments.worth import MEASURES

RESULTS = Path(__file__).parents[2] / "docs/results"
PAGE = """# Found

<!-- table dp-fts-de-12a -->
what stood here
<!-- end -->

![a picture](dp-fts-de/12a.png)

<!-- table dp-fts-de-2d: synthetic -->
<!-- end -->
Text between.

<!-- brief dp-fts-de-12a: synthetic -->
<!-- end -->

<!-- verdicts -->
<!-- end -->
"""


def row(by_seed: list[float]) -> dict:
    mean = sum(by_seed) / len(by_seed)
    measure = {"mean": mean, "standard_error": 0.1, "by_seed": by_seed}
    return {
        "seeds": list(range(len(by_seed))),
        "n_clients": 200,
        "measures": {"cumulative": measure, "last": measure},
        "curves": {"loss": {"mean": [0.123456789, 0.1], "standard_error": [0.01, 0.01]}},
        "releases": 40,
        "noise_multiplier": 1.0,
        "printed_epsilon": 9.9123456,
        "epsilon": [6.46, None],
        "minus": {},
        "over": {},
    }


def results(folder):
    found = {
        "12a": {
            "local TS": row([2.0, 2.1, 2.2]),
            "DP-FTS-DE, adaptive weights": row([1.0, 1.1, 1.3]),
            "DP-FTS-DE, non-adaptive weights": row([1.05, 1.13, 1.36]),
        },
        "2d": {"DP-FTS-DE, z=1": row([1.0, 1.2]), "DP-FTS-DE, z=1.5": row([1.05, 1.27])},
    }
    for name, arms in found.items():
        (folder / f"dp-fts-de-{name}").mkdir(parents=True)
        (folder / f"dp-fts-de-{name}" / "summary.json").write_text(json.dumps({"panels": {"synthetic": arms}}))
    return folder


def test_everything_on_a_page_comes_from_what_is_kept_beside_it(tmp_path):
    page = tmp_path / "dp-fts-de.md"
    page.write_text(PAGE)
    assert refresh(results(tmp_path / "results"), page) == ["dp-fts-de-2d", "dp-fts-de-12a"]
    text = page.read_text()
    assert "what stood here" not in text
    assert (
        "| DP-FTS-DE, adaptive weights | 3 | 1.133 ± 0.088 | 1.1333 ± 0.0882 | 9.91 | 6.46 | infinite | -0.967" in text
    )
    assert "| DP-FTS-DE, adaptive weights | 1.133 ± 0.088 | -0.967 ± 0.033 | - |" in text
    assert text.count("**synthetic**") == 2
    assert "| 12a | both beat TS | **found** -0.97 ± 0.03 to -0.92 ± 0.04 (.0058) | 3 |" in text
    assert "| 2d | a smaller z is better: 1 beats 1.5 | **open** -0.06 ± 0.01 (" in text
    kept = json.loads((tmp_path / "dp-fts-de/12a.json").read_text())["panels"]["synthetic"]["local TS"]
    assert kept["curves"]["loss"]["mean"] == [0.123457, 0.1]
    with (tmp_path / "dp-fts-de/12a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["panel"] for line in lines] == ["synthetic"] * 3
    assert lines[1]["cumulative minus local TS"] == "-0.96667"
    assert (tmp_path / "dp-fts-de/12a.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "dp-fts-de/2d.png").exists()
    again = {path: path.read_bytes() for path in (tmp_path / "dp-fts-de").iterdir()}
    refresh(tmp_path / "nowhere", page)  # no results: all from what is kept
    assert page.read_text() == text
    assert {path: path.read_bytes() for path in (tmp_path / "dp-fts-de").iterdir()} == again


@pytest.mark.parametrize("block", ["dp-fts-de-5", "dp-fts-de-12a: third"])
def test_a_table_that_was_not_run_is_named_and_the_page_stays(tmp_path, block):
    page = tmp_path / "dp-fts-de.md"
    page.write_text(f"<!-- table {block} -->\n<!-- end -->\n")
    with pytest.raises(pb.ConfigurationError, match=r"dp-fts-de-5|third"):
        refresh(results(tmp_path / "results"), page)
    assert page.read_text() == f"<!-- table {block} -->\n<!-- end -->\n"


def judged(
    differences: list[tuple[float, float]],
    *,
    seeds: int = 12,
    controls=(),
    withdrawn: str = "",
    **claim,
) -> list[Judged]:
    """Judge arms of known differences beside another, and beside controls that are named by theirs."""
    arms = {"b": row([2.0] * seeds)} | {f"a{i}": row([1.0] * seeds) for i in range(len(differences))}
    claims = [Claim(says="s", less="a*", than="b", **claim)]
    panel = Panel(title="p", arms=[], seeds=seeds, columns={}, claims=claims, controls=controls, withdrawn=withdrawn)
    rows = rows_of(panel, arms)
    for i, less in enumerate(differences):
        rows[f"a{i}"].minus["b"] = {"cumulative": Measure((), less), "last": Measure((), less)}
        for control in controls:
            rows[f"a{i}"].minus[control] = {"cumulative": Measure((), (float(control), 0.1))}
    return together(list(judge(panel, rows, "9z")))


ALIKE = {"within": 0.1}  # of 2.0
EXISTS = {"exists": True}
CLIPPED = {"withdrawn": "half is clipped"}


@pytest.mark.parametrize(
    ("differences", "settings", "verdict"),
    [
        ([(-0.5, 0.2)], {}, "found"),
        ([(-0.42, 0.2)], {}, "open"),  # two errors are not enough for twelve seeds
        ([(0.3, 0.2)], {}, "open"),
        ([(0.5, 0.2)], {}, "contradicted"),
        ([(-0.6, 0.2), (-0.3, 0.2), (0.6, 0.2)], {}, "open (found in 1 of 3, contradicted in 1 of 3)"),
        ([(-0.5, 0.2), (-0.3, 0.2), (0.5, 0.2)], {}, "open"),  # of three, one as far as that is no finding any more
        ([(-0.5, 0.2)], {"seeds": 3}, "open"),
        ([(-0.5, 0.0)], {"seeds": 3}, "open"),  # three equal signs are no certainty
        ([(0.05, 0.05)], ALIKE, "found"),
        ([(-0.05, 0.1)], ALIKE, "open"),
        ([(-0.6, 0.1)], ALIKE, "contradicted"),
        ([(0.05, 0.05)], ALIKE | {"controls": ["-0.5"]}, "found"),
        ([(0.05, 0.05)], ALIKE | {"controls": ["-0.5", "0.0"]}, "open"),  # it does nothing
        ([(0.5, 0.2), (-0.6, 0.2)], EXISTS, "found"),
        ([(0.5, 0.2), (-0.5, 0.2)], EXISTS, "open"),  # found alone, and not as the best of two
        ([(0.5, 0.1), (0.6, 0.1)], EXISTS, "open"),  # contradicted by none
        ([(-0.5, 0.2)], CLIPPED, "withdrawn"),
        ([(-0.5, 0.2)], CLIPPED | {"stands": True}, "found"),  # what withdraws the panel does not concern it
    ],
)
def test_a_verdict_holds_students_t_all_arms_and_what_the_claim_says(differences, settings, verdict) -> None:
    (one,) = judged(differences, **settings)
    assert one.verdict == verdict


def test_of_four_hundred_papers_without_an_effect_few_find_anything():
    """Ten claims of ten seeds each: level .05 for the paper as a whole, either side."""
    generator, wrong = np.random.default_rng(5), 0
    for _ in range(400):
        drawn = generator.normal(size=(10, 10))
        kept = [(float(one.mean()), float(one.std(ddof=1) / np.sqrt(10))) for one in drawn]
        wrong += any(one.verdict != "open" for one in judged(kept, seeds=10)[0].tested)
    assert wrong <= 45  # 20 expected at most; more than 45 has probability below 1e-6


@pytest.mark.parametrize(("paper", "page"), [("PF-PNE", "elimination.md"), ("F-LCB", "f-lcb.md")])
def test_a_papers_own_page_states_its_claims_and_their_verdicts_as_the_verdicts_page_does(paper: str, page: str):
    verdict = re.compile(r"\*\*(found|contradicted|open)\*\*")
    section = (RESULTS / "verdicts.md").read_text().partition(f"\n**{paper}**\n")[2].partition("\n**")[0]
    own = [row.split(" | ") for row in (RESULTS / page).read_text().splitlines() if row.count(" | ") == 2]
    judged: dict[str, set[str]] = {}
    for *_, claim, verdicts, _ in (row.split(" | ") for row in section.splitlines() if verdict.search(row)):
        words = re.sub(r"^at \.\.\. pulls | on (\.\.\.|landmine)", "", claim.removeprefix("| "))
        if "*our control:*" not in words:
            (here,) = [row[2] for row in own if words in row[1]]
            judged[here] = judged.get(here, set()) | set(verdict.findall(verdicts))
    assert len(judged) >= 2
    for here, verdicts in judged.items():
        assert set(verdict.findall(here)) == verdicts


# ---- every published page is what its kept numbers make of it

MADE = [page for page in sorted(RESULTS.glob("*.md")) if "<!-- end -->" in page.read_text()]


@pytest.mark.parametrize("page", MADE, ids=lambda page: page.stem)
def test_a_published_page_is_what_its_kept_numbers_make_of_it(page: Path, tmp_path, monkeypatch) -> None:
    """Tables, verdicts and numbers; how a picture looks depends on the machine's fonts."""
    monkeypatch.setattr(result_pages, "draw", lambda *_: b"")
    beside, copy = page.with_suffix(""), tmp_path / page.name
    if beside.is_dir():
        shutil.copytree(beside, tmp_path / page.stem)
    copy.write_text(page.read_text())
    refresh(tmp_path / "nowhere", copy)
    assert copy.read_text() == page.read_text()
    for numbers in beside.glob("*.csv"):
        assert (tmp_path / page.stem / numbers.name).read_bytes() == numbers.read_bytes()


def test_an_arm_that_is_missing_is_named() -> None:
    kept_families = json.loads((RESULTS / "client-families/client-families.json").read_text())["overall"]
    family = next(one for one in read(kept_families) if one.purpose == "reporting")
    del family.entries[str(family.label("default", 1.0))]
    with pytest.raises(pb.ConfigurationError, match="'epsilon 1' was not played"):
        again(kept([family]))


def test_the_study_plays_every_family_at_every_aim():
    chosen = study("client-families", "paper")
    reporting = [*third_families.FAMILIES, *later_families.MANY.families]
    choosing = [*later_families.FEW.families, *client_families.FAMILIES]
    for purpose, families in (("reporting", reporting), ("choosing", choosing)):
        assert [panel.title for panel in chosen.panels if panel.purpose == purpose] == families
    for panel in chosen.panels:
        arms = {(arm.x, arm.control == "zeroed") for arm in panel.arms if arm.series == "default"}
        assert arms == {(aim.epsilon, aim.zeroed) for aim in AIMS} | {(0.5, True), (8.0, True)}  # more than is shown
        assert sum(arm.series == "alone" for arm in panel.arms) == 4
        assert ALONE in [arm.label for arm in panel.arms]
    entries = read(json.loads((RESULTS / "client-families/client-families.json").read_text())["overall"])
    for measure in MEASURES:  # chosen where nothing is reported
        arms = {
            label: geometric([one.ratio(label, measure) for one in entries if one.purpose == "choosing"])
            for label in entries[0].alone
        }
        assert min(arms, key=lambda label: arms[label].value) == ALONE
    many = {p.title for p in chosen.panels if p.arms[0].problem["n_clients"] == 200}
    assert many == set(later_families.MANY.families)


def setting(kind: str, *utilities: float) -> dict:
    return {"kind": kind, "utility": np.mean(utilities), "by_seed": dict(enumerate(utilities))}


def test_the_gain_is_over_the_best_local_engine_and_paired_over_seeds() -> None:
    weak, strong = setting("local", 0.6, 0.7), setting("local", 0.65, 0.75)
    assert best_alone([weak, strong]) is strong
    middle, half = gain(setting("private", 0.68, 0.78), strong)
    assert (middle, half) == (pytest.approx(0.03), pytest.approx(0.0, abs=1e-12))
    assert gain(setting("private", 0.68, 0.76), strong)[1] == pytest.approx(0.01)


# ---- cells that are played again give what is stored with the pages, to five digits on any machine

# Of every player, baseline and problem of the experiments that has one.
CHEAP = [
    ("f-lcb-smooth", "printed", ""),
    ("f-lcb-smooth", "certified", ""),
    ("f-lcb-nonsmooth", "certified", ""),
    ("f-lcb-inexact", "certified", ""),
    ("f-lcb-inexact", "certified in expectation", ""),
    ("f-lcb-noisy", "printed", "clipped-SSTM: smooth, infinite variance"),
    ("f-lcb-noisy", "printed", "R-clipped-SSTM: strongly convex, infinite variance"),
    ("f-lcb-noisy", "certified, in expectation", "Lan 4.6: strongly convex, normal noise"),
    ("dp-fts-de-2a", "FTS of 2020", ""),
    ("dp-fts-de-7b", "FTS-DE, 1-p = 1/t", ""),
    ("thompson-ablation", "DE start, uniform steps", ""),
    ("thompson-ablation", "ours, not private", ""),
    ("fed-pne", "Fed-PNE", "covid"),
    ("fed-pne", "VHCT", ""),
    ("fed-pne", "HCT", ""),
    ("fed-pne", "HCT, re-splitting", ""),
    ("fed-pne", "Fed1-UCB", ""),
    ("fed-pne", "random search", ""),
    ("pf-pne", "PF-PNE, warm", ""),
    ("pf-pne", "PF-PNE, optimistic", ""),
    ("parallel", "4 players", ""),
    ("returned", "10 players, 1000 pulls", ""),
    pytest.param("long-histories", "100 inducing points", "", marks=pytest.mark.slow),
    ("many-evaluations", "alone, HCT", ""),
    ("leaderboard", "SharedPrior, epsilon 2", ""),
    ("leaderboard", "SharedPrior, epsilon 2", "nearest neighbours, mixed"),
    ("leaderboard", "central model, epsilon 2", ""),
    ("leaderboard", "Sobol search, epsilon 2", "kernel ridge"),
]
FAMILIES_ONLY = {"records", "records-common", "peers"}  # keep ratios by family, no values by seed
# Stored by 0.1.0, other today, and marked on their page: human activity, digits by writer, and landmine with samples of
# a fixed size.
STALE = {f"dp-fts-de-{name}": {"activity"} for name in ("3b", "3e", "8", "12b")}
STALE |= {f"dp-fts-de-{name}": {"activity", "writers"} for name in ("9", "10")}
STALE |= {"dp-fts-de-few-points": {"activity, log scales"}, "dp-fts-de-11": {"landmine"}}
KEPT = [n for n in titles() for f in RESULTS.iterdir() if (f / f"{n.removeprefix(f'{f.name}-')}.json").exists()]


@pytest.mark.parametrize(("name", "label", "title"), CHEAP)
def test_a_cheap_cell_gives_what_is_stored(name, label, title, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # tables are computed, by today's code
    panels = (panel for panel in study(name, "paper").panels if title in ("", panel.title))
    panel, arm = next((panel, arm) for panel in panels for arm in panel.arms if arm.label == label)
    found = one.again(name, panel, arm, max(one.stored(name, panel)[arm.label]))
    assert found.kept is not None
    assert set(found.kept.figures) <= set(found.figures)  # of families two are kept
    assert found.differing == []


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_a_cell_of_every_stored_panel_gives_what_is_stored(name: str) -> None:
    try:
        cells = list(one.every([name]))
    except pb.ConfigurationError as error:
        pytest.skip(str(error))  # real data that is not at hand
    assert bool(cells) == (name not in FAMILIES_ONLY)
    differing = {cell.panel for cell in cells if cell.differing}
    assert differing == STALE.get(name, set())


# ---- what is spent


def test_a_row_says_what_is_planned_what_it_costs_and_how_often_it_differs(monkeypatch, capsys) -> None:
    monkeypatch.setattr(spend, "CLIENTS", (12, 200))
    monkeypatch.setattr(spend, "SEEDS", 2)
    monkeypatch.setattr(spend, "EVALUATIONS", (22, 500, 5_000))
    monkeypatch.setattr(spend, "ALGORITHMS", {"pf-pne": spend.ALGORITHMS["pf-pne"]})
    spend.main()
    assert capsys.readouterr().out.splitlines() == [
        "| algorithm | clients | 22 evaluations | 500 evaluations | 5,000 evaluations |",
        "|---|---|---|---|---|",
        "| pf-pne | 12 | 0/6, 0; 0/2 | 0/7, 0; 0/2 | 0/7, 0 |",
        "| pf-pne | 200 | 6/7, 2; 2/2 | 6/7, 2; 2/2 | 6/7, 2 |",
    ]
