"""DP-SGD: per-record gradients by Opacus; noise by Opacus in simulations, by the door's own in real runs.

Opacus's own secure mode needs torchcsprng. Here a real run needs nothing more: its noise,
like its samples, comes from the operating system's generator through
``privbo.door.sums``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from accountant.errors import BudgetExceeded
from privbo.door.noise import NoiseSource, SecureNoise
from privbo.door.sums import noisy_gradient_sum
from privbo.protocol.errors import ConfigurationError
from privbo.training.journal import Journal, Pull, State
from privbo.training.plan import RecordPrivacy

if TYPE_CHECKING:
    from opacus.accountants import IAccountant
    from opacus.optimizers import DPOptimizer


class Steps(Protocol):
    """An optimiser: Opacus's, or ours with secret noise."""

    def zero_grad(self) -> None:
        """Forget gradients."""
        ...

    def step(self) -> object:
        """One update."""
        ...

    def state_dict(self) -> State:
        """State for a checkpoint."""
        ...

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Go on from a checkpoint."""
        ...


class OpacusTrainer:
    """The door for gradients.

    Args:
        n_records: Training records.
        privacy: The plan.
        noise_multiplier: z.
        block: Pays for a pull's steps, by position, and returns their (Opacus) accountant;
            a pull that was paid for before is not charged again.
        seed: Of simulated noise and samples.
        journal: Keeps finished pulls; None for searches in memory.
    """

    def __init__(
        self,
        *,
        n_records: int,
        privacy: RecordPrivacy,
        noise_multiplier: float,
        block: Callable[[int, int], IAccountant],
        seed: int,
        journal: Journal | None = None,
    ) -> None:
        self._n_records, self._privacy, self._z = n_records, privacy, noise_multiplier
        self._block, self._journal = block, journal
        self._generator, self._seed = torch.Generator(), seed
        self._secure = SecureNoise() if privacy.noise == "secure" else None
        self._open: IAccountant | None = None
        self._position = -1

    def prepare(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, Steps]:
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
        wrapped, expected = GradSampleModule(model), self._privacy.sample_rate * self._n_records
        if self._secure is not None:
            return wrapped, SecureSteps(
                optimiser,
                clipping_norm=self._privacy.clipping_norm,
                noise_multiplier=self._z,
                expected_batch_size=expected,
                noise=self._secure,
                count=self._count_secure,
            )
        private = DPOptimizer(
            optimiser,
            noise_multiplier=self._z,
            max_grad_norm=self._privacy.clipping_norm,
            expected_batch_size=expected,
            generator=self._generator,
        )
        private.attach_step_hook(self._count)
        return wrapped, private

    def begin(self, name: str, steps: int) -> Pull | None:
        """Pay for the next pull's steps, durably, unless it was finished before; then return what it came to.

        Raises:
            BudgetExceeded: If the ledger can't pay; nothing was trained.
        """
        self._position += 1
        found = None if self._journal is None else self._journal.load(self._position, name)
        if found is None:
            # A crash in the middle of a pull lost everything the charge had paid for: nothing had left.
            self._open = self._block(self._position, steps)
            self._generator.manual_seed(_mixed(self._seed, self._position))
        return found

    def finish(self, name: str, pull: Pull) -> None:
        """The pull's steps are made; keep the result before it is judged."""
        self._open = None
        if self._journal is not None:
            self._journal.save(self._position, name, pull)

    def sample(self) -> Tensor:
        """One step's records, by their own secret coins; perhaps none."""
        if self._secure is None:
            coins = torch.rand(self._n_records, generator=self._generator) < self._privacy.sample_rate
        else:
            coins = torch.from_numpy(self._secure.coins((self._n_records,), self._privacy.sample_rate))
        return coins.nonzero()[:, 0]

    def _paid(self) -> IAccountant:
        if self._open is None:
            raise BudgetExceeded("no step was reserved; call begin before training")
        return self._open

    def _count(self, optimiser: DPOptimizer) -> None:
        """Opacus's hook: a step beyond what was reserved raises before it changes the model."""
        self._paid().get_optimizer_hook_fn(self._privacy.sample_rate)(optimiser)

    def _count_secure(self) -> None:
        self._paid().step(noise_multiplier=self._z, sample_rate=self._privacy.sample_rate)


class SecureSteps:
    """An optimiser that sees noisy sums of clipped per-record gradients only.

    Args:
        optimiser: What the noisy mean gradient is handed to.
        clipping_norm: Of one record's gradient.
        noise_multiplier: z.
        expected_batch_size: What sums are divided by.
        noise: Secret source.
        count: Called before every update; raises if the step was not paid for.
    """

    def __init__(
        self,
        optimiser: torch.optim.Optimizer,
        *,
        clipping_norm: float,
        noise_multiplier: float,
        expected_batch_size: float,
        noise: NoiseSource,
        count: Callable[[], None],
    ) -> None:
        self._optimiser, self._count, self._noise = optimiser, count, noise
        self._clipping_norm, self._z, self._expected = clipping_norm, noise_multiplier, expected_batch_size
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
        total = noisy_gradient_sum(rows, clipping_norm=self._clipping_norm, noise_multiplier=self._z, noise=self._noise)
        ends = np.cumsum([p.numel() for p in self._parameters])[:-1]
        for parameter, part in zip(self._parameters, np.split(total / self._expected, ends), strict=True):
            parameter.grad = torch.from_numpy(part).to(parameter).view_as(parameter)
        self._optimiser.step()

    def state_dict(self) -> State:
        """The inner optimiser's."""
        return self._optimiser.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """The inner optimiser's."""
        self._optimiser.load_state_dict(state_dict)


def _mixed(seed: int, position: int) -> int:
    return int(np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0] >> np.uint64(1))
