"""A round with guardians: ciphertexts to all, one agreement, and the total of their noisy sums: the release."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accountant.events import Json
from accountant.ledger.signing import ANSWERED, checked
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.payload import vet_rows
from privbo.door.shares import NoisySum, joined, own_units
from privbo.guardians.ciphertexts import Call, Ciphertext, CiphertextBox, encrypt_shares, question_digest, stored
from privbo.guardians.guardian import Answer, Guardian, StateStore
from privbo.guardians.keys import Card
from privbo.protocol.errors import RunError
from privbo.protocol.messages import IntArray, Request

_AT_ONCE = 1024  # clients whose rows stand in memory as integers


def joined_answers(
    answers: Mapping[str, Answer],
    cards: Mapping[str, Card],
    call: Call,
    request: Request,
    note: Callable[[Json], None] = lambda _: None,
) -> IntArray:
    """Add up the guardians' answers to a round.

    Args:
        answers: Of every guardian, by name.
        cards: Their public keys by name, in the order of shares.
        call: The round.
        request: What is asked for.
        note: Receives every guardian's signed receipt.

    Returns:
        The noisy sums in grid units, ``(n_entries,)``.

    Raises:
        RunError: If an answer is not its guardian's own, of this round and of the right length, or they are for
            different sets of clients.
        LedgerError: If it is no guardian's sum.
    """
    sums, n_entries = [], request.dim * request.n_blocks
    for name, card in cards.items():
        receipt, payload = answers[name].receipt, answers[name].payload
        said, found = checked(receipt, ANSWERED), NoisySum.decode(payload)
        own = call.run, call.round, name, hashlib.sha256(payload).hexdigest(), card.signing, n_entries
        of_run = (said.get(key) for key in ("run", "round", "guardian", "sum"))
        if own != (*of_run, receipt["key"], len(found.total)):
            raise RunError(f"the answer of guardian {name} to round {call.round} is not its own; there is no release")
        sums.append(found)
        note(receipt)
    if len({found.agreed for found in sums}) > 1:
        raise RunError(f"the guardians have answered round {call.round} for different sets of clients; no release")
    return joined([found.total for found in sums])


@dataclass(frozen=True, kw_only=True)
class LocalCommittee:
    """Clients and guardians in this process: for tests, plans and sweeps. Its operator sees everything.

    Attributes:
        guardians: By name, in the order of shares.
        cards: Their public keys by name, in the same order.
        run: Name of the run.
        plan: Digest of its declared plan.
        coins: Source of every client's own coin.
        outbox: Keeps ciphertexts before they are delivered, so that a round that is asked again gets the same ones.
        note: Receives every guardian's signed receipt.
    """

    guardians: Mapping[str, Guardian]
    cards: Mapping[str, Card]
    run: str
    plan: str
    coins: NoiseSource
    outbox: StateStore
    note: Callable[[Json], None] = lambda _: None

    def gather(self, round_: int, mechanism: PrivateSum, request: Request, answers: object) -> IntArray:
        """Give the noisy sums of the clients' vectors in grid units, ``(n_entries,)``; see ``privbo.door.door``."""
        call = Call(run=self.run, round=round_, plan=self.plan, question=question_digest(mechanism, request))
        totals = self.collect_sums(call, request, self._ciphertexts(call, mechanism, request, answers))
        self.outbox.drop_arrays(round_)
        return totals

    def collect_sums(self, call: Call, request: Request, ciphertexts: Sequence[Ciphertext]) -> IntArray:
        """Bring ciphertexts to every guardian and their answers together; one refusal means no release.

        Raises:
            RunError: If a guardian refuses, or its answer is not its own.
            BudgetExceeded: If a guardian's ledger does not hold the release.
        """
        signed = [
            guardian.receive(call, request, [one.share(place) for one in ciphertexts])
            for place, guardian in enumerate(self.guardians.values())
        ]
        answers = {name: each.answer(call, request, signed) for name, each in self.guardians.items()}
        return joined_answers(answers, self.cards, call, request, self.note)

    def _ciphertexts(
        self, call: Call, mechanism: PrivateSum, request: Request, answers: object
    ) -> Sequence[Ciphertext]:
        if (kept := self.outbox.arrays(call.round)) is not None:
            n_entries = request.dim * request.n_blocks
            box = CiphertextBox(
                round_=call.round, n_clients=request.n_clients, n_guardians=len(self.cards), n_entries=n_entries
            )
            box.receive_stored(kept)
            return box.close()
        rows = vet_rows(answers, n_clients=request.n_clients, dim=request.dim)
        coins, ciphertexts = self.coins.stream(str(call.round)), list[Ciphertext]()
        for start in range(0, request.n_clients, _AT_ONCE):
            some = np.arange(start, min(start + _AT_ONCE, request.n_clients))
            units = own_units(mechanism, request, rows[some], some, coins)
            ciphertexts += encrypt_shares(call, units, some.tolist(), cards=self.cards, site="")
        self.outbox.put_arrays(call.round, stored(call.round, ciphertexts))
        return ciphertexts
