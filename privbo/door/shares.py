"""Additive shares of clients' grid integers modulo 2^64: any of them but all say nothing.

A client's contribution is a row of integers. One share is the row minus a stream for every other guardian, the others
are the 32-byte seeds of those streams; each alone, and any set without one of them, is uniform and independent of the
row. Sums of shares are shares of the sum, and the sum of the guardians' sums, read as signed integers, is the sum of
the rows.

A guardian's half of the door charges its own ledger, waits for the commit, sums its shares, adds noise and stores. The
stored bytes are its answer for ever, to every party and however often: never two noises for one round. A round that is
asked for over other shares than those it was answered for is refused, so that no two sums of one round can be
subtracted.

| the process dies | charged | answered | asked again |
|---|---|---|---|
| before the charge is committed | nothing | nothing: no share was read | charges, then sums |
| after it, before the answer is stored | the event | nothing | sums and draws anew for the same charge |
| after the answer is stored | the event | the stored bytes, once they are sent | sends the same bytes |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accountant.errors import LedgerError
from accountant.ledger import Ledger
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource, keystream
from privbo.door.payload import framed, store, unframed
from privbo.door.sums import lattice_units
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import FloatArray, IntArray, Request

SEED_BYTES = 32
_WORD = np.dtype("<u8")


def own_units(
    mechanism: PrivateSum, request: Request, rows: FloatArray, clients: IntArray, coins: NoiseSource
) -> IntArray:
    """PRIVATE: what some clients add to a release in grid units, zero for who is absent or sits out by its own coin.

    The same clipping, weights and truncation as in ``privbo.door.sums``, done where the clients are.

    Args:
        mechanism: Of the release.
        request: What is asked for.
        rows: Their vectors, ``(n, dim)``, not finite where absent.
        clients: Their numbers, ``(n,)``.
        coins: Where each client's own coin comes from.

    Returns:
        ``(n, n_blocks * dim)``.
    """
    clipped = clip_rows(rows, mechanism.applied_bound)
    units = lattice_units(request.weights[:, clients], clipped, mechanism.grid_step())
    joins = coins.coins((len(clients),), mechanism.sample.sample_rate)
    return np.asarray(units * joins[:, None])


def share_sizes(n_guardians: int, n_entries: int) -> tuple[int, ...]:
    """Bytes of the share for every guardian: whole rows for the first, seeds for the others."""
    return (8 * n_entries, *[SEED_BYTES] * (n_guardians - 1))


def split(units: IntArray, n_guardians: int) -> list[tuple[bytes, ...]]:
    """Split every row into shares, one for every guardian; seeds are drawn anew from the operating system.

    Args:
        units: Rows of integers, ``(n, n_entries)``.
        n_guardians: G, at least 2.

    Raises:
        ConfigurationError: If there are fewer than two guardians: the only share would be the row.

    Example:
        >>> shares = split(np.array([[1, -2], [3, 4]]), 2)
        >>> sums = [sum_shares((s[g] for s in shares), place=g, n_entries=2) for g in (0, 1)]
        >>> joined([each.view(np.int64) for each in sums])
        array([4, 2])
    """
    if n_guardians < 2:
        raise ConfigurationError(f"{n_guardians} guardians: a secret is shared among two or more; name them")
    n_entries = units.shape[1]
    shares = []
    for row in units:
        seeds = [os.urandom(SEED_BYTES) for _ in range(n_guardians - 1)]
        masked = row.astype(np.int64).view(np.uint64)
        for seed in seeds:
            masked = masked - expand(seed, n_entries)
        shares.append((masked.astype(_WORD).tobytes(), *seeds))
    return shares


def expand(seed: bytes, n_entries: int) -> npt.NDArray[np.uint64]:
    """Expand a seed into uniform 64-bit words by ChaCha20 (RFC 8439)."""
    return np.frombuffer(keystream(seed, 8 * n_entries), dtype=_WORD)


def sum_shares(shares: Iterable[bytes], *, place: int, n_entries: int) -> npt.NDArray[np.uint64]:
    """Sum shares of one guardian modulo 2^64, ``(n_entries,)``.

    Args:
        shares: As ``split`` made them for this guardian.
        place: Of the guardian among all: the first has rows of words, the others seeds. (A row of four words is as long
            as a seed, so the length does not tell.)
        n_entries: Length of a row.

    Raises:
        ConfigurationError: If a share has another size.
    """
    total = np.zeros(n_entries, dtype=np.uint64)
    size = 8 * n_entries if place == 0 else SEED_BYTES
    for share in shares:
        if len(share) != size:
            raise ConfigurationError(f"a share of {len(share)} bytes where one of {size} belongs; split it again")
        total += np.frombuffer(share, dtype=_WORD) if place == 0 else expand(share, n_entries)
    return total


def joined(sums: Sequence[IntArray]) -> IntArray:
    """Add the guardians' noisy sums modulo 2^64 and read them as the signed integers next to zero."""
    return np.asarray(np.sum([each.view(np.uint64) for each in sums], axis=0, dtype=np.uint64)).view(np.int64)


