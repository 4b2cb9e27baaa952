"""The ledger: every release is charged here, durably, before any private row is read.

Protocol of a release: charged -> drawn -> stored -> sent.

1. ``charge`` verifies the chain's tail and the policy, prices the event, and commits one
   row or none. A known release id with the same event is known, not charged again; with
   another event it is an error.
2. Only after ``charge`` returned are participants and noise drawn.
3. ``store_release`` commits the noisy bytes, exactly one set per release id.
4. Only stored bytes are sent; sending them again is post-processing.

Formal guarantees, with a ledger in a file (in memory nothing survives the process):

| the process or machine dies | charged | released | a resumed run |
|---|---|---|---|
| before ``charge`` commits | nothing | nothing: no row was read | charges, then draws |
| after the commit, before ``charge`` returns | the event | nothing | finds the charge: known, not paid again |
| after 2, before ``store_release`` commits | the event | nothing | draws anew for the same charge |
| after ``store_release`` commits | the event | the stored bytes, once they are sent | sends the same bytes |
| a power cut drops the end of the log | refused when opened: the witness, or a receipt, names the lost row | | |

So a crash can spend a charge in vain and can never release without one, nor release twice for
one. A ledger with a budget is a filter (a charge over the bound is refused and changes
nothing), without one an odometer. Several processes, and several runs on one population, may
share a file: charges are serialised, and each is priced on top of all others.

Longer than 300 lines: the protocol above is read in one piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from accountant.disjoint import combination
from accountant.errors import BudgetExceeded, LedgerError, PrivacyError
from accountant.events import Composed, Event, check_adjacency, to_dict
from accountant.ledger.policy import (
    NOISE_SOURCES,
    Budget,
    Entry,
    LedgerPolicy,
    Projection,
    Receipt,
    Verification,
    canonical,
    read_entry,
    refusal,
    require_names,
    require_population,
    sampler_of,
)
from accountant.ledger.store import Row, Store

if TYPE_CHECKING:
    from accountant.ledger.pricing import Account

__all__ = ["Budget", "Entry", "Ledger", "LedgerPolicy", "Projection", "Receipt", "Verification"]


def holds(bound: float, spent: float, projected: float) -> bool:
    """Tell whether the epsilon before and after a charge both lie within a budget's bound.

    Certified upper ends may fall by their own width when something small is added, so both
    are held to it; a cost that is not a number passes neither comparison.
    """
    return 0.0 <= spent <= bound and 0.0 <= projected <= bound


def _opened(policy: LedgerPolicy, budget: Budget) -> Account:
    from accountant.ledger.pricing import opened  # and with it scipy

    return opened(policy, budget)


class Ledger:
    """An append-only account of what a population has paid; see the module's page.

    Example:
        >>> from accountant import Adjacency, Gaussian, Ledger, LedgerPolicy, Unit
        >>> policy = LedgerPolicy(
        ...     unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="hospitals", n_clients=40
        ... )
        >>> with Ledger.create(None, policy) as ledger:  # in memory: for simulations only
        ...     receipt = ledger.charge("run/0", Gaussian(noise_multiplier=4.0), run="run", noise_source="simulation")
        ...     again = ledger.charge("run/0", Gaussian(noise_multiplier=4.0), run="run", noise_source="simulation")
        ...     ledger.event()
        Composed(parts=((Gaussian(noise_multiplier=4.0), 1),))
        >>> (receipt.known, again.known)
        (False, True)
    """

    lost_races: ClassVar[int] = 8
    """Charges that others may overtake before this one is priced while it holds the lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._entries: list[Entry] = []
        self._by_id: dict[str, Entry] = {}
        self._composed = Composed()
        self._sources: set[str] = set()
        self._dates: dict[str, str] = {}
        self._account: Account | None = None
        self._accounted = 0
        try:
            self.policy = LedgerPolicy.from_dict(json.loads(store.identity.policy))
        except (TypeError, ValueError, AttributeError) as error:
            raise LedgerError(f"{store.path}: its policy cannot be read ({error}); restore it from a copy") from error
        self._combine = combination(disjoint=self.policy.disjoint)
        self._refresh()

    @classmethod
    def create(cls, path: Path | str | None, policy: LedgerPolicy) -> Self:
        """A new, empty ledger; ``path=None`` keeps it in memory, for simulations only.

        Raises:
            LedgerError: If something stands there already, or cannot be written, or slots cost more than their bound.
            AccountingError: If the budget is too small for any release.
        """
        if policy.budget is not None:
            _opened(policy, policy.budget)
        return cls(Store.create(None if path is None else Path(path), canonical(policy.to_dict()).decode()))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """An existing ledger, verified from its first row to its last.

        Raises:
            LedgerError: If it is missing, foreign, corrupt or cut off; it is not changed.
        """
        return cls(Store.open(Path(path)))

    @property
    def path(self) -> Path | None:
        """The ledger's file, or None in memory."""
        return self._store.path

    @property
    def head(self) -> str:
        """Digest of the last charge this object has seen."""
        return self._entries[-1].digest if self._entries else self._store.identity.genesis("charges")

    def entries(self, run: str | None = None) -> list[Entry]:
        """Charges in order, of one run or of the whole population."""
        self._refresh()
        return [entry for entry in self._entries if run is None or entry.run == run]

    def event(self, run: str | None = None) -> Composed:
        """Composition of everything charged, of one run or of the whole population; see ``LedgerPolicy.disjoint``."""
        if run is None:
            self._refresh()
            return self._composed
        return self._combine(entry.event for entry in self.entries(run))

    @property
    def guarantees(self) -> bool:
        """Tell whether every charge so far came with a guarantee: durable, no seeded noise, no plain sum."""
        self._refresh()
        return self.path is not None and all(entry.noise_source in ("secure", "exact") for entry in self._entries)

    def check(self, event: Event) -> Projection:
        """Project the cost of charging ``event``; changes nothing and raises nothing over budget."""
        self._refresh()
        return self._project(event)

    def charge(
        self,
        release_id: str,
        event: Event,
        *,
        run: str,
        noise_source: str,
        plan_position: int | None = None,
    ) -> Receipt:
        """Charge one release: durable on return, or refused with nothing changed.

        Args:
            release_id: Unique name of the release over the ledger's whole life.
            event: What it costs.
            run: The run it belongs to.
            noise_source: "secure", "exact", "simulation" or "none".
            plan_position: Place in the run's plan.

        Raises:
            BudgetExceeded: If the budget does not hold the event.
            LedgerError: If the id was charged for another event, the event does not fit
                the policy, or storage fails.
        """
        require_names(release_id=release_id, run=run)
        if noise_source not in NOISE_SOURCES:
            raise LedgerError(f"noise_source={noise_source!r} must be one of {NOISE_SOURCES}")

        def prepared() -> Receipt | bytes:
            self._refresh()
            if (known := self._known(release_id, event, noise_source)) is not None:
                return known
            self._require_kind(noise_source, run)
            self._require_affordable(event)
            return self._body(release_id, event, run, noise_source, plan_position)

        # Pricing may be slow, so it happens outside the transaction and counts only if the
        # chain has not moved meanwhile; after some lost races it happens inside.
        for _ in range(self.lost_races):
            if isinstance(body := prepared(), Receipt):
                return body
            with self._store.transaction():
                row = self._store.append("charges", release_id, body) if self._is_current() else None
            if row is not None:
                return self._committed(row)
        with self._store.transaction():
            if isinstance(body := prepared(), Receipt):
                return body
            row = self._store.append("charges", release_id, body)
        return self._committed(row)

    def store_release(self, release_id: str, payload: bytes) -> None:
        """Store the bytes of a charged release: one set per id, durable on return.

        Raises:
            LedgerError: If the id was never charged or has other bytes already.
        """
        with self._store.transaction():
            if self._store.find("charges", release_id) is None:
                raise LedgerError(f"release {release_id!r} was never charged; charge it before drawing its noise")
            stored = self._store.find("releases", release_id)
            row = self._store.append("releases", release_id, payload) if stored is None else None
        if stored is not None and stored.body != payload:
            raise LedgerError(f"release {release_id!r} has been stored already with other bytes; send those")
        if row is not None:
            self._store.witness("releases", row)

    def stored_release(self, release_id: str) -> bytes | None:
        """The bytes of a release, or None if none were stored."""
        found = self._store.find("releases", release_id)
        return None if found is None else found.body

    def verify(self, receipts: Iterable[tuple[int, str]] = ()) -> Verification:
        """Read everything again: storage, both chains, witness, policy, and the budget.

        Args:
            receipts: Pairs (sequence, head) handed out earlier, from receipts or
                releases; each must still be in the chain.
        """
        problem = self._store.problem()
        if problem is None:
            try:
                self._refresh()  # others may have charged since this object last looked
                problem = self._lost(receipts) or self._project(None).reason
            except PrivacyError as error:
                problem = str(error)
        return Verification(ok=problem is None, problem=problem, head=self.head, n_entries=len(self._entries))

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refresh(self) -> None:
        """Read and verify what others have charged since."""
        last = self._entries[-1] if self._entries else None
        if last is not None:
            stored = self._store.find("charges", last.release_id)
            if stored is None or stored.digest != last.digest:
                raise LedgerError(f"{self.path}: charge {last.sequence} was seen and is gone; restore the ledger")
        for row in self._store.rows_after("charges", 0 if last is None else last.sequence, self.head):
            self._admit(row)

    def _admit(self, row: Row) -> Entry:
        entry = read_entry(row, self.policy)
        self._entries.append(entry)
        self._by_id[entry.release_id] = entry
        self._dates.setdefault(entry.run, entry.time[:10])
        if entry.noise_source != "none":
            self._sources.add(entry.noise_source)
        self._composed = self._combine((self._composed, entry.event))
        return entry

    def _is_current(self) -> bool:
        last = self._store.last("charges")
        return (self._store.identity.genesis("charges") if last is None else last.digest) == self.head

    def _committed(self, row: Row) -> Receipt:
        self._store.witness("charges", row)
        entry = self._admit(row)
        return Receipt(sequence=entry.sequence, head=entry.digest, release_id=entry.release_id, known=False)

    def _known(self, release_id: str, event: Event, noise_source: str) -> Receipt | None:
        entry = self._by_id.get(release_id)
        if entry is None:
            return None
        if (to_dict(entry.event), entry.noise_source) != (to_dict(event), noise_source):
            raise LedgerError(
                f"release {release_id!r} was charged as {entry.event} with {entry.noise_source} noise and is now "
                f"asked for as {event} with {noise_source} noise; give the new release an id of its own"
            )
        return Receipt(sequence=entry.sequence, head=entry.digest, release_id=release_id, known=True)

    def _require_kind(self, noise_source: str, run: str) -> None:
        self._require_unseeded(noise_source)
        budget = self.policy.budget
        if budget is not None and budget.rule == "planned" and self._entries and self._entries[0].run != run:
            raise LedgerError(
                f"run {run!r} does not belong on the ledger of run {self._entries[0].run!r}: its budget holds for one "
                "planned run; give a ledger shared by runs the budget rule 'gaussian', 'envelope' or 'renyi'"
            )

    def _require_unseeded(self, noise_source: str) -> None:
        """Seeded noise and real noise never share a ledger: one of them would lend the other its name."""
        present = self._sources
        mixed = "simulation" in present | {noise_source} and len(present | {noise_source}) > 1
        if noise_source != "none" and mixed:
            raise LedgerError(
                f"a charge with {noise_source} noise does not belong on a ledger with {' and '.join(sorted(present))} "
                "noise: simulations carry no guarantee; give it a ledger of its own"
            )

    def _require_affordable(self, event: Event) -> None:
        projection = self._project(event)
        if not projection.allowed:
            raise BudgetExceeded(f"{projection.reason}; nothing was charged")

    def _project(self, event: Event | None) -> Projection:
        """Price everything charged, and ``event`` on top of it."""
        if event is not None:
            check_adjacency(event, self.policy.adjacency)
            require_population(event, self.policy.n_clients)
        budget = self.policy.budget
        if budget is None:
            return Projection(allowed=True, reason=None, spent=None, projected=None, head=self.head)
        paid = self._paid(budget)
        spent = paid.epsilon
        projected = spent if event is None else paid.after(event).epsilon
        allowed = holds(budget.epsilon, spent, projected)
        obstacle = None if allowed or event is None else paid.obstacle(event)
        reason = None if allowed else obstacle or refusal(event, spent, projected, budget)
        return Projection(allowed=allowed, reason=reason, spent=spent, projected=projected, head=self.head)

    def _paid(self, budget: Budget) -> Account:
        """Everything charged so far, added up in the order of the chain."""
        account = self._account or _opened(self.policy, budget)
        for entry in self._entries[self._accounted :]:
            account = account.after(entry.event)
        self._account, self._accounted = account, len(self._entries)
        return account

    def _body(self, release_id: str, event: Event, run: str, noise_source: str, plan_position: int | None) -> bytes:
        return canonical(
            {
                "release_id": release_id,
                "run": run,
                "event": to_dict(event),
                "unit": self.policy.unit.value,
                "population": self.policy.population,
                "n_clients": self.policy.n_clients,
                "adjacency": self.policy.adjacency.value,
                "sampler": sampler_of(event),
                "noise_source": noise_source,
                "plan_position": plan_position,
                "time": self._dates.get(run) or f"{datetime.now(UTC):%Y-%m-%d}",
            }
        )

    def _lost(self, receipts: Iterable[tuple[int, str]]) -> str | None:
        digests = {entry.sequence: entry.digest for entry in self._entries}
        for sequence, head in receipts:
            if digests.get(sequence) != head:
                return (
                    f"the charge of a receipt (sequence {sequence}) is not in the chain: its tail was lost or replaced"
                )
        return None
