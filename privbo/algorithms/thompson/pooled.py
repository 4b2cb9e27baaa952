"""The function that clients have in common, decoded from the releases, and what they leave unknown of it.

The pooled weights carry Gaussian noise of a public standard deviation, so the variance that noise alone would give
their function over the space is public too. A pool that does not stand above it is left out.

Of any other the released numbers are z = B u + noise: u are the common function's values at public points, B is what
clients' answers make of them, averaged over random points of clients. u is a Gaussian process of one of a few length
scales; which, and what share of clients' variance is common, z itself says by its evidence. Given these, u is normal.
64 numbers of few points say little of it; what they cannot say stays in its covariance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import chdtri, softmax

from privbo.algorithms.thompson.evaluations import without_minima
from privbo.algorithms.thompson.features import SMOOTHNESS, InducingFeatures, Kernel, correlated, times
from privbo.algorithms.thompson.maximise import Functions, public_points
from privbo.algorithms.thompson.posterior import Shared, as_array, batch_product, is_compiled, pieces
from privbo.algorithms.thompson.releases import Posterior
from privbo.algorithms.thompson.settings import SharedPriorSettings
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.space import Categorical, Space

# Expected values and what makes up their uncertainty.
Terms: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Uncertain: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Features: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_MISTAKEN = 0.05  # of pools of noise alone
_DESIGNS = 512  # over which clients' answers are averaged
_POINTS, _DIRECTIONS = 128, 16  # of the common function, and of its uncertainty
_SCALES, _BETWEEN = (1.4, 0.7, 0.35), 0.6  # length scales over .5 (d / 2)^(3/4), and that of values between points
_CHOICES, _BETWEEN_CHOICES = (0.6, 1.5), 1.0  # the same of categories, over the distance of two choices
# Shares of the variance of clients' surfaces that they may have in common, equally likely beforehand.
_SHARES = np.concatenate([np.array([1e-4, 0.003, 0.01, 0.03]), np.linspace(0.05, 1.0, 20)])
_TINY, _JITTER = 1e-9, 1e-6
_LEAST_REST = 0.1
_LED = 0.5
_KERNEL: Kernel = "matern52"


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
        rest: Share of the variance of a client's surface that these leave to the client, at least a tenth.
        is_standardised: Whether values are standardised, as clients' are modelled; else they are the objective's.
    """

    function: Callable[[FloatArray], Terms]
    moments: Callable[[FloatArray, torch.Tensor], Uncertain]
    width: int
    rest: float
    is_standardised: bool = True

    @property
    def leads(self) -> bool:
        """Whether the larger part of surfaces is expected to be common: it then guides better than exploring."""
        return self.rest <= _LED

    def at(self, units: FloatArray, mask: torch.Tensor) -> Shared:
        """Give it at clients' points ``(n, t, n_dims)``, with values of zero where there is no value."""
        mean, uncertainty = self.function(units)
        return Shared(mean=mean.masked_fill(~mask, 0.0), uncertainty=uncertainty)

    def over(self, scale: torch.Tensor) -> Pooled:
        """Give it on clients' standardised values, which were divided by ``scale``, ``(n,)``."""
        if self.is_standardised:
            return self
        column = scale[:, None]

        def function(units: FloatArray) -> Terms:
            mean, uncertainty = self.function(units)
            return mean / column, uncertainty / column[..., None]

        def moments(units: FloatArray, known: torch.Tensor) -> Uncertain:
            mean, variance, together = self.moments(units, known)
            return mean / column, variance / column.square(), together / column[..., None]

        return dataclasses.replace(self, function=function, moments=moments, is_standardised=True)


def of_releases(posterior: Posterior, device: torch.device) -> Pooled:
    """Give what sites' noisy means lead all sites to expect, in units of the scores.

    What a site's scores are beyond it is the site's own to learn: none of it is taken for known, or for uncertain.
    """

    def function(units: FloatArray) -> Terms:
        values = posterior.expected(units.reshape(-1, units.shape[-1])).reshape(units.shape[:2])
        mean = torch.as_tensor(values, device=device)
        return mean, mean.new_zeros(*mean.shape, 0)

    def moments(units: FloatArray, known: torch.Tensor) -> Uncertain:
        mean, _ = function(units)
        return mean, torch.zeros_like(mean), mean.new_zeros(*known.shape[:2], mean.shape[1])

    rest = max(_LEAST_REST, 1.0 - posterior.share)
    return Pooled(function=function, moments=moments, width=0, rest=rest, is_standardised=False)


