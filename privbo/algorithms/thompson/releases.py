"""A multi-task Gaussian process: what noisy evaluations of some sites say about the surfaces of all of them.

A site's surface is ``level + scale (sqrt(r) common + sqrt(1 - r) own)``: levels are random, the common and the own part
have one kernel, and r is the correlation of two sites' surfaces. Releases carry noise of a known deviation. Kernel,
correlation and scale are averaged over their posterior on a grid; numbers enter a Matern 5/2 kernel, and every category
that differs multiplies it by a factor. Everything is a function of public numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import softmax

from privbo.algorithms.thompson.exploration import first_points
from privbo.protocol.common import spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.processes import limited_loaded_threads
from privbo.protocol.space import Categorical, Space

_CORRELATIONS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97)
_LENGTHS, _FACTORS = (0.15, 0.3, 0.6, 1.2), (0.4, 0.8)
_VARIANCES = np.array([1.5, 0.5, 0.15, 0.04])  # of surfaces, in units of the releases' variance
_NUGGET, _LEVEL, _MIDDLE = 1e-4, 1.0, 10.0  # variances over that of a surface: rounding, sites' levels, their mean
_SCORES = 0.1  # the likeliest deviation of a surface beforehand, within a factor e
STARTING = 4  # points of a start, with which a site goes on after a shorter front that says too little
_LEAST_SHARE = 0.05  # of the variance of a surface: what is expected of like sites holds more
_LEAST = 1e-3  # weight below which a model is left out
_NET = 1024  # points that stand for a larger space
_DRAWS = 256  # of the mean surface


def front(setting: Setting, sites: IntArray, n_points: int) -> FloatArray:
    """Give the points that some sites evaluate first, ``(n, n_points, n_dims)``; public.

    Few points say more of a surface half a step away from its edges, as the middles of so many cells are.
    """
    count = max(n_points, STARTING)
    return first_points(setting, sites, count, 1.0 - 1.0 / count)[:, :n_points]


@dataclass(frozen=True, kw_only=True, eq=False)
class Releases:
    """Released evaluations of all sites; public.

    Attributes:
        sites: Whose each is, ``(m,)``.
        units: Where, ``(m, n_dims)``.
        values: Noisy values, ``(m,)``.
        noise_stddev: Standard deviation of the noise in each, ``(m,)``.
    """

    sites: IntArray
    units: FloatArray
    values: FloatArray
    noise_stddev: FloatArray

    def __post_init__(self) -> None:
        count = len(self.sites)
        if not (len(self.units) == len(self.values) == len(self.noise_stddev) == count):
            raise ConfigurationError("releases: sites, units, values and noise_stddev must have one entry per release")
        if not (np.isfinite(self.values).all() and np.isfinite(self.noise_stddev).all()):
            raise ConfigurationError("releases: values and noise_stddev must be finite")

    @staticmethod
    def of_front(points: FloatArray, values: FloatArray, noise_stddev: FloatArray) -> Releases:
        """Give those of a front ``(n_sites, n_points, n_dims)``, each site with its own noise, ``(n_sites,)``."""
        n_sites, n_points, n_dims = points.shape
        return Releases(
            sites=np.repeat(np.arange(n_sites), n_points),
            units=points.reshape(-1, n_dims),
            values=values.ravel(),
            noise_stddev=np.repeat(noise_stddev, n_points),
        )


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Matern 5/2 of the numbers, times a factor per category that differs.

    Attributes:
        length: Length scale of the numbers, in units of the cube.
        factor: Of a category that differs.
        categories: Which parameters are categories.
    """

    length: float
    factor: float
    categories: tuple[bool, ...]

    def __call__(self, units: FloatArray, others: FloatArray) -> FloatArray:
        """Correlations of points ``(n, n_dims)`` and ``(m, n_dims)``, ``(n, m)``."""
        square, found = np.zeros((len(units), len(others))), np.ones((len(units), len(others)))
        for i, is_category in enumerate(self.categories):
            apart = units[:, i, None] - others[:, i]
            if is_category:
                found[apart != 0.0] *= self.factor
            else:
                square += (apart / self.length) ** 2
        r = np.sqrt(5.0 * square)
        return np.asarray(found * (1.0 + r + r * r / 3.0) * np.exp(-r))


def kernels(space: Space) -> tuple[Kernel, ...]:
    """Give the kernels that are averaged over."""
    categories = tuple(isinstance(parameter, Categorical) for parameter in space.parameters.values())
    factors = _FACTORS if any(categories) else (1.0,)
    lengths = _LENGTHS if not all(categories) else (1.0,)
    return tuple(
        Kernel(length=length, factor=factor, categories=categories)
        for length, factor in itertools.product(lengths, factors)
    )


@dataclass(frozen=True)
class Model:
    """One kernel, correlation and variance of surfaces.

    Attributes:
        weight: Of the model, among all.
        kernel: Number of the kernel.
        correlation: r, of the surfaces of two sites.
        variance: Of a surface.
    """

    weight: float
    kernel: int
    correlation: float
    variance: float


