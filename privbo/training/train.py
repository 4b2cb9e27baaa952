"""Private training of one's own networks in one call: DP-SGD, a private choice among them, and the ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from accountant.verify.text import shown
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import fresh_directory
from privbo.training.price import TrainingPlan, plan_training

if TYPE_CHECKING:
    from torch import nn

    from accountant.mechanisms.selection import TruncatedNegativeBinomial
    from privbo.protocol.settings import JsonObject
    from privbo.training.journal import State
    from privbo.training.private_neural import Judge, MakeModel, MakeOptimiser, Split
    from privbo.training.trainer import OpacusTrainer


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network that may leave: trained by DP-SGD, and chosen privately where there were several.

    .. versionadded:: 0.3.0

    Attributes:
        name: Which one it is.
        model: The trained module.
        loss: Its released validation loss: the mean of cross-entropies clipped to ``[0, 2 loss_bound]``, with noise
            of ``plan.loss_stddev``. The least of several noisy losses flatters: it chooses, don't quote it.
        plan: Trainings, noise and price; ``plan.of_person`` prices several records of one person.
        directory: Where both ledgers are; None for a simulation in memory.

    Example:
        See ``privbo.train_private``:

        >>> sorted(Trained.__dataclass_fields__)
        ['directory', 'loss', 'model', 'name', 'plan']
    """

    name: str
    model: nn.Module
    loss: float
    plan: TrainingPlan
    directory: Path | None

    @property
    def epsilon(self) -> Mapping[str, float]:
        """Price at ``delta``: of a record of either part, ``"maximum"`` of both, and ``"both"`` (one in each)."""
        return self.plan.epsilon()

    @property
    def delta(self) -> float:
        """Where epsilon is quoted."""
        return self.plan.privacy.delta

    def __repr__(self) -> str:
        head = f"<Trained {shown(self.name)}: released loss {self.loss:.4g}, kept in {self.directory or 'memory'}"
        return f"{head}\n {self.plan!r}>"


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

    .. versionadded:: 0.3.0

    Args:
        models: Functions that make the networks, by name, each a new one at every call; no layer may mix records, as
            batch normalisation does, fold them into more rows, or keep statistics of them.
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
        directory: Where ledgers and the released network are kept; by default ``runs/training-DATE-TOKEN``, and in
            memory if noise is simulated.
        resume: Go on with the training in ``directory``, asked for as it was: the same networks in the same order,
            optimisers, records and settings.
        seed: Of initial weights and, in simulations, of everything else.

    Raises:
        ConfigurationError: If a setting is impossible, or a network can't be trained privately.
        RunError: If another training stands in ``directory``; the first difference is named.

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
    plan = plan_training(
        models,
        data,
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        clipping_norm=clipping_norm,
        loss_bound=loss_bound,
        expected_runs=expected_runs,
        noise=noise,
    )
    if missing := sorted(models.keys() - optimiser.keys()) if isinstance(optimiser, Mapping) else []:
        raise ConfigurationError(
            f"optimiser: none for {', '.join(missing)}; give one for every network, or one for all"
        )
    from privbo.training.border import require_trainable

    require_trainable(models, data)
    home = None if directory is None else Path(directory)
    if home is None and noise == "secure" and not resume:
        home = fresh_directory("training")
    task = _Task(models=models, data=data, optimiser=optimiser, plan=plan, home=home, resume=resume, seed=seed)
    return task.only() if plan.runs is None else task.best(plan.runs)


class _Opened(TypedDict):
    n_training: int
    n_validation: int
    directory: Path | None
    resume: bool
    seed: int | None
    networks: JsonObject
    data: Split


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    models: Mapping[str, MakeModel]
    data: Split
    optimiser: MakeOptimiser | Mapping[str, MakeOptimiser]
    plan: TrainingPlan
    home: Path | None
    resume: bool
    seed: int | None

    def only(self) -> Trained:
        """Train the only network and have its loss judged: one release each."""
        from privbo.training.central import central_run

        run = central_run(self.plan.privacy, **self._opened())
        (name,) = self.models
        with run.training, run.validation:
            loss, state = self._trained(name, run.trainer, run.judge, self.seed or 0)
            return self._result(name, loss, state)

    def best(self, runs: TruncatedNegativeBinomial) -> Trained:
        """Train a secret number of networks, each chosen at random; release the best."""
        from privbo.training.selection import private_selection

        names = list(self.models)
        choice = private_selection(self.plan.privacy, runs, candidates=names, **self._opened())
        with choice.training, choice.validation:
            found = choice.select(
                lambda index: self._trained(names[index], choice.trainer, choice.judge, (self.seed or 0) + index),
            )
            return self._result(names[found.chosen], found.score, found.model)

    def _opened(self) -> _Opened:
        from privbo.training.asked import network

        return {
            "n_training": self.plan.n_training,
            "n_validation": self.plan.n_validation,
            "directory": self.home,
            "resume": self.resume,
            "seed": self.seed,
            "networks": {name: network(model, self._optimiser(name)) for name, model in self.models.items()},
            "data": self.data,
        }

    def _optimiser(self, name: str) -> MakeOptimiser:
        return self.optimiser[name] if isinstance(self.optimiser, Mapping) else self.optimiser

    def _trained(self, name: str, trainer: OpacusTrainer, judge: Judge, seed: int) -> tuple[float, State]:
        """Train a network once; its judged loss and its state."""
        from privbo.training.private_neural import PrivateNeuralArm

        arm = PrivateNeuralArm(
            name=name,
            model=self.models[name],
            data=self.data,
            optimiser=self._optimiser(name),
            trainer=trainer,
            judge=judge,
            steps=self.plan.privacy.steps,
            seed=seed,
        )
        state = arm.step(arm.init())
        return arm.value(state), state.model.state_dict()

    def _result(self, name: str, loss: float, state: State) -> Trained:
        from privbo.training.private_neural import WRAPPED

        model = self.models[name]()
        model.load_state_dict({key.removeprefix(WRAPPED): value for key, value in state.items()})
        return Trained(name=name, model=model.eval(), loss=loss, plan=self.plan, directory=self.home)
