"""The rows of a ledger's chain as what they mean: reservations, charges, and what both commit to.

A reservation says what a run will release, and is bound into the chain before the first
release. It is paid for whole when it is made and its price never falls: a run that stops
early leaves slots that it may still spend, not budget that comes back (when a run stops may
depend on what it saw). What is quoted of a run is what stands here, never what a file beside
the ledger says.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias, cast

from accountant.errors import LedgerError, PrivacyError
from accountant.events import Composed, Event, Json, compose, from_dict, most_expensive, of_one_run, parts, to_dict
from accountant.ledger.chain import RESERVATION, Position, Row
from accountant.ledger.policy import Entry, LedgerPolicy, read_entry, unwritten_entry

Kind: TypeAlias = Literal["plan", "recovery"]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A run as it is declared before its first release.

    Attributes:
        run: Name of the run.
        events: Every release that may be made, with its count.
        settings: Digest of the run's settings.
        plan: Digest of the run's plan as it is written down beside the ledger.
        delta: Where the run quotes epsilon, in (0, 1).
        noise_source: "secure", "exact", "simulation" or "none".
        stopping: When the run may end: ``"any time"`` (the whole plan is paid) is the only rule so far.
        kind: ``"plan"``, or ``"recovery"``: releases that a lost ledger had been charged for, once more.
        lost: Of a recovery: the charges that evidence beside the ledger names and its chain lacks.
    """

    run: str
    events: tuple[tuple[Event, int], ...]
    settings: str
    plan: str
    delta: float
    noise_source: str
    stopping: Literal["any time"] = "any time"
    kind: Kind = "plan"
    lost: tuple[Position, ...] = ()

    @property
    def slots(self) -> Counter[Event]:
        """Number of releases that may name each event; one that pays for several is named by all of them."""
        found: Counter[Event] = Counter()
        for event, count in self.events:
            for part, times in parts(event):
                found[part] += count * times * part.n_releases
        return found

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self.slots.total()

    def to_dict(self) -> Json:
        """Plain values, as stored."""
        return vars(self) | {
            "events": [[to_dict(event), count] for event, count in self.events],
            "lost": [list(position) for position in self.lost],
        }

    @staticmethod
    def from_dict(content: Mapping[str, object]) -> Declaration:
        """The declaration that ``to_dict`` described."""
        given = dict(content)
        events = cast("list[tuple[dict[str, object], int]]", given.pop("events"))
        lost = cast("list[Position]", given.pop("lost"))
        return Declaration(
            events=tuple((from_dict(event), int(count)) for event, count in events),
            lost=tuple((int(sequence), str(digest)) for sequence, digest in lost),
            **cast("dict[str, str]", given),  # type: ignore[arg-type]  # checked by whoever compares it
        )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A declaration with its place in the ledger's chain.

    Proof: docs/proofs/reservations.md.

    Attributes:
        declared: What was declared.
        sequence: Position in the chain.
        previous: Digest of the row before it.
        digest: Digest of its row: whoever has seen it has seen what was declared.
    """

    declared: Declaration
    sequence: int
    previous: str
    digest: str

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.declared.run


def body_of(declared: Declaration, policy: LedgerPolicy) -> Json:
    """A reservation's row, with what the ledger's numbers mean."""
    return declared.to_dict() | {"row": RESERVATION} | policy.meaning


def read_reservation(row: Row, policy: LedgerPolicy) -> Reservation | None:
    """The reservation that a verified row holds, None for a row of another kind.

    Raises:
        LedgerError: If it cannot be read or contradicts the policy.
    """
    try:
        content = json.loads(row.body)
        if content.get("row") != RESERVATION:
            return None
        meaning = {name: content.pop(name, None) for name in policy.meaning}
        declared = Declaration.from_dict({key: value for key, value in content.items() if key not in ("row", "nonce")})
    except (TypeError, ValueError, KeyError, AttributeError, PrivacyError) as error:
        raise LedgerError(f"row {row.sequence} cannot be read ({error}); restore the ledger") from error
    if meaning != policy.meaning:
        raise LedgerError(f"reservation {row.sequence} contradicts the ledger's policy; restore the ledger")
    return Reservation(declared=declared, sequence=row.sequence, previous=row.previous, digest=row.digest)


def require_declarable(declared: Declaration) -> None:
    """Refuse a declaration that could not be read again or quoted.

    Raises:
        LedgerError: Naming the value and the bound.
    """
    if not 0 < declared.delta < 1:
        raise LedgerError(f"delta={declared.delta!r} of a reservation must lie in (0, 1)")
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for _, count in declared.events):
        raise LedgerError("every event of a reservation needs a count >= 1")
    compose(declared.events)


@dataclass(kw_only=True)
class Book:
    """Everything that a chain says so far, in its order.

    Attributes:
        policy: Of the ledger.
        genesis: The digest before the first row.
        rows: Rows of the chain.
        entries: Charges.
        reservations: Plans and recoveries.
        paid: Plans, whole, and charges outside of any, one by one.
        paid_again: Recoveries, which no budget could refuse; a unit may enter one beside its plan.
        unplanned: Charges that no reservation had paid for.
        dates: By run, the date of its first charge.
    """

    policy: LedgerPolicy
    genesis: str
    rows: list[Row] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    unplanned: list[Entry] = field(default_factory=list)
    paid: list[Event] = field(default_factory=list)
    paid_again: list[Event] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)
    _by_id: dict[str, Entry] = field(default_factory=dict)
    _left: dict[str, Counter[Event]] = field(default_factory=dict)
    _plans: dict[str, Reservation] = field(default_factory=dict)
    _runs: dict[str, None] = field(default_factory=dict)
    _sources: dict[str, None] = field(default_factory=dict)

    @property
    def runs(self) -> AbstractSet[str]:
        """Names of the runs that reserved or charged."""
        return self._runs.keys()

    @property
    def head(self) -> str:
        """Digest of the last row."""
        return self.rows[-1].digest if self.rows else self.genesis

    @property
    def sources(self) -> AbstractSet[str]:
        """Sources of noise that were charged or reserved, "none" aside."""
        return self._sources.keys() - {"none"}

    def digest_at(self, sequence: int) -> str | None:
        """Digest of the row at a position, None beyond the chain."""
        return self.rows[sequence - 1].digest if 0 < sequence <= len(self.rows) else None

    def find(self, release_id: str) -> Entry | None:
        """The charge of a release, or None."""
        return self._by_id.get(release_id)

    def plan_of(self, run: str) -> Reservation | None:
        """The plan that a run reserved, or None."""
        return self._plans.get(run)

    def left(self, run: str) -> Counter[Event] | None:
        """Slots of a run's plan that are not spent yet; None without a plan."""
        found = self._left.get(run)
        return None if found is None else found.copy()

    def covers(self, run: str, event: Event) -> bool:
        """Tell whether a run's plan has slots left for an event; False without a plan."""
        left = self._left.get(run)
        return left is not None and all(left[part] >= count for part, count in parts(event))

    @property
    def committed(self) -> Composed:
        """Composition of what is paid: every reservation whole, and charges outside of any."""
        planned = self.combined((event, 1) for event in self.paid)
        return compose([planned, *self.paid_again])

    def is_recovered(self, run: str | None = None) -> bool:
        """Tell whether anything, or anything of one run, was recovered."""
        if run is None:
            return bool(self.paid_again)
        return any(r.declared.kind == "recovery" and run == r.run for r in self.reservations)

    def declared_together(self, run: str | None = None) -> bool:
        """Tell whether all that is paid, or all of one run, was declared before the first release of any of it."""
        first = min((entry.sequence for entry in self.entries if run in (None, entry.run)), default=math.inf)
        reserved = [r for r in self.reservations if run in (None, r.run)]
        outside = any(run in (None, entry.run) for entry in self.unplanned)
        return not outside and not self.is_recovered(run) and all(r.sequence < first for r in reserved)

    def committed_by(self, run: str) -> Composed:
        """Composition that one run commits to: its reservations whole, and its charges outside of them."""
        own = [r.declared for r in self.reservations if r.run == run]
        planned = [pair for declared in own if declared.kind == "plan" for pair in declared.events]
        planned += [(entry.event, 1) for entry in self.unplanned if entry.run == run]
        again = [self.combined(declared.events) for declared in own if declared.kind == "recovery"]
        return compose([self.combined(planned), *again])

    def released(self, run: str | None = None) -> Composed:
        """Composition of the charges of one run, or of all; see ``LedgerPolicy.disjoint``."""
        events: dict[str, list[Event]] = {}
        for entry in self.entries:
            if run in (None, entry.run):
                events.setdefault(entry.run, []).append(entry.event)
        if self.policy.disjoint:
            return most_expensive(event for one in events.values() for event in one)
        return compose(of_one_run(one) for one in events.values())

    def combined(self, events: Iterable[tuple[Event, int]]) -> Composed:
        """Composition of events with counts, by the policy's rule."""
        return most_expensive(event for event, _ in events) if self.policy.disjoint else compose(events)

    def projected(self, declared: Sequence[Declaration] = (), charges: Mapping[str, Event] | None = None) -> Book:
        """The book as it would stand with more reservations, then a charge outside of plans for every run named."""
        found = Book(**{part.name: copy.copy(getattr(self, part.name)) for part in fields(self)})
        for position, one in enumerate(declared, len(self.rows) + 1):
            found._admit_reservation(Reservation(declared=one, sequence=position, previous="", digest=""))
        for position, (run, event) in enumerate((charges or {}).items(), len(self.rows) + len(declared) + 1):
            found._admit_entry(unwritten_entry(run, event, self.policy, position))
        return found

    def admit(self, row: Row) -> None:
        """Take the next verified row in.

        Raises:
            LedgerError: If it can't be read, or contradicts what stands before it.
        """
        reserved = read_reservation(row, self.policy)
        if reserved is not None:
            self._admit_reservation(reserved)
        else:
            self._admit_entry(read_entry(row, self.policy))
        self.rows.append(row)

    def _admit_reservation(self, found: Reservation) -> None:
        run, event = found.run, self.combined(found.declared.events)
        if found.declared.kind == "plan":
            if run in self._plans or run in self.dates:
                raise LedgerError(f"row {found.sequence} reserves the run {run!r} again; restore the ledger")
            self._plans[run], self._left[run] = found, found.declared.slots
        (self.paid if found.declared.kind == "plan" else self.paid_again).append(event)
        self.reservations.append(found)
        self._runs[run] = self._sources[found.declared.noise_source] = None

    def _admit_entry(self, entry: Entry) -> None:
        if entry.run in self._left:
            if not self.covers(entry.run, entry.event):
                raise LedgerError(
                    f"charge {entry.sequence} of {entry.run!r} is not in the plan it reserved; restore the ledger"
                )
            self._left[entry.run].subtract(dict(parts(entry.event)))
        else:
            self.unplanned.append(entry)
            self.paid.append(entry.event)
        self.entries.append(entry)
        self._runs[entry.run] = self._sources[entry.noise_source] = None
        self._by_id[entry.release_id] = entry
        self.dates.setdefault(entry.run, entry.time[:10])
