"""Plan and price of a private training, known before any record is read."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.events import Adjacency, BestOfRandomRuns, Event, compose, of_group
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from accountant.tight.numerical import epsilon as best_epsilon
from accountant.wording import upper_text
from privbo.protocol.errors import ConfigurationError
from privbo.training.judge import loss_mechanism
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy

if TYPE_CHECKING:
    from privbo.training.private_neural import MakeModel, Split

EventOf = Callable[[float], Event]
_NEIGHBOURS = {TRAINING: "a record is there or not", VALIDATION: "a record's loss is there or counts as the middle"}


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
    def loss_stddev(self) -> float:
        """Standard deviation of a validation loss's noise."""
        mechanism = loss_mechanism(self.n_validation, self.privacy.loss_bound, self.noise_multipliers[1])
        return mechanism.noise_stddev()

    @property
    def events(self) -> tuple[Event, Event]:
        """Charges of the training and of the validation ledger, for one record."""
        parts = self._parts()
        return self._charged([parts[0]]), self._charged([parts[1]])

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

        Example:
            >>> plan = priced(RecordPrivacy(epsilon=4.0, pulls=1), n_training=400, n_validation=100)
            >>> plan.of_person(training=1) < plan.of_person(training=2) < plan.of_person(training=2, validation=1)
            True
        """
        sizes, parts = (training, validation), self._parts()
        of_part = (TRAINING, VALIDATION)
        hit = [of_group(part, n, adjacency=near) for part, n, near in zip(parts, sizes, of_part, strict=True) if n != 0]
        if not hit:
            return 0.0
        # Removing a training record and zeroing its contribution are one and the same to the noisy sum.
        adjacency = TRAINING if not validation else Adjacency.ZERO_OUT
        return best_epsilon(self._charged(hit), self.privacy.delta, adjacency=adjacency)

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

    def _charged(self, parts: list[Event]) -> Event:
        return _charged(compose(parts), self.runs)


def _charged(once: Event, runs: TruncatedNegativeBinomial | None) -> Event:
    """The charge for trainings each of which is ``once``; of several the best alone leaves."""
    return once if runs is None else BestOfRandomRuns(run=compose([once]), eta=runs.eta, gamma=runs.gamma)


@functools.lru_cache(maxsize=16)
def priced(
    privacy: RecordPrivacy, *, n_training: int, n_validation: int, runs: TruncatedNegativeBinomial | None = None
) -> TrainingPlan:
    """Find the noise at which either part of the records pays at most ``privacy.epsilon``.

    Raises:
        CalibrationError: If no noise does.
    """

    def multiplier(part: EventOf, adjacency: Adjacency) -> float:
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


def plan_training(
    models: Mapping[str, MakeModel],
    data: Split,
    *,
    epsilon: float,
    delta: float | None = None,
    epochs: int = 10,
    batch_size: int = 64,
    clipping_norm: float = 1.0,
    loss_bound: float = 2.0,
    expected_runs: float | None = None,
    noise: Literal["secure", "simulation"] = "secure",
) -> TrainingPlan:
    """Price a training before it is made: noise, number of trainings, epsilon of a record and of a person.

    .. versionadded:: 0.3.0

    Args:
        models: As for ``train_private``, and so is everything else; only their number is used.
        data: Only the numbers of records are used.
        epsilon: Price of all of it, of one record.
        delta: Of it; by default at most 1e-5 and at most a tenth of one over the number of records.
        epochs: Expected number of times that a record is used in one training.
        batch_size: Expected number of records in a step.
        clipping_norm: Of a record's gradient.
        loss_bound: Validation losses are clipped to ``[0, 2 loss_bound]``.
        expected_runs: Expected number of trainings where there are several networks; by default two per network.
        noise: ``"secure"``, or ``"simulation"``.

    Raises:
        ConfigurationError: If a setting is impossible.
        CalibrationError: If no noise meets the target.

    Example:
        >>> import torch, privbo as pb
        >>> x, y = torch.zeros(200, 2), torch.zeros(200, dtype=torch.int64)
        >>> data = pb.Split(train_x=x[:150], train_y=y[:150], validation_x=x[150:], validation_y=y[150:])
        >>> plan = pb.plan_training({"linear": lambda: torch.nn.Linear(2, 2)}, data, epsilon=8.0)
        >>> round(plan.loss_stddev, 3)
        0.024
    """
    if not models:
        raise ConfigurationError("models is empty; name at least one network and the function that makes it")
    n_training, n_validation = len(data.train_y), len(data.validation_y)
    if not 0 < batch_size <= n_training:
        raise ConfigurationError(f"batch_size={batch_size} must lie in 1..{n_training}, the number of training records")
    smallest = min(1e-5, 1.0 / (10.0 * (n_training + n_validation)))
    privacy = RecordPrivacy(
        epsilon=epsilon,
        delta=smallest if delta is None else delta,
        pulls=1,
        steps=max(1, math.ceil(epochs * n_training / batch_size)),
        sample_rate=batch_size / n_training,
        clipping_norm=clipping_norm,
        loss_bound=loss_bound,
        noise=noise,
    )
    if len(models) == 1:
        return priced(privacy, n_training=n_training, n_validation=n_validation)
    mean = 2.0 * len(models) if expected_runs is None else expected_runs
    if not mean > 1.0:
        raise ConfigurationError(f"expected_runs={mean!r} must be above 1; give about two per network")
    runs = TruncatedNegativeBinomial(eta=1.0, gamma=1.0 / mean)
    return priced(privacy, n_training=n_training, n_validation=n_validation, runs=runs)
