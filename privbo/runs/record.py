"""The record of a run: what it was, what it released, and what it cost; and its history as it is written down.

Public lines and private diagnostics stand apart. A progress bar of the rounds stands on standard error, or as a line
below a notebook's cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from accountant.events import Event, compose
from accountant.ledger import Ledger
from accountant.ledger.chain import Position
from accountant.verify.text import shown
from accountant.wording import upper_text
from privbo.door.payload import decode_release
from privbo.plans.cost import run_table
from privbo.plans.plan import Plan
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import OnceLines, append_line, read_json, read_lines
from privbo.protocol.messages import Ask, ClientHistory, FloatArray, Release
from privbo.protocol.settings import JsonObject, read_settings
from privbo.protocol.table import in_two_lines
from privbo.runs.best import COMMON, Best, Common, best_points, read_history
from privbo.runs.evidence import LedgerCheck, examine, require_agreement
from privbo.runs.manifest import Manifest, RunDirectory, readable_ledger
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run and what it cost.

    Attributes:
        manifest: The run as asked for, its plan, and its identity.
        ledger: The ledger that was charged.
        directory: Where the run is kept; None for a simulation in memory.
        common: The common setting that a finished run announced: what its vote chose, or what its releases say; public.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> record.epsilon() > 0
        True
    """

    manifest: Manifest
    ledger: Ledger
    directory: Path | None
    common: Common | None = None
    _clients: ClientHistory | None = field(default=None, repr=False)
    _failures: Mapping[int, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.spec.hold(self.ledger)

    def __repr__(self) -> str:
        made = f"{len(self.ledger.entries(self.run_id))} of {self.plan.releases} planned releases"
        at = self.plan.safe_delta
        return in_two_lines(
            "Record",
            self.spec.name,
            f"{self.spec.rounds} rounds, {made}, {self.directory or 'in memory'}",
            f"epsilon {upper_text(self.epsilon(at))} at delta {upper_text(at)} (noise: {self.plan.noise_source})",
        )

    def __reduce__(self) -> tuple[Callable[[Path], Record], tuple[Path]]:
        """Open it again in another process.

        Raises:
            RunError: If it is a simulation in memory.
        """
        return load, (self.home.path,)

    @property
    def spec(self) -> Spec:
        """The run as asked for."""
        return self.manifest.spec

    @property
    def plan(self) -> Plan:
        """The plan and its price."""
        return self.manifest.plan

    @property
    def run_id(self) -> str:
        """The run's name in the ledger."""
        return self.manifest.run_id

    @property
    def releases(self) -> tuple[Release, ...]:
        """Releases so far, in order of rounds; read from the ledger whenever they are asked for."""
        stored = {row.release_id: row.body for row in self.ledger.release_rows()}
        made = (stored.get(entry.release_id) for entry in self.ledger.entries(self.run_id))
        read = (decode_release(payload)[0] for payload in made if payload is not None)
        return tuple(sorted(read, key=lambda release: release.round))

    @property
    def home(self) -> RunDirectory:
        """The run's directory.

        Raises:
            RunError: If it is a simulation in memory.
        """
        if self.directory is None:
            raise RunError("a run in memory has no directory; give it one: run(..., directory=...)")
        return RunDirectory(self.directory)

    @property
    def delta(self) -> float:
        """The delta epsilon is quoted at unless another is named."""
        return self.plan.delta

    def epsilons(self, delta: float | None = None) -> dict[str, float]:
        """Give epsilon of the whole plan by accountant; infinity for a non-private run.

        The plan is quoted, not the releases made so far: when a run ends may depend on
        what it saw. A run that was recovered or published from is priced with all of that.
        """
        at = self.delta if delta is None else delta
        return dict(run_table(self.event, at, adjacency=self.plan.adjacency, recovered=self.is_added_to))

    @property
    def vote(self) -> str | None:
        """The vote at the end, by its name in the ledger; None before it was made."""
        vote = None if self.common is None else self.common.vote
        return None if vote is None else f"{self.run_id}/{vote.round}"

    @property
    def publications(self) -> tuple[str, ...]:
        """Names under which the ledger was charged for what was published in addition to the run, such as norms."""
        return tuple(sorted(name for name in self.ledger.book().runs if name.startswith(f"{self.run_id}-")))

    @property
    def is_added_to(self) -> bool:
        """Whether anything was charged in addition to the plan, by a choice that outputs may have led to.

        A part of the run's ledger was lost and its releases were charged once more, or something was published.
        """
        return bool(self.ledger.book().of(self.run_id).paid_again or self.publications)

    @property
    def event(self) -> Event:
        """Everything that was charged: the run's plan, what was recovered, and what was published in addition."""
        return compose(self.ledger.committed(name) for name in (self.run_id, *self.publications))

    def epsilon(self, delta: float | None = None, *, accountant: str | None = None) -> float:
        """Give epsilon of the whole plan: the smallest valid one, or that of a named accountant.

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
    def has_clients(self) -> bool:
        """Whether the clients' evaluations are on this machine."""
        return self._clients is not None

    @property
    def clients(self) -> ClientHistory:
        """PRIVATE: every evaluation the clients made; not covered by epsilon."""
        if self._clients is None:
            unfinished = "" if self.directory is None else self.home.interrupted
            raise RunError(unfinished or "this run's clients are not on this machine (no private folder)")
        return self._clients

    @overload
    def best(self) -> tuple[Best, ...]: ...

    @overload
    def best(self, client: int) -> Best: ...

    def best(self, client: int | None = None) -> Best | tuple[Best, ...]:
        """PRIVATE: give the point a client would use, or every client's; each belongs to that client.

        Clients without a finite value are left out of the latter.

        Raises:
            RunError: If the clients' evaluations are not here, or the named client's all failed.
        """
        everyone = range(len(self.clients.values))
        found = best_points(self.clients, self.spec.problem.search_space, everyone)
        if client is None:
            return found
        if client not in everyone:
            raise RunError(f"client={client!r} is not registered; clients are 0..{len(everyone) - 1}")
        if (best := next((best for best in found if best.client == client), None)) is not None:
            return best
        reason = self.failures.get(client, "none of its evaluations was stored")
        raise RunError(f"client {client!r} has no finite value: {reason}")

    @property
    def failures(self) -> Mapping[int, str]:
        """PRIVATE: every failing client's first error."""
        return self._failures

    def best_so_far(self) -> FloatArray:
        """PRIVATE: give the mean over clients of the best value seen after each round.

        Entry 0 is the initialisation, where the algorithm has one. Clients without a value yet are left out; NaN where
        no client has one.
        """
        return mean_best_so_far(self.clients)


def check_record(record: Record) -> LedgerCheck:
    """Compare a run's ledger with all other evidence; see ``privbo.runs.evidence``."""
    return examine(record.manifest, record.ledger, None if record.directory is None else record.home)


def best_so_far_by_client(history: ClientHistory) -> FloatArray:
    """Give every client's best value after each round, ``(n_clients, n_rounds)`` from initialisation on.

    Rounds in which no client evaluates are left out; in some algorithms the values decide how many there are.
    """
    rounds = np.unique(history.rounds)
    running = np.fmax.accumulate(history.values, axis=1)
    return np.asarray(running[:, np.searchsorted(history.rounds, rounds, side="right") - 1])


def mean_best_so_far(history: ClientHistory) -> FloatArray:
    """Give the mean over clients of the best value after each round, ``(n_rounds,)``; NaN where none has a value."""
    return mean_of_finite(best_so_far_by_client(history), axis=0)


def level(curves: Sequence[FloatArray]) -> FloatArray:
    """Give curves as rows of one length: each stays where it ended, and one without a value is NaN."""
    found = np.full((len(curves), max(map(len, curves), default=0)), np.nan)
    for row, curve in zip(found, curves, strict=True):
        row[: len(curve)] = curve
        row[len(curve) :] = curve[-1] if len(curve) else np.nan
    return found


def mean_of_finite(values: FloatArray, axis: int) -> FloatArray:
    """Give the mean of the finite values along an axis; NaN where there is none."""
    seen = np.isfinite(values)
    totals = np.where(seen, values, 0.0).sum(axis=axis)
    return np.where(seen.any(axis=axis), totals / np.maximum(seen.sum(axis=axis), 1), np.nan)


def load(directory: str | Path, *, ledger: str | Path | None = None) -> Record:
    """Open a run from its directory, finished or not, without changing it; nothing of the user's is imported.

    Args:
        directory: Of the run.
        ledger: File or address of the population's ledger that the run was charged to. Without it only one is opened
            that lies in the directory, or that a run of this user's own names.

    Raises:
        RunError: If no run stands there, or what stands there disagrees (``privbo.runs.evidence``), or the run of
            another person names a ledger elsewhere.
        LedgerError: If its ledger is missing, corrupt or foreign.

    Example:
        >>> import tempfile
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     made = pb.run(problem, pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=2, directory=home)
        ...     load(home).best(client=1) == made.best(client=1)
        True
    """
    manifest = RunDirectory(Path(directory)).manifest()
    home = RunDirectory(Path(directory).absolute())
    opened = Ledger.open(readable_ledger(home, manifest, ledger))
    require_agreement(manifest, opened, home)
    record = Record(
        manifest=manifest,
        ledger=opened,
        directory=home.path,
        _clients=read_history(home.evaluations_path) if home.evaluations_path.exists() else None,
        _failures=home.failures(),
    )
    return replace(record, common=_stored_common(record))


def _stored_common(record: Record) -> Common | None:
    """The common setting of a finished run, by the ledger's stored releases; None where nothing here can replay it.

    Raises:
        RunError: If the vote that stands in the run's directory is not the one that the ledger holds.
    """
    path = record.home.path / COMMON
    if not path.exists():
        return None
    stored = read_settings(Common, read_json(path), COMMON)
    if stored.vote is None:
        if isinstance(record.spec.algorithm, ForeignAlgorithm):
            return None
        announced = [ask.broadcast.arrays[CHOSEN] for ask, _ in replay(record) if CHOSEN in ask.broadcast.arrays]
        return Common(params=record.spec.problem.search_space.decode(announced[-1])) if announced else None
    totals = {release.round: release.values[0] for release in record.releases}.get(stored.vote.round)
    if totals is None or (len(totals), int(totals.argmax())) != (stored.vote.candidates, stored.vote.place):
        raise RunError(f"{path} is not what the ledger's stored release chose; remove it and resume the run")
    return stored


@dataclass(frozen=True, kw_only=True)
class ActiveNodes:
    """Number of nodes of an elimination that were announced as active at one depth."""

    depth: int
    nodes: int


def replay(record: Record) -> Iterator[tuple[Ask, Release | None]]:
    """Replay every round that was answered: what was asked, and the release that answered it.

    Raises:
        RunError: If the algorithm is not loaded, or the releases do not belong to the configuration.
    """
    spec = replace(record.spec, device="cpu")
    server = spec.server(spec.setting(record.manifest.public_seed))
    if record.directory is not None:
        record.home.recall(server)
    releases = {release.round: release for release in record.releases}
    while (ask := server.ask()) is not None:
        release = releases.get(ask.broadcast.round)
        if ask.request is not None and release is None:
            return
        if ask.request is None and release is not None:
            raise RunError(f"round {release.round} has a release that its server never asked for; restore the ledger")
        yield ask, release
        server.tell(release)


def active_nodes(record: Record) -> tuple[ActiveNodes, ...] | None:
    """Count the nodes announced at every depth by an elimination; None for other algorithms."""
    if isinstance(record.spec.algorithm, ForeignAlgorithm):
        return None  # an algorithm of the user's own: only its own program can replay it
    announced = tuple(
        ActiveNodes(depth=int(ask.broadcast.arrays["depth"]), nodes=len(ask.broadcast.arrays["nodes"]))
        for ask, release in replay(record)
        if release is not None and {"depth", "nodes"} <= ask.broadcast.arrays.keys()
    )
    return announced or None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round as a callback is told of it; public.

    Attributes:
        index: Zero-based round.
        release: The round's release, or None for a round of local work.

    Example:
        >>> Round(index=0, release=None).index
        0
    """

    index: int
    release: Release | None


OnRound = Callable[[Round], None]


@dataclass(frozen=True, kw_only=True)
class PrivateRound:
    """PRIVATE: one round as a callback on the clients' side is told of it; no epsilon covers it.

    Attributes:
        index: Zero-based round.
        clients: Every evaluation so far.
    """

    index: int
    clients: ClientHistory


OnPrivateRound = Callable[[PrivateRound], None]


@dataclass(kw_only=True)
class History:
    """Collects the rounds of a run, and writes them next to the ledger, public and private apart.

    ``lost`` are the charges that a recovery made good: what stands of them stays, and their
    rounds are written down once more.
    """

    home: RunDirectory | None
    on_round: OnRound | None
    lost: Container[Position] = ()

    def __post_init__(self) -> None:
        def superseded(row: Mapping[str, Any]) -> bool:
            return "head" in row and (row["sequence"], row["head"]) in self.lost

        path = None if self.home is None else self.home.history_path
        rows = [] if path is None else [row for row in read_lines(path) if "ended" in row and not superseded(row)]
        self.ended = {row["round"]: row["ended"] for row in rows}
        self._lines = None if path is None else OnceLines(path=path, key="round", superseded=superseded)

    def add(
        self, index: int, release: Release | None, clipping: JsonObject | None, *, ended: str | None = None
    ) -> None:
        """Write one round down, with the time of its end where the run keeps a grid; a callback hears of it last.

        A round that is replayed ended when it did.
        """
        ended = self.ended.get(index, ended)
        if self._lines is not None:
            line: JsonObject = {"round": index, "released": release is not None}
            if release is not None:
                line |= {
                    "sequence": release.sequence,
                    "head": release.head,
                    "noise_stddev": release.noise_stddev,
                    "norm": float(np.linalg.norm(release.values)),
                }
            self._lines.add(line if ended is None else line | {"ended": ended})
        if self.home is not None and clipping is not None:
            append_line(self.home.clipping_path, {"round": index} | clipping)
        if self.on_round is not None:
            self.on_round(Round(index=index, release=release))


@contextmanager
def progress_bar(label: str, rounds: int, on_round: OnRound | None = None) -> Iterator[OnRound]:
    """A bar that counts rounds; yields the callback that moves it and then calls ``on_round``.

    Times are for who sits at a terminal: in a log they would tell how long clients took.
    """
    from rich.console import Console  # no run without a bar loads it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    move = _below_the_cell(label, rounds) if Console(file=sys.stderr).is_jupyter else None
    with ExitStack() as stack:
        if move is None:
            console = Console(file=sys.stderr, force_jupyter=False)
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            times = (TimeRemainingColumn(),) if console.is_terminal else ()
            progress = stack.enter_context(Progress(*columns, *times, console=console))
            task = progress.add_task(shown(label), total=rounds)

            def move(done: int) -> None:
                progress.update(task, completed=done)

        def moved(event: Round) -> None:
            move(min(event.index, rounds))
            if on_round is not None:
                on_round(event)

        yield moved


def _below_the_cell(label: str, rounds: int) -> Callable[[int], None] | None:
    """One line of plain text that a notebook replaces round by round, without widgets; None without IPython."""
    try:
        from IPython.display import display
    except ImportError:
        return None

    def text(done: int) -> dict[str, str]:
        filled = 30 * done // max(rounds, 1)
        return {"text/plain": f"{shown(label)} [{'#' * filled}{'.' * (30 - filled)}] {done}/{rounds}"}

    handle = display(text(0), raw=True, display_id=True)
    return lambda done: handle.update(text(done), raw=True)
