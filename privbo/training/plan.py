"""The plan of a private search on central data, fixed before any record is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from accountant.calibrate import poisson
from accountant.events import Adjacency, Event, Gaussian, repeat
from privbo.protocol.settings import Count, Positive, Probability, settings

TRAINING, VALIDATION = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT


@settings(table="privacy")
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
        ConfigurationError: If a value is of another type or out of its range.

    Example:
        >>> plan = RecordPrivacy(epsilon=2.0, pulls=4)
        >>> plan.validation_event(5.0)
        Composed(parts=((Gaussian(noise_multiplier=5.0), 4),))
        >>> RecordPrivacy(epsilon=-2.0, pulls=4)
        Traceback (most recent call last):
        privbo.protocol.errors.ConfigurationError: privacy.epsilon=-2.0: input should be a number > 0; correct it
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    pulls: Count
    steps: Count = 40
    sample_rate: Probability = 1.0 / 16.0
    clipping_norm: Positive = 1.0
    loss_bound: Positive = 2.0
    noise: Literal["secure", "simulation"] = "secure"

    def training_event(self, noise_multiplier: float) -> Event:
        """Everything the training part can charge."""
        return poisson(self.sample_rate, noise_multiplier, self.pulls * self.steps)

    def validation_event(self, noise_multiplier: float) -> Event:
        """Everything the validation part can charge."""
        return repeat(Gaussian(noise_multiplier=noise_multiplier), self.pulls)
