"""Price of everything charged under a budget: its epsilon by the budget's own rule."""

from __future__ import annotations

import math
from collections.abc import Callable

from accountant.events import Adjacency, Composed
from accountant.ledger.policy import Budget

Price = Callable[[Composed], float]


def price_under(budget: Budget, adjacency: Adjacency) -> Price:
    """The price of a composition under ``budget.rule``; infinite where the rule admits no such event.

    Every rule is a cap on something that adds up over releases, so a charge is priced from
    the distinct events so far, however many there are of each.
    """
    if budget.rule == "planned":
        return _planned(budget, adjacency)
    return _gaussian(budget) if budget.rule == "gaussian" else _renyi(budget, adjacency)


def _planned(budget: Budget, adjacency: Adjacency) -> Price:
    from accountant.epsilon import epsilon

    return lambda event: epsilon(event, budget.delta, adjacency=adjacency) if event.parts else 0.0


def _gaussian(budget: Budget) -> Price:
    from accountant import gaussian_dp

    def price(event: Composed) -> float:
        mu_squared = gaussian_dp.mu_squared(event) if event.parts else 0.0
        if mu_squared is None:
            return math.inf
        exact = gaussian_dp.epsilon_from_mu(math.sqrt(mu_squared), budget.delta) if mu_squared else 0.0
        return gaussian_dp.safe_epsilon(exact, budget.delta)

    return price


def _renyi(budget: Budget, adjacency: Adjacency) -> Price:
    from accountant.filters import Spent, fixed_order_filter

    order = fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, adjacency=adjacency)

    def price(event: Composed) -> float:
        spent = Spent(adjacency=adjacency)
        for part, count in event.parts:
            spent = spent.add(part, count)
        # The filter's bound is epsilon less the conversion's offset, so this is epsilon at its order.
        return float(budget.epsilon - order.bound + spent.curve[order.index]) if event.parts else 0.0

    return price
