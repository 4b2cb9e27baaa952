"""A guardian's half of the door: charge its own ledger, wait for the commit, sum its shares, add noise, store.

What was stored for a round is its answer for ever, byte for byte, whoever asks and however often: never two noises for
one round. A round that is asked for over other shares than those it was answered for is refused, so that no two sums of
one round can be subtracted.

| the process dies | charged | answered | asked again |
|---|---|---|---|
| before the charge is committed | nothing | nothing: no share was read | charges, then sums |
| after it, before the answer is stored | the event | nothing | sums and draws anew for the same charge |
| after the answer is stored | the event | the stored bytes, once they are sent | sends the same bytes |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accountant.errors import LedgerError
from accountant.ledger import Ledger
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.errors import RunError
from privbo.protocol.messages import IntArray

_MAGIC = b"privbo guardian's sum 1\n"


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """A guardian's answer: the sum of its shares and its own noise, modulo 2^64.

    Attributes:
        agreed: Digest of everything the guardians agreed on for this round.
        total: In grid units, ``(n_entries,)``; uniform to whoever lacks another guardian's.
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
        line = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return _MAGIC + line + b"\n" + self.total.astype("<i8").tobytes()

    @staticmethod
    def decode(payload: bytes) -> NoisySum:
        """Read what ``encode`` wrote.

        Raises:
            LedgerError: If the bytes are no guardian's sum.
        """
        try:
            magic, (line, words) = payload[: len(_MAGIC)], payload[len(_MAGIC) :].split(b"\n", 1)
            header = json.loads(line)
            total = np.frombuffer(words, dtype="<i8").astype(np.int64)
            found = NoisySum(
                agreed=str(header["agreed"]), sequence=int(header["sequence"]), head=str(header["head"]), total=total
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
            self.ledger.store_release(release_id, made.encode())
            found = self.answered(round_)
            if found is None:
                raise LedgerError(f"release {release_id!r} was stored and is gone; restore the guardian's ledger")
        if found.agreed != agreed:
            raise RunError(
                f"round {round_} was answered for another set of clients or another question; a round is answered once"
            )
        return found
