"""A multi-task Gaussian process: what noisy evaluations of some sites say about the surface of another.

A site's surface is ``level + scale (sqrt(r) common + sqrt(1 - r) own)``: levels are random, the common and the own part
have one kernel, and r is the correlation of two sites' surfaces. Releases carry noise of a known deviation. Kernel,
correlation and scale are averaged over their posterior on a grid; numbers enter a Matern 5/2 kernel, and every category
that differs multiplies it by a factor.

``front`` gives the public design that sites evaluate and release. After it a site goes on by itself: ``propose`` makes
its next point of its own exact values, with the other sites' releases as prior. How much the prior counts follows from
the site's own values. What ``propose`` returns depends on values that are never released, so it is never released.
Everything is a function of its arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment
from scipy.special import erfcx, ndtr, softmax

from privbo.protocol.common import different, spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Categorical, Space

_CORRELATIONS = np.array([0.0, 0.3, 0.6, 0.8, 0.9, 0.97])
_LENGTHS, _FACTORS = (0.15, 0.3, 0.6, 1.2), (0.4, 0.8)
_VARIANCES = np.array([1.5, 0.5, 0.15, 0.04])  # of surfaces, in units of the releases' variance
_NUGGET, _LEVEL, _MIDDLE = 1e-4, 1.0, 10.0  # variances over that of a surface: rounding, sites' levels, their mean
_SCORES = 0.1  # the likeliest deviation of a surface beforehand, within a factor e
_LEAST, _LITTLE = 1e-3, 1e-2  # weights below which a model is left out, by releases and by a site's own values
_NET = 1024  # a larger space is searched on a net of so many points, and close to the best points so far
_STARTS, _CLOUD = 2, 24  # such points, and how many are tried around each
_TRIED = 200  # points among which the farthest is sought
_TINY = 1e-9


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

    def without(self, site: int) -> Releases:
        """Give those of the other sites."""
        rest = self.sites != site
        return Releases(
            sites=self.sites[rest],
            units=self.units[rest],
            values=self.values[rest],
            noise_stddev=self.noise_stddev[rest],
        )


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Matern 5/2 of the numbers, times a factor per category that differs.

    Attributes:
        lengths: Length scale by parameter, in units of the cube; unused at categories.
        factor: Of a category that differs.
        categories: Which parameters are categories.
    """

    lengths: tuple[float, ...]
    factor: float
    categories: tuple[bool, ...]

    def __call__(self, units: FloatArray, others: FloatArray) -> FloatArray:
        """Correlations of points ``(n, n_dims)`` and ``(m, n_dims)``, ``(n, m)``."""
        square, found = np.zeros((len(units), len(others))), np.ones((len(units), len(others)))
        for i, (length, is_category) in enumerate(zip(self.lengths, self.categories, strict=True)):
            apart = units[:, i, None] - others[:, i]
            if is_category:
                found[apart != 0.0] *= self.factor
            else:
                square += (apart / length) ** 2
        r = np.sqrt(5.0 * square)
        return np.asarray(found * (1.0 + r + r * r / 3.0) * np.exp(-r))


@lru_cache(maxsize=64)
def _kernels(categories: tuple[bool, ...]) -> tuple[Kernel, ...]:
    factors = _FACTORS if any(categories) else (1.0,)
    lengths = _LENGTHS if not all(categories) else (1.0,)
    return tuple(
        Kernel(lengths=(length,) * len(categories), factor=factor, categories=categories)
        for length, factor in itertools.product(lengths, factors)
    )


def kernels(space: Space) -> tuple[Kernel, ...]:
    """Give the kernels that are averaged over."""
    return _kernels(_categories(space))


def _categories(space: Space) -> tuple[bool, ...]:
    return tuple(isinstance(parameter, Categorical) for parameter in space.parameters.values())


def net(space: Space) -> FloatArray:
    """Give the points of a small space, or points spread over a larger one, ``(c, n_dims)``."""
    return spread(space, _NET, np.zeros(space.n_dims))


