"""The total of a ledger, or of one run on it, with the rule that makes it hold.

Formal guarantees, for everything a ledger has paid (``Ledger.committed``):

| rule | when | what is printed |
|---|---|---|
| together | plans were reserved before the first release of any, nothing beside them | tight composition of plans |
| nothing shared | no unit enters two releases (``LedgerPolicy.disjoint``) | the dearest release |
| filter | a rule that held since the ledger's creation (``Budget.rule``) | what its filter guarantees at that delta |
| odometer | else | an odometer's reading |

Tight composition of what happened to be released is never among them: a later plan, or a
charge beside the plans, may have been chosen after earlier outputs, and the numerical
accountants hold for what was fixed beforehand. Plans that were fixed beforehand may be played
in any order, even one chosen from outputs: they are run concurrently, and f-DP composes
concurrently as it does in sequence (Vadhan and Zhang 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accountant import renyi
from accountant.checks import check_delta
from accountant.events import Adjacency, Event, check_adjacency, parts
from accountant.filters import ORDERS, FloatArray
from accountant.ledger.policy import Budget, Rule
from accountant.wording import event_text

if TYPE_CHECKING:
    from accountant.ledger.book import Book

TOGETHER = "every plan was declared before the first release of any: tight composition of all of them"
DISJOINT = "no reward enters two releases: the dearest one counts"
FILTER = "plans were chosen one after another: the bound that the ledger has kept since its creation"
KEPT: dict[Rule, str] = {
    "planned": "one run's plan, priced tightly",
    "gaussian": "exact where everybody takes part",
    "renyi": "at one Rényi order",
    "envelope": "slots reserved and priced tightly together",
}
"""The rules in words."""
ODOMETER = "plans or charges were added after releases: an odometer, which holds however they were chosen"
NOTHING = "nothing was paid yet"

_ODOMETER = ORDERS[(ORDERS >= 1.5) & (ORDERS <= 260.0)][::2]


@dataclass(frozen=True, kw_only=True)
class Total:
    """Epsilon of everything paid, and why it holds.

    Attributes:
        epsilon: Upper bound; infinite if anything came without privacy.
        delta: Where it holds, in (0, 1).
        rule: The rule, in words.
        runs: Number of runs that reserved or charged.
        releases: Number of releases that were paid for; those that were made are no more.
    """

    epsilon: float
    delta: float
    rule: str
    runs: int
    releases: int


def total(book: Book, delta: float, *, run: str | None = None) -> Total:
    """Price everything that a ledger, or one run on it, has paid.

    Args:
        book: Of an open ledger (``Ledger.book()``).
        delta: Where epsilon is quoted.
        run: Name of a run; None for the whole population.

    Raises:
        AccountingError: If delta lies outside (0, 1).
    """
    check_delta(delta)
    paid = book.committed if run is None else book.committed_by(run)
    epsilon, rule = _priced(book, paid, delta, run)
    reserved = [r for r in book.reservations if run in (None, r.run)]
    outside = [entry for entry in book.unplanned if run in (None, entry.run)]
    return Total(
        epsilon=epsilon,
        delta=delta,
        rule=rule,
        runs=len({r.run for r in reserved} | {entry.run for entry in outside}),
        releases=sum(r.declared.releases for r in reserved) + len(outside),
    )


def _priced(book: Book, paid: Event, delta: float, run: str | None) -> tuple[float, str]:
    from accountant.tightest import epsilon_table

    adjacency, budget = book.policy.adjacency, book.policy.budget
    if not parts(paid):
        return 0.0, NOTHING
    recovered = book.is_recovered(run)
    if book.policy.disjoint and not recovered:
        return min(epsilon_table(paid, delta, adjacency=adjacency).values()), DISJOINT
    if book.declared_together(run):
        return min(epsilon_table(paid, delta, adjacency=adjacency).values()), TOGETHER
    if run is None and budget is not None and not recovered and (found := _kept(book, budget, delta)) is not None:
        return found
    return odometer([paid], delta, adjacency=adjacency), ODOMETER


def _kept(book: Book, budget: Budget, delta: float) -> tuple[float, str] | None:
    """Guarantee of the budget's filter, and its rule with what is left of reserved slots; None at another delta."""
    from accountant.ledger.pricing import filter_under, opened

    guard = filter_under(budget, book.policy.adjacency)
    if guard is None:
        return (budget.epsilon, f"{FILTER} ({KEPT[budget.rule]})") if budget.delta <= delta else None
    account = opened(book.policy, budget)
    for event in book.paid:
        account = account.after(event)
    free = "" if (left := account.left) is None else f"; free: {event_text(left) or 'none'}"
    return guard.epsilon_at(delta), f"{FILTER} ({KEPT[budget.rule]}{free})"


def odometer_delta(paid: Sequence[Event], epsilon: float, *, adjacency: Adjacency) -> float:
    """Delta at which ``odometer`` gives an epsilon: the inverse, from the same orders; at most 1."""
    bounds = math.log(len(_ODOMETER)) - (epsilon - _spent(paid, adjacency)) * (_ODOMETER - 1.0)
    return min(1.0, math.exp(min(0.0, float(np.min(bounds)))))


def odometer(paid: Sequence[Event], delta: float, *, adjacency: Adjacency) -> float:
    """Epsilon that holds at every moment, with one failure probability delta for all of them.

    Proof: docs/proofs/filters.md.

    Let L_t be the privacy loss of everything made until t and R_t(a) the sum of the Rényi
    divergences of order a of what was paid until then; both may depend on outputs. Then
    exp((a - 1)(L_t - R_t(a))) is a supermartingale that starts at 1, so by Ville's inequality
    L_t <= R_t(a) + ln(1/d)/(a - 1) for all t at once but for probability d. With d = delta/K
    at each of K orders fixed here, the smallest of the K bounds holds (Whitehouse, Ramdas,
    Rogers and Wu 2023 give odometers of this form).

    Args:
        paid: Events that were paid for; whoever released less is covered, too.
        delta: Failure probability over the ledger's whole life.
        adjacency: The ledger's.

    Example:
        >>> from accountant import Gaussian, repeat
        >>> round(odometer([repeat(Gaussian(noise_multiplier=8.0), 4)], 1e-5, adjacency=Adjacency.ZERO_OUT), 2)
        1.38
    """
    check_delta(delta)
    return float(np.min(_spent(paid, adjacency) + math.log(len(_ODOMETER) / delta) / (_ODOMETER - 1.0)))


def _spent(paid: Sequence[Event], adjacency: Adjacency) -> FloatArray:
    """Summed divergences at the odometer's orders."""
    for event in paid:
        check_adjacency(event, adjacency)
    return np.asarray(sum(renyi.curve(event, _ODOMETER, adjacency=adjacency) for event in paid), dtype=np.float64)
