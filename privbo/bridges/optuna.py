"""Optuna: its distributions, a sampler for an agent's own study, and released quantities as a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from privbo.plans.prices import finite
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Algorithm,
    Broadcast,
    Cohort,
    Evaluate,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Setting,
)
from privbo.protocol.space import Categorical, Int, Parameter, Real, Space, Value
from privbo.reports.data import report
from privbo.reports.history import history_rows
from privbo.runs.record import Record

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError:
    raise ConfigurationError("Optuna is not installed; install privbo[optuna]") from None

INITIAL_ROUND = -1


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Translate a search space into Optuna's distributions.

    Example:
        >>> distributions_of(Space({"x": Real(0.0, 1.0)}))
        {'x': FloatDistribution(high=1.0, log=False, low=0.0, step=None)}
    """
    return {name: _distribution(parameter) for name, parameter in space.parameters.items()}


def _distribution(parameter: Parameter) -> BaseDistribution:
    match parameter:
        case Real():
            return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case Int():
            return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case Categorical():
            return CategoricalDistribution(parameter.choices)


def space_of(distributions: Mapping[str, BaseDistribution]) -> Space:
    """Translate Optuna's distributions into a search space.

    Raises:
        ConfigurationError: If a distribution is none of Optuna's own.
    """
    return Space({name: _parameter(name, distribution) for name, distribution in distributions.items()})


def _parameter(name: str, distribution: BaseDistribution) -> Parameter:
    match distribution:
        case FloatDistribution():
            return Real(distribution.low, distribution.high, log=distribution.log, step=distribution.step)
        case IntDistribution():
            return Int(distribution.low, distribution.high, log=distribution.log, step=distribution.step)
        case CategoricalDistribution():
            return Categorical(tuple(distribution.choices))  # type: ignore[arg-type]  # checked by Categorical
        case _:
            raise ConfigurationError(f"{name}: {distribution} is none of Optuna's own distributions; use one of them")


class _Asked(Exception):  # noqa: N818 (an answer, not an error)
    """Carries the point an agent would evaluate next."""

    def __init__(self, units: FloatArray) -> None:
        super().__init__()
        self.units = units


class FTSSampler(BaseSampler):
    """An agent of a federation that picks the points of its own Optuna study.

    The agent acts as it would inside a run: random initial points, then its own Thompson
    draw or, more and more often, the maximiser of what the federation released. It reads
    releases and sends nothing, so a study costs no privacy.

    Args:
        algorithm: Such as ``DPFTSDE()``; it has to query one point per round.
        setting: What the federation's sides were told.
        client: Number of this agent.
        seed: Of the agent's own randomness.
        n_init: Initial points of the algorithm.
        shared: Gives the federation's latest broadcast; without it the agent is alone.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        setting: Setting,
        *,
        client: int,
        seed: int,
        n_init: int,
        shared: Callable[[], Broadcast] | None = None,
    ) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._client, self._seed, self._n_init = client, seed, n_init
        self._shared = shared
        self._independent = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002 (Optuna's signature)
        """Give the federation's space, whatever the study has seen."""
        return distributions_of(self._setting.space)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,  # noqa: ARG002 (Optuna's signature)
        search_space: dict[str, BaseDistribution],  # noqa: ARG002 (Optuna's signature)
    ) -> dict[str, Value]:
        """Pick the agent's next point."""
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return self._setting.space.decode(self._next([t for t in done if t.value is not None], study))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:  # noqa: ANN401  # Optuna's signature
        """Draw a parameter outside the federation's space at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _next(self, done: Sequence[FrozenTrial], study: Study) -> FloatArray:
        if len(done) < self._n_init:
            return self._initial()[len(done)]
        sign = 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0
        space = self._setting.space
        units = np.array([space.encode({k: t.params[k] for k in space.parameters}) for t in done])
        rounds = [*[INITIAL_ROUND] * self._n_init, *range(1, len(done) - self._n_init + 1)]
        cohort = self._cohort(PlainEvaluate(_ask))
        seen = {
            "units": units[None],
            "values": np.array([[sign * float(t.value or 0.0) for t in done]]),
            "rounds": np.array(rounds, dtype=np.int64),
        }
        cohort.restore(dict(cohort.snapshot()) | seen)
        try:
            cohort.respond(dataclasses.replace(self._broadcast(), round=len(done) - self._n_init + 1))
        except _Asked as asked:
            return np.asarray(asked.units[0])
        raise ConfigurationError(f"{type(self._algorithm).__name__} asked for no point; use an algorithm that does")

    def _initial(self) -> list[FloatArray]:
        """The agent's initial points, all known beforehand."""
        points: list[FloatArray] = []

        def note(clients: IntArray, units: FloatArray) -> FloatArray:
            points.append(np.array(units[0]))
            return np.arange(len(clients), dtype=np.float64) + len(points)

        self._cohort(PlainEvaluate(note)).respond(dataclasses.replace(self._broadcast(), round=0))
        if len(points) != self._n_init:
            raise ConfigurationError(f"n_init={self._n_init}, the algorithm has {len(points)} initial points")
        return points

    def _cohort(self, evaluate: Evaluate) -> Cohort:
        return self._algorithm.cohort(
            self._setting, clients=np.array([self._client]), evaluate=evaluate, seed=self._seed
        )

    def _broadcast(self) -> Broadcast:
        if self._shared is not None:
            return self._shared()
        ask = self._algorithm.server(self._setting).ask()
        if ask is None:
            raise ConfigurationError("the algorithm's server has nothing to say; use one with at least one round")
        return ask.broadcast


def _ask(clients: IntArray, units: FloatArray) -> NoReturn:  # noqa: ARG001 (an objective's signature)
    raise _Asked(np.array(units))


def export_releases(record: Record, *, storage: str | None = None, study_name: str | None = None) -> Study:
    """Export released quantities of a run as an Optuna study: one trial per release, its norm the value.

    Args:
        record: A run; only its public side is read.
        storage: Optuna's storage URL; in memory by default.
        study_name: The run's by default.
    """
    found = report(record)
    study = optuna.create_study(
        storage=storage, study_name=study_name or found.run, direction="maximize", load_if_exists=False
    )
    for row in history_rows(found):
        if isinstance(norm := row.get("norm"), float):
            study.add_trial(create_trial(value=norm, user_attrs=row))
    attributes = {
        "delta": found.delta,
        "adjacency": found.adjacency.value,
        "noise_source": found.noise_source,
        "guaranteed": finite(found.guarantee.guaranteed),
    }
    for key, value in attributes.items():
        study.set_user_attr(key, value)
    return study
