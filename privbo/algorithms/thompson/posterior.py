"""Models of many clients' objectives at once: kernels, what is shared, posteriors, and Thompson draws from them.

Histories are ragged (evaluations fail), so every batch carries a mask. On a processor the work is compiled
(``compiled`` has the formulas); on GPUs it is torch's, and in small runs NumPy's and torch's.

There are three kinds of draws: paths (random features conditioned exactly), weights of random features, and joint
draws from the exact posterior at given points. All are affine in standard normals that the caller draws per client.

Weights of features are found by ridge regression, whole or while histories grow. A masked observation has zero features
and zero value, which leaves the weights untouched. Clients gain one observation per round, so a Cholesky factor R' R =
Phi' Phi + lambda I is updated by one row: rotations instead of a product of matrices and a factorisation, whatever the
history's length. A draw from it is Matheron's, by the push-through identity

    w + Phi' (Phi Phi' + lambda I)^-1 (y - Phi w - sqrt(lambda) e) = (R' R)^-1 (Phi' (y - sqrt(lambda) e) + lambda w).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeAlias

import numpy as np
import torch

from privbo.algorithms.thompson.features import SMOOTHNESS, Kernel, correlations, product, squared_norms
from privbo.protocol.messages import FloatArray, Setting

_LARGEST_BYTES = 2 * 2**30  # of a run
_AT_ONCE = 2**16  # numbers worked on at once, half a megabyte
# Clients times squared rounds at which loading compiled code takes what it saves in one run, or in three of draws.
_SMALL, _SMALL_OF_DRAWS = 16_000, 4_000
_SHORT = 3  # a history shorter than a third of the features is factored from its few points sooner


def ridge_mean(features: torch.Tensor, values: torch.Tensor, noise: float | torch.Tensor) -> torch.Tensor:
    """Posterior mean of the weights (eq. 2 of the paper: nu = Sigma^-1 Phi' y), ``(n, n_features)``.

    Args:
        features: Features of the observations, ``(n, t, n_features)``; zero rows where masked.
        values: Observations ``(n, t)``; zero where masked.
        noise: lambda, the variance of the observation noise, one or one per client ``(n,)``.
    """
    n_observations, n_features = features.shape[-2:]
    if n_observations < n_features:
        dual = cholesky(_gram(features, noise))
        return row_times(_solved(dual, values), features)
    primal = cholesky(_gram(features.mT, noise))
    return _solved(primal, row_times(values, features))


def ridge_sample(
    features: torch.Tensor,
    values: torch.Tensor,
    noise: float | torch.Tensor,
    *,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> torch.Tensor:
    """A draw of the weights from N(nu, lambda Sigma^-1), ``(n, n_features)`` (eq. 2 of the paper).

    With fewer observations than features it corrects a prior draw by Matheron's rule,
    which needs a factor of the small matrix only; otherwise it is the Cholesky draw.

    Args:
        features: As in ``ridge_mean``.
        values: As in ``ridge_mean``.
        noise: As in ``ridge_mean``.
        prior: Standard normal draws ``(n, n_features)``.
        observation_noise: Standard normal draws ``(n, t)``, used by Matheron's rule.
    """
    level = _column(noise, prior)
    if features.shape[-2] < features.shape[-1]:
        # w + Phi' (Phi Phi' + lambda I)^-1 (y - Phi w - sqrt(lambda) e), with w the prior draw
        imagined = row_times(prior, features.mT) + level.sqrt() * observation_noise
        surprise = _solved(cholesky(_gram(features, noise)), values - imagined)
        return prior + row_times(surprise, features)
    # nu + sqrt(lambda) L'^-1 z with Sigma = L L'
    factor = cholesky(_gram(features.mT, noise))
    mean, spread = _solved(factor, row_times(values, features)), _divided(factor, prior, transposed=True)
    draw: torch.Tensor = mean + level.sqrt() * spread
    return draw


def _solved(factor: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """(L L')^-1 v for a lower factor ``(n, c, c)`` and a vector ``(n, c)`` per client."""
    return _divided(factor, _divided(factor, vector), transposed=True)


def _divided(factor: torch.Tensor, vector: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
    """L^-1 v, or L'^-1 v, per client."""
    whole = aligned(factor)
    columns = vector.new_zeros(*whole.shape[:2], 2)  # as many bytes of each client, too
    columns[:, : vector.shape[1], 0] = vector
    solved: torch.Tensor = torch.linalg.solve_triangular(whole.mT if transposed else whole, columns, upper=transposed)
    return solved[:, : vector.shape[1], 0]


def inverse_root(factor: torch.Tensor) -> torch.Tensor:
    """L^-1 per client, ``(n, c, c)``."""
    whole, size = aligned(factor), factor.shape[-1]
    unit = torch.eye(whole.shape[-1], dtype=whole.dtype, device=whole.device).expand_as(whole)
    root: torch.Tensor = torch.linalg.solve_triangular(whole, unit, upper=False)[..., :size, :size]
    return root


def aligned(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices ``(..., c, c)``, on a processor with rows of the identity behind them up to a multiple of four.

    Each then begins at a multiple of 64 bytes. The rounding errors of factors and solvers depend on where in memory a
    matrix begins, so that with another c a client's would depend on the clients before it.
    """
    size = matrices.shape[-1]
    if matrices.device.type != "cpu" or size % 4 == 0:
        return matrices
    unit = torch.eye(size + -size % 4, dtype=matrices.dtype, device=matrices.device)
    whole = unit.repeat(*matrices.shape[:-2], 1, 1)
    whole[..., :size, :size] = matrices
    return whole


def cholesky(matrices: torch.Tensor) -> torch.Tensor:
    """Lower factors of a batch ``(..., c, c)``; the identity for a matrix that has none.

    Torch raises for the whole batch where one matrix fails; here a client fails alone.
    """
    whole, size = aligned(matrices), matrices.shape[-1]
    factors, failures = torch.linalg.cholesky_ex(whole)
    failed = failures != 0  # also where an entry is not a number
    if failed.any():
        identity = torch.eye(whole.shape[-1], dtype=whole.dtype, device=whole.device)
        # Taken out before the factorisation, or a derivative would still see what failed.
        factors = torch.linalg.cholesky_ex(torch.where(failed[..., None, None], identity, whole))[0]
    lower: torch.Tensor = factors[..., :size, :size]
    return lower


def row_times(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """A row vector ``(n, a)`` times a matrix ``(n, a, b)`` per client, ``(n, b)``.

    Batched products take a row on the left several times as fast as a column on the right.
    """
    return product(rows[:, None, :], matrices)[:, 0]


def _gram(rows: torch.Tensor, noise: float | torch.Tensor) -> torch.Tensor:
    gram = product(rows, rows.mT)
    gram.diagonal(dim1=-2, dim2=-1).add_(_column(noise, rows))
    return gram


def _column(noise: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The noise as ``(1,)`` or ``(n, 1)``, one number for a client's row."""
    return torch.as_tensor(noise, dtype=like.dtype, device=like.device)[..., None]


class GrowingRidge:
    """Features of n clients' observations and factors of ``Phi' Phi + lambda I``, on a processor.

    Args:
        n_clients: n.
        capacity: Most observations a client can have.
        n_features: M.
        noise: lambda.

    Attributes:
        count: Observations per client so far.
    """

    def __init__(self, *, n_clients: int, capacity: int, n_features: int, noise: float) -> None:
        self._noise = noise
        self._features = np.zeros((n_clients, capacity, n_features))
        self._factors = np.zeros((n_clients, _triangle(n_features)))
        self._factored = 0
        self.count = 0

    @staticmethod
    def pays(n_clients: int, capacity: int, n_features: int) -> bool:
        """Whether factors are kept: histories get long enough for them to be faster, and so many fit in memory."""
        size = 8 * n_clients * (capacity * n_features + _triangle(n_features))
        return _SHORT * capacity >= n_features and size <= _LARGEST_BYTES

    def append(self, features: torch.Tensor) -> None:
        """One more observation per client, its features ``(n, n_features)``; zero where it is missing."""
        self._features[:, self.count] = features.numpy()
        self.count += 1

    def sample(self, values: torch.Tensor, *, prior: torch.Tensor, observation_noise: torch.Tensor) -> torch.Tensor:
        """A draw of the weights given the first t values ``(n, t)``: that of ``ridge_sample`` at t < n_features."""
        from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

        t, weights = values.shape[1], self._noise * prior.numpy()
        noisy = np.ascontiguousarray((values - self._noise**0.5 * observation_noise).numpy())
        if t < self._factored:
            self._factored = 0  # an earlier round once more: its factor has fewer rows in it
        compiled.draw_weights(self._features, self._factors, self._factored, self._noise, noisy, weights)
        self._factored = t
        return torch.from_numpy(weights)


def _triangle(size: int) -> int:
    return size * (size + 1) // 2


Moments: TypeAlias = tuple[torch.Tensor, torch.Tensor]
CONSTANT, JITTER = 1.0, 1e-8  # variances on standardised values: of the constant, and added to the noise
SLOPE_MEAN, SLOPE_STDDEV = 1.0, 0.4  # of the normal prior of a client's multiple of the shared function
_LEAST_VARIANCE = 1e-12
_NEGLIGIBLE = 1e-10  # share of the largest eigenvalue below which a direction of a prior covariance is left out


class Batch:
    """Numbers of n clients: tensors whose first axis is the client."""

    def rows(self, index: torch.Tensor) -> Self:
        """Those of some of the clients."""
        return type(self)(**{name: values[index] for name, values in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(Batch):
    """Fitted models of n clients, in units of the cube and of standardised values; private.

    Attributes:
        lengthscale: ``(n, n_embedded)``.
        outputscale: Prior variance ``(n,)``.
        noise: Observation variance ``(n,)``.
        slope: Multiple of the shared function, ``(n,)``; NaN where nothing is shared.
    """

    lengthscale: torch.Tensor
    outputscale: torch.Tensor
    noise: torch.Tensor
    slope: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Observations(Batch):
    """Observations of n clients, on the scale on which they are modelled.

    Attributes:
        embedded: Points as kernels see them, ``(n, t, n_embedded)``.
        values: Values as they are modelled, ``(n, t)``; zero where masked.
        mask: True where there is an observation, ``(n, t)``.
        scale: What the values were divided by, ``(n,)``.
    """

    embedded: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Shared(Batch):
    """The shared function where n clients have values.

    Attributes:
        mean: Its expected values, ``(n, t)``; zero where masked.
        uncertainty: Values of functions that make up how uncertain they are, each with a standard normal
            multiple, ``(n, t, r)``.
    """

    mean: torch.Tensor
    uncertainty: torch.Tensor

    @property
    def covariance(self) -> torch.Tensor:
        """Covariance of the uncertain part, ``(n, t, t)``."""
        return product(self.uncertainty, self.uncertainty.mT)


def is_compiled(setting: Setting, *, draws: bool = False) -> bool:
    """Whether a run's fits, posteriors and paths are machine code; else they are NumPy's and torch's.

    A small run is over sooner than its code is compiled. The question is one of the run, not of a cohort, a machine or
    a cache: answers must not depend on these.

    Args:
        setting: Of the run.
        draws: Whether Thompson draws are maximised, of which NumPy takes twice as long.
    """
    smallest = _SMALL_OF_DRAWS if draws else _SMALL
    return torch.device(setting.device).type == "cpu" and setting.n_clients * setting.rounds**2 > smallest


def as_array(tensor: torch.Tensor) -> FloatArray:
    """A tensor's numbers in one piece, as compiled code takes them."""
    return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float64)


def pieces(n_clients: int, entries: int, device: torch.device) -> list[slice]:
    """All clients, on a processor so many at once that the numbers of each, so many, stay in its cache."""
    size = max(1, _AT_ONCE // max(1, entries)) if device.type == "cpu" else n_clients
    return [slice(start, start + size) for start in range(0, n_clients, size)]


def masked_covariance(covariance: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Covariance of the observations ``(n, t, t)``; masked ones become independent unit variances."""
    both = mask[..., :, None] & mask[..., None, :]
    diagonal = torch.where(mask, noise[..., None], 1.0)
    return torch.where(both, covariance, 0.0) + torch.diag_embed(diagonal)


def kernel_values(kernel: Kernel, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Correlations ``(n, a, b)`` of points scaled by their length scale."""
    # In place: the arrays are large and most of the time goes into moving them.
    squares = product(-2.0 * left, right.mT).add_(squared_norms(left)[..., :, None])
    return correlations(kernel, squares.add_(squared_norms(right)[..., None, :]).clamp_min_(0.0))


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Expectations of n clients about their own objectives, before the shared part of the mean is added.

    Attributes:
        kernel: Of all of them.
        constant: Variance of a constant in the values.
        known: Points as the kernel sees them, divided by the length scales, ``(n, t, n_embedded)``.
        covariance_root: Inverse of the covariance's Cholesky factor, ``(n, t, t)``; ``(n, 0, 0)`` for means only.
        weights: Of the observations in the mean, ``(n, t)``.
        models: Hyperparameters.
        compiled: Whether by machine code.
    """

    kernel: Kernel
    constant: float
    known: torch.Tensor
    covariance_root: torch.Tensor
    weights: torch.Tensor
    models: Hyperparameters
    compiled: bool

    def __call__(self, embedded: torch.Tensor, uncertain: Moments | None = None) -> Moments:
        """Mean and variance ``(n, c)`` at points ``(n or 1, c, n_embedded)``.

        Args:
            embedded: The points.
            uncertain: Variance of the shared function there, ``(n or 1, c)``, and its covariance with the known points,
                ``(n, t, c)``; None where nothing is shared.
        """
        together, prior = None, self.models.outputscale[:, None] + self.constant
        if uncertain is not None:
            square = self.models.slope.square()[:, None]
            together, prior = square[..., None] * uncertain[1], prior + square * uncertain[0]
        mean, explained = self.conditioned(embedded, together)
        return mean, (prior - explained).clamp_min_(_LEAST_VARIANCE)

    def conditioned(self, embedded: torch.Tensor, together: torch.Tensor | None = None) -> Moments:
        """Mean and explained variance ``(n, c)``; zero without a root.

        Args:
            embedded: As for a call.
            together: Covariance of the shared function's uncertainty at known points and these, ``(n, t, c)``.
        """
        if self.compiled:
            from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

            shape = 2, len(self.known), embedded.shape[1]
            mean, explained = torch.zeros(shape, dtype=torch.float64, device=embedded.device)
            models = self.models.lengthscale, self.models.outputscale
            shared = embedded[:0, :0] if together is None else together
            numbers = self.known, self.covariance_root, self.weights, *models, embedded, shared, mean, explained
            compiled.expect(SMOOTHNESS[self.kernel], self.constant, *map(as_array, numbers))
            return mean, explained
        n, c, t = len(self.known), embedded.shape[1], self.known.shape[1]
        mean, explained = torch.empty(2, n, c, dtype=torch.float64, device=embedded.device)
        everywhere, root = embedded.expand(n, -1, -1), self.covariance_root
        for some in pieces(n, c * t, embedded.device):
            scaled = everywhere[some] / self.models.lengthscale[some, None]
            near = kernel_values(self.kernel, scaled, self.known[some]).mul_(self.models.outputscale[some, None, None])
            near.add_(self.constant)
            if together is not None:
                near.add_(together[some].mT)
            mean[some] = row_times(self.weights[some], near.mT)
            explained[some] = product(near[..., : root.shape[-1]], root[some].mT).square_().sum(-1)
        return mean, explained


def condition(
    models: Hyperparameters,
    residual: Observations,
    kernel: Kernel,
    shared: Shared | None = None,
    *,
    constant: float = CONSTANT,
    compiled: bool,
) -> Posterior:
    """Condition fitted models on what the shared function's expected values leave of the observed ones."""
    mask = residual.mask
    known = residual.embedded / models.lengthscale[:, None]
    covariance = models.outputscale[:, None, None] * kernel_values(kernel, known, known) + constant
    if shared is not None:
        covariance = covariance + models.slope.square()[:, None, None] * shared.covariance
    factor = cholesky(masked_covariance(covariance, mask, models.noise + JITTER))
    # Zero rows and columns: a masked observation says nothing about any point.
    root = torch.where(mask[:, :, None] & mask[:, None], inverse_root(factor), 0.0)
    weights = row_times(row_times(torch.where(mask, residual.values, 0.0), root.mT), root)
    return Posterior(
        kernel=kernel,
        constant=constant,
        known=known,
        covariance_root=root,
        weights=weights,
        models=models,
        compiled=compiled,
    )


@dataclass(frozen=True, kw_only=True)
class Paths:
    """One sample path of every client's posterior: waves, and what the data correct in them.

    The drawn multiples of given functions are left to the caller.

    Attributes:
        frequencies: Of the waves at unit length scale, ``(f, n_embedded)``.
        amplitudes: Of every client's waves, ``(n, f)``.
        phases: Of every client's waves, ``(n, f)``.
        lengthscale: ``(n, n_embedded)``.
        correction: Its mean is what the data correct; None: nothing.
        multiples: Of given functions, ``(n, r)``.
        compiled: Whether by machine code.
    """

    frequencies: torch.Tensor
    amplitudes: torch.Tensor
    phases: torch.Tensor
    lengthscale: torch.Tensor
    correction: Posterior | None
    multiples: torch.Tensor
    compiled: bool

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Values ``(n, c)`` at points ``(n, c, n_embedded)`` or ``(1, c, n_embedded)``, without the given functions."""
        if self.compiled:
            from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

            waves = torch.zeros(len(self.phases), embedded.shape[1], dtype=torch.float64, device=embedded.device)
            numbers = (self.frequencies, self.amplitudes, self.phases, self.lengthscale, embedded, waves)
            compiled.add_prior_paths(*map(as_array, numbers))
        else:
            waves = _waves(embedded / self.lengthscale[:, None], self.frequencies, self.amplitudes, self.phases)
        return waves if self.correction is None else waves + self.correction.conditioned(embedded)[0]


def draw_paths(
    observations: Observations,
    hyperparameters: Hyperparameters,
    *,
    kernel: Kernel,
    frequencies: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
    basis: torch.Tensor,
    multiples: torch.Tensor,
    compiled: bool,
) -> Paths:
    """A path of every client's exact posterior: a prior path plus the data's correction.

    The prior path is a random-feature draw; conditioning is exact in the kernel (Matheron's
    rule in function space, Wilson et al. 2020), so accuracy near the data does not depend
    on the number of features.

    Args:
        observations: Of n clients.
        hyperparameters: Of the same clients.
        kernel: Of all of them.
        frequencies: Spectral draws at unit length scale, ``(f, n_embedded)``.
        prior: Standard normal draws ``(n, 2 f)``.
        observation_noise: Standard normal draws ``(n, t)``.
        basis: Given functions at the observations, each with a standard normal multiple, ``(n, t, r)``.
        multiples: Standard normal draws ``(n, r)`` of those multiples before anything was observed.
        compiled: Whether values are those of machine code.
    """
    known = observations.embedded / hyperparameters.lengthscale[:, None, :]
    scale, noise = hyperparameters.outputscale[:, None], hyperparameters.noise[:, None]
    amplitudes, phases = _as_waves(prior * (scale / len(frequencies)).sqrt())
    covariance = scale[..., None] * kernel_values(kernel, known, known) + product(basis, basis.mT)
    imagined = _waves(known, frequencies, amplitudes, phases) + noise.sqrt() * observation_noise
    imagined = imagined + row_times(multiples, basis.mT)
    factor = cholesky(masked_covariance(covariance, observations.mask, hyperparameters.noise))
    residual = torch.where(observations.mask, observations.values - imagined, 0.0)
    surprise = _solved(factor, residual)
    correction = Posterior(
        kernel=kernel,
        constant=0.0,
        known=known,
        covariance_root=factor[:, :0, :0],
        weights=surprise,
        models=hyperparameters,
        compiled=compiled,
    )
    return Paths(
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        lengthscale=hyperparameters.lengthscale,
        correction=correction,
        multiples=multiples + row_times(surprise, basis),
        compiled=compiled,
    )


def _waves(
    scaled: torch.Tensor, frequencies: torch.Tensor, amplitudes: torch.Tensor, phases: torch.Tensor
) -> torch.Tensor:
    values = torch.empty(scaled.shape[:2], dtype=torch.float64, device=scaled.device)
    for some in pieces(len(scaled), scaled.shape[1] * len(frequencies), scaled.device):
        angles = product(scaled[some], frequencies.T).add_(phases[some, None])
        values[some] = row_times(amplitudes[some], angles.cos_().mT)
    return values


def _as_waves(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Amplitudes and phases of weights on cosines and, after them, sines: one wave each, which halves the work."""
    cosines, sines = weights.chunk(2, dim=-1)
    return torch.hypot(cosines, sines), torch.atan2(-sines, cosines)


def draw_feature_paths(
    observations: Observations,
    hyperparameters: Hyperparameters,
    *,
    frequencies: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
    compiled: bool,
) -> Paths:
    """A draw of every client's feature weights given its data (eq. 2 of the paper with own features).

    Args:
        observations: Of n clients.
        hyperparameters: Of the same clients.
        frequencies: As in ``draw_paths``.
        prior: As in ``draw_paths``.
        observation_noise: As in ``draw_paths``.
        compiled: As in ``draw_paths``.
    """
    scale = hyperparameters.outputscale[:, None, None].sqrt()
    angles = product(observations.embedded / hyperparameters.lengthscale[:, None, :], frequencies.T)
    features = scale * torch.cat([angles.cos(), angles.sin_()], dim=-1).div_(math.sqrt(len(frequencies)))
    weights = ridge_sample(
        features * observations.mask[..., None],
        observations.values,
        hyperparameters.noise,
        prior=prior,
        observation_noise=observation_noise,
    )
    amplitudes, phases = _as_waves(weights * (scale[..., 0] / math.sqrt(len(frequencies))))
    return Paths(
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        lengthscale=hyperparameters.lengthscale,
        correction=None,
        multiples=weights[:, :0],
        compiled=compiled,
    )


@lru_cache(maxsize=4)
def common_factor(
    points: bytes, n_embedded: int, lengthscale: float, outputscale: float, kernel: Kernel, device: str
) -> torch.Tensor:
    """B ``(c, r)`` with B B' the prior covariance at points that all clients share.

    Directions whose variance is negligible are left out, which makes B narrow for smooth kernels.

    Args:
        points: Bytes of numbers, ``(c, n_embedded)``.
        n_embedded: Coordinates a kernel sees.
        lengthscale: Of all coordinates.
        outputscale: Prior variance.
        kernel: Of unit variance.
        device: Where to keep it.
    """
    scaled = torch.tensor(np.frombuffer(points).reshape(-1, n_embedded), device=device) / lengthscale
    variances, directions = torch.linalg.eigh(outputscale * kernel_values(kernel, scaled[None], scaled[None])[0])
    large = variances > _NEGLIGIBLE * variances[-1]
    return torch.as_tensor(directions[:, large] * variances[large].sqrt())


def own_factors(points: torch.Tensor, hyperparameters: Hyperparameters, kernel: Kernel) -> torch.Tensor:
    """Cholesky factors ``(n, c, c)`` of every client's prior covariance at points ``(n, c, n_embedded)``."""
    scaled = points / hyperparameters.lengthscale[:, None, :]
    covariance = kernel_values(kernel, scaled, scaled)
    covariance.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    return torch.as_tensor(hyperparameters.outputscale.sqrt()[:, None, None] * cholesky(covariance))


def draw_exact(
    observations: Observations,
    noise: torch.Tensor,
    *,
    known: torch.Tensor,
    points: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> torch.Tensor:
    """Joint draws ``(n, c)`` from every client's exact posterior.

    Args:
        observations: Of n clients.
        noise: Observation variance ``(n,)``.
        known: Rows of the prior covariance's factor at the observations, ``(n, t, r)``.
        points: Rows of it where values are wanted, ``(n, c, r)`` or ``(c, r)``.
        prior: Standard normal draws ``(n, r)``.
        observation_noise: Standard normal draws ``(n, t)``.
    """
    weights = ridge_sample(
        known * observations.mask[..., None],
        observations.values,
        noise,
        prior=prior,
        observation_noise=observation_noise,
    )
    return weights @ points.mT if points.ndim == 2 else row_times(weights, points.mT)
