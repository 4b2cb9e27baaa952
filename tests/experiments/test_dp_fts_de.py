import numpy as np
import pytest

import privbo as pb
from experiments import dp_fts_de
from experiments.__main__ import DP_FTS_DE
from experiments.arms import Arm
from experiments.dp_fts_de_benchmarks import Benchmark, benchmark
from experiments.dp_fts_de_figures import FIGURES, controls
from experiments.synthetic import GRID, GridFunctions, heterogeneous, homogeneous
from privbo.protocol.files import read_json
from privbo.protocol.messages import ClientHistory


def tiny(seed):
    return GridFunctions(np.stack([np.linspace(0, 1, GRID), np.linspace(1, 0, GRID), np.full(GRID, 0.5)]), seed)


TINY = Benchmark(
    name="tiny",
    clients=tiny,
    measure="simple regret",
    rounds=2,
    n_clients=3,
    paper=pb.DPFTSDE(n_regions=2, n_features=8, n_init=2, own=pb.OwnModel(n_features=16, fit_steps=2, n_candidates=64)),
    ours=pb.DPFTSDE(n_features=8, n_init=2, own=pb.OwnModel(n_features=16, fit_steps=2, n_candidates=64)),
    sample_rate=0.5,
    runs=2,
)


def test_every_figure_has_a_command_and_every_command_a_figure():
    assert set(DP_FTS_DE) == set(FIGURES)


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_arm_of_every_figure_can_be_planned_and_carries_its_controls(figure, scale):
    """Plans touch no data, so they need none of the data sets."""
    for name in FIGURES[figure].benchmarks:
        of = benchmark(name, scale)
        empty = pb.Problem(
            space={"a": pb.Real(0.0, 1.0), "b": pb.Real(0.0, 1.0)}, objective=lambda c, p: 0.0, n_clients=of.n_clients
        )
        arms = dp_fts_de.unique((*controls(of), *FIGURES[figure].arms(of)))
        labels = {arm.label for arm in arms}
        assert {"local TS", "DP-FTS-DE, sum zeroed", "DE start, uniform steps"} < labels
        assert {label for pair in FIGURES[figure].contrasts for label in pair} <= labels
        for arm in arms:
            requests = list(arm.algorithm.server(_setting(empty, of.rounds)).plan())
            alone = arm.label in ("local TS", "DE start, uniform steps")
            last = of.rounds if arm.algorithm.local_after is None else min(of.rounds, arm.algorithm.local_after)
            assert len(requests) == (0 if alone else last)
            if isinstance(arm.privacy, pb.Privacy):
                assert arm.privacy.noise == "simulation"
    assert len(labels) == len(arms)


def _setting(problem, rounds):
    from privbo.protocol.messages import Setting

    return Setting(space=problem.search_space, n_clients=problem.n_clients, rounds=rounds, public_seed=0)


