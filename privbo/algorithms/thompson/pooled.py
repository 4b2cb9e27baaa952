"""The pooled function: all releases so far as one function, and how far public numbers let it be trusted.

The pooled weights carry Gaussian noise of a public standard deviation, so the variance that noise alone would give
the function over the space is public too. A function that does not stand above it is left out; of one that does,
clients take both what is expected and how uncertain it is.

A mean of many clients' ridge weights is no ridge of all their values together: each client saw few points, so what they
have in common arrives blurred. The blur depends on how many points were seen and on nothing private; it is
taken back as far as the noise allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import softmax

from privbo.algorithms.thompson.evaluations import without_minima
from privbo.algorithms.thompson.features import SMOOTHNESS, InducingFeatures, times
from privbo.algorithms.thompson.maximise import Functions, public_points
from privbo.algorithms.thompson.posterior import Shared, as_array, is_compiled
from privbo.algorithms.thompson.ridge import batch_product
from privbo.algorithms.thompson.settings import SharedPriorSettings
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.space import Space

# Expected values and what makes up their uncertainty.
Terms: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Uncertain: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Features: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_ONE_SIDED = 1.645  # of a test of 5 %
_DESIGNS = 512  # over which a blur is averaged
# Shares of the variance of clients' surfaces that they may have in common, equally likely beforehand.
_SHARES = np.concatenate([np.array([1e-4, 0.003, 0.01, 0.03]), np.linspace(0.05, 1.0, 20)])
_TINY = 1e-9
_LEAST_REST = 0.1
_LED = 0.5


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """The shared part of every client's model; public.

    Clients' standardised surfaces are taken to be a common function and what is a client's own. What is known of the
    common function is normal; what is not known of it counts little, as its expected values are then near zero.

    Attributes:
        function: Expected values, of mean 0 over the space, ``(n or 1, c)``, and functions ``(n or 1, c, r)`` whose
            sum, each times a standard normal, is how far the common function can be from them; at points of the
            cube ``(n or 1, c, n_dims)``, on standardised values.
        moments: Their mean and variance ``(n or 1, c)`` at such points, and their covariance ``(n, t, c)`` with points
            whose uncertainty ``(n, t, r)`` is given.
        width: r.
        rest: Share of the variance of a client's surface that is expected to be its own, at least a tenth.
    """

    function: Callable[[FloatArray], Terms]
    moments: Callable[[FloatArray, torch.Tensor], Uncertain]
    width: int
    rest: float

    @property
    def leads(self) -> bool:
        """Whether the larger part of surfaces is expected to be common: it then guides better than exploring."""
        return self.rest <= _LED

    def at(self, units: FloatArray, mask: torch.Tensor) -> Shared:
        """Give it at clients' points ``(n, t, n_dims)``, with values of zero where there is no value."""
        mean, uncertainty = self.function(units)
        return Shared(mean=mean.masked_fill(~mask, 0.0), uncertainty=uncertainty)


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Change of a common function on its way through clients' answers; public.

    Attributes:
        matrix: Expected answer of a client for every weight vector of its standardised surface,
            ``(n_features, n_features)``, symmetric.
        norm: Root of the mean square of an answer's norm.
    """

    matrix: FloatArray
    norm: float


def blur(
    features: InducingFeatures, setting: Setting, n_points: int, *, noise: float, clipping_norm: float = math.inf
) -> Blur:
    """Find what clients' answers make of their surfaces; rests on public numbers.

    A client with weights w that centres its values at ``n_points`` points answers with B w on average over uniform
    points, B = E Phi' (Phi Phi' + noise I)^-1 (I - 11' / n_points) Phi, symmetric up to chance; here over a public
    sample. Leaving out minima, standardising and clipping shrink it: by how much is the slope of a regression of random
    surfaces' answers on their B w.

    Args:
        features: Of the run.
        setting: Of the run.
        n_points: That a client has evaluated.
        noise: lambda of the ridge weights.
        clipping_norm: S.
    """
    generator = public_stream(setting.public_seed, Stream.FEATURES, 1 + n_points)
    units = setting.space.snap(generator.random((_DESIGNS, n_points, setting.space.n_dims)))
    waves = features(_embedded(setting.space, units, torch.device("cpu"))).numpy()
    matrix = _ridge(waves, waves - waves.mean(axis=1, keepdims=True), noise).mean(axis=0)
    matrix = 0.5 * (matrix + matrix.T)
    weights = generator.standard_normal((_DESIGNS, waves.shape[2])) / math.sqrt(
        _over_the_space(features, setting)[1].trace()
    )
    values = without_minima(np.einsum("ntm,nm->nt", waves, weights), np.ones(units.shape[:2], dtype=bool))
    answers = _ridge(waves, values[..., None], noise)[..., 0]
    norms = np.linalg.norm(answers, axis=1, keepdims=True)
    answers = answers * np.minimum(1.0, clipping_norm / np.maximum(norms, _TINY))
    expected = weights @ matrix
    shrinkage = float((answers * expected).sum() / max(np.square(expected).sum(), _TINY))
    return Blur(matrix=np.asarray(shrinkage * matrix), norm=math.sqrt(float(np.square(answers).sum(axis=1).mean())))


def _ridge(waves: FloatArray, values: FloatArray, noise: float) -> FloatArray:
    """Ridge weights ``(n, m, k)`` of features ``(n, t, m)`` given values ``(n, t, k)``, by the smaller Gram matrix."""
    turned, (t, m) = waves.swapaxes(1, 2), waves.shape[1:]
    if t <= m:
        return np.asarray(turned @ np.linalg.solve(waves @ turned + noise * np.eye(t), values))
    return np.asarray(np.linalg.solve(turned @ waves + noise * np.eye(m), turned @ values))


class Blurs:
    """Blurs that the pools of broadcasts went through; public.

    Args:
        algorithm: Of the run.
        setting: Of the run.
        features: Of the run.
    """

    def __init__(self, algorithm: SharedPriorSettings, setting: Setting, features: InducingFeatures) -> None:
        self._algorithm, self._setting, self._features = algorithm, setting, features
        self._blurs: dict[int, Blur] = {}

    def before(self, round_: int) -> Blur:
        """Give the blur of what was released before a round: that of every release, by its weight in the pool.

        Raises:
            ConfigurationError: If nothing was.
        """
        algorithm = self._algorithm
        inside = {at: share for at, share in algorithm.releases(self._setting).items() if at < round_}
        if not inside:
            raise ConfigurationError(f"round {round_}: nothing was released yet, but the broadcast holds a pool")
        for at in inside.keys() - self._blurs.keys():
            self._blurs[at] = blur(
                self._features,
                self._setting,
                algorithm.n_init + at,
                noise=algorithm.noise,
                clipping_norm=math.inf if self._setting.is_exact else algorithm.clipping_norm,
            )
        weights = np.array([algorithm.pool_weight(at, share) for at, share in inside.items()])
        weights, blurs = weights / weights.sum(), [self._blurs[at] for at in inside]
        matrix = np.tensordot(weights, [each.matrix for each in blurs], axes=1)
        return Blur(matrix=np.asarray(matrix), norm=float(weights @ [each.norm for each in blurs]))


def sharpen(
    weights: FloatArray, noise_stddev: float, blurred: Blur, n_clients: int, variance: float
) -> tuple[FloatArray, FloatArray, float]:
    """Take a blur back from noisy weights, direction by direction (a Wiener filter); post-processing.

    In the blur's basis with eigenvalues l_i, weights are z_i ~ N(0, p l_i^2 / v + s^2 + r^2 l_i / (n sum l)): the
    common function, a share p of the surfaces' variance; the release's noise s; and the clients' own differences,
    whose answers of norm r are averaged over n clients. Given p the common weights are normal, direction by direction;
    mean and variance are those over what the weights say of p.

    Args:
        weights: Pooled weights, ``(n_features,)``.
        noise_stddev: Of the noise in every one of them, s.
        blurred: What the weights went through.
        n_clients: n.
        variance: Variance over the space of a function with standard normal weights, v.

    Returns:
        The common weights' mean ``(n_features,)``; a matrix that times its transpose is their covariance; the expected
        share of the variance of clients' surfaces that they have in common.
    """
    eigenvalues, basis = np.linalg.eigh(blurred.matrix)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    turned, powers = basis.T @ weights, _SHARES[:, None] / variance
    known = noise_stddev**2 + blurred.norm**2 * eigenvalues / (n_clients * eigenvalues.sum()) + _TINY
    variances = powers * eigenvalues**2 + known
    likely = softmax(-0.5 * (turned**2 / variances + np.log(variances)).sum(axis=1))
    means, spreads = powers * eigenvalues / variances * turned, powers * known / variances
    mean = likely @ means
    root = basis * np.sqrt(likely @ (spreads + (means - mean) ** 2))
    return basis @ mean, root, float(likely @ _SHARES)


def pool(
    features: InducingFeatures, setting: Setting, weights: FloatArray, noise_stddev: float, blurred: Blur
) -> Pooled | None:
    """The pooled function of a broadcast; None where it cannot be told from its own noise.

    Args:
        features: Of the run.
        setting: Of the run.
        weights: Pooled weights, ``(n_features,)``.
        noise_stddev: Of the noise in every one of them.
        blurred: What the weights went through.
    """
    device = torch.device(setting.device)
    middle, covariance = _over_the_space(features, setting)
    if not _stands_out(covariance, weights, noise_stddev):
        return None
    mean, root, share = sharpen(weights, noise_stddev, blurred, setting.n_clients, float(covariance.trace()))
    every = torch.as_tensor(np.column_stack([mean, root]), device=device)
    functions, centre = features.weighted(every), torch.as_tensor(middle, device=device) @ every
    rows = torch.cat([features.rooted(every), -centre[None]])  # of the kernel's values and a one
    triangle = torch.linalg.qr(rows[:, 1:].T, mode="r").R  # the same sum of squares from half the products

    def function(units: FloatArray) -> Terms:
        values = functions(_embedded(setting.space, units, device)) - centre
        return values[..., 0], values[..., 1:]

    def moments(units: FloatArray, known: torch.Tensor) -> Uncertain:
        if not is_compiled(device):
            expected, uncertainty = function(units)
            return expected, uncertainty.square().sum(-1), batch_product(known, uncertainty.mT)
        from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

        embedded, ones = (
            _embedded(setting.space, units, device),
            torch.ones(features.points.shape[1:], dtype=rows.dtype),
        )
        inducing = torch.as_tensor(features.points) / features.lengthscale
        mean = torch.zeros(embedded.shape[:2], dtype=rows.dtype)
        variance, together = mean.clone(), torch.zeros(*known.shape[:2], units.shape[1], dtype=rows.dtype)
        weights = rows[:, 0], triangle, times(known, rows[:, 1:].T)
        numbers = inducing, features.lengthscale * ones, *weights, embedded, mean, variance, together
        compiled.pool(SMOOTHNESS[features.kernel], *map(as_array, numbers))
        return mean, variance, together

    return Pooled(function=function, moments=moments, width=features.n_features, rest=max(_LEAST_REST, 1.0 - share))


def function_of(features: Features, setting: Setting, weights: FloatArray, noise_stddev: float) -> Functions | None:
    """The function of noisy weights as they are; None where it cannot be told from its own noise."""
    _, covariance = _over_the_space(features, setting)
    if not _stands_out(covariance, weights, noise_stddev):
        return None
    device = torch.device(setting.device)
    taken = torch.as_tensor(weights, dtype=torch.float64, device=device)
    return lambda units: times(features(_embedded(setting.space, units, device)), taken)


def _stands_out(covariance: FloatArray, weights: FloatArray, noise_stddev: float) -> bool:
    """Tell whether a function varies more than noise alone would, nineteen times out of twenty.

    Noise alone has the spread of a chi-square over as many directions as the covariance has: wide where they are few.
    """
    total = float(covariance.trace())
    directions = total**2 / float(np.square(covariance).sum())
    least = noise_stddev**2 * total * (1.0 + _ONE_SIDED * math.sqrt(2.0 / directions))
    return float(weights @ covariance @ weights) > least


def _over_the_space(features: Features, setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of the features over public points."""
    waves = features(_embedded(setting.space, public_points(setting), torch.device("cpu"))).numpy()
    middle = waves.mean(axis=0)
    return middle, (waves - middle).T @ (waves - middle) / len(waves)


def _embedded(space: Space, units: FloatArray, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(space.embed(units)), dtype=torch.float64, device=device)
