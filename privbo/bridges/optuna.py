"""Optuna: a sampler that asks a federation, its distributions, and a site's trials as a study.

.. versionadded:: 0.3.0
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from privbo.protocol.errors import ConfigurationError, RunError, needs
from privbo.protocol.space import Categorical, Int, Parameter, Real, Space, Value
from privbo.runs.session import Site
from privbo.runs.trials import Trial

with needs("Optuna", "optuna"):
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState, create_trial

_PATIENCE = 0.1  # seconds between two looks whether another worker has returned a trial


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Translate a search space into Optuna's distributions.

    Example:
        >>> distributions_of(Space({"x": Real(0.0, 1.0)}))
        {'x': FloatDistribution(high=1.0, log=False, low=0.0, step=None)}
    """
    found: dict[str, BaseDistribution] = {}
    for name, own in space.parameters.items():
        match own:
            case Real():
                found[name] = FloatDistribution(own.low, own.high, log=own.log, step=own.step)
            case Int():
                found[name] = IntDistribution(own.low, own.high, log=own.log, step=own.step)
            case Categorical():
                found[name] = CategoricalDistribution(own.choices)
    return found


def space_of(distributions: Mapping[str, BaseDistribution]) -> Space:
    """Translate Optuna's distributions into a search space.

    Raises:
        ConfigurationError: If a distribution is none of Optuna's own.
    """
    found: dict[str, Parameter] = {}
    for name, theirs in distributions.items():
        match theirs:
            case FloatDistribution():
                found[name] = Real(theirs.low, theirs.high, log=theirs.log, step=theirs.step)
            case IntDistribution():
                found[name] = Int(theirs.low, theirs.high, log=theirs.log, step=theirs.step)
            case CategoricalDistribution():
                found[name] = Categorical(tuple(theirs.choices))  # type: ignore[arg-type]  # checked by Categorical
            case _:
                raise ConfigurationError(f"{name}: {theirs} is none of Optuna's own distributions; use one of them")
    return Space(found)


