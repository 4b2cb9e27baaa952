"""A run as asked for: one frozen ``Spec``, the only thing that is serialised.

TOML, JSON, a run's manifest, a sweep's cell and a federation's settings are all the table
that ``Spec.to_dict`` gives and ``Spec.from_dict`` reads::

    name = "quickstart"
    rounds = 20
    controls = ["local", "zeroed"]     # optional private diagnostics

    [problem]
    factory = "privbo.quickstart.tumours:problem"   # or: objective, n_clients and space
    [algorithm]
    type = "shared-prior"              # or "package.module:Class" for an algorithm of your own
    n_features = 50
    [privacy]
    epsilon = 2.0
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Required, Self, TypeAlias, TypedDict, cast

import pydantic
from pydantic import Field, GetCoreSchemaHandler, SkipValidation, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from accountant.events import Event
from accountant.ledger import Ledger
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision, Policy
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.common import Final, Judging
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Algorithm, Cohort, Evaluate, IntArray, Records, Server, Setting
from privbo.protocol.problem import FACTS, Evaluator, Problem, ProblemSource
from privbo.protocol.settings import (
    NAME,
    Count,
    JsonObject,
    Positive,
    Sequence,
    dump_settings,
    read_settings,
    settings,
    settings_schema,
)
from privbo.runs.altered import Attendance
from privbo.runs.best import CommonCohort, CommonServer
from privbo.runs.code import CodeKey, code_key
from privbo.runs.offer import Offer, is_optional, left_out, remedy_of
from privbo.runs.sources import (
    ForeignAlgorithm,
    algorithm_table,
    algorithms,
    default_algorithm,
    load_problem,
    read_algorithm,
    require_algorithm,
    stated_problem,
)

# How a run is carried out and who allows it, not what it is: none of them changes what a run releases.
_MEANS = ("controls", "threads", "device", "executor", "jobs", "policy")
# Of a problem: where its code stands is nobody's business but the machine's that runs it.
_PUBLIC = (*FACTS, "space", "constraints", "arguments", "training")


MARGIN = 0.05  # share of a round that may pass before it begins, and again between its last answer and its end
Control: TypeAlias = Literal["local", "zeroed"]


@settings(table="times")
class Times:
    """A declared grid of times, on which a run's rounds begin and end; public.

    .. versionadded:: 0.3.0

    Attributes:
        round_seconds: Length of every round. A round lasts it though all have answered, and who
            has not answered by its end is absent.
        client_seconds: Seconds of a round that one client's evaluations may take together; what overruns
            them fails as if the objective had raised. By default half of the round, shared equally by the
            clients of one process, which are asked one after the other.

    Raises:
        ConfigurationError: If a number is out of range.

    Example:
        >>> Times(round_seconds=60.0).of_one(n_clients=10)
        3.0
    """

    round_seconds: Positive
    client_seconds: Positive | None = None

    @property
    def patience(self) -> float:
        """Seconds for which a round waits for answers; the rest is for what is done before and after."""
        return (1 - 2 * MARGIN) * self.round_seconds

    def of_one(self, n_clients: int) -> float:
        """Give the seconds that one of so many clients in one process has for its evaluations in a round.

        Raises:
            ConfigurationError: If all of them together may overrun the round.
        """
        if self.client_seconds is None:
            return self.round_seconds / (2 * n_clients)
        if self.client_seconds * n_clients > self.patience:
            raise ConfigurationError(
                f"times.client_seconds={self.client_seconds:g}: {n_clients} clients, asked one after the other, may "
                f"take longer than the {self.patience:g} s in which a round of {self.round_seconds:g} s waits for "
                "answers; declare longer rounds"
            )
        return self.client_seconds


class RunSettings(TypedDict, total=False):
    """What ``privbo.run``, ``start`` and ``plan`` take by name and hand to a ``Spec``; documented at ``privbo.run``."""

    privacy: Required[Privacy | NoPrivacy]
    rounds: Required[int]
    seed: int | None
    device: str
    final: Final | None
    final_share: float
    control: Literal["zeroed"] | None
    ledger: SharedLedger | None
    policy: Policy | None
    attendance: Attendance | None
    times: Times | None
    evaluation_seconds: float | None
    jobs: int | None


@dataclass(frozen=True)
class _Tabled:
    """A field that a table states in a shape of its own; ``Spec`` makes objects of tables once all are sound."""

    shape: object
    dump: Callable[[Any], object]

    def __get_pydantic_core_schema__(self, kind: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=handler.generate_schema(self.shape),
            python_schema=handler(kind),
            serialization=core_schema.plain_serializer_function_ser_schema(self.dump),
        )


@settings(table="")
class Spec:
    """A run as asked for: the settings of ``privbo.run``, and how a configuration file carries them out.

    Attributes:
        name: Shown in reports, and part of paths.
        controls: Private diagnostics that ``privbo run`` makes in addition to the run.
        threads: Threads of numerical libraries.
        directory: Where ``privbo run`` keeps the run; no part of its table.

    Raises:
        ConfigurationError: Naming the setting, its value and what is allowed.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=3)
        >>> spec = Spec(problem=problem, algorithm=pb.DPFTSDE(), privacy=pb.Privacy(epsilon=2), rounds=5, name="toy")
        >>> Spec.from_dict(spec.to_dict()).digest() == spec.digest()
        True
    """

    # The order is that of the table, which config.json keeps.
    name: Annotated[str, Field(pattern=NAME)]
    rounds: Count
    seed: Annotated[int, Field(ge=0)] | None = None
    device: str = "cpu"
    threads: Count = 1
    final: Final | None = None
    final_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    control: Literal["zeroed"] | None = None
    controls: Sequence[Control] = ()
    problem: Annotated[Problem, SkipValidation, _Tabled(ProblemSource, lambda problem: dump_settings(problem.table()))]
    algorithm: Annotated[Algorithm, SkipValidation, _Tabled(JsonObject, algorithm_table)] = cast("Algorithm", None)
    privacy: Annotated[Privacy | NoPrivacy, SkipValidation, _Tabled(JsonObject, dump_settings)]
    ledger: SharedLedger | None = None
    policy: Policy | None = None
    attendance: Attendance | None = None
    times: Times | None = None
    evaluation_seconds: Positive | None = None
    executor: str = "serial"
    jobs: Count | None = None
    directory: Annotated[str | None, Field(exclude=True)] = None

    @pydantic.model_validator(mode="after")
    def _read_tables(self, info: ValidationInfo) -> Self:
        if info.mode == "json":
            source = cast("ProblemSource", self.problem)
            problem = _described(source, self.name, trusted=bool(info.context and info.context["trusted"]))
            object.__setattr__(self, "problem", problem)
            if self.algorithm is not None:
                object.__setattr__(self, "algorithm", read_algorithm(cast("JsonObject", self.algorithm)))
            object.__setattr__(self, "privacy", read_privacy(cast("JsonObject", self.privacy)))
        if not isinstance(self.problem, Problem):
            raise ConfigurationError(f"problem={self.problem!r}: input should be a Problem; make one: Problem(...)")
        if not isinstance(self.privacy, (Privacy, NoPrivacy)):
            raise ConfigurationError(
                f"privacy={self.privacy!r}: input should be Privacy or NoPrivacy; write Privacy(epsilon=...)"
            )
        if self.algorithm is None:
            object.__setattr__(self, "algorithm", default_algorithm(self.privacy.unit))
        require_algorithm(self.algorithm)
        counts = self.problem.n_records
        if self.privacy.unit == "record" and (counts is None or min(counts) < self.privacy.records_per_person):
            raise ConfigurationError(
                f"privacy.unit='record', records_per_person={self.privacy.records_per_person}: problem.n_records="
                f"{counts!r} must state how many records every site holds, at least as many as one person has"
            )
        return self

    def __eq__(self, other: object) -> bool:
        """Two runs are the same if their settings are, wherever their code stands and whatever carries them out."""
        return isinstance(other, Spec) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.digest())

    def to_dict(self) -> JsonObject:
        """Give the run as one table of plain values, every setting written out."""
        return dump_settings(self)

    def departures(self) -> JsonObject:
        """Give what departs from the settings' first defaults: the table that names what was charged.

        No setting that is added later changes it, and no later default of an algorithm's setting. ``from_dict``
        would read it with today's defaults, so it reads ``to_dict``.
        """
        plain = {f.name: f.default for f in fields(self)}
        kept = {key: value for key, value in self.to_dict().items() if value not in (plain[key], [])}
        kept["problem"] = dump_settings(self.problem.table(), defaults=False)
        kept["algorithm"] = algorithm_table(self.algorithm, defaults="first")
        for name in ("privacy", "policy", "attendance", "times"):
            if (given := getattr(self, name)) is not None:
                kept[name] = dump_settings(given, defaults=False)
        return kept

    @staticmethod
    def from_dict(table: Mapping[str, object], *, trusted: bool = False) -> Spec:
        """Read a run from its table; no module of the user's is imported, see ``loaded``.

        Args:
            table: As ``to_dict`` gives it.
            trusted: Import the factory of a problem that leaves its public facts out.

        Raises:
            ConfigurationError: Naming the key, the value and what is allowed.
        """
        try:
            return read_settings(Spec, table, "", {"trusted": trusted})
        except _RaisedError as raised:
            raise raised.error from None

    def loaded(self) -> Spec:
        """Give the run with the objective and the algorithm that its table names, importing their modules.

        Raises:
            ConfigurationError: If there is no such module or function, or its problem is another one.
        """
        source = self.problem.source
        problem = self.problem if source is None else load_problem(source, self.name)
        return replace(self.with_algorithm(), problem=problem)

    def with_algorithm(self) -> Spec:
        """Give the run with the algorithm that its table names, importing its module.

        Raises:
            ConfigurationError: If there is no such class, or it can't be made with the table's settings.
        """
        if isinstance(self.algorithm, ForeignAlgorithm):
            return replace(self, algorithm=self.algorithm.load())
        return self

    def digest(self) -> str:
        """Give the SHA-256 of the settings, which identifies the run for ledger, receipts, sites and resuming.

        Where the code stands, and how many threads or which device carry it out, do not enter. Nor do the
        defaults that settings were published with, so that a release of privbo with another setting more, or
        another default, gives the same digest.
        """
        return hashlib.sha256(json.dumps(self.digested(), sort_keys=True).encode()).hexdigest()

    def digested(self) -> JsonObject:
        """Give the table that ``digest`` hashes: a holder may hash it again."""
        return _identifying(self.departures())

    def identity(self) -> JsonObject:
        """Give the settings that make two runs the same run."""
        return _identifying(self.to_dict())

    def code(self, *also: str) -> CodeKey:
        """Digest the code that makes the run's numbers: its problem's functions, a class of the user's, and ``also``.

        They are named as ``module:function``; an objective that stands in no module gives no digest.
        """
        source = self.problem.source or ProblemSource()
        mine = source.factory or source.objective
        names = [mine, source.earlier, source.enqueued, str(algorithm_table(self.algorithm)["type"]), *also]
        references = [name for name in names if name is not None and ":" in name]
        found = code_key(*references, fingerprint=self.problem.fingerprint or source.fingerprint)
        is_told = mine is not None or self.problem.is_asked
        return found if is_told else replace(found, reason="the objective stands in no module")

    def judged(self, policy: Policy, event: Event | None, paid: Iterable[Event] = ()) -> Decision:
        """Judge the run by a policy, its own or a party's.

        Args:
            policy: The policy.
            event: Everything that would be charged; None where it stands in ``paid`` already.
            paid: Everything that was charged before, on the same people.
        """
        name = str(algorithm_table(self.algorithm)["type"])
        return policy.decide(self.privacy, event, algorithm=name, rounds=self.rounds, paid=paid)

    def hold(self, ledger: Ledger) -> None:
        """Let the run's own policy judge whatever this object of a ledger is to charge, when it is charged."""
        if (policy := self.policy) is not None:
            ledger.gate = lambda book, event: self.judged(policy, event, book.all_paid).require("this policy")

    def require_same(self, other: Spec) -> None:
        """Refuse to go on with a run of other settings.

        Raises:
            RunError: Naming the first setting that differs.
        """
        ours, theirs = self.identity(), other.identity()
        for identity in (ours, theirs):  # a table's order says nothing, but for the space: points are kept by place
            space = cast("JsonObject", cast("JsonObject", identity["problem"]).get("space", {}))
            identity["space's order"] = ", ".join(space)
        for key, value in ours.items():
            if theirs[key] != value:
                raise RunError(
                    f"the run to resume was made with {key} = {value!r}, now it is {theirs[key]!r}; "
                    "resume with the same settings or start a new directory"
                )

    @cached_property
    def played(self) -> Algorithm:
        """The algorithm as the run plays it before its vote: without releases that change too little."""
        return self.algorithm if self._left_out is None else self.algorithm.local()

    def server(self, setting: Setting) -> Server:
        """Make the public side, which ends with a vote where one is asked for.

        Raises:
            ConfigurationError: If the algorithm names no candidates, or the unit of privacy is smaller than a client.
        """
        made = self.played.server(setting)
        return made if self._share is None else CommonServer(made, setting, self._share)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``.

        Raises:
            ConfigurationError: If there is a vote and the algorithm's clients can't judge candidates.
        """
        made = self.played.cohort(setting, clients=clients, evaluate=evaluate, seed=seed)
        if self.final is None:
            return made
        if not isinstance(made, Judging):
            raise ConfigurationError(
                f"final='common': clients of {type(self.played).__name__} can't judge candidates; give its cohort a "
                "judge(broadcast, units)"
            )
        return CommonCohort(cohort=made)

    @property
    def _left_out(self) -> Plan | None:
        """The plan of releases that change too little, which the run does not make; None where it makes them."""
        if not is_optional(self.algorithm) or isinstance(self.privacy, NoPrivacy):
            return None
        # What a run may cost is asked of what it does make.
        privacy = replace(self.privacy, budget=None)
        return left_out(Offer(algorithm=self.algorithm, setting=self.setting(0), privacy=privacy, share=self._share))

    @property
    def plan(self) -> Plan:
        """The run's plan, found without touching any data.

        Raises:
            ConfigurationError: If the settings are impossible.
            BudgetExceeded: If no noise meets the target.
        """
        offer = Offer(algorithm=self.played, setting=self.setting(0), privacy=self.privacy, share=self._share)
        priced, whole = offer.price(), self._left_out
        if whole is None or priced.largest_over_noise is not None:
            return priced
        return replace(priced, largest_over_noise=whole.largest_over_noise)

    @property
    def calls_per_client(self) -> int | None:
        """Most calls of the objective by one client, from public numbers; None where the algorithm does not say."""
        count: Callable[[Setting], int] | None = getattr(self.played, "calls_per_client", None)
        return None if count is None else count(self.setting(0))

    @property
    def remedy(self) -> str | None:
        """Say which epsilon, number of clients or rounds, or horizon would give the run a release; None if it has one.

        It is found by bisection over multiples of what is asked, by public numbers alone.
        """
        offer = Offer(algorithm=self.algorithm, setting=self.setting(0), privacy=self.privacy, share=self._share)
        releases = offer.asks and self._left_out is None
        return None if releases or not isinstance(self.privacy, Privacy) else remedy_of(offer)

    @property
    def _share(self) -> float | None:
        return None if self.final is None else self.final_share

    def evaluator(self, n_clients: int | None = None, **options: Any) -> Evaluator:  # noqa: ANN401 (checked there)
        """Give the batched objective within the run's times, of so many clients in one process; by default of all.

        Raises:
            ConfigurationError: If all of them together may overrun the round.
        """
        limit = None if self.times is None else self.times.of_one(n_clients or self.problem.n_clients)
        return self.problem.evaluator(client_seconds=limit, evaluation_seconds=self.evaluation_seconds, **options)

    @property
    def n_records(self) -> int | None:
        """Records of all sites together, where one record is the unit of privacy; None else."""
        return sum(self.problem.n_records or ()) if self.privacy.unit == "record" else None

    def setting(self, public_seed: int) -> Setting:
        """Give the public facts of the run, which both sides have."""
        problem, records = self.problem, None
        if problem.n_records is not None:
            low, high = problem.score_range
            most = self.privacy.records_per_person
            # Where a client is hidden, so is what it trained: its vector is clipped whatever the model is.
            training = problem.training if self.privacy.unit == "record" else None
            records = Records(counts=problem.n_records, low=low, high=high, per_person=most, training=training)
        return Setting(
            space=self.problem.search_space,
            n_clients=self.problem.n_clients,
            rounds=self.rounds,
            public_seed=public_seed,
            device=self.device,
            unit=self.privacy.unit,
            records=records,
            is_exact=isinstance(self.privacy, NoPrivacy),
            sample_rate=self.privacy.sample_rate or 1.0,
        )


def _identifying(table: JsonObject) -> JsonObject:
    problem = cast("JsonObject", table["problem"])
    kept = {key: value for key, value in table.items() if key not in _MEANS}
    return kept | {"problem": {key: problem[key] for key in _PUBLIC if key in problem}}


def read_privacy(table: Mapping[str, object]) -> Privacy | NoPrivacy:
    """Read a ``[privacy]`` table; ``none = true`` is a baseline without privacy."""
    kind: type[Privacy | NoPrivacy] = NoPrivacy if "none" in table else Privacy
    if "none" in table and (others := sorted(table.keys() & {"epsilon", "noise_multiplier"})):
        raise ConfigurationError(f"privacy.none and privacy.{others[0]} exclude each other; drop one of them")
    return read_settings(kind, table, "privacy")


class _RaisedError(Exception):
    """An error of a user's code, which validation would take for a fault of the table."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _described(source: ProblemSource, default_name: str, *, trusted: bool) -> Problem:
    """The problem as its table describes it, without its objective; loaded at once where the table leaves facts out."""
    if source.factory is not None and (source.n_clients is None or not source.space):
        if trusted:
            try:
                return load_problem(source, default_name)
            except (ValueError, AssertionError) as error:
                raise _RaisedError(error) from error
        raise ConfigurationError(
            f"problem: n_clients and space are not stated, so only importing factory={source.factory!r} would tell; "
            "state them, or add --trust if the code is yours"
        )
    return stated_problem(source, default_name, _elsewhere)