def front(space: Space, n_sites: int, n_points: int, seed: int) -> FloatArray:
    """Spread a public design over all sites: points far from each other, and those of one site above all.

    Args:
        space: What is searched.
        n_sites: K.
        n_points: Of each site.
        seed: Public.

    Returns:
        Canonical points, ``(n_sites, n_points, n_dims)``.

    Example:
        >>> import privbo as pb
        >>> front(pb.Space({"dose": pb.Real(0.0, 1.0)}), n_sites=3, n_points=2, seed=0).shape
        (3, 2, 1)
    """
    if n_sites < 1 or n_points < 1:
        raise ConfigurationError(f"n_sites={n_sites}, n_points={n_points}: a front has at least one point of one site")
    points, generator, categories = net(space), np.random.default_rng([seed, n_sites, n_points]), _categories(space)
    order: list[int] = []
    nearest = np.full(len(points), np.inf)
    while len(order) < n_sites * n_points:
        some = generator.choice(len(points), min(len(points), _TRIED), replace=False)
        order.append(int(some[np.argmax(nearest[some])]))
        nearest = np.minimum(nearest, _distances(points, points[order[-1:]], categories)[:, 0])
        if nearest.max() < 1e-12:  # every point is used
            nearest[:] = np.inf
    rows = points[np.array(order)].reshape(n_points, n_sites, space.n_dims)
    found = [rows[0]]
    for row in rows[1:]:
        far = np.min([_distances(one, row, categories) for one in found], axis=0)
        found.append(row[linear_sum_assignment(-far)[1]])
    return np.stack(found, axis=1)


def _distances(units: FloatArray, others: FloatArray, categories: Sequence[bool]) -> FloatArray:
    apart = units[:, None] - others
    return np.asarray(np.sqrt(np.where(categories, 0.5 * (apart != 0.0), apart**2).sum(axis=-1)))


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The common function by one kernel, as the releases of other sites give it.

    Attributes:
        kernel: Of all surfaces.
        weights: Logarithm of the model's weight for each of the correlations.
        units: Where the others' releases are, ``(m, n_dims)``.
        factor: Cholesky factor of their covariance over the variance of a surface, ``(m, m)``.
        covariance: Of the common function with a release, over that at the point: the root of r.
        values: The releases' values, whitened, ``(m,)``.
        common: The common function at the net's points: what is known, ``(m, c)``.
    """

    kernel: Kernel
    weights: FloatArray
    units: FloatArray
    factor: FloatArray
    covariance: float
    values: FloatArray
    common: FloatArray

    def known(self, units: FloatArray) -> FloatArray:
        """Whitened covariance of releases and the common function at points, ``(m, n)``."""
        return _solved(self.factor, self.covariance * self.kernel(self.units, units))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known of a site's surface before its own values count; public.

    Attributes:
        space: What is searched.
        net: Candidates, ``(c, n_dims)``.
        parts: By kernel.
    """

    space: Space
    net: FloatArray
    parts: tuple[Part, ...]


def alone(space: Space) -> Prior:
    """Give the prior of a site of which no other site says anything."""
    points, nothing = net(space), np.empty(0)
    parts = [
        Part(
            kernel=kernel,
            weights=np.where(_CORRELATIONS == 0.0, 0.0, -np.inf),
            units=np.empty((0, space.n_dims)),
            factor=np.empty((0, 0)),
            covariance=0.0,
            values=nothing,
            common=np.empty((0, len(points))),
        )
        for kernel in kernels(space)
    ]
    return Prior(space=space, net=points, parts=tuple(parts))


