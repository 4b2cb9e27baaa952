"""A guardian: receives sealed shares, states what it has, and answers a round once, with noise of its own.

It trusts nobody. It takes only what was sealed to it for this run, plan, round and question; it draws noise by its own
reading of the plan; it sums only what all guardians have agreed on; and its own ledger refuses what would pass the
budget.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from accountant.events import Json
from accountant.ledger import Ledger
from accountant.ledger.signing import ANSWERED, checked, sign
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.shares import GuardianDoor, NoisySum, share_sizes, sum_shares
from privbo.guardians.agreement import PURPOSE as STATED
from privbo.guardians.agreement import Statement, agreement
from privbo.guardians.keys import Card, GuardianKeys
from privbo.guardians.sealing import Call, open_share, question_digest
from privbo.guardians.store import Arrays, StateStore
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Request


@dataclass(frozen=True, kw_only=True)
class SealedShare:
    """One client's share for one guardian, as the server hands it over."""

    client: int
    share_id: str
    sealed: bytes


class Reachable(Protocol):
    """A guardian, wherever it is."""

    def receive(self, call: Call, request: Request, sealed_shares: Sequence[SealedShare]) -> Json:
        """Take shares and state, signed, what was taken."""
        ...

    def answer(self, call: Call, request: Request, signed: Sequence[Json]) -> Answer:
        """Sum what all have agreed on, with noise."""
        ...


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A guardian's answer as it is sent.

    Attributes:
        payload: A ``NoisySum``.
        receipt: The place of the charge in the guardian's ledger, and the payload's digest, signed.
    """

    payload: bytes
    receipt: Json


@dataclass(frozen=True, kw_only=True)
class Guardian:
    """One guardian of one run.

    Attributes:
        name: Its name among the run's guardians.
        keys: Its private keys.
        cards: Every guardian's public keys by name, in the order of shares.
        run: Name of the run.
        plan: Digest of the run's declared plan.
        mechanism: The plan's mechanism for a request, by this guardian's own reading.
        store: Keeps what it has received and stated.
        ledger: Opens its ledger, in which the plan is reserved.
        noise: Source of its own noise.
        site_of: Public key of a client's site; empty where sites have none.
    """

    name: str
    keys: GuardianKeys
    cards: Mapping[str, Card]
    run: str
    plan: str
    mechanism: Callable[[Request], Mechanism]
    store: StateStore
    ledger: Callable[[], AbstractContextManager[Ledger]]
    noise: NoiseSource
    site_of: Callable[[int], str] = lambda _: ""

    def receive(self, call: Call, request: Request, sealed_shares: Sequence[SealedShare]) -> Json:
        """Open what was sealed to this guardian, keep it, and state once per round what it is.

        Raises:
            RunError: If the round is another run's or plan's, was asked in another way, or nothing of all that came
                opens.
        """
        mechanism = self._vetted(call, request)
        with self.store.alone():
            if (stated := self.store.statement(call.round)) is not None:
                return self._stated_again(call, stated)
            with self.ledger() as ledger:
                charged = len(ledger.entries(self.run))
                if ledger.stored_release(f"{self.run}/{call.round}") is not None:
                    raise RunError(f"guardian {self.name}: round {call.round} is over; what was received then is gone")
            taken = self._opened(call, mechanism, request, sealed_shares)
            if sealed_shares and not taken:
                raise RunError(
                    f"guardian {self.name}: none of {len(sealed_shares)} shares opens; they were sealed to another key "
                    "or for another round, plan or question. Name this guardian's card anew, or restore its key"
                )
            self.store.put_arrays(call.round, _packed(taken))
            share_ids = {client: share_id for client, (share_id, _) in taken.items()}
            statement = Statement(call=call, guardian=self.name, charged=charged, share_ids=share_ids).signed(self.keys)
            self.store.put_statement(call.round, statement)
            return statement

    def stated(self, call: Call) -> Json:
        """Give this guardian's own statement of a round once more.

        Raises:
            RunError: If there is none, or the round was asked in another way.
        """
        own = self.store.statement(call.round)
        if own is None:
            raise RunError(f"guardian {self.name} has received nothing for round {call.round}; nothing is summed")
        return self._stated_again(call, own)

    def answer(self, call: Call, request: Request, signed: Sequence[Json]) -> Answer:
        """Hold all statements against each other, charge, sum, add noise; the same bytes however often it is asked.

        Raises:
            RunError: If the guardians do not agree, or the round was answered for something else.
            BudgetExceeded: If this guardian's ledger does not hold the release; nothing was summed.
            LedgerError: If its ledger binds no such release, or storage fails.
        """
        mechanism = self._vetted(call, request)
        with self.store.alone():
            own = self.stated(call)
            agreed = agreement(signed, self.cards, call)
            if own["content"] not in [dict(each)["content"] for each in signed]:
                raise RunError(f"guardian {self.name} has stated something else for round {call.round}")

            def summed() -> npt.NDArray[np.uint64]:
                return self._summed(call.round, agreed.clients, request)

            with self.ledger() as ledger:
                door = GuardianDoor(ledger=ledger, run=self.run, noise=self.noise)
                found = door.answer(call.round, mechanism, agreed=agreed.digest, summed=summed)
            self.store.drop_arrays(call.round)
        return self._signed(call, found)

    def _vetted(self, call: Call, request: Request) -> PrivateSum:
        """The mechanism by which this guardian hides the round, once the question is the one that was sealed for."""
        if (call.run, call.plan) != (self.run, self.plan):
            raise RunError(f"guardian {self.name} guards {self.run}; it was asked for {call.run[:80]} or another plan")
        mechanism = self.mechanism(request)
        if not isinstance(mechanism, PrivateSum) or mechanism.n_noises != len(self.cards):
            raise RunError(f"guardian {self.name}: the plan has no noise of every guardian; nothing is summed")
        if call.question != question_digest(mechanism, request):
            raise RunError(f"guardian {self.name}: the question is not the one that shares were sealed for")
        return mechanism

    def _stated_again(self, call: Call, stated: Json) -> Json:
        statement = Statement.from_dict(checked(stated, STATED))
        if statement.call != call:
            raise RunError(f"guardian {self.name}: round {call.round} was asked before in another way")
        # A guardian whose signing key was replaced says the same again with its new one.
        return stated if stated["key"] == self.keys.card.signing else statement.signed(self.keys)

    def _opened(
        self, call: Call, mechanism: PrivateSum, request: Request, sealed_shares: Iterable[SealedShare]
    ) -> dict[int, tuple[str, bytes]]:
        n_entries = request.dim * request.n_blocks
        size = dict(zip(self.cards, share_sizes(mechanism.n_noises, n_entries), strict=True))[self.name]
        taken: dict[int, tuple[str, bytes]] = {}
        for sealed_share in sealed_shares:
            client = sealed_share.client
            if type(client) is not int or not 0 <= client < request.n_clients or client in taken:
                continue
            share = open_share(
                self.keys.sealing,
                sealed_share.sealed,
                call,
                client=client,
                site=self.site_of(client),
                guardian=self.name,
                share_id=sealed_share.share_id,
            )
            if share is not None and len(share) == size:
                taken[client] = (sealed_share.share_id, share)
        return taken

    def _summed(self, round_: int, clients: Sequence[int], request: Request) -> npt.NDArray[np.uint64]:
        n_entries = request.dim * request.n_blocks
        kept = self.store.arrays(round_)
        if kept is None:
            raise RunError(f"guardian {self.name}: its shares of round {round_} are gone; restore {round_:06d}.npz")
        shares, wanted = kept["shares"].astype(np.uint8), set(clients)
        rows = (bytes(row) for row, client in zip(shares, kept["clients"].tolist(), strict=True) if client in wanted)
        return sum_shares(rows, place=list(self.cards).index(self.name), n_entries=n_entries)

    def _signed(self, call: Call, found: NoisySum) -> Answer:
        payload = found.encode()
        content: Json = {
            "run": call.run,
            "round": call.round,
            "guardian": self.name,
            "sequence": found.sequence,
            "head": found.head,
            "sum": hashlib.sha256(payload).hexdigest(),
        }
        return Answer(payload=payload, receipt=sign(self.keys.signing, ANSWERED, content).to_dict())


def _packed(taken: Mapping[int, tuple[str, bytes]]) -> Arrays:
    shares = [np.frombuffer(share, dtype=np.uint8) for _, share in taken.values()]
    return {
        "clients": np.array(list(taken), dtype=np.int64),
        "shares": np.stack(shares) if shares else np.zeros((0, 0), dtype=np.uint8),
    }


def read_answer(answer: Answer, card: Card, call: Call, name: str, n_entries: int) -> NoisySum:
    """Read a guardian's answer once it is known to be its own, of this round, and of the right length.

    Raises:
        RunError: If it is not.
        LedgerError: If it is no guardian's sum.
    """
    content = checked(answer.receipt, ANSWERED)
    found = NoisySum.decode(answer.payload)
    said = (content.get("run"), content.get("round"), content.get("guardian"), content.get("sum"))
    wanted = (call.run, call.round, name, hashlib.sha256(answer.payload).hexdigest())
    if said != wanted or answer.receipt["key"] != card.signing or len(found.total) != n_entries:
        raise RunError(f"the answer of guardian {name} to round {call.round} is not its own; there is no release")
    return replace(found, sequence=int(content["sequence"]))
