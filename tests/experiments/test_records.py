"""The record-level study: what is drawn of its families, its plays, and how a site is counted."""

import numpy as np
import pytest

import privbo as pb
from experiments.outcome import Outcome, make
from experiments.plays.records import play
from experiments.problems.record_families import TABLES
from experiments.problems.records import sites
from experiments.records_page import overall
from experiments.study import Arm, Panel
from tests.experiments.worlds import task as cell


def test_unlike_sites_have_the_same_values_in_other_places():
    alike = sites(0, "shift plans", n_sites=5, n_records=200)
    unlike = sites(0, "shift plans", n_sites=5, n_records=200, unlike=True)
    np.testing.assert_array_equal(np.sort(alike.values), np.sort(unlike.values))
    assert np.corrcoef(alike.values)[0, 1:].min() > 0.9 > np.corrcoef(unlike.values)[0, 1:].max()
    assert alike.losses.min(axis=1).tolist() == [0.0] * 5
    assert alike.losses.max(axis=1).tolist() == [1.0] * 5


def test_an_unknown_family_is_refused():
    with pytest.raises(pb.ConfigurationError, match="family='tea'"):
        sites(0, "tea", n_sites=5, n_records=200)
    assert TABLES.surfaces("shift plans").shape == (3, 30, 400)


PROBLEM = {"type": "experiments.problems.records:sites", "family": "shift plans", "n_sites": 5, "n_records": 1000}


def played(epsilon=None, control=None, options=None, **changes):
    hidden = {"delta": 1e-6, "unit": "record", "protects": "records", "noise": "simulation"}
    privacy = {} if epsilon is None else {"privacy": pb.Privacy(epsilon=epsilon, **hidden)}
    algorithm = pb.MultiTask(**{"front": 4, "release_when": "always"} | changes)
    options = {"of": "own surface"} | (options or {})
    return play(cell(PROBLEM, algorithm, control=control, rounds=22, seed=0, options=options, **privacy))


def test_arms_share_a_start_and_sharing_beats_being_alone_while_noise_does_no_harm():
    arms = {
        "alone": played(is_shared=False),
        "shared": played(2.0),
        "noise": played(2.0, "zeroed"),
        "exact": played(),
    }
    starts = {tuple(one.curves["loss"][:4]) for one in arms.values()}
    assert len(starts) == 1
    assert {len(one.curves["loss"]) for one in arms.values()} == {22}
    alone = arms["alone"].figures["mean"]
    assert arms["shared"].figures["mean"] < 0.9 * alone
    assert arms["exact"].figures["mean"] < 0.95 * alone
    assert arms["noise"].curves == arms["alone"].curves


def test_one_common_setting_is_judged_on_the_mean_surface():
    mean = make(PROBLEM, 0).values.mean(axis=0)
    common = played(8.0, options={"of": "mean surface"}, front=22, goal="common")
    own = played(options={"of": "mean surface"}, is_shared=False)
    assert common.figures["end"] < 0.05
    assert own.figures["end"] == pytest.approx(np.mean(own.curves["end by client"]), abs=1e-4)
    assert len({*common.curves["end by client"]}) == 1
    assert min(own.curves["end by client"]) >= 0.01 > ((mean.max() - mean) / np.ptp(mean)).min()


def test_sites_that_know_the_mean_surface_are_ahead_of_all_that_releases_tell():
    assert played(options={"informed": True}).figures["mean"] < 0.8 * played().figures["mean"]


def test_a_site_counts_once_by_its_average_over_the_seeds_that_draw_it():
    """Site 3 is drawn by both seeds: (.2 + .4) / 2 of (.4 + .8) / 2 alone; sites 1 and 2 have .1 of .1, .3 of .2."""
    curves = {
        "n=1000, epsilon 1": ([0.1, 0.2], [0.4, 0.3]),
        "n=1000, alone, front of 4": ([0.1, 0.4], [0.8, 0.2]),
        "n=1000, alone, front of 6": ([0.1, 0.1], [0.1, 0.1]),
    }
    numbers = ([1.0, 3.0], [3.0, 2.0])

    def outcome(regrets, drawn):
        return Outcome(curves={"mean by client": regrets, "end by client": regrets, "number by client": drawn})

    found = {label: dict(enumerate(map(outcome, each, numbers))) for label, each in curves.items()}
    arms = tuple(Arm(label=label, problem={}, series="alone" if "alone" in label else "shared") for label in curves)
    panel = Panel(title="tea, 3 sites", arms=arms, seeds=2, columns={}, purpose="reporting")
    kept = overall([(panel, found)]).summary["compared"]
    assert [(one["arm"], one["pairs"]) for one in kept] == [("n=1000, epsilon 1", 3)] * 2
    for one in kept:
        assert one["ours"] == pytest.approx((0.1 + 0.3 + 0.3) / 3)
        assert one["alone"] == pytest.approx((0.1 + 0.2 + 0.6) / 3)
        assert (one["best"], one["worse"]) == (pytest.approx(0.1), pytest.approx(1 / 3))
