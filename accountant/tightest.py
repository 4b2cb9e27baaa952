"""Epsilon of an event: every accountant side by side, and the best valid one."""

from __future__ import annotations

from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, Event
from accountant.tight import numerical
from accountant.tight.numerical import Interval, delta, epsilon, epsilon_interval

__all__ = ["Interval", "delta", "epsilon", "epsilon_interval", "epsilon_table"]


def epsilon_table(event: Event, delta: float, *, adjacency: Adjacency) -> dict[str, float]:
    """Give epsilon at ``delta`` under every accountant valid for ``event``, loosest first.

    Keys: "moments", "renyi", "tight" and, where it is exact, "gaussian_dp". All are upper
    bounds; "tight" is the certified upper end of ``epsilon_interval``.

    Args:
        event: Everything released.
        delta: In (0, 1).
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.

    Example:
        >>> from accountant import Adjacency, PoissonSampledGaussian, repeat
        >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
        >>> table = epsilon_table(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT)
        >>> {name: round(value, 2) for name, value in table.items()}
        {'moments': 4.99, 'renyi': 4.36, 'tight': 3.96}
    """
    table = {
        "moments": moments.epsilon(event, delta, adjacency=adjacency),
        "renyi": renyi.epsilon(event, delta, adjacency=adjacency),
        "tight": numerical.epsilon(event, delta, adjacency=adjacency),
    }
    if gaussian_dp.is_exact(event):
        table["gaussian_dp"] = gaussian_dp.epsilon(event, delta, adjacency=adjacency)
    return table
