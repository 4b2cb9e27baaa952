"""The door for private selection: one charge, many secret runs, one release.

Everything about the runs is drawn here from the secret source (how many, which candidates,
the noise of every score) and nothing of a run leaves but the best one's.

Formal guarantees, with both ledgers of a selection (training and validation records):

| the process dies | had left | a resumed selection |
|---|---|---|
| before both charges are committed | nothing | makes the missing charge |
| in a run | nothing | draws the runs anew for the same charges |
| between the two commits of the released bytes | nothing | gives the second ledger the first one's bytes |
| after both commits | those bytes, or nothing | hands out the same bytes, however often it is asked |

So one charge never covers two outputs, and what is published is what the ledgers stored. How
long a selection takes tells how many runs there were: an observer of the clock sees K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accountant.events import BestOfRandomRuns
from accountant.ledger import Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.payload import store, vet_rows
from privbo.door.sums import answer
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request

_BITS = 53


@dataclass(frozen=True, kw_only=True)
class SelectionDoor:
    """The only way of a private selection's result to the outside.

    Proof: docs/proofs/private-selection.md.

    Attributes:
        prices: Every ledger that a selection is charged to, with its event; always in the same order.
        run: Name of the run; the release id is ``"{run}/selection"``.
        noise_source: "secure" or "simulation", as the ledgers shall say it.
    """

    prices: tuple[tuple[Ledger, BestOfRandomRuns], ...]
    run: str
    noise_source: str

    @property
    def _release_id(self) -> str:
        return f"{self.run}/selection"

    def open(self) -> bytes | None:
        """Charge every ledger for the whole selection, durably, before the first run.

        Opening the same selection again charges nothing.

        Returns:
            The bytes that were released before, now stored in every ledger; None if no run's
            result has left yet.

        Raises:
            BudgetExceeded: If a ledger's budget is too small; no run may be made.
            LedgerError: If this run was charged as something else, or the ledgers stored different bytes.
        """
        for ledger, event in self.prices:
            ledger.charge(self._release_id, event, run=self.run, noise_source=self.noise_source, plan_position=0)
        stored = [ledger.stored_release(self._release_id) for ledger, _ in self.prices]
        found = next((content for content in stored if content is not None), None)
        return None if found is None else self.close(found)

    def close(self, content: bytes) -> bytes:
        """Store the best run's result in every ledger and hand the stored bytes out.

        Raises:
            LedgerError: If a ledger holds other bytes already, or storage fails; nothing may leave then.
        """
        stored = [store(ledger, self._release_id, content) for ledger, _ in self.prices]
        return stored[0]


def draw_runs(runs: TruncatedNegativeBinomial, n_candidates: int, noise: NoiseSource) -> list[int]:
    """SECRET: the candidate of every run, uniform with replacement; their number is K.

    K is drawn by inversion from 53 bits, so its distribution is off by at most 2^-53.
    """
    if n_candidates < 1:
        raise ConfigurationError(f"n_candidates={n_candidates!r} must be at least 1")
    count = runs.quantile(_word(noise) * 2.0**-_BITS)
    return [_below(n_candidates, noise) for _ in range(count)]


def secret_score(mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource) -> float:
    """SECRET until its run is the released one: a noisy clipped mean by the shipped arithmetic, over all records."""
    vetted = vet_rows(rows, n_clients=request.n_clients, dim=request.dim)
    everyone = np.ones(request.n_clients, dtype=bool)
    return float(answer(mechanism, request, vetted, everyone, noise).values[0, 0])


def _word(noise: NoiseSource) -> int:
    coins = noise.coins((_BITS,), 0.5)
    return int(sum(1 << int(index) for index in np.flatnonzero(coins)))


def _below(count: int, noise: NoiseSource) -> int:
    """A uniform integer below ``count``, by rejection."""
    limit = 2**_BITS // count * count
    while (word := _word(noise)) >= limit:
        pass
    return word % count
