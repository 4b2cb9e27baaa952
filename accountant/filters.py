"""Budgets that stay valid when the next release depends on earlier outputs: a charge adds one number.

.. versionadded:: 0.3.0

With every parameter fixed beforehand any accountant composes, and the planned schedule's
epsilon stands, whatever the queries. Once noise, rate, or the number of releases depends on
outputs, only a filter valid for that counts.

Formal guarantees:

| quoted | guaranteed when parameters are chosen from outputs | admits |
|---|---|---|
| ``FixedOrderFilter`` | (epsilon, delta), as long as it admitted every charge | every event |
| ``GaussianFilter`` | the same, and tight at rate 1 | Gaussian releases; a sampled one counts as one at rate 1 |
| ``accountant.envelope`` | the same, and tight where every slot is used | releases that a free slot dominates |
| the best Rényi order of what was charged | nothing: it would be chosen after the outputs | every event |
| a numerical privacy-loss distribution | nothing: it would be chosen after the outputs | every event |

``FixedOrderFilter``: the Rényi divergences at ONE order, chosen before the first release, add up
to at most a bound (Feldman & Zrnic 2021, Theorem 3.3). ``GaussianFilter``: mu^2 stays below a
bound (Smith & Thakurta 2022; the privacy loss is then dominated by a stopped Brownian
motion). The last two rows are readings as if nothing had been adaptive.

A filter's state is one number, to which a charge adds its ``cost``; ``accountant.ledger.pricing`` keeps it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from accountant import gaussian_dp, renyi
from accountant.errors import AccountingError
from accountant.events import Adjacency, Composed, Event, check_adjacency, check_delta, check_epsilon
from accountant.mechanisms.pair import FloatArray
from accountant.tight import numerical

ORDERS: Final[FloatArray] = 1.0 + 2.0 ** (np.arange(-16, 41) / 4.0)  # 1.06 to 1025
"""The orders of filters and odometers."""


@dataclass(frozen=True, kw_only=True)
class FixedOrderFilter:
    """Rényi filter at one of ``ORDERS``; build with ``fixed_order_filter``.

    Proof: docs/proofs/filters.md.
    """

    epsilon: float
    delta: float
    order: float
    bound: float
    adjacency: Adjacency

    def cost(self, event: Event) -> float:
        """The divergence at the order, of which all charges together may have ``bound``."""
        return float(renyi.curve(event, [self.order], adjacency=self.adjacency)[0])

    def epsilon_of(self, total: float) -> float:
        """Epsilon at the filter's delta once charges have cost ``total``."""
        # The bound is epsilon less the conversion's offset, so this is epsilon at the order.
        return self.epsilon - self.bound + total

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that the bound guarantees at any delta."""
        found = renyi.epsilon_at_orders(np.array([self.bound]), np.array([self.order]), delta)[0]
        return _elsewhere(self, float(found), delta)


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """Gaussian-DP filter; a sampled release counts as one of all clients. Build with ``gaussian_filter``.

    Proof: docs/proofs/filters.md.
    """

    epsilon: float
    delta: float
    bound: float

    def cost(self, event: Event) -> float:
        """mu^2 as if all clients took part; infinite for everything that is no Gaussian release."""
        return gaussian_dp.mu_squared_at_rate_one(event)

    def epsilon_of(self, total: float) -> float:
        """Epsilon at the filter's delta once charges have cost ``total``."""
        return gaussian_dp.epsilon_of(total, self.delta)

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that the bound guarantees at any delta."""
        return _elsewhere(self, gaussian_dp.epsilon_of(self.bound, delta), delta)


def _elsewhere(at_its_own: FixedOrderFilter | GaussianFilter, found: float, delta: float) -> float:
    """Epsilon at any delta, where the bound alone gives ``found``: never more than at a smaller delta."""
    if delta == at_its_own.delta:
        return at_its_own.epsilon
    return min(found, at_its_own.epsilon) if delta > at_its_own.delta else found


class Filter(Protocol):
    """A stopping rule that guarantees a privacy curve under full adaptivity, as long as it admits every charge."""

    def epsilon_at(self, delta: float) -> float:
        """Epsilon that it guarantees at ``delta``."""


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
        check_adjacency(plan or Composed(), adjacency)
        shape = ORDERS if plan is None else renyi.curve(plan, ORDERS, adjacency=adjacency)
        index = int(np.argmax(allowed / np.maximum(shape, 1e-300)))
    if not allowed[index] > 0.0:
        none = (
            f"no Rényi order up to {ORDERS[-1]:g} leaves" if order is None else f"the Rényi order {order:g} leaves no"
        )
        raise AccountingError(f"{none} room for epsilon={epsilon:g} at {delta=:g}; raise epsilon or delta")
    return FixedOrderFilter(
        epsilon=epsilon, delta=delta, order=float(ORDERS[index]), bound=float(allowed[index]), adjacency=adjacency
    )


def gaussian_filter(*, epsilon: float, delta: float) -> GaussianFilter:
    """A filter for Gaussian releases that guarantees (``epsilon``, ``delta``), exactly at full participation."""
    check_delta(delta)
    check_epsilon(epsilon)
    mu = gaussian_dp.mu_from_epsilon(epsilon, delta)
    return GaussianFilter(epsilon=epsilon, delta=delta, bound=mu * mu)


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
