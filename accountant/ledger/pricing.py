"""What a ledger has paid: its price under the budget's rule, the total that may be quoted, and what is left.

An ``Account`` is what a ledger has spent so far; it is added to in the order of the chain, because an
envelope's slots are taken in that order. The rules that stand guard over later choices are caps on one number that
adds up: a charge adds its own, whatever was charged before. A plan and releases that share no unit are composed.

Formal guarantees of a total, for everything a ledger has spent (``Ledger.committed``):

| rule | when | what is printed |
|---|---|---|
| together | plans were reserved before the first release of any, and nothing else | tight composition of plans |
| nothing shared | no unit enters two releases (``LedgerPolicy.disjoint``) | the most expensive release |
| filter | a rule that held since the ledger's creation (``Budget.rule``) | what its filter guarantees at that delta |
| odometer | else | an odometer's reading |

Tight composition of what happened to be released is never among them: a later plan, or a
charge in addition to the plans, may have been chosen after earlier outputs, and the numerical
accountants hold for what was fixed beforehand. Plans that were fixed beforehand may be played
in any order, even one chosen from outputs: they are run concurrently, and f-DP composes
concurrently as it does in sequence (Vadhan and Zhang 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from accountant import calibrate, gaussian_dp, renyi
from accountant.envelope import Envelope, Places, free_places
from accountant.errors import LedgerError
from accountant.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Json,
    check_adjacency,
    check_delta,
    compose,
    is_non_private,
    most_expensive,
    parts,
    repeat,
)
from accountant.filters import ORDERS, FixedOrderFilter, GaussianFilter, fixed_order_filter, gaussian_filter
from accountant.ledger.book import Book
from accountant.ledger.policy import Budget, LedgerPolicy, Rule
from accountant.mechanisms.pair import FloatArray
from accountant.tight import numerical
from accountant.verify.text import at_least
from accountant.wording import counted, upper_text


@dataclass(frozen=True, kw_only=True)
class Account:
    """Everything charged so far, under one rule; never changed. ``opened`` makes the first of a ledger.

    Attributes:
        state: What the rule keeps of it: a number, a composition, a Rényi curve, or free slots.
        add: The state with one event more.
        price: Epsilon of a state at the budget's delta; infinite where the rule admits no such event.
        free: Slots of a state that are still free; None under a rule without slots.
        refuses: Why there is no price for an event in a state, whatever the bound; None under a rule that prices all.
    """

    state: Any
    add: Callable[[Any, Event], Any]
    price: Callable[[Any], float]
    free: Callable[[Any], Composed] | None = None
    refuses: Callable[[Any, Event], str | None] | None = None

    @cached_property
    def epsilon(self) -> float:
        """Its price."""
        return self.price(self.state)

    def after(self, event: Event) -> Account:
        """The account with ``event`` charged on top."""
        return replace(self, state=self.add(self.state, event))

    @property
    def left(self) -> Composed | None:
        """Slots that are still free; None under a rule without slots."""
        return None if self.free is None else self.free(self.state)

    def obstacle(self, event: Event) -> str | None:
        """Why the rule has no price for ``event`` on top, whatever the bound; None if it has one."""
        return None if self.refuses is None else self.refuses(self.state, event)


def opened(policy: LedgerPolicy, budget: Budget) -> Account:
    """The account of a ledger without charges.

    Raises:
        AccountingError: If the budget is too small for any release.
        LedgerError: If an envelope costs more than its bound, or has no meaning under the policy.
    """
    guard = filter_under(budget, policy.adjacency)
    if isinstance(guard, Envelope):
        return _slots(guard, policy, budget)
    refuses = _refused if budget.rule == "gaussian" else None
    if guard is not None and not policy.disjoint:  # sums are rounded up

        def added(total: float, event: Event) -> float:
            return math.nextafter(total + guard.cost(event), math.inf) if parts(event) else total

        return Account(
            state=0.0, add=added, price=lambda total: guard.epsilon_of(total) if total else 0.0, refuses=refuses
        )

    def price(paid: Composed | FloatArray) -> float:
        if not isinstance(paid, Composed):
            return float(np.min(renyi.epsilon_at_orders(paid, ORDERS, budget.delta)))
        if guard is None:
            return numerical.epsilon(paid, budget.delta, adjacency=policy.adjacency)
        return guard.epsilon_of(guard.cost(paid)) if paid.parts else 0.0

    def joined(paid: Composed | FloatArray, event: Event) -> Composed | FloatArray:
        """A plan alone is priced tightly; with charges outside of it, many different ones by a sum of curves."""
        if not isinstance(paid, Composed):
            return np.nextafter(paid + renyi.curve(event, ORDERS, adjacency=policy.adjacency), math.inf)
        whole = compose((paid, event))
        tight = not paid.parts or len(whole.parts) <= MANY
        return whole if tight else renyi.curve(whole, ORDERS, adjacency=policy.adjacency)

    add = (lambda paid, event: most_expensive((paid, event))) if policy.disjoint else joined
    return Account(state=Composed(), add=add, price=price, refuses=refuses)


def _slots(reserved: Envelope, policy: LedgerPolicy, budget: Budget) -> Account:
    """The account of an envelope: all slots are charged with the first release; no state is a release without one."""
    if policy.disjoint:
        raise LedgerError("where releases share no unit the most expensive one counts, not slots; drop the rule")
    whole, untaken = reserved.epsilon_at(budget.delta), free_places(reserved)
    if whole > budget.epsilon:
        raise LedgerError(
            f"the slots together cost epsilon {upper_text(whole, 6)} at delta {upper_text(budget.delta)}, over the "
            f"bound {upper_text(budget.epsilon, 6)}; declare fewer, a lower rate, more noise, or a larger epsilon"
        )

    def take(places: Places | None, event: Event) -> Places | None:
        return None if places is None else places.take(event)

    def price(places: Places | None) -> float:
        return math.inf if places is None else 0.0 if places == untaken else whole

    def free(places: Places | None) -> Composed:
        kinds = () if places is None else zip(reserved.slots, places.free, strict=True)
        return compose([(slot, count) for (slot, _), count in kinds if count])

    def refuses(places: Places | None, event: Event) -> str | None:
        if take(places, event) is not None:
            return None
        return (
            f"no free slots of this ledger's envelope dominate {event.text} "
            f"(free: {free(places).text or 'none'}); "
            "a slot takes a release of no larger rate and no smaller noise multiplier"
        )

    return Account(state=untaken, add=take, price=price, free=free, refuses=refuses)


def _refused(_: object, event: Event) -> str | None:
    if gaussian_dp.mu_squared_at_rate_one(event) < math.inf:
        return None
    where = "of its own" if is_non_private(event) else "with the rule 'renyi'"
    return (
        f"the ledger's rule 'gaussian' admits Gaussian releases only, not: {event.text}; charge it to a ledger {where}"
    )


def filter_under(budget: Budget | None, adjacency: Adjacency) -> FixedOrderFilter | GaussianFilter | Envelope | None:
    """The filter that a budget stands for; None without one, or where a plan makes the bound hold."""
    if budget is None or budget.rule == "planned":
        return None
    if budget.rule == "gaussian":
        return gaussian_filter(epsilon=budget.epsilon, delta=budget.delta)
    if budget.rule == "envelope":
        return Envelope(slots=budget.slots, adjacency=adjacency)
    return fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order, adjacency=adjacency)


TOGETHER = "tight composition; every plan was declared before the first release of any"
DISJOINT = "no reward enters two releases: the most expensive one counts"
FILTER = "plans were chosen one after another: the bound that the ledger has kept since its creation"
KEPT: dict[Rule, str] = {
    "planned": "one run's plan, priced tightly",
    "gaussian": "exact where all clients take part",
    "renyi": "at one Rényi order",
    "envelope": "slots reserved and priced tightly together",
}
"""The rules in words."""
ODOMETER = "plans or charges were added after releases: an odometer, which holds however they were chosen"
NOTHING = "nothing was charged yet"

MANY = 32
"""Different events, a plan's own included, that are priced tightly together where some are charged outside of it."""

