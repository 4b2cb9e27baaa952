"""Budgets that stay valid when the next release depends on earlier outputs, in O(1) a charge.

With every parameter fixed beforehand any accountant composes, and the planned schedule's
epsilon stands, whatever the queries. Once noise, rate, or the number of releases depends on
outputs, only a filter valid for that counts.

Formal guarantees:

| quoted | guaranteed when parameters are chosen from outputs | admits |
|---|---|---|
| ``FixedOrderFilter`` | (epsilon, delta), as long as it admitted every charge | every event |
| ``GaussianFilter`` | the same, and tight | Gaussian releases at rate 1 |
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
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from accountant import gaussian_dp, renyi, tightest
from accountant.checks import check_delta, check_epsilon
from accountant.errors import AccountingError
from accountant.events import Adjacency, Event, check_adjacency, is_non_private, parts

FloatArray = npt.NDArray[np.float64]

ORDERS: Final[FloatArray] = 1.0 + 2.0 ** (np.arange(-16, 41) / 4.0)  # 1.06 to 1025
"""The orders a ledger's state keeps; a conversion reads the best of them."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One event's additive costs: Rényi divergences at ``ORDERS``; mu^2, infinite if not Gaussian."""

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
    mu_squared = gaussian_dp.mu_squared(event)
    return Cost(curve=curve, mu_squared=math.inf if mu_squared is None else mu_squared)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Everything charged so far, in additive costs; starts as ``Spent(adjacency=...)``.

    Attributes:
        adjacency: The ledger's adjacency.
        curve: Summed Rényi divergences at ``ORDERS``.
        mu_squared: Summed mu^2; infinite once anything but a rate-1 Gaussian was charged.
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
        """Epsilon at ``delta`` as if non-adaptive: the best of ``ORDERS``, or Gaussian DP where exact."""
        check_delta(delta)
        if self.mu_squared < math.inf:
            exact = gaussian_dp.epsilon_from_mu(math.sqrt(self.mu_squared), delta) if self.mu_squared else 0.0
            return gaussian_dp.safe_epsilon(exact, delta)
        return float(np.min(renyi.epsilon_at_orders(self.curve, ORDERS, delta)))


@dataclass(frozen=True, kw_only=True)
class FixedOrderFilter:
    """Rényi filter at one of ``ORDERS``; build with ``fixed_order_filter``."""

    epsilon: float
    delta: float
    index: int
    bound: float

    def admits(self, spent: Spent, event: Event, count: int = 1) -> bool:
        """Tell whether the divergence at the order stays within the bound."""
        price = cost(event, spent.adjacency)
        return bool(spent.curve[self.index] + count * price.curve[self.index] <= self.bound)


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """Gaussian-DP filter for releases at rate 1; build with ``gaussian_filter``."""

    epsilon: float
    delta: float
    mu_squared: float

    def admits(self, spent: Spent, event: Event, count: int = 1) -> bool:
        """Tell whether mu^2 stays within the bound; refuses everything that is no rate-1 Gaussian."""
        price = cost(event, spent.adjacency)
        return spent.mu_squared + count * price.mu_squared <= self.mu_squared


Filter: TypeAlias = FixedOrderFilter | GaussianFilter
"""A stopping rule that guarantees its ``epsilon`` at its ``delta`` under full adaptivity, as long as it admits."""


def fixed_order_filter(
    *, epsilon: float, delta: float, plan: Event | None = None, adjacency: Adjacency
) -> FixedOrderFilter:
    """A Rényi filter that guarantees (``epsilon``, ``delta``) whatever is chosen adaptively.

    The order must not depend on outputs: it is the one at which ``plan`` (public, made
    before the run) costs least, or without a plan the one that suits Gaussian releases.

    Raises:
        AccountingError: ``epsilon`` or ``delta`` out of range, or too small for any order.
    """
    check_delta(delta)
    check_epsilon(epsilon)
    shape = ORDERS if plan is None else cost(plan, adjacency).curve
    allowed = epsilon - renyi.epsilon_offsets(ORDERS, delta)
    index = int(np.argmax(allowed / np.maximum(shape, 1e-300)))
    if not allowed[index] > 0.0:
        raise AccountingError(f"no Rényi order up to {ORDERS[-1]:g} leaves room for epsilon={epsilon:g} at {delta=:g}")
    return FixedOrderFilter(epsilon=epsilon, delta=delta, index=index, bound=float(allowed[index]))


def gaussian_filter(*, epsilon: float, delta: float) -> GaussianFilter:
    """A filter for rate-1 Gaussian releases that guarantees (``epsilon``, ``delta``) exactly."""
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
        delta: Where epsilon is quoted; a filter's guarantee is quoted at its own delta only.
        adjacency: The ledger's adjacency.
        plan: The schedule declared before the first release, or None.
        followed: Whether every release was the plan's next one (stopping early is fine).
        admitted_by: The filter that admitted every charge, if there was one.
    """
    candidates = [(math.inf, "nothing: the plan was left, or none was declared, and no valid filter stood guard")]
    if plan is not None and followed:
        candidates.append(
            (tightest.epsilon(plan, delta, adjacency=adjacency), "the plan was declared beforehand and followed")
        )
    if admitted_by is not None and admitted_by.delta <= delta:
        candidates.append((admitted_by.epsilon, f"every charge passed a {type(admitted_by).__name__}"))
    best, because = min(candidates)
    reading = tightest.epsilon(made, delta, adjacency=adjacency) if plan is not None and followed else None
    return Quote(guaranteed=best, because=because, as_if_non_adaptive=reading)
