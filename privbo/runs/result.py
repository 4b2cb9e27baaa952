"""The Python interface: ``run``, ``load`` and the ``Result`` both return.

Longer than 300 lines: the whole Python interface in one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from accountant.epsilon import epsilon_table
from accountant.events import Adjacency, from_dict
from accountant.ledger import Ledger
from privbo.plans.privacy import NoPrivacy, Privacy, SharedLedger
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import load_arrays
from privbo.protocol.messages import Algorithm, ClientHistory, FloatArray, Release
from privbo.protocol.problem import Problem
from privbo.protocol.space import Space, Value
from privbo.runs.attendance import Attendance
from privbo.runs.config import space_from
from privbo.runs.loop import execute, plan
from privbo.runs.notes import OnRound, Round
from privbo.runs.record import RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from privbo.audits.clipping import ClippingAudit


@dataclass(frozen=True, kw_only=True)
class Best:
    """PRIVATE: a client's best evaluated point."""

    params: dict[str, Value]
    value: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run and what it cost.

    Attributes:
        config: The configuration as run, with the plan and its price.
        ledger: The ledger that was charged.
        directory: Where the run is kept; None for a simulation in memory.
        releases: What was made public; empty for a run loaded from its directory.
    """

    config: dict[str, Any]
    ledger: Ledger
    directory: Path | None
    releases: tuple[Release, ...] = ()
    _clients: ClientHistory | None = field(default=None, repr=False)
    _space: Space | None = field(default=None, repr=False)

    @property
    def delta(self) -> float:
        """The delta epsilon is quoted at unless another is named."""
        return float(self.config["plan"]["delta"])

    def epsilons(self, delta: float | None = None) -> dict[str, float]:
        """Epsilon of the whole plan by accountant; infinity for a non-private run.

        The plan is quoted, not the releases made so far: when a run ends may depend on
        what it saw.
        """
        plan = self.config["plan"]
        at = self.delta if delta is None else delta
        return epsilon_table(from_dict(plan["event"]), at, adjacency=Adjacency(plan["adjacency"]))

    def epsilon(self, delta: float | None = None, *, accountant: str | None = None) -> float:
        """Epsilon of the whole plan: the smallest valid one, or that of a named accountant.

        Raises:
            ConfigurationError: If that accountant has no bound for this plan.
        """
        table = self.epsilons(delta)
        if accountant is None:
            return min(table.values())
        if accountant not in table:
            raise ConfigurationError(f"accountant={accountant!r}; for this plan there are {sorted(table)}")
        return table[accountant]

    @property
    def clients(self) -> ClientHistory:
        """PRIVATE: every evaluation the clients made; not covered by epsilon."""
        if self._clients is None:
            raise RunError("this run's clients are not on this machine (no private folder)")
        return self._clients

    def best(self, client: int) -> Best:
        """PRIVATE: the best point a client has evaluated; it belongs to that client.

        Raises:
            RunError: If the client's evaluations are not here or all failed.
        """
        history = self.clients
        if not 0 <= client < history.values.shape[0]:
            raise RunError(f"client={client} is not registered; clients are 0..{history.values.shape[0] - 1}")
        values = history.values[client]
        if not np.isfinite(values).any():
            raise RunError(f"client {client} has no finite value; look at its objective's first error")
        index = int(np.nanargmax(values))
        space = self._space if self._space is not None else space_from(self.config["problem"]["space"])
        return Best(params=space.decode(history.units[client, index]), value=float(values[index]))

    def best_so_far(self) -> FloatArray:
        """PRIVATE: mean over clients of the best value seen after each round.

        Entry 0 is the initialisation. Clients without a value yet are left out.
        """
        return mean_best_so_far(self.clients)

    def history(self) -> pd.DataFrame:
        """Public: one row per release, from the ledger; ``.to_parquet(path)`` keeps it.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        from privbo.reports.history import history_frame

        return history_frame(self.config, self.ledger)

    def figures(self) -> dict[str, go.Figure]:
        """Public: the report's figures by name, as Plotly figures."""
        import plotly.graph_objects as go

        from privbo.reports.data import report
        from privbo.reports.page import report_figures

        return {name: go.Figure(spec) for name, spec in report_figures(report(self.config, self.ledger)).items()}

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report and return its path."""
        from privbo.reports.data import write_report

        target = Path(path) if path is not None else self._default_report()
        return write_report(self.config, self.ledger, target)

    def _default_report(self) -> Path:
        if self.directory is None:
            raise ConfigurationError("this run has no directory; name the report's path")
        return RunDirectory(self.directory).report_path


def audit(result: Result) -> ClippingAudit:
    """PRIVATE: how clipping met the clients' vectors of a run, from its private folder.

    Raises:
        RunError: If the run's private folder is not on this machine.
    """
    from privbo.audits.clipping import clipping_audit

    if result.directory is None:
        raise RunError("a run in memory keeps no clip statistics; give it a directory")
    return clipping_audit(RunDirectory(result.directory), result.ledger)


def mean_best_so_far(history: ClientHistory) -> FloatArray:
    """Mean over clients of the best value after each round, ``(n_rounds,)`` from initialisation on."""
    rounds = np.unique(history.rounds)
    running = np.fmax.accumulate(history.values, axis=1)
    last = np.searchsorted(history.rounds, rounds, side="right") - 1
    after = running[:, last]
    seen = np.isfinite(after)
    totals = np.where(seen, after, 0.0).sum(axis=0)
    return np.asarray(totals / np.maximum(seen.sum(axis=0), 1))


def run(
    problem: Problem,
    algorithm: Algorithm,
    *,
    privacy: Privacy | NoPrivacy,
    rounds: int,
    seed: int | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    name: str | None = None,
    ledger: SharedLedger | None = None,
    control: Literal["zeroed"] | None = None,
    attendance: Attendance | None = None,
    device: str = "cpu",
    progress: bool = False,
    on_round: OnRound | None = None,
    on_evaluation: Callable[[], None] | None = None,
    source: dict[str, Any] | None = None,
) -> Result:
    """Run a private federated optimisation.

    Args:
        problem: The clients' search space and objectives.
        algorithm: What to run, such as ``DPFTSDE()``.
        privacy: A target or a noise multiplier; ``NoPrivacy()`` for a baseline.
        rounds: Number of rounds in which clients act on what was shared.
        seed: Makes the algorithm's and the clients' choices repeatable. Privacy noise is
            never seeded unless ``privacy.noise == "simulation"``.
        directory: Where the run is kept; by default ``runs/NAME-TIME``, and in memory
            for simulations.
        resume: Go on with the run in ``directory``.
        name: Shown in reports; the problem's by default.
        ledger: A population's ledger to charge instead of the run's own, where several runs
            concern the same clients.
        control: ``"zeroed"`` replaces every client's vector by zero behind the same
            mechanism, to show what the noise alone does.
        attendance: Clients that are away or late, simulated; None for an ideal network.
        device: Torch device of batched agents.
        progress: Show a progress bar on standard error.
        on_round: Called after every round with public quantities.
        on_evaluation: Called after every evaluation; what it raises ends the run, which can be resumed.
        source: The configuration file's content, kept so that the command line can resume.

    Returns:
        The result; its ``ledger`` is open.

    Raises:
        ConfigurationError: If a setting is impossible; nothing was touched.
        BudgetExceeded: If the plan costs more than the ledger has left.
        RunError: If the directory can't be used as asked.
    """
    label = name or problem.name
    home = _home(directory, privacy, label)
    terms = plan(problem, algorithm, privacy=privacy, rounds=rounds)
    with _bar(label, rounds) if progress else nullcontext() as bar:
        outcome = execute(
            problem,
            algorithm,
            terms=terms,
            rounds=rounds,
            seed=seed,
            directory=home,
            resume=resume,
            ledger=ledger,
            control=control,
            attendance=attendance,
            name=label,
            source=source,
            device=device,
            on_round=_both(bar, on_round),
            on_evaluation=on_evaluation,
        )
    return Result(
        config=outcome.config,
        ledger=outcome.ledger,
        directory=outcome.directory,
        releases=outcome.releases,
        _clients=outcome.clients,
        _space=problem.search_space,
    )


def _bar(label: str, rounds: int) -> AbstractContextManager[OnRound]:
    from privbo.runs.progress import progress_bar

    return progress_bar(label, rounds)


def _both(first: OnRound | None, second: OnRound | None) -> OnRound:
    def call(event: Round) -> None:
        for callback in (first, second):
            if callback is not None:
                callback(event)

    return call


def load(directory: str | Path) -> Result:
    """A run from its directory, finished or not; opens its ledger without changing it.

    Raises:
        RunError: If no run stands there.
        LedgerError: If its ledger is missing, corrupt or foreign.
    """
    home = RunDirectory(Path(directory))
    config = home.config()
    return Result(
        config=config,
        ledger=Ledger.open(home.ledger_path if config["ledger"] is None else Path(config["ledger"]["path"])),
        directory=home.path,
        _clients=_history(home) if home.evaluations_path.exists() else None,
    )


def _history(home: RunDirectory) -> ClientHistory:
    arrays = load_arrays(home.evaluations_path)
    return ClientHistory(
        units=arrays["units"].astype(np.float64),
        values=arrays["values"].astype(np.float64),
        rounds=arrays["rounds"].astype(np.int64),
        recommended=arrays["recommended"].astype(np.float64),
    )


def _home(directory: str | Path | None, privacy: Privacy | NoPrivacy, label: str) -> Path | None:
    if directory is not None:
        return Path(directory)
    if isinstance(privacy, NoPrivacy) or privacy.noise == "simulation":
        return None
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-") or "run"
    return Path("runs") / f"{stem}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
