"""The constants of the paper's Theorem 1 and Algorithm 2, for those who want the analysed algorithm.

``beta_t = B + sigma sqrt(2 (gamma_{t-1} + 1 + log(4 / delta)))`` inflates a client's own draws and
``lambda = 1 + 2 / T`` regularises. Both are far larger than what works in practice.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import settings


@settings(table="algorithm.own.inflation")
class Theorem1:
    """Inflation beta_t of a client's own draws, as Theorem 1 of the paper has it.

    gamma, the largest information any t queries can give, is bounded by greedy choice:
    a greedy set has at least 1 - 1/e of it (Krause & Guestrin 2005), so dividing by that is
    an upper bound over the points that are considered.

    Attributes:
        norm_bound: B, on the objective's norm in the kernel's space.
        noise_stddev: sigma, of the observations, on standardised values.
        failure: delta of the theorem (no privacy parameter).

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> own = pb.OwnModel(inflation=pb.Theorem1(norm_bound=2.0))
        >>> round(own.inflation.beta(gain=3.0), 3)
        2.392
    """

    norm_bound: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    noise_stddev: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    failure: Annotated[float, Field(gt=0, lt=1)] = 0.1

    def beta(self, gain: float) -> float:
        """beta_t where the largest information gain of the queries so far is ``gain``."""
        return self.norm_bound + self.noise_stddev * math.sqrt(2.0 * (gain + 1.0 + math.log(4.0 / self.failure)))


def regularisation(rounds: int) -> float:
    """Lambda = 1 + 2 / T."""
    return 1.0 + 2.0 / rounds


def information_gains(covariance: FloatArray, noise: float, count: int) -> FloatArray:
    """Upper bounds on the information of any 0, 1, ..., ``count`` queries among the points, ``(count + 1,)``.

    Args:
        covariance: Prior covariance of the points, ``(n, n)``.
        noise: lambda; a query tells ``log(1 + variance / lambda) / 2``.
        count: Largest number of queries.
    """
    left = np.array(covariance, dtype=np.float64)
    gains = np.zeros(count + 1)
    for t in range(count):
        variances = np.maximum(left.diagonal(), 0.0)
        best = int(variances.argmax())
        gains[t + 1] = gains[t] + 0.5 * math.log1p(float(variances[best]) / noise)
        column = left[:, best]
        left = left - np.outer(column, column) / (variances[best] + noise)
    return gains / (1.0 - math.exp(-1.0))
