"""Settings of the server and its clients that exist for the paper's variants and for controls."""

import dataclasses
import warnings

import numpy as np
import pytest

import privbo as pb
from accountant.events import FixedSizeSampledGaussian
from privbo.protocol.errors import ConfigurationError
from privbo.runs.sources import algorithm_table, read_algorithm
from privbo.runs.spec import Spec
from tests.thompson.conftest import PLANE, bumps, play, setting

OWN = pb.OwnModel(n_features=16, fit_steps=2, n_candidates=32)
CUTS = (pb.Cut(parameter="x", at=(0.2,)), pb.Cut(parameter="y", at=(1.0,)))
SCALE = {"median": 0.03, "spread": 0.5, "low": 0.01, "high": 1.0}
TOML = {
    "name": "every-knob",
    "rounds": 3,
    "problem": {"objective": "tests.thompson.test_settings:objective", "n_clients": 9, "space": {}},
    "algorithm": {
        "type": "dp-fts-de",
        "n_regions": 4,
        "cuts": [{"parameter": "x", "at": [0.2]}, {"parameter": "y", "at": [1.0]}],
        "weighting": {"form": "square", "sharpness": 40.0, "schedule": "synthetic"},
        "exploration": {"power": 2.0},
        "own": {"draw": "exact", "refit_every": 0, "ard": False, "noise_variance": 0.01, "lengthscale": dict(SCALE)},
    },
    "privacy": {"noise_multiplier": 1.0, "sample_rate": 0.5, "sampling": "fixed-size", "calibration": "paper"},
}


def objective(client, params):
    return float(bumps(np.array([client]), PLANE.encode(params)[None])[0])


def test_every_setting_can_be_written_in_a_file():
    space = {
        "x": {"type": "real", "low": 0.0, "high": 1.0},
        "y": {"type": "real", "low": 1e-3, "high": 1e1, "log": True},
    }
    job = Spec.from_dict(TOML | {"problem": TOML["problem"] | {"space": space}})
    expected = pb.DPFTSDE(
        n_regions=4,
        cuts=CUTS,
        weighting=pb.Weighting(form="square", sharpness=40.0, schedule="synthetic"),
        exploration=pb.Exploration(power=2.0),
        own=pb.OwnModel(draw="exact", refit_every=0, ard=False, noise_variance=0.01, lengthscale=pb.Prior(**SCALE)),
    )
    assert job.algorithm == expected
    assert read_algorithm(algorithm_table(expected)) == expected  # and read back from a run's own record
    assert job.privacy.sampling == "fixed-size"


@pytest.mark.parametrize("change", [{"n_regions": 3}, {"start": "nowhere"}, {"features": "regular"}])
def test_settings_that_contradict_are_refused(change):
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        pb.DPFTSDE(**({"n_regions": 4, "cuts": CUTS} | change))


def test_cuts_decide_where_clients_start():
    algorithm = pb.DPFTSDE(n_regions=4, cuts=CUTS, n_features=8, n_init=3, own=OWN)
    _, cohort = play(algorithm, setting(n_clients=8, rounds=1))
    first = cohort.history().units[:, :3]
    inside = (first[..., 0] >= 0.2) * 2 + (first[..., 1] >= PLANE.parameters["y"].encode(1.0))
    np.testing.assert_array_equal(inside, np.repeat(np.arange(8)[:, None] % 4, 3, axis=1))


def test_starting_everywhere_leaves_the_regions_and_keeps_the_weights():
    home, anywhere = (
        pb.DPFTSDE(n_regions=4, n_features=8, n_init=8, start=s, own=OWN) for s in ("region", "everywhere")
    )
    where = setting(n_clients=8, rounds=2)
    regions = home.regions(where)
    for algorithm, stays in ((home, True), (anywhere, False)):
        trace, cohort = play(algorithm, where)
        found = regions.index(cohort.history().units[:, :8])
        assert bool((found == np.arange(8)[:, None] % 4).all()) is stays
        assert trace[0][0].request.weights.max() > 0.4


@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_fixed_size_sampling_of_a_run_has_its_own_sensitivity_and_event(calibration):
    """Against the formulas written out: two clients separate the sums, ``round(q N)`` of N are drawn."""
    algorithm = pb.DPFTSDE(n_regions=2, n_features=8, clipping_norm=3.0, weighting=pb.Weighting(sharpness=2.0))
    problem = pb.Problem(space=PLANE, objective=objective, n_clients=9)
    privacy = pb.Privacy(
        noise_multiplier=1.5, sample_rate=0.4, sampling="fixed-size", calibration=calibration, noise="simulation"
    )
    result = pb.run(problem, algorithm, privacy=privacy, rounds=1, seed=1)
    (request,) = algorithm.server(setting(n_clients=9, rounds=1)).plan()
    columns = sorted((float(np.sqrt((request.weights[:, n] ** 2).sum())) for n in range(9)), reverse=True)
    sensitivity = (columns[0] + columns[1]) * 3.0 / np.sqrt(2) / (4 / 9)
    stddev = 1.5 * (sensitivity if calibration == "tight" else request.weights.max() * 3.0 / (4 / 9))
    assert result.releases[0].noise_stddev == pytest.approx(stddev, rel=1e-12)
    (entry,) = result.ledger.entries()
    event = entry.event
    assert isinstance(event, FixedSizeSampledGaussian)
    assert (event.n_clients, event.sample_size) == (9, 4)
    assert event.noise_multiplier == pytest.approx(stddev / sensitivity, rel=1e-12)


PROBLEM = pb.Problem(
    space={"C": pb.Real(1e-4, 10.0), "gamma": pb.Real(0.01, 10.0)},
    objective=lambda client, params: 0.0,  # never called: a plan touches no data
    n_clients=29,
)


# Source: measured from the authors' code (true cost of the paper's runs, tight accountant,
# heterogeneous rounds, T = 60, delta = 29^-1.1); the paper prints 15.17, 5.14 and 3.75.
@pytest.mark.parametrize(("rate", "z", "epsilon"), [(0.35, 1.0, 6.20), (0.35, 2.0, 2.00), (0.10, 1.0, 1.19)])
def test_true_price_of_the_papers_noise(rate, z, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # delta = "paper" warns, as it should
        privacy = pb.Privacy(noise_multiplier=z, sample_rate=rate, delta="paper", calibration="paper")
        terms = pb.plan(PROBLEM, pb.DPFTSDE.paper(), privacy=privacy, rounds=60)
        found = terms.epsilon()["tight"]
    assert terms.releases == 60
    assert found == pytest.approx(epsilon, abs=0.005)


def test_own_models_of_every_algorithm_have_a_limit_and_the_papers_have_none() -> None:
    own = pb.OwnModel(refit_every=0)
    capped = [pb.SharedPrior(), pb.DPFTSDE(), pb.SharedPrior(own=own), pb.DPFTSDE(own=own), pb.DPFTSDE().local()]
    assert {algorithm.own.max_points for algorithm in capped} == {200}
    assert pb.DPFTSDE.paper().own == dataclasses.replace(pb.DPFTSDE().own, max_points=None)