class FederatedSampler(BaseSampler):
    """A sampler whose points come from a federated run, and which tells the run what became of them.

    Every trial of the study is a trial of one client of the run (see ``privbo.Site``): its parameters are what the
    client asks for, and its value, or that it failed, is what the client is told. A pruned trial counts with the last
    value that it reported, as for Optuna's own samplers: one that taught the client nothing would be asked for again.
    When the run is over the study stops. Several workers may share one sampler.

    Args:
        site: The site, or its directory.
        client: Whose study it is; by default the only one at the site.

    Raises:
        ConfigurationError: If the site has several clients and none is named, or the named one is not there.
        RunError: If no trial was asked for there yet.

    Example:
        ``docs/how-to/optuna.md`` runs one per client::

            study = optuna.create_study(sampler=FederatedSampler("/var/lib/privbo"), direction="maximize")
            study.optimize(objective)
    """

    def __init__(self, site: Site | str | Path, *, client: int | None = None) -> None:
        self._site = site if isinstance(site, Site) else Site(site)
        self._site.ask(wait=None)  # until the clients and their space are known
        clients = self._site.clients
        if client is None and len(clients) > 1:
            raise ConfigurationError(f"this site has the clients {list(clients)}; a study is one client's: name it")
        self._client = clients[0] if client is None else client
        self._site.trials(self._client)  # refuses one that is not here
        self._working: dict[int, tuple[Trial, int]] = {}  # with its thread, by the number of the study's trial
        self._choosing = threading.Lock()  # workers of ``optimize(n_jobs=...)`` are threads

    def infer_relative_search_space(
        self,
        study: Study,
        trial: FrozenTrial,  # noqa: ARG002 (Optuna's signature)
    ) -> dict[str, BaseDistribution]:
        """Give the run's space, whatever the study has seen.

        Raises:
            ConfigurationError: If the study has several objectives.
        """
        if len(study.directions) > 1:
            raise ConfigurationError(
                f"the study has {len(study.directions)} objectives, and a client has one; make them one, such as a "
                "weighted sum"
            )
        return distributions_of(self._site.space)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002 (Optuna's signature)
    ) -> dict[str, Value]:
        """Take what the client asks for next.

        Raises:
            TrialPruned: If the run ended while a worker of ``study.optimize`` waited for a trial; the study stops.
            RunError: If the run is over and ``study.optimize`` is not running.
        """
        me = threading.get_ident()
        if getattr(study._thread_local, "in_optimize_loop", False):  # what this thread was at did not come back
            for number in [number for number, (_, thread) in list(self._working.items()) if thread == me]:
                self._working.pop(number)
        while self._site.ask(self._client):
            with self._choosing:  # the next trial that no other worker of this study has
                taken = {asked.number for asked, _ in list(self._working.values())}
                for asked in self._site.ask(self._client, wait=0.0):
                    if asked.number not in taken:
                        self._working[trial.number] = asked, me
                        return {}  # ``sample_independent`` gives each value that is suggested as the run searches it
            time.sleep(_PATIENCE)
        over = "the run is over: its client asks for no further trial"
        try:
            study.stop()
        except RuntimeError:
            raise RunError(over) from None
        raise optuna.TrialPruned(over)

    def sample_independent(
        self,
        study: Study,  # noqa: ARG002 (Optuna's signature)
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401  # Optuna's signature
        """Give what the client asks for; refuse a parameter that the run does not search, or not there or so.

        Raises:
            ConfigurationError: Naming what the run searches; the client's trial goes on waiting.
        """
        asked, _ = self._working.get(trial.number, (None, 0))
        params = {} if asked is None else asked.params
        searched = {name: own for name, own in distributions_of(self._site.space).items() if name in params}
        if searched.get(param_name) == param_distribution:
            return params[param_name]
        self._working.pop(trial.number, None)
        raise ConfigurationError(
            f"the study suggests {param_name}={param_distribution}, and this trial of the run searches {searched}; "
            "suggest what the run searches, with the same bounds and choices"
        )

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell the client; stop the study once the run is over.

        Raises:
            ConfigurationError: If another point was evaluated than the client asks for; its trial goes on waiting.
        """
        if trial.number not in self._working:  # it was never asked for
            if state == TrialState.COMPLETE:
                raise ConfigurationError(f"the study evaluated {trial.params}; suggest the run's parameters")
            return
        try:
            self._tell(study, trial, state, values, self._working[trial.number][0])
        finally:
            self._working.pop(trial.number)  # once it is told: no other worker takes it in between
        if not self._site.ask(self._client):
            with contextlib.suppress(RuntimeError):  # nobody runs study.optimize: the study was asked and told
                study.stop()

    def _tell(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None, asked: Trial
    ) -> None:
        """Tell what became of a trial, of a failed one whatever it suggested before."""
        if any(trial.params.get(name, own if values is None else None) != own for name, own in asked.params.items()):
            raise ConfigurationError(
                f"the study evaluated {trial.params}, and its client asks for {asked.params}; suggest all of them"
            )
        sign, last = 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0, math.nan
        for step, last in sorted(trial.intermediate_values.items()):
            with contextlib.suppress(ConfigurationError):  # Optuna allows values that are not finite
                self._site.report(asked, step, sign * last)
        if state == TrialState.COMPLETE and values is not None:
            self._site.tell(asked, sign * float(values[0]))
        elif state == TrialState.PRUNED and math.isfinite(last):
            self._site.tell(asked, sign * last)
        elif state == TrialState.PRUNED:
            self._site.tell(asked, failure="pruned before it reported a finite value")
        else:
            self._site.tell(asked, failure=str(trial.system_attrs.get("fail_reason", "the objective failed")))


def study_of(
    site: Site | str | Path, *, client: int | None = None, storage: str | None = None, study_name: str | None = None
) -> Study:
    """PRIVATE: give a site's trials as an Optuna study, for its pictures, its importances and its dashboard.

    Trials that wait for a value are left out. The study maximises, whichever way the client's own study goes: values of
    one that minimises are negated.

    Args:
        site: The site, or its directory.
        client: Whose trials; by default all clients', with the client as an attribute.
        storage: Optuna's storage URL; in memory by default.
        study_name: By default Optuna's own.
    """
    site = site if isinstance(site, Site) else Site(site)
    study = optuna.create_study(storage=storage, study_name=study_name, direction="maximize")
    space = distributions_of(site.space)
    for trial in site.trials(client):
        if trial.state == "open":
            continue
        found = create_trial(
            state=TrialState.COMPLETE if trial.value is not None else TrialState.FAIL,
            value=trial.value,
            params=trial.params,
            distributions={name: space[name] for name in trial.params},
            intermediate_values=dict(trial.steps),
            user_attrs={"client": trial.client, "round": trial.round, "failure": trial.failure},
        )
        found.datetime_start = datetime.fromisoformat(trial.asked_at).replace(tzinfo=None)
        found.datetime_complete = datetime.fromisoformat(trial.told_at).replace(tzinfo=None)
        study.add_trial(found)
    return study
