"""Plan and price of a private search on central data, fixed before any record is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from accountant.calibrate import noise_multiplier as calibrate_noise, poisson
from accountant.errors import PrivacyError
from accountant.events import Adjacency, BestOfRandomRuns, Event, Gaussian, compose, of_group, repeat
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from accountant.sensitivity import contribution_factor
from accountant.tight.numerical import epsilon as best_epsilon
from accountant.wording import upper_text
from privbo.door.mechanism import mechanism_for
from privbo.protocol.messages import Request
from privbo.protocol.settings import Count, Positive, Probability, settings

TRAINING, VALIDATION = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT
_NEIGHBOURS = {TRAINING: "a record is there or not", VALIDATION: "a record's loss is there or counts as the middle"}


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


def loss_request(n_records: int, loss_bound: float) -> Request:
    """The mean over records of (loss - bound), each within the bound."""
    weights = np.full((1, n_records), 1.0 / n_records)
    return Request(dim=1, clipping_norm=loss_bound, weights=weights)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Steps, noise and price of a private training; made without reading a record.

    .. versionadded:: 0.3.0

    Attributes:
        privacy: What one training does, and the target.
        runs: Distribution of the secret number of trainings; None where one network is trained once.
        n_training: Training records, public.
        n_validation: Validation records, public.
        noise_multipliers: Noise over sensitivity of a training step and of a validation loss.

    Example:
        >>> privacy = RecordPrivacy(epsilon=4.0, pulls=1, steps=20, sample_rate=0.25)
        >>> print(priced(privacy, n_training=400, n_validation=100))
        <TrainingPlan: 1 training of 20 steps; a loss is released with noise of 0.0216 (standard deviation)
         training: epsilon 3.999 at delta 1e-05, add-or-remove-one (a record is there or not)
         validation: epsilon 4 at delta 1e-05, zero-out (a record's loss is there or counts as the middle)
         both: epsilon 5.816 at delta 1e-05, for a person with one record in each part>
    """

    privacy: RecordPrivacy
    runs: TruncatedNegativeBinomial | None
    n_training: int
    n_validation: int
    noise_multipliers: tuple[float, float]

    @property
    def expected_batch_size(self) -> float:
        """Expected number of records in a training step."""
        return self.privacy.sample_rate * self.n_training

    @property
    def loss_stddev(self) -> float:
        """Standard deviation of a validation loss's noise."""
        request = loss_request(self.n_validation, self.privacy.loss_bound)
        return mechanism_for(request, noise_multiplier=self.noise_multipliers[1]).noise_stddev()

    @property
    def events(self) -> tuple[Event, Event]:
        """Charges of the training and of the validation ledger, for one record."""
        training, validation = self._parts()
        return _charged(training, self.runs), _charged(validation, self.runs)

    @property
    def event(self) -> Event:
        """What all of it costs a record of either part that is replaced by another one, for ``Problem.training``.

        Replacing a record moves a sum by twice its bound, so every multiplier is halved. A record is in one part;
        both parts are composed, which covers either.

        .. versionadded:: 0.3.0

        Example:
            >>> priced(RecordPrivacy(epsilon=4.0, pulls=1, steps=20), n_training=400, n_validation=100).event.text
            '1 x (Gaussian, multiplier 0.5406), 20 x (Poisson-sampled Gaussian, rate 0.0625, multiplier 0.399)'
        """
        z_train, z_judge = (z / contribution_factor(Adjacency.REPLACE_ONE) for z in self.noise_multipliers)
        once = compose([self.privacy.training_event(z_train), self.privacy.validation_event(z_judge)])
        return _charged(once, self.runs)

    def epsilon(self) -> dict[str, float]:
        """Price at ``privacy.delta``.

        Returns:
            ``"training"`` and ``"validation"``: of a record of either part. ``"maximum"``: of a record, which is in
            one of them. ``"both"``: of a person with one record in each, composed.
        """
        either = {"training": self.of_person(training=1), "validation": self.of_person(validation=1)}
        return either | {"maximum": max(either.values()), "both": self.of_person(training=1, validation=1)}

    def of_person(self, *, training: int = 0, validation: int = 0) -> float:
        """Price for a person with so many records in either part, all of them together, at ``privacy.delta``.

        Raises:
            AccountingError: If a number is no whole number of records.
            EventError: If so many records can't be priced.

        Example:
            >>> plan = priced(RecordPrivacy(epsilon=4.0, pulls=1), n_training=400, n_validation=100)
            >>> plan.of_person(training=1) < plan.of_person(training=2) < plan.of_person(training=2, validation=1)
            True
        """
        names, sizes, of_part = ("training", "validation"), (training, validation), (TRAINING, VALIDATION)
        hit: list[Event] = []
        for name, part, n, near in zip(names, self._parts(), sizes, of_part, strict=True):
            try:
                hit += [of_group(part, n, adjacency=near)] if n != 0 else []
            except PrivacyError as error:
                raise type(error)(str(error).replace("group=", f"{name}=")) from None
        if not hit:
            return 0.0
        # Removing a training record and zeroing its contribution are one and the same to the noisy sum.
        adjacency = TRAINING if not validation else Adjacency.ZERO_OUT
        return best_epsilon(_charged(compose(hit), self.runs), self.privacy.delta, adjacency=adjacency)

    def __repr__(self) -> str:
        price, at = self.epsilon(), f"at delta {upper_text(self.privacy.delta)}"
        times = "1 training" if self.runs is None else f"about {self.runs.mean:.3g} trainings"
        noise = f"a loss is released with noise of {self.loss_stddev:.3g} (standard deviation)"
        lines = [
            f"<TrainingPlan: {times} of {self.privacy.steps} steps; {noise}",
            *(
                f" {part}: epsilon {upper_text(price[part])} {at}, {near.value} ({_NEIGHBOURS[near]})"
                for part, near in (("training", TRAINING), ("validation", VALIDATION))
            ),
            f" both: epsilon {upper_text(price['both'])} {at}, for a person with one record in each part",
        ]
        if self.runs is not None:
            apart = 2.0 * math.sqrt(2.0) * self.loss_stddev
            lines.append(f" networks whose losses differ by less than about {apart:.2g} are told apart by chance")
        return "\n".join(lines) + ">"

    def _parts(self) -> tuple[Event, Event]:
        """One training's events."""
        z_train, z_judge = self.noise_multipliers
        return self.privacy.training_event(z_train), self.privacy.validation_event(z_judge)


def _charged(once: Event, runs: TruncatedNegativeBinomial | None) -> Event:
    """The charge for trainings each of which is ``once``; of several the best alone leaves."""
    return once if runs is None else BestOfRandomRuns(run=compose([once]), eta=runs.eta, gamma=runs.gamma)


@functools.lru_cache(maxsize=16)
def priced(
    privacy: RecordPrivacy, *, n_training: int, n_validation: int, runs: TruncatedNegativeBinomial | None = None
) -> TrainingPlan:
    """Find the noise at which either part of the records costs at most ``privacy.epsilon``.

    Raises:
        CalibrationError: If no noise does.
    """

    def multiplier(part: Callable[[float], Event], adjacency: Adjacency) -> float:
        return calibrate_noise(
            lambda z: _charged(part(z), runs), epsilon=privacy.epsilon, delta=privacy.delta, adjacency=adjacency
        )

    return TrainingPlan(
        privacy=privacy,
        runs=runs,
        n_training=n_training,
        n_validation=n_validation,
        noise_multipliers=(
            multiplier(privacy.training_event, TRAINING),
            multiplier(privacy.validation_event, VALIDATION),
        ),
    )
