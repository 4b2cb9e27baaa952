"""Sweeps: paired differences, recommendations, resuming, private data, and a real Dask scheduler."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency
from accountant.ledger import Ledger
from accountant.tight.numerical import epsilon_table
from privbo.cli.compare import cell_progress
from privbo.cli.terminal import render
from privbo.comparisons.cells import Cell, CellResult, Reuse, setting_of
from privbo.comparisons.comparison import Comparison, recommend
from privbo.comparisons.sweep import PrivateRun, SweepResult, compare, run_sweep
from privbo.comparisons.sweep_file import read_sweep
from privbo.comparisons.verdict import Setting, difference
from privbo.reports.comparison import document, figures, markdown, numbers, table
from privbo.runs.code import CodeKey
from privbo.runs.record import level
from privbo.runs.spec import Spec, read_spec
from tests.conformance.cases import without_none
from tests.reports.runs import small_run

ROOT = Path(__file__).parent.parent.parent
PROBLEM = {"factory": "tests.crash_problem:problem"}
ALGORITHM = {"type": "dp-fts-de", "n_features": 8}
SMALL = {"name": "small", "rounds": 3, "problem": PROBLEM, "algorithm": ALGORITHM, "privacy": {"epsilon": 2.0}}


def sweep_of(**tables) -> str:
    """A sweep's file: two seeds of the small problem, but for the keys and tables that are named."""
    return tomli_w.dumps(without_none({"name": "levels", "seeds": 2, "data": "public", "base": SMALL} | tables))


LEDGER = {"population": "ward", "path": "{path}"}
PUBLIC = sweep_of(grid={"privacy.epsilon": [1.0, 4.0]})
PRIVATE = sweep_of(data="private", grid={"privacy.epsilon": [1.0, 2.0]}, ledger=LEDGER) + "{bound}"
LEVELS = ["epsilon=1.0", "epsilon=4.0"]
NOISE_ONLY = [f"noise-only control, {level}" for level in LEVELS]
ARMS = [*LEVELS, "local only", "non-private", *NOISE_ONLY]
# Names of its cells: one that changes, because a setting was added, would charge people again for what they paid.
PAID = {"5_65dbe8f4b5976cbf", "5_745074744b5d3767", "5_e8a3282eadbe1ee4", "5_f05ff56145431b5d"}


def swept(folder: Path, text: str | None = None, **how) -> SweepResult:
    """Run a sweep, in this process unless something else is asked for; a text is its file's from now on."""
    path = folder / "sweep.toml"
    if text is not None:
        path.write_text(text)
    return run_sweep(read_sweep(path), folder / "out", **{"jobs": 1} | how)


def setting(label, finals, epsilon=1.0, kind="private", strict=None):
    curves, seeds = np.array(finals)[:, None] * np.ones(3), tuple(range(len(finals)))
    costs = {"epsilon": epsilon, "delta": 1e-5, "strict_epsilon": strict or epsilon, "strict_delta": 1e-6}
    made = {"releases": 2, "evaluations": np.full(len(finals), 22.0), "valued": np.full_like(curves, 20.0)}
    return Setting(label=label, kind=kind, **costs, overrides={}, seeds=seeds, curves=curves, **made)


def controls(alone, noise) -> tuple[Setting, Setting]:
    """The clients alone, and the noise alone."""
    return setting("alone", alone, 0.0, "local"), setting("noise", noise, kind="zeroed")


def comparison(*settings: Setting, data: str = "public") -> Comparison:
    """Settings side by side; the first of either control is every private setting's own."""
    local, zeroed = (next((s.label for s in settings if s.kind == kind), "") for kind in ("local", "zeroed"))
    own = {"alone": local, "noise_only": zeroed}
    settings = tuple(dataclasses.replace(s, **own) if s.kind == "private" else s for s in settings)
    return Comparison(name="c", data=data, measure="final", settings=settings)


