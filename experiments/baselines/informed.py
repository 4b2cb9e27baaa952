"""Shared vectors as a part of a client's own model, weighed by the client's own values.

A client regresses its values on the heights of the shared function at its own points, takes
the fitted part as the mean of its model, and keeps only the unexplained share of the
prior variance for the rest; the noise of the release, whose standard deviation is public, adds to
it. Clients that resemble the others trust them, the rest go on as if alone. Only public
numbers and the client's own data enter, so nothing is paid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from privbo.algorithms.thompson.local_model import Known, LocalModel
from privbo.algorithms.thompson.maximise import Functions
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations

# A client never believes the others explain more than this share of its variance.
_LARGEST_SHARE = 0.95


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The function in the last broadcast.

    Attributes:
        heights: Its values ``(n or 1, c)`` at points of the cube ``(n or 1, c, n_dims)``.
        noise_stddev: Standard deviation of the release's noise at any point (features have norm one).
    """

    heights: Functions
    noise_stddev: float


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Clients' models with the shared function as a part of their means.

    Attributes:
        observations: What the shared function leaves unexplained.
        models: With what is left of the prior variance.
        slope: Of the regression, ``(n,)``; zero for clients that are unlike the others.
        centre: Mean height at the client's own points, ``(n,)``.
    """

    observations: Observations
    models: Hyperparameters
    slope: torch.Tensor
    centre: torch.Tensor

    def add(self, values: torch.Tensor, heights: torch.Tensor) -> torch.Tensor:
        """Values ``(n, c)`` of the unexplained part plus the explained part at the same points."""
        return values + self.slope[:, None] * (heights - self.centre[:, None])


def explain(
    observations: Observations, models: Hyperparameters, heights: torch.Tensor, noise_stddev: float
) -> Explained:
    """Regress every client's standardised values on the heights ``(n, t)`` at its points.

    The slope is shrunk for the noise in the heights; what is unexplained is taken for
    observation noise as far as that goes.
    """
    mask = observations.mask
    count = mask.sum(dim=1).clamp_min(1)
    centre = torch.where(mask, heights, 0.0).sum(dim=1) / count
    apart = torch.where(mask, heights - centre[:, None], 0.0)
    spread = apart.square().sum(dim=1)
    slope = (apart * observations.values).sum(dim=1) / (spread + 1e-12)
    total = observations.values.square().sum(dim=1)
    left = (observations.values - slope[:, None] * apart).square().sum(dim=1) / total.clamp_min(1e-12)
    share = (1.0 - left).clamp(0.0, _LARGEST_SHARE)
    share = torch.where(count > 2, share, torch.zeros_like(share))
    reliable = spread / (spread + count * noise_stddev**2 + 1e-12)
    slope = torch.where(share > 0, slope * reliable, torch.zeros_like(slope))
    # What is left over is observation noise first, and only then a function of the client's own.
    unexplained = (1.0 - share - models.noise).clamp_min(1.0 - _LARGEST_SHARE) + (slope * noise_stddev).square()
    return Explained(
        observations=replace(observations, values=observations.values - slope[:, None] * apart),
        models=replace(models, outputscale=models.outputscale * unexplained.clamp_max(1.0)),
        slope=slope,
        centre=centre,
    )


class InformedModel(LocalModel):
    """Own models whose means hold a shared function, while there is one.

    Attributes:
        shared: The function.
    """

    shared: Shared | None = None

    def _draw(self, known: Known) -> Functions:
        shared = self.shared
        if shared is None:
            return super()._draw(known)
        found = explain(known.observations, known.models, shared.heights(known.units), shared.noise_stddev)
        drawn = super()._draw(replace(known, observations=found.observations, models=found.models))
        return lambda points: found.add(drawn(points), shared.heights(points))
