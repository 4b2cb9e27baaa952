"""Gaussian noise at full participation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import EPS, FloatArray, Pair, Tails, line_nodes, ndtr, normal_error


@dataclass(frozen=True, kw_only=True)
class Gaussian(Basic):
    """A vector query answered with Gaussian noise in every coordinate; all clients take part.

    The worst pair is N(0, z^2) against N(1, z^2), under every adjacency.

    Proof: docs/proofs/gaussian-sum.md.

    Attributes:
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, gaussian_dp
        >>> event = Gaussian(noise_multiplier=2.0)
        >>> round(gaussian_dp.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT), 3)
        1.993
    """

    words = "Gaussian, multiplier {noise_multiplier:.4g}"
    sampling = "none: every client takes part in every release"
    is_attained = True

    noise_multiplier: float

    gaussian_releases = 1
    is_gaussian = True

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        return (gaussian_pair(1.0 / self.noise_multiplier),)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return gaussian_curve(self.noise_multiplier, orders)

    def for_group(self, size: int, adjacency: Adjacency) -> Gaussian:
        return Gaussian(noise_multiplier=self.noise_multiplier / size)

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("GaussianDpEvent", {"noise_multiplier": factor * self.noise_multiplier})


def gaussian_curve(z: float, orders: FloatArray) -> FloatArray:
    """A / (2 z^2)."""
    return orders / (2.0 * z * z)


def gaussian_pair(mu: float) -> Pair:
    """P = N(mu, 1) against Q = N(0, 1): the loss is N(mu^2/2, mu^2) under P; symmetric."""

    def tails(edges: FloatArray) -> Tails:
        p, q = edges / mu - 0.5 * mu, edges / mu + 0.5 * mu
        return Tails(
            p_above=ndtr(-p),
            p_below=ndtr(p),
            q_above=ndtr(-q),
            q_below=ndtr(q),
            relative_error=normal_error(np.abs(p) + mu),
        )

    def loss_range(t: float) -> tuple[float, float]:
        return 0.5 * mu * mu - mu * t, 0.5 * mu * mu + mu * t

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = line_nodes(-t, t, 1.0, 0.0)
        return 0.5 * mu * mu + mu * x, log_weight

    return Pair(tails=tails, loss_range=loss_range, loss_error=16.0 * EPS * (1.0 + mu * mu), nodes=nodes)
