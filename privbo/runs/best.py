"""PRIVATE: the points that clients would use, decoded to the parameters' own values."""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privbo.protocol.errors import RunError
from privbo.protocol.files import load_arrays, read_json
from privbo.protocol.messages import ClientHistory
from privbo.protocol.settings import Sequence, read_settings, settings
from privbo.protocol.space import Parameter, Space, Value

FACTS = "facts.json"  # of a site's folder
EVALUATIONS = "evaluations.npz"


@dataclass(frozen=True, kw_only=True)
class Best:
    """PRIVATE: the point that a client would use; it belongs to that client.

    Attributes:
        client: Its number.
        params: Values by name.
        value: Mean of what the objective gave the client there.

    Example:
        >>> Best(client=3, params={"C": 1.0}, value=0.9).params["C"]
        1.0
    """

    client: int
    params: dict[str, Value]
    value: float


def best_points(history: ClientHistory, space: Space, clients: Numbers[int]) -> tuple[Best, ...]:
    """PRIVATE: decode the point that every client would use; who has no finite value is left out.

    It is the point that the algorithm recommends. An elimination recommends by lower confidence bounds, since the
    largest of many noisy means is a lucky one; the others the best point that the client evaluated.

    Args:
        history: Of the clients.
        space: The search space.
        clients: Their numbers, in the history's order.
    """
    found = []
    for row, client in enumerate(clients):
        known = np.isfinite(history.values[row])
        if not known.any():
            continue
        unit = history.recommended[row]
        there = known & (history.units[row] == unit).all(axis=1)
        if not there.any():  # recommended by what others found, or not at all: what the client itself has seen counts
            unit = history.units[row, int(np.nanargmax(np.where(known, history.values[row], np.nan)))]
            there = known & (history.units[row] == unit).all(axis=1)
        value = float(history.values[row][there].mean())
        found.append(Best(client=int(client), params=space.decode(unit), value=value))
    return tuple(found)


def read_history(path: Path) -> ClientHistory:
    """PRIVATE: read the evaluations of clients as a run or a site keeps them."""
    arrays = load_arrays(path)
    return ClientHistory(
        units=arrays["units"].astype(np.float64),
        values=arrays["values"].astype(np.float64),
        rounds=arrays["rounds"].astype(np.int64),
        recommended=arrays["recommended"].astype(np.float64),
    )


@settings(table="facts")
class SiteFacts:
    """Numbers of a site's clients and their search space, as a site keeps them beside its evaluations."""

    clients: Sequence[int]
    space: dict[str, Parameter]
    constraints: Sequence[str] = ()

    @property
    def search_space(self) -> Space:
        """The search space, to decode points with."""
        return Space(self.space, self.constraints)


def site_facts(folder: Path) -> SiteFacts:
    """Read what the arrays in a site's folder of one run speak of."""
    return read_settings(SiteFacts, read_json(folder / FACTS), FACTS)


def best_at_site(folder: Path) -> tuple[tuple[Best, ...], tuple[int, ...]]:
    """PRIVATE: give the points of a site's own clients, and who of them has none, from the site's folder of one run.

    Raises:
        RunError: If its clients have evaluated nothing yet.
    """
    facts = site_facts(folder)
    if not (folder / EVALUATIONS).exists():
        raise RunError(f"{folder}: its clients have evaluated nothing yet; ask again after the first round")
    found = best_points(read_history(folder / EVALUATIONS), facts.search_space, facts.clients)
    return found, tuple(sorted(set(facts.clients) - {best.client for best in found}))
