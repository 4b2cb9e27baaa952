"""Weights of the shared features while histories grow, without factorising anything anew.

Clients gain one observation per round, so the inverse Cholesky factor of their Gram matrix
gains a row: a few products of a vector and a matrix instead of a product of matrices and a
factorisation. The leading block of a factor belongs to the history's beginning, so any
earlier round can be answered again.
"""

from __future__ import annotations

import torch

from privbo.thompson.posterior import row_times

_LARGEST_BYTES = 2 * 2**30


class GrowingRidge:
    """Features of n clients' observations and inverse factors of ``Phi Phi' + lambda I``.

    Args:
        n_clients: n.
        capacity: Most observations a client can have.
        n_features: M.
        noise: lambda.
        device: Where to keep them.
    """

    def __init__(self, *, n_clients: int, capacity: int, n_features: int, noise: float, device: torch.device) -> None:
        self._noise = noise
        self._features = torch.zeros(n_clients, capacity, n_features, dtype=torch.float64, device=device)
        # W with W' W = (Phi Phi' + lambda I)^-1, lower triangular.
        self._inverse = torch.zeros(n_clients, capacity, capacity, dtype=torch.float64, device=device)
        self.count = 0

    @staticmethod
    def fits(n_clients: int, capacity: int, n_features: int) -> bool:
        """Whether so many clients' factors can be kept in memory."""
        return 8 * n_clients * capacity * (capacity + n_features) <= _LARGEST_BYTES

    def append(self, features: torch.Tensor) -> None:
        """One more observation per client, its features ``(n, n_features)``; zero where it is missing."""
        t = self.count
        inverse = self._inverse[:, :t, :t]
        column = row_times(row_times(features, self._features[:, :t].mT), inverse.mT)
        # In exact arithmetic what is left of the new point is at least lambda.
        left = features.square().sum(-1) + self._noise - column.square().sum(-1)
        scale = left.clamp_min(self._noise).rsqrt()
        self._inverse[:, t, :t] = -scale[:, None] * row_times(column, inverse)
        self._inverse[:, t, t] = scale
        self._features[:, t] = features
        self.count += 1

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Posterior mean of the weights given the first t values ``(n, t)``; see ``posterior.ridge_mean``."""
        t = values.shape[1]
        inverse = self._inverse[:, :t, :t]
        return row_times(row_times(row_times(values, inverse.mT), inverse), self._features[:, :t])

    def sample(self, values: torch.Tensor, *, prior: torch.Tensor, observation_noise: torch.Tensor) -> torch.Tensor:
        """A draw of the weights given the first t values, by ``posterior.sample_by_matheron``'s rule."""
        imagined = row_times(prior, self._features[:, : values.shape[1]].mT) + self._noise**0.5 * observation_noise
        return prior + self.mean(values - imagined)
