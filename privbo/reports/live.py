"""Runs as they stand now: public facts, and on request what lies on their private side.

A directory that is being written may not agree with itself for a moment; then what was read before stays, and the
reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accountant.errors import PrivacyError
from accountant.ledger.pricing import Total, total
from privbo.plans.prices import CumulativePrice
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_lines, require_contained
from privbo.protocol.messages import ClientHistory
from privbo.protocol.space import Space
from privbo.reports.data import broadcast_of, cumulative_of
from privbo.reports.parts import Released
from privbo.runs.best import EVALUATIONS, FACTS, read_history, site_facts
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import Record, check_record, load


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run as it stands; public.

    Attributes:
        name: The run's.
        directory: Where it is kept.
        rounds: Planned rounds.
        done: Rounds that have ended.
        planned_releases: Number of releases in the plan.
        charged: Releases charged so far.
        prices: Epsilon after some of the releases, the last always among them.
        planned: Epsilon of the plan.
        delta: Where both stand.
        noise_source: As reports name it.
        released: What was broadcast.
        ledger: The ledger's state in words.
        head: Chain hash of its last row.
        population: Name of the people.
        total: What everybody has paid on the same people.
    """

    name: str
    directory: Path
    rounds: int
    done: int
    planned_releases: int
    charged: int
    prices: tuple[CumulativePrice, ...]
    planned: float
    delta: float
    noise_source: str
    released: tuple[Released, ...]
    ledger: str
    head: str
    population: str
    total: Total

    @property
    def spent(self) -> float:
        """Epsilon of the releases charged so far; 0 before the first."""
        return min(self.prices[-1].epsilon.values()) if self.prices else 0.0


@dataclass(frozen=True, kw_only=True)
class Trials:
    """PRIVATE: evaluations of the clients whose data lie here.

    Attributes:
        clients: Their numbers.
        space: Their search space.
        history: Their evaluations.
    """

    clients: tuple[int, ...]
    space: Space
    history: ClientHistory


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A directory as it is shown.

    Attributes:
        directory: Of a run, or a site's folder of one run.
        run: The run; None at a site, and before it could be read.
        problem: The reason for which it could not be read just now, or None.
        present: PRIVATE: last round in which each site, or how many clients in each round, were seen to answer.
        trials: PRIVATE: evaluations that lie here.
    """

    directory: Path
    run: LiveRun | None = None
    problem: str | None = None
    present: Mapping[str, str] | None = None
    trials: Trials | None = None

    @property
    def name(self) -> str:
        """Name to show."""
        return self.directory.name if self.run is None else f"{self.run.name} ({self.directory.name})"


def look(
    directory: Path, before: Watched | None = None, *, private: bool = False, ledger: str | Path | None = None
) -> Watched:
    """Read a directory as it stands; nothing in it is changed, and none of its code is imported.

    Args:
        directory: Of a run, or a site's folder of one run.
        before: What was read there the last time: kept where nothing can be read just now.
        private: PRIVATE: read who is present, and the evaluations that lie here.
        ledger: As of ``load``, for a run that names a population's.
    """
    try:
        if (directory / FACTS).exists():
            return _site(directory, private=private)
        record = load(directory, ledger=ledger)
        with record.ledger:
            run = _run(record, None if before is None else before.run)
        found = Watched(directory=directory, run=run)
        return replace(found, present=_present(record.home), trials=_own_trials(record)) if private else found
    except (PrivacyError, OSError, ValueError, KeyError) as error:
        problem = str(error) if isinstance(error, PrivacyError) else f"{type(error).__name__} while it was being read"
        return replace(before or Watched(directory=directory), problem=problem)


def _site(directory: Path, *, private: bool) -> Watched:
    if not private:
        raise RunError(f"{directory} is a site's folder, where everything is private; add --private")
    require_contained(directory)
    facts, path = site_facts(directory), directory / EVALUATIONS
    found = Watched(directory=directory)
    if not path.exists():
        return replace(found, problem="its clients have evaluated nothing yet")
    trials = Trials(clients=tuple(facts.clients), space=facts.search_space, history=read_history(path))
    return replace(found, trials=trials)


def _run(record: Record, before: LiveRun | None) -> LiveRun:
    """The run; prices and releases are taken from before where the ledger has not moved."""
    ledger, plan = record.ledger, record.plan
    done = len({row["round"] for row in read_lines(record.home.history_path)})
    state = check_record(record).text
    if before is not None and before.head == ledger.head:
        return replace(before, done=done, ledger=state)
    delta = plan.safe_delta
    return LiveRun(
        name=record.spec.name,
        directory=record.home.path,
        rounds=record.spec.rounds,
        done=done,
        planned_releases=plan.releases,
        charged=len(ledger.entries(record.run_id)),
        prices=cumulative_of(record),
        planned=min(plan.epsilon(delta).values()),
        delta=delta,
        noise_source=plan.noise_source,
        released=broadcast_of(record),
        ledger=state,
        head=ledger.head,
        population=ledger.policy.population,
        total=total(ledger.book(), delta),
    )


def _present(home: RunDirectory) -> Mapping[str, str]:
    """PRIVATE: where each site was seen last; for a run in one process, how many answered in the last rounds."""
    sites = {f"site {row['site']}": f"round {row['round']}" for row in read_lines(home.countersigned_path)}
    if sites:
        return sites
    rows: Sequence[Mapping[str, int]] = read_lines(home.clipping_path)[-5:]
    return {
        f"round {row['round']}": f"{row['n_participants']} of {row['n_clients']} drawn, {row['n_absent']} absent"
        for row in rows
    }


def _own_trials(record: Record) -> Trials | None:
    """PRIVATE: evaluations of a run in one process, which are there once it has ended."""
    if not record.has_clients:
        return None
    clients = tuple(range(len(record.clients.values)))
    return Trials(clients=clients, space=record.spec.problem.search_space, history=record.clients)


def best_so_far(trials: Trials) -> dict[int, list[float | None]]:
    """PRIVATE: give every client's best value after each of its evaluations; None before its first finite one."""
    values = np.where(np.isfinite(trials.history.values), trials.history.values, -np.inf)
    running = np.maximum.accumulate(values, axis=1)
    return {
        client: [float(v) if np.isfinite(v) else None for v in row]
        for client, row in zip(trials.clients, running, strict=True)
    }
