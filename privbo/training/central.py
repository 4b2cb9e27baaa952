"""A private search on central data: both doors, their ledgers and the plan's price.

Training records and validation records are a public, disjoint split, so there are two
populations and two ledgers. Training is DP-SGD: every pull's steps are reserved on the
training ledger before its first batch. Validation losses leave through the door and are
charged to the validation ledger. The price of a search is the plan's (``TrainingPlan``).

A search with a directory resumes: run again with ``resume=True`` and the same arms, it finds
its finished pulls and their released losses, repeats its choices from them, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accountant.events import Adjacency, Unit
from accountant.ledger import Ledger
from accountant.ledger.policy import Budget, LedgerPolicy
from privbo.door.door import Door
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.settings import JsonObject, dump_settings
from privbo.training.asked import settle
from privbo.training.journal import Journal
from privbo.training.judge import LossJudge, loss_mechanism
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.price import TrainingPlan, priced
from privbo.training.trainer import OpacusTrainer

if TYPE_CHECKING:
    from opacus.accountants import IAccountant

    from privbo.training.private_neural import Split


@dataclass(frozen=True, kw_only=True)
class CentralRun:
    """Both doors of a search, their ledgers and the plan's price.

    Attributes:
        plan: What it does and costs.
        trainer: For ``PrivateNeuralArm``.
        judge: For ``PrivateNeuralArm``.
        training: Ledger of the training records.
        validation: Ledger of the validation records.
    """

    plan: TrainingPlan
    trainer: OpacusTrainer
    judge: LossJudge
    training: Ledger
    validation: Ledger

    def epsilon(self) -> dict[str, float]:
        """The plan's price (``TrainingPlan.epsilon``)."""
        return self.plan.epsilon()


def central_run(
    privacy: RecordPrivacy,
    *,
    n_training: int,
    n_validation: int,
    directory: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    name: str = "central",
    networks: JsonObject | None = None,
    data: Split | None = None,
) -> CentralRun:
    """Price the plan, open both ledgers, and make the doors.

    Args:
        privacy: The plan and its target.
        n_training: Training records, public.
        n_validation: Validation records, public.
        directory: Where ledgers and finished pulls are kept; None keeps them in memory, for
            simulations.
        resume: Go on with the search in ``directory``; pull the same arms by the same search.
        seed: Of simulated noise.
        name: Of the run, in both ledgers.
        networks: The arms, described (``privbo.training.asked``): the search is resumed with the same ones only.
        data: The records, likewise.

    Raises:
        ConfigurationError: If secure noise lacks a directory.
        RunError: If a search stands there and isn't to be resumed, or is another one.
        CalibrationError: If no noise meets the target.
    """
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private search needs a directory for its durable ledgers; name one")
    plan = priced(privacy, n_training=n_training, n_validation=n_validation)
    z_train, z_validate = plan.noise_multipliers
    described: JsonObject = {
        "name": name,
        "privacy": dump_settings(privacy),
        "n_training": n_training,
        "n_validation": n_validation,
        "seed": seed,
        "noise_multipliers": [z_train, z_validate],
    }
    settle(directory, described | ({} if networks is None else {"networks": networks}), resume=resume, data=data)
    training = open_ledger(directory, "training", privacy, n_training, TRAINING, name)
    validation = open_ledger(directory, "validation", privacy, n_validation, VALIDATION, name)
    trainer = OpacusTrainer(
        n_records=n_training,
        privacy=privacy,
        noise_multiplier=z_train,
        block=_blocks(training, privacy, z_train, name),
        seed=seed or 0,
        journal=None
        if directory is None
        else Journal(directory / "pulls", lambda position: validation.stored_release(f"{name}/{position}") is not None),
    )
    mechanism = loss_mechanism(n_validation, privacy.loss_bound, z_validate)
    door = Door(
        validation, run=name, noise=noise_of(privacy, seed), mechanism=lambda _: mechanism, n_clients=n_validation
    )
    judge = LossJudge(door, n_records=n_validation, loss_bound=privacy.loss_bound, mechanism=mechanism)
    return CentralRun(plan=plan, trainer=trainer, judge=judge, training=training, validation=validation)


def _blocks(ledger: Ledger, privacy: RecordPrivacy, z: float, name: str) -> Callable[[int, int], IAccountant]:
    from privbo.door.opacus import LedgerAccountant

    def reserve(position: int, steps: int) -> IAccountant:
        return LedgerAccountant.reserve(
            ledger,
            release_id=f"{name}/pull {position}",
            run=name,
            sample_rate=privacy.sample_rate,
            noise_multiplier=z,
            steps=steps,
            unit=Unit.RECORD,
            noise_source=privacy.noise,
        )

    return reserve


def open_ledger(
    directory: Path | None, part: str, privacy: RecordPrivacy, n_records: int, adjacency: Adjacency, name: str
) -> Ledger:
    """The ledger of one part of the records, new or (in a directory that has it) as it was left.

    Raises:
        RunError: If what stands there is another population's ledger.
    """
    policy = LedgerPolicy(
        unit=Unit.RECORD,
        adjacency=adjacency,
        population=f"{name}, {part} records",
        n_clients=n_records,
        budget=Budget(epsilon=privacy.epsilon, delta=privacy.delta),
    )
    path = None if directory is None else directory / f"{part}.sqlite"
    if path is None or not path.exists():
        return Ledger.create(path, policy)
    ledger = Ledger.open(path)
    if ledger.policy != policy:
        raise RunError(f"{path} is a ledger of {ledger.policy}, this search needs {policy}; name its own directory")
    return ledger


def noise_of(privacy: RecordPrivacy, seed: int | None) -> NoiseSource:
    """The source of validation noise."""
    return SecureNoise() if privacy.noise == "secure" else SimulatedNoise(seed or 0)
