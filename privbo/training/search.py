"""A private search on central data: both doors, their ledgers and the plan's price.

Training records and validation records are a public, disjoint split, so there are two
populations and two ledgers. Training is DP-SGD. The price of a search is the plan's (``TrainingPlan``).

*One after the other*: every pull's steps are reserved on the training ledger before its first batch; every
validation loss leaves through the door and is charged to the validation ledger. A search with a directory resumes:
run again with ``resume=True`` and the same arms, it finds its finished pulls and their released losses, repeats its
choices from them, and goes on.

*A private selection* (Papernot and Steinke 2022) is the best of a secret number of runs. A run trains one randomly
chosen candidate and has its validation losses judged. Both ledgers are charged for the whole selection before the
first run, and both store the best run's candidate, score and model before anything of it is handed out
(``privbo.door.selection`` says what a crash at each point can and cannot do).

A search is written down as it was asked for, so that resuming it asks for the same. Names, layers, shapes and
optimisers are settings and stand in ``search.json``. A digest of the records would tell an attacker who guesses them
whether the guess is right, so it stays in ``private/``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from accountant.events import Adjacency, BestOfRandomRuns, PoissonSampledGaussian, Unit
from accountant.ledger import Ledger
from accountant.ledger.policy import Budget, LedgerPolicy
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum, mechanism_for
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.opacus import LedgerAccountant
from privbo.door.selection import SelectionDoor, draw_runs
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import alone, private_folder, read_json, write_json, write_once
from privbo.protocol.settings import JsonObject, dump_settings
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy, TrainingPlan, loss_request
from privbo.training.trainer import Journal, LossJudge, OpacusTrainer, SecretJudge, State, loaded

if TYPE_CHECKING:
    from opacus.accountants import IAccountant

    from privbo.training.private_neural import MakeModel, MakeOptimiser, Split

RunOne: TypeAlias = Callable[[int], tuple[float, State]]

_PLAIN = (bool, int, float, str, tuple, type(None))


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
class CentralRun:
    """Both doors of a search, their ledgers and the plan's price.

    Attributes:
        plan: What it does and costs.
        trainer: For ``PrivateNeuralArm``.
        judge: For ``PrivateNeuralArm``; of a selection its answers are secret.
        training: Ledger of the training records.
        validation: Ledger of the validation records.
        candidates: Names of what a selection chooses from, in order.
    """

    plan: TrainingPlan
    trainer: OpacusTrainer
    judge: LossJudge | SecretJudge
    training: Ledger
    validation: Ledger
    candidates: tuple[str, ...] = ()
    _noise: NoiseSource
    _directory: Path | None
    _name: str

    def select(self, run_one: RunOne) -> Selected:
        """Charge, draw the secret runs, make them, and release the best one.

        A selection that was released before is returned as the ledgers stored it; one that
        was cut off before is made anew under the same charge, because nothing of it had left.

        Args:
            run_one: Trains a candidate, by its number, through ``trainer`` and ``judge``; returns its judged
                loss and its model's state. What it sees and returns is secret.

        Raises:
            BudgetExceeded: If a ledger's budget is too small, or a run does more than it is priced for.
            ConfigurationError: If the search was not asked for as a selection.
            RunError: If what was released can't be read, or the ledgers don't know it.
        """
        if self.plan.runs is None:
            raise ConfigurationError("this search releases every loss; give it candidates and a plan with runs")
        training, validation = cast("tuple[BestOfRandomRuns, BestOfRandomRuns]", self.plan.events)
        door = SelectionDoor(
            prices=((self.training, training), (self.validation, validation)),
            run=self._name,
            noise_source=self.plan.privacy.noise,
        )
        path = None if self._directory is None else self._directory / "selected.pt"  # a copy of what the ledgers stored
        released = door.open()
        if released is None:
            if path is not None and path.exists():
                raise RunError(f"{path} was released, and the ledgers went back to before it; restore their copies")
            buffer = io.BytesIO()
            torch.save(dataclasses.asdict(self._best_of(run_one, self.plan.runs)), buffer)
            released = door.close(buffer.getvalue())
        selected = Selected(**loaded(io.BytesIO(released), "the ledgers' stored selection"))
        if path is not None:
            write_once(path, released)
            if path.read_bytes() != released:  # it is evidence and stays
                raise RunError(f"{path} is not the model that was released; restore it and the ledgers together")
        return selected

    def _best_of(self, run_one: RunOne, runs: TruncatedNegativeBinomial) -> Selected:
        """SECRET until it is released: the result of the best run."""
        best = Selected(chosen=-1, score=math.inf, model={})
        for candidate in draw_runs(runs, len(self.candidates), self._noise.stream("runs")):
            with cast("SecretJudge", self.judge).for_one_run(self.plan.privacy):
                score, model = run_one(candidate)
            score = score if math.isfinite(score) else math.inf
            if score < best.score or best.chosen < 0:
                best = Selected(chosen=candidate, score=score, model=model)
        return best


def central_run(
    plan: TrainingPlan,
    *,
    candidates: Sequence[str] = (),
    directory: Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    networks: JsonObject | None = None,
    data: Split | None = None,
    held: ExitStack | None = None,
) -> CentralRun:
    """Open both ledgers of a plan, and make the doors.

    Args:
        plan: What is done, and its price; where it has a number of runs their best is selected privately, else every
            loss is released.
        candidates: Names of what a selection chooses from; a released choice is a place among them.
        directory: Where ledgers, finished pulls and the selected model are kept; None keeps them in memory, for
            simulations.
        resume: Go on with the search in ``directory``; pull the same arms by the same search.
        seed: Of simulated noise, runs and candidates.
        networks: The arms, described (``describe_network``): the search is resumed with the same ones only.
        data: The records, likewise.
        held: Keeps other programs out of ``directory`` until it is left; without it that is the caller's.

    Raises:
        ConfigurationError: If secure noise lacks a directory.
        RunError: If a search stands there and isn't to be resumed, is another one, is at work, or lacks a ledger.
    """
    privacy, runs, n_validation = plan.privacy, plan.runs, plan.n_validation
    if privacy.noise == "secure" and directory is None:
        raise ConfigurationError("a private search needs a directory for its durable ledgers; name one")
    (z_train, z_judge), name = plan.noise_multipliers, "central" if runs is None else "selection"
    described: JsonObject = {
        "name": name,
        **({} if runs is None else {"candidates": list(candidates), "runs": dataclasses.asdict(runs)}),
        "privacy": dump_settings(privacy),
        "n_training": plan.n_training,
        "n_validation": n_validation,
        "seed": seed,
        "noise_multipliers": [z_train, z_judge],
        **({} if networks is None else {"networks": networks}),
    }
    if directory is not None:
        settle(directory, described, resume=resume, data=data, held=held)
    elif resume:
        raise RunError("only a search with a directory can be resumed; name it")
    training = open_ledger(directory, "training", privacy, plan.n_training, TRAINING, name)
    validation = open_ledger(directory, "validation", privacy, n_validation, VALIDATION, name)
    if directory is not None and not resume:  # now it is a search
        write_json(directory / "search.json", described)
    noise, journal = noise_of(privacy, seed), None
    request = loss_request(n_validation, privacy.loss_bound)
    mechanism = cast("PrivateSum", mechanism_for(request, noise_multiplier=z_judge))
    judge: LossJudge | SecretJudge
    if runs is None:
        door = Door(validation, run=name, noise=noise, mechanism=lambda _: mechanism)
        judge = LossJudge(door, request, mechanism.noise_stddev())
        if directory is not None:
            journal = Journal(directory / "pulls", name, training, validation)
    else:
        judge = SecretJudge(mechanism, request, noise=noise)

    def block(position: int, steps: int) -> IAccountant:
        """The accountant of a pull's steps, which are reserved now, or were charged with the whole selection."""
        if isinstance(judge, LossJudge):
            return LedgerAccountant.reserve(
                training,
                release_id=f"{name}/pull {position}",
                run=name,
                sample_rate=privacy.sample_rate,
                noise_multiplier=z_train,
                steps=steps,
                unit=Unit.RECORD,
                noise_source=privacy.noise,
                own_noise=True,
                nothing_left=True,  # the journal gives back what has: what is begun again was never finished
            )
        judge.take_steps(steps)
        event = PoissonSampledGaussian(sample_rate=privacy.sample_rate, noise_multiplier=z_train)
        return LedgerAccountant(training, event=event, steps=steps, opacus_multiplier=z_train)

    trainer = OpacusTrainer(plan, block=block, seed=seed or 0, journal=journal)
    return CentralRun(
        plan=plan,
        trainer=trainer,
        judge=judge,
        training=training,
        validation=validation,
        candidates=tuple(candidates),
        _noise=noise,
        _directory=directory,
        _name=name,
    )


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
        raise RunError(f"{path} is another search's ledger: {ledger.policy.difference(policy)}; name its own directory")
    return ledger


