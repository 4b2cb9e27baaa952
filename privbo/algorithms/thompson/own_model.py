"""How a client models and searches its own objective: settings only, no privacy is spent here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.theory import Theorem1, regularisation
from privbo.protocol.errors import ConfigurationError

Draw: TypeAlias = Literal["paths", "exact", "features"]


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Log-normal prior of a positive hyperparameter, cut off at its bounds.

    Attributes:
        median: Where a fit begins, and what is used where nothing is fitted.
        spread: Standard deviation of the natural logarithm.
        low: Least value a fit may take.
        high: Largest value a fit may take.
    """

    median: float
    spread: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.median < self.high < math.inf:
            raise ConfigurationError(
                f"prior: need 0 < low < median < high < inf, got low={self.low!r}, median={self.median!r}, "
                f"high={self.high!r}"
            )
        if not 0 < self.spread < math.inf:
            raise ConfigurationError(f"prior: spread={self.spread!r} must be a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """How a client models and searches its own objective; costs no privacy.

    The default priors suit points in the unit cube and values of unit variance: smooth on
    a scale of about half the cube, little noise. With a handful of observations they
    carry most of the weight.

    Attributes:
        kernel: ``"se"`` (squared exponential), ``"matern52"`` or ``"matern32"``.
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
    """

    kernel: Kernel = "matern52"
    draw: Draw = "paths"
    n_features: int = 128
    refit_every: int = 1
    fit_steps: int = 40
    n_candidates: int = 512
    ard: bool = True
    lengthscale: Prior = Prior(median=0.4, spread=0.7, low=0.02, high=10.0)
    outputscale: Prior = Prior(median=1.0, spread=0.5, low=0.05, high=20.0)
    noise: Prior = Prior(median=1e-2, spread=1.0, low=1e-5, high=1.0)
    noise_variance: float | None = None
    regularisation: float | Literal["theory"] | None = None
    inflation: float | Theorem1 = 1.0

    def __post_init__(self) -> None:
        if self.n_features < 2 or self.n_features % 2:
            raise ConfigurationError(f"own.n_features={self.n_features} must be even and at least 2")
        if self.refit_every < 0:
            raise ConfigurationError(f"own.refit_every={self.refit_every} must be at least 0 (0 never fits)")
        for name in ("fit_steps", "n_candidates"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"own.{name}={getattr(self, name)} must be at least 1")
        if self.regularisation is not None and self.noise_variance is not None:
            raise ConfigurationError("own: regularisation takes the place of noise_variance; give one of them")
        for name in ("noise_variance", "regularisation", "inflation"):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not 0 < value < math.inf:
                raise ConfigurationError(f"own.{name}={value!r} must be a finite number > 0")

    def fixed_noise(self, rounds: int) -> float | None:
        """Lambda as a number for a run of T = ``rounds`` steps; None if the noise is fitted or known."""
        return regularisation(rounds) if self.regularisation == "theory" else self.regularisation

    @property
    def is_common(self) -> bool:
        """Whether all clients have the same kernel, so that what depends on it is made once."""
        return self.refit_every == 0
