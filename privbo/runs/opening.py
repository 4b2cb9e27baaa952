"""Opening a run: from its settings to an identity on disk, an open ledger, a door and a server.

Everything here happens before a client is asked anything, and is the same whichever
transport carries the rounds.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accountant.errors import BudgetExceeded
from accountant.events import Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from privbo.door.adaptive import QuantileClipper
from privbo.door.door import Door
from privbo.door.exact_noise import ExactNoise
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.plans.plan import Terms
from privbo.plans.privacy import Privacy, SharedLedger
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_json
from privbo.protocol.messages import Algorithm, Server, Setting, UnitName
from privbo.protocol.problem import Problem
from privbo.runs.manifest import describe_run, now, require_same_run, versions
from privbo.runs.record import RunDirectory


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that stands on disk (or in memory) and can be played.

    Attributes:
        config: The configuration as run, with the plan and its price.
        clients_seed: PRIVATE: seed of the clients' own randomness.
        setting: What both sides are told.
        ledger: What is charged.
        door: The only way from clients' vectors to public numbers.
        server: The public side.
    """

    config: dict[str, Any]
    clients_seed: int
    setting: Setting
    ledger: Ledger
    door: Door
    server: Server


def open_run(
    problem: Problem,
    algorithm: Algorithm,
    *,
    terms: Terms,
    rounds: int,
    seed: int | None,
    home: RunDirectory | None,
    resume: bool,
    ledger: SharedLedger | None,
    control: Literal["zeroed"] | None,
    attendance: object = None,
    name: str,
    source: dict[str, Any] | None,
    device: str,
) -> OpenRun:
    """Make a run, or open the one that is resumed; see ``privbo.run`` for the arguments.

    Raises:
        ConfigurationError: If a real run has no directory for its ledger.
        RunError: If the directory can't be used as asked.
        BudgetExceeded: If the plan costs more than the ledger has left.
    """
    if home is None and terms.noise_source in {"secure", "exact"}:
        raise ConfigurationError("a private run needs a directory for its durable ledger; name one")
    wanted = describe_run(
        problem=problem,
        algorithm=algorithm,
        terms=terms,
        rounds=rounds,
        control=control,
        ledger=ledger,
        attendance=attendance,
    )
    config, root = _settle(home, wanted, _identity(name, seed, device, source, algorithm), resume=resume)
    setting = setting_of(problem, rounds, public_seed=config["public_seed"], device=device, unit=terms.unit)
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
        only_sampled_send=terms.only_sampled_send,
    )
    return OpenRun(
        config=config,
        clients_seed=derive_seed(root, "clients"),
        setting=setting,
        ledger=charged,
        door=door,
        server=algorithm.server(setting),
    )


def setting_of(problem: Problem, rounds: int, *, public_seed: int, device: str, unit: UnitName) -> Setting:
    """What both sides of a run are told."""
    return Setting(
        space=problem.search_space,
        n_clients=problem.n_clients,
        rounds=rounds,
        public_seed=public_seed,
        device=device,
        unit=unit,
    )


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


def _identity(
    name: str, seed: int | None, device: str, source: dict[str, Any] | None, algorithm: object
) -> dict[str, Any]:
    return {
        "name": name,
        "run_id": f"{name}-{secrets.token_hex(6)}",
        "created": now(),
        "seed": seed,
        "device": device,
        "versions": versions(),
        "source": source,
        "caveat": getattr(algorithm, "caveat", None),
    }


def _open_ledger(
    home: RunDirectory | None, config: dict[str, Any], terms: Terms, shared: SharedLedger | None
) -> Ledger:
    policy = LedgerPolicy(
        unit=Unit(terms.unit),
        adjacency=terms.adjacency,
        population=config["run_id"] if shared is None else shared.population,
        n_clients=terms.n_clients,
        budget=_budget(terms, shared),
        disjoint=terms.unit == "reward",
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