_ODOMETER = ORDERS[(ORDERS >= 1.5) & (ORDERS <= 260.0)][::2]


@dataclass(frozen=True, kw_only=True)
class Total:
    """Epsilon of everything charged, and why it holds.

    Attributes:
        epsilon: Upper bound; infinite if anything came without privacy.
        delta: Where it holds, in (0, 1).
        rule: The rule, in words.
        runs: Number of runs that reserved or charged.
        releases: Number of releases that were charged; those that were made are no more.
        bound: What the ledger's bound is at this delta, where several runs may share it; None where none holds.
        charged: What the bound's rule has charged of it so far. That alone guarantees nothing where a later plan may
            have been chosen after earlier releases: the bound does.
    """

    epsilon: float
    delta: float
    rule: str
    runs: int
    releases: int
    bound: float | None = None
    charged: float | None = None

    @property
    def words(self) -> str:
        """The same with the rule."""
        return f"{self.held} ({self.rule})"

    @property
    def held(self) -> str:
        """What holds for everything that was charged, the bound, and what was charged of it so far."""
        runs = counted(self.runs, "run") + " together" * (self.runs > 1)
        held = f"at most epsilon {upper_text(self.epsilon)} at delta {upper_text(self.delta)} for {runs}"
        if self.bound is None:
            return held
        bound, charged = upper_text(self.bound), f"{upper_text(self.charged)} of it has been charged so far"
        if upper_text(self.epsilon) == bound:
            return f"{held}: the bound that this ledger keeps for all of its runs; {charged}"
        return f"{held}; the bound that this ledger keeps for all of its runs is {bound}; {charged}"


