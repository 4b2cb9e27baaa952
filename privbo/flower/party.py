"""A site or guardian as the party that decides for itself: its settings, the files that it approved, its policy.

A site keeps its own ``site.toml`` and shows it to no other party (a guardian a ``guardian.toml``, without a problem)::

    name = "north"
    directory = "/var/lib/privbo"  # state, a ledger, and a record of everything it ever sent
    [policy]                       # without one the site refuses every question
    epsilon = 4.0                  # over all runs together on this site's people
    delta = 1e-6
    [[approved]]                   # files of a run that it may answer; written by `privbo flower approve`
    run = "64 hexadecimal digits"          # SHA-256 of run.toml
    federation = "64 hexadecimal digits"   # SHA-256 of federation.toml
    [problem]                      # where this site's objective is; by default the run's
    factory = "ward_model:problem"
    arguments = { data = "/data/north" }

The app's files come from the server with the run, so they are no copy of one's own: the party pins their digests. From
the files that it has approved it computes the plan, its price, its noise multiplier and every round's request. No
number that decides its protection is read from a message. Python code next to the files is not pinned: a party that
ships an app's code is trusted with everything that the code can reach.

    DIR/refused.jsonl           every refusal: run, field, what this party computes, what was declared
    DIR/_policy/ledger.sqlite   the total of all runs on its people; no run's folder can stand there
    DIR/_policy/answered/       each run's answered rounds: one whose stored answer is gone is not answered anew

The ledger speaks of one client, so the number of clients may change between runs; its total is an upper bound for a
client that joined later. The party prices a run's plan itself and charges all of it before anything is evaluated,
opened or sent:

| the party's process dies | charged | sent | asked again |
|---|---|---|---|
| before the reservation commits | nothing | nothing | judged and reserved as new |
| after it, before an answer leaves | the whole plan | nothing | known: not charged again |
| later | the whole plan | what was sent | known: the same bytes, or, where they are gone, refused |

So a crash may count too much and never too little. A run that goes on is judged again: a policy that became stricter
holds from the next question on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from accountant.events import Event, compose, parts, to_dict
from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger.book import Declaration
from accountant.ledger.chain import RESERVATION, Row
from accountant.ledger.durable import sync_folder
from privbo.door.mechanism import PrivateSum
from privbo.flower.registry import (
    FEDERATION_FILE,
    RUN_FILE,
    Federation,
    federation_of,
    named_spec,
    require_guardians,
    spec_of,
)
from privbo.guardians.ciphertexts import Call, question_digest
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision, Policy
from privbo.protocol.errors import ConfigurationError, PolicyError, RefusedError, RunError
from privbo.protocol.files import OnceLines, alone, append_line, now, read_lines, write_atomically
from privbo.protocol.messages import Broadcast, IntArray, Request, Server, request_of
from privbo.protocol.problem import ProblemSource
from privbo.protocol.settings import JsonObject, Sequence, read_settings, settings
from privbo.runs.clients import require_device
from privbo.runs.evidence import declared_by, plan_name
from privbo.runs.manifest import derive_seed
from privbo.runs.opening import plan_run
from privbo.runs.sources import ForeignAlgorithm, load_problem, require_code, require_same
from privbo.runs.spec import Spec, parse_toml, read_bytes, read_toml

POPULATION = "one client"
Digest: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_DECLARED = ("run", "kind", "events", "settings", "delta", "noise_source", "stopping")
_DIGITS = 1e-9  # relative; two machines' arithmetic
_SHOWN = 300  # characters of a foreign value that are kept
_ANSWERED = ("*/sent/*.npz", "*/rounds/*.json", "*/answered/*.jsonl")


@settings(table="approved")
class Approved:
    """One ``[[approved]]`` table of a party: digests of files that its people have read."""

    run: Digest
    federation: Digest


@settings(table="party")
class Party:
    """A party's own settings, checked for shape; private to it.

    Without ``policy`` it refuses every question. It serves runs of approved files alone.
    """

    role: ClassVar[str]
    name: str
    directory: str
    policy: Policy | None = None
    approved: Sequence[Approved] = ()


@settings(table="site")
class SiteSettings(Party):
    """``site.toml``."""

    role: ClassVar[str] = "site"
    problem: ProblemSource | None = None


@settings(table="guardian")
class GuardianSettings(Party):
    """``guardian.toml``."""

    role: ClassVar[str] = "guardian"


P = TypeVar("P", bound=Party)


def read_settings_of(kind: type[P], path: Path) -> P:
    """Read a party's own settings; its directory is taken relative to the file.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    own = read_settings(kind, read_toml(path), str(path))
    return replace(own, directory=str(path.parent.absolute() / own.directory))


