"""A private search on central data: both doors, their ledgers and the plan's price.

Training records and validation records are a public, disjoint split, so there are two
populations and two ledgers. Training is DP-SGD: every pull's steps are reserved on the
training ledger before its first batch. Validation losses leave through the door and are
charged to the validation ledger. The price of a search is the plan's: its larger epsilon
speaks of one record (which is in one of the two parts), their sum of somebody who may have
records in both.

A search with a directory resumes: run again with ``resume=True`` and the same arms, it finds
its finished pulls and their released losses, repeats its choices from them, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.events import Adjacency, Unit
from accountant.ledger import Ledger
from accountant.ledger.policy import Budget, LedgerPolicy
from accountant.tightest import epsilon_table
from privbo.door.door import Door
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_json, write_json
from privbo.protocol.settings import JsonObject, dump_settings
from privbo.training.journal import Journal
from privbo.training.judge import LossJudge, loss_mechanism
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.trainer import OpacusTrainer

if TYPE_CHECKING:
    from opacus.accountants import IAccountant


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
            "training": min(epsilon_table(self.privacy.training_event(z_train), delta, adjacency=TRAINING).values()),
            "validation": min(
                epsilon_table(self.privacy.validation_event(z_validate), delta, adjacency=VALIDATION).values()
            ),
        }
        return parts | {"maximum": max(parts.values()), "sum": sum(parts.values())}


def central_run(
    privacy: RecordPrivacy,
    *,
    n_training: int,
    n_validation: int,
    directory: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    name: str = "central",
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

    Raises:
        ConfigurationError: If secure noise lacks a directory.
        RunError: If a search stands there and isn't to be resumed, or is another one.
        CalibrationError: If no noise meets the target.
    """
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private search needs a directory for its durable ledgers; name one")
    z_train, z_validate = _multipliers(privacy)
    described: JsonObject = {
        "name": name,
        "privacy": dump_settings(privacy),
        "n_training": n_training,
        "n_validation": n_validation,
        "seed": seed,
        "noise_multipliers": [z_train, z_validate],
    }
    settle(directory, described, resume=resume)
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
    return CentralRun(
        privacy=privacy,
        trainer=trainer,
        judge=judge,
        training=training,
        validation=validation,
        noise_multipliers=(z_train, z_validate),
    )


def _multipliers(privacy: RecordPrivacy) -> tuple[float, float]:
    epsilon, delta = privacy.epsilon, privacy.delta
    return (
        calibrate_noise(privacy.training_event, epsilon=epsilon, delta=delta, adjacency=TRAINING),
        calibrate_noise(privacy.validation_event, epsilon=epsilon, delta=delta, adjacency=VALIDATION),
    )


def settle(directory: Path | None, described: JsonObject, *, resume: bool) -> None:
    """Write the search's description down, or hold it against the one that is resumed."""
    if directory is None:
        if resume:
            raise RunError("only a search with a directory can be resumed; name it")
        return
    path = directory / "search.json"
    if not resume:
        if path.exists():
            raise RunError(f"{directory} already holds a search; resume it or name another directory")
        directory.mkdir(parents=True, exist_ok=True)
        write_json(path, described)
        return
    found = read_json(path)
    different = sorted(key for key in described if found.get(key) != described[key])
    if different:
        raise RunError(f"{directory} holds a search with another {', '.join(different)}; resume it as it was")


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
