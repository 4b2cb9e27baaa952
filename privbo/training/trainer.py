"""DP-SGD: per-record gradients by Opacus; noise by Opacus in simulations, by the door's own in real runs.

Opacus's own secure mode needs torchcsprng. Here a real run needs nothing more: its noise,
like its samples, comes from the operating system's generator through
``privbo.door.sums``.

A pull is charged, trained, *kept*, and only then judged. So whatever has left the pull's
memory is what a resumed search finds, and no charge covers two different outcomes. The
models in the journal are outcomes of private training, covered by epsilon as the ledger states it.

Of the judges of validation losses one releases every answer; the other keeps its answers inside a selection.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accountant.errors import BudgetExceeded
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource, SecureNoise
from privbo.door.selection import secret_score
from privbo.door.sums import noisy_gradient_sum
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import write_once
from privbo.protocol.messages import FloatArray, Request
from privbo.training.plan import RecordPrivacy, TrainingPlan

if TYPE_CHECKING:
    from opacus.accountants import IAccountant
    from opacus.optimizers import DPOptimizer

    from accountant.ledger import Ledger

State: TypeAlias = Mapping[str, Any]
"""State dict of torch, of a model or of an optimiser; opaque here."""

Pull: TypeAlias = dict[str, State]
"""Result of a finished pull: the states of its ``"model"`` and its ``"optimiser"``."""


class Journal:
    """One file per finished pull.

    Args:
        folder: Where to.
        run: Name of the search in its ledgers.
        training: The ledger to which pulls are charged.
        validation: The one that stores their losses.
    """

    def __init__(self, folder: Path, run: str, training: Ledger, validation: Ledger) -> None:
        self._folder, self._run, self._training, self._validation = folder, run, training, validation
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, position: int, name: str) -> Pull | None:
        """Result of pull number ``position``, or None if it was not finished.

        Raises:
            RunError: If it belongs to another arm, can't be read, or is gone though its loss was released; or if the
                ledger does not know it.
        """
        path = self._path(position)
        if not path.exists():
            if self._validation.stored_release(f"{self._run}/{position}") is not None:
                raise RunError(
                    f"{path} is gone though its validation loss was released; restore it from a copy (training "
                    "again would be a second outcome for one charge)"
                )
            return None
        if f"{self._run}/pull {position}" not in {entry.release_id for entry in self._training.entries()}:
            raise RunError(f"{path} was trained and the ledger knows nothing of it, so it went back; restore its copy")
        stored = loaded(path, str(path))
        if stored["name"] != name:
            raise RunError(
                f"{path} holds arm {stored['name']!r}, the search pulls {name!r}; resume it with its own arms"
            )
        return cast("Pull", stored["pull"])

    def save(self, position: int, name: str, pull: Pull) -> Pull:
        """Keep a finished pull, durable on return, before anything of it is judged; give the one that is kept."""
        buffer = io.BytesIO()
        torch.save({"name": name, "pull": pull}, buffer)
        write_once(self._path(position), buffer.getvalue())
        return cast("Pull", self.load(position, name))

    def _path(self, position: int) -> Path:
        return self._folder / f"pull-{position:05d}.pt"


def loaded(file: Path | io.BytesIO, what: str) -> dict[str, Any]:
    """Read what torch saved.

    Raises:
        RunError: If that fails.
    """
    try:
        return cast("dict[str, Any]", torch.load(file, weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(f"{what} can't be read; restore it from a copy") from error


class OpacusTrainer:
    """The door for gradients.

    Args:
        plan: Steps, noise and the number of training records.
        block: Charges a pull's steps, by position, and returns their (Opacus) accountant;
            a pull that was charged before is not charged again.
        seed: Of simulated noise and samples.
        journal: Keeps finished pulls; None for searches in memory.
    """

    def __init__(
        self, plan: TrainingPlan, *, block: Callable[[int, int], IAccountant], seed: int, journal: Journal | None
    ) -> None:
        self._plan, self._block, self._journal = plan, block, journal
        self._generator, self._seed = torch.Generator(), seed
        self._secure = SecureNoise() if plan.privacy.noise == "secure" else None
        self._open: IAccountant | None = None
        self._position = -1

    def prepare(self, model: nn.Module, optimiser: Optimizer) -> tuple[nn.Module, DPOptimizer | SecureSteps]:
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
        wrapped, plan, z = GradSampleModule(model), self._plan, self._plan.noise_multipliers[0]
        if self._secure is not None:
            return wrapped, SecureSteps(
                optimiser,
                plan,
                noise=self._secure,
                count=lambda: self._paid().step(noise_multiplier=z, sample_rate=plan.privacy.sample_rate),
            )
        private = DPOptimizer(
            optimiser,
            noise_multiplier=z,
            max_grad_norm=plan.privacy.clipping_norm,
            expected_batch_size=plan.expected_batch_size,
            generator=self._generator,
        )
        private.attach_step_hook(self._count)
        return wrapped, private

    def pull(self, name: str, steps: int, train: Callable[[], Pull]) -> Pull:
        """Charge the next pull's steps, durably, train, and keep the result before it is judged; give what is kept.

        A pull that was finished before is neither charged nor trained again.

        Raises:
            BudgetExceeded: If the ledger's budget is too small; nothing was trained.
        """
        self._position += 1
        stored = None if self._journal is None else self._journal.load(self._position, name)
        if stored is not None:
            return stored
        # A crash in the middle of a pull lost everything the charge had paid for: nothing had left.
        self._open = self._block(self._position, steps)
        word = np.random.SeedSequence([self._seed, self._position]).generate_state(1, np.uint64)[0]
        self._generator.manual_seed(int(word >> np.uint64(1)))
        pull, self._open = train(), None
        return pull if self._journal is None else self._journal.save(self._position, name, pull)

    def sample(self) -> Tensor:
        """One step's records, by their own secret coins; perhaps none."""
        n_records, rate = self._plan.n_training, self._plan.privacy.sample_rate
        if self._secure is None:
            coins = torch.rand(n_records, generator=self._generator) < rate
        else:
            coins = torch.from_numpy(self._secure.coins((n_records,), rate))
        return coins.nonzero()[:, 0]

    def _paid(self) -> IAccountant:
        if self._open is None:
            raise BudgetExceeded("no step was reserved; train inside pull")
        return self._open

    def _count(self, optimiser: DPOptimizer) -> None:
        """Opacus's hook: a step beyond what was reserved raises before it changes the model."""
        self._paid().get_optimizer_hook_fn(self._plan.privacy.sample_rate)(optimiser)


