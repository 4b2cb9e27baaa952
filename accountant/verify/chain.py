"""A ledger's rows as an auditor reads them: a second, small implementation, which believes no program that wrote them.

The chain of digests is followed from the ledger's identity on. Every row has to mean what the ledger's policy says,
and every charge has to have a slot of the plan that its run reserved before it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from accountant.verify.events import Adjacency, clients_of, counted, parts_of
from accountant.verify.reading import (
    BundleError,
    Json,
    hexadecimal,
    number,
    one_of,
    quoted,
    rows,
    sha256_of,
    table,
    text,
    whole,
)

NOISE_SOURCES = ("secure", "exact", "simulation", "none")
_UNITS = ("client", "record", "reward")
_MEANING = ("unit", "adjacency", "population", "n_clients")
_SCHEMA = 1

Paid = Counter[str]
"""Numbers of events, each as the canonical JSON that the ledger's rows hold."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A plan, or a recovery, as one row of the chain reserves it.

    Attributes:
        run: Name of the run.
        sequence: Position of its row.
        events: Everything that may be charged, with counts.
        releases: Number of releases; one of several parts, such as trainings and the sum of their scores, is one.
        settings: Digest of the run's settings.
        plan: Digest of what is bound besides the settings: plan, seed, date and caveat.
        delta: Where the run asked for epsilon.
        noise_source: Where the noise is said to come from.
        stopping: When the run may end.
    """

    run: str
    sequence: int
    events: Paid
    releases: int
    settings: str
    plan: str
    delta: float
    noise_source: str
    stopping: str

    @property
    def slots(self) -> Paid:
        """Number of charges that may name each event; a random allocation is named by all of its rounds."""
        return Counter({event: count * _rounds(event) for event, count in self.events.items()})


@dataclass(kw_only=True)
class Chain:
    """What a ledger's rows say.

    Attributes:
        ledger_id: Name of the ledger.
        policy: What its numbers mean, as its genesis binds it.
        heads: Digests of the rows, in order.
        plans: By run.
        recoveries: Reservations that charge lost releases once more.
        charged: By release, the run that it was charged to.
        outside: By run, charges that no plan covered.
        stored: By release that is stored, position and digest of its row.
    """

    ledger_id: str
    policy: Json
    heads: list[str] = field(default_factory=list)
    plans: dict[str, Declared] = field(default_factory=dict)
    recoveries: list[Declared] = field(default_factory=list)
    charged: dict[str, str] = field(default_factory=dict)
    outside: dict[str, Paid] = field(default_factory=dict)
    stored: dict[str, tuple[int, str]] = field(default_factory=dict)
    _left: dict[str, Paid] = field(default_factory=dict)

    @property
    def runs(self) -> set[str]:
        """Names of the runs that reserved or charged."""
        return {*self.plans, *self.outside, *(each.run for each in self.recoveries)}

    def made(self, run: str) -> int:
        """Number of a run's releases that were charged."""
        return sum(named == run for named in self.charged.values())

    def digest_at(self, sequence: int) -> str | None:
        """Digest of the row at a position, None beyond the chain."""
        return self.heads[sequence - 1] if 0 < sequence <= len(self.heads) else None

    def paid_by(self, run: str) -> Paid:
        """Everything that a run committed to, and what was published under a name that begins so."""
        beside = (name for name in self.runs if name == run or name.startswith(f"{run}-"))
        return sum((self._paid({name}) for name in beside), Paid())

    @property
    def paid(self) -> Paid:
        """Everything that is paid: every reservation whole, and charges outside of any."""
        return self._paid(self.runs)

    def _paid(self, runs: set[str]) -> Paid:
        once = sum((self.plans[run].events for run in runs & self.plans.keys()), Paid())
        once += sum((self.outside[run] for run in runs & self.outside.keys()), Paid())
        return sum((self.priced(each.events) for each in self.recoveries if each.run in runs), self.priced(once))

    def priced(self, events: Paid) -> Paid:
        """What such events cost one unit together: where none enters two releases, the one with the least noise."""
        return Paid({min(events, key=_least_noise): 1}) if events and self.policy.get("disjoint", False) else events

    def admit(self, name: str, sequence: int, body: bytes) -> None:
        """Take the next row in.

        Raises:
            BundleError: If it contradicts the policy or what stands before it.
        """
        content = table(json.loads(body), f"row {sequence}")
        if any(content.get(key) != self.policy[key] for key in _MEANING):
            raise BundleError(f"row {sequence} contradicts the ledger's policy")
        if content.get("row") != "reservation":
            self._charge(content, name, sequence)
            return
        found = _declared(content, sequence)
        self._require_population(found.events, sequence)
        if one_of(content["kind"], "kind", ("plan", "recovery")) == "recovery":
            self.recoveries.append(found)
            return
        if found.run in self.plans or found.run in self.charged.values():
            raise BundleError(f"row {sequence} reserves the run {quoted(found.run)} again, or after a release of it")
        self.plans[found.run], self._left[found.run] = found, found.slots

    def _charge(self, content: Json, name: str, sequence: int) -> None:
        run, events = text(content["run"], "run"), parts_of(content["event"])
        self._require_population(events, sequence)
        source = one_of(content["noise_source"], "noise source", NOISE_SOURCES)
        if content["release_id"] != name or name in self.charged:
            raise BundleError(f"row {sequence} charges {quoted(name)} twice, or under another name")
        if (plan := self.plans.get(run)) is None:
            self.outside[run] = self.outside.get(run, Paid()) + events
        elif source != plan.noise_source or not events <= self._left[run]:
            raise BundleError(f"charge {sequence} of {quoted(run)} is not in the plan that it reserved")
        else:
            self._left[run] -= events
        self.charged[name] = run

    def _require_population(self, events: Iterable[str], sequence: int) -> None:
        n_clients = self.policy["n_clients"]
        sampled = {count for event in events for count in clients_of(json.loads(event))}
        if n_clients is not None and sampled - {n_clients}:
            raise BundleError(f"row {sequence} samples from {max(sampled)} clients, the ledger speaks of {n_clients}")


