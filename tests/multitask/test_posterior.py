"""The multi-task posterior: what other sites' noisy releases say to a site, and what it then chooses."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import privbo as pb
from privbo.algorithms.multitask.posterior import Posterior, Releases, alone, front, kernels, log_improvement, propose

SPACE = pb.Space({"dose": pb.Int(1, 15), "rate": pb.Int(1, 15), "way": pb.Categorical(["oral", "vein"])})
DOSES = pb.Space({"dose": pb.Int(1, 41)})


def surface(units, best=(0.7, 0.3), way=0.5):
    """Largest at ``best``, in vein."""
    units = np.asarray(units)
    far = np.square(units[..., :2] - best).sum(axis=-1)
    return 0.8 - far - 0.2 * (units[..., 2] < way)


def releases_of(start, values, noise=0.0, seed=0):
    n_sites, points = start.shape[:2]
    drawn = noise * np.random.default_rng(seed).standard_normal(values.shape)
    return Releases(
        sites=np.repeat(np.arange(n_sites), points),
        units=start.reshape(n_sites * points, -1),
        values=(values + drawn).ravel(),
        noise_stddev=np.full(n_sites * points, noise),
    )


def carried_on(prior, start, values_at, evaluations):
    units, values = start, values_at(start)
    for _ in range(evaluations):
        units = np.concatenate([units, propose(prior, units, values)[None]])
        values = values_at(units)
    return units, values


def test_a_front_spreads_over_all_sites_and_over_each():
    start = front(SPACE, n_sites=12, n_points=4, seed=3)
    flat = start.reshape(48, 3)
    assert len(np.unique(flat, axis=0)) == 48
    np.testing.assert_array_equal(flat, SPACE.snap(flat))
    np.testing.assert_array_equal(start, front(SPACE, n_sites=12, n_points=4, seed=3))
    assert (start != front(SPACE, n_sites=12, n_points=4, seed=4)).any()

    def nearest(points):
        far = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1) + 9.0 * np.eye(points.shape[1])
        return far.min(axis=(1, 2)).mean()

    shuffled = np.random.default_rng(0).permutation(flat).reshape(12, 4, 3)
    assert nearest(start) > nearest(shuffled) + 0.1


def test_a_front_of_a_used_up_space_repeats_points():
    start = front(pb.Space({"way": pb.Categorical(["oral", "vein"])}), n_sites=3, n_points=2, seed=0)
    assert sorted(start.ravel().tolist()).count(start.min()) == 3


def test_models_have_the_weights_of_their_marginal_likelihoods():
    start = front(DOSES, n_sites=3, n_points=3, seed=0)
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


def test_others_releases_lead_to_the_best_setting_at_once():
    start = front(SPACE, n_sites=12, n_points=4, seed=0)
    posterior = Posterior(SPACE, releases_of(start, surface(start), noise=0.01))
    _, shared = carried_on(posterior.of(0), start[0], surface, 2)
    _, by_itself = carried_on(alone(SPACE), start[0], surface, 2)
    assert shared.max() > 0.795
    assert by_itself.max() < 0.78


def test_the_best_common_setting_is_that_of_the_mean_surface():
    start = front(SPACE, n_sites=12, n_points=4, seed=0)
    bests = 0.4 + 0.3 * np.random.default_rng(0).random((12, 1, 2))
    values = surface(start, best=bests)
    grid = SPACE.grid()
    means = np.mean([surface(grid, best=best) for best in bests], axis=0)
    index = {point.tobytes(): i for i, point in enumerate(grid)}
    found = means[index[Posterior(SPACE, releases_of(start, values, noise=0.01)).best().tobytes()]]
    noise_only = means[index[Posterior(SPACE, releases_of(start, 0.0 * values, noise=0.01)).best().tobytes()]]
    assert found > means.max() - 0.01
    assert noise_only < means.max() - 0.02


def test_own_releases_are_left_out_and_noise_of_a_site_counts():
    start = front(SPACE, n_sites=5, n_points=4, seed=0)
    given = releases_of(start, surface(start), noise=0.02)
    prior = Posterior(SPACE, given).of(2)
    assert all(len(part.units) == 16 for part in prior.parts)
    loud = np.where(given.sites == 1, 10.0, 0.02)
    deaf = Posterior(SPACE, dataclasses.replace(given, noise_stddev=loud)).of(2).parts[0]
    gone = Posterior(SPACE, given.without(1)).of(2).parts[0]
    at = SPACE.grid()[::37]
    explained = [np.square(part.known(at)).sum(axis=0) for part in (deaf, gone)]
    np.testing.assert_allclose(*explained, atol=2e-2)


@pytest.mark.parametrize("opposite", [False, True])
def test_a_site_that_is_unlike_the_others_finds_its_own_best_setting(opposite):
    start = front(SPACE, n_sites=12, n_points=4, seed=1)
    values = surface(start, best=(0.1, 0.9), way=-1.0) if opposite else np.zeros(start.shape[:2])
    posterior = Posterior(SPACE, releases_of(start, values, noise=0.02))
    _, own = carried_on(posterior.of(0), start[0], surface, 16)
    assert own.max() > 0.795


def test_a_space_without_a_grid_is_searched_around_the_best_points():
    space = pb.Space({"x": pb.Real(0, 1), "y": pb.Real(0, 1), "z": pb.Real(0, 1)}, constraints=["x + y <= 1.5"])
    best = np.array([0.612, 0.233, 0.871])
    start = front(space, n_sites=3, n_points=4, seed=0)
    units, values = carried_on(alone(space), start[0], lambda u: 1.0 - np.square(u - best).sum(axis=-1), 18)
    assert values.max() > 1.0 - 2e-3
    assert space.allows(units).all()


def test_points_are_not_repeated_until_all_are_used():
    space = pb.Space({"dose": pb.Int(1, 6)})
    units, _ = carried_on(alone(space), space.grid()[:2], lambda u: u[..., 0], 4)
    assert len(np.unique(units)) == 6


def test_log_improvement_is_exact_and_reaches_far():
    gain = np.array([2.0, 0.0, -0.99, -1.01, -5.0])
    exact = norm.pdf(gain) + gain * norm.cdf(gain)
    np.testing.assert_allclose(log_improvement(gain, np.ones(5)), np.log(exact), rtol=1e-9)
    np.testing.assert_allclose(log_improvement(np.array([-40.0]), np.ones(1)), [-808.2986], rtol=1e-6)
    assert log_improvement(np.array([-2000.0]), np.ones(1))[0] > -2.1e6


def test_bad_numbers_are_refused():
    with pytest.raises(pb.ConfigurationError, match="one finite value at least"):
        propose(alone(DOSES), np.array([[0.5]]), np.array([np.nan]))
    with pytest.raises(pb.ConfigurationError, match="must be finite"):
        releases_of(np.full((1, 1, 1), 0.5), np.array([[np.inf]]))
    with pytest.raises(pb.ConfigurationError, match="n_points=0"):
        front(DOSES, n_sites=1, n_points=0, seed=0)
