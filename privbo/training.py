"""Record-level privacy for models trained on central data: what a private search is handed.

Training records and validation records are a public, disjoint split, so there are two
populations and two ledgers. Training is DP-SGD by Opacus: every pull's steps are reserved
on the training ledger before its first batch. Validation losses leave through the door
and are charged to the validation ledger. The price of a search is the plan's: its larger
epsilon speaks of one record (which is in one of the two parts), their sum of somebody
who may have records in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.calibrate import poisson
from accountant.epsilon import epsilon_table
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency, Event, Gaussian, Unit, repeat
from accountant.ledger import Ledger
from accountant.ledger_terms import Budget, LedgerPolicy
from privbo.errors import ConfigurationError
from privbo.protocol import FloatArray, Request
from privbo.release.door import Door
from privbo.release.mechanism import PrivateSum, WeightGeometry
from privbo.release.noise import NoiseSource, SecureNoise, SimulatedNoise

if TYPE_CHECKING:
    import torch
    from opacus.accountants import IAccountant
    from opacus.optimizers import DPOptimizer
    from torch import Tensor, nn

_TRAIN, _VALIDATE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT


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


class OpacusTrainer:
    """DP-SGD by Opacus; the door for gradients.

    Args:
        n_records: Training records.
        privacy: The plan.
        noise_multiplier: z.
        block: Pays for a block of steps and returns its (Opacus) accountant.
        generator: Of noise and samples.
    """

    def __init__(
        self,
        *,
        n_records: int,
        privacy: RecordPrivacy,
        noise_multiplier: float,
        block: Callable[[int], IAccountant],
        generator: torch.Generator,
    ) -> None:
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        self._n_records, self._privacy, self._z = n_records, privacy, noise_multiplier
        self._block, self._generator = block, generator
        self._open: IAccountant | None = None
        sampler = UniformWithReplacementSampler(
            num_samples=n_records, sample_rate=privacy.sample_rate, generator=generator, steps=2**62
        )
        self._batches: Iterator[list[int]] = iter(sampler)

    def prepare(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Per-record gradients, clipping and noise; every step is reported to the ledger's accountant.

        Raises:
            ConfigurationError: If a layer mixes records, as batch normalisation does.
        """
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator

        problems = ModuleValidator.validate(model, strict=False)
        if problems:
            raise ConfigurationError(f"the model can't be trained privately: {problems[0]}; use group normalisation")
        wrapped = GradSampleModule(model)
        private = DPOptimizer(
            optimiser,
            noise_multiplier=self._z,
            max_grad_norm=self._privacy.clipping_norm,
            expected_batch_size=self._privacy.sample_rate * self._n_records,
            generator=self._generator,
            secure_mode=self._privacy.noise == "secure",
        )
        private.attach_step_hook(self._count)
        return wrapped, private

    def reserve(self, steps: int) -> None:
        """Charge the training ledger for a block of steps; the block before it is over."""
        self._open = self._block(steps)

    def _count(self, optimiser: DPOptimizer) -> None:
        """Opacus's hook: a step beyond what was reserved raises before it changes the model."""
        if self._open is None:
            raise BudgetExceeded("no step was reserved; call reserve before training")
        self._open.get_optimizer_hook_fn(self._privacy.sample_rate)(optimiser)

    def sample(self) -> Tensor:
        """One step's records."""
        import torch

        return torch.tensor(next(self._batches), dtype=torch.int64)


class LossJudge:
    """The door for validation losses: one release per answer, charged before losses are computed.

    Args:
        door: Of the validation ledger.
        n_records: Validation records.
        loss_bound: Losses are sent as (loss - bound), clipped to the bound.
        mechanism: What answers.
    """

    def __init__(self, door: Door, *, n_records: int, loss_bound: float, mechanism: PrivateSum) -> None:
        weights = np.full((1, n_records), 1.0 / n_records)
        self._request = Request(dim=1, clipping_norm=loss_bound, weights=weights)
        self._door, self._bound, self._round = door, loss_bound, 0
        self.stddev = mechanism.noise_stddev()

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses; a loss that is not finite counts as the middle."""
        ticket = self._door.open(self._round, self._request, plan_position=self._round)
        self._round += 1
        release, _ = self._door.close(ticket, np.asarray(losses())[:, None] - self._bound)
        return float(release.values[0, 0]) + self._bound


@dataclass(frozen=True, kw_only=True)
class CentralRun:
    """Both doors of a search, their ledgers and the plan's price.

    Attributes:
        privacy: The plan.
        trainer: For ``PrivateNeuralArm``.
        judge: For ``PrivateNeuralArm``.
        training: Ledger of the training records.
        validation: Ledger of the validation records.
        noise_multipliers: z of training and validation.
    """

    privacy: RecordPrivacy
    trainer: OpacusTrainer
    judge: LossJudge
    training: Ledger
    validation: Ledger
    noise_multipliers: tuple[float, float]

    def epsilon(self) -> dict[str, float]:
        """The plan's epsilon: of either part, their maximum and their sum."""
        z_train, z_validate = self.noise_multipliers
        delta = self.privacy.delta
        parts = {
            "training": min(epsilon_table(self.privacy.training_event(z_train), delta, adjacency=_TRAIN).values()),
            "validation": min(
                epsilon_table(self.privacy.validation_event(z_validate), delta, adjacency=_VALIDATE).values()
            ),
        }
        return parts | {"maximum": max(parts.values()), "sum": sum(parts.values())}


