"""Rounds that a number of evaluations per client holds; public."""

from __future__ import annotations

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Setting


def within(setting: Setting, *, evaluations: int | None, n_init: int) -> Setting:
    """Give a run's facts with as many rounds as ``evaluations`` hold beside the initial points, one point a round.

    Raises:
        ConfigurationError: If they do not hold one round.
    """
    if evaluations is None:
        return setting
    if evaluations <= n_init:
        raise ConfigurationError(
            f"evaluations={evaluations} do not hold n_init={n_init} initial points and one round; "
            f"give at least {n_init + 1}, or fewer initial points"
        )
    return setting.at_most(evaluations - n_init)