def noise_of(privacy: RecordPrivacy, seed: int | None) -> NoiseSource:
    """The source of validation noise."""
    return SecureNoise() if privacy.noise == "secure" else SimulatedNoise(seed or 0)


def settle(directory: Path, described: JsonObject, *, resume: bool, data: Split | None, held: ExitStack | None) -> None:
    """Hold a search's description against the one that is resumed, or make its directory; alone there while ``held``.

    Raises:
        RunError: If a search stands there and isn't to be resumed, or was another one: the first difference is named.
    """
    path, records = directory / "search.json", directory / "private" / "data.json"
    parts = () if data is None else ("train_x", "train_y", "validation_x", "validation_y")
    now: JsonObject = {name: _digest(getattr(data, name)) for name in parts}  # PRIVATE: SHA-256
    if resume and not path.exists():
        raise RunError(f"{directory} holds no search to resume; leave resume out to begin one")
    if held is not None:
        held.enter_context(alone(records.parent, wait=False))
    if not resume:
        if path.exists():
            raise RunError(f"{directory} already holds a search; resume it or name another directory")
        directory.mkdir(parents=True, exist_ok=True)
        if data is not None:
            write_json(private_folder(directory) / records.name, now)
        return
    if (difference := _difference(read_json(path), described)) is not None:
        raise RunError(f"{directory} holds a search with {difference}; resume it as it was, or name another directory")
    needed = (directory / "training.sqlite", directory / "validation.sqlite", *(() if data is None else (records,)))
    if gone := [path for path in needed if not path.exists()]:
        raise RunError(f"{gone[0]} is gone; restore it from a copy")
    before = {} if data is None else read_json(records)
    if other := sorted(part for part in now if before.get(part) != now[part]):
        raise RunError(
            f"{directory} was made with other records in {', '.join(other)}; resume it with the same ones, or name "
            "another directory"
        )