class Decoder:
    """Make the common function of pooled weights; everything here is public.

    Args:
        algorithm: Of the run.
        setting: Of the run.
        features: Of the run.
    """

    def __init__(self, algorithm: SharedPriorSettings, setting: Setting, features: InducingFeatures) -> None:
        self._algorithm, self._setting, self._features = algorithm, setting, features
        self._answered: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._last: tuple[tuple[bytes, float, int], Pooled | None] | None = None

    def pool(self, weights: FloatArray, noise_stddev: float, round_: int) -> Pooled | None:
        """Decode the pool of a round's broadcast; None where it cannot be told from its own noise.

        Args:
            weights: Pooled weights, ``(n_features,)``.
            noise_stddev: Of the noise in every one of them.
            round_: Of the broadcast.

        Raises:
            ConfigurationError: If nothing was released before.
        """
        algorithm = self._algorithm
        inside = {at: share for at, share in algorithm.releases(self._setting).items() if at < round_}
        if not inside:
            raise ConfigurationError(f"round {round_}: nothing was released yet, but the broadcast holds a pool")
        key = (weights.tobytes(), noise_stddev, len(inside))
        if self._last is None or self._last[0] != key:
            stands_out = _stands_out(self._spread, weights, noise_stddev)
            self._last = key, self._pooled(weights, noise_stddev, inside) if stands_out else None
        return self._last[1]

    def _pooled(self, weights: FloatArray, noise_stddev: float, inside: dict[int, float]) -> Pooled:
        parts = np.array([self._algorithm.pool_weight(at, share) for at, share in inside.items()])
        answers = [self.answers(self._algorithm.n_init + at) for at in inside]
        matrices, squares = (np.tensordot(parts / parts.sum(), numbers, axes=1) for numbers in zip(*answers))  # noqa: B905 (pairs)
        noises = (noise_stddev**2 + _TINY) * np.eye(len(weights)) + squares / self._setting.n_clients
        mean, covariance = decode(weights, self.priors, matrices, noises)
        variances, directions = np.linalg.eigh(covariance)
        some = slice(-min(_DIRECTIONS, len(mean)), None)
        roots = directions[:, some] * np.sqrt(np.maximum(variances[some], 0.0))
        return self._interpolated(self._inverse @ np.column_stack([mean, roots]))

    def _interpolated(self, weights: FloatArray) -> Pooled:
        """Give functions that are a kernel's values at the points times weights ``(m, 1 + r)``."""
        setting, device = self._setting, torch.device(self._setting.device)
        points, scale = self.points, self._between
        columns = torch.as_tensor(weights, device=device)

        def function(units: FloatArray) -> Terms:
            embedded = _embedded(setting.space, units, device)
            values = torch.empty(*embedded.shape[:2], columns.shape[1], dtype=torch.float64, device=device)
            for some in pieces(len(embedded), embedded.shape[1] * len(points), device):
                values[some] = times(correlated(_KERNEL, embedded[some], points, scale), columns)
            return values[..., 0], values[..., 1:]

        def moments(units: FloatArray, known: torch.Tensor) -> Uncertain:
            if not is_compiled(setting):
                expected, uncertainty = function(units)
                return expected, uncertainty.square().sum(-1), batch_product(known, uncertainty.mT)
            from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

            embedded = _embedded(setting.space, units, device)
            mean = torch.zeros(embedded.shape[:2], dtype=embedded.dtype)
            variance, together = mean.clone(), torch.zeros(*known.shape[:2], units.shape[1], dtype=embedded.dtype)
            numbers = columns.T, known, embedded, mean, variance, together
            compiled.pool(SMOOTHNESS[_KERNEL], points / scale, scale, *map(as_array, numbers))
            return mean, variance, together

        mean, uncertainty = function(public_points(setting)[None])
        held = float((mean.square() + uncertainty.square().sum(-1)).mean())
        rest = max(_LEAST_REST, 1.0 - held)
        return Pooled(function=function, moments=moments, width=weights.shape[1] - 1, rest=rest)

    @cached_property
    def points(self) -> FloatArray:
        """Embedded points at which the common function is known, ``(m, n_embedded)``."""
        space = self._setting.space
        shift = public_stream(self._setting.public_seed, Stream.FEATURES, 3).random(space.n_dims)
        return np.asarray(space.embed(spread(space, _POINTS, shift)), dtype=np.float64)

    @cached_property
    def priors(self) -> FloatArray:
        """Its covariances beforehand, of mean 0 and variance 1 over the points, ``(k, m, m)``."""
        scales = [self._scale(a, b) for a in _SCALES for b in (_CHOICES if self._chosen.any() else _CHOICES[:1])]
        centre = np.eye(len(self.points)) - 1.0 / len(self.points)
        found = np.array([centre @ self._near(self.points, scale) @ centre for scale in scales])
        variances = np.trace(found, axis1=1, axis2=2) / len(self.points)
        return np.asarray(found / np.maximum(variances, _TINY)[:, None, None])

    def answers(self, n_points: int) -> tuple[FloatArray, FloatArray]:
        """Give what clients' answers make of common functions of every prior.

        A client that centres its values at ``n_points`` points answers with B u on average over uniform points. Leaving
        out minima, standardising and clipping shrink it: by how much is the slope of a regression of random functions'
        answers on their B u.

        Args:
            n_points: That a client has evaluated.

        Returns:
            B of every prior, ``(k, n_features, m)``, and the mean products of a client's answer, ``(k, n_features,
            n_features)``: over the clients they are the answers' own noise.
        """
        if n_points in self._answered:
            return self._answered[n_points]
        algorithm, setting = self._algorithm, self._setting
        generator = public_stream(setting.public_seed, Stream.FEATURES, 4 + n_points)
        units = setting.space.snap(generator.random((_DESIGNS, n_points, setting.space.n_dims)))
        embedded = _embedded(setting.space, units, torch.device("cpu"))
        waves = self._features(embedded).numpy()
        turned = waves.swapaxes(1, 2)
        ridge = turned @ np.linalg.inv(waves @ turned + algorithm.noise * np.eye(n_points))  # per value
        between = correlated(_KERNEL, embedded, self.points, self._between).numpy() @ self._inverse
        matrix = np.tensordot(ridge - ridge.mean(axis=2, keepdims=True), between, axes=((0, 2), (0, 1))) / _DESIGNS
        clipping_norm = math.inf if setting.is_exact else algorithm.clipping_norm
        normals = generator.standard_normal((_DESIGNS, len(self.points)))
        matrices, squares = [], []
        for prior in self.priors:
            variances, directions = np.linalg.eigh(prior)
            functions = normals @ (directions * np.sqrt(np.maximum(variances, 0.0))).T
            values = without_minima((between @ functions[..., None])[..., 0], np.ones(units.shape[:2], dtype=bool))
            answers = (ridge @ values[..., None])[..., 0]
            norms = np.linalg.norm(answers, axis=1, keepdims=True)
            answers = answers * np.minimum(1.0, clipping_norm / np.maximum(norms, _TINY))
            expected = functions @ matrix.T
            matrices.append(float((answers * expected).sum() / max(np.square(expected).sum(), _TINY)) * matrix)
            squares.append(answers.T @ answers / _DESIGNS)
        self._answered[n_points] = np.array(matrices), np.array(squares)
        return self._answered[n_points]

    @cached_property
    def _chosen(self) -> FloatArray:
        """Which embedded coordinates are of categories."""
        parameters = self._setting.space.parameters.values()
        return np.concatenate([[True] * len(p.choices) if isinstance(p, Categorical) else [False] for p in parameters])

    def _scale(self, number: float, choice: float) -> FloatArray:
        """Length scales of all embedded coordinates."""
        return np.where(self._chosen, choice, number * 0.5 * math.pow(self._setting.space.n_dims / 2.0, 0.75))

    def _near(self, points: FloatArray, scale: FloatArray) -> FloatArray:
        return np.asarray(correlated(_KERNEL, torch.from_numpy(points), self.points, scale).numpy())

    @cached_property
    def _between(self) -> FloatArray:
        return self._scale(_BETWEEN, _BETWEEN_CHOICES)

    @cached_property
    def _inverse(self) -> FloatArray:
        """Weights of the kernel between points for values at the points, ``(m, m)``."""
        near = self._near(self.points, self._between)
        return np.asarray(np.linalg.inv(near + _JITTER * np.eye(len(near))))

    @cached_property
    def _spread(self) -> FloatArray:
        return _over_the_space(self._features, self._setting)


