"""The record-level study: what is drawn of its families, and its plays."""

import numpy as np
import pytest

import privbo as pb
from experiments.outcome import Task, make
from experiments.plays.records import play
from experiments.problems.record_families import TABLES
from experiments.problems.records import sites


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


def task(privacy=None, control=None, of="own surface", seed=0, family="shift plans", n_sites=5, **changes):
    problem = {"type": "experiments.problems.records:sites", "family": family, "n_sites": n_sites, "n_records": 1000}
    hidden = {"delta": 1e-6, "unit": "record", "protects": "records", "noise": "simulation"}
    return Task(
        problem=problem, algorithm=pb.MultiTask(**{"front": 4, "release_when": "always"} | changes), control=control,
        privacy=pb.NoPrivacy() if privacy is None else pb.Privacy(epsilon=privacy, **hidden), rounds=22, seed=seed,
        options={"of": of},
    )  # fmt: skip


def test_arms_share_a_start_and_sharing_beats_being_alone_while_noise_does_no_harm():
    arms = {
        "alone": play(task(is_shared=False)),
        "shared": play(task(privacy=2.0)),
        "noise": play(task(privacy=2.0, control="zeroed")),
        "exact": play(task()),
    }
    starts = {tuple(one.curves["loss"][:4]) for one in arms.values()}
    assert len(starts) == 1
    assert {len(one.curves["loss"]) for one in arms.values()} == {22}
    alone = arms["alone"].figures["mean"]
    assert arms["shared"].figures["mean"] < 0.9 * alone
    assert arms["exact"].figures["mean"] < 0.95 * alone
    assert arms["noise"].curves == arms["alone"].curves


def test_one_common_setting_is_judged_on_the_mean_surface():
    given = make(task().problem, 0)
    mean = given.values.mean(axis=0)
    common = play(task(privacy=8.0, of="mean surface", front=22, goal="common"))
    own = play(task(of="mean surface", is_shared=False))
    assert common.figures["end"] < 0.05
    assert own.figures["end"] == pytest.approx(np.mean(own.curves["end by client"]), abs=1e-4)
    assert len({*common.curves["end by client"]}) == 1
    assert min(own.curves["end by client"]) >= 0.01 > ((mean.max() - mean) / np.ptp(mean)).min()
