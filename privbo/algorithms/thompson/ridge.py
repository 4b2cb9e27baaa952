"""Weights of features given many clients' values at once: ridge regression, whole or while histories grow.

Histories are ragged (evaluations fail); a masked observation has zero features and zero value, which leaves the
weights untouched.

Clients gain one observation per round, so a Cholesky factor R' R = Phi' Phi + lambda I is updated by one row: rotations
instead of a product of matrices and a factorisation, whatever the history's length. A draw from it is Matheron's, by
the push-through identity

    w + Phi' (Phi Phi' + lambda I)^-1 (y - Phi w - sqrt(lambda) e) = (R' R)^-1 (Phi' (y - sqrt(lambda) e) + lambda w).
"""

from __future__ import annotations

import numpy as np
import torch

_LARGEST_BYTES = 2 * 2**30  # of a run
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
    mean, spread = _solved(factor, row_times(values, features)), _back(factor, prior)
    draw: torch.Tensor = mean + level.sqrt() * spread
    return draw


def _solved(factor: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """(L L')^-1 v for a lower factor ``(n, c, c)`` and a vector ``(n, c)`` per client."""
    if factor.device.type != "cpu":
        return torch.cholesky_solve(vector[..., None], factor)[..., 0]
    return _back(factor, torch.from_numpy(np.linalg.solve(factor.numpy(), vector.numpy()[..., None])[..., 0]))


def _back(factor: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """L'^-1 v per client.

    On a processor matrix by matrix through NumPy: rounding errors of torch's solvers depend on how many clients there
    are where c is odd.
    """
    if factor.device.type != "cpu":
        solved: torch.Tensor = torch.linalg.solve_triangular(factor.mT, vector[..., None], upper=True)[..., 0]
        return solved
    return torch.from_numpy(np.linalg.solve(factor.mT.numpy(), vector.numpy()[..., None])[..., 0])


def cholesky(matrices: torch.Tensor) -> torch.Tensor:
    """Lower factors of a batch ``(..., c, c)``; the identity for a matrix that has none.

    Torch raises for the whole batch where one matrix fails; here a client fails alone.
    """
    factors: torch.Tensor
    factors, failures = torch.linalg.cholesky_ex(matrices)
    failed = failures != 0  # also where an entry is not a number
    if not failed.any():
        return factors
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    # Taken out before the factorisation, or a derivative would still see what failed.
    replaced: torch.Tensor = torch.linalg.cholesky_ex(torch.where(failed[..., None, None], identity, matrices))[0]
    return replaced


def row_times(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """A row vector ``(n, a)`` times a matrix ``(n, a, b)`` per client, ``(n, b)``.

    Batched products take a row on the left several times as fast as a column on the right.
    """
    return batch_product(rows[:, None, :], matrices)[:, 0]


def batch_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of two matrices per client, ``(n, a, b)`` times ``(n, b, c)``.

    On a processor matrix by matrix through NumPy: the rounding errors of torch's batched products depend on how
    many clients there are, and they take 1.4 (from memory) to 2 times (from caches) as long.
    """
    if left.device.type == "cpu":
        return torch.from_numpy(np.matmul(left.numpy(), right.numpy()))
    return left @ right


def _gram(rows: torch.Tensor, noise: float | torch.Tensor) -> torch.Tensor:
    gram = batch_product(rows, rows.mT)
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
