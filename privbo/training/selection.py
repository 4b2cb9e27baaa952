"""Private selection on central data (Papernot and Steinke 2022): the best of a secret number of runs.

A run trains one randomly chosen candidate by DP-SGD and has its validation losses judged.
Both ledgers are charged for the whole selection before the first run; what is released, by
one atomic write, is the best run's candidate, score and model.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.epsilon import epsilon as best_epsilon
from accountant.errors import BudgetExceeded
from accountant.events import BestOfRandomRuns, PoissonSampledGaussian, compose
from accountant.ledger import Ledger
from accountant.selection import TruncatedNegativeBinomial
from privbo.door.noise import NoiseSource
from privbo.door.selection import bind_selection, charge_selection, draw_runs, is_bound, secret_score
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.training.central import noise_of, open_ledger, settle
from privbo.training.judge import loss_mechanism, loss_request
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.trainer import OpacusTrainer

if TYPE_CHECKING:
    from opacus.accountants import IAccountant

RunOne = Callable[[int], tuple[float, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What a private selection released.

    Attributes:
        chosen: Index of the candidate.
        score: Its released loss.
        model: Its trained model's state.
    """

    chosen: int
    score: float
    model: dict[str, Any]


class SecretJudge:
    """Noisy mean losses that stay inside a selection; use it for the arms of ``PrivateSelection.select``."""

    def __init__(self, *, n_records: int, loss_bound: float, noise_multiplier: float, noise: NoiseSource) -> None:
        self._request = loss_request(n_records, loss_bound)
        self._mechanism = loss_mechanism(n_records, loss_bound, noise_multiplier)
        self._bound, self._noise, self._made = loss_bound, noise, 0
        self.stddev = self._mechanism.noise_stddev()
        self.left = 0

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses.

        Raises:
            BudgetExceeded: Outside of a run, or twice in one.
        """
        if self.left < 1:
            raise BudgetExceeded("a run's score is paid for once; judge a model inside its run only")
        self.left -= 1
        self._made += 1
        rows = np.asarray(losses())[:, None] - self._bound
        noise = self._noise.stream(f"run {self._made}")
        return secret_score(self._mechanism, self._request, rows, noise) + self._bound


@dataclass(frozen=True, kw_only=True)
class PrivateSelection:
    """A selection that is priced and not yet made.

    Attributes:
        privacy: The plan of one run (``pulls`` of it, each judged once) and the whole selection's target.
        runs: Distribution of the number of runs.
        trainer: For the candidates' arms.
        judge: For the candidates' arms.
        training: Ledger of the training records.
        validation: Ledger of the validation records.
        events: What training and validation are charged.
    """

    privacy: RecordPrivacy
    runs: TruncatedNegativeBinomial
    trainer: OpacusTrainer
    judge: SecretJudge
    training: Ledger
    validation: Ledger
    events: tuple[BestOfRandomRuns, BestOfRandomRuns]
    _noise: NoiseSource
    _directory: Path | None
    _name: str
    _steps_left: list[int]

    def epsilon(self) -> dict[str, float]:
        """Epsilon of either part, their maximum, and of somebody with records in both."""
        delta, (first, second) = self.privacy.delta, self.events
        both = dataclasses.replace(first, run=compose([first.run, second.run]))
        parts = {
            "training": best_epsilon(first, delta, adjacency=TRAINING),
            "validation": best_epsilon(second, delta, adjacency=VALIDATION),
        }
        return parts | {"maximum": max(parts.values()), "both": best_epsilon(both, delta, adjacency=VALIDATION)}

    def select(self, n_candidates: int, run_one: RunOne) -> Selected:
        """Pay, draw the secret runs, make them, and release the best one.

        A selection that was released before is returned as it was; one that was cut off
        before is made anew under the same charge, because nothing of it had left.

        Args:
            n_candidates: Number of candidates.
            run_one: Trains a candidate through ``trainer`` and ``judge``; returns its judged
                loss and its model's state. What it sees and returns is secret.

        Raises:
            BudgetExceeded: If a ledger can't pay, or a run does more than it is priced for.
            RunError: If the released model is gone or not the one that was released.
        """
        for ledger, event in zip((self.training, self.validation), self.events, strict=True):
            charge_selection(ledger, event, run=self._name, noise_source=self.privacy.noise)
        if (found := self._released(n_candidates)) is not None:
            return found
        best = Selected(chosen=-1, score=math.inf, model={})
        for candidate in draw_runs(self.runs, n_candidates, self._noise.stream("runs")):
            self._steps_left[0], self.judge.left = self.privacy.pulls * self.privacy.steps, self.privacy.pulls
            score, model = run_one(candidate)
            score = score if math.isfinite(score) else math.inf
            if score < best.score or best.chosen < 0:
                best = Selected(chosen=candidate, score=score, model=model)
        self._steps_left[0], self.judge.left = 0, 0
        return self._release(best)

    @property
    def _path(self) -> Path:
        return (self._directory or Path()) / "selected.pt"

    def _release(self, best: Selected) -> Selected:
        """One atomic write is the release; the ledger keeps its hash."""
        buffer = io.BytesIO()
        torch.save(dataclasses.asdict(best), buffer)
        if self._directory is not None:
            write_atomically(self._path, buffer.getvalue())
        self._bind(buffer.getvalue())
        return best

    def _bind(self, content: bytes) -> None:
        for ledger in (self.training, self.validation):
            bind_selection(ledger, content, run=self._name)

    def _released(self, n_candidates: int) -> Selected | None:
        content = self._path.read_bytes() if self._directory is not None and self._path.exists() else None
        bound = [is_bound(ledger, content, run=self._name) for ledger in (self.training, self.validation)]
        if content is None:
            if any(state is not None for state in bound):
                raise RunError(f"{self._path}: the selection was released and its model is gone; restore it")
            return None
        if False in bound:
            raise RunError(f"{self._path} is not the model that was released; restore it from a copy")
        self._bind(content)
        found = Selected(**torch.load(io.BytesIO(content), weights_only=True))
        if found.chosen >= n_candidates:
            raise RunError(
                f"{self._path}: candidate {found.chosen} of {n_candidates}; select among the same candidates"
            )
        return found


def private_selection(
    privacy: RecordPrivacy,
    runs: TruncatedNegativeBinomial,
    *,
    n_training: int,
    n_validation: int,
    directory: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    name: str = "selection",
) -> PrivateSelection:
    """Price a selection: noise such that all of it costs either part ``privacy.epsilon``.

    Args:
        privacy: What one run does (``pulls`` blocks of ``steps``), and the target.
        runs: Distribution of the number of runs.
        n_training: Training records, public.
        n_validation: Validation records, public.
        directory: Where ledgers and the released model are kept; None for simulations.
        resume: Go on with the selection in ``directory``.
        seed: Of simulated noise, runs and candidates.
        name: Of the run, in both ledgers.

    Raises:
        ConfigurationError: If secure noise lacks a directory.
        RunError: If another selection stands in ``directory``.
        CalibrationError: If no noise meets the target.
    """
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private selection needs a directory for its durable ledgers; name one")
    target = privacy.epsilon, privacy.delta

    def trained(z: float) -> BestOfRandomRuns:
        return BestOfRandomRuns(run=compose([privacy.training_event(z)]), eta=runs.eta, gamma=runs.gamma)

    def judged(z: float) -> BestOfRandomRuns:
        return BestOfRandomRuns(run=compose([privacy.validation_event(z)]), eta=runs.eta, gamma=runs.gamma)

    z_train = calibrate_noise(trained, epsilon=target[0], delta=target[1], adjacency=TRAINING)
    z_judge = calibrate_noise(judged, epsilon=target[0], delta=target[1], adjacency=VALIDATION)
    described = {"name": name, "privacy": dataclasses.asdict(privacy), "runs": dataclasses.asdict(runs)}
    settle(directory, described | {"n_training": n_training, "n_validation": n_validation}, resume=resume)
    training = open_ledger(directory, "training", privacy, n_training, TRAINING, name)
    noise, left = noise_of(privacy, seed), [0]
    return PrivateSelection(
        privacy=privacy,
        runs=runs,
        trainer=OpacusTrainer(
            n_records=n_training,
            privacy=privacy,
            noise_multiplier=z_train,
            block=_counted(training, privacy, z_train, left),
            seed=seed or 0,
        ),
        judge=SecretJudge(n_records=n_validation, loss_bound=privacy.loss_bound, noise_multiplier=z_judge, noise=noise),
        training=training,
        validation=open_ledger(directory, "validation", privacy, n_validation, VALIDATION, name),
        events=(trained(z_train), judged(z_judge)),
        _noise=noise,
        _directory=directory,
        _name=name,
        _steps_left=left,
    )


def _counted(ledger: Ledger, privacy: RecordPrivacy, z: float, left: list[int]) -> Callable[[int, int], IAccountant]:
    """Blocks of a run that the selection's charge has paid for; nothing is charged here."""
    from privbo.door.opacus import LedgerAccountant

    event = PoissonSampledGaussian(sample_rate=privacy.sample_rate, noise_multiplier=z)

    def take(_: int, steps: int) -> IAccountant:
        if steps > left[0]:
            raise BudgetExceeded(f"{steps} steps, the run has {left[0]} of what was paid for; train inside select only")
        left[0] -= steps
        return LedgerAccountant(ledger, event=event, steps=steps, opacus_multiplier=z)

    return take