_MAGIC = b"privbo guardian's sum 1\n"


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """A guardian's answer: the sum of its shares and its own noise, modulo 2^64.

    Attributes:
        agreed: Digest of everything the guardians agreed on for this round.
        total: In grid units, ``(n_entries,)``; uniform to a party that lacks another guardian's.
        sequence: Position of the charge in this guardian's ledger.
        head: That ledger's chain hash after it.
    """

    agreed: str
    total: IntArray
    sequence: int
    head: str

    def encode(self) -> bytes:
        """Give the bytes that are stored and sent."""
        header = {"agreed": self.agreed, "sequence": self.sequence, "head": self.head}
        return framed(_MAGIC, header, self.total.astype("<i8"))

    @staticmethod
    def decode(payload: bytes) -> NoisySum:
        """Read what ``encode`` wrote.

        Raises:
            LedgerError: If the bytes are no guardian's sum.
        """
        try:
            magic, header, words = unframed(_MAGIC, payload)
            found = NoisySum(
                agreed=str(header["agreed"]),
                sequence=int(header["sequence"]),
                head=str(header["head"]),
                total=np.frombuffer(words, dtype="<i8").astype(np.int64),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"these bytes are no guardian's sum ({error}); ask the guardian again") from None
        if magic != _MAGIC:
            raise LedgerError("these bytes are no guardian's sum (another format); use one version of privbo")
        return found


@dataclass(frozen=True, kw_only=True)
class GuardianDoor:
    """A guardian's half of the door, for one run.

    Proof: docs/proofs/guardians.md.

    Attributes:
        ledger: The guardian's own; the run's plan is reserved in it.
        run: Name of the run; release ids are ``"{run}/{round}"``.
        noise: Source of the guardian's own noise.
    """

    ledger: Ledger
    run: str
    noise: NoiseSource

    def answered(self, round_: int) -> NoisySum | None:
        """Give what was answered in a round, None if nothing has left."""
        stored = self.ledger.stored_release(f"{self.run}/{round_}")
        return None if stored is None else NoisySum.decode(stored)

    def answer(
        self,
        round_: int,
        mechanism: PrivateSum,
        *,
        agreed: str,
        summed: Callable[[], npt.NDArray[np.uint64]],
    ) -> NoisySum:
        """Charge, make durable, sum, add noise, store; or give what was stored for this round before.

        Args:
            round_: The round.
            mechanism: Of the release; its event is charged and its grid scale is the noise's.
            agreed: Digest of everything the guardians agreed on.
            summed: Reads the shares and sums them, ``(n_entries,)``; not called before the charge is durable.

        Raises:
            BudgetExceeded: If this guardian's ledger does not hold the event; nothing was read.
            LedgerError: If the round was charged as another release, or storage fails.
            RunError: If the round was answered for something else.
        """
        release_id = f"{self.run}/{round_}"
        found = self.answered(round_)
        if found is None:
            receipt = self.ledger.charge(release_id, mechanism.event(), run=self.run, noise_source=self.noise.name)
            total = summed()
            drawn = self.noise.stream(str(round_)).gaussian(total.shape, mechanism.grid_scale())
            made = NoisySum(
                agreed=agreed,
                total=(total + drawn.view(np.uint64)).view(np.int64),
                sequence=receipt.sequence,
                head=receipt.head,
            )
            found = NoisySum.decode(store(self.ledger, release_id, made.encode()))
        if found.agreed != agreed:
            raise RunError(
                f"round {round_} was answered for another set of clients or another question; a round is answered once"
            )
        return found
