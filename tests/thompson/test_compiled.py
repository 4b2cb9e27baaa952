"""Compiled fits, posteriors and paths against torch and GPyTorch, and to the last bit against themselves."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson import compiled, gpytorch_fits, hyperparameters
from privbo.algorithms.thompson.beliefs import posterior
from privbo.algorithms.thompson.draws import Paths
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.regression import Fit, at_start, climb_by_torch, fit
from privbo.algorithms.thompson.shared_part import Shared, SlopePrior

CPU = torch.device("cpu")
KERNELS = ["se", "matern52", "matern32", "matern12"]
SLOPE = SlopePrior(mean=0.6, stddev=0.3)
QUIET = Prior(median=1e-4, spread=3.0, low=1e-6, high=1.0)


def observed(n=4, t=9, d=2, seed=0, absent=0.2):
    """Noisy waves; at least two values each, for a fit to fewer is its priors."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n, t)) >= absent
    mask[:, :2] = True
    points = rng.random((n, t, d))
    values = np.where(mask, np.sin(4 * points.sum(-1)) + 0.3 * rng.standard_normal((n, t)), 0.0)
    return Observations(
        embedded=torch.tensor(points),
        values=torch.tensor(values),
        mask=torch.tensor(mask),
        scale=torch.tensor(1.0 + rng.random(n)),
    )


def shared(seen):
    """A function that is uncertain in two directions."""
    angles = seen.embedded.sum(-1)
    uncertainty = torch.stack([0.5 * torch.sin(2 * angles), 0.3 * torch.cos(5 * angles)], dim=-1)
    return Shared(heights=torch.cos(3 * angles) * seen.mask, uncertainty=uncertainty, slope=SLOPE)


def both(seen, own, steps=40, share=True):
    """Fits in logarithms with a shared mean, compiled and by torch: ``(n, w + 3)`` each."""
    start = at_start(own, len(seen.embedded), seen.embedded.shape[2], CPU)
    theirs = shared(seen) if share else None
    ours = fit(start, seen, own, steps=steps, shared=theirs)
    slope = torch.full((len(start.logs),), SLOPE.mean if share else torch.nan, dtype=torch.float64)
    known = hyperparameters.known_noise(own, seen)
    oracle = climb_by_torch(Fit(logs=start.logs, slope=slope), seen, own, steps=steps, shared=theirs, known=known)
    logs = oracle.logs if known is None else torch.cat([oracle.logs[:, :-1], known.log()[:, None]], dim=1)
    pairs = ((ours.logs, ours.slope), (logs, oracle.slope))
    return [torch.cat([found, slope[:, None]], dim=1).nan_to_num(0.0) for found, slope in pairs]


def both_between(seen, own):
    """Fits between the bounds, compiled and by GPyTorch: ``(n, d + 2)`` each."""
    first = hyperparameters.start(own, len(seen.embedded), seen.embedded.shape[2], CPU)
    oracle = gpytorch_fits.fit(seen, own, first=first, known=hyperparameters.known_noise(own, seen))
    ours = hyperparameters.fit(seen, own)
    return [torch.cat([m.lengthscale, m.outputscale[:, None], m.noise[:, None]], dim=1) for m in (ours, oracle)]


def apart(pair):
    return float((pair[0] - pair[1]).abs().max())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("t", "d"), [(2, 1), (3, 2), (8, 3), (9, 1), (17, 6), (40, 2), (64, 4)])
def test_fits_are_those_of_torch(kernel, t, d):
    seen, steps = observed(t=t, d=d, seed=t), 40 if t < 30 else 15
    for own in (
        OwnModel(kernel=kernel, fit_steps=steps),
        OwnModel(kernel=kernel, fit_steps=steps, ard=False, noise_variance=0.02),
    ):
        for share in (True, False):
            assert apart(both(seen, own, steps, share)) < 1e-6
        assert apart(both_between(seen, own)) < 1e-6


def test_long_histories_are_fitted_as_torch_fits_them():
    seen = observed(n=2, t=200, d=2)
    own = OwnModel(fit_steps=5, noise=QUIET)
    assert apart(both(seen, own, 5)) < 1e-6
    assert apart(both_between(seen, own)) < 1e-6


def test_the_comparison_tells_kernels_bounds_and_jitter_apart():
    """A fit by the wrong formula is far more than a rounding error away."""
    seen = observed()
    right, other = both(seen, OwnModel(kernel="matern52")), both(seen, OwnModel(kernel="matern32"))
    assert apart((right[0], other[1])) > 1e-3
    loud = OwnModel(noise=Prior(median=1e-2, spread=1.0, low=1e-5, high=0.5))
    assert apart((both_between(seen, OwnModel())[0], both_between(seen, loud)[1])) > 1e-6


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("degenerate", ["equal values", "twice the same point", "one coordinate", "far"])
def test_degenerate_data_are_fitted_as_torch_fits_them(kernel, degenerate):
    seen = observed(n=3, t=6, d=2)
    if degenerate == "equal values":
        seen.values[:] = 0.0
    elif degenerate == "twice the same point":
        seen.embedded[:, 1] = seen.embedded[:, 0]
    elif degenerate == "one coordinate":
        seen.embedded[:, :, 1] = 0.5 + 0.01 * torch.arange(6)
    else:
        seen.embedded[:] *= 1e4
    own = OwnModel(kernel=kernel)
    assert apart(both(seen, own)) < 1e-6
    assert apart(both_between(seen, own)) < 1e-6