class Posterior:
    """Models of all sites by the releases alone; public, and the same for all sites.

    Args:
        space: What is searched.
        releases: Of all sites so far.

    Attributes:
        models: By weight, the marginal likelihood of the releases; largest first.
    """

    def __init__(self, space: Space, releases: Releases) -> None:
        self.space, self.releases, self._kernels, self._net = space, releases, kernels(space), net(space)
        self._known = [kernel(releases.units, releases.units) for kernel in self._kernels]
        self.models = self._fitted()

    def _fitted(self) -> tuple[Model, ...]:
        values = self.releases.values - self.releases.values.mean()
        variances, found, logs = max(float(values.var()), 1e-12) * _VARIANCES, [], []
        for number, r, variance in itertools.product(range(len(self._kernels)), _CORRELATIONS, variances):
            factor = _factor(self.releases, self._known[number], r, variance)
            white = _solved(factor, values)
            misfit = float(white @ white) / variance + 2.0 * np.log(factor.diagonal()).sum()
            misfit += len(values) * np.log(variance) + np.log(np.sqrt(variance) / _SCORES) ** 2
            logs.append(-0.5 * misfit)
            found.append((number, float(r), float(variance)))
        weights = softmax(logs)
        order = np.argsort(-weights, kind="stable")
        return tuple(Model(float(weights[i]), *found[i]) for i in order)

    def of(self, site: int) -> Prior:
        """Give what the others' releases say to a site; its own are left out, since it knows its values exactly.

        Half of the prior of its correlation with the others is the posterior of the others' among themselves; of the
        rest half says that the others say nothing.
        """
        others = self.releases.without(site)
        if not len(others.sites):
            return alone(self.space)
        among = np.array([sum(m.weight for m in self.models if m.correlation == q) for q in _CORRELATIONS])
        correlations = np.log(0.5 * among + np.where(_CORRELATIONS == 0.0, 0.25, 0.25 / (len(_CORRELATIONS) - 1)))
        centred, parts = others.values - others.values.mean(), []
        rest = self.releases.sites != site
        for number, kernel in enumerate(self._kernels):
            mine = [model for model in self.models if model.kernel == number]
            weight = sum(model.weight for model in mine)
            if weight <= _LEAST:
                continue
            best = next(model for model in mine if model.correlation > 0.0)
            factor = _factor(others, self._known[number][np.ix_(rest, rest)], best.correlation, best.variance)
            root = float(np.sqrt(best.correlation))
            known = _solved(factor, root * self._common[number][rest])
            parts.append(
                Part(
                    kernel=kernel,
                    weights=np.log(weight) + correlations,
                    units=others.units,
                    factor=factor,
                    covariance=root,
                    values=_solved(factor, centred),
                    common=known,
                )
            )
        return Prior(space=self.space, net=self._net, parts=tuple(parts))

    def best(self) -> FloatArray:
        """Give the setting whose mean over all sites is expected to be largest, ``(n_dims,)``, by releases alone."""
        centred, expected = self.releases.values - self.releases.values.mean(), np.zeros(len(self._net))
        alike = 1.0 / len(np.unique(self.releases.sites))
        for model in self.models:
            if model.weight > _LEAST:
                factor = _factor(self.releases, self._known[model.kernel], model.correlation, model.variance)
                weights = solve_triangular(factor, _solved(factor, centred), lower=True, trans=1, check_finite=False)
                share = model.correlation + (1.0 - model.correlation) * alike
                expected += model.weight * share * (weights @ self._common[model.kernel])
        return np.asarray(self._net[int(np.argmax(expected))])

    @cached_property
    def _common(self) -> list[FloatArray]:
        """Correlations of the releases' points with the net, by kernel."""
        return [kernel(self.releases.units, self._net) for kernel in self._kernels]


def propose(prior: Prior, units: FloatArray, values: FloatArray) -> FloatArray:
    """PRIVATE: a site's next point, of largest expected improvement on its best value, ``(n_dims,)``.

    Level and scale are the site's own; kernel and correlation with the others are averaged over.

    Args:
        prior: Of the others.
        units: Where the site evaluated, ``(t, n_dims)``.
        values: Its exact values, ``(t,)``.

    Example:
        >>> import privbo as pb
        >>> space = pb.Space({"dose": pb.Int(1, 9)})
        >>> units = space.grid()[[0, 4, 8]]
        >>> 5 < space.decode(propose(alone(space), units, np.array([0.1, 0.7, 0.6])))["dose"] < 9
        True
    """
    if not len(values) or not np.isfinite(values).all():
        raise ConfigurationError("propose needs one finite value at least; give failed evaluations the lowest score")
    near = _nearby(prior, units, values)
    points = np.concatenate([prior.net, near])
    owns = [_Own(part, units, values) for part in prior.parts]
    top = max(float(own.logs.max()) for own in owns)
    logs = [own.log_improvements(points, near, float(values.max()), top + np.log(_LITTLE)) for own in owns]
    every = np.concatenate(logs)
    highest = every.max(axis=0)
    wish = highest + np.log(np.exp(every - highest).sum(axis=0))
    seen = (points[:, None] == units).all(axis=2).any(axis=1)
    return np.asarray(points[int(np.argmax(np.where(seen, -np.inf, wish)))])


