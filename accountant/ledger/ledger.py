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
| after the commit, before ``charge`` returns | the event | nothing | finds the charge: known, not charged again |
| after 2, before ``store_release`` commits | the event | nothing | draws anew for the same charge |
| after ``store_release`` commits | the event | the stored bytes, once they are sent | sends the same bytes |
| a power cut drops the end of the log | refused when opened: the commit log, or a receipt, names the lost row | | |

So a crash can spend a charge in vain and can never release without one, nor release twice for
one. A ledger with a budget is a filter (a charge over the bound is refused and changes
nothing), without one an odometer. Several processes, and several runs on one population, may
share a file: charges are serialised, and each is priced on top of all others.

A run ``reserve``s its whole plan before its first release. The reservation is a row of the
same chain, so every later digest binds the plan; it is charged whole, and the run's charges
are then held to it and cost nothing further.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from accountant.errors import BudgetExceeded, LedgerError, PrivacyError
from accountant.events import Composed, Event, check_adjacency, parts, to_dict
from accountant.ledger.book import Book, Declaration, Reservation
from accountant.ledger.chain import RESERVATION, Row
from accountant.ledger.policy import (
    NOISE_SOURCES,
    Budget,
    Entry,
    LedgerPolicy,
    Projection,
    Receipt,
    Verification,
    canonical,
    require_names,
    require_population,
    sampler_of,
)
from accountant.ledger.store import Store
from accountant.ledger.tables import Place
from accountant.wording import upper_text

if TYPE_CHECKING:
    from accountant.ledger.pricing import Account, Left

__all__ = ["Budget", "Entry", "Ledger", "LedgerPolicy", "Projection", "Receipt", "Verification"]


def holds(bound: float, spent: float, projected: float) -> bool:
    """Tell whether the epsilon before and after a charge both lie within a budget's bound.

    Certified upper ends may fall by their own width when something small is added, so both
    are held to it; a cost that is not a number passes neither comparison.
    """
    return 0.0 <= spent <= bound and 0.0 <= projected <= bound


