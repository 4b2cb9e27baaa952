"""What a private search on central data may do, fixed before any record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from accountant.calibrate import poisson
from accountant.events import Adjacency, Event, Gaussian, repeat
from privbo.protocol.errors import ConfigurationError

TRAINING, VALIDATION = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT


@dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """The plan of a private search on central data and its target.

    Attributes:
        epsilon: Target of either part.
        delta: Of either part.
        pulls: Most pulls of the whole search.
        steps: DP-SGD steps per pull.
        sample_rate: q, the chance of a training record to join a step.
        clipping_norm: Of a record's gradient.
        loss_bound: Losses are clipped to [0, 2 loss_bound].
        noise: ``"secure"``, or ``"simulation"`` for seeded experiments without a guarantee.

    Raises:
        ConfigurationError: If a value is out of its range.
    """

    epsilon: float
    delta: float = 1e-5
    pulls: int
    steps: int = 40
    sample_rate: float = 1.0 / 16.0
    clipping_norm: float = 1.0
    loss_bound: float = 2.0
    noise: Literal["secure", "simulation"] = "secure"

    def __post_init__(self) -> None:
        for name in ("epsilon", "clipping_norm", "loss_bound"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}={value!r} must be a finite number > 0")
        if not 0 < self.sample_rate <= 1 or not 0 < self.delta < 1:
            raise ConfigurationError(f"sample_rate={self.sample_rate!r} and delta={self.delta!r} must lie in (0, 1]")
        if self.pulls < 1 or self.steps < 1:
            raise ConfigurationError(f"pulls={self.pulls!r} and steps={self.steps!r} must be at least 1")

    def training_event(self, noise_multiplier: float) -> Event:
        """Everything the training part can charge."""
        return poisson(self.sample_rate, noise_multiplier, self.pulls * self.steps)

    def validation_event(self, noise_multiplier: float) -> Event:
        """Everything the validation part can charge."""
        return repeat(Gaussian(noise_multiplier=noise_multiplier), self.pulls)