def test_paired_differences_against_scipy() -> None:
    from scipy.stats import ttest_rel

    generator = np.random.default_rng(0)
    first, second = generator.normal(size=9), generator.normal(size=9) + 0.3
    found = difference(setting("a", first.tolist()), setting("b", second.tolist()), "final")
    assert found.mean == pytest.approx((first - second).mean())
    assert found.p_value == pytest.approx(ttest_rel(first, second).pvalue)
    assert difference(setting("a", [1.0]), setting("b", [2.0]), "final").p_value is None


def test_recommendation_tells_a_lead_from_noise() -> None:
    own = controls([0.1, 0.21, 0.3], [0.1, 0.2, 0.31])
    sharing = setting("a", [0.5, 0.6, 0.7]), setting("b", [0.4, 0.5, 0.61]), setting("dear", [1.0, 1.1, 1.19], 3.0)
    clear = comparison(*sharing, *own)
    found = recommend(clear, 2.0)
    assert (found.label, found.beyond_noise) == ("a", True)
    assert found.lead.second == "b"
    noisy = comparison(setting("a", [1.5, 1.9, 1.1]), setting("b", [1.6, 1.2, 1.6]), *own)
    assert (recommend(noisy, 2.0).label, recommend(noisy, 2.0).beyond_noise) == ("a", False)
    assert recommend(clear, 3.0).label == "dear"
    dear = recommend(clear, 0.5)
    assert (dear.label, dear.epsilon) == ("alone", 0.0)
    assert "epsilon=0.5 at delta 1e-06; the cheapest, a, costs 1 there" in dear.because
    with pytest.raises(pb.ConfigurationError, match="no epsilon covers"):
        recommend(comparison(*clear.settings, data="private"), 2.0)


def test_what_is_recommended_helped_by_the_table_of_all_settings() -> None:
    """Adjusted for those within the budget alone, p was .008 of .06."""
    gains = [[0.5, 0.8, 0.2, 0.9, 0.6], *np.random.default_rng(1).normal(scale=0.3, size=(30, 5)).tolist()]
    sharing = [setting(f"{index}", gain, 1.0 + index) for index, gain in enumerate(gains)]
    found = comparison(*sharing, *controls([0.0] * 5, [0.0] * 5))
    chosen, (first, *_) = recommend(found, 1.0), found.verdicts()
    assert comparison(*found.settings[:1], *found.settings[-2:]).verdicts()[0].answer == "helped"
    assert (chosen.label, chosen.verdict, first.answer) == ("alone", first, "made no difference beyond noise")


def test_settings_are_compared_at_one_safe_delta_whatever_delta_they_ask_for() -> None:
    cheap_only_at_its_own_delta = dataclasses.replace(setting("loose", [0.9, 0.9], 1.573, strict=8.385), delta=0.3)
    own = controls([0.1, 0.21], [0.11, 0.2])
    both = comparison(cheap_only_at_its_own_delta, setting("tight", [0.5, 0.6], 1.9, strict=2.1), *own)
    frontier = figures(both)["frontier"]
    assert (frontier.x.label, "at delta 1e-06" in str(table(both).headings)) == ("epsilon at delta 1e-06", True)
    assert [list(series.x) for series in frontier.series[:2]] == [[2.1], [8.385]]
    one = figures(comparison(dataclasses.replace(setting("safe", [0.5, 0.6], 1.9, strict=1.2), delta=1e-7)))["frontier"]
    assert (one.x.label, list(one.series[0].x)) == ("epsilon at delta 1e-07", [1.9])
    found = recommend(comparison(cheap_only_at_its_own_delta, setting("tight", [0.5, 0.6], 1.9), *own), 2.0)
    assert (found.label, found.epsilon, found.delta) == ("tight", 1.9, 1e-6)
    free = comparison(setting("shares", [0.5, 0.61, 0.7], 0.0), *controls([0.1, 0.2, 0.31], [0.1, 0.2, 0.33]))
    free = dataclasses.replace(free, recommendation=recommend(free, 2.0))
    told = "shares</b> (epsilon 0 at delta 1e-06)" in document(free).render()
    assert (told, "recommended: shares (epsilon 0 at delta 1e-06)" in list(map(str, render(free)))) == (True, True)
    dear = recommend(comparison(cheap_only_at_its_own_delta, *own), 2.0)
    assert "at delta 1e-06; the cheapest, loose, costs 8.385 there" in dear.because
    others = dataclasses.replace(setting("few", [0.5, 0.6]), strict_delta=1e-3)
    with pytest.raises(pb.ConfigurationError, match="no safe delta in common"):
        recommend(comparison(setting("many", [0.5, 0.6]), others, *own), 2.0)