def total(book: Book, delta: float) -> Total:
    """Price everything that a ledger has spent.

    Args:
        book: Of an open ledger (``Ledger.book()``).
        delta: Where epsilon is quoted.

    Raises:
        AccountingError: If delta lies outside (0, 1).
    """
    check_delta(delta)
    budget = None if book.paid_again else book.policy.budget  # which no recovery was held to
    held = None if budget is None else _held(book, budget, delta)
    account = None if held is None else _charged(book, held)
    epsilon, rule = _priced(book, delta, held, account)
    if held is not None and held.rule == "planned" and not rule.startswith(FILTER):
        held = account = None  # one run's own: its plan is what is quoted
    return Total(
        epsilon=epsilon,
        delta=delta,
        rule=rule,
        runs=len(book.runs),
        releases=sum(r.declared.releases for r in book.reservations) + len(book.unplanned),
        bound=None if held is None else held.epsilon,
        charged=None if account is None else account.epsilon,
    )


def _priced(book: Book, delta: float, held: Budget | None, account: Account | None) -> tuple[float, str]:
    """Epsilon and its rule, the budget's with what is left of reserved slots where that is what is guaranteed."""
    paid, adjacency = book.committed, book.policy.adjacency
    if not parts(paid):
        return 0.0, NOTHING
    disjoint = book.policy.disjoint and not book.paid_again
    if disjoint or book.declared_together:
        epsilon = min(numerical.epsilon_table(paid, delta, adjacency=adjacency).values())
        return epsilon, DISJOINT if disjoint else TOGETHER
    if held is None or account is None:
        return odometer([paid], delta, adjacency=adjacency), ODOMETER
    if (free := account.left) is None:
        return held.epsilon, f"{FILTER} ({KEPT[held.rule]})"
    return account.epsilon, f"{FILTER} ({KEPT[held.rule]}; free: {free.text or 'none'})"


def _held(book: Book, budget: Budget, delta: float) -> Budget | None:
    """The same bound at another delta; None where it says nothing there."""
    if delta == budget.delta:
        return budget
    guard = filter_under(budget, book.policy.adjacency)
    if guard is None:
        return replace(budget, delta=delta) if delta > budget.delta else None
    order = guard.order if isinstance(guard, FixedOrderFilter) else None
    return replace(budget, epsilon=guard.epsilon_at(delta), delta=delta, order=order)


def _charged(book: Book, budget: Budget) -> Account:
    """The account of everything that was charged, under a bound."""
    account = opened(book.policy, budget)
    for event in book.all_paid:
        account = account.after(event)
    return account


def odometer_delta(paid: Sequence[Event], epsilon: float, *, adjacency: Adjacency) -> float:
    """Delta at which ``odometer`` gives an epsilon: the inverse, from the same orders; at most 1."""
    bounds = math.log(len(_ODOMETER)) - (epsilon - _spent(paid, adjacency)) * (_ODOMETER - 1.0)
    return min(1.0, math.exp(min(0.0, float(np.min(bounds)))))


