"""The algorithm under test on a small problem, and cohorts and servers that are watched or spoiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from accountant.errors import PrivacyError
from privbo.plans.plan import Plan
from privbo.plans.privacy import NoPrivacy, Privacy, Protects
from privbo.protocol.common import Final
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    Cohort,
    Evaluate,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Release,
    Server,
    Setting,
    UnitName,
)
from privbo.protocol.problem import BatchObjective, Problem
from privbo.protocol.space import Real, Space, Value
from privbo.runs.altered import AlteredCohort
from privbo.runs.loop import run_spec
from privbo.runs.offer import always
from privbo.runs.opening import plan_run
from privbo.runs.record import OnRound, Record, Round
from privbo.runs.sources import require_algorithm
from privbo.runs.spec import Spec

N_CLIENTS, N_RECORDS = 7, 50
SEED = 3
_MOST_ROUNDS = 25
Spoil = Callable[[FloatArray, int], FloatArray]


class ConformanceError(PrivacyError, AssertionError):
    """A rule that an algorithm breaks."""


def require(holds: object, rule: str) -> None:
    """Raise unless a rule holds.

    Raises:
        ConformanceError: With the rule.
    """
    if not holds:
        raise ConformanceError(rule)


def bumps(clients: IntArray, units: FloatArray) -> FloatArray:
    """Give a smooth bump per client, slightly moved: values in (0, 1]."""
    centre = 0.4 + 0.02 * (clients[:, None] % 3)
    return np.asarray(np.exp(-8.0 * ((units - centre) ** 2).sum(axis=1)))


_SPACE = Space({"x": Real(0.0, 1.0), "y": Real(1e-3, 1e1, log=True)})


def toy_problem(n_clients: int = N_CLIENTS, unit: UnitName = "client", score: BatchObjective = bumps) -> Problem:
    """Give the problem of the checks: two real parameters and ``bumps``, of 50 records where one is the unit."""
    if unit == "record":
        return toy_clients(
            lambda client, params: float(score(np.array([client]), _SPACE.encode(params)[None])[0]), unit
        )
    return Problem(space=_SPACE, batch_objective=score, n_clients=n_clients, name="bumps")


def toy_clients(score: Callable[[int, dict[str, Value]], float], unit: UnitName) -> Problem:
    """Give the problem of the checks with an objective that is called client by client."""
    of_records = unit == "record"
    return Problem(
        space=_SPACE,
        objective=(lambda client, params: np.full(N_RECORDS, score(client, params))) if of_records else score,
        n_clients=N_CLIENTS,
        n_records=(N_RECORDS,) * N_CLIENTS if of_records else None,
        name="bumps",
    )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An algorithm under test.

    Attributes:
        algorithm: Its settings.
        unit: Unit of privacy.
        rounds: Length of the runs.
        final: ``"common"`` for runs that end with a common setting, whose ballots are checked as well.
    """

    algorithm: Algorithm
    unit: UnitName = "client"
    rounds: int = 4
    final: Final | None = None

    def __post_init__(self) -> None:
        require_algorithm(self.algorithm)

    def privacy(self) -> Privacy:
        """Give seeded noise of multiplier 1 for the unit."""
        protects: Protects | None = "records" if self.unit == "record" else None
        return Privacy(noise_multiplier=1.0, noise="simulation", unit=self.unit, protects=protects)

    def subsampled(self) -> Privacy:
        """Give the same with half of the clients; all of them, where the unit is smaller than a client."""
        return replace(self.privacy(), sample_rate=0.5 if self.unit == "client" else 1.0)

    def spec(self, **changes: object) -> Spec:
        """Give the run of a check."""
        plain = {
            "name": "check",
            "problem": toy_problem(unit=self.unit),
            "algorithm": always(self.algorithm),  # a few clients change little, and are checked nevertheless
            "privacy": self.privacy(),
            "rounds": self.rounds,
            "seed": SEED,
            "final": None if "algorithm" in changes else self.final,  # what is wrapped holds the vote already
        }
        return Spec(**plain | changes)  # type: ignore[arg-type]  # Spec validates what a check changes

    def play(
        self, home: Path | None = None, *, resume: bool = False, on_round: OnRound | None = None, **changes: object
    ) -> Record:
        """Play a run of a check; one that goes on and on is broken off."""
        return run_spec(self.spec(**changes), home, resume=resume, on_round=on_round or self._bounded)

    def _bounded(self, event: Round) -> None:
        most = _MOST_ROUNDS * self.rounds
        require(event.index < most, f"a run of {self.rounds} rounds must end; this one was at round {most} and went on")

    def plan(self) -> Plan:
        """Give the plan of the plain run."""
        return plan_run(self.spec())

    def setting(self, public_seed: int = 5) -> Setting:
        """Give the public setting that server and clients share."""
        return self.spec().setting(public_seed=public_seed)

    def server(self, public_seed: int = 5) -> Server:
        """Give a public side."""
        return self.spec().server(self.setting(public_seed))

    def asks(self) -> Iterator[tuple[int, Ask]]:
        """Give a server's questions with their number, each answered with pure noise before the next.

        Some more than the rounds that are planned: ballots, and what says which setting was chosen.
        """
        server = self.server()
        for index in range(2 * self.rounds):
            ask = server.ask()
            if ask is None:
                return
            yield index, ask
            server.tell(noise_release(ask, index))

    def cohort(self, clients: list[int] | None = None, evaluate: Callable[..., FloatArray] = bumps) -> Cohort:
        """Give a private side of some clients, all of them unless named."""
        chosen = np.arange(N_CLIENTS) if clients is None else np.array(clients)
        return self.spec().cohort(self.setting(), clients=chosen, evaluate=PlainEvaluate(evaluate), seed=SEED)

    def wrapped(
        self,
        *,
        on_cohort: Callable[[Cohort], Cohort] = lambda cohort: cohort,
        on_server: Callable[[Server], Server] = lambda server: server,
    ) -> Wrapped:
        """Give the algorithm with its sides wrapped."""
        spec, played = self.spec(), self.spec().played
        facts = {"caveat": played.caveat, "is_certified": played.is_certified, "local": played.local}
        whole = SimpleNamespace(server=spec.server, cohort=spec.cohort, **facts)
        return Wrapped(algorithm=whole, on_cohort=on_cohort, on_server=on_server)

    def watched(self, on_cohort: Callable[[Cohort], Cohort] = lambda cohort: cohort) -> tuple[Wrapped, list[Watched]]:
        """Give the algorithm with servers that are watched, and the list of those that were made by then."""
        servers: list[Watched] = []

        def watch(server: Server) -> Server:
            require(not isinstance(server, Cohort), "server() must give a server, not a cohort")
            servers.append(Watched(server))
            return servers[-1]  # type: ignore[return-value]  # a server in every way that is asked for

        return self.wrapped(on_cohort=on_cohort, on_server=watch), servers

    def spoiled(self, spoil: Spoil) -> Wrapped:
        """Give the algorithm with its clients' answers spoiled on the way."""
        return self.wrapped(on_cohort=lambda cohort: spoiled(cohort, spoil))