def read_chain(ledger: object) -> Chain:
    """Read a bundle's ledger.

    Raises:
        BundleError: Naming the first row that does not follow.
    """
    given = table(ledger, "ledger", ("ledger_id", "policy", "charges", "releases"))
    identity = (text(given["ledger_id"], "ledger_id"), text(given["policy"], "policy"))
    found = Chain(ledger_id=identity[0], policy=_policy(identity[1]))
    for sequence, name, body, digest in _linked(given["charges"], "charges", identity):
        found.admit(name, sequence, body)
        found.heads.append(digest)
    for sequence, name, _, digest in _linked(given["releases"], "releases", identity):
        if found.stored.setdefault(name, (sequence, digest)) != (sequence, digest):
            raise BundleError(f"release {quoted(name)} is stored twice")
    return found


def require_paid(chain: Chain) -> None:
    """Refuse a release that is stored and was never charged."""
    for name in chain.stored:
        if name not in chain.charged:
            raise BundleError(f"release {quoted(name)} was stored and never charged")


def _linked(lines: object, kind: str, identity: tuple[str, str]) -> Iterable[tuple[int, str, bytes, str]]:
    before = sha256_of(f"privbo-ledger-{_SCHEMA}", kind, *identity)
    for place, line in enumerate(rows(lines, kind), 1):
        if len(rows(line, f"row {place}")) != 5:
            raise BundleError(f"row {place} of the {kind} has not five values")
        sequence, name, encoded, previous, digest = line
        body = b64decode(text(encoded, "body"), validate=True)
        sound = sha256_of(before, str(place), text(name, "name"), body) == digest
        if (
            not sound
            or whole(sequence, "sequence") != place
            or previous != before
            or b64encode(body) != encoded.encode()
        ):
            raise BundleError(
                f"row {place} of the {kind} does not match its digest or does not follow what is before it"
            )
        before = digest
        yield place, name, body, digest


def _policy(written: str) -> Json:
    policy = table(
        json.loads(written), "policy", (*_MEANING, "budget"), optional=("disjoint", "protects", "records_per_person")
    )
    one_of(policy["unit"], "unit", _UNITS)
    one_of(policy["adjacency"], "adjacency", tuple(Adjacency))
    if (bound := policy["budget"]) is not None:
        number(table(bound, "budget").get("epsilon"), "epsilon")
        number(bound.get("delta"), "delta")
    if not text(policy["population"], "population"):
        raise BundleError("the population has no name")
    if policy["n_clients"] is not None and whole(policy["n_clients"], "n_clients") < 1:
        raise BundleError("n_clients is 0")
    disjoint = policy.get("disjoint", False)
    if not isinstance(disjoint, bool) or (disjoint and policy["unit"] != "reward"):
        raise BundleError(f"disjoint is {quoted(disjoint)}, and the unit one {policy['unit']}: rewards alone can be")
    return policy


def _declared(content: Json, sequence: int) -> Declared:
    events: Paid = Counter()
    releases = 0
    for event, count in rows(content["events"], "events"):
        times, found = counted(count, "count of an event"), parts_of(event)
        events.update({part: times * n for part, n in found.items()})
        releases += times * (_rounds(next(iter(found))) if found.total() == 1 else 1)
    delta = number(content["delta"], "delta")
    if not 0 < delta < 1:
        raise BundleError(f"row {sequence} quotes delta {quoted(delta)}, which does not lie in (0, 1)")
    return Declared(
        run=text(content["run"], "run"),
        sequence=sequence,
        events=events,
        releases=releases,
        settings=hexadecimal(content["settings"], "settings", 64),
        plan=hexadecimal(content["plan"], "plan", 64),
        delta=delta,
        noise_source=one_of(content["noise_source"], "noise source", NOISE_SOURCES),
        stopping=one_of(content["stopping"], "stopping", ("any time",)),
    )


def _rounds(event: str) -> int:
    content = json.loads(event)
    return counted(content["n_rounds"], "n_rounds") if content["type"] == "random-allocation-gaussian" else 1


def _least_noise(event: str) -> float:
    content = json.loads(event)
    if content["type"] == "non-private":
        return 0.0
    if content["type"] != "gaussian":
        raise BundleError(f"{quoted(event)} has no price where releases share no unit")
    return number(content["noise_multiplier"], "noise_multiplier")