def odometer(paid: Sequence[Event], delta: float, *, adjacency: Adjacency) -> float:
    """Epsilon that holds at every moment, with one delta for all of them.

    Proof: docs/proofs/filters.md.

    Let L_t be the privacy loss of everything made until t and R_t(a) the sum of the Rényi
    divergences of order a of what was charged until then; both may depend on outputs. Then
    exp((a - 1)(L_t - R_t(a))) is a supermartingale that starts at 1, so by Ville's inequality
    L_t <= R_t(a) + ln(1/d)/(a - 1) for all t at once but for probability d. With d = delta/K
    at each of K orders fixed here, the smallest of the K bounds holds (Whitehouse, Ramdas,
    Rogers and Wu 2023 give odometers of this form).

    Args:
        paid: Events that were charged; a run that released less is covered, too.
        delta: The probability that is added to epsilon's bound, over the ledger's whole life.
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


_QUIETEST, _STEPS = 1e6, 40  # the largest noise multiplier that is tried; steps of a bisection
_MOST = 1 << 30  # releases


@dataclass(frozen=True, kw_only=True)
class Left:
    """Budget that is left on a ledger; public.

    Attributes:
        delta: Where the epsilons hold.
        spent: Epsilon of everything charged so far, by the ledger's own rule; rounded up.
        bound: Epsilon that all charges together never pass; None on a ledger without a bound.
        rule: What makes the bound hold; None without one.
        noise_multiplier: Smallest noise multiplier of one more Gaussian release that all clients take part in. None if
            the bound admits none, or there is no bound.
        slots: Free slots of an envelope, in words; None under other rules.
        releases: Number of further releases of the event that was asked about; None if none was.
    """

    delta: float
    spent: float
    bound: float | None
    rule: Rule | None
    noise_multiplier: float | None
    slots: str | None = None
    releases: int | None = None

    @property
    def epsilon(self) -> float | None:
        """Difference of bound and spent, at least 0; None without a bound.

        Epsilons do not add up under any rule, so a run that alone costs this difference may or may not fit;
        ``noise_multiplier`` and ``releases`` are exact.
        """
        return None if self.bound is None else max(0.0, self.bound - self.spent)

    def to_dict(self) -> Json:
        """Plain values, with the difference."""
        return asdict(self) | {"epsilon": self.epsilon}

    @property
    def words(self) -> str:
        """The same in a sentence or two."""
        charged, at = upper_text(self.spent), f"at delta {upper_text(self.delta)}"
        if self.bound is None:
            return f"epsilon {charged} {at} has been charged so far; this ledger has no bound"
        found = f"the bound that this ledger keeps for all of its runs is epsilon {upper_text(self.bound)} {at}; "
        if self.spent > self.bound:  # lost releases were charged again
            return f"{found}it was passed: {charged} has been charged so far"
        found += f"{charged} of it has been charged so far, {at_least(self.epsilon or 0.0)} is left"
        if self.slots is not None:
            found += f"; free slots: {self.slots}"
        elif self.noise_multiplier is None:
            found += "; no further Gaussian release fits"
        else:
            z = upper_text(self.noise_multiplier)
            found += f"; one more Gaussian release of all clients fits from noise multiplier {z} on"
        return found if self.releases is None else f"{found}; of the release asked about {self.releases} more fit"


def left_of(book: Book, delta: float | None, event: Event | None, *, admits: Callable[[Event], bool]) -> Left:
    """Compute what is left under the bound of a ledger with these rows; see ``Ledger.left``.

    Args:
        book: The ledger's rows.
        delta: Where epsilon is quoted; None for the budget's.
        event: A release that is asked about.
        admits: Tells whether the ledger would admit an event now.

    Raises:
        LedgerError: If there is no bound at this delta, or no delta is known.
    """
    budget = book.policy.budget
    if budget is None:
        if delta is None:
            raise LedgerError("this ledger has no bound and so no delta of its own; name one")
        spent = total(book, delta).epsilon
        return Left(delta=delta, spent=spent, bound=None, rule=None, noise_multiplier=None)
    if delta is not None:
        check_delta(delta)
    held = budget if delta is None else _held(book, budget, delta)
    if held is None:
        raise LedgerError(
            f"delta={delta:g}: this ledger's bound holds at delta={budget.delta:g} and above; ask for that, or more"
        )
    account = _charged(book, held)
    free = account.left
    return Left(
        delta=held.delta,
        spent=account.epsilon,
        bound=held.epsilon,
        rule=budget.rule,
        noise_multiplier=_loudest(admits) if free is None else None,
        slots=None if free is None else free.text or "none",
        releases=None if event is None else calibrate.largest_count(lambda n: admits(repeat(event, n)), _MOST),
    )


def _loudest(admits: Callable[[Event], bool]) -> float | None:
    """The smallest noise multiplier of a Gaussian release that is admitted, from above; None if none is."""
    high, low = 1.0, 1.0
    while not admits(Gaussian(noise_multiplier=high)):
        if high >= _QUIETEST:
            return None
        low, high = high, 4.0 * high
    while admits(Gaussian(noise_multiplier=low)) and low > 1.0 / _QUIETEST:
        low, high = low / 4.0, low
    for _ in range(_STEPS):
        if high <= low * (1.0 + 1e-6):
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if admits(Gaussian(noise_multiplier=middle)) else (middle, high)
    return high
