"""Budgets that stay valid when the next release depends on earlier outputs, in O(1) a charge.

With every parameter fixed beforehand any accountant composes, and the planned schedule's
epsilon stands, whatever the queries. Once noise, rate, or the number of releases depends on
outputs, only a filter valid for that counts.

Formal guarantees:

| quoted | guaranteed when parameters are chosen from outputs | admits |
|---|---|---|
| ``FixedOrderFilter`` | (epsilon, delta), as long as it admitted every charge | every event |
| ``GaussianFilter`` | the same, and tight at rate 1 | Gaussian releases; a sampled one counts as one at rate 1 |
| ``accountant.envelope`` | the same, and tight where every slot is used | releases that a free slot dominates |
| ``Spent.epsilon`` | nothing: the order would be chosen after the outputs | every event |
| a numerical privacy-loss distribution | nothing: it would be chosen after the outputs | every event |

``FixedOrderFilter``: the Rényi divergences at ONE order, chosen before the first release, add up
to at most a bound (Feldman & Zrnic 2021, Theorem 3.3). ``GaussianFilter``: mu^2 stays below a
bound (Smith & Thakurta 2022; the privacy loss is then dominated by a stopped Brownian
motion). The last two rows are readings as if nothing had been adaptive.

``Spent`` is the state a ledger keeps: adding an event is one cached vector sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from accountant import gaussian_dp, renyi
from accountant.checks import check_delta, check_epsilon
from accountant.errors import AccountingError
from accountant.events import Adjacency, Event, check_adjacency, is_non_private, parts
from accountant.tight import numerical

FloatArray = npt.NDArray[np.float64]

ORDERS: Final[FloatArray] = 1.0 + 2.0 ** (np.arange(-16, 41) / 4.0)  # 1.06 to 1025
"""The orders a ledger's state keeps; a conversion reads the best of them."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One event's additive costs: Rényi divergences at ``ORDERS``; mu^2 at rate 1, infinite if not Gaussian."""

    curve: FloatArray
    mu_squared: float


@lru_cache(maxsize=65536)
def cost(event: Event, adjacency: Adjacency) -> Cost:
    """The additive costs of ``event``, cached; a non-private event costs infinity.

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_adjacency(event, adjacency)
    if is_non_private(event):
        return Cost(curve=np.full_like(ORDERS, math.inf), mu_squared=math.inf)
    curve = renyi.curve(event, ORDERS, adjacency=adjacency)
    curve.flags.writeable = False
    return Cost(curve=curve, mu_squared=gaussian_dp.mu_squared_at_rate_one(event))


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Everything charged so far, in additive costs; starts as ``Spent(adjacency=...)``.

    Attributes:
        adjacency: The ledger's adjacency.
        curve: Summed Rényi divergences at ``ORDERS``.
        mu_squared: Summed mu^2 as if everybody took part; infinite once anything but a Gaussian was charged.
        releases: Number of basic releases.
    """

    adjacency: Adjacency
    curve: FloatArray = field(default_factory=lambda: np.zeros_like(ORDERS))
    mu_squared: float = 0.0
    releases: int = 0

    def add(self, event: Event, count: int = 1) -> Self:
        """The state after ``event`` was made ``count`` more times; this one stays as it is."""
        price = cost(event, self.adjacency)
        return type(self)(
            adjacency=self.adjacency,
            curve=self.curve + count * price.curve,
            mu_squared=self.mu_squared + count * price.mu_squared,
            releases=self.releases + count * sum(times for _, times in parts(event)),
        )

    def epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` as if non-adaptive: the best of ``ORDERS`` and of Gaussian DP."""
        check_delta(delta)
        if not self.releases:
            return 0.0
        by_order = renyi.epsilon_at_orders(self.curve, ORDERS, delta)
        return min(float(np.min(by_order)), gaussian_dp.epsilon_of(self.mu_squared, delta))


@dataclass(frozen=True, kw_only=True)
class FixedOrderFilter:
    """Rényi filter at one of ``ORDERS``; build with ``fixed_order_filter``.

    Proof: docs/proofs/filters.md.
    """

    epsilon: float
    delta: float
    index: int
    bound: float

    @property
    def order(self) -> float:
        """The Rényi order."""
        return float(ORDERS[self.index])

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that the bound guarantees at any delta."""
        if delta == self.delta:
            return self.epsilon
        found = renyi.epsilon_at_orders(np.array([self.bound]), ORDERS[[self.index]], delta)[0]
        return min(float(found), self.epsilon) if delta >= self.delta else float(found)

    def admits(self, spent: Spent, event: Event, count: int = 1) -> bool:
        """Tell whether the divergence at the order stays within the bound."""
        price = cost(event, spent.adjacency)
        return bool(spent.curve[self.index] + count * price.curve[self.index] <= self.bound)


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """Gaussian-DP filter; a sampled release counts as one to everybody. Build with ``gaussian_filter``.

    Proof: docs/proofs/filters.md.
    """

    epsilon: float
    delta: float
    mu_squared: float

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that the bound guarantees at any delta."""
        if delta == self.delta:
            return self.epsilon
        found = gaussian_dp.epsilon_of(self.mu_squared, delta)
        return min(found, self.epsilon) if delta >= self.delta else found

    def admits(self, spent: Spent, event: Event, count: int = 1) -> bool:
        """Tell whether mu^2 stays within the bound; refuses everything that is no Gaussian release."""
        price = cost(event, spent.adjacency)
        return spent.mu_squared + count * price.mu_squared <= self.mu_squared