def decode(
    weights: FloatArray, priors: FloatArray, matrices: FloatArray, noises: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Give the mean and the covariance of a common function given what its answers were.

    Weights are z ~ N(B u, noise) with u ~ N(0, p prior): p is one of the shares, prior, B and noise one of k triples;
    all of them are equally likely beforehand. The result is over all of them, by what the weights say.

    Args:
        weights: z, ``(n_features,)``.
        priors: ``(k, m, m)``.
        matrices: B, ``(k, n_features, m)``.
        noises: Covariances, ``(k, n_features, n_features)``.

    Returns:
        Mean ``(m,)`` and covariance ``(m, m)`` of u.
    """
    evidence, parts = [], []
    for prior, matrix, noise in zip(priors, matrices, noises, strict=True):
        factor = np.linalg.cholesky(noise)
        carried = prior @ np.linalg.solve(factor, matrix).T
        gains, turns = np.linalg.eigh(np.linalg.solve(factor, matrix @ carried))  # symmetric: of whitened answers
        seen = turns.T @ np.linalg.solve(factor, weights)
        variances = 1.0 + _SHARES[:, None] * np.maximum(gains, 0.0)
        evidence.append(-0.5 * (seen**2 / variances + np.log(variances)).sum(axis=1) - np.log(factor.diagonal()).sum())
        parts.append((prior, carried @ turns, _SHARES[:, None] * seen / variances, _SHARES[:, None] ** 2 / variances))
    likely = softmax(np.array(evidence))
    mean, square = np.zeros(len(priors[0])), np.zeros_like(priors[0])
    for shares, (prior, carried, means, known) in zip(likely, parts, strict=True):
        mean = mean + carried @ (shares @ means)
        middle = (means.T * shares) @ means - np.diag(shares @ known)
        square = square + (shares @ _SHARES) * prior + carried @ middle @ carried.T
    return mean, square - np.outer(mean, mean)


def function_of(features: Features, setting: Setting, weights: FloatArray, noise_stddev: float) -> Functions | None:
    """The function of noisy weights as they are; None where it cannot be told from its own noise."""
    if not _stands_out(_over_the_space(features, setting), weights, noise_stddev):
        return None
    device = torch.device(setting.device)
    taken = torch.as_tensor(weights, dtype=torch.float64, device=device)
    return lambda units: times(features(_embedded(setting.space, units, device)), taken)


def _stands_out(covariance: FloatArray, weights: FloatArray, noise_stddev: float) -> bool:
    """Tell whether a function varies more than noise alone would, nineteen times out of twenty.

    Noise alone is nearly a chi-square of as many degrees as the covariance has directions (Satterthwaite 1946): two to
    ten, of which a normal quantile would let 7 % through.
    """
    total = float(covariance.trace())
    directions = total**2 / float(np.square(covariance).sum())
    least = noise_stddev**2 * total * float(chdtri(directions, _MISTAKEN)) / directions
    return float(weights @ covariance @ weights) > least


def _over_the_space(features: Features, setting: Setting) -> FloatArray:
    """Covariance of the features over public points."""
    waves = features(_embedded(setting.space, public_points(setting), torch.device("cpu"))).numpy()
    apart = waves - waves.mean(axis=0)
    return np.asarray(apart.T @ apart / len(waves))


def _embedded(space: Space, units: FloatArray, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(space.embed(units)), dtype=torch.float64, device=device)
