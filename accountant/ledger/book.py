"""The rows of a ledger's chain as what they mean: reservations, charges, and what both commit to."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields

from accountant.errors import LedgerError
from accountant.events import Composed, Event, compose, most_expensive, of_one_run, parts
from accountant.ledger.policy import Entry, LedgerPolicy, read_entry, unwritten_entry
from accountant.ledger.reservation import Declaration, Reservation, read_reservation
from accountant.ledger.store import Row


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
        self._name(run, found.declared.noise_source)

    def _name(self, run: str, noise_source: str) -> None:
        self._runs[run] = self._sources[noise_source] = None

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
        self._name(entry.run, entry.noise_source)
        self._by_id[entry.release_id] = entry
        self.dates.setdefault(entry.run, entry.time[:10])
