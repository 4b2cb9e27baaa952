"""An arm that is a torch model with a torch optimiser; a pull is a fixed number of its steps.

No convergence rate holds for such training. Following the paper's heuristic, the rate is
g(k) = 2 f(x_1)/sqrt(k), with f(x_1) the validation loss after the first pull, and the
value is the best validation loss so far. F-LCB reports where the heuristic was seen to fail.

With f(x_1) of the arm itself, as printed, LCB = f - g starts at -f(x_1): the worse an arm
begins, the better its bound, and a fast learner is starved until all others are trained.
``reference`` puts one number for all arms in its place, such as log(n_classes), the loss
of a uniform guess: then equal pulls are ranked by their losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privbo.training.private_neural import MakeModel, MakeOptimiser, PrivateNeuralArm, PrivateTraining, Split


@dataclass(kw_only=True, eq=False)
class Training:
    """A model under training; ``NeuralArm.step`` changes it in place and returns it.

    Attributes:
        model: The model.
        optimiser: Its optimiser.
        batches: Source of the batches' order.
        pulls: Pulls made.
        first: Validation loss after the first pull.
        best: Smallest validation loss so far.
        losses: Validation loss after every pull.
        order: Indices of the current epoch that are left.
        random: State of torch's generator inside steps (dropout).
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    batches: torch.Generator
    pulls: int = 0
    first: float = math.nan
    best: float = math.inf
    losses: list[float] = field(default_factory=list)
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    random: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))


def adam(learning_rate: float) -> MakeOptimiser:
    """Adam, the paper's optimiser (its rate is 1e-4)."""
    return lambda parameters: torch.optim.Adam(parameters, lr=learning_rate)


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuralArm:
    """A model as an arm.

    Attributes:
        name: Shown in results.
        model: Makes the model; called under ``seed``.
        data: What it is trained and judged on.
        optimiser: Makes the optimiser of the model's parameters.
        steps: Optimiser steps per pull.
        batch_size: Records per step.
        seed: Of initial weights, batches and dropout.
        scale: g(k) = scale * f(x_1) / sqrt(k).
        reference: In place of f(x_1), the same for all arms; None is the paper.
    """

    name: str
    model: MakeModel
    data: Split
    optimiser: MakeOptimiser
    steps: int = 40
    batch_size: int = 64
    seed: int = 0
    scale: float = 2.0
    reference: float | None = None
    value_stddev: float = 0.0

    def init(self) -> Training:
        """An untrained model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model().to(self.data.train_x.device)
            random = torch.get_rng_state()
        batches = torch.Generator().manual_seed(self.seed)
        return Training(model=model, optimiser=self.optimiser(model.parameters()), batches=batches, random=random)

    def step(self, state: Training) -> Training:
        """``steps`` optimiser steps, then the validation loss.

        Raises:
            FloatingPointError: If the validation loss is not finite.
        """
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state.random)
            self._train(state)
            state.random = torch.get_rng_state()
        loss = validation_loss(state.model, self.data)
        state.pulls += 1
        state.losses.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"validation loss {loss!r} after pull {state.pulls}")
        if state.pulls == 1:
            state.first = loss
        state.best = min(state.best, loss)
        return state

    def value(self, state: Training) -> float:
        """The best validation loss so far."""
        return state.best

    def rate(self, state: Training, k: int, delta: float) -> float:  # noqa: ARG002  # a heuristic
        """The heuristic: scale * f(x_1) / sqrt(k)."""
        return self.scale * (state.first if self.reference is None else self.reference) / math.sqrt(k)

    def _train(self, state: Training) -> None:
        state.model.train()
        for _ in range(self.steps):
            batch = self._next_batch(state)
            state.optimiser.zero_grad()
            loss = nn.functional.cross_entropy(state.model(self.data.train_x[batch]), self.data.train_y[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
            state.optimiser.step()

    def _next_batch(self, state: Training) -> Tensor:
        """The next records of a shuffled epoch; a short rest of an epoch is dropped."""
        size = min(self.batch_size, len(self.data.train_y))
        if len(state.order) < size:
            state.order = torch.randperm(len(self.data.train_y), generator=state.batches)
        batch, state.order = state.order[:size], state.order[size:]
        return batch.to(self.data.train_x.device)


@torch.no_grad()
def validation_loss(model: nn.Module, data: Split, chunk: int = 4096) -> float:
    """Mean cross-entropy over the validation records."""
    model.eval()
    total = 0.0
    for start in range(0, len(data.validation_y), chunk):
        part = slice(start, start + chunk)
        scores = model(data.validation_x[part])
        total += float(nn.functional.cross_entropy(scores, data.validation_y[part], reduction="sum"))
    return total / len(data.validation_y)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, chunk: int = 4096) -> float:
    """Share of records whose class is predicted."""
    model.eval()
    hits = 0
    for start in range(0, len(y), chunk):
        part = slice(start, start + chunk)
        hits += int((model(x[part]).argmax(1) == y[part]).sum())
    return hits / len(y)


@dataclass(frozen=True, kw_only=True, eq=False)
class RatedArm(PrivateNeuralArm):
    """A privately trained model as an arm of F-LCB, with the heuristic rate of ``NeuralArm``.

    Attributes:
        scale: g(k) = scale * f(x_1)/sqrt(k), with the released f(x_1): no rate is proved for such training.
        reference: In place of f(x_1), the same for all arms; None is the paper.
    """

    scale: float = 2.0
    reference: float | None = None

    @property
    def value_stddev(self) -> float:
        """Noise of a released validation loss."""
        return self.judge.stddev

    def rate(self, state: PrivateTraining, k: int, delta: float) -> float:  # noqa: ARG002  # a heuristic
        """The heuristic: scale * f(x_1) / sqrt(k), with the released f(x_1), at least 0."""
        first = max(state.losses[0], 0.0) if self.reference is None else self.reference
        return self.scale * first / math.sqrt(k)