def test_tables_are_escaped() -> None:
    evil = comparison(setting("a|b & c_d", [0.5, 0.6], strict=9.0), setting("none", [0.5, 0.6], None, "non-private"))
    assert "a\\|b & c_d" in markdown(evil)
    assert r"a|b \& c\_d" in table(evil).latex()
    assert all(words in markdown(evil) for words in ("infinite", "epsilon at delta 1e-06", "| 9 |"))
    exact = dataclasses.replace(evil.settings[0], noise_multipliers=(1.23456789, 2.0))
    rows = numbers(comparison(exact, evil.settings[1])).csv().splitlines()
    assert len(rows) == 3
    assert rows[0].startswith("setting,kind,epsilon")
    assert '"1.23456789, 2.0"' in rows[1]
    assert rows[2].startswith("none,non-private,inf,1e-05,inf,1e-06,")


def kept(folder: Path) -> dict[Path, int]:
    """When each cell of a sweep was written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "out" / "cells").iterdir()}


def test_a_sweep_and_its_frame_and_figure(tmp_path) -> None:
    done: list[str] = []
    found = swept(tmp_path, PUBLIC, on_cell=lambda cell, _: done.append(cell.label))
    assert sorted(done) == sorted(ARMS * 2)
    assert "seeded" in str(found.to_dict()["noise"])
    assert [s.epsilon for s in found.comparisons[0].private] == pytest.approx([1.0, 4.0], rel=1e-3)
    before = kept(tmp_path)
    assert swept(tmp_path).comparisons[0].rows() == found.comparisons[0].rows()
    assert kept(tmp_path) == before
    assert list(numbers(found.comparisons[0]).frame()["setting"]) == ARMS
    assert set(numbers(found.comparisons[0]).frame()["evaluations"]) == {13.0}  # ten first points, three rounds
    assert len(figures(found.comparisons[0])["frontier"].series) == 4
    verdicts = found.comparisons[0].verdicts()
    assert [(v.alone, v.noise_only) for v in verdicts] == [("local only", name) for name in NOISE_ONLY]
    other = PUBLIC.replace("n_features = 8", "n_features = 10").replace("seeds = 2", "seeds = 1\ncontrols = []")
    swept(tmp_path, other)
    assert len(kept(tmp_path)) > len(before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 0}, "seeds"),
        ({"first_seed": -1}, "first_seed=-1: "),
        ({"grid": {"privacy.epsilon": 1.0}}, "must be a list"),
        ({"grid": {"rounds.x": [1.0]}}, "not a table"),
        ({"grid": {"privacy.epsilon": [1.0, -4.0]}}, "epsilon=-4"),
        ({"ledger": LEDGER}, "charges nothing"),
        ({"data": "secret"}, "sweep.data='secret'"),
        ({"data": None}, r'ledger.*say data = "public"'),
        ({"config": "x.toml"}, "exactly one"),
    ],
)
def test_bad_sweeps_and_settings_are_refused_before_the_first_cell(tmp_path, change, words):
    with pytest.raises(pb.ConfigurationError, match=words):
        swept(tmp_path, sweep_of(**{"grid": {"privacy.epsilon": [1.0, 4.0]}} | change))
    assert not (tmp_path / "out").exists()


def test_what_settings_warn_of_is_said_by_the_sweep_and_not_by_its_cells(tmp_path) -> None:
    with pytest.warns(UserWarning, match="follows the papers") as said:
        swept(tmp_path, PUBLIC.replace("epsilon = 2.0", 'epsilon = 2.0\ndelta = "paper"'))
    own = [warning for warning in said if "follows the papers" in str(warning.message)]
    assert len(own) == 2  # private settings; of cells there are twice as many


def test_a_sweep_over_private_data_is_a_composition(tmp_path, monkeypatch) -> None:
    people, out = tmp_path / "people.sqlite", tmp_path / "out"
    content = PRIVATE.format(path="people.sqlite", bound="epsilon = 20.0\ndelta = 1e-5\n")
    monkeypatch.chdir(ROOT)  # a ledger's file is the one that the sweep's file names, wherever workers stand
    found = swept(tmp_path, 'controls = ["local", "zeroed"]\n' + content, jobs=2)  # two processes charge one ledger
    assert {home.name for home in (out / "private" / "cells").iterdir() if home.is_dir()} == PAID
    with Ledger.open(people) as ledger:
        assert len({entry.run for entry in ledger.entries()}) == 4
        assert {entry.noise_source for entry in ledger.entries()} == {"secure"}
        assert ledger.verify().ok
        charged, plans = len(ledger.entries()), ledger.committed()
    noise_only = ["noise-only control, epsilon=1.0", "noise-only control, epsilon=2.0"]  # charged to nobody
    assert [(v.noise_only, v.because) for v in found.comparisons[0].verdicts()] == [(name, "") for name in noise_only]
    assert "evaluations" not in json.dumps(found.comparisons[0].exportable().to_dict())
    total = found.comparisons[0].total
    assert total.epsilon == min(epsilon_table(plans, 1e-5, adjacency=Adjacency.ZERO_OUT).values()) > 2.0
    assert "declared before the first release of any" in total.rule
    assert {p.name for p in out.iterdir()} == {"private"}
    assert swept(tmp_path).comparisons[0].rows() == found.comparisons[0].rows()
    assert total.releases == 12
    with Ledger.open(people) as ledger:
        assert len(ledger.entries()) == charged


def test_a_population_that_cannot_pay_for_all_cells_stops_the_sweep_before_the_first_one(tmp_path) -> None:
    """Nor may all together pass a policy that each alone keeps; clients alone, who release nothing, count not."""
    policy = "epsilon = 20.0\ndelta = 1e-5\n[base.policy]\nepsilon = 2.5\ndelta = 1e-5\n"
    for bound, words in (
        ("epsilon = 2.5\ndelta = 1e-5\n", "4 cells over private data"),
        (policy, r"and policy.epsilon=2\.5"),
    ):
        with pytest.raises((BudgetExceeded, pb.PolicyError), match=words):
            swept(tmp_path, PRIVATE.format(path=tmp_path / "people.sqlite", bound=bound))
        assert not list((tmp_path / "out").rglob("config.json"))
        assert not (tmp_path / "people.sqlite").exists()


def test_every_cell_is_reserved_before_the_first_is_played_and_a_crash_costs_nothing(tmp_path) -> None:
    people = tmp_path / "people.sqlite"

    def stop(cell: Cell, _: CellResult) -> None:
        if cell.charges:
            raise KeyboardInterrupt

    asked = []
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, PRIVATE.format(path=people, bound=""), on_cell=stop, agree=asked.append)
    with Ledger.open(people) as ledger:
        assert len(ledger.book().reservations) == 4 > len({entry.run for entry in ledger.entries()})
    assert (len(asked), asked[0].total.runs) == (1, 4)
    found = swept(tmp_path, agree=asked.append)
    assert len(asked) == 1
    assert found.comparisons[0].total == asked[0].total
    with Ledger.open(people) as ledger:
        assert (len(ledger.book().reservations), len(ledger.entries())) == (4, 12)


def test_a_worker_without_the_folder_of_the_sweep_runs_nothing(tmp_path) -> None:
    table = {"ledger": {"path": str(tmp_path / "people.sqlite"), "population": "ward"}}
    with pytest.raises(pb.ConfigurationError, match="not on this machine"):
        PrivateRun(table=SMALL | table, home=tmp_path / "cells" / "0")()
    assert list(tmp_path.iterdir()) == []


def test_a_cell_whose_run_is_gone_is_another_run_and_paid_for_again(tmp_path) -> None:
    people = tmp_path / "people.sqlite"
    swept(tmp_path, PRIVATE.format(path=people, bound=""))
    with Ledger.open(people) as ledger:
        plans = len(ledger.book().reservations)
    cells = tmp_path / "out" / "private" / "cells"
    lost = next(path for path in sorted(cells.iterdir()) if path.is_dir())
    shutil.rmtree(lost)
    next(cells.glob(f"{lost.name}-*.json")).unlink()
    found = swept(tmp_path)
    with Ledger.open(people) as ledger:
        assert len(ledger.book().reservations) == plans + 1 == found.comparisons[0].total.runs
    assert "odometer" in found.comparisons[0].total.rule


def test_finished_runs_side_by_side(tmp_path) -> None:
    simulated = {"rounds": 2, "privacy": pb.Privacy(epsilon=2.0, noise="simulation")}
    runs = [small_run(tmp_path / f"{seed}", seed=seed, **simulated) for seed in range(2)]
    other = small_run(tmp_path / "other", seed=0, rounds=2, privacy=pb.Privacy(epsilon=1.0), name="other")
    found = compare([*runs, tmp_path / "other"])
    assert [len(s.seeds) for s in found.settings] == [2, 1]
    assert found.data == "private"
    assert found.seeded == (found.settings[0].label,)
    assert f"no guarantee ({found.settings[0].label})" in "".join(map(str, render(found)))
    assert compare(runs, data="simulated").seeded is True
    assert compare(runs, data="simulated").exportable().shows_utility
    assert not found.exportable().shows_utility
    assert found.differences()[0].n_seeds == 1
    assert other.epsilon() == found.settings[1].epsilon
    for same in (tmp_path / "0", small_run(tmp_path / "again", seed=0, **simulated)):  # as if it were another draw
        with pytest.raises(pb.ConfigurationError, match="given twice, which would count as two seeds"):
            compare([runs[0], same])
    assert compare(tmp_path / "0").settings[0].seeds == compare(runs[0]).settings[0].seeds == (0,)
    absences = enumerate((pb.Attendance(dropout=1.0), pb.Attendance(dropout=1.0, seed=5)))
    away = [small_run(tmp_path / f"away-{s}", seed=s, attendance=absent, **simulated) for s, absent in absences]
    assert [len(s.seeds) for s in compare([*runs, *away]).settings] == [2, 2]
    for name, value in (("data", "Private"), ("data", ["private"]), ("measure", "mean"), ("measure", "last regret")):
        with pytest.raises(pb.ConfigurationError, match=re.escape(f"{name}={value!r} must be one of '")):
            compare(runs, **{name: value})
    for wrong in ({"data": "Public"}, {"measure": "mean"}):
        with pytest.raises(pb.ConfigurationError, match="must be one of"):
            dataclasses.replace(found, **wrong)


@pytest.mark.parametrize(("epsilon", "words"), [(0.0, "epsilon 0 at"), (None, "epsilon infinite at")])
def test_a_price_of_zero_is_not_taken_for_an_infinite_one(epsilon, words, capsys):
    cell = Cell(label="a", seed=0, settings="a", code=CodeKey(parts={}), folder=Path(), work=lambda: made)
    made = CellResult(curves={}, epsilon=epsilon, delta=1e-5, releases=1)
    with cell_progress() as (on_cell, on_reuse):
        on_reuse(Reuse(cells=1, reused=0), [cell])
        on_cell(cell, made)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("dear", [2.0, None])
def test_a_setting_costs_what_its_most_expensive_run_costs(dear: float | None) -> None:
    """Runs of one configuration differ in cost where something else was published from one of them."""
    costs = [CellResult(curves={}, epsilon=epsilon, strict_epsilon=epsilon) for epsilon in (1.0, dear, 1.0)]
    found = setting_of(dict(enumerate(costs)), label="a", kind="private", curve="score")
    assert (found.epsilon, found.strict_epsilon) == (dear, dear)


def test_runs_of_other_lengths_are_level() -> None:
    """In some rounds of PF-PNE no client has a pull left: the values decide in how many."""
    rows = level([np.array([np.nan, 2.5, 4.5]), np.array([1.0, 2.0]), np.empty(0)])
    np.testing.assert_array_equal(rows, [[np.nan, 2.5, 4.5], [1.0, 2.0, 2.0], [np.nan] * 3])


def test_resumed_without_redoing_finished_cells(tmp_path) -> None:
    """A cell is on disk, whole, before the next one begins: whatever kills a sweep costs it the one under way."""

    def killed(*_: object) -> None:
        if len(kept(tmp_path)) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, PUBLIC.replace("seeds = 2", "seeds = 2\ncontrols = []"), on_cell=killed)
    before, found, after = kept(tmp_path), swept(tmp_path), kept(tmp_path)
    assert (len(before), len(after)) == (3, 10)
    assert before.items() <= after.items()
    assert [len(s.seeds) for s in found.comparisons[0].settings] == [2] * 5


@pytest.mark.slow
def test_a_real_dask_scheduler_with_two_workers(tmp_path) -> None:
    """Two workers in processes of their own, addressed as a cluster's would be."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        found = swept(tmp_path, PUBLIC, scheduler=cluster.scheduler_address)
    assert [len(setting.seeds) for setting in found.comparisons[0].settings] == [2] * 6


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer(tmp_path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(pb.ConfigurationError, match="does not answer"):
        swept(tmp_path, PUBLIC, scheduler="tcp://127.0.0.1:1")


def test_the_repositorys_own_configurations_are_read() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    (sweep,) = (path for path in folder.glob("*.toml") if "[grid]" in path.read_text())
    read = [Spec.from_dict(one.content, trusted=True) for one in read_sweep(sweep).panels[0].settings]
    assert len(read) > 5  # one that names a setting which is gone is refused before
    assert {spec.rounds for spec in read} == {read_spec(folder / "quickstart.toml").rounds}


@pytest.mark.parametrize("first", [True, False])
def test_a_setting_without_any_value_is_shown_as_a_dash_and_never_chosen(first: bool) -> None:
    """Negative scores: 0 in place of no value led them all."""
    nothing = setting("no value", [np.nan] * 4, 0.0, "local")
    alone = setting("alone", [-0.5, -0.6, -0.4, -0.5], 0.0, "local")
    shared, noise = setting("shared", [np.nan] * 4), setting("noise", [-0.6, -0.7, -0.5, -0.6], 1.0, "zeroed")
    found = comparison(shared, *((nothing, alone) if first else (alone, nothing)), noise)
    chosen = recommend(found, 2.0)
    assert chosen.label == "alone"
    assert chosen.because.endswith("sharing is not known to help: no seed has a value")
    assert all(figure.svg("Settings.") for figure in figures(found).values())
    rows = dict(line.strip("| ").split(" | ", 1) for line in markdown(found).splitlines() if line.startswith("| "))
    assert "nan" not in rows["shared"] + rows["no value"]
    assert " | - | " in rows["shared"]
    everything = comparison(shared, nothing, setting("zeros", [np.nan] * 4, 1.0, "zeroed"))
    assert all(figure.svg("Settings.") for figure in figures(everything).values())
