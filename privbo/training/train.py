"""Private training of one's own networks in one call: DP-SGD, a private choice among them, and the ledgers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from accountant.mechanisms.selection import TruncatedNegativeBinomial
from accountant.verify.text import shown
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import fresh_directory
from privbo.protocol.settings import Count, Positive, settings
from privbo.training.plan import RecordPrivacy, TrainingPlan, priced

if TYPE_CHECKING:
    from torch import nn

    from privbo.training.private_neural import MakeModel, MakeOptimiser, Split
    from privbo.training.trainer import State


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


@settings()
class _Numbers:
    """What a training is asked for by number; ``RecordPrivacy`` holds the rest."""

    epochs: Positive = 1
    batch_size: Count = 1
    expected_runs: Positive | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


def plan_training(
    models: Mapping[str, MakeModel],
    data: Split,
    *,
    epsilon: float,
    delta: float | None = None,
    epochs: int = 10,
    batch_size: int = 64,
    clipping_norm: float = 1.0,
    loss_bound: float = 2.0,
    expected_runs: float | None = None,
    noise: Literal["secure", "simulation"] = "secure",
) -> TrainingPlan:
    """Price a training before it is made: noise, number of trainings, epsilon of a record and of a person.

    .. versionadded:: 0.3.0

    Args:
        models: As for ``train_private``, and so is everything else; only their number is used.
        data: Only the numbers of records are used.
        epsilon: Price of all of it, of one record.
        delta: Of it; by default at most 1e-5 and at most a tenth of one over the number of records.
        epochs: Expected number of times that a record is used in one training.
        batch_size: Expected number of records in a step.
        clipping_norm: Of a record's gradient.
        loss_bound: Validation losses are clipped to ``[0, 2 loss_bound]``.
        expected_runs: Expected number of trainings where there are several networks; by default two per network.
        noise: ``"secure"``, or ``"simulation"``.

    Raises:
        ConfigurationError: If a setting is impossible.
        CalibrationError: If no noise meets the target.

    Example:
        >>> import torch, privbo as pb
        >>> x, y = torch.zeros(200, 2), torch.zeros(200, dtype=torch.int64)
        >>> data = pb.Split(train_x=x[:150], train_y=y[:150], validation_x=x[150:], validation_y=y[150:])
        >>> plan = pb.plan_training({"linear": lambda: torch.nn.Linear(2, 2)}, data, epsilon=8.0)
        >>> round(plan.loss_stddev, 3)
        0.024
    """
    from privbo.training.private_neural import require_makers

    require_makers(models, data)
    _Numbers(epochs=epochs, batch_size=batch_size, expected_runs=expected_runs)
    n_training, n_validation = len(data.train_y), len(data.validation_y)
    if batch_size > n_training:
        raise ConfigurationError(f"batch_size={batch_size} must lie in 1..{n_training}, the number of training records")
    smallest = min(1e-5, 1.0 / (10.0 * (n_training + n_validation)))
    privacy = RecordPrivacy(
        epsilon=epsilon,
        delta=smallest if delta is None else delta,
        pulls=1,
        steps=math.ceil(epochs * n_training / batch_size),
        sample_rate=batch_size / n_training,
        clipping_norm=clipping_norm,
        loss_bound=loss_bound,
        noise=noise,
    )
    if len(models) == 1:
        return priced(privacy, n_training=n_training, n_validation=n_validation)
    mean = 2.0 * len(models) if expected_runs is None else expected_runs
    if not mean > 1.0:
        raise ConfigurationError(f"expected_runs={mean!r} must be above 1; give about two per network")
    runs = TruncatedNegativeBinomial(eta=1.0, gamma=1.0 / mean)
    return priced(privacy, n_training=n_training, n_validation=n_validation, runs=runs)


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

    Everything is charged on two ledgers, of the training and of the validation records, before the first batch. With
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
    _Numbers(seed=seed)
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
    from privbo.training.private_neural import WRAPPED, PrivateNeuralArm, require_trainable
    from privbo.training.search import central_run, describe_network

    optimisers = optimiser if isinstance(optimiser, Mapping) else dict.fromkeys(models, optimiser)
    require_trainable(models, optimisers, data)
    home = None if directory is None else Path(directory)
    if home is None and noise == "secure" and not resume:
        home = fresh_directory("training")
    names = list(models)
    with ExitStack() as held:
        run = central_run(
            plan,
            candidates=() if plan.runs is None else names,
            directory=home,
            resume=resume,
            seed=seed,
            networks={each: describe_network(models[each], optimisers[each]) for each in names},
            data=data,
            held=held,
        )

        def trained(index: int) -> tuple[float, State]:
            """Train a network once; its judged loss and its state."""
            arm = PrivateNeuralArm(
                name=names[index],
                model=models[names[index]],
                data=data,
                optimiser=optimisers[names[index]],
                trainer=run.trainer,
                judge=run.judge,
                steps=plan.privacy.steps,
                seed=(seed or 0) + index,
            )
            state = arm.step(arm.init())
            return arm.value(state), state.model.state_dict()

        with run.training, run.validation:
            if plan.runs is None:
                chosen, (loss, state) = 0, trained(0)
            else:
                best = run.select(trained)
                chosen, loss, state = best.chosen, best.score, best.model
    model = models[names[chosen]]()
    model.load_state_dict({key.removeprefix(WRAPPED): value for key, value in state.items()})
    return Trained(name=names[chosen], model=model.eval(), loss=loss, plan=plan, directory=home)
