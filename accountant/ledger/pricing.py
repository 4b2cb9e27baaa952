"""Price of everything charged under a budget: its epsilon by the budget's own rule."""

from __future__ import annotations

from collections.abc import Callable

from accountant import gaussian_dp, tightest
from accountant.events import Adjacency, Composed
from accountant.filters import Spent, fixed_order_filter
from accountant.ledger.policy import Budget

Price = Callable[[Composed], float]


def price_under(budget: Budget, adjacency: Adjacency) -> Price:
    """The price of a composition under ``budget.rule``; infinite where the rule admits no such event.

    Every rule is a cap on something that adds up over releases, so a charge is priced from
    the distinct events so far, however many there are of each.
    """
    if budget.rule == "renyi":
        return _renyi(budget, adjacency)
    epsilon = tightest.epsilon if budget.rule == "planned" else gaussian_dp.epsilon_at_rate_one
    return lambda event: epsilon(event, budget.delta, adjacency=adjacency)


def _renyi(budget: Budget, adjacency: Adjacency) -> Price:
    order = fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, adjacency=adjacency)

    def price(event: Composed) -> float:
        spent = Spent(adjacency=adjacency)
        for part, count in event.parts:
            spent = spent.add(part, count)
        # The filter's bound is epsilon less the conversion's offset, so this is epsilon at its order.
        return float(budget.epsilon - order.bound + spent.curve[order.index]) if event.parts else 0.0

    return price
