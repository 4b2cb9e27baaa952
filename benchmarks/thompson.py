"""DP-FTS-DE's own work: a run of landmine size against the authors' way, posterior draws against BoTorch.

The authors' way is written out in ``_Plain``: one client after another, one point after another,
L-BFGS-B from 20 starts, hyperparameters by restarts (scikit-learn in place of GPy). Its cost per
client and iteration is put together from timed calls at several lengths of history, because
a whole run takes minutes.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

import numpy as np

import privbo as pb
from benchmarks._rows import REPEATS, TRANSCENDENTAL, Row, least, smallest, timed
from privbo.protocol.messages import FloatArray, IntArray, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from privbo.algorithms.thompson.features import FourierFeatures

N_CLIENTS, N_INIT, ROUNDS = 29, 10, 60
DRAWS = 7  # calls of a posterior draw, ours and the peer's
REFIT = 5  # as in the authors' published code (gp_opt_schedule)
BAR, TIMES = 0.9e-3, 80.0  # seconds per client and iteration, and how many times faster than the authors' way
RECORDED = 0.2247, 0.0957  # CPU seconds per client and iteration of the authors' code on landmine: all, the fits


def rows() -> Iterator[Row]:
    """A landmine-sized run, the quality of searches, posterior draws."""
    import torch

    torch.set_num_threads(1)
    yield from _landmine()
    yield from _quality()
    yield from _weight_draws()


class _Surfaces:
    """Smooth surfaces on the unit square that stand in for the objective, and the time they took."""

    def __init__(self, n_clients: int) -> None:
        self.centres = np.random.default_rng(0).random((n_clients, 2))
        self.seconds = 0.0

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        start = time.process_time()
        distance = ((units - self.centres[clients]) ** 2).sum(axis=-1)
        values = np.exp(-4.0 * distance) + 0.2 * np.sin(9.0 * units[..., 0] + clients)
        self.seconds += time.process_time() - start
        return np.asarray(values)


def _landmine() -> Iterator[Row]:
    """CPU seconds per client and iteration, objective excluded, with the authors' refit schedule."""
    _ours(rounds=3)  # imports
    ours, fits = min(_ours(rounds=ROUNDS) for _ in range(REPEATS))
    plain, plain_fits = _Plain(0).per_iteration()
    whose = "the authors' way, written out"
    size = f"N={N_CLIENTS}, T={ROUNDS}, M=100, P=4, refit every {REFIT}"
    acting, fitting = _least_of_landmine()
    name, limit = f"DP-FTS-DE per client and iteration, {size}", least(flops=acting + fitting)
    yield Row(name, ours, whose, plain, least=limit)
    yield Row(name, ours, "the bar", BAR, kind="bar")
    yield Row(name, ours, f"the bar, {whose}, over {TIMES:g}", plain / TIMES, kind="bar")
    without = least(flops=acting)
    yield Row("the same without the hyperparameter fits", ours - fits, whose, plain - plain_fits, least=without)
    authors = "the authors' code"
    yield Row("DP-FTS-DE per client and iteration, same run", ours, authors, RECORDED[0], kind="recorded")
    yield Row("the same without fits", ours - fits, authors, RECORDED[0] - RECORDED[1], kind="recorded")


def _least_of_landmine() -> tuple[float, float]:
    """Operations of an iteration's candidates, and of its share of a fit.

    A candidate costs one cosine and four multiplications a feature; a step of a fit a factorisation, an
    inverse and a kernel matrix with its derivatives.
    """
    candidates = 256 * 100 * (TRANSCENDENTAL + 4.0)
    steps = [40.0 * (t**3 + (TRANSCENDENTAL + 12.0) * t**2) for t in range(N_INIT + 1, N_INIT + ROUNDS, REFIT)]
    return candidates, sum(steps) / ROUNDS


def _ours(rounds: int) -> tuple[float, float]:
    from privbo.algorithms.thompson import local_model

    surfaces, spent = _Surfaces(N_CLIENTS), [0.0]
    problem = pb.Problem(
        space={"C": pb.Real(1e-4, 10.0), "gamma": pb.Real(0.01, 10.0)}, batch_objective=surfaces, n_clients=N_CLIENTS
    )
    model = pb.OwnModel(kernel="se", n_features=100, refit_every=REFIT, n_candidates=256)
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.35, calibration="paper", noise="simulation")
    fit = vars(local_model)["fit"]

    def counted(*arguments: object, **settings: object) -> object:
        seconds, fitted = timed(partial(fit, *arguments, **settings))
        spent[0] += seconds
        return fitted

    start = time.process_time()
    with patch.object(local_model, "fit", counted):
        pb.run(problem, replace(pb.DPFTSDE.paper(), own=model), privacy=privacy, rounds=rounds, seed=0)
    whole = time.process_time() - start - surfaces.seconds
    return whole / (N_CLIENTS * rounds), spent[0] / (N_CLIENTS * rounds)