def test_bounds_are_hit_as_torch_hits_them():
    narrow = OwnModel(
        lengthscale=Prior(median=0.4, spread=5.0, low=0.39, high=0.41),
        noise=Prior(median=1e-2, spread=5.0, low=9e-3, high=1.1e-2),
    )
    ours, oracle = both(observed(t=20), narrow)
    assert apart((ours, oracle)) < 1e-12
    assert np.isin(ours[:, 0].exp().numpy().round(12), (0.39, 0.41)).any()
    assert apart(both_between(observed(t=20), narrow)) < 1e-6


@pytest.mark.parametrize("n_values", [0, 1])
def test_values_that_say_nothing_of_a_length_scale_leave_it_at_its_median(n_values):
    """Adam makes steps of rounding errors: a length scale that begins at its median would wander by thousandths."""
    seen = observed(n=1, t=4)
    seen.mask[:, n_values:] = False
    seen.values[:] = 0.0
    median = torch.full((1, 2), 0.4, dtype=torch.float64)
    for found in both_between(seen, OwnModel()):
        torch.testing.assert_close(found[:, :2], median, rtol=1e-14, atol=0)
    for found in both(seen, OwnModel()):
        torch.testing.assert_close(found[:, :2].exp(), median, rtol=1e-14, atol=0)


def hopeless(n):
    """Clients of whom one has the same point three times, and priors without noise: its covariance is singular."""
    seen = observed(n=n, t=3, absent=0.0)
    seen.embedded[1] = seen.embedded[1, :1]
    tiny = Prior(median=1e-30, spread=1.0, low=1e-31, high=1e-29)
    large = Prior(median=1e12, spread=1.0, low=1e11, high=1e13)
    return seen, OwnModel(noise=tiny, outputscale=large, fit_steps=10)


def test_a_covariance_without_a_factor_leaves_a_client_to_its_priors_and_the_others_alone():
    seen, own = hopeless(4)
    ours, oracle = both(seen, own, steps=10)
    assert torch.isfinite(ours).all()
    assert apart((ours, oracle)) < 1e-6
    start = at_start(own, 1, 2, CPU)
    torch.testing.assert_close(ours[1, :-1], start.logs[0], rtol=1e-12, atol=0)
    others = torch.tensor([0, 2, 3])
    assert torch.equal(both(seen.rows(others), own, steps=10)[0], ours[others])
    between = both_between(seen, own)
    assert torch.isfinite(between[0]).all()
    assert torch.isfinite(between[1]).all()
    found = fit(at_start(own, 4, 2, CPU), seen, own, steps=10, shared=None)
    for values in posterior(found, seen, own)(seen.embedded):
        assert torch.isfinite(values).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [0, 1, 7, 70])
@pytest.mark.parametrize("share", [False, True])
def test_posteriors_are_those_of_torch(kernel, t, share):
    seen, own = observed(n=3, t=max(t, 2), d=3), OwnModel(kernel=kernel)
    seen = Observations(
        embedded=seen.embedded[:, :t], values=seen.values[:, :t], mask=seen.mask[:, :t], scale=seen.scale
    )
    theirs = shared(seen) if share else None
    found = fit(at_start(own, 3, 3, CPU), seen, own, steps=5, shared=theirs)
    model = posterior(found, seen, own, theirs)
    points = np.random.default_rng(1).random((3, 130, 3))
    # The oracle's squared distances are differences of squares, whose rounding errors a root makes large.
    close = {"atol": 1e-6 if kernel == "matern12" else 1e-9, "rtol": 0}
    for at in (torch.tensor(points), torch.tensor(points[:1]), seen.embedded):
        uncertain = (
            shared(dataclasses.replace(seen, embedded=at, mask=torch.tensor(True))).uncertainty if share else None
        )
        square = found.slope.square()[:, None]
        together = None if uncertain is None else square[..., None] * (model.uncertainty @ uncertain.mT)
        mean, variance = model(at, uncertain)
        expected, explained = model.by_torch(at, together)
        torch.testing.assert_close(mean, expected, **close)
        prior = 1.0 + found.logs[:, -2:-1].exp() + (0.0 if uncertain is None else square * uncertain.square().sum(-1))
        torch.testing.assert_close(prior - variance, explained, **close)


