"""Weights of features given many clients' values at once: ridge regression, whole or while histories grow.

Histories are ragged (evaluations fail); a masked observation has zero features and zero value, which leaves the
weights untouched.

Clients gain one observation per round, so the inverse Cholesky factor of their Gram matrix
gains a row: a few products of a vector and a matrix instead of a product of matrices and a
factorisation. The leading block of a factor belongs to the history's beginning, so any
earlier round can be answered again.

What is kept is larger than a processor's caches and every product is one pass over it, so
the newest row and the weights are computed together: their products share the passes.
"""

from __future__ import annotations

import numpy as np
import torch

_LARGEST_BYTES = 2 * 2**30


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
        return row_times(torch.cholesky_solve(values[..., None], dual)[..., 0], features)
    primal = cholesky(_gram(features.mT, noise))
    weights: torch.Tensor = torch.cholesky_solve(batch_product(features.mT, values[..., None]), primal)[..., 0]
    return weights


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
        surprise = torch.cholesky_solve((values - imagined)[..., None], cholesky(_gram(features, noise)))[..., 0]
        return prior + row_times(surprise, features)
    # nu + sqrt(lambda) L'^-1 z with Sigma = L L'
    factor = cholesky(_gram(features.mT, noise))
    mean = torch.cholesky_solve(features.mT @ values[..., None], factor)
    spread = torch.linalg.solve_triangular(factor.mT, prior[..., None], upper=True)
    draw: torch.Tensor = mean[..., 0] + level.sqrt() * spread[..., 0]
    return draw


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
    """Features of n clients' observations and inverse factors of ``Phi Phi' + lambda I``.

    Args:
        n_clients: n.
        capacity: Most observations a client can have.
        n_features: M.
        noise: lambda.
        device: Where to keep them.
        block_bytes: Size of what is worked on at once on a processor: what a pass reads should still be in
            its caches at the next. No answer depends on it by more than rounding.

    Attributes:
        count: Observations per client so far.
    """

    def __init__(
        self,
        *,
        n_clients: int,
        capacity: int,
        n_features: int,
        noise: float,
        device: torch.device,
        block_bytes: int = 16 * 2**20,
    ) -> None:
        self._noise = noise
        self._block_bytes = block_bytes
        self._features = torch.zeros(n_clients, capacity, n_features, dtype=torch.float64, device=device)
        # W with W' W = (Phi Phi' + lambda I)^-1, lower triangular; its last row waits for the next answer.
        self._inverse = torch.zeros(n_clients, capacity, capacity, dtype=torch.float64, device=device)
        self._factored = 0
        self.count = 0

    @staticmethod
    def fits(n_clients: int, capacity: int, n_features: int) -> bool:
        """Whether so many clients' factors can be kept in memory."""
        return 8 * n_clients * capacity * (capacity + n_features) <= _LARGEST_BYTES

    def append(self, features: torch.Tensor) -> None:
        """One more observation per client, its features ``(n, n_features)``; zero where it is missing."""
        self._features[:, self.count] = features
        self.count += 1

    def sample(self, values: torch.Tensor, *, prior: torch.Tensor, observation_noise: torch.Tensor) -> torch.Tensor:
        """A draw of the weights given the first t values ``(n, t)``: prior ones moved by what the values say beyond."""
        values = values - self._noise**0.5 * observation_noise
        t = values.shape[1]
        if t == 0:
            return prior
        weights = torch.empty_like(prior)
        n, capacity, m = self._features.shape
        # The same at every length of the histories, so an answer does not depend on when a row was written.
        fitting = max(1, self._block_bytes // (8 * capacity * (capacity + m)))
        size = fitting if self._features.device.type == "cpu" else n
        for start in range(0, n, size):
            clients = slice(start, start + size)
            # Rows of observations that came without an answer, as at the start and after a restart.
            for row in range(self._factored, t - 1):
                self._newest(clients, torch.zeros_like(values[clients, : row + 1]), torch.zeros_like(prior[clients]))
            weights[clients] = self._newest(clients, values[clients], prior[clients])
        self._factored = max(self._factored, t)
        return weights

    def _newest(self, clients: slice, values: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        """Write the factors' row of the last of t observations; weights given the t values."""
        t = values.shape[1] - 1
        past, inverse = self._features[clients, :t], self._inverse[clients, :t, :t]
        new = self._features[clients, t]
        products = batch_product(torch.stack((new, prior), dim=1), past.mT)
        products[:, 1] = values[:, :t] - products[:, 1]
        column, surprise = batch_product(products, inverse.mT).unbind(1)
        row, solution = batch_product(torch.stack((column, surprise), dim=1), inverse).unbind(1)
        # In exact arithmetic what is left of the new point is at least lambda.
        left = new.square().sum(-1) + self._noise - column.square().sum(-1)
        scale = left.clamp_min(self._noise).rsqrt()
        self._inverse[clients, t, :t] = -scale[:, None] * row
        self._inverse[clients, t, t] = scale
        last = scale.square() * (values[:, t] - (new * prior).sum(-1) - (column * surprise).sum(-1))
        moved = batch_product((solution - last[:, None] * row)[:, None], past)[:, 0]
        return prior + moved + last[:, None] * new
