"""Private selection on central data (Papernot and Steinke 2022): the best of a secret number of runs.

A run trains one randomly chosen candidate by DP-SGD and has its validation losses judged.
Both ledgers are charged for the whole selection before the first run, and both store the
best run's candidate, score and model before anything of it is handed out
(``privbo.door.selection`` says what a crash at each point can and cannot do).
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from accountant.events import BestOfRandomRuns, PoissonSampledGaussian
from accountant.ledger import Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.noise import NoiseSource
from privbo.door.selection import SelectionDoor, draw_runs
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import write_atomically
from privbo.protocol.settings import JsonObject, dump_settings
from privbo.training.asked import settle
from privbo.training.central import noise_of, open_ledger
from privbo.training.journal import State
from privbo.training.judge import RunAllowance, SecretJudge
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.price import TrainingPlan, priced
from privbo.training.trainer import OpacusTrainer

if TYPE_CHECKING:
    from opacus.accountants import IAccountant

    from privbo.training.private_neural import Split

RunOne = Callable[[int], tuple[float, State]]


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Result that a private selection released.

    Attributes:
        chosen: Index of the candidate.
        score: Its released loss.
        model: Its trained model's state.
    """

    chosen: int
    score: float
    model: State


@dataclass(frozen=True, kw_only=True)
class PrivateSelection:
    """A selection that is priced and not yet made.

    Attributes:
        plan: What it does and costs; ``plan.privacy`` says what one run does, each judged once.
        candidates: Names of what is chosen from, in order.
        trainer: For the candidates' arms.
        judge: For the candidates' arms.
        training: Ledger of the training records.
        validation: Ledger of the validation records.
        allowance: What the run that is being made may still do; nothing outside of ``select``.
    """

    plan: TrainingPlan
    candidates: tuple[str, ...]
    trainer: OpacusTrainer
    judge: SecretJudge
    training: Ledger
    validation: Ledger
    allowance: RunAllowance = field(repr=False)
    _noise: NoiseSource
    _directory: Path | None
    _name: str

    @property
    def events(self) -> tuple[BestOfRandomRuns, BestOfRandomRuns]:
        """Charges of the training and of the validation ledger."""
        return cast("tuple[BestOfRandomRuns, BestOfRandomRuns]", self.plan.events)

    def epsilon(self) -> dict[str, float]:
        """The plan's price (``TrainingPlan.epsilon``)."""
        return self.plan.epsilon()

    def select(self, run_one: RunOne) -> Selected:
        """Pay, draw the secret runs, make them, and release the best one.

        A selection that was released before is returned as the ledgers stored it; one that
        was cut off before is made anew under the same charge, because nothing of it had left.

        Args:
            run_one: Trains a candidate, by its number, through ``trainer`` and ``judge``; returns its judged
                loss and its model's state. What it sees and returns is secret.

        Raises:
            BudgetExceeded: If a ledger can't pay, or a run does more than it is priced for.
            RunError: If what was released can't be read.
        """
        door = SelectionDoor(
            prices=((self.training, self.events[0]), (self.validation, self.events[1])),
            run=self._name,
            noise_source=self.plan.privacy.noise,
        )
        released = door.open()
        if released is None:
            released = door.close(_encoded(self._best_of(run_one)))
        found = _decoded(released)
        self._publish(released)
        return found

    def _publish(self, released: bytes) -> None:
        """A copy of what the ledgers stored; a file that says otherwise is evidence and stays."""
        if self._directory is None:
            return
        path = self._directory / "selected.pt"
        if not path.exists():
            write_atomically(path, released)
        elif path.read_bytes() != released:
            raise RunError(f"{path} is not the model that was released; move it away and resume for the released one")

    def _best_of(self, run_one: RunOne) -> Selected:
        """SECRET until it is released: the result of the best run."""
        best = Selected(chosen=-1, score=math.inf, model={})
        runs = cast("TruncatedNegativeBinomial", self.plan.runs)
        for candidate in draw_runs(runs, len(self.candidates), self._noise.stream("runs")):
            with self.allowance.for_one_run(self.plan.privacy):
                score, model = run_one(candidate)
            score = score if math.isfinite(score) else math.inf
            if score < best.score or best.chosen < 0:
                best = Selected(chosen=candidate, score=score, model=model)
        return best