def test_the_exponential_is_right_to_an_ulp():
    """Seen through a correlation: one client, one value of weight one, the squared exponential."""
    one, at = np.ones((1, 1)), np.concatenate([np.linspace(0.0, 37.6, 40_001), [1e-9, 40.0, 1e6]])
    found, explained = np.empty((1, len(at))), np.empty((1, len(at)))
    points, nothing = at[None, :, None], compiled.NOTHING
    cube = one[None]
    compiled.expect(0, 0.0 * cube, cube, one, one, one[0], 0.0, points, nothing, found, explained)
    np.testing.assert_allclose(found[0], np.exp(-0.5 * at**2), rtol=1e-15, atol=1e-307)


def paths_of(kernel, t, n=3, d=3):
    """Paths with any waves, and corrections at t points."""
    rng = np.random.default_rng(t)

    def drawn(*shape):
        return torch.tensor(rng.standard_normal(shape))

    lengthscale = torch.tensor(rng.uniform(0.1, 1.0, (n, d)))
    return Paths(
        kernel=kernel,
        frequencies=drawn(20, d),
        amplitudes=drawn(n, 20),
        phases=torch.tensor(rng.uniform(-np.pi, np.pi, (n, 20))),
        known=torch.tensor(rng.random((n, t, d))) / lengthscale[:, None],
        lengthscale=lengthscale,
        correction=drawn(n, t),
        multiples=drawn(n, 0),
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [0, 1, 7, 70])
def test_paths_are_those_of_torch(kernel, t):
    paths, points = paths_of(kernel, t), torch.tensor(np.random.default_rng(1).random((3, 130, 3)))
    close = {"atol": 1e-6 if kernel == "matern12" else 1e-9, "rtol": 0}  # as for posteriors
    for at in (points, points[:1], paths.known * paths.lengthscale[:, None]):
        torch.testing.assert_close(paths(at), paths.by_torch(at), **close)
    other = dataclasses.replace(paths, phases=paths.phases + 1e-6)
    assert apart((paths(points), other.by_torch(points))) > 1e-7  # the comparison tells phases apart


def test_a_path_is_the_same_to_the_last_bit_alone_and_among_others():
    paths, points = paths_of("matern52", 9), torch.tensor(np.random.default_rng(1).random((3, 130, 3)))
    whole = paths(points)
    for client in range(3):
        own = {name: value[client : client + 1] for name, value in vars(paths).items() if torch.is_tensor(value)}
        own["frequencies"] = paths.frequencies
        alone = Paths(kernel="matern52", **own)
        assert torch.equal(alone(points[client : client + 1, 17:40])[0], whole[client, 17:40])


def test_the_cosine_is_right_to_rounding_and_never_above_one_at_any_angle():
    """Seen through a path: one wave of amplitude one, no value."""
    angles = np.concatenate([np.linspace(-40.0, 40.0, 40_001), [1e-300, 1e4, 1e15, -1e15, 1e17, 1e300]])
    one, points, found = np.ones((1, 1)), angles[None, :, None], np.empty((1, len(angles)))
    compiled.evaluate_paths(0, one, one, 0.0 * one, np.empty((1, 0, 1)), np.empty((1, 0)), one, points, found)
    near = abs(angles) < 41.0
    np.testing.assert_allclose(found[0, near], np.cos(angles[near]), rtol=0, atol=2e-14)  # a rounded angle's own error
    np.testing.assert_allclose(found[0, angles == 1e4], np.cos(1e4), rtol=0, atol=1e-11)
    assert np.isfinite(found).all()
    assert abs(found).max() <= 1.0 + 1e-15


def digest(found):
    return hashlib.sha256(b"".join(values.numpy().tobytes() for values in vars(found).values())).hexdigest()


def fits_of(rows):
    seen, own = observed(n=10, t=11, seed=5), OwnModel(fit_steps=20)
    part = seen.rows(torch.as_tensor(rows))
    start = at_start(own, len(rows), 2, CPU)
    return fit(start, part, own, steps=20, shared=shared(part)), hyperparameters.fit(part, own)


def test_a_client_is_fitted_to_the_same_bits_alone_among_others_in_threads_and_in_another_process():
    whole = fits_of(range(10))
    for parts in (2, 7, 10):
        shards = np.array_split(np.arange(10), parts)
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(fits_of, shards))
        for kind, expected in enumerate(whole):
            for name, values in vars(expected).items():
                assert torch.equal(torch.cat([getattr(part[kind], name) for part in found]), values)
    code = "import tests.thompson.test_compiled as here; print(*map(here.digest, here.fits_of(range(10))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [digest(found) for found in whole]


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_compiled_for_the_process():
    code = "import tests.thompson.test_compiled as here; print(*map(here.digest, here.fits_of(range(10))))"
    nowhere = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=nowhere)
    assert done.stdout.split() == [digest(found) for found in fits_of(range(10))]
