"""The door's sibling for private selection: one charge, many secret runs, one release.

Everything about the runs is drawn here from the secret source (how many, which candidates,
the noise of every score) and nothing of a run leaves but the best one's. The charge is the
whole selection's, made durably before the first run looks at a record. How long a
selection takes tells how many runs there were: whoever can watch the clock sees K.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from accountant.events import BestOfRandomRuns
from accountant.ledger import Ledger, Receipt
from accountant.selection import TruncatedNegativeBinomial
from privbo.door.answer import answer
from privbo.door.intake import vet_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request

_BITS = 53


def charge_selection(ledger: Ledger, event: BestOfRandomRuns, *, run: str, noise_source: str) -> Receipt:
    """Pay for a whole selection, durable on return; paying again for the same one is free.

    Raises:
        BudgetExceeded: If the ledger can't pay; nothing was charged.
        LedgerError: If this run was charged as something else.
    """
    return ledger.charge(f"{run}/selection", event, run=run, noise_source=noise_source, plan_position=0)


def bind_selection(ledger: Ledger, content: bytes, *, run: str) -> None:
    """Tie what was released, as bytes, to its charge.

    Raises:
        LedgerError: If something else was released for it.
    """
    ledger.store_release(f"{run}/selection", _binding(content))


def is_bound(ledger: Ledger, content: bytes | None, *, run: str) -> bool | None:
    """Whether these are the bytes that were released; None if none were."""
    stored = ledger.stored_release(f"{run}/selection")
    return None if stored is None else content is not None and stored == _binding(content)


def _binding(content: bytes) -> bytes:
    return json.dumps({"sha256": hashlib.sha256(content).hexdigest()}).encode()


def draw_runs(runs: TruncatedNegativeBinomial, n_candidates: int, noise: NoiseSource) -> list[int]:
    """SECRET: the candidate of every run, uniform with replacement; their number is K.

    K is drawn by inversion from 53 bits, so its distribution is off by at most 2^-53.
    """
    if n_candidates < 1:
        raise ConfigurationError(f"n_candidates={n_candidates!r} must be at least 1")
    count = runs.quantile(_word(noise) * 2.0**-_BITS)
    return [_below(n_candidates, noise) for _ in range(count)]


def secret_score(mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource) -> float:
    """SECRET until its run is the released one: a noisy clipped mean by the shipped arithmetic, everybody in it."""
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