def describe_network(model: MakeModel, optimiser: MakeOptimiser) -> JsonObject:
    """Describe a network and its optimiser: layers with their settings, shapes, and what departs from defaults."""
    with torch.random.fork_rng(devices=[]):
        made = model()
    steps = optimiser(made.parameters())
    kind = type(steps)
    return {
        "layers": {
            name or "network": f"{type(layer).__name__}({_departures(type(layer), vars(layer))})"
            for name, layer in made.named_modules()
        },
        "shapes": {name: _shape(value) for name, value in made.state_dict().items()},
        "optimiser": {"kind": kind.__name__, "groups": [_departures(kind, group) for group in steps.param_groups]},
    }


def _departures(kind: type, values: Mapping[str, object]) -> JsonObject:
    """Settings by their text where they depart from the class's defaults, so that a newer torch says the same."""
    defaults = {name: setting.default for name, setting in inspect.signature(kind).parameters.items()}
    return {
        name: repr(values[name])
        for name, default in defaults.items()
        if name in values and isinstance(values[name], _PLAIN) and values[name] != default
    }


def _shape(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _digest(values: torch.Tensor) -> str:
    raw = values.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(_shape(values).encode() + raw.numpy().tobytes()).hexdigest()


def _difference(stored: object, asked: object, at: str = "") -> str | None:
    """Say where two descriptions first differ; None where they don't."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for name, value in cast("JsonObject", asked).items():
            inner = f"{at}.{name}" if at else name
            if (difference := _difference(stored.get(name), value, inner)) is not None:
                return difference
        gone = [name for name in stored if name not in asked] if at else []
        return f"{at}.{gone[0]} = {stored[gone[0]]!r}, now there is none" if gone else None
    return None if stored == asked else f"{at} = {stored!r}, now it is {asked!r}"
