"""The function that clients have in common, decoded from the releases, and what they leave unknown of it.

The released numbers are z = B u + noise: u are the common function's values at public points, B is what clients'
answers make of them. Of the exploring start, which is public, B is known; of later points it is an average. u is a
Gaussian process of one of a few length scales; which, and what share of clients' variance is common, z itself says by
its evidence. Given these, u is normal. 64 numbers of few points say little of it, noise alone says nothing: what they
cannot say stays in its covariance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import chdtri, softmax

from privbo.algorithms.thompson.evaluations import of_length_one
from privbo.algorithms.thompson.exploration import first_points
from privbo.algorithms.thompson.features import SMOOTHNESS, InducingFeatures, Kernel, correlated, product
from privbo.algorithms.thompson.maximise import Functions, public_points
from privbo.algorithms.thompson.posterior import as_array, is_compiled, pieces
from privbo.algorithms.thompson.releases import Posterior
from privbo.algorithms.thompson.settings import SharedPriorSettings
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.processes import limited_loaded_threads
from privbo.protocol.space import Categorical, Space

# Expected values and what makes up their uncertainty.
Terms: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Uncertain: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Features: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_MISTAKEN = 0.05  # of pools of noise alone
_DESIGNS, _ANSWERS = 512, 2048  # over which clients' answers are averaged, and how many random ones
_POINTS, _MOST_POINTS = 24, 128  # at which the common function is known: for each dimension, and of all
_DIRECTIONS = 16  # of its uncertainty
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
        compiled: Their moments by machine code; None where these are made of the functions.
        width: r.
        rest: Share of the variance of a client's surface that these leave to the client, at least a tenth.
        is_standardised: Whether values are standardised, as clients' are modelled; else they are the objective's.
    """

    function: Callable[[FloatArray], Terms]
    width: int
    rest: float
    compiled: Callable[[FloatArray, torch.Tensor], Uncertain] | None = None
    is_standardised: bool = True

    @property
    def leads(self) -> bool:
        """Whether the larger part of surfaces is expected to be common: it then guides better than exploring."""
        return self.rest <= _LED

    def moments(self, units: FloatArray, known: torch.Tensor) -> Uncertain:
        """Mean and variance ``(n or 1, c)`` at points, and covariance ``(n, t, c)`` with points of known uncertainty.

        Args:
            units: The points, ``(n or 1, c, n_dims)``.
            known: Uncertainty at the other points, ``(n, t, r)``.
        """
        if self.compiled is not None:
            return self.compiled(units, known)
        expected, uncertainty = self.function(units)
        return expected, uncertainty.square().sum(-1), product(known, uncertainty.mT)

    def over(self, scale: torch.Tensor) -> Pooled:
        """Give it on clients' standardised values, which were divided by ``scale``, ``(n,)``."""
        if self.is_standardised:
            return self
        column = scale[:, None]

        def function(units: FloatArray) -> Terms:
            mean, uncertainty = self.function(units)
            return mean / column, uncertainty / column[..., None]

        return dataclasses.replace(self, function=function, is_standardised=True)