class _Plain:
    """One client in the authors' way: every quantity computed anew, every point on its own.

    Features are cosines of one length scale divided by their norm; weights are drawn from a dense
    posterior; a function is searched by 1,000 single points and L-BFGS-B from 20 starts.
    """

    def __init__(self, seed: int, n_features: int = 100) -> None:
        self.generator = np.random.default_rng(seed)
        self.frequencies = self.generator.standard_normal((n_features, 2)) / 0.3
        self.phases = self.generator.uniform(0.0, 2.0 * np.pi, n_features)

    def phi(self, point: FloatArray) -> FloatArray:
        """Features of one point."""
        waves = np.cos(self.frequencies @ point + self.phases)
        return np.asarray(waves / np.linalg.norm(waves))

    def weights(self, points: FloatArray, values: FloatArray, noise: float = 1e-4) -> FloatArray:
        """A draw of the weights from their posterior."""
        phi = np.array([self.phi(point) for point in points])
        inverse = np.linalg.inv(phi.T @ phi + noise * np.eye(len(self.phases)))
        return self.generator.multivariate_normal(inverse @ phi.T @ values, noise * inverse)

    def search(self, function: Callable[[FloatArray], float]) -> FloatArray:
        """The best point found for one function."""
        from scipy.optimize import minimize

        tried = self.generator.random((1000, 2))
        best = tried[np.argmax([function(point) for point in tried])]
        height = function(best)
        for point in self.generator.random((20, 2)):
            found = minimize(lambda x: -function(x), point, bounds=[(0.0, 1.0)] * 2, method="L-BFGS-B")
            if -found.fun >= height:
                best, height = found.x, -found.fun
        return np.asarray(best)

    def fit(self, points: FloatArray, values: FloatArray) -> None:
        """Hyperparameters by maximum likelihood from ten starts."""
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        kernel = ConstantKernel(1.0) * RBF(0.3) + WhiteKernel(1e-2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            GaussianProcessRegressor(kernel, n_restarts_optimizer=9, random_state=0).fit(points, values)

    def regional(self, vectors: FloatArray, point: FloatArray) -> float:
        """Height of the shared vectors at one point: that of the quadrant's."""
        quadrant = 2 * int(point[0] >= 0.5) + int(point[1] >= 0.5)
        return float(vectors[quadrant] @ self.phi(point))

    def per_iteration(self) -> tuple[float, float]:
        """CPU seconds of an iteration on average over a run, and those of its fits."""
        points = self.generator.random((N_INIT + ROUNDS, 2))
        values = _Surfaces(1)(np.zeros(len(points), dtype=np.int64), points)
        draw = float(np.mean([smallest(partial(self.weights, points[:t], values[:t])) for t in (10, 40, 70)]))
        weights, vectors = self.weights(points[:40], values[:40]), self.generator.normal(size=(4, len(self.phases)))
        own = smallest(lambda: self.search(lambda x: float(weights @ self.phi(x))))
        shared = smallest(lambda: self.search(partial(self.regional, vectors)))
        alone = 1.0 - float(np.mean(1.0 / np.arange(1, ROUNDS + 1)))  # 1 - p_t = 1/t
        fits = [smallest(partial(self.fit, points[:t], values[:t])) for t in (10, 30, 50, 70)]
        fit = float(np.mean(fits)) / REFIT
        return fit + draw * (1.0 + alone) + alone * own + (1.0 - alone) * shared, fit


def _features(form: Literal["paired", "phase"], lengthscale: float) -> FourierFeatures:
    """A map of 100 features of the unit square."""
    space = pb.Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    algorithm = pb.DPFTSDE(n_features=100, lengthscale=lengthscale, features=form)
    return algorithm.draw_features(Setting(space=space, n_clients=1, rounds=1, public_seed=0))


def _quality() -> Iterator[Row]:
    """Share of the true maximum on a 601 x 601 grid that searches reach."""
    import torch

    from privbo.algorithms.thompson.maximise import Search, maximise

    plain = _Plain(1)
    axis = np.linspace(0.0, 1.0, 601)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    space = pb.Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    n = 12
    for label, lengthscale, starts, candidates in (("own draws", 0.2, 4, 256), ("server vectors", 0.01, 8, 4096)):
        features = _features("phase", lengthscale)
        plain.frequencies, plain.phases = features.frequencies, np.asarray(features.phases)
        vectors = np.random.default_rng(2).normal(size=(n, 4 if label == "server vectors" else 1, 100))

        def heights(units: FloatArray, chosen: FloatArray, features: FourierFeatures = features) -> Tensor:
            phi = features(torch.as_tensor(units))
            every = torch.einsum("...cm,npm->ncp", phi[0], torch.as_tensor(chosen)) if len(units) == 1 else None
            if every is None:
                every = torch.einsum("ncm,npm->ncp", phi, torch.as_tensor(chosen))
            parts = chosen.shape[1]
            quadrant = (2 * (units[..., 0] >= 0.5) + (units[..., 1] >= 0.5)) * (parts > 1)
            return every.gather(2, torch.as_tensor(quadrant).expand(len(chosen), -1)[..., None])[..., 0]

        top = np.max([heights(part[None], vectors).amax(1).numpy() for part in np.array_split(grid, 90)], axis=0)
        search = Search(n_candidates=candidates, n_starts=starts)
        found = maximise(partial(heights, chosen=vectors), space, search, np.random.default_rng(3))
        ours = float((heights(found[:, None], vectors)[:, 0].numpy() / top).mean())
        searched = [plain.search(partial(_height, plain, w)) for w in vectors[:4]]
        theirs = heights(np.array(searched)[:, None], vectors[:4])[:, 0].numpy() / top[:4]
        peer = "share the authors' way reaches (4 functions)"
        name = f"{label}: share of the maximum"
        yield Row(name, ours, peer, float(theirs.mean()), more_is_better=True, unit="share")


def _height(plain: _Plain, vectors: FloatArray, point: FloatArray) -> float:
    return float(vectors[0] @ plain.phi(point)) if len(vectors) == 1 else plain.regional(vectors, point)


def _weight_draws() -> Iterator[Row]:
    """200 clients' posterior weights, M=100, 60 points: BoTorch's batched pathwise sampler beside ours."""
    import torch

    from privbo.algorithms.thompson.posterior import GrowingRidge, ridge_sample
    from privbo.algorithms.thompson.streams import Stream, client_normals

    n, t, m, noise = 200, 60, 100, 0.1
    generator = np.random.default_rng(0)
    points = torch.as_tensor(generator.random((n, t, 2)))
    values = torch.as_tensor(generator.normal(size=(n, t)))
    features = _features("paired", 0.3)
    ridge = GrowingRidge(n_clients=n, capacity=t, n_features=m, noise=noise)
    for index in range(t - 1):
        ridge.append(features(points[:, index]))

    def normals() -> dict[str, torch.Tensor]:
        clients = np.arange(n)
        draws = (client_normals(0, clients, 1, stream, (k,)) for stream, k in ((Stream.PRIOR, m), (Stream.CHOICE, t)))
        return dict(zip(("prior", "observation_noise"), map(torch.as_tensor, draws), strict=True))

    def grown() -> None:
        ridge.count = t - 1
        ridge.append(features(points[:, -1]))
        ridge.sample(values, **normals())

    size = f"{n} clients' posterior weights, M={m}, {t} points"
    try:
        peer = _botorch(points, values, m, noise)
    except ModuleNotFoundError:
        sys.stderr.write(f"no row: {size}: BoTorch is not installed (the extra `bench`)\n")
        return
    whose = "BoTorch's pathwise sampler"
    moved = of_draws([t])
    ours, limit = smallest(grown, times=DRAWS), least(flops=n * moved[0], bytes_moved=n * moved[1])
    yield Row(f"{size}, as a run draws them (one new point)", ours, whose, peer, least=limit)
    fresh = smallest(lambda: ridge_sample(features(points), values, noise, **normals()), times=DRAWS)
    yield Row(
        f"{size}, from nothing", fresh, whose, peer, least=least(flops=n * (4.0 * t * m + t**3 / 3.0 + t * t * m))
    )


def of_draws(lengths: Iterable[int], m: int = 100) -> tuple[float, float]:
    """Operations and bytes of a client's posterior draws at some lengths of history.

    Features and inverse factors are gone through twice; a draw is two products with the features.
    """
    found = np.array([(4.0 * t * m, 2.0 * 8.0 * t * (m + t)) for t in lengths]).sum(axis=0)
    return float(found[0]), float(found[1])


def _botorch(points: Tensor, values: Tensor, n_features: int, noise: float) -> float:
    """BoTorch's draw of the same functions: as many random features, the same kernel and noise."""
    import torch
    from botorch.models import SingleTaskGP
    from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
    from gpytorch.kernels import RBFKernel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = RBFKernel(batch_shape=points.shape[:1]).double()
        kernel.lengthscale = 0.3
        model = SingleTaskGP(points, values[..., None], covar_module=kernel, outcome_transform=None)
        model.likelihood.noise = noise
        model.eval()
        prior = partial(draw_kernel_feature_paths, num_features=n_features)
        with torch.no_grad():
            return smallest(lambda: draw_matheron_paths(model, torch.Size([1]), prior_sampler=prior), times=DRAWS)
