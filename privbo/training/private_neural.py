"""Arms trained with differentially private gradients on centrally held records.

An arm knows neither ledger nor noise: the search gives it a *trainer* that
makes gradients private and is charged for a whole pull before the pull's first batch, and a
*judge* that turns per-record validation losses into one noisy mean. A value is the judge's
last answer, never the best one so far.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray
from privbo.training.trainer import LossJudge, OpacusTrainer, Pull, SecretJudge, SecureSteps

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

WRAPPED = "_module."
"""Prefix that Opacus puts before the names of a wrapped model's state."""

MakeModel = Callable[[], nn.Module]
MakeOptimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Data of a classification task, on the device where arms are trained.

    .. versionadded:: 0.3.0

    Attributes:
        train_x: Inputs, ``(n, ...)``.
        train_y: Classes, ``(n,)``, int64.
        validation_x: Inputs that decide.
        validation_y: Their classes.

    Raises:
        ConfigurationError: If a part is empty or no tensor, or inputs and classes differ in number.

    Example:
        >>> x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
        >>> len(Split(train_x=x, train_y=y, validation_x=x, validation_y=y).train_y)
        3
    """

    train_x: Tensor
    train_y: Tensor
    validation_x: Tensor
    validation_y: Tensor

    def __post_init__(self) -> None:
        for name in ("train", "validation"):
            x, y = getattr(self, f"{name}_x"), getattr(self, f"{name}_y")
            for part, value in ((f"{name}_x", x), (f"{name}_y", y)):
                if not isinstance(value, Tensor):
                    raise ConfigurationError(f"{part} is a {type(value).__name__}; make it a tensor: torch.tensor(...)")
            if y.dtype != torch.int64 or y.ndim != 1:
                raise ConfigurationError(
                    f"{name}_y is {y.dtype} of shape {tuple(y.shape)}; give one class per record: y.long().flatten()"
                )
            if len(x) != len(y) or not len(x):
                raise ConfigurationError(f"{name}: {len(x)} inputs and {len(y)} classes must be equal and not 0")
        if self.train_x.shape[1:] != self.validation_x.shape[1:] or self.train_x.dtype != self.validation_x.dtype:
            raise ConfigurationError(
                f"train_x and validation_x differ: {self.train_x.dtype} {tuple(self.train_x.shape[1:])} and "
                f"{self.validation_x.dtype} {tuple(self.validation_x.shape[1:])}; give both parts the same columns"
            )


@dataclass(kw_only=True, eq=False)
class PrivateTraining:
    """A model under private training; ``PrivateNeuralArm.step`` changes it in place.

    Attributes:
        model: The model, wrapped by the trainer.
        optimiser: The trainer's optimiser.
        losses: Released validation losses, one per pull.
    """

    model: nn.Module
    optimiser: DPOptimizer | SecureSteps
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateNeuralArm:
    """A model as an arm whose every pull is charged.

    Attributes:
        name: Shown in results.
        model: Makes the model, without layers that mix records (no batch normalisation).
        data: Training and validation records, disjoint.
        optimiser: Makes the optimiser of the model's parameters.
        trainer: Private gradients.
        judge: Private validation losses.
        steps: Optimiser steps per pull.
        seed: Of initial weights.
    """

    name: str
    model: MakeModel
    data: Split
    optimiser: MakeOptimiser
    trainer: OpacusTrainer
    judge: LossJudge | SecretJudge
    steps: int = 40
    seed: int = 0

    def init(self) -> PrivateTraining:
        """An untrained model; nothing is charged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model().to(self.data.train_x.device)
        wrapped, optimiser = self.trainer.prepare(model, self.optimiser(model.parameters()))
        return PrivateTraining(model=wrapped, optimiser=optimiser)

    def step(self, state: PrivateTraining) -> PrivateTraining:
        """Charge the pull's steps, make and keep them, and have the result judged."""
        made = self.trainer.pull(self.name, self.steps, lambda: self._train(state))
        state.model.load_state_dict(made["model"])
        state.optimiser.load_state_dict(dict(made["optimiser"]))
        state.losses.append(self.judge(lambda: record_losses(state.model, self.data)))
        return state

    def _train(self, state: PrivateTraining) -> Pull:
        """Make the pull's steps; whatever of records could pass by the door is refused before anything is judged."""
        state.model.train()
        fixed, is_apart = _untrained(state.model), False
        with warnings.catch_warnings():
            # Per-record gradients hook every layer, the first one included, whose input needs no gradient.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for _ in range(self.steps):
                batch = self.trainer.sample()
                if len(batch) > 1 and not is_apart:
                    self._require_apart(batch)
                    is_apart = True
                state.optimiser.zero_grad()
                if len(batch):
                    scores = state.model(self.data.train_x[batch])
                    loss = nn.functional.cross_entropy(scores, self.data.train_y[batch])
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
                    _require_row_each(state.model, len(batch))
                else:
                    for parameter in state.model.parameters():  # nobody was drawn: noise only, the same event
                        parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]  # Opacus'
                state.optimiser.step()
                _require_fixed(fixed, _untrained(state.model))
        return {"model": state.model.state_dict(), "optimiser": state.optimiser.state_dict()}

    def value(self, state: PrivateTraining) -> float:
        """The last released validation loss."""
        return state.losses[-1]

    def _require_apart(self, batch: Tensor) -> None:
        """Refuse a model in which a record's scores depend on other records, of its batch or of the one before.

        It is asked of untrained twins, whose weights are moved a little (those that begin at 0 would hide what comes
        before them): a half of the batch keeps its scores, in training and judging, whatever the other half is.
        """
        given = torch.nan_to_num(self.data.train_x[batch], posinf=0.0, neginf=0.0)  # NaN would hide whatever follows
        base = given / 2 if given.is_floating_point() else given
        with torch.random.fork_rng(devices=[given.device] if given.is_cuda else []), torch.enable_grad():
            torch.manual_seed(self.seed)
            weights = self.model().to(given.device).state_dict()

            def scores(x: Tensor, kept: slice, training: bool) -> Tensor:
                twin = self.model().to(x.device).train(training)
                twin.load_state_dict(weights)
                torch.manual_seed(self.seed)
                for parameter in (p for p in twin.parameters() if p.requires_grad):
                    parameter.data += 0.01 * torch.randn_like(parameter)
                return torch.cat([twin(x)[kept], twin(base)])

            for kept, training in product((slice(len(batch) // 2), slice(len(batch) // 2, None)), (True, False)):
                other = given[kept][:1].expand_as(given).clone()
                other[kept] = base[kept]
                alone, mixed = scores(base, kept, training), scores(other, kept, training)
                if not torch.allclose(alone, mixed, rtol=1e-4, atol=1e-6, equal_nan=True):
                    raise ConfigurationError(
                        f"model {self.name!r} mixes records: one record's scores depend on others, so that clipping "
                        "its gradient bounds nothing; let every record pass the layers alone (group normalisation), "
                        "and draw with torch's global generator"
                    )


def _untrained(model: nn.Module) -> dict[str, object]:
    """Everything of a model's state that no private step may change: buffers, and parameters that are not trained."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    state = model.state_dict() | dict(model.named_buffers())
    return {name: copy.deepcopy(value) for name, value in state.items() if name not in trained}


def _require_fixed(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuse state that training changes past the noise, such as a running mean of a layer of one's own.

    Raises:
        ConfigurationError: Naming it.
    """
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        tensors = isinstance(old, Tensor) and isinstance(new, Tensor)
        if not (torch.equal(old, new) if tensors else old == new):  # type: ignore[arg-type]  # both are, as was asked
            raise ConfigurationError(
                f"{name.removeprefix(WRAPPED)} of the model changes while records pass, without noise; keep no running "
                "statistics of inputs (group normalisation has none)"
            )


def _require_row_each(model: nn.Module, n_records: int) -> None:
    """Refuse gradients that are not one row per record: clipping several rows of one record bounds none of it.

    Raises:
        ConfigurationError: Naming the parameter.
    """
    for name, parameter in model.named_parameters():
        rows = getattr(parameter, "grad_sample", None)
        if parameter.requires_grad and (not isinstance(rows, Tensor) or len(rows) != n_records):
            gradients = f"{len(rows)} rows of gradients" if isinstance(rows, Tensor) else "no gradient per record"
            raise ConfigurationError(
                f"{name.removeprefix(WRAPPED)} has {gradients} for {n_records} records; keep records the first "
                "dimension of every layer's input, and use every trained parameter in every pass"
            )


@torch.no_grad()
def record_losses(model: nn.Module, data: Split) -> FloatArray:
    """PRIVATE: cross-entropy of every validation record, ``(n,)``."""
    model.eval()
    losses = nn.functional.cross_entropy(model(data.validation_x), data.validation_y, reduction="none")
    return np.asarray(losses.cpu().numpy(), dtype=np.float64)


def require_makers(models: Mapping[str, MakeModel], data: Split) -> None:
    """Refuse what is no functions by name, or no split.

    Raises:
        ConfigurationError: Naming it and what to give.
    """
    if not isinstance(data, Split):
        raise ConfigurationError(f"data is a {type(data).__name__}; give privbo.Split(train_x=..., ...)")
    if not isinstance(models, Mapping) or not models:
        what = "empty" if isinstance(models, Mapping) else f"a {type(models).__name__}"
        raise ConfigurationError(
            f"models is {what}; name functions that make networks: {{'mine': lambda: nn.Linear(...)}}"
        )
    for name, maker in models.items():
        if isinstance(maker, nn.Module) or not callable(maker):
            raise ConfigurationError(
                f"models[{name!r}] is a {type(maker).__name__}, not a function that makes a network; "
                "write lambda: nn.Linear(...)"
            )


def require_trainable(models: Mapping[str, MakeModel], optimisers: Mapping[str, MakeOptimiser], data: Split) -> None:
    """Refuse what no training could be made of; records are asked for their type, shape and classes only.

    Raises:
        ConfigurationError: Naming the network and what to change.
    """
    for name, maker in models.items():
        with torch.random.fork_rng(devices=[]):
            first, second = _made(name, maker), _made(name, maker)
            if first is second or _places(first) & _places(second):
                raise ConfigurationError(
                    f"models[{name!r}] hands out the same network twice, so that one training would go on with "
                    "another's weights; make a new one at every call: lambda: nn.Linear(...)"
                )
            scores = _scores(name, first, data)
            made = optimisers[name](first.parameters()) if callable(optimisers[name]) else None
        trained = [p for group in getattr(made, "param_groups", ()) for p in group["params"] if p.requires_grad]
        if not trained or {id(p) for p in trained} - {id(p) for p in first.parameters()}:
            raise ConfigurationError(
                f"the optimiser of network {name!r} trains none of its parameters, or others, too; make it of "
                "those that it is given: lambda p: torch.optim.SGD(p, lr=0.1)"
            )
        if scores.ndim != 2 or len(scores) != 2:
            raise ConfigurationError(
                f"network {name!r} answers two records with the shape {tuple(scores.shape)}; it must give one row of "
                "classes' scores for each"
            )
        for part in ("train_y", "validation_y"):
            classes = getattr(data, part)
            if classes.min() < 0 or classes.max() >= scores.shape[1]:
                raise ConfigurationError(
                    f"{part} has classes outside 0..{scores.shape[1] - 1}, and network {name!r} has {scores.shape[1]} "
                    "outputs; give it one output per class, and number the classes from 0"
                )


def _made(name: str, maker: MakeModel) -> nn.Module:
    made = maker()
    if not isinstance(made, nn.Module):
        raise ConfigurationError(f"models[{name!r}] makes a {type(made).__name__}; return a torch.nn.Module")
    return made


def _places(model: nn.Module) -> set[int]:
    """Where a network's state lies in memory."""
    return {v.data_ptr() for v in model.state_dict().values() if isinstance(v, Tensor) and v.numel() > 0}


def _scores(name: str, model: nn.Module, data: Split) -> Tensor:
    """Scores of two records of zeros, of the shape and type of the records."""
    x = data.train_x
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
    if x.is_floating_point() and x.dtype != weights:
        raise ConfigurationError(
            f"inputs are {x.dtype} and network {name!r} is {weights}; convert them: x.to({weights})"
        )
    try:
        with torch.no_grad():
            scores = model.to(x.device).eval()(x.new_zeros((2, *x.shape[1:])))
    except Exception as error:  # whatever a network of one's own raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(
            f"network {name!r} can't take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({reason}); "
            "let its first layer fit the inputs"
        ) from error
    if not isinstance(scores, Tensor):
        raise ConfigurationError(f"network {name!r} returns a {type(scores).__name__}; return the classes' scores")
    return scores
