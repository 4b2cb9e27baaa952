"""Private training of one's own networks in one call: DP-SGD, a private choice among them, and the ledgers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accountant.selection import TruncatedNegativeBinomial
from privbo.protocol.errors import ConfigurationError
from privbo.training.plan import RecordPrivacy

if TYPE_CHECKING:
    from torch import nn

    from privbo.training.journal import State
    from privbo.training.private_neural import Judge, MakeModel, MakeOptimiser, Split
    from privbo.training.trainer import OpacusTrainer

_PREFIX = "_module."  # that Opacus puts before the names of a wrapped model's parameters


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network that may leave: trained by DP-SGD, and chosen privately where there were several.

    Attributes:
        name: Which one it is.
        model: The trained module.
        loss: Its released validation loss, with noise: the mean of cross-entropies clipped to ``[0, 2 loss_bound]``.
        epsilon: Price of all of it at ``delta``: ``"training"`` and ``"validation"`` of either part's records,
            ``"maximum"`` of a record, which is in one part; and of a person with records in both parts.
        delta: At which.
        directory: Where both ledgers are; None for a simulation in memory.

    Example:
        See ``privbo.train_private``:

        >>> sorted(Trained.__dataclass_fields__)
        ['delta', 'directory', 'epsilon', 'loss', 'model', 'name']
    """

    name: str
    model: nn.Module
    loss: float
    epsilon: Mapping[str, float]
    delta: float
    directory: Path | None


def train_private(
    models: Mapping[str, MakeModel],
    data: Split,
    *,
    epsilon: float,
    delta: float | None = None,
    optimiser: MakeOptimiser | Mapping[str, MakeOptimiser],
    epochs: int = 10,
    batch_size: int = 64,
    clipping_norm: float = 1.0,
    loss_bound: float = 2.0,
    expected_runs: float | None = None,
    noise: Literal["secure", "simulation"] = "secure",
    directory: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
) -> Trained:
    """Train one's own network by DP-SGD; of several, train a secret number at random and release the best.

    Everything is paid for on two ledgers, of the training and of the validation records, before the first batch. With
    several networks the whole choice costs ``epsilon``, however many are tried: nothing but the best one leaves
    (Papernot and Steinke 2022).

    Args:
        models: Functions that make the networks, by name; no layer may mix records, as batch normalisation does.
        data: Training and validation records, disjoint.
        epsilon: Price of all of it, of one record.
        delta: Of it; by default at most 1e-5 and at most a tenth of one over the number of records.
        optimiser: Makes the optimiser of a network's parameters; one for all, or by name.
        epochs: Expected number of times that a record is used in one training.
        batch_size: Expected number of records in a step.
        clipping_norm: Of a record's gradient.
        loss_bound: Validation losses are clipped to ``[0, 2 loss_bound]``.
        expected_runs: Expected number of trainings where there are several networks; by default two per network.
        noise: ``"secure"``, or ``"simulation"`` for seeded experiments without a guarantee.
        directory: Where ledgers and the released network are kept; needed with secure noise.
        resume: Go on with the training in ``directory``.
        seed: Of initial weights and, in simulations, of everything else.

    Raises:
        ConfigurationError: If a setting is impossible, a network can't be trained privately, or Opacus is missing.
        RunError: If another training stands in ``directory``.

    Example:
        >>> import torch, privbo as pb
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> data = pb.Split(train_x=x[:150], train_y=(x[:150, 0] > 0).long(),
        ...                 validation_x=x[150:], validation_y=(x[150:, 0] > 0).long())
        >>> found = pb.train_private({"linear": lambda: torch.nn.Linear(2, 2)}, data, epsilon=8.0, epochs=2,
        ...                          optimiser=lambda p: torch.optim.SGD(p, lr=1.0), noise="simulation", seed=0)
        >>> found.name, found.epsilon["maximum"] <= 8.0
        ('linear', True)
    """
    _require_opacus()
    if not models:
        raise ConfigurationError("models is empty; name at least one network and the function that makes it")
    if missing := sorted(models.keys() - optimiser.keys()) if isinstance(optimiser, Mapping) else []:
        raise ConfigurationError(
            f"optimiser: none for {', '.join(missing)}; give one for every network, or one for all"
        )
    n_training = len(data.train_y)
    if not 0 < batch_size <= n_training:
        raise ConfigurationError(f"batch_size={batch_size} must lie in 1..{n_training}, the number of training records")
    smallest = min(1e-5, 1.0 / (10.0 * (n_training + len(data.validation_y))))
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
    home = None if directory is None else Path(directory)
    task = _Task(models=models, data=data, optimiser=optimiser, privacy=privacy, home=home, resume=resume, seed=seed)
    return task.only() if len(models) == 1 else task.best(expected_runs or 2.0 * len(models))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    models: Mapping[str, MakeModel]
    data: Split
    optimiser: MakeOptimiser | Mapping[str, MakeOptimiser]
    privacy: RecordPrivacy
    home: Path | None
    resume: bool
    seed: int | None

    def only(self) -> Trained:
        """Train the only network and have its loss judged: one release each."""
        from privbo.training.central import central_run

        run = central_run(
            self.privacy,
            n_training=len(self.data.train_y),
            n_validation=len(self.data.validation_y),
            directory=self.home,
            resume=self.resume,
            seed=self.seed,
        )
        (name,) = self.models
        with run.training, run.validation:
            loss, state = self._trained(name, run.trainer, run.judge, self.seed or 0)
            return self._result(name, loss, state, run.epsilon())

    def best(self, expected_runs: float) -> Trained:
        """Train a secret number of networks, each chosen at random; release the best."""
        from privbo.training.selection import private_selection

        if not expected_runs > 1.0:
            raise ConfigurationError(f"expected_runs={expected_runs!r} must be above 1; give about two per network")
        names = list(self.models)
        choice = private_selection(
            self.privacy,
            TruncatedNegativeBinomial(eta=1.0, gamma=1.0 / expected_runs),
            n_training=len(self.data.train_y),
            n_validation=len(self.data.validation_y),
            directory=self.home,
            resume=self.resume,
            seed=self.seed,
        )
        with choice.training, choice.validation:
            found = choice.select(
                len(names),
                lambda index: self._trained(names[index], choice.trainer, choice.judge, (self.seed or 0) + index),
            )
            return self._result(names[found.chosen], found.score, found.model, choice.epsilon())

    def _trained(self, name: str, trainer: OpacusTrainer, judge: Judge, seed: int) -> tuple[float, State]:
        """Train a network once; its judged loss and its state."""
        from privbo.training.private_neural import PrivateNeuralArm

        arm = PrivateNeuralArm(
            name=name,
            model=self.models[name],
            data=self.data,
            optimiser=self.optimiser[name] if isinstance(self.optimiser, Mapping) else self.optimiser,
            trainer=trainer,
            judge=judge,
            steps=self.privacy.steps,
            seed=seed,
        )
        state = arm.step(arm.init())
        return arm.value(state), state.model.state_dict()

    def _result(self, name: str, loss: float, state: State, epsilon: Mapping[str, float]) -> Trained:
        model = self.models[name]()
        model.load_state_dict({key.removeprefix(_PREFIX): value for key, value in state.items()})
        return Trained(
            name=name, model=model.eval(), loss=loss, epsilon=epsilon, delta=self.privacy.delta, directory=self.home
        )


def _require_opacus() -> None:
    try:
        import opacus  # noqa: F401 (whether it is there)
    except ImportError:
        raise ConfigurationError("private training needs Opacus; install privbo[opacus]") from None
