"""The loop: ask, open, collect, close, tell, record; and what it leaves behind.

Order in every round: the charge is durable before clients are asked, the clients'
state is durable before the release is stored, and a release is stored before anyone is
told. A run killed at any point therefore resumes: stored releases are replayed to the
deterministic server, a charged round without stored bytes is drawn anew under the same
charge (nothing of it had left), and clients that answered answer the same again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from accountant.errors import BudgetExceeded
from accountant.events import Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from privbo.errors import ConfigurationError, RunError
from privbo.manifest import describe_run, now, require_same_run, versions
from privbo.notes import Notes, OnRound
from privbo.privacy import NoPrivacy, Privacy, SharedLedger, Terms, resolve
from privbo.problem import Problem
from privbo.protocol import Algorithm, Broadcast, ClientHistory, FloatArray, Release, Request, Server, Setting
from privbo.record import RunDirectory, read_json, save_arrays
from privbo.release.adaptive import QuantileClipper
from privbo.release.clipping import ClipStatistics
from privbo.release.door import Door
from privbo.release.exact_noise import ExactNoise
from privbo.release.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.transports.in_process import InProcess, ZeroedCohort


class Transport(Protocol):
    """Carries a broadcast to every client and brings the answers back."""

    def collect(self, broadcast: Broadcast) -> FloatArray:
        """Answers ``(n_clients, dim)``; rows that are not finite are absences."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run.

    Attributes:
        config: The configuration as run, with the plan and its price.
        ledger: The ledger that was charged.
        releases: What was made public, in order.
        directory: Where it is kept; None for a simulation in memory.
        clients: PRIVATE: what the clients evaluated.
        clipping: PRIVATE: clip statistics per release.
        errors: PRIVATE: first failure of each client's objective.
    """

    config: dict[str, Any]
    ledger: Ledger
    releases: tuple[Release, ...]
    directory: Path | None
    clients: ClientHistory = field(repr=False)
    clipping: tuple[ClipStatistics, ...] = field(repr=False)
    errors: dict[int, str] = field(repr=False)


def plan(problem: Problem, algorithm: Algorithm, *, privacy: Privacy | NoPrivacy, rounds: int) -> Terms:
    """What a run would cost, without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
        BudgetExceeded: If no noise meets the target.
    """
    adaptive = isinstance(privacy, Privacy) and privacy.adaptive_clipping is not None
    if adaptive and getattr(algorithm, "is_certified", False):
        raise ConfigurationError(
            "adaptive_clipping would break the guarantee of a certified elimination, which needs its clipping norm "
            "fixed; drop it, or choose the heuristic form"
        )
    return resolve(privacy, planned_requests(problem, algorithm, rounds=rounds), n_clients=problem.n_clients)


def planned_requests(problem: Problem, algorithm: Algorithm, *, rounds: int) -> Iterator[Request]:
    """Every request a run can make, without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
    """
    _require_rounds(rounds)
    return algorithm.server(_setting(problem, rounds, public_seed=0, device="cpu")).plan()


def execute(
    problem: Problem,
    algorithm: Algorithm,
    *,
    terms: Terms,
    rounds: int,
    seed: int | None = None,
    directory: Path | None = None,
    resume: bool = False,
    ledger: SharedLedger | None = None,
    control: Literal["zeroed"] | None = None,
    name: str | None = None,
    source: dict[str, Any] | None = None,
    device: str = "cpu",
    on_round: OnRound | None = None,
    on_evaluation: Callable[[], None] | None = None,
) -> Outcome:
    """Run an algorithm to its end under the terms of ``plan``; see ``privbo.run`` for the arguments."""
    if directory is None and terms.noise_source in {"secure", "exact"}:
        raise ConfigurationError("a private run needs a directory for its durable ledger; name one")
    home = None if directory is None else RunDirectory(directory)
    wanted = describe_run(
        problem=problem, algorithm=algorithm, terms=terms, rounds=rounds, control=control, ledger=ledger
    )
    identity = _identity(name or problem.name, seed, device, source)
    config, root = _settle(home, wanted, identity, resume=resume)
    setting = _setting(problem, rounds, public_seed=config["public_seed"], device=device)
    evaluate = problem.evaluator(on_evaluation)
    cohort = algorithm.cohort(
        setting, clients=np.arange(problem.n_clients), evaluate=evaluate, seed=derive_seed(root, "clients")
    )
    if home is not None and (snapshot := home.load_clients()) is not None:
        cohort.restore(snapshot)
    charged = _open_ledger(home, config, terms, ledger)
    if not resume:
        _require_affordable(charged, terms)
    door = Door(
        charged,
        run=config["run_id"],
        noise=_noise(terms, root),
        mechanism=terms.mechanism,
        n_clients=problem.n_clients,
        clipper=_clipper(terms),
    )
    transport = InProcess(
        cohort=ZeroedCohort(cohort=cohort) if control == "zeroed" else cohort,
        save=(lambda _: None) if home is None else home.save_clients,
    )
    notes = Notes(home=home, on_round=on_round)
    play(algorithm.server(setting), transport, door, notes)
    history = cohort.history()
    if home is not None:
        save_arrays(home.evaluations_path, vars(history))
    return Outcome(
        config=config,
        ledger=charged,
        releases=tuple(notes.releases),
        directory=directory,
        clients=history,
        clipping=tuple(notes.clipping),
        errors=dict(evaluate.errors),
    )


def play(server: Server, transport: Transport, door: Door, notes: Notes) -> None:
    """The one loop, from the first open round to the last."""
    position = 0
    while (ask := server.ask()) is not None:
        if ask.request is None:
            transport.collect(ask.broadcast)
            server.tell(None)
            notes.add(ask.broadcast.round, None, None)
            continue
        ticket = door.open(ask.broadcast.round, ask.request, plan_position=position)
        position += 1
        if ticket.release is None:
            answers = transport.collect(ask.broadcast)
            release, clipping = door.close(ticket, answers)
        else:
            release, clipping = ticket.release, None
        server.tell(release)
        notes.add(ask.broadcast.round, release, clipping)


def _settle(
    home: RunDirectory | None, wanted: dict[str, Any], identity: dict[str, Any], *, resume: bool
) -> tuple[dict[str, Any], int]:
    """The configuration as run and the root of its seeds: new, or those of the run that is resumed."""
    if resume:
        if home is None:
            raise RunError("only a run with a directory can be resumed; name it")
        config = home.config()
        require_same_run(config, wanted)
        return config, int(read_json(home.seed_path)["seed"])
    root = secrets.randbits(63) if identity["seed"] is None else int(identity["seed"])
    config = wanted | identity | {"public_seed": derive_seed(root, "public")}
    if home is not None:
        home.create(config, seed=root)
    return config, root


def derive_seed(root: int, stream: str) -> int:
    """A 63-bit seed for one named stream of a run."""
    words = np.random.SeedSequence([root, *stream.encode()]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def _identity(name: str, seed: int | None, device: str, source: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": name,
        "run_id": f"{name}-{secrets.token_hex(6)}",
        "created": now(),
        "seed": seed,
        "device": device,
        "versions": versions(),
        "source": source,
    }


def _open_ledger(
    home: RunDirectory | None, config: dict[str, Any], terms: Terms, shared: SharedLedger | None
) -> Ledger:
    policy = LedgerPolicy(
        unit=Unit.CLIENT,
        adjacency=terms.adjacency,
        population=config["run_id"] if shared is None else shared.population,
        n_clients=terms.n_clients,
        budget=_budget(terms, shared),
    )
    path = Path(shared.path) if shared is not None else home.ledger_path if home is not None else None
    if path is None:
        return Ledger.create(None, policy)
    if not path.exists():
        if home is not None and home.clients_path.exists():
            raise RunError(f"{path} is gone though clients have answered; restore it from a copy")
        return Ledger.create(path, policy)
    ledger = Ledger.open(path)
    if ledger.policy != policy:
        ledger.close()
        raise RunError(f"{path} is a ledger of {ledger.policy}, this run needs {policy}; name its own ledger")
    return ledger


def _require_affordable(ledger: Ledger, terms: Terms) -> None:
    """Refuse a plan the ledger cannot hold before anyone is asked anything."""
    projection = ledger.check(terms.event)
    if not projection.allowed:
        raise BudgetExceeded(f"{projection.reason}; nothing was charged and no data was touched")


def _budget(terms: Terms, shared: SharedLedger | None) -> Budget | None:
    if shared is not None:
        if shared.epsilon is None or shared.delta is None:
            return None
        return Budget(epsilon=shared.epsilon, delta=shared.delta, rule="renyi")
    bound = terms.privacy.bound if isinstance(terms.privacy, Privacy) else None
    return None if bound is None else Budget(epsilon=bound, delta=terms.delta)


def _noise(terms: Terms, root: int) -> NoiseSource:
    if terms.noise_source == "simulation":
        return SimulatedNoise(derive_seed(root, "noise"))
    return ExactNoise() if terms.noise_source == "exact" else SecureNoise()


def _clipper(terms: Terms) -> QuantileClipper | None:
    asked = terms.privacy.adaptive_clipping if isinstance(terms.privacy, Privacy) else None
    if asked is None:
        return None
    return QuantileClipper(
        target_quantile=asked.target_quantile, learning_rate=asked.learning_rate, count_stddev=asked.count_stddev
    )


def _setting(problem: Problem, rounds: int, *, public_seed: int, device: str) -> Setting:
    return Setting(
        space=problem.search_space,
        n_clients=problem.n_clients,
        rounds=rounds,
        public_seed=public_seed,
        device=device,
    )


def _require_rounds(rounds: int) -> None:
    if int(rounds) != rounds or rounds < 1:
        raise ConfigurationError(f"rounds={rounds!r} must be an integer >= 1")