def test_one_figure_from_end_to_end_is_resumed_and_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(dp_fts_de, "benchmark", lambda name, scale: TINY)
    plays = []
    monkeypatch.setattr(dp_fts_de, "play", lambda *a: plays.append(a) or real_play(*a))
    dp_fts_de.main(tmp_path / "dp-fts-de-5", figure="5", scale="small", seeds=None, jobs=1)
    first = (tmp_path / "dp-fts-de-5" / "summary.json").read_bytes()
    cells = sorted((tmp_path / "cells").iterdir())
    assert len(cells) == 2 * 7  # three controls and four arms, two seeds
    cells[0].unlink()
    dp_fts_de.main(tmp_path / "dp-fts-de-5", figure="5", scale="small", seeds=None, jobs=1)
    assert (tmp_path / "dp-fts-de-5" / "summary.json").read_bytes() == first
    assert sorted((tmp_path / "cells").iterdir()) == cells
    assert (tmp_path / "dp-fts-de-5" / "figure.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "dp-fts-de-5" / "table.md").read_text()
    assert table.startswith("`python -m experiments dp-fts-de-5 --scale small`")
    assert "local TS" in table
    found = read_json(tmp_path / "dp-fts-de-5" / "summary.json")["panels"]["tiny"]
    even, whole = (np.array(found[label]["by_seed"]) for label in ("FTS-DE, equal weights", "FTS-DE"))
    assert f"- FTS-DE, equal weights minus FTS-DE: {np.mean(even - whole):+.3f} ± " in table


def test_what_is_finished_can_be_shown_without_running_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(dp_fts_de, "benchmark", lambda name, scale: TINY)
    settings = {"figure": "5", "scale": "small", "jobs": 1}
    with pytest.raises(pb.ConfigurationError, match="two finished runs"):
        dp_fts_de.main(tmp_path / "dp-fts-de-5", **settings, seeds=None, finished_only=True)
    dp_fts_de.main(tmp_path / "dp-fts-de-5", **settings, seeds=3)
    arms = {arm.label: arm for arm in dp_fts_de.unique((*controls(TINY), *FIGURES["5"].arms(TINY)))}
    for label, seeds in (("FTS", (0, 1)), ("local TS", (0,))):
        for cell in dp_fts_de.cells_of(TINY, [arms[label]], seeds, tmp_path / "cells"):
            cell.path.unlink()
    monkeypatch.setattr(dp_fts_de, "play", lambda *_: pytest.fail("a run"))
    dp_fts_de.main(tmp_path / "dp-fts-de-5", **settings, seeds=3, finished_only=True)
    rows = read_json(tmp_path / "dp-fts-de-5" / "summary.json")["panels"]["tiny"]
    assert {label: row["seeds"] for label, row in rows.items()} == {
        label: [1, 2] if label == "local TS" else [0, 1, 2] for label in arms if label != "FTS"
    }
    assert rows["FTS-DE"]["minus"]["local TS"]["runs"] == 2


real_play = dp_fts_de.play


def test_a_cell_is_what_is_run_not_what_it_is_called():
    def name(arm, seed=0):
        return dp_fts_de.identity(TINY, arm, seed)

    arm = Arm(label="a", algorithm=TINY.paper, privacy=pb.NoPrivacy())
    assert name(arm) == name(Arm(label="b", algorithm=TINY.paper, privacy=pb.NoPrivacy()))
    others = [
        Arm(label="a", algorithm=TINY.paper, privacy=pb.NoPrivacy(), control="zeroed"),
        Arm(label="a", algorithm=TINY.paper.local(), privacy=pb.NoPrivacy()),
        Arm(label="a", algorithm=TINY.paper, privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation")),
    ]
    assert all(name(other) != name(arm) for other in others)
    assert name(arm, 1) != name(arm)


def test_best_so_far_against_a_plain_loop():
    losses = np.array([[0.5, 0.7, 0.4, np.nan], [0.9, 0.8, np.nan, 0.1]])
    history = ClientHistory(
        units=np.zeros((2, 4, 1)), values=-losses, rounds=np.array([-1, -1, 1, 2]), recommended=np.zeros((2, 1))
    )
    np.testing.assert_allclose(dp_fts_de.best_so_far(losses, history), [0.65, 0.6, 0.25])


def test_noise_alone_stands_in_for_arms_of_as_many_regions_only():
    def row(n_regions, releases=3):
        return {"n_regions": n_regions, "releases": releases, "noise_multiplier": 1.0 if releases else None}

    rows = {
        "local TS": row(2, 0),
        "DP-FTS-DE, sum zeroed": row(2),
        "DP-FTS-DE, P=2": row(2),
        "DP-FTS-DE, P=3": row(3),
        "DP-FTS-DE, P=1": row(1),
        "DP-FTS-DE, P=1, sum zeroed": row(1),
        "DP-FTS, q=0.1": row(1),
        "ours, epsilon 1": row(2),
        "ours, epsilon 2": row(2),
        "ours, epsilon 2, sum zeroed": row(2),
    }
    assert {label: dp_fts_de.zeroed_label(label, rows) for label in rows} == {
        **dict.fromkeys(rows, None),
        "DP-FTS-DE, P=2": "DP-FTS-DE, sum zeroed",
        "DP-FTS-DE, P=1": "DP-FTS-DE, P=1, sum zeroed",
        "DP-FTS, q=0.1": "DP-FTS-DE, P=1, sum zeroed",
        "ours, epsilon 2": "ours, epsilon 2, sum zeroed",
    }


def test_differences_are_paired():
    a = [{"seed": 1, "curve": [9.0, 1.0, 2.0]}, {"seed": 2, "curve": [9.0, 3.0, 4.0]}]
    b = [
        {"seed": 2, "curve": [0.0, 3.0, 3.0]},
        {"seed": 0, "curve": [8.0, 8.0, 8.0]},
        {"seed": 1, "curve": [0.0, 1.0, 1.0]},
    ]
    found = dp_fts_de.paired(a, b)
    assert found["runs"] == 2
    assert found["cumulative"] == {"mean": 1.0, "standard_error": 0.0}
    assert found["last"]["mean"] == 1.0


def test_printed_prices_are_the_papers():
    of = benchmark("landmine", "paper")
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.35, calibration="paper", noise="simulation")
    assert round(dp_fts_de.printed(of, privacy, 60), 2) == 15.17
    assert dp_fts_de.printed(of, pb.NoPrivacy(), 60) is None
    assert dp_fts_de.printed(of, privacy, 0) is None


def test_synthetic_clients_are_the_papers():
    same = homogeneous(3, n_clients=50)
    base = same.table.mean(axis=0)
    assert set(np.round(np.abs(same.table - np.median(same.table, axis=0)), 9).ravel()) <= {0.0, 0.02, 0.04}
    assert np.abs(base).max() < 1.05
    shared, mixed, independent = (heterogeneous(3, n_clients=30, alpha=a).table for a in (0.0, 0.7, 1.0))
    np.testing.assert_array_equal(shared, np.repeat(shared[:1], 30, axis=0))
    np.testing.assert_allclose(mixed, 0.7 * independent + 0.3 * shared, atol=1e-12)
    assert independent.min() == 0.0
    assert independent.max() == 1.0
    with pytest.raises(pb.ConfigurationError, match="alpha"):
        heterogeneous(3, alpha=1.5)


def test_synthetic_noise_has_the_papers_variance_and_regret_has_none():
    world = homogeneous(1, n_clients=2)
    units = np.full((2, 1), 0.25)
    drawn = np.array([world.observe(np.array([0, 1]), units) for _ in range(2000)]) - world.table[:, 250]
    # Standard deviation of a sample variance of 4,000 normals is 2.2 % of it; 12 % is more than five of them.
    assert drawn.var() == pytest.approx(0.01, rel=0.12)
    again = homogeneous(1, n_clients=2)
    assert again.observe(np.array([1]), units[:1])[0] == drawn[0, 1] + world.table[1, 250]
    history = ClientHistory(
        units=np.array([[[0.25]], [[0.75]]]), values=np.zeros((2, 1)), rounds=np.array([1]), recommended=units
    )
    expected = world.table.max(axis=1) - np.array([world.table[0, 250], world.table[1, 750]])
    np.testing.assert_allclose(world.losses(history)[:, 0], expected)
