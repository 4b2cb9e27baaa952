"""What does an event cost? Every accountant side by side, and the best valid one."""

from __future__ import annotations

from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, Event
from accountant.tight import numerical


def epsilon_table(event: Event, delta: float, *, adjacency: Adjacency) -> dict[str, float]:
    """Epsilon at ``delta`` under every accountant valid for ``event``, loosest first.

    Keys: "moments", "renyi", "tight" and, where it is exact, "gaussian_dp". All are upper
    bounds; "tight" is the certified upper end of ``numerical.epsilon_interval``.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    table = {
        "moments": moments.epsilon(event, delta, adjacency=adjacency),
        "renyi": renyi.epsilon(event, delta, adjacency=adjacency),
        "tight": numerical.epsilon(event, delta, adjacency=adjacency),
    }
    if gaussian_dp.is_exact(event):
        table["gaussian_dp"] = gaussian_dp.epsilon(event, delta, adjacency=adjacency)
    return table


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """The smallest guaranteed epsilon at ``delta`` that any accountant here can show."""
    return numerical.epsilon(event, delta, adjacency=adjacency)


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """The smallest guaranteed delta at ``epsilon`` that any accountant here can show."""
    return numerical.delta(event, epsilon, adjacency=adjacency)
