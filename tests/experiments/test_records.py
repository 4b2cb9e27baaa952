"""The record-level study: what is drawn of its families, and its plays."""

import numpy as np
import pytest
from scipy.stats import norm

import privbo as pb
from experiments.outcome import Task, make
from experiments.plays.records import carried_on, noise_stddev, play
from experiments.problems.record_families import TABLES
from experiments.problems.records import sites
from experiments.records_page import Compared, again
from privbo.algorithms.multitask.posterior import Posterior, Releases, alone
from privbo.protocol.settings import dump_settings


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


def task(**options):
    problem = {"type": "experiments.problems.records:sites", "family": "shift plans", "n_sites": 5, "n_records": 1000}
    return Task(
        problem=problem, algorithm=None, privacy=pb.NoPrivacy(), control=None, rounds=22, seed=0, options=options
    )


def test_arms_share_a_start_and_sharing_beats_its_own_noise():
    arms = {
        "alone": play(task(arm="alone", points=4)),
        "shared": play(task(arm="shared", points=4, epsilon=2.0)),
        "noise": play(task(arm="noise", points=4, epsilon=2.0)),
        "exact": play(task(arm="exact", points=4)),
    }
    starts = {tuple(one.curves["loss"][:4]) for one in arms.values()}
    assert len(starts) == 1
    assert arms["shared"].figures["mean"] < 0.9 * arms["noise"].figures["mean"]
    assert arms["exact"].figures["mean"] < 0.9 * arms["alone"].figures["mean"]
    with pytest.raises(pb.ConfigurationError, match="arm='loud'"):
        play(task(arm="loud", points=4))


def test_noise_in_a_release_is_that_of_one_record():
    """Two points of 900 records at epsilon 1: mu, by its own formula, spends delta 1e-6."""
    mu = np.sqrt(2.0) / (900 * noise_stddev(2, 900, 1.0))
    assert norm.cdf(mu / 2 - 1 / mu) - np.exp(1.0) * norm.cdf(-mu / 2 - 1 / mu) == pytest.approx(1e-6, rel=1e-3)


def test_one_common_setting_is_judged_on_the_mean_surface():
    given = make(task().problem, 0)
    mean = given.values.mean(axis=0)
    common = play(task(arm="common", points=22, epsilon=8.0))
    own = play(task(arm="own", points=4))
    assert common.figures["end"] < 0.05
    assert own.figures["end"] == pytest.approx(np.mean(own.curves["end by client"]), abs=1e-4)
    assert len({*common.curves["end by client"]}) == 1
    assert min(own.curves["end by client"]) >= 0.01 > ((mean.max() - mean) / np.ptp(mean)).min()


def test_a_run_through_the_door_is_what_the_study_plays():
    given = sites(0, "shift plans", n_sites=5, n_records=200)
    problem = pb.Problem(
        space=given.space,
        objective=lambda site, params: np.full(200, given.values[site, given.at(given.space.encode(params))]),
        n_clients=5,
        n_records=[200] * 5,
    )
    privacy = pb.Privacy(epsilon=2.0, delta=1e-6, unit="record", protects="records", noise="simulation")
    run = pb.run(problem, pb.MultiTask(front=4, release_when="always"), privacy=privacy, rounds=5, seed=3)
    means, noise = 0.5 + run.releases[0].values / 200, run.releases[0].noise_stddev / 200
    assert noise == pytest.approx(noise_stddev(4, 200, 2.0), rel=1e-3)
    start = run.clients.units[:, :4]
    posterior = Posterior(given.space, Releases.of_front(start, means, np.full(5, noise)))
    played = carried_on(given, start, [posterior.of(site) for site in range(5)])
    np.testing.assert_array_equal(given.at(run.clients.units), played[:, :9])
    assert np.abs(means - given.values[np.arange(5)[:, None], played[:, :4]]).max() < 5.0 * noise
    assert run.common.params == given.space.decode(posterior.best())
    other = carried_on(given, start, [alone(given.space)] * 5)  # planted: the others' releases change what is chosen
    assert (other[:, :9] != played[:, :9]).any()


def _compared(family, ours, error, measure="mean"):
    return Compared(
        group="12 sites, frozen families", arm="n=1000, epsilon 1", family=family, measure=measure,
        ours=ours, alone=1.0, error=error, pairs=24, worse=0.25,
    )  # fmt: skip


def test_families_that_lose_are_counted_by_holm_and_stored_tables_are_the_same():
    families = [("a", 1.5, 0.1), ("b", 1.3, 0.11), ("c", 1.3, 0.14), ("d", 0.5, 0.1)]
    every = [_compared(*one, measure=measure) for one in families for measure in ("mean", "end")]
    seen = again({"compared": [dump_settings(one) for one in every]})
    # One-sided p: a 3e-5, b 0.006, c 0.021; of four at 5 %: 0.0125, 0.0167, 0.025.
    row = next(line for line in seen.text.splitlines() if line.startswith("| n=1000"))
    middle = (1.5 * 1.3 * 1.3 * 0.5) ** 0.25
    assert row.startswith(f"| n=1000, epsilon 1 | 4 | {middle:.2f} [")
    assert row.endswith("| 1.50 | 3 | 25 % |")
    worse = [_compared(*one) for one in (*families[:2], ("c", 1.3, 0.16), families[3])]
    assert "| 1.50 | 2 |" in again({"compared": [dump_settings(one) for one in [*worse, *every[1::2]]]}).text
    assert again(seen.summary).text == seen.text
