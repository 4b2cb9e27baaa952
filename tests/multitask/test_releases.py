"""The multi-task posterior: what noisy releases of some sites say of their surfaces, and what sites then choose."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import privbo as pb
from privbo.algorithms.thompson.releases import Posterior, Releases, front, kernels
from privbo.protocol.messages import Broadcast, PlainEvaluate, Records, Setting

SPACE = pb.Space({"dose": pb.Int(1, 15), "rate": pb.Int(1, 15), "way": pb.Categorical(["oral", "vein"])})
DOSES = pb.Space({"dose": pb.Int(1, 41)})


def surface(units, best=(0.7, 0.3), way=0.5):
    """Largest at ``best``, in vein."""
    units = np.asarray(units)
    far = np.square(units[..., :2] - best).sum(axis=-1)
    return 0.8 - far - 0.2 * (units[..., 2] < way)


def setting(n_sites, space=SPACE, seed=0, count=900):
    records = Records(counts=(count,) * n_sites, low=0.0, high=1.0)
    return Setting(space=space, n_clients=n_sites, rounds=20, public_seed=seed, unit="record", records=records)


def start_of(n_sites, n_points, space=SPACE, seed=0):
    return front(setting(n_sites, space, seed), np.arange(n_sites), n_points)


def releases_of(start, values, noise=0.0, seed=0):
    drawn = noise * np.random.default_rng(seed).standard_normal(values.shape)
    return Releases.of_front(start, values + drawn, np.full(len(start), noise))


def carried_on(n_sites, evaluations, means=None, noise=0.01, seed=0, values_at=surface):
    """Values that sites reach, ``(n_sites, 4 + evaluations)``; alone where no means are released."""
    algorithm = pb.MultiTask() if means is not None else pb.MultiTask().local()
    evaluate = PlainEvaluate(lambda clients, units: values_at(units))
    cohort = algorithm.cohort(setting(n_sites, seed=seed), clients=np.arange(n_sites), evaluate=evaluate, seed=0)
    for round_ in range(evaluations + 1):
        arrays = {"means": means, "noise_stddev": np.full(n_sites, noise)} if round_ and means is not None else {}
        cohort.respond(Broadcast(round=round_, arrays=arrays))
    return cohort.history().values


def test_models_have_the_weights_of_their_marginal_likelihoods():
    start = start_of(3, 3, DOSES)
    given = releases_of(start, 0.5 - np.square(start[..., 0] - 0.6), noise=0.05)
    posterior = Posterior(DOSES, given)
    assert sum(model.weight for model in posterior.models) == pytest.approx(1.0)
    one, other = posterior.models[0], posterior.models[20]

    def likely(model):
        same = given.sites[:, None] == given.sites
        known = kernels(DOSES)[model.kernel](given.units, given.units)
        shared = (model.correlation + (1.0 - model.correlation) * same) * known + same + 10.0 + 1e-4 * np.eye(9)
        covariance = model.variance * shared + 0.05**2 * np.eye(9)
        prior = -0.5 * np.log(np.sqrt(model.variance) / 0.1) ** 2
        return multivariate_normal(cov=covariance).logpdf(given.values - given.values.mean()) + prior

    assert np.log(one.weight / other.weight) == pytest.approx(likely(one) - likely(other), rel=1e-6)


def test_releases_of_like_sites_tell_the_surface_and_noise_alone_tells_a_flat_one():
    start, grid = start_of(12, 4), SPACE.grid()
    truth = surface(grid)
    told = Posterior(SPACE, releases_of(start, surface(start), noise=0.01))
    assert np.corrcoef(told.expected(grid), truth)[0, 1] > 0.95
    assert told.expected(grid).std() == pytest.approx(truth.std(), rel=0.3)
    assert told.expected(grid).mean() == pytest.approx(0.0, abs=0.01)
    nothing = Posterior(SPACE, releases_of(start, np.zeros(start.shape[:2]), noise=0.01))
    assert np.abs(nothing.expected(grid)).max() < 0.02 * np.ptp(truth)
    assert nothing.share < 0.3 < told.share


def test_what_is_expected_of_one_point_does_not_depend_on_the_others():
    start, grid = start_of(12, 4), SPACE.grid()
    posterior = Posterior(SPACE, releases_of(start, surface(start), noise=0.01))
    some = np.concatenate([posterior.expected(grid[i : i + 7]) for i in range(0, len(grid), 7)])
    np.testing.assert_array_equal(some, posterior.expected(grid))


def test_a_loud_sites_releases_count_less():
    start = start_of(5, 4)
    given = releases_of(start, surface(start), noise=0.02)
    wrong = dataclasses.replace(given, values=np.where(given.sites == 1, 1.0 - given.values, given.values))
    loud = dataclasses.replace(wrong, noise_stddev=np.where(given.sites == 1, 10.0, 0.02))
    found = [Posterior(SPACE, one).expected(SPACE.grid()) for one in (given, loud, wrong)]
    assert np.corrcoef(found[:2])[0, 1] > 0.95 > np.corrcoef(found[::2])[0, 1]


@pytest.mark.parametrize("opposite", [False, True])
def test_a_site_that_is_unlike_the_others_finds_its_own_best_setting(opposite):
    start = start_of(12, 4, seed=1)
    values = surface(start, best=(0.1, 0.9), way=-1.0) if opposite else np.full(start.shape[:2], 0.5)
    assert carried_on(12, 16, values, seed=1).max(axis=1).min() > 0.795


@pytest.mark.parametrize("n_sites", [5, 12, 30])
def test_releases_of_noise_alone_leave_sites_as_they_would_be_alone(n_sites):
    """Also after a front of two points, which thirty sites have: a start of four is gone on with."""
    (points,) = pb.MultiTask().n_points(setting(n_sites))
    assert points == {5: 4, 12: 4, 30: 2}[n_sites]
    noise = 0.5 + 0.01 * np.random.default_rng(2).standard_normal((n_sites, points))
    told, by_itself = (carried_on(n_sites, 6, means, seed=2) for means in (noise, None))
    np.testing.assert_array_equal(told, by_itself)


def test_the_best_common_setting_is_that_of_the_mean_surface():
    start = start_of(12, 4)
    bests = 0.4 + 0.3 * np.random.default_rng(0).random((12, 1, 2))
    values = surface(start, best=bests)
    grid = SPACE.grid()
    means = np.mean([surface(grid, best=best) for best in bests], axis=0)
    index = {point.tobytes(): i for i, point in enumerate(grid)}
    found = means[index[Posterior(SPACE, releases_of(start, values, noise=0.01)).best().tobytes()]]
    noise_only = means[index[Posterior(SPACE, releases_of(start, 0.0 * values, noise=0.01)).best().tobytes()]]
    assert found > means.max() - 0.01
    assert noise_only < means.max() - 0.02


def test_draws_of_the_mean_surface_have_its_mean_and_a_small_space_is_given_again():
    start = start_of(12, 4, DOSES)
    posterior = Posterior(DOSES, releases_of(start, 0.5 - np.square(start[..., 0] - 0.6), noise=0.05))
    draws, few = posterior._draws(np.random.default_rng(0)), pb.Space({"dose": pb.Int(1, 3)})
    assert draws.shape == (41, 256)
    drawn, expected = draws.mean(axis=1), posterior.expected(DOSES.grid())
    np.testing.assert_allclose(drawn - drawn.mean(), expected, atol=6 * draws.std() / 16)
    small = start_of(12, 3, few)
    points = Posterior(few, releases_of(small, small[..., 0])).likely_best(5, np.random.default_rng(0))
    np.testing.assert_array_equal(points[3:], points[:2])
    assert points[0] == few.encode({"dose": 3})


@pytest.mark.parametrize("changes", [{"values": np.zeros(3)}, {"noise_stddev": np.full(20, np.nan)}])
def test_impossible_releases_are_refused(changes):
    given = releases_of(start_of(5, 4), np.zeros((5, 4)))
    with pytest.raises(pb.ConfigurationError, match="releases:"):
        dataclasses.replace(given, **changes)
