"""The rows of a ledger's chain as what they mean: reservations, charges, and what both commit to.

A reservation says what a run will release, and is bound into the chain before the first
release. It is charged whole when it is made and its price never falls: a run that stops
early leaves slots that it may still spend, not budget that comes back (when a run stops may
depend on what it saw). What is quoted of a run is what stands here, never what a file next to
the ledger says.
"""

from __future__ import annotations

import ast
import copy
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from accountant.errors import LedgerError, PrivacyError
from accountant.events import (
    Adjacency,
    Composed,
    Event,
    Json,
    Unit,
    compose,
    from_dict,
    most_expensive,
    of_one_run,
    parts,
    to_dict,
)
from accountant.ledger.chain import RESERVATION, Position, Row
from accountant.ledger.policy import Entry, LedgerPolicy, sampler_of

Kind: TypeAlias = Literal["plan", "recovery"]


@lru_cache(4096)
def _read(event: str) -> Event:
    """The event that plain values describe, given as their ``repr``; most rows of a ledger repeat another's."""
    return from_dict(ast.literal_eval(event))


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A run as it is declared before its first release.

    Attributes:
        run: Name of the run.
        events: Every release that may be made, with its count.
        settings: Digest of the run's settings.
        plan: Digest of the run's plan as it is stored with the ledger.
        delta: Where the run quotes epsilon, in (0, 1).
        noise_source: "secure", "exact", "simulation" or "none".
        stopping: When the run may end: ``"any time"`` (the whole plan is charged) is the only rule so far.
        kind: ``"plan"``, or ``"recovery"``: releases that a lost ledger had been charged for, once more.
        lost: Of a recovery: the charges that other evidence names and the ledger's chain lacks; one that stands and
            lost its release, as often as that.

    Raises:
        LedgerError: If delta or a count is out of range.
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

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise LedgerError(f"delta={self.delta!r} of a reservation must lie in (0, 1)")
        if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for _, count in self.events):
            raise LedgerError("every event of a reservation needs a count >= 1")
        compose(self.events)

    @property
    def slots(self) -> Counter[Event]:
        """Number of releases that may name each event; one that covers several is named by all of them."""
        found: Counter[Event] = Counter()
        for event, count in self.events:
            for part, times in parts(event):
                found[part] += count * times * part.n_releases
        return found

    @property
    def releases(self) -> int:
        """Number of releases; one event of several parts, such as trainings and the sum of their scores, is one."""
        return sum(count * getattr(event, "n_releases", 1) for event, count in self.events)

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
            events=tuple((_read(repr(event)), int(count)) for event, count in events),
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
        digest: Digest of its row, which binds what was declared.
    """

    declared: Declaration
    sequence: int
    previous: str
    digest: str

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.declared.run

    def to_dict(self) -> Json:
        """Plain values, for exports: what was declared, and its place."""
        place = {name: value for name, value in vars(self).items() if name != "declared"}
        return self.declared.to_dict() | place


def read_row(row: Row, policy: LedgerPolicy) -> Reservation | Entry:
    """The reservation or charge that a verified row holds.

    Raises:
        LedgerError: If it cannot be read or contradicts the policy.
    """
    found: Reservation | Entry
    expected = policy.meaning
    place: Json = {"sequence": row.sequence, "previous": row.previous, "digest": row.digest}
    try:
        content = json.loads(row.body.decode())
        meaning = {name: content[name] for name in expected}
        if content.get("row") == RESERVATION:
            plain = {name: value for name, value in content.items() if name not in ("row", "nonce", *meaning)}
            found = Reservation(declared=Declaration.from_dict(plain), **place)
        else:
            place |= {"event": _read(repr(content["event"])), "unit": Unit(content["unit"])}
            found = Entry(**content | place | {"adjacency": Adjacency(content["adjacency"])})
    except (TypeError, ValueError, KeyError, AttributeError, SyntaxError, RecursionError, PrivacyError) as error:
        raise LedgerError(f"row {row.sequence} cannot be read ({error}); restore the ledger") from error
    if meaning != expected or content.get("release_id", row.release_id) != row.release_id:
        raise LedgerError(f"row {row.sequence} contradicts the ledger's policy; restore the ledger")
    return found


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
        paid_again: Recoveries, which no budget could refuse; a unit may enter one in addition to its plan.
        unplanned: Charges that no reservation covered.
        dates: By run, the date of its first charge.
        charges: By release, its charge.
        plans: By run, the plan that it reserved.
        runs: By run, its reservations and charges in the chain's order.
        sources: Sources of noise that were charged or reserved, "none" aside.
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
    charges: dict[str, Entry] = field(default_factory=dict)
    plans: dict[str, Reservation] = field(default_factory=dict)
    runs: dict[str, list[Reservation | Entry]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    _left: dict[str, Counter[Event]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """Digest of the last row."""
        return self.rows[-1].digest if self.rows else self.genesis

    def digest_at(self, sequence: int) -> str | None:
        """Digest of the row at a position, None beyond the chain."""
        return self.rows[sequence - 1].digest if 0 < sequence <= len(self.rows) else None

    def left(self, run: str) -> Counter[Event] | None:
        """Slots of a run's plan that are not spent yet; None without a plan."""
        found = self._left.get(run)
        return None if found is None else found.copy()

    def covers(self, run: str, event: Event) -> bool:
        """Tell whether a run's plan has slots left for an event; False without a plan."""
        left = self._left.get(run)
        return left is not None and all(left[part] >= count for part, count in parts(event))

    def of(self, run: str | None) -> Book:
        """The book of one run's rows alone, at their places; the whole book for None."""
        if run is None:
            return self
        found = Book(policy=self.policy, genesis=self.genesis)
        for part in self.runs.get(run, ()):
            found._take(part)
        return found

    @property
    def all_paid(self) -> tuple[Event, ...]:
        """Every plan, whole, and charge outside of any, one by one; recoveries last."""
        return (*self.paid, *self.paid_again)

    @property
    def committed(self) -> Composed:
        """Composition of what is paid: every reservation whole, and charges outside of any."""
        return compose([self.combined((event, 1) for event in self.paid), *self.paid_again])

    @property
    def declared_together(self) -> bool:
        """Whether all that is charged was declared before the first release of any of it."""
        first = min((entry.sequence for entry in self.entries), default=math.inf)
        return not self.unplanned and not self.paid_again and all(r.sequence < first for r in self.reservations)

    @property
    def released(self) -> Composed:
        """Composition of all charges; see ``LedgerPolicy.disjoint``."""
        if self.policy.disjoint:
            return most_expensive(entry.event for entry in self.entries)
        events: dict[str, list[Event]] = {}
        for entry in self.entries:
            events.setdefault(entry.run, []).append(entry.event)
        return compose(of_one_run(one) for one in events.values())

    def combined(self, events: Iterable[tuple[Event, int]]) -> Composed:
        """Composition of events with counts, by the policy's rule."""
        return most_expensive(event for event, _ in events) if self.policy.disjoint else compose(events)

    def projected(self, declared: Sequence[Declaration], charges: Mapping[str, Event]) -> Book:
        """The book as it would stand with more reservations, then a charge outside of plans for every run named."""
        found = Book(**{part.name: copy.copy(getattr(self, part.name)) for part in fields(self)})
        for run in charges.keys() & self._left.keys():
            found._left[run] = self._left[run].copy()
        for run in charges.keys() | {one.run for one in declared}:
            found.runs[run] = list(self.runs.get(run, ()))
        for position, one in enumerate(declared, len(self.rows) + 1):
            found._take(Reservation(declared=one, sequence=position, previous="", digest=""))
        for position, (run, event) in enumerate(charges.items(), len(self.rows) + len(declared) + 1):
            found._take(
                Entry(
                    sequence=position, release_id=f"{run}/considered", run=run, event=event, unit=self.policy.unit,
                    population=self.policy.population, n_clients=self.policy.n_clients,
                    adjacency=self.policy.adjacency, sampler=sampler_of(event), noise_source="none",
                    plan_position=None, time="", previous="", digest="",
                )
            )  # fmt: skip
        return found

    def admit(self, row: Row) -> None:
        """Take the next verified row in.

        Raises:
            LedgerError: If it can't be read, or contradicts what stands before it.
        """
        self._take(read_row(row, self.policy))
        self.rows.append(row)

    def _take(self, found: Reservation | Entry) -> None:
        run = found.run
        if isinstance(found, Entry):
            if run in self._left:
                if not self.covers(run, found.event):
                    raise LedgerError(
                        f"charge {found.sequence} of {run!r} is not in the plan it reserved; restore the ledger"
                    )
                self._left[run].subtract(dict(parts(found.event)))
            else:
                self.unplanned.append(found)
                self.paid.append(found.event)
            self.entries.append(found)
            self.charges[found.release_id] = found
            self.dates.setdefault(run, found.time[:10])
            source = found.noise_source
        else:
            declared, source = found.declared, found.declared.noise_source
            if declared.kind == "plan":
                if run in self.plans or run in self.dates:
                    raise LedgerError(f"row {found.sequence} reserves the run {run!r} again; restore the ledger")
                self.plans[run], self._left[run] = found, declared.slots
            (self.paid if declared.kind == "plan" else self.paid_again).append(self.combined(declared.events))
            self.reservations.append(found)
        self.runs.setdefault(run, []).append(found)
        self.sources |= {source} - {"none"}
