"""The shared part of clients' models: a public function with its uncertainty, where clients have values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privbo.algorithms.thompson.posterior import batch_product


@dataclass(frozen=True, kw_only=True)
class SlopePrior:
    """Normal prior of the slope, the same for every client because it rests on public numbers.

    Attributes:
        mean: Expected multiple of the shared function.
        stddev: Its standard deviation.
    """

    mean: float
    stddev: float


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The shared function where n clients have values.

    Attributes:
        heights: Its expected heights, ``(n, t)``; zero where masked.
        uncertainty: Values of functions that make up how uncertain the heights are, each with a standard normal
            multiple, ``(n, t, r)``.
        slope: Prior of a client's multiple of the heights.
    """

    heights: torch.Tensor
    uncertainty: torch.Tensor
    slope: SlopePrior

    @property
    def covariance(self) -> torch.Tensor:
        """Covariance of the uncertain part, ``(n, t, t)``."""
        return batch_product(self.uncertainty, self.uncertainty.mT)

    def rows(self, index: torch.Tensor) -> Shared:
        """That of some clients."""
        return Shared(heights=self.heights[index], uncertainty=self.uncertainty[index], slope=self.slope)