class Posterior:
    """Models of all sites by the releases alone; public, and the same for all sites.

    Args:
        space: What is searched.
        releases: Of all sites.

    Attributes:
        models: By weight, the marginal likelihood of the releases; largest first.
        variance: Of a surface, expected.
    """

    @limited_loaded_threads(1)
    def __init__(self, space: Space, releases: Releases) -> None:
        self._releases, self._kernels = releases, kernels(space)
        self._net = spread(space, _NET, np.zeros(space.n_dims))
        self._known = [kernel(releases.units, releases.units) for kernel in self._kernels]
        self._values = releases.values - releases.values.mean()
        self.models = self._fitted()
        self.variance = sum(model.weight * model.variance for model in self.models)
        self._weights, self._middle = self._weighted(), 0.0
        self._middle = float(self.expected(self._net).mean())

    def _fitted(self) -> tuple[Model, ...]:
        variances, found, logs = max(float(self._values.var()), 1e-12) * _VARIANCES, [], []
        for number, r, variance in itertools.product(range(len(self._kernels)), _CORRELATIONS, variances):
            factor = self._factor(number, r, variance)
            white = solve_triangular(factor, self._values, lower=True, check_finite=False)
            misfit = float(white @ white) / variance + 2.0 * np.log(factor.diagonal()).sum()
            misfit += len(white) * np.log(variance) + np.log(np.sqrt(variance) / _SCORES) ** 2
            logs.append(-0.5 * misfit)
            found.append((number, r, float(variance)))
        weights = softmax(logs)
        order = np.argsort(-weights, kind="stable")
        return tuple(Model(float(weights[i]), *found[i]) for i in order)

    def _factor(self, kernel: int, r: float, variance: float) -> FloatArray:
        """Cholesky factor of the releases' covariance, over the variance of a surface."""
        releases = self._releases
        same = releases.sites[:, None] == releases.sites
        noise = np.diag(releases.noise_stddev**2 / variance + _NUGGET)
        covariance = (r + (1.0 - r) * same) * self._known[kernel] + _LEVEL * same + _MIDDLE + noise
        return np.linalg.cholesky(covariance)

    def _weighted(self) -> dict[int, FloatArray]:
        """Weights of every kernel's values at the releases' points in the mean surface, ``(m,)`` by kernel."""
        found: dict[int, FloatArray] = {}
        alike = 1.0 / len(np.unique(self._releases.sites))
        for model in self.models:
            if model.weight > _LEAST:
                factor = self._factor(model.kernel, model.correlation, model.variance)
                white = solve_triangular(factor, self._values, lower=True, check_finite=False)
                share = model.weight * (model.correlation + (1.0 - model.correlation) * alike)
                weights = share * solve_triangular(factor, white, lower=True, trans=1, check_finite=False)
                found[model.kernel] = found.get(model.kernel, 0.0) + weights
        return found

    def expected(self, units: FloatArray) -> FloatArray:
        """Give the mean of all sites' surfaces at points ``(n, n_dims)``, as expected, ``(n,)``; 0 over the space."""
        found = np.full(len(units), -self._middle)
        for number, weights in self._weights.items():
            # A sum of each row: a product's rounding errors would depend on how many points there are.
            found += (self._kernels[number](units, self._releases.units) * weights).sum(axis=1)
        return found

    @property
    def share(self) -> float:
        """Share of the variance of a surface that the expected values hold."""
        return float(np.square(self.expected(self._net)).mean()) / self.variance

    @property
    def stands_out(self) -> bool:
        """Whether the expected values vary more than a release's noise, and more than those of unlike sites do."""
        noise = float(np.median(self._releases.noise_stddev))
        return self.share >= _LEAST_SHARE and self.share * self.variance > noise**2

    def best(self) -> FloatArray:
        """Give the setting whose mean over all sites is expected to be largest, ``(n_dims,)``."""
        return np.asarray(self._net[int(np.argmax(self.expected(self._net)))])

    @limited_loaded_threads(1)
    def likely_best(self, count: int, generator: np.random.Generator) -> FloatArray:
        """Give the settings that are best in most draws of the mean surface, ``(count, n_dims)``.

        Of those that are best in as many draws, what is expected decides. A space of fewer settings is given again.
        """
        draws = self._draws(generator)
        often = np.bincount(draws.argmax(axis=0), minlength=len(self._net))
        order = np.lexsort((-self.expected(self._net), -often))
        return np.asarray(self._net[np.resize(order, count)])

    def _draws(self, generator: np.random.Generator) -> FloatArray:
        """Draws of the mean of all sites' surfaces at the net's points, ``(c, n)``, of every model by its weight."""
        units, net, found = self._releases.units, self._net, []
        alike = 1.0 / len(np.unique(self._releases.sites))
        counts = generator.multinomial(_DRAWS, np.array([model.weight for model in self.models]))
        for model, drawn in zip(self.models, counts, strict=True):
            if drawn:
                factor = self._factor(model.kernel, model.correlation, model.variance)
                share = model.correlation + (1.0 - model.correlation) * alike
                kernel = self._kernels[model.kernel]
                known = solve_triangular(factor, share * kernel(units, net), lower=True, check_finite=False)
                mean = known.T @ solve_triangular(factor, self._values, lower=True, check_finite=False)
                rest = share * kernel(net, net) - known.T @ known + _NUGGET * np.eye(len(net))
                root = np.sqrt(model.variance) * np.linalg.cholesky(rest)
                found.append(mean[:, None] + root @ generator.standard_normal((len(net), drawn)))
        return np.concatenate(found, axis=1)
