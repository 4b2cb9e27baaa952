"""Fits of many clients' models: against GPyTorch's, scipy's evidence, and themselves to the last bit."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from privbo.algorithms.thompson import fits
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.posterior import condition, kernel_values
from privbo.algorithms.thompson.settings import OwnModel, Prior
from tests.thompson.conftest import observed, shared

CPU = torch.device("cpu")
KERNELS = ["se", "matern52", "matern32", "matern12"]
QUIET = Prior(median=1e-4, spread=3.0, low=1e-6, high=1.0)
WALKS = {
    "alone": lambda seen: {},
    "shared": lambda seen: {"shared": shared(seen.embedded, seen.mask)},
    "logits": lambda seen: {"logits": True},
}


@pytest.fixture(params=WALKS)
def walk(request):
    return WALKS[request.param]


def both(seen, own, walk, steps=40):
    """Logarithms of fitted models and slopes, compiled, by NumPy and by GPyTorch: ``(n, e + 3)`` each."""
    first = start(own, len(seen.embedded), seen.embedded.shape[2], CPU)
    ours, by_numpy = (fit(first, seen, own, steps=steps, compiled=compiled, **walk(seen)) for compiled in (True, False))
    with patch.object(fits, "_climb", fits.climb_by_gpytorch):
        oracle = fit(first, seen, own, steps=steps, compiled=False, **walk(seen))
    return [
        torch.cat([m.lengthscale.log(), torch.stack([m.outputscale.log(), m.noise.log(), m.slope], 1)], 1).nan_to_num(
            0.0
        )
        for m in (ours, by_numpy, oracle)
    ]


def apart(found):
    return max(float((found[0] - other).abs().max()) for other in found[1:])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("t", "e"), [(2, 1), (3, 2), (8, 3), (9, 1), (17, 6), (40, 2), (64, 4), (200, 2)])
def test_fits_are_those_of_gpytorch(kernel, t, e, walk):
    seen, steps = observed(n=4 if t < 200 else 2, t=t, e=e, seed=t), 40 if t < 30 else 15 if t < 200 else 5
    for change in ({}, {"ard": False, "noise_variance": 0.02}) if t < 200 else ({"noise": QUIET},):
        assert apart(both(seen, OwnModel(kernel=kernel, **change), walk, steps)) < 1e-6


DEGENERATE = {
    "equal values": lambda seen: seen.values.zero_(),
    "twice the same point": lambda seen: seen.embedded[:, 1].copy_(seen.embedded[:, 0]),
    "one coordinate": lambda seen: seen.embedded[:, :, 1].copy_(0.5 + 0.01 * torch.arange(6)),
    "far": lambda seen: seen.embedded.mul_(1e4),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("degenerate", DEGENERATE)
def test_degenerate_data_are_fitted_as_gpytorch_fits_them(kernel, degenerate, walk):
    seen = observed(n=3, t=6)
    DEGENERATE[degenerate](seen)
    assert apart(both(seen, OwnModel(kernel=kernel), walk)) < 1e-6


def test_bounds_are_hit_as_gpytorch_hits_them(walk):
    narrow = OwnModel(
        lengthscale=Prior(median=0.4, spread=5.0, low=0.39, high=0.41),
        noise=Prior(median=1e-2, spread=5.0, low=9e-3, high=1.1e-2),
    )
    ours, *oracles = both(observed(t=20), narrow, walk)
    assert apart((ours, *oracles)) < 1e-6
    lengthscales = ours[:, 0].exp()
    torch.testing.assert_close(lengthscales, lengthscales.clamp(0.39, 0.41), rtol=0, atol=1e-12)
    if walk is not WALKS["logits"]:
        assert np.isin(lengthscales.numpy().round(12), (0.39, 0.41)).any()


@pytest.mark.parametrize("n_values", [0, 1])
def test_values_that_say_nothing_of_a_length_scale_leave_it_at_its_median(n_values):
    """Adam makes steps of rounding errors: a length scale that begins at its median would wander by thousandths."""
    seen = observed(n=1, t=4)
    seen.mask[:, n_values:] = False
    seen.values[:] = 0.0
    median = torch.full((1, 2), 0.4, dtype=torch.float64)
    for walk in WALKS.values():
        for found in both(seen, OwnModel(), walk):
            torch.testing.assert_close(found[:, :2].exp(), median, rtol=1e-14, atol=0)


def test_a_covariance_without_a_factor_leaves_a_client_to_its_priors_and_the_others_alone(walk):
    """One client has the same point three times, and priors without noise: its covariance is singular."""
    seen = observed(n=4, t=3, absent=0.0)
    seen.embedded[1] = seen.embedded[1, :1]
    tiny = Prior(median=1e-30, spread=1.0, low=1e-31, high=1e-29)
    large = Prior(median=1e12, spread=1.0, low=1e11, high=1e13)
    own = OwnModel(noise=tiny, outputscale=large)
    ours, *oracles = both(seen, own, walk, steps=10)
    assert torch.isfinite(ours).all()
    assert apart((ours, *oracles)) < 1e-6
    medians = torch.tensor([0.4, 0.4, 1e12, 1e-30], dtype=torch.float64).log()
    torch.testing.assert_close(ours[1, :-1], medians, rtol=1e-12, atol=0)
    others = torch.tensor([0, 2, 3])
    assert torch.equal(both(seen.rows(others), own, walk, steps=10)[0], ours[others])
    found = fit(start(own, 4, 2, CPU), seen, own, steps=10, compiled=True)
    assert all(
        torch.isfinite(values).all() for values in condition(found, seen, own.kernel, compiled=True)(seen.embedded)
    )


def evidence(seen, models, own, n):
    """Log evidence plus log prior densities of the logarithms, by scipy, for one client."""
    keep = seen.mask[n]
    points = seen.embedded[n][keep] / models.lengthscale[n]
    covariance = models.outputscale[n] * kernel_values("matern52", points[None], points[None])[0]
    covariance = covariance + models.noise[n] * torch.eye(int(keep.sum()), dtype=torch.float64)
    found = multivariate_normal(cov=covariance.numpy()).logpdf(seen.values[n][keep].numpy())
    for name, prior in (("lengthscale", own.lengthscale), ("outputscale", own.outputscale), ("noise", own.noise)):
        logs = getattr(models, name)[n].log().numpy()
        found -= 0.5 * (((logs - np.log(prior.median)) / prior.spread) ** 2).sum()
    return found


def test_a_long_fit_is_a_maximum_of_the_posterior_by_scipy():
    """Moving any hyperparameter of any client by a tenth lowers what scipy says of it."""
    seen, own = observed(n=3, t=12), OwnModel()
    found = fit(start(own, 3, 2, CPU), seen, own, steps=400, logits=True, compiled=True)
    for n in range(3):
        best = evidence(seen, found, own, n)
        for name in ("lengthscale", "outputscale", "noise"):
            for factor in (0.9, 1.1):
                moved = dataclasses.replace(found, **{name: factor * getattr(found, name)})
                assert evidence(seen, moved, own, n) < best - 1e-4


@pytest.mark.parametrize("steps", [0, 3])
def test_known_noise_is_used_as_it_is_in_the_units_of_the_objective(steps, walk):
    seen, own = observed(n=3), OwnModel(noise_variance=0.04)
    seen = dataclasses.replace(seen, scale=torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64))
    found = fit(start(own, 3, 2, CPU), seen, own, steps=steps, compiled=True, **walk(seen))
    torch.testing.assert_close(found.noise, torch.tensor([0.04, 0.01, own.noise.low], dtype=torch.float64))


def digest(found):
    return hashlib.sha256(found.numpy().tobytes()).hexdigest()


def fits_of(rows):
    part, own = observed(n=10, t=11, seed=5).rows(torch.as_tensor(rows)), OwnModel()
    first = start(own, len(rows), 2, CPU)
    found = [
        vars(fit(first, part, own, steps=20, compiled=compiled, **walk(part)))
        for compiled in (True, False)
        for walk in WALKS.values()
    ]
    return [torch.cat([values.reshape(len(rows), -1).nan_to_num() for values in one.values()], dim=1) for one in found]


def test_a_client_is_fitted_to_the_same_bits_alone_among_others_and_in_threads():
    whole = fits_of(range(10))
    for parts in (2, 7, 10):
        shards = np.array_split(np.arange(10), parts)
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(fits_of, shards))
        for kind, expected in enumerate(whole):
            assert torch.equal(torch.cat([part[kind] for part in found]), expected)


@pytest.mark.parametrize(
    "elsewhere", [{}, pytest.param({"NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}, marks=pytest.mark.slow)]
)
def test_another_process_gives_the_same_bits_also_where_nothing_compiled_can_be_kept(elsewhere):
    code = "import tests.thompson.test_fits as here; print(*map(here.digest, here.fits_of(range(10))))"
    settings = {"capture_output": True, "text": True, "check": True, "env": os.environ | elsewhere}
    done = subprocess.run([sys.executable, "-c", code], **settings)  # noqa: PLW1510 (it does)
    assert done.stdout.split() == [digest(found) for found in fits_of(range(10))]