def read_site(path: Path) -> SiteSettings:
    """A site's own settings; see ``read_settings_of``."""
    return read_settings_of(SiteSettings, path)


def read_party(path: Path) -> Party:
    """Read the settings of a site or guardian; the file's name says which."""
    return read_settings_of(GuardianSettings, path) if path.name.startswith("guardian") else read_site(path)


@dataclass(frozen=True, kw_only=True)
class AppFiles:
    """Contents of the two files that describe a run.

    Attributes:
        home: Folder of the app.
        run: Of ``run.toml``.
        federation: Of ``federation.toml``.
    """

    home: Path
    run: bytes
    federation: bytes

    @classmethod
    def read(cls, home: Path) -> AppFiles:
        """Read them once, so that what is checked is what is used.

        Raises:
            ConfigurationError: If one is missing.
        """
        return cls(home=home, run=read_bytes(home / RUN_FILE), federation=read_bytes(home / FEDERATION_FILE))

    @property
    def digests(self) -> Approved:
        """What a party pins of them."""
        return Approved(
            run=hashlib.sha256(self.run).hexdigest(), federation=hashlib.sha256(self.federation).hexdigest()
        )


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """A run as one party computes it.

    Attributes:
        party: The site or guardian.
        files: The app's files.
        spec: The run's public side.
        federation: Sites, guardians and waiting times.
        plan: Everything that will be released, and its price.
    """

    party: Party
    files: AppFiles
    spec: Spec
    federation: Federation
    plan: Plan
    _servers: dict[int, Server] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def own_spec(self) -> Spec:
        """The run with the site's own problem; loads the site's code and data.

        Raises:
            ConfigurationError: If the problem is another one than the run's, or the device is not here.
        """
        if not isinstance(self.party, SiteSettings):
            raise RunError("a guardian has no clients, and loads no problem")
        spec, own = self.spec, own_problem(self.party)
        require_device(spec.device)
        if own is None:
            return spec.loaded()
        found = load_problem(own, spec.name)
        # Of records, too: what one of them moves is computed from the run's own range.
        of_records = ("n_records", "score_range", "training") if spec.privacy.unit == "record" else ()
        stated = spec.problem.table()
        require_same("this site's problem", found, stated, ("space", "constraints", "n_clients", *of_records))
        return replace(spec, problem=found)

    @cached_property
    def _digest(self) -> str:
        return self.spec.digest()

    @property
    def clients_seed(self) -> int | None:
        """Seed of the clients' own randomness in a simulation that names one; None where each site draws its own."""
        if self.spec.seed is None or self.plan.noise_source not in {"simulation", "none"}:
            return None
        return derive_seed(self.spec.seed, "clients")

    def clients(self) -> IntArray:
        """Give the numbers of the site's own clients."""
        return np.array(self.federation.clients[self.party.name], dtype=np.int64)

    def declared(self, run: str) -> Declaration:
        """Declare the plan as this party's own ledger is to bind it."""
        return declared_by(self.plan, run=run, settings=self._digest)

    def counted(self, run: str) -> Declaration:
        """Declare what the party's policy counts: of rewards, which enter one release of a run, the most expensive."""
        declared = self.declared(run)
        return replace(declared, events=parts(self.plan.event)) if self.plan.unit == "reward" else declared

    def call(self, run: str, round_: int, request: Request) -> tuple[Call, PrivateSum]:
        """Name a round as clients and guardians must all mean it, and give the mechanism that answers it.

        Raises:
            RunError: If the run has no guardians.
        """
        mechanism = self.plan.mechanism(request)
        if not isinstance(mechanism, PrivateSum):
            raise RunError("a plain sum has no guardians")
        question = question_digest(mechanism, request)
        return Call(run=run, round=round_, plan=plan_name(self.declared(run)), question=question), mechanism

    def request(self, broadcast: Broadcast, *, public_seed: int, released: bool) -> Request | None:
        """Compute what a round asks for, from its broadcast alone; None where nothing is sent.

        Raises:
            RefusedError: If the message says otherwise, or the seed is not the run's.
            ConfigurationError: If no round of this run looks like it.
        """
        if broadcast.round < 0:  # an index from the end, to a list
            raise RefusedError("round", expected="0 or more", found=broadcast.round)
        seed = self.spec.seed
        if seed is not None and public_seed != (own := derive_seed(seed, "public")):
            raise RefusedError("public_seed", expected=own, found=public_seed)
        if public_seed not in self._servers:
            self._servers.clear()
            self._servers[public_seed] = self.spec.server(self.spec.setting(public_seed))
        request = request_of(self._servers[public_seed], broadcast, released=released)
        if (request is not None) != released:
            raise RefusedError("released", expected=request is not None, found=released)
        return request

    def event(self, request: Request | None, earlier: Mapping[str, int]) -> Event | None:
        """Give the event of a release that the plan has a place for; None in a round of local work.

        Args:
            request: Of the round.
            earlier: Number of releases by event (``event_name``) in all other rounds that were answered.

        Raises:
            RefusedError: If the plan has no place left for it.
        """
        if request is None:
            return None
        event, slots = self.plan.mechanism(request).event(), Counter[str]()
        for each, count in self.declared("run").slots.items():
            slots[event_name(each)] += count
        name = event_name(event)
        planned = min(slots[event_name(part)] // count for part, count in parts(event))
        if (made := earlier.get(name, 0) + 1) > planned:
            raise RefusedError(f"releases of {event}", expected=f"at most {planned}", found=made)
        return event

    def require_ledger(self, run: str, round_: int, event: Event | None, plan: str, rows: list[Row]) -> None:
        """Hold a run's plan and a round's charge among rows of the server's ledger to what this party computes.

        Args:
            run: Name of the run.
            round_: The round.
            event: What the round's release costs; None in a round of local work.
            plan: Digest of the row that the server names as the run's plan.
            rows: Rows that were shown; the plan is among those that are shown first.

        Raises:
            RefusedError: Naming the first field that differs.
        """
        for row in rows:
            content = json.loads(row.body)
            of_run = (content.get("row"), content.get("run")) == (RESERVATION, run)
            # A recovery pays once more for what was lost.
            if row.digest == plan or (of_run and content.get("kind") != "recovery"):
                self.require_terms(content, run=run, whose="ledger's")
            if event is not None and row.release_id == f"{run}/{round_}":
                expected, found = to_dict(event), content.get("event")
                if not _alike(expected, found):
                    raise RefusedError("ledger's charge", expected=expected, found=found)

    def require_terms(self, found: Mapping[str, object], *, run: str = "", whose: str) -> None:
        """Hold what another party states of the run to what this one computes.

        Args:
            found: Its terms, and perhaps more.
            run: Name of the run; none before it is made.
            whose: Who states them, for the message.

        Raises:
            RefusedError: Naming the first field that differs.
        """
        for name, expected in terms_of(self.plan, settings=self._digest, run=run).items():
            if not _alike(expected, found.get(name)):
                raise RefusedError(f"{whose} {name}", expected=expected, found=found.get(name))

    def require_ready(self, found: Mapping[str, object]) -> None:
        """Refuse a run that this party would not answer; no client's value decides, and nothing is written.

        A site's objective is looked for and its source parsed; nothing of it is executed, since a module may read
        data when it is imported. The run's algorithm is public code, imported here once the policy allows it.

        Args:
            found: The run's terms as the server states them before it makes the run.

        Raises:
            PolicyError: If the party's policy refuses it.
            RefusedError: If the server computes another run from the approved files.
            ConfigurationError: If the party is none of the federation, its settings are impossible, or its code is not
                found.
        """
        judged(self).require(f"this {self.party.role}")
        self.require_terms(found, whose="server's")
        if isinstance(self.party, SiteSettings):
            require_code(own_problem(self.party) or self.spec.problem.table())


def terms_of(plan: Plan, *, settings: str, run: str = "") -> JsonObject:
    """Give what binds a run as every party computes it from public settings: its events, settings and delta."""
    own = declared_by(plan, run=run, settings=settings).to_dict()
    terms = {"unit": plan.unit, "adjacency": plan.adjacency.value, "n_clients": plan.n_clients}
    return {name: own[name] for name in _DECLARED} | terms


def _alike(expected: object, found: object) -> bool:
    """Tell whether two JSON values are the same, but for the last digits of numbers that two machines computed."""
    match expected, found:
        case dict(), dict():
            return expected.keys() == found.keys() and all(_alike(expected[name], found[name]) for name in expected)
        case list(), list():
            return len(expected) == len(found) and all(map(_alike, expected, found))
        case (bool(), _) | (_, bool()):
            return expected is found
        case ((int() | float()), (int() | float())):
            return math.isclose(expected, found, rel_tol=_DIGITS)
        case _:
            return expected == found


def event_name(event: Event) -> str:
    """Give an event as one line of JSON, by which two are compared."""
    return json.dumps(to_dict(event), sort_keys=True)


def approved_run(home: Path, party: Party) -> PartyRun:
    """Read a run from files that the party has approved.

    Raises:
        PolicyError: If it has no policy.
        RefusedError: If it has not approved them.
        ConfigurationError: If they are impossible.
    """
    required_policy(party)
    files = AppFiles.read(home)
    if (found := files.digests) not in party.approved:
        remedy = f"read it, then: privbo flower approve {party.role}.toml APP"
        for name in ("run", "federation"):
            expected, own = [getattr(one, name) for one in party.approved], getattr(found, name)
            if own not in expected:
                raise RefusedError(f"{name}.toml", expected=expected or "no approved file", found=own, remedy=remedy)
        both = (found.run, found.federation)
        one = "run.toml with federation.toml"
        raise RefusedError(one, expected="a pair approved together", found=both, remedy=remedy)
    return run_of(files, party)


def run_of(files: AppFiles, party: Party) -> PartyRun:
    """Compute a run from its files, approved or not; kept until the files or the party's settings change.

    Raises:
        PolicyError: If they name code that is imported to price the run, and the party's policy does not allow it.
        ConfigurationError: If they are impossible, or their federation does not name the party.
    """
    if not _kept or (_kept[0].files, _kept[0].party) != (files, party):
        named = named_spec(files.run)
        if isinstance(named.algorithm, ForeignAlgorithm):  # all but the price is judged before its module is imported
            named.judged(required_policy(party), None).require(f"this {party.role}")
        federation = federation_of(files.federation).checked(named.problem.n_clients)
        known = federation.clients if party.role == "site" else federation.guardians
        if party.name not in known:
            raise ConfigurationError(
                f"{party.role}.toml: name={party.name!r} is no {party.role} of federation.toml, which has "
                f"{', '.join(known) or 'none'}; a guardian's own file has a name that begins with guardian"
            )
        spec, plan = _priced(files.home, files.run)
        require_guardians(federation, spec.privacy)
        _kept[:] = [PartyRun(party=party, files=files, spec=spec, federation=federation, plan=plan)]
    return _kept[0]


_kept: list[PartyRun] = []  # the latest, with the site's code and data


@lru_cache(maxsize=4)
def _priced(home: Path, content: bytes) -> tuple[Spec, Plan]:
    """The run's public side: where one process plays a thousand sites it is priced once for all of them."""
    spec = spec_of(home, content)
    return spec, plan_run(spec)


def own_problem(site: SiteSettings) -> ProblemSource | None:
    """Give the problem that a site's settings name; None where they leave it to the run.

    Raises:
        ConfigurationError: If they name an objective alone.
    """
    own = site.problem
    if own is not None and own.factory is None and (own.n_clients is None or not own.space):
        raise ConfigurationError(
            f"site.toml of {site.name}: [problem] names an objective without the run's n_clients and space; repeat "
            "both there as run.toml states them, or name a factory"
        )
    return own


def keep_refusal(party: Party, run: str, error: BaseException) -> None:
    """Write down a refusal at the party that refused, for its own people."""
    row = {"time": now(), "run": run[:_SHOWN], "error": type(error).__name__}
    if isinstance(error, RefusedError):
        row |= {"field": error.field, "expected": repr(error.expected)[:_SHOWN], "found": repr(error.found)[:_SHOWN]}
    folder = Path(party.directory)
    folder.mkdir(parents=True, exist_ok=True)
    append_line(folder / "refused.jsonl", row | {"words": str(error)[: 4 * _SHOWN]})


def approve_files(path: Path, party: Party, files: AppFiles) -> bool:
    """Append the files' digests to a party's settings; False where they stand there already."""
    found = files.digests
    if found in party.approved:
        return False
    table = f'[[approved]]\nrun = "{found.run}"\nfederation = "{found.federation}"\n'
    content = f"{path.read_text(encoding='utf-8').rstrip()}\n\n{table}".encode()
    parse_toml(content, f"{path} with a table [[approved]]")  # an ``approved = []`` takes none
    write_atomically(path.resolve(), content, mode=path.stat().st_mode & 0o777)
    return True


def ledger_path(party: Party) -> Path:
    """Path of the ledger of all runs at a party."""
    return Path(party.directory) / "_policy" / "ledger.sqlite"


def required_policy(party: Party) -> Policy:
    """Give a party's policy.

    Raises:
        PolicyError: If its settings have none.
    """
    if party.policy is None:
        raise PolicyError(
            f"this {party.role} refuses every question: {party.role}.toml has no [policy]; write one with epsilon and "
            "delta, the bound on all runs together on its people"
        )
    return party.policy


def judged(run: PartyRun) -> Decision:
    """Judge a run that has not begun, for the party's own eyes; writes nothing.

    Raises:
        PolicyError: If the party has no policy.
        ConfigurationError: If policy and ledger disagree.
        RunError: If the ledger is gone though the party has answered.
    """
    with _opened(run.party, None) as ledger:
        return _decision(run, ledger)


def admit(run: PartyRun, name: str, *, answered: Set[int]) -> None:
    """Judge a run that asks something, and charge its whole plan to the party's ledger; durable on return.

    Args:
        run: As the party computes it.
        name: The name that the server gives it.
        answered: Rounds of the run of which the party's answers are stored.

    Raises:
        PolicyError: If the party refuses the run; nothing was evaluated.
        ConfigurationError: If policy and ledger disagree.
        RunError: If the ledger does not know a run that the party has answered, or knows it with other settings, or
            an answer that left is not stored any more.
    """
    party, path = run.party, ledger_path(run.party)
    required_policy(party)
    with alone(path.parent), _opened(party, path) as ledger:
        known = ledger.book().plans.get(name)
        if known is not None and known.declared.settings != run.declared(name).settings:
            raise RunError(f"run {name!r} was charged with other settings than it has now; it is not answered")
        private = run.spec.privacy.noise_source != "none"
        if known is None and answered and private:
            raise RunError(
                f"{path} does not know run {name!r}, which this {party.role} has answered; restore it from a copy"
            )
        left = {row["round"] for row in read_lines(_answered_path(party, name))}
        if gone := sorted(left - answered):
            raise RunError(
                f"the answer to round {gone[0]} of run {name!r} has left this {party.role} and is gone from "
                f"{Path(party.directory) / name}; restore that folder from its newest copy, or begin another run"
            )
        _decision(run, ledger, is_new=known is None).require(f"this {party.role}")
        if known is None and private:
            ledger.reserve(run.counted(name))


def keep_answered(party: Party, run: str, round_: int) -> None:
    """Write down, durably and before it leaves, that a stored answer is about to leave."""
    path = _answered_path(party, run)
    path.parent.mkdir(exist_ok=True)
    sync_folder(path.parent.parent)
    OnceLines(path=path, key="round", durable=True).add({"round": round_})


def _answered_path(party: Party, run: str) -> Path:
    return ledger_path(party).with_name("answered") / f"{run}.jsonl"


def _decision(run: PartyRun, ledger: Ledger, *, is_new: bool = True) -> Decision:
    event = compose(run.counted("run").events) if is_new else None
    return run.spec.judged(required_policy(run.party), event, ledger.book().all_paid)


@contextmanager
def _opened(party: Party, made: Path | None) -> Iterator[Ledger]:
    """The party's ledger, held to its policy; before its first answer, and never after it, a new one may be made."""
    policy, path = required_policy(party), ledger_path(party)
    if path.exists():
        opened = Ledger.open(path)
    elif any(any(path.parent.parent.glob(answers)) for answers in _ANSWERED):
        raise RunError(f"{path} is gone though this {party.role} has answered; restore it from a copy")
    else:
        opened = Ledger.create(made, policy.ledger_policy(POPULATION))
    with opened as ledger:
        _require_bound(party, policy, ledger)
        yield ledger


def _require_bound(party: Party, policy: Policy, ledger: Ledger) -> None:
    """Hold the policy to the bound that the ledger was made with; a smaller epsilon is stricter and may stand."""
    kept, asked = ledger.policy.budget, policy.budget
    same = kept is not None and (kept.delta, kept.rule) == (asked.delta, asked.rule) and asked.epsilon <= kept.epsilon
    meant = policy.ledger_policy(ledger.policy.population)
    if kept is None or not same or replace(meant, budget=kept) != ledger.policy:
        held = (
            "no bound" if kept is None else f"epsilon = {kept.epsilon:g}, delta = {kept.delta:g}, rule = '{kept.rule}'"
        )
        raise ConfigurationError(
            f"policy: epsilon={policy.epsilon:g}, delta={policy.delta:g}, rule={policy.rule!r}, {_whom(meant)}; "
            f"the ledger of this {party.role}'s runs was made with {held}, {_whom(ledger.policy)}, and a "
            "bound over all runs is never raised; write these back, or a smaller epsilon"
        )


def _whom(policy: LedgerPolicy) -> str:
    records = f"protects = '{policy.protects}', records_per_person = {policy.records_per_person}"
    return f"unit = '{policy.unit.value}', {records}"