def spoiled(cohort: Cohort, spoil: Spoil) -> Cohort:
    """Give a cohort some of whose answers are replaced on the way."""
    return AlteredCohort(cohort=cohort, alter=lambda answers, round_: spoil(answers.copy(), round_))


@dataclass
class Watched:
    """A server whose questions, and what it is told, are written down."""

    server: Server
    asked: list[Ask] = field(default_factory=list)
    told: list[Release | None] = field(default_factory=list)

    def plan(self) -> object:
        """Give the server's plan."""
        return self.server.plan()

    def ask(self) -> Ask | None:
        """Give the server's question; one that is asked again is written down once."""
        ask = self.server.ask()
        if ask is not None and len(self.asked) == len(self.told):
            self.asked.append(deepcopy(ask))
        return ask

    def tell(self, release: Release | None) -> None:
        """Tell the server a release, and refuse to tell it anything else."""
        require(release is None or type(release) is Release, "a server must be told releases and nothing else")
        self.told.append(release)
        self.server.tell(release)


@dataclass(frozen=True)
class Wrapped:
    """An algorithm whose sides are wrapped."""

    algorithm: Annotated[Any, Field(exclude=True)]
    on_cohort: Annotated[Any, Field(exclude=True)]
    on_server: Annotated[Any, Field(exclude=True)]
    answers_together: ClassVar[bool] = True  # what wraps a cohort looks at all clients at once

    @property
    def caveat(self) -> str | None:
        """The algorithm's caveat."""
        return self._inside.caveat

    @property
    def is_certified(self) -> bool:
        """Whether the algorithm is certified."""
        return self._inside.is_certified

    def server(self, setting: Setting) -> Server:
        """Give the wrapped public side."""
        return cast("Server", self.on_server(self._inside.server(setting)))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Give the wrapped private side."""
        made = self._inside.cohort(setting, clients=clients, evaluate=evaluate, seed=seed)
        return cast("Cohort", self.on_cohort(made))

    def local(self) -> Algorithm:
        """Give the algorithm's local control."""
        return self._inside.local()

    @property
    def _inside(self) -> Algorithm:
        return cast("Algorithm", self.algorithm)


def noise_release(ask: Ask, index: int) -> Release | None:
    """Give an answer of pure noise to a question; None in a round of local work."""
    if ask.request is None:
        return None
    noise = np.random.default_rng([1, index]).normal(0, 0.1, (ask.request.n_blocks, ask.request.dim))
    return Release(round=ask.broadcast.round, values=noise, noise_stddev=0.1, sequence=index, head="")


def values_of(record: Record) -> FloatArray:
    """Give every released number of a run."""
    return np.concatenate([release.values.ravel() for release in record.releases])


def same(first: npt.ArrayLike, second: npt.ArrayLike) -> bool:
    """Whether two arrays are equal, NaN included."""
    return bool(np.array_equal(cast("FloatArray", first), cast("FloatArray", second), equal_nan=True))


NO_PRIVACY = NoPrivacy()
