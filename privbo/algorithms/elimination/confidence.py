"""Pulls of a node and width of its confidence interval.

Fed-PNE and PF-PNE share them (PF-PNE, section 3.1): with ``L = log(c1 T / delta_b)``,
``tau_h = ceil(c^2 L rho^(-2h) / nu1^2)`` pulls make the half-width ``b = c sqrt(L / n)`` at
most ``nu1 rho^h``, the largest variation of the objective inside a cell of depth h.
``delta_b = 1 / M`` is the bandits' failure probability and has nothing to do with the delta
of privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privbo.protocol.messages import FloatArray, IntArray

# The release noise of a whole run stays within its half-width with probability 1 - NOISE_FAILURE.
NOISE_FAILURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Smoothness and confidence of a run.

    Attributes:
        horizon: T, pulls of one client over the whole run.
        n_clients: M.
        nu1: Variation of the objective over the whole space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals, > 0; 0.1 covers reward noise of about +-0.1, the
            theory of rewards in [0, 1] asks for 2.
        c1: Factor inside the logarithm, > 0.
    """

    horizon: int
    n_clients: int
    nu1: float
    rho: float
    c: float
    c1: float

    @property
    def log_term(self) -> float:
        """``log(c1 T M)``, at least 0."""
        return max(0.0, math.log(self.c1 * self.horizon * self.n_clients))

    def threshold(self, depth: int) -> int:
        """tau_h: pulls, over all clients, that a node of this depth needs."""
        exact = self.c**2 * self.log_term * self.rho ** (-2 * depth) / self.nu1**2
        return max(1, math.ceil(exact)) if exact < 2.0**53 else 2**53

    def pulls_per_client(self, depth: int) -> int:
        """ceil(tau_h / M), so that every node reaches its threshold."""
        return -(-self.threshold(depth) // self.n_clients)

    def variation(self, depth: int) -> float:
        """``nu1 rho^h``."""
        return float(self.nu1 * self.rho**depth)

    def radius(self, pulls: float | IntArray | FloatArray) -> FloatArray:
        """``c sqrt(L / n)`` after ``n`` pulls; infinite after none."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.c * np.sqrt(self.log_term / np.asarray(pulls, dtype=np.float64)))


def noise_half_width(noise_stddev: float, n_nodes: int, n_releases: int) -> float:
    """Half-width within which all noise of a run stays with probability 0.95.

    ``sigma sqrt(2 log(2 K P / 0.05))``: union bound over the K entries of each of P releases.

    Args:
        noise_stddev: Standard deviation of the noise in one released entry.
        n_nodes: K, entries of this release.
        n_releases: P, planned releases of the run.
    """
    return noise_stddev * math.sqrt(2.0 * math.log(2.0 * n_nodes * n_releases / NOISE_FAILURE))
