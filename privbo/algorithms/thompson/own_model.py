"""Settings of a client's model and search of its own objective; no privacy is spent here."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from privbo.algorithms.thompson.features import Kernel
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import Count, Positive, Sequence, settings

Draw: TypeAlias = Literal["paths", "exact", "features"]
Part: TypeAlias = Literal["best", "newest", "spread"]


@settings(table="prior")
class Prior:
    """Log-normal prior of a positive hyperparameter, cut off at its bounds.

    Attributes:
        median: Where a fit begins, and what is used where nothing is fitted.
        spread: Standard deviation of the natural logarithm.
        low: Least value a fit may take.
        high: Largest value a fit may take.

    Raises:
        ConfigurationError: Unless ``0 < low < median < high`` and ``spread > 0``, all finite.

    Example:
        >>> import privbo as pb
        >>> smooth = pb.Prior(median=0.8, spread=0.3, low=0.1, high=5.0)
        >>> pb.OwnModel(lengthscale=smooth).lengthscale.median
        0.8
    """

    median: Positive
    spread: Positive
    low: Positive
    high: Positive

    def __post_init__(self) -> None:
        if not self.low < self.median < self.high:
            raise ConfigurationError(
                f"prior: need low < median < high, got low={self.low!r}, median={self.median!r}, high={self.high!r}"
            )


@settings(table="algorithm.own.inflation")
class Theorem1:
    """Inflation beta_t of a client's own draws, as Theorem 1 of the paper has it.

    ``beta_t = B + sigma sqrt(2 (gamma_{t-1} + 1 + log(4 / delta)))`` inflates a client's own draws and
    ``lambda = 1 + 2 / T`` regularises. Both are far larger than what works in practice.

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


@settings(table="algorithm.own")
class OwnModel:
    """A client's model and search of its own objective; it costs no privacy.

    The default priors suit points in the unit cube and values of unit variance: smooth on
    a scale of about half the cube, little noise. With a handful of observations they
    carry most of the weight.

    Attributes:
        kernel: ``"se"`` (squared exponential), ``"matern52"``, ``"matern32"`` or ``"matern12"`` (rough).
        draw: What a Thompson draw is. ``"paths"``: a random-feature path conditioned exactly
            (Wilson et al. 2020), maximised anywhere; ``"exact"``: a joint draw from the exact
            posterior at the whole grid of a finite space, else at the candidates;
            ``"features"``: a draw of the weights of random features (the authors' way).
        n_features: Random features of a draw (even); unused by exact draws.
        refit_every: Rounds after which a client that needs its model fits it anew; 0 never
            fits: every client uses the priors' medians.
        fit_steps: Adam steps of a fit.
        n_candidates: Candidates in the search for a draw's maximum; also the largest finite
            space searched whole.
        max_points: Most points that a model is made of; None takes all, at a cost like their cube. 200 cost no regret
            (docs/scale.md).
        kept: Points of a longer history that the model is made of, equal parts of them: those with the largest values,
            the newest, and others spread over the space. ``("newest",)`` follows an objective that drifts.
        ard: One length scale per coordinate; otherwise one for all.
        lengthscale: Prior, in units of the cube.
        outputscale: Prior of the kernel's variance, on standardised values.
        noise: Prior of the observation variance, on standardised values.
        noise_variance: Known observation variance in squared units of the objective; None
            fits it. At least ``noise.low`` once values are standardised.
        regularisation: lambda, used as the observation variance on standardised values instead of
            a fitted or known one; ``"theory"`` is Theorem 1's 1 + 2 / T.
        inflation: beta, by which a draw's deviation from the posterior mean is multiplied
            (Algorithm 2, line 6 of the paper): a number, or Theorem 1's beta_t.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> cheap = pb.OwnModel(refit_every=0, draw="exact", n_candidates=200)
        >>> pb.DPFTSDE(own=cheap).own.is_common
        True
    """

    kernel: Kernel = "matern52"
    draw: Draw = "paths"
    n_features: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    refit_every: Annotated[int, Field(ge=0)] = 1
    fit_steps: Count = 40
    n_candidates: Count = 512
    max_points: Annotated[int, Field(ge=8)] | None = 200
    kept: Annotated[Sequence[Part], Field(min_length=1)] = ("best", "newest", "spread")
    ard: bool = True
    lengthscale: Prior = Prior(median=0.4, spread=0.7, low=0.02, high=10.0)
    outputscale: Prior = Prior(median=1.0, spread=0.5, low=0.05, high=20.0)
    noise: Prior = Prior(median=1e-2, spread=1.0, low=1e-5, high=1.0)
    noise_variance: Positive | None = None
    regularisation: Positive | Literal["theory"] | None = None
    inflation: Positive | Theorem1 = 1.0

    def __post_init__(self) -> None:
        if self.regularisation is not None and self.noise_variance is not None:
            raise ConfigurationError("own: regularisation takes the place of noise_variance; give one of them")

    def scaled(self, share: float) -> OwnModel:
        """Give the model of a share of the values' variance."""
        prior = self.outputscale
        low, median = min(prior.low, share * prior.low), share * prior.median
        return dataclasses.replace(self, outputscale=dataclasses.replace(prior, low=low, median=median))

    def fixed_noise(self, rounds: int) -> float | None:
        """Lambda as a number for a run of T = ``rounds`` steps; None if the noise is fitted or known."""
        return regularisation(rounds) if self.regularisation == "theory" else self.regularisation

    @property
    def is_common(self) -> bool:
        """Whether all clients have the same kernel, so that what depends on it is made once."""
        return self.refit_every == 0