class Ledger:
    """An append-only account of what a population has spent; see the module's page.

    Proof: docs/proofs/resume.md.

    Attributes:
        gate: Called with all that stands charged and what would be, inside whatever the budget may refuse; what it
            raises refuses the charge.

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
        self.gate: Callable[[Book, Event], None] | None = None
        self._account: Account | None = None
        self._accounted = 0
        try:
            self.policy = LedgerPolicy.from_dict(json.loads(store.identity.policy))
        except (TypeError, ValueError, AttributeError) as error:
            raise LedgerError(f"{store.place}: its policy cannot be read ({error}); restore it from a copy") from error
        self._book = Book(policy=self.policy, genesis=store.identity.genesis("charges"))
        for row in store.verified:
            self._book.admit(row)
        self._refresh()

    @classmethod
    def create(cls, path: Place | str | None, policy: LedgerPolicy) -> Self:
        """A new, empty ledger; ``path=None`` keeps it in memory, for simulations only.

        One in PostgreSQL is made by the database's owner (``create_in_postgres``) and opened by others.

        Raises:
            LedgerError: If something stands there already, or cannot be written, or slots cost more than their bound.
            AccountingError: If the budget is too small for any release.
        """
        if policy.budget is not None:
            from accountant.ledger.pricing import opened  # and with it scipy

            opened(policy, policy.budget)
        return cls(Store.create(path, canonical(policy.to_dict()).decode()))

    @classmethod
    def open(cls, path: Place | str, *, recovering: bool = False) -> Self:
        """An existing ledger, verified from its first row to its last.

        Args:
            path: Its file, or its address ``postgresql://ROLE@HOST/DATABASE?commits=FILE``.
            recovering: Take a ledger whose commit log remembers more rows than it holds, for ``recover``.

        Raises:
            LedgerError: If it is missing, foreign, corrupt or cut off; it is not changed.
        """
        return cls(Store.open(path, recovering=recovering))

    @property
    def path(self) -> Place | None:
        """The ledger's file or address, or None in memory."""
        return self._store.place

    @property
    def commit_log(self) -> Path | None:
        """The file that remembers what was committed, or None in memory."""
        return None if self._store.commit_log is None else self._store.commit_log.path

    @property
    def ledger_id(self) -> str:
        """Random name of the ledger, fixed at its creation."""
        return self._store.identity.ledger_id

    @property
    def head(self) -> str:
        """Digest of the last row of the chain that this object has seen."""
        return self._book.head

    def book(self) -> Book:
        """Everything the chain says by now: reservations, charges, and what both commit to."""
        self._refresh()
        return self._book

    def entries(self, run: str | None = None) -> list[Entry]:
        """Charges in order, of one run or of the whole population."""
        return self.book().of(run).entries.copy()

    def event(self, run: str | None = None) -> Composed:
        """Composition of everything charged, of one run or of the whole population; see ``LedgerPolicy.disjoint``.

        It is what was released. The price is that of ``committed``.
        """
        return self.book().of(run).released

    def committed(self, run: str | None = None) -> Composed:
        """Composition of what is paid: plans whole, however far they were played, and charges outside of plans."""
        return self.book().of(run).committed

    @property
    def guarantees(self) -> bool:
        """Tell whether every charge so far came with a guarantee: durable, no seeded noise, no plain sum."""
        return self.path is not None and all(entry.noise_source in ("secure", "exact") for entry in self.entries())

    def check(self, event: Event) -> Projection:
        """Project the cost of charging ``event``; changes nothing and raises nothing over budget."""
        self._refresh()
        return self._project(event)

    def consider(self, charges: Sequence[tuple[str, Event, str]]) -> Projection:
        """Project charges outside of plans, all together: refused as ``charge`` would refuse them; changes nothing.

        Args:
            charges: Of each its run, its event and its source of noise.

        Raises:
            BudgetExceeded: If the budget does not hold all of them.
            LedgerError: If one does not belong on this ledger.
        """
        book = self.book()
        for run, _, noise_source in charges:
            self._require_kind(noise_source, run)
        events = [event for _, event, _ in charges]
        return self._require_affordable(
            events[0] if len(events) == 1 else book.combined((event, 1) for event in events)
        )

    def left(self, delta: float | None = None, *, event: Event | None = None) -> Left:
        """Compute what is left under the bound: epsilon spent, the bound, and the releases that still fit.

        Args:
            delta: Where epsilon is quoted; None for the budget's own.
            event: A release; the answer then says how many more of it fit.

        Raises:
            LedgerError: If the bound does not hold at this delta, or a ledger without one is asked at none.

        Example:
            >>> from accountant import Adjacency, Budget, Gaussian, Ledger, LedgerPolicy, Unit
            >>> policy = LedgerPolicy(
            ...     unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="hospitals", n_clients=40,
            ...     budget=Budget(epsilon=2.0, delta=1e-6, rule="gaussian"),
            ... )  # fmt: skip
            >>> with Ledger.create(None, policy) as ledger:
            ...     release = Gaussian(noise_multiplier=8.0)
            ...     receipt = ledger.charge("run/0", release, run="run", noise_source="simulation")
            ...     left = ledger.left(event=release)
            >>> round(left.spent, 3), left.bound, round(left.epsilon, 3), round(left.noise_multiplier, 3), left.releases
            (0.504, 2.0, 1.496, 2.323, 11)
        """
        from accountant.ledger.pricing import left_of  # and with it scipy

        self._refresh()
        return left_of(self._book, delta, event, admits=lambda further: self._project(further).allowed)

    def reserve(self, declared: Declaration) -> Reservation:
        """Charge all of a run's releases and bind its plan into the chain: durable on return, or refused.

        The same declaration again is known and not charged again.

        Raises:
            BudgetExceeded: If the budget does not hold it; nothing was changed.
            LedgerError: If the run was declared otherwise or has released already, the events do
                not fit the policy, or storage fails.
        """
        require_names(run=declared.run, settings=declared.settings, plan=declared.plan)
        run, is_plan = declared.run, declared.kind == "plan"

        def prepared() -> tuple[str, bytes] | None:
            book = self.book()
            earlier = book.of(run).reservations
            if any(found.declared == declared for found in earlier):  # a recovery by the charges it makes good
                return None
            if is_plan and (plan := book.plans.get(run)) is not None:
                raise LedgerError(
                    f"run {run!r} was declared with another plan (row {plan.sequence} of the ledger); resume it as "
                    "it was, or start a run of its own"
                )
            if is_plan and run in book.dates:
                raise LedgerError(f"run {run!r} has released before it declared a plan; name another run")
            self._require_kind(declared.noise_source, run)
            if is_plan:
                self._require_affordable(book.combined(declared.events))
            body = declared.to_dict() | {"row": RESERVATION, "nonce": secrets.token_hex(16)} | self.policy.meaning
            return f"plan of {run}" if is_plan else f"recovery {len(earlier)} of {run}", canonical(body)

        if self._appends(prepared):
            return self._book.reservations[-1]
        return next(found for found in self._book.of(run).reservations if found.declared == declared)

    def lost(self) -> list[tuple[str, int, str]]:
        """Rows that the commit log remembers and the chains do not hold: table, sequence and digest."""
        return self._store.lost()

    def recover(self, declared: Declaration) -> Reservation:
        """Charge releases of a lost part of this ledger again, whatever the budget; durable on return.

        What happened can't be refused any more: a recovery is never over budget, and a ledger
        that holds one no longer quotes its budget (``accountant.ledger.pricing``).

        Raises:
            LedgerError: If the run has no plan here, or storage fails.
        """
        if declared.kind != "recovery" or declared.run not in self.book().plans:
            raise LedgerError(f"only what a run with a plan has lost is recovered; {declared.run!r} has none here")
        found = self.reserve(declared)
        self._store.log_commit("recovered", self._book.rows[found.sequence - 1])
        return found

    def charge(
        self,
        release_id: str,
        event: Event,
        *,
        run: str,
        noise_source: str,
        plan_position: int | None = None,
        announced: str | None = None,
    ) -> Receipt:
        """Charge one release: durable on return, or refused with nothing changed.

        Args:
            release_id: Unique name of the release over the ledger's whole life.
            event: What it costs.
            run: The run it belongs to.
            noise_source: "secure", "exact", "simulation" or "none".
            plan_position: Place in the run's plan.
            announced: Digest of points that clients are told, or of who takes part when; the row binds what is kept.

        Raises:
            BudgetExceeded: If the budget does not hold the event.
            LedgerError: If the id was charged for another event, the event does not fit
                the policy, or storage fails.
        """
        require_names(release_id=release_id, run=run)

        def prepared() -> tuple[str, bytes] | None:
            book = self.book()
            if (entry := book.charges.get(release_id)) is not None:
                if (to_dict(entry.event), entry.noise_source) != (to_dict(event), noise_source):
                    raise LedgerError(
                        f"release {release_id!r} was charged as {entry.event} with {entry.noise_source} noise and is "
                        f"now asked for as {event} with {noise_source} noise; give the new release an id of its own"
                    )
                return None
            self._require_kind(noise_source, run)
            self._require_paid(run, event, noise_source)
            content = {
                "release_id": release_id,
                "run": run,
                "event": to_dict(event),
                "sampler": sampler_of(event),
                "noise_source": noise_source,
                "plan_position": plan_position,
                "nonce": secrets.token_hex(16),
                "time": book.dates.get(run) or f"{datetime.now(UTC):%Y-%m-%d}",
            }
            told = {} if announced is None else {"announced": announced}
            return release_id, canonical(self.policy.meaning | content | told)

        known, charged = not self._appends(prepared), self._book.charges[release_id]
        return Receipt(sequence=charged.sequence, head=charged.digest, release_id=release_id, known=known)

    def _appends(self, prepared: Callable[[], tuple[str, bytes] | None]) -> bool:
        """Append the name and body that ``prepared`` gives, durably; False where it gives none: it is known."""
        # Pricing may be slow, so it happens outside the transaction and counts only if the
        # chain has not moved meanwhile; after some lost races it happens inside.
        for _ in range(self.lost_races):
            if (found := prepared()) is None:
                return False
            with self._store.transaction():
                row = self._store.append("charges", *found) if self._is_current() else None
            if row is not None:
                break
        else:
            with self._store.transaction():
                if (found := prepared()) is None:
                    return False
                row = self._store.append("charges", *found)
        self._store.log_commit("charges", row)
        self._book.admit(row)
        return True

    def _is_current(self) -> bool:
        last = self._store.last("charges")
        return (self._book.genesis if last is None else last.digest) == self.head

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
            self._store.log_commit("releases", row)

    def stored_release(self, release_id: str) -> bytes | None:
        """The bytes of a release, or None if none were stored."""
        found = self._store.find("releases", release_id)
        return None if found is None else found.body

    def release_rows(self) -> list[Row]:
        """Rows of the stored releases, in order."""
        return self._store.rows_after("releases", 0, self._store.identity.genesis("releases"))

    @property
    def stored_policy(self) -> str:
        """The policy's text, as the chain's first digest covers it."""
        return self._store.identity.policy

    def verify(self, receipts: Iterable[tuple[int, str]] = ()) -> Verification:
        """Read everything again: storage, both chains, commit log, policy, and the budget.

        Args:
            receipts: Pairs (sequence, head) handed out earlier, from receipts or
                releases; each must still be in the chain.
        """
        problem = self._store.problem()
        if problem is None:
            try:
                self._refresh()  # others may have charged since this object last looked
                lost = [sequence for sequence, head in receipts if self._book.digest_at(sequence) != head]
                problem = self._project(None).reason
                if lost:
                    problem = (
                        f"the charge of a receipt (sequence {lost[0]}) is not in the chain: its tail was lost or "
                        "replaced"
                    )
            except PrivacyError as error:
                problem = str(error)
        return Verification(ok=problem is None, problem=problem, head=self.head, n_entries=len(self._book.entries))

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refresh(self) -> None:
        """Read and verify what others have charged since."""
        last = self._book.rows[-1] if self._book.rows else None
        if last is not None:
            stored = self._store.find("charges", last.release_id)
            if stored is None or stored.digest != last.digest:
                raise LedgerError(f"{self.path}: charge {last.sequence} was seen and is gone; restore the ledger")
        for row in self._store.rows_after("charges", 0 if last is None else last.sequence, self.head):
            self._book.admit(row)

    def _require_kind(self, noise_source: str, run: str) -> None:
        """Refuse a charge of a kind that the ledger does not hold.

        Seeded noise and real noise never share a ledger: one of them would lend the other its name.
        """
        if noise_source not in NOISE_SOURCES:
            raise LedgerError(f"noise_source={noise_source!r} must be one of {NOISE_SOURCES}")
        present, budget = self._book.sources, self.policy.budget
        if noise_source != "none" and present - {noise_source} and "simulation" in present | {noise_source}:
            raise LedgerError(
                f"a charge with {noise_source} noise does not belong on a ledger with {' and '.join(sorted(present))} "
                "noise: simulations carry no guarantee; give it a ledger of its own"
            )
        if budget is not None and budget.rule == "planned" and (others := self._book.runs.keys() - {run}):
            raise LedgerError(
                f"run {run!r} does not belong on the ledger of run {min(others)!r}: its budget holds for one "
                "planned run; give a ledger shared by runs the budget rule 'gaussian', 'envelope' or 'renyi'"
            )

    def _require_paid(self, run: str, event: Event, noise_source: str) -> None:
        """A run with a plan spends its slots; without one every charge is priced on top of all others."""
        plan = self._book.plans.get(run)
        if plan is None:
            if any(part.n_releases > 1 for part, _ in parts(event)):
                raise LedgerError(f"{event} covers several releases; reserve the plan of run {run!r} before the first")
            self._require_affordable(event)
            return
        if not self._book.covers(run, event) or noise_source != plan.declared.noise_source:
            raise LedgerError(
                f"{event} with {noise_source} noise is not in the plan that run {run!r} reserved (row "
                f"{plan.sequence}), or all of its kind are spent; release what was declared"
            )

    def _require_affordable(self, event: Event) -> Projection:
        projection = self._project(event)
        if not projection.allowed:
            raise BudgetExceeded(f"{projection.reason}; nothing was charged")
        if self.gate is not None:
            self.gate(self._book, event)
        return projection

    def _project(self, event: Event | None) -> Projection:
        """Price everything charged, and ``event`` on top of it."""
        if event is not None:
            check_adjacency(event, self.policy.adjacency)
            require_population(event, self.policy.n_clients)
        budget = self.policy.budget
        if budget is None:
            return Projection(allowed=True, reason=None, spent=None, projected=None, head=self.head)
        if event is not None and self._book.paid_again and self.policy.disjoint:
            raise LedgerError("rewards of a recovered ledger may have entered two releases; start a ledger of its own")
        paid = self._paid(budget, afresh=event is None)
        spent = paid.epsilon
        projected = spent if event is None else paid.after(event).epsilon
        allowed = holds(budget.epsilon, spent, projected)
        reason = None if allowed or event is None else paid.obstacle(event)
        if not allowed and reason is None:
            what = "what was charged"
            if event is not None:
                what = f"{event.text}, on top of epsilon {upper_text(spent, 6)},"
            comes, bound = upper_text(projected, 6), upper_text(budget.epsilon, 6)
            reason = (
                f"{what} comes to epsilon {comes} at delta {upper_text(budget.delta)}, over the budget {bound}; privbo "
                "ledger left says what fits"
            )
        return Projection(allowed=allowed, reason=reason, spent=spent, projected=projected, head=self.head)

    def _paid(self, budget: Budget, *, afresh: bool) -> Account:
        """All charges so far, in the order of the chain; ``afresh`` without recoveries, which no budget refuses."""
        if afresh:
            self._account, self._accounted = None, 0
        from accountant.ledger.pricing import opened  # and with it scipy

        account = self._account or opened(self.policy, budget)
        for event in self._book.paid[self._accounted :]:
            account = account.after(event)
        self._account, self._accounted = account, len(self._book.paid)
        for event in () if afresh else self._book.paid_again:
            account = account.after(event)
        return account
