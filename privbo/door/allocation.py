"""The secret allocation of a run: drawn once, kept before the first charge, never drawn again.

Formal guarantees, with a keeper whose ``keep`` is durable when it returns and never replaces anything:

| the process dies | kept | charged | a resumed run |
|---|---|---|---|
| before the plan is reserved | nothing | nothing | reserves, then draws |
| before ``keep`` returns | nothing, or all of it | the whole plan | takes what is kept, or draws: nothing had left |
| before the first release's charge | the allocation | the whole plan | takes it |
| at any later time | the allocation | the whole plan | takes it; a round that was stored is not made again |
| the allocation is lost after a charge | nothing | the whole plan | is refused: another draw would not be paid for |

So however often a run is killed, all of its releases have one allocation, one place of which serves one round; two
processes that begin a run at once share what the first of them kept. The whole event is paid with the plan, so a run
that ends early has paid for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from accountant.errors import LedgerError
from accountant.ledger import Ledger
from privbo.door.noise import BoolArray, NoiseSource
from privbo.door.sampling import Sample


class Keeper(Protocol):
    """Place on the private side that keeps one run's allocation."""

    def kept(self) -> BoolArray | None:
        """SECRET: the allocation, ``(n_clients, n_releases)``; None if none is kept."""
        ...

    def keep(self, table: BoolArray) -> None:
        """Keep an allocation, durable on return; changes nothing where one is kept already."""
        ...


@dataclass(kw_only=True)
class InMemory:
    """Keeps an allocation as long as the process lives: for simulations only."""

    _table: BoolArray | None = None

    def kept(self) -> BoolArray | None:
        """The allocation."""
        return self._table

    def keep(self, table: BoolArray) -> None:
        """Keep it."""
        if self._table is None:
            self._table = table


@dataclass(kw_only=True)
class Allotments:
    """SECRET: who takes part in which of a run's releases.

    Attributes:
        ledger: The ledger that the run charges.
        run: Its name there.
        noise: Source of the draw.
        keeper: Where the draw is kept.
    """

    ledger: Ledger
    run: str
    noise: NoiseSource
    keeper: Keeper
    _table: BoolArray | None = None

    def participants(self, sample: Sample, round_: int, position: int | None) -> BoolArray:
        """Give the participants of the release at a place of the plan, ``(n_clients,)``; asked for before its charge.

        Raises:
            LedgerError: If the place is none, serves another round, or the allocation was lost.
        """
        taken = {entry.plan_position: entry.release_id for entry in self.ledger.entries(self.run)}
        release_id = f"{self.run}/{round_}"
        if position is None or not 0 <= position < (sample.n_releases or 0):
            raise LedgerError(
                f"round {round_} has place {position} of an allocation over {sample.n_releases} releases; open rounds "
                "as they were planned"
            )
        before = next((place for place, name in taken.items() if name == release_id), position)
        if taken.get(position, release_id) != release_id or before != position:
            raise LedgerError(
                f"place {position} of run {self.run!r} is another round's than {round_}; resume it as it was"
            )
        if self._table is None:
            self._table = self._found(sample, has_charged=bool(taken))
        return np.array(self._table[:, position])

    def _found(self, sample: Sample, *, has_charged: bool) -> BoolArray:
        if self.keeper.kept() is None:
            if has_charged:
                raise LedgerError(
                    f"run {self.run!r} has charged releases and its allocation is gone; restore private/ from a copy, "
                    "or end the run here: what it paid stays paid"
                )
            self.keeper.keep(sample.allocate(self.noise.stream("allocation")))
        table = self.keeper.kept()
        shape = (sample.n_clients, sample.n_releases)
        if table is None or table.shape != shape or np.any(table.sum(axis=1) != sample.participations):
            raise LedgerError(
                f"the allocation of run {self.run!r} is not the one that was drawn; restore it from a copy"
            )
        return table