def _encoded(best: Selected) -> bytes:
    buffer = io.BytesIO()
    torch.save(dataclasses.asdict(best), buffer)
    return buffer.getvalue()


def _decoded(released: bytes) -> Selected:
    try:
        return Selected(**torch.load(io.BytesIO(released), weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(
            f"the ledgers' stored selection can't be read ({str(error).splitlines()[0]}); if privbo 0.1.0 released "
            "it, its ledgers hold a hash only: read selected.pt with that version"
        ) from None


def private_selection(
    privacy: RecordPrivacy,
    runs: TruncatedNegativeBinomial,
    *,
    candidates: Sequence[str],
    n_training: int,
    n_validation: int,
    directory: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    name: str = "selection",
    networks: JsonObject | None = None,
    data: Split | None = None,
) -> PrivateSelection:
    """Price a selection: noise such that all of it costs either part ``privacy.epsilon``.

    Args:
        privacy: What one run does (``pulls`` blocks of ``steps``), and the target.
        runs: Distribution of the number of runs.
        candidates: Names of what is chosen from; a released choice is a place among them.
        n_training: Training records, public.
        n_validation: Validation records, public.
        directory: Where ledgers and the released model are kept; None for simulations.
        resume: Go on with the selection in ``directory``.
        seed: Of simulated noise, runs and candidates.
        name: Of the run, in both ledgers.
        networks: The candidates, described (``privbo.training.asked``): resumed with the same ones only.
        data: The records, likewise.

    Raises:
        ConfigurationError: If secure noise lacks a directory.
        RunError: If another selection, or one among other candidates, stands in ``directory``.
        CalibrationError: If no noise meets the target.
    """
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private selection needs a directory for its durable ledgers; name one")
    plan = priced(privacy, n_training=n_training, n_validation=n_validation, runs=runs)
    z_train, z_judge = plan.noise_multipliers
    described: JsonObject = {
        "name": name,
        "candidates": list(candidates),
        "privacy": dump_settings(privacy),
        "runs": dataclasses.asdict(runs),
        "n_training": n_training,
        "n_validation": n_validation,
        "seed": seed,
        "noise_multipliers": [z_train, z_judge],
    }
    settle(directory, described | ({} if networks is None else {"networks": networks}), resume=resume, data=data)
    training = open_ledger(directory, "training", privacy, n_training, TRAINING, name)
    noise, allowance = noise_of(privacy, seed), RunAllowance()
    return PrivateSelection(
        plan=plan,
        candidates=tuple(candidates),
        trainer=OpacusTrainer(
            n_records=n_training,
            privacy=privacy,
            noise_multiplier=z_train,
            block=_counted(training, privacy, z_train, allowance),
            seed=seed or 0,
        ),
        judge=SecretJudge(
            n_records=n_validation,
            loss_bound=privacy.loss_bound,
            noise_multiplier=z_judge,
            noise=noise,
            allowance=allowance,
        ),
        training=training,
        validation=open_ledger(directory, "validation", privacy, n_validation, VALIDATION, name),
        allowance=allowance,
        _noise=noise,
        _directory=directory,
        _name=name,
    )


def _counted(
    ledger: Ledger, privacy: RecordPrivacy, z: float, allowance: RunAllowance
) -> Callable[[int, int], IAccountant]:
    """Blocks of a run that the selection's charge has paid for; nothing is charged here."""
    from privbo.door.opacus import LedgerAccountant

    event = PoissonSampledGaussian(sample_rate=privacy.sample_rate, noise_multiplier=z)

    def take(_: int, steps: int) -> IAccountant:
        allowance.take_steps(steps)
        return LedgerAccountant(ledger, event=event, steps=steps, opacus_multiplier=z)

    return take