class Filter(Protocol):
    """A stopping rule that guarantees a privacy curve under full adaptivity, as long as it admits every charge."""

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that it guarantees at ``delta``."""
        ...


def fixed_order_filter(
    *, epsilon: float, delta: float, plan: Event | None = None, order: float | None = None, adjacency: Adjacency
) -> FixedOrderFilter:
    """A Rényi filter that guarantees (``epsilon``, ``delta``) whatever is chosen adaptively.

    The order must not depend on outputs: it is the one at which most copies of ``plan`` (public,
    made before the first release) fit, or without a plan the one that suits Gaussian releases.

    Args:
        epsilon: Bound.
        delta: Where it holds, in (0, 1).
        plan: Releases that are expected.
        order: One of ``ORDERS`` instead, as it was found before.
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``epsilon`` or ``delta`` out of range or too small for the order, or an unknown order.
    """
    check_delta(delta)
    check_epsilon(epsilon)
    allowed = epsilon - renyi.epsilon_offsets(ORDERS, delta)
    if order is not None:
        index = int(np.argmin(np.abs(ORDERS - order)))
        if not math.isclose(ORDERS[index], order, rel_tol=1e-9):
            raise AccountingError(f"order={order!r} is none of the ledger's; the nearest is {ORDERS[index]:.6g}")
    else:
        shape = ORDERS if plan is None else cost(plan, adjacency).curve
        index = int(np.argmax(allowed / np.maximum(shape, 1e-300)))
    if not allowed[index] > 0.0:
        none = (
            f"no Rényi order up to {ORDERS[-1]:g} leaves" if order is None else f"the Rényi order {order:g} leaves no"
        )
        raise AccountingError(f"{none} room for epsilon={epsilon:g} at {delta=:g}; raise epsilon or delta")
    return FixedOrderFilter(epsilon=epsilon, delta=delta, index=index, bound=float(allowed[index]))


def gaussian_filter(*, epsilon: float, delta: float) -> GaussianFilter:
    """A filter for Gaussian releases that guarantees (``epsilon``, ``delta``), exactly where everybody takes part."""
    check_delta(delta)
    check_epsilon(epsilon)
    mu = gaussian_dp.mu_from_epsilon(epsilon, delta)
    return GaussianFilter(epsilon=epsilon, delta=delta, mu_squared=mu * mu)


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Epsilon that a report may print, and why it holds.

    Attributes:
        guaranteed: Epsilon that holds whatever was adaptive; infinite if nothing does.
        because: Which argument makes it hold.
        as_if_non_adaptive: Tight epsilon of what was made, None once the plan was left.
    """

    guaranteed: float
    because: str
    as_if_non_adaptive: float | None


def quote(
    made: Event,
    delta: float,
    *,
    adjacency: Adjacency,
    plan: Event | None,
    followed: bool,
    admitted_by: Filter | None = None,
) -> Quote:
    """Give the epsilon that may be quoted for the releases ``made``.

    Args:
        made: Everything charged.
        delta: Where epsilon is quoted.
        adjacency: The ledger's adjacency.
        plan: The schedule declared before the first release, or None.
        followed: Whether every release was the plan's next one (stopping early is fine).
        admitted_by: The filter that admitted every charge, if there was one.
    """
    candidates = [(math.inf, "nothing: the plan was left, or none was declared, and no valid filter stood guard")]
    if plan is not None and followed:
        candidates.append(
            (numerical.epsilon(plan, delta, adjacency=adjacency), "the plan was declared beforehand and followed")
        )
    if admitted_by is not None:
        candidates.append(
            (admitted_by.epsilon_at(delta), f"every charge passed the ledger's filter ({type(admitted_by).__name__})")
        )
    best, because = min(candidates)
    reading = numerical.epsilon(made, delta, adjacency=adjacency) if plan is not None and followed else None
    return Quote(guaranteed=best, because=because, as_if_non_adaptive=reading)