def _elsewhere(client: int, _params: Mapping[str, object]) -> float:
    """The objective where it is only described: a server, a report."""
    raise RunError(f"client {client}'s objective is not loaded here; it lives where the run is carried out")


def read_toml(path: Path) -> JsonObject:
    """Read a TOML file as one table.

    Raises:
        ConfigurationError: If the file can't be read.
    """
    return parse_toml(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """Read a configuration file.

    Raises:
        ConfigurationError: If it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a configuration file") from None


def parse_toml(content: bytes, name: str) -> JsonObject:
    """Parse the bytes of a TOML file as one table.

    Raises:
        ConfigurationError: If they are not TOML, with the file's name.
    """
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets as deep
        raise ConfigurationError(f"{name} is not TOML: {error}") from None


def read_spec(path: Path, overrides: Iterable[str] = (), *, load: bool = True) -> Spec:
    """Read a run from a TOML file with ``key.path=value`` overrides, and load the code it names.

    Args:
        path: The file.
        overrides: Set on top.
        load: Import that code; without it the run can be priced, not played.

    Raises:
        ConfigurationError: If the file can't be read or a value is not allowed.
    """
    table = read_toml(path)
    for override in overrides:
        key, separator, text = map(str.strip, override.partition("="))
        if not separator or not key:
            raise ConfigurationError(f"--set {override!r}: write key.path=value, such as privacy.epsilon=2")
        value: object = text
        with suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"value = {text}")["value"]
        table = with_overrides(table, {key: value})
    spec = Spec.from_dict(table, trusted=load)
    if spec.ledger is not None:
        spec = replace(spec, ledger=spec.ledger.beside(path))
    return spec.loaded() if load else spec


def with_overrides(table: Mapping[str, object], overrides: Mapping[str, object]) -> JsonObject:
    """Give a table with dotted keys replaced; the table itself stays as it is.

    Raises:
        ConfigurationError: If a key goes through a value.
    """
    content = {key: with_overrides(value, {}) if isinstance(value, Mapping) else value for key, value in table.items()}
    for key, value in overrides.items():
        *tables, last = key.split(".")
        inner = content
        for name in tables:
            found = inner.setdefault(name, {})
            if not isinstance(found, dict):
                raise ConfigurationError(f"{key!r}: {name!r} is a value in the configuration, not a table")
            inner = found
        inner[last] = value
    return cast("JsonObject", content)


def schema() -> JsonObject:
    """Give the JSON schema of a configuration file, for editors; ``privbo schema`` prints it."""
    found: dict[str, Any] = settings_schema(Spec)
    kinds: dict[str, Any] = {name: settings_schema(kind) for name, kind in algorithms().items()}
    privacies: list[Any] = [settings_schema(Privacy), settings_schema(NoPrivacy)]
    for part in (*kinds.values(), *privacies):
        found.setdefault("$defs", {}).update(part.pop("$defs", {}))
    for name, part in kinds.items():
        part.update(properties=part["properties"] | {"type": {"const": name}}, required=["type"])
    own = {"type": "object", "properties": {"type": {"pattern": ".+:.+"}}, "required": ["type"]}
    found["properties"] |= {"algorithm": {"oneOf": [*kinds.values(), own]}, "privacy": {"oneOf": privacies}}
    return found | {"title": "privbo run"}
