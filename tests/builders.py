"""What many tests of the door begin with: a request of two clients, a ledger, a door."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accountant.events import Adjacency, Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from privbo.door.door import Door
from privbo.door.mechanism import mechanism_for
from privbo.door.noise import SimulatedNoise
from privbo.protocol.messages import Request

WEIGHTS = np.array([[0.5, 0.25], [0.0, 0.25]])


def request(**changes) -> Request:
    return Request(**({"dim": 3, "clipping_norm": 2.0, "weights": WEIGHTS} | changes))


def ledger(
    n_clients: int = 2, path: Path | None = None, *, budget: Budget | None = None, unit: Unit = Unit.CLIENT
) -> Ledger:
    """A ledger of a unit under the adjacency that belongs to it."""
    adjacency = Adjacency.REPLACE_ONE if unit is Unit.REWARD else Adjacency.ZERO_OUT
    policy = LedgerPolicy(unit=unit, adjacency=adjacency, population="p", n_clients=n_clients, budget=budget)
    return Ledger.create(path, policy)


def door(
    book: Ledger, *, noise=None, mechanism=None, run="run", n_clients: int | None = None, clipper=None, **settings
) -> Door:
    """A door of the ledger's clients, with seeded noise of multiplier 1, unless something else is asked for."""
    settings = {"noise_multiplier": 1.0} | settings
    return Door(
        book,
        run=run,
        noise=noise or SimulatedNoise(3),
        mechanism=mechanism or (lambda wanted: mechanism_for(wanted, **settings)),
        n_clients=n_clients or book.policy.n_clients,
        clipper=clipper,
    )