class _Own:
    """A site's own values by one kernel and every correlation with the others.

    Level and scale are integrated out by a flat prior.
    """

    def __init__(self, part: Part, units: FloatArray, values: FloatArray) -> None:
        self._part, self._units = part, units
        possible = part.weights > -np.inf
        q, self._here = _CORRELATIONS[possible], part.known(units)
        shared = self._here.T @ self._here
        covariance = part.kernel(units, units) - q[:, None, None] * shared + _NUGGET * np.eye(len(units))
        self._inverse = np.linalg.inv(np.linalg.cholesky(covariance))  # of the factor
        self._ones = self._inverse.sum(axis=2)
        self._precision = np.square(self._ones).sum(axis=1)
        expected = np.sqrt(q)[:, None] * (part.values @ self._here)
        white = np.einsum("kij,kj->ki", self._inverse, values - expected)
        self._level = (self._ones * white).sum(axis=1) / self._precision
        self._rest = white - self._level[:, None] * self._ones
        degrees = max(len(values) - 1, 1)
        self._variance = (np.square(self._rest).sum(axis=1) + _TINY) / degrees
        halves = np.log(np.diagonal(self._inverse, axis1=1, axis2=2)).sum(axis=1) - 0.5 * np.log(self._precision)
        self._q, self.logs = q, part.weights[possible] + halves - 0.5 * degrees * np.log(self._variance)

    def log_improvements(self, points: FloatArray, near: FloatArray, best: float, least: float) -> FloatArray:
        """Log of weight times expected improvement, ``(k, n)``, of the models whose log weight is ``least`` at least.

        Args:
            points: Those of the net, then ``near``.
            near: The others.
            best: Value to be improved upon.
            least: See above.
        """
        some = self.logs >= least
        if not some.any():
            return np.empty((0, len(points)))
        part, q, inverse = self._part, self._q[some], self._inverse[some]
        there = np.concatenate([part.common, part.known(near)], axis=1)
        shared = self._here.T @ there
        crossed = part.kernel(self._units, points) - q[:, None, None] * shared
        white = inverse @ crossed
        missing = 1.0 - np.einsum("kt,ktn->kn", self._ones[some], white)  # of the level
        mean = np.sqrt(q)[:, None] * (part.values @ there) + self._level[some, None]
        mean += np.einsum("kt,ktn->kn", self._rest[some], white)
        share = 1.0 - q[:, None] * np.square(there).sum(axis=0) - np.square(white).sum(axis=1)
        share += missing**2 / self._precision[some, None]
        stddev = np.sqrt(np.maximum(share, 1e-8) * self._variance[some, None])
        return np.asarray(self.logs[some, None] + log_improvement(mean - best, stddev))


def log_improvement(gain: FloatArray, stddev: FloatArray) -> FloatArray:
    """Logarithm of E max(g, 0) for normal g of mean ``gain``, whatever the distance (Ament et al. 2023, eq. 9)."""
    u = gain / stddev
    found = -0.5 * u * u - 0.5 * np.log(2.0 * np.pi) + np.log(stddev)
    # phi(u) + u Phi(u) = phi(u) (1 - |u| sqrt(pi / 2) erfcx(|u| / sqrt 2)), which tends to phi(u) / u^2.
    near, series = u > -1.0, u < -1e3
    direct, far, middle = u[near], -u[series], -u[~(near | series)]
    found[near] = np.log(np.exp(-0.5 * direct * direct) / np.sqrt(2.0 * np.pi) + direct * ndtr(direct))
    found[near] += np.log(stddev[near])
    found[series] -= 2.0 * np.log(far)
    found[~(near | series)] += np.log(1.0 - middle * np.sqrt(0.5 * np.pi) * erfcx(middle / np.sqrt(2.0)))
    return np.asarray(found)


def _nearby(prior: Prior, units: FloatArray, values: FloatArray) -> FloatArray:
    """Points around a site's best ones, where the net is not the whole space, ``(n, n_dims)``."""
    space = prior.space
    if space.grid(_NET) is not None:
        return np.empty((0, space.n_dims))
    best = units[np.argsort(-values, kind="stable")[:_STARTS]]
    radius = len(prior.net) ** (-1.0 / space.n_dims) * 0.5 ** np.arange(_CLOUD // 6).repeat(6)
    steps = radius[:, None] * np.random.default_rng(len(values)).standard_normal((_CLOUD, space.n_dims))
    found = different(space.snap(np.clip(best[:, None] + steps, 0.0, 1.0)).reshape(-1, space.n_dims))
    return np.asarray(found[space.allows(found)])


def _factor(releases: Releases, correlations: FloatArray, r: float, variance: float) -> FloatArray:
    """Cholesky factor of the releases' covariance, over the variance of a surface."""
    same = releases.sites[:, None] == releases.sites
    noise = np.diag(releases.noise_stddev**2 / variance + _NUGGET)
    return np.linalg.cholesky((r + (1.0 - r) * same) * correlations + _LEVEL * same + _MIDDLE + noise)


def _solved(factor: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False)) if len(factor) else right