class SecureSteps:
    """An optimiser that sees noisy sums of clipped per-record gradients only.

    Args:
        optimiser: What the noisy mean gradient is handed to.
        plan: Says how one record's gradient is clipped, the noise, and what sums are divided by.
        noise: Secret source.
        count: Called before every update; raises if the step was not charged.
    """

    def __init__(
        self, optimiser: Optimizer, plan: TrainingPlan, *, noise: NoiseSource, count: Callable[[], None]
    ) -> None:
        self._optimiser, self._plan, self._noise, self._count = optimiser, plan, noise, count
        self._parameters = [p for group in optimiser.param_groups for p in group["params"] if p.requires_grad]

    def zero_grad(self) -> None:
        """Forget gradients, per-record ones included."""
        self._optimiser.zero_grad()
        for parameter in self._parameters:
            parameter.grad_sample = None

    def step(self) -> None:
        """Count, clip, sum, add noise, update."""
        self._count()
        samples = [p.grad_sample for p in self._parameters]
        rows = np.concatenate([s.detach().flatten(1).double().cpu().numpy() for s in samples], axis=1)
        bound, z = self._plan.privacy.clipping_norm, self._plan.noise_multipliers[0]
        total = noisy_gradient_sum(rows, clipping_norm=bound, noise_multiplier=z, noise=self._noise)
        ends = np.cumsum([p.numel() for p in self._parameters])[:-1]
        for parameter, part in zip(
            self._parameters, np.split(total / self._plan.expected_batch_size, ends), strict=True
        ):
            parameter.grad = torch.from_numpy(part).to(parameter).view_as(parameter)
        self._optimiser.step()

    def state_dict(self) -> State:
        """The inner optimiser's."""
        return self._optimiser.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """The inner optimiser's."""
        self._optimiser.load_state_dict(state_dict)


class LossJudge:
    """One release per answer, charged before losses are computed; a release made before is not made again.

    Args:
        door: Of the validation ledger.
        request: The mean over records of (loss - bound), each clipped to the bound.
        stddev: Standard deviation of its answers' noise.
    """

    def __init__(self, door: Door, request: Request, stddev: float) -> None:
        self._door, self._request, self._round = door, request, 0
        self._bound, self.stddev = request.clipping_norm, stddev

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses; a loss that is not finite counts as the middle."""
        ticket = self._door.open(self._round, self._request, plan_position=self._round)
        self._round += 1
        release = ticket.release
        if release is None:
            release, _ = self._door.close(ticket, np.asarray(losses())[:, None] - self._bound)
        return float(release.values[0, 0]) + self._bound


class SecretJudge:
    """Noisy mean losses that stay inside a selection, for the arms of ``CentralRun.select``, and what a run may do.

    Attributes:
        steps: DP-SGD steps that the run which is being made may still take; none outside of one.
        judgements: Losses that it may still have judged.
    """

    def __init__(self, mechanism: PrivateSum, request: Request, *, noise: NoiseSource) -> None:
        self._mechanism, self._request, self._noise = mechanism, request, noise
        self._bound, self._made, self.stddev = request.clipping_norm, 0, mechanism.noise_stddev()
        self.steps = self.judgements = 0

    @contextmanager
    def for_one_run(self, privacy: RecordPrivacy) -> Iterator[None]:
        """Allow what one run was priced for; nothing any more when the run is left."""
        self.steps, self.judgements = privacy.pulls * privacy.steps, privacy.pulls
        try:
            yield
        finally:
            self.steps = self.judgements = 0

    def take_steps(self, count: int) -> None:
        """Use up ``count`` steps.

        Raises:
            BudgetExceeded: If the run was not charged for that many.
        """
        if count > self.steps:
            raise BudgetExceeded(
                f"{count} steps, the run has {self.steps} of what was charged; train inside select only"
            )
        self.steps -= count

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses.

        Raises:
            BudgetExceeded: Outside of a run, or twice in one.
        """
        if self.judgements < 1:
            raise BudgetExceeded("a run's score is charged once; judge a model inside its run only")
        self.judgements -= 1
        self._made += 1
        rows = np.asarray(losses())[:, None] - self._bound
        noise = self._noise.stream(f"run {self._made}")
        return secret_score(self._mechanism, self._request, rows, noise) + self._bound