def central_run(
    privacy: RecordPrivacy,
    *,
    n_training: int,
    n_validation: int,
    directory: Path | None = None,
    seed: int | None = None,
    name: str = "central",
) -> CentralRun:
    """Price the plan, open both ledgers, and make the doors.

    Args:
        privacy: The plan and its target.
        n_training: Training records, public.
        n_validation: Validation records, public.
        directory: Where the ledgers are kept; None keeps them in memory, for simulations.
        seed: Of simulated noise.
        name: Of the run, in both ledgers.

    Raises:
        ConfigurationError: If secure noise lacks a directory or a cryptographic generator.
        CalibrationError: If no noise meets the target.
    """
    generator = _generator(privacy, seed)
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private search needs a directory for its durable ledgers; name one")
    z_train = calibrate_noise(privacy.training_event, epsilon=privacy.epsilon, delta=privacy.delta, adjacency=_TRAIN)
    z_validate = calibrate_noise(
        privacy.validation_event, epsilon=privacy.epsilon, delta=privacy.delta, adjacency=_VALIDATE
    )
    training = _ledger(directory, "training", privacy, n_training, _TRAIN, name)
    validation = _ledger(directory, "validation", privacy, n_validation, _VALIDATE, name)
    trainer = OpacusTrainer(
        n_records=n_training,
        privacy=privacy,
        noise_multiplier=z_train,
        block=_blocks(training, privacy, z_train, name),
        generator=generator,
    )
    judge = _judge(privacy, validation, n_validation, z_validate, seed, name)
    return CentralRun(
        privacy=privacy,
        trainer=trainer,
        judge=judge,
        training=training,
        validation=validation,
        noise_multipliers=(z_train, z_validate),
    )


def _blocks(ledger: Ledger, privacy: RecordPrivacy, z: float, name: str) -> Callable[[int], IAccountant]:
    from accountant.opacus_bridge import LedgerAccountant

    def reserve(steps: int) -> IAccountant:
        return LedgerAccountant.reserve(
            ledger,
            release_id=f"{name}/pull {len(ledger.entries(name))}",
            run=name,
            sample_rate=privacy.sample_rate,
            noise_multiplier=z,
            steps=steps,
            unit=Unit.RECORD,
            noise_source=privacy.noise,
        )

    return reserve


def _ledger(
    directory: Path | None, part: str, privacy: RecordPrivacy, n_records: int, adjacency: Adjacency, name: str
) -> Ledger:
    policy = LedgerPolicy(
        unit=Unit.RECORD,
        adjacency=adjacency,
        population=f"{name}, {part} records",
        n_clients=n_records,
        budget=Budget(epsilon=privacy.epsilon, delta=privacy.delta),
    )
    return Ledger.create(None if directory is None else directory / f"{part}.sqlite", policy)


def _judge(privacy: RecordPrivacy, ledger: Ledger, n_records: int, z: float, seed: int | None, name: str) -> LossJudge:
    weights = np.full((1, n_records), 1.0 / n_records)
    mechanism = PrivateSum(clipping_norm=privacy.loss_bound, geometry=WeightGeometry.of(weights), noise_multiplier=z)
    noise: NoiseSource = SecureNoise() if privacy.noise == "secure" else SimulatedNoise(seed or 0)
    door = Door(ledger, run=name, noise=noise, mechanism=lambda _: mechanism, n_clients=n_records)
    return LossJudge(door, n_records=n_records, loss_bound=privacy.loss_bound, mechanism=mechanism)


def _generator(privacy: RecordPrivacy, seed: int | None) -> Any:  # noqa: ANN401  # torchcsprng has no types
    import torch

    if privacy.noise == "simulation":
        return torch.Generator().manual_seed(seed or 0)
    try:
        import torchcsprng  # type: ignore[import-not-found]  # not on every platform
    except ImportError:
        raise ConfigurationError(
            "noise='secure' needs a cryptographic generator for torch; install torchcsprng, "
            "or say noise='simulation' and claim no guarantee"
        ) from None
    return torchcsprng.create_random_device_generator("/dev/urandom")