def of_releases(posterior: Posterior, device: torch.device) -> Pooled:
    """Give what sites' noisy means lead all sites to expect, in units of the scores.

    What a site's scores are beyond it is the site's own to learn: none of it is taken for known, or for uncertain.
    """

    def function(units: FloatArray) -> Terms:
        values = posterior.expected(units.reshape(-1, units.shape[-1])).reshape(units.shape[:2])
        mean = torch.as_tensor(values, device=device)
        return mean, mean.new_zeros(*mean.shape, 0)

    rest = max(_LEAST_REST, 1.0 - posterior.share)
    return Pooled(function=function, width=0, rest=rest, is_standardised=False)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What clients answer to common functions of k priors: B u, and noise of their own; public.

    Attributes:
        matrices: B on average over the clients, ``(k, n_features, m)``.
        owns: Covariances of what a client's own part answers where nothing is common, ``(k, n_features, n_features)``.
        rests: Covariances of all else that a client answers, ``(k, n_features, n_features)``.
    """

    matrices: FloatArray
    owns: FloatArray
    rests: FloatArray

    @staticmethod
    def mean(parts: Sequence[Answers], weights: FloatArray) -> Answers:
        """Give their weighted mean."""
        names = [field.name for field in dataclasses.fields(Answers)]
        made = (np.average([getattr(part, name) for part in parts], axis=0, weights=weights) for name in names)
        return Answers(**dict(zip(names, made, strict=True)))

    def of(self, n_clients: int, noise_stddev: float, sample_rate: float = 1.0) -> Answers:
        """Give the same of the mean of so many clients, or of a secret sample of them, with its noise."""
        sampled = (1.0 / sample_rate - 1.0) * (self.owns + self.rests)  # whole answers are in or out
        noise = (noise_stddev**2 + _TINY) * np.eye(self.rests.shape[-1])
        return dataclasses.replace(self, owns=self.owns / n_clients, rests=(self.rests + sampled) / n_clients + noise)


class Decoder:
    """Make the common function of pooled weights; everything here is public.

    Args:
        algorithm: Of the run.
        setting: Of the run.
        features: Of the run.
    """

    def __init__(self, algorithm: SharedPriorSettings, setting: Setting, features: InducingFeatures) -> None:
        self._algorithm, self._setting, self._features = algorithm, setting, features
        self._answered: dict[int, Answers] = {}
        self._last: tuple[tuple[bytes, float, int], Pooled] | None = None

    def pool(self, weights: FloatArray, noise_stddev: float, round_: int) -> Pooled:
        """Decode the pool of a round's broadcast.

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
            self._last = key, self._pooled(weights, noise_stddev, inside)
        return self._last[1]

    @limited_loaded_threads(1)
    def _pooled(self, weights: FloatArray, noise_stddev: float, inside: dict[int, float]) -> Pooled:
        parts = np.array([self._algorithm.pool_weight(at, share) for at, share in inside.items()])
        answers = Answers.mean([self.answers(self._algorithm.n_init + at) for at in inside], parts)
        length = self._algorithm.clipping_norm
        law = answers.of(self._setting.n_clients, noise_stddev / length, self._setting.sample_rate)
        mean, covariance = decode(weights / length, self.priors, law)
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
                values[some] = product(correlated(_KERNEL, embedded[some], points, scale), columns)
            return values[..., 0], values[..., 1:]

        def moments(units: FloatArray, known: torch.Tensor) -> Uncertain:
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
        by_code = moments if is_compiled(setting) else None
        return Pooled(function=function, width=weights.shape[1] - 1, rest=rest, compiled=by_code)

    @cached_property
    def points(self) -> FloatArray:
        """Embedded points at which the common function is known, ``(m, n_embedded)``."""
        space = self._setting.space
        shift = public_stream(self._setting.public_seed, Stream.FEATURES, 3).random(space.n_dims)
        points = spread(space, min(_POINTS * space.n_dims, _MOST_POINTS), shift)
        return np.asarray(space.embed(points), dtype=np.float64)

    @cached_property
    def priors(self) -> FloatArray:
        """Its covariances beforehand, of mean 0 and variance 1 over the points, ``(k, m, m)``."""
        scales = [self._scale(a, b) for a in _SCALES for b in (_CHOICES if self._chosen.any() else _CHOICES[:1])]
        centre = np.eye(len(self.points)) - 1.0 / len(self.points)
        found = np.array([centre @ self._near(self.points, scale) @ centre for scale in scales])
        variances = np.trace(found, axis1=1, axis2=2) / len(self.points)
        return np.asarray(found / np.maximum(variances, _TINY)[:, None, None])

    @cached_property
    def _roots(self) -> list[FloatArray]:
        """Of the priors: times normals they are functions."""
        return [d * np.sqrt(np.maximum(v, 0.0)) for v, d in map(np.linalg.eigh, self.priors)]

    def answers(self, n_points: int) -> Answers:
        """Give what clients answer to common functions of every prior once they have evaluated ``n_points`` points.

        A client answers with the ridge weights of what is common at its points, of what is its own there, and brought
        to length 1. What the last makes of B is the slope of a regression of random functions' answers on their B u.
        """
        if n_points not in self._answered:
            generator = public_stream(self._setting.public_seed, Stream.FEATURES, 4 + n_points)
            known, space = self._known_points(n_points), self._setting.space
            units = space.snap(generator.random((_DESIGNS, n_points, space.n_dims))) if known is None else known
            self._answered[n_points] = self._answers(units, generator, is_known=known is not None)
        return self._answered[n_points]

    def _known_points(self, n_points: int) -> FloatArray | None:
        """First points of every client, ``(n_clients, n_points, n_dims)``; None where they depend on private values.

        Those of the exploring start are public until the first pool: where it leads, clients go their own way.
        """
        algorithm, setting = self._algorithm, self._setting
        start, first = algorithm.exploring(setting), min(algorithm.releases(setting))
        if setting.n_clients > _DESIGNS or n_points > algorithm.n_init + min(start, first):
            return None
        return first_points(setting, np.arange(setting.n_clients), algorithm.n_init + start)[:, :n_points]

    def _answers(self, units: FloatArray, generator: np.random.Generator, *, is_known: bool) -> Answers:
        n_designs, n_points = units.shape[:2]
        embedded = _embedded(self._setting.space, units, torch.device("cpu"))
        waves = self._features(embedded).numpy()
        turned = waves.swapaxes(1, 2)
        ridge = turned @ np.linalg.inv(waves @ turned + self._algorithm.noise * np.eye(n_points))
        ridge = ridge - ridge.mean(axis=2, keepdims=True)  # values are centred
        between = correlated(_KERNEL, embedded, self.points, self._between).numpy() @ self._inverse
        linear = np.tensordot(ridge, between, axes=((0, 2), (0, 1))) / n_designs
        count = -(-_ANSWERS // n_designs)  # functions of a design; no two have one in common
        normals = generator.standard_normal((len(self.points), n_designs * count))

        def of_designs(columns: FloatArray) -> FloatArray:
            return columns.reshape(-1, n_designs, count).swapaxes(0, 1)

        matrices, owns, rests = [], [], []
        for prior, root in zip(self.priors, self._roots, strict=True):
            weights = (ridge @ (between @ root @ of_designs(normals))).swapaxes(1, 2)
            answers = of_length_one(weights)
            expected = weights if is_known else of_designs(linear @ root @ normals).swapaxes(1, 2)
            slope = float((answers * expected).mean() / max(np.square(expected).mean(), _TINY))
            matrices.append(slope * linear)
            others = answers - slope * expected if is_known else answers
            flat = others.reshape(-1, others.shape[-1])
            rests.append(flat.T @ flat / len(others) / others.shape[1])
            owns.append(np.zeros_like(rests[-1]))
            if is_known:
                carried = ridge @ (between @ prior @ between.swapaxes(1, 2))
                owns[-1] = slope**2 / n_designs * np.tensordot(carried, ridge, axes=((0, 2), (0, 2)))
        return Answers(matrices=np.array(matrices), owns=np.array(owns), rests=np.array(rests))

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

    def stands_out(self, weights: FloatArray, noise_stddev: float) -> bool:
        """Tell whether the pool's function varies more than noise alone would, nineteen times out of twenty."""
        return _stands_out(_over_the_space(self._features, self._setting), weights, noise_stddev)


def decode(weights: FloatArray, priors: FloatArray, answers: Answers) -> tuple[FloatArray, FloatArray]:
    """Give the mean and the covariance of a common function given what its answers were.

    Weights are z ~ N(B u, (1 - p) own + rest) with u ~ N(0, p prior): p is one of the shares, the others one of k; all
    of them are equally likely beforehand. The result is over all of them, by what the weights say.

    Args:
        weights: z, ``(n_features,)``.
        priors: ``(k, m, m)``.
        answers: B, own and rest of a mean of clients with its noise.

    Returns:
        Mean ``(m,)`` and covariance ``(m, m)`` of u.
    """
    evidence, parts, column = [], [], _SHARES[:, None, None]
    for prior, matrix, own, rest in zip(priors, answers.matrices, answers.owns, answers.rests, strict=True):
        carried = prior @ matrix.T
        covariances = column * (matrix @ carried) + (1.0 - column) * own + rest
        inverses = np.linalg.inv(covariances)
        seen = inverses @ weights
        evidence.append(-0.5 * (seen @ weights + np.linalg.slogdet(covariances).logabsdet))
        parts.append((prior, carried, _SHARES[:, None] * seen, inverses))
    likely = softmax(np.array(evidence))
    mean, square = np.zeros(len(priors[0])), np.zeros_like(priors[0])
    for shares, (prior, carried, means, inverses) in zip(likely, parts, strict=True):
        mean = mean + carried @ (shares @ means)
        middle = (means.T * shares) @ means - np.tensordot(shares * _SHARES**2, inverses, axes=1)
        square = square + (shares @ _SHARES) * prior + carried @ middle @ carried.T
    return mean, square - np.outer(mean, mean)


def function_of(features: Features, setting: Setting, weights: FloatArray, noise_stddev: float) -> Functions | None:
    """The function of noisy weights as they are; None where it cannot be told from its own noise."""
    if not _stands_out(_over_the_space(features, setting), weights, noise_stddev):
        return None
    device = torch.device(setting.device)
    taken = torch.as_tensor(weights, dtype=torch.float64, device=device)
    return lambda units: product(features(_embedded(setting.space, units, device)), taken)


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
