"""A guardian: receives encrypted shares, states what it has, and answers a round once, with noise of its own.

It trusts no other party. It takes only what was encrypted to it for this run, plan, round and question; it computes the
noise from the plan itself; it sums only what all guardians have agreed on; and its own ledger refuses what would pass
the budget.

A guardian states once per round what it has received, before it sums anything, and keeps the statement. It sums only
after it has seen every guardian's, all of the same run, round, plan and question, and of guardians that have been
charged equally often; so a server that shows them different things gets nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger import Ledger
from accountant.ledger.policy import digest_of
from accountant.ledger.signing import ANSWERED, checked, sign
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.payload import vet_rows
from privbo.door.shares import GuardianDoor, NoisySum, joined, own_units, share_sizes, sum_shares
from privbo.guardians.ciphertexts import (
    SHARE,
    Call,
    Card,
    Ciphertext,
    CiphertextBox,
    GuardianKeys,
    encrypt_shares,
    open_share,
    question_digest,
    stored,
)
from privbo.protocol.errors import RunError
from privbo.protocol.files import alone, array_bytes, write_atomically
from privbo.protocol.messages import Arrays, IntArray, Request

STATED = "guardian's statement"
_AT_ONCE = 1024  # clients whose rows stand in memory as integers


@dataclass(frozen=True, kw_only=True)
class StateStore:
    """Arrays and statements by round; what was put is durable on return where there is a folder.

    Attributes:
        path: A folder that its owner alone may enter: ``000004.npz`` and ``000004.json`` are those of round 4. None
            keeps everything in this process.
    """

    path: Path | None = None
    _memory: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)

    def alone(self) -> AbstractContextManager[None]:
        """One process at a time, so that a round is never answered twice."""
        return nullcontext() if self.path is None else alone(self.path)

    def put_arrays(self, round_: int, arrays: Arrays) -> None:
        """Keep a round's arrays, in place of earlier ones."""
        self._put(f"{round_:06d}.npz", array_bytes(arrays))

    def arrays(self, round_: int) -> Arrays | None:
        """A round's arrays."""
        found = self._get(f"{round_:06d}.npz")
        return None if found is None else dict(np.load(io.BytesIO(found), allow_pickle=False))

    def drop_arrays(self, round_: int) -> None:
        """Throw a round's arrays away."""
        name = f"{round_:06d}.npz"
        self._memory.pop(name, None)
        if self.path is not None:
            (self.path / name).unlink(missing_ok=True)

    def put_statement(self, round_: int, statement: Json) -> None:
        """Keep what was stated in a round, in place of what stands there."""
        self._put(f"{round_:06d}.json", json.dumps(statement).encode())

    def statement(self, round_: int) -> Json | None:
        """A round's statement."""
        found = self._get(f"{round_:06d}.json")
        return None if found is None else dict(json.loads(found))

    def is_empty(self) -> bool:
        """Whether nothing was ever stated."""
        names = self._memory if self.path is None else [path.name for path in self.path.glob("*.json")]
        return not any(name.endswith(".json") for name in names)

    def _put(self, name: str, content: bytes) -> None:
        if self.path is None:
            self._memory[name] = content
        else:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self.path / name, content)

    def _get(self, name: str) -> bytes | None:
        if self.path is None:
            return self._memory.get(name)
        return (self.path / name).read_bytes() if (self.path / name).exists() else None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A guardian's list of what it has received for a round.

    Attributes:
        call: The round.
        guardian: Its name.
        charged: Releases of the run that its ledger held before.
        share_ids: Of every client whose share it holds, by its number as text, the id of its ciphertext.
    """

    call: Call
    guardian: str
    charged: int
    share_ids: dict[str, str]

    def signed(self, keys: GuardianKeys) -> Json:
        """Give the statement as it is sent, with a signature."""
        return sign(keys.signing, STATED, asdict(self))

    @staticmethod
    def read(signed: object) -> Statement:
        """Read what ``signed`` gave.

        Raises:
            LedgerError: If it is no signed statement of a guardian.
            ValueError: If what was signed is none.
        """
        return TypeAdapter(Statement).validate_python(checked(signed, STATED))


def agreement(signed: Sequence[object], cards: Mapping[str, Card], call: Call) -> tuple[tuple[int, ...], str]:
    """Hold the guardians' statements against each other.

    Args:
        signed: One of every guardian, in any order.
        cards: Every guardian's public keys by name.
        call: The round as the reader means it.

    Returns:
        The clients, in order, of whom every guardian holds a share of the same ciphertext, and a digest of all
        statements.

    Raises:
        RunError: If one is missing, forged, or speaks of another round, plan, question or past.
    """
    found: dict[str, Statement] = {}
    for each in signed:
        try:
            statement, key = Statement.read(each), each["key"]  # type: ignore[index]  # its signature was checked
        except (LedgerError, ValueError) as error:
            raise RunError(f"this is no guardian's statement ({error}); nothing is summed") from None
        if statement.guardian not in cards or key != cards[statement.guardian].signing:
            raise RunError(
                f"a statement of {statement.guardian!r} is not signed with the key that is registered for it; name its "
                "new key, or restore the old one"
            )
        if statement.call != call:
            differs = ", ".join(name for name, own in vars(call).items() if getattr(statement.call, name) != own)
            raise RunError(f"guardian {statement.guardian} was shown another {differs}; nothing is summed")
        if statement.guardian in found:
            raise RunError(f"guardian {statement.guardian} was named twice; nothing is summed")
        found[statement.guardian] = statement
    if missing := [name for name in cards if name not in found]:
        raise RunError(f"no statement of {', '.join(missing)}; nothing is summed before all guardians have agreed")
    if len({statement.charged for statement in found.values()}) > 1:
        said = ", ".join(f"{name} {statement.charged}" for name, statement in sorted(found.items()))
        raise RunError(
            f"the guardians' ledgers disagree on the releases of {call.run} so far ({said}): one of them was lost or "
            "restored from an old copy; restore its newest one"
        )
    first, *others = (found[name].share_ids for name in cards)
    clients = sorted(int(client) for client, own in first.items() if all(o.get(client) == own for o in others))
    return tuple(clients), digest_of({name: asdict(found[name]) for name in cards})


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

    def receive(self, call: Call, request: Request, encrypted_shares: Sequence[bytes]) -> Json:
        """Decrypt what was encrypted for this guardian, keep it, and state once per round what it is.

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
            taken = self._opened(call, mechanism, request, encrypted_shares)
            if encrypted_shares and not taken:
                raise RunError(
                    f"guardian {self.name}: none of {len(encrypted_shares)} shares opens; they were encrypted for "
                    "another key, round, plan or question. Name this guardian's card anew, or restore its key"
                )
            shares = [np.frombuffer(share, dtype=np.uint8) for _, share in taken.values()]
            numbers = np.array(list(taken), dtype=np.int64)
            self.store.put_arrays(call.round, {"clients": numbers, "shares": np.array(shares, dtype=np.uint8)})
            share_ids = {str(client): share_id for client, (share_id, _) in taken.items()}
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
            clients, agreed = agreement(signed, self.cards, call)
            if own["content"] not in [dict(each)["content"] for each in signed]:
                raise RunError(f"guardian {self.name} has stated something else for round {call.round}")

            def summed() -> npt.NDArray[np.uint64]:
                kept = self.store.arrays(call.round)
                if kept is None:
                    raise RunError(
                        f"guardian {self.name}: its shares of round {call.round} are gone; restore {call.round:06d}.npz"
                    )
                rows = zip(kept["shares"], kept["clients"].tolist(), strict=True)
                return sum_shares(
                    (share.tobytes() for share, client in rows if client in clients),
                    place=list(self.cards).index(self.name),
                    n_entries=request.dim * request.n_blocks,
                )

            with self.ledger() as ledger:
                door = GuardianDoor(ledger=ledger, run=self.run, noise=self.noise)
                found = door.answer(call.round, mechanism, agreed=agreed, summed=summed)
            self.store.drop_arrays(call.round)
        payload = found.encode()
        content = _receipt(call, self.name, found, payload)
        return Answer(payload=payload, receipt=sign(self.keys.signing, ANSWERED, content))

    def _vetted(self, call: Call, request: Request) -> PrivateSum:
        """The mechanism by which this guardian hides the round, once the question is the one that was encrypted for."""
        if (call.run, call.plan) != (self.run, self.plan):
            raise RunError(f"guardian {self.name} guards {self.run}; it was asked for {call.run[:80]} or another plan")
        mechanism = self.mechanism(request)
        if not isinstance(mechanism, PrivateSum) or mechanism.n_noises != len(self.cards):
            raise RunError(f"guardian {self.name}: the plan has no noise of every guardian; nothing is summed")
        if call.question != question_digest(mechanism, request):
            raise RunError(f"guardian {self.name}: the question is not the one that shares were encrypted for")
        return mechanism

    def _stated_again(self, call: Call, stated: Json) -> Json:
        statement = Statement.read(stated)
        if statement.call != call:
            raise RunError(f"guardian {self.name}: round {call.round} was asked before in another way")
        # A guardian whose signing key was replaced says the same again with its new one.
        return stated if stated["key"] == self.keys.card.signing else statement.signed(self.keys)

    def _opened(
        self, call: Call, mechanism: PrivateSum, request: Request, encrypted_shares: Iterable[bytes]
    ) -> dict[int, tuple[str, bytes]]:
        sizes = share_sizes(mechanism.n_noises, request.dim * request.n_blocks)
        size, taken = sizes[list(self.cards).index(self.name)], dict[int, tuple[str, bytes]]()
        for encrypted_share in encrypted_shares:
            if len(encrypted_share) < SHARE.size:
                continue
            client, name = SHARE.unpack_from(encrypted_share)
            if not 0 <= client < request.n_clients or client in taken:
                continue
            sealed, context = encrypted_share[SHARE.size :], {"guardian": self.name, "share_id": name.hex()}
            site = self.site_of(client)
            share = open_share(self.keys.sealing, sealed, call, client=client, site=site, **context)
            if share is not None and len(share) == size:
                taken[client] = (name.hex(), share)
        return taken


def _receipt(call: Call, guardian: str, found: NoisySum, payload: bytes) -> Json:
    return {
        "run": call.run,
        "round": call.round,
        "guardian": guardian,
        "sequence": found.sequence,
        "head": found.head,
        "sum": hashlib.sha256(payload).hexdigest(),
    }


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
        own = digest_of(_receipt(call, name, found, payload)), card.signing, n_entries
        if own != (digest_of(said), receipt["key"], len(found.total)) or found.sequence < 1:
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
        guardians: By name, in the order of shares, all of one run.
        coins: Source of every client's own coin.
        outbox: Keeps ciphertexts before they are delivered, so that a round that is asked again gets the same ones.
        note: Receives every guardian's signed receipt.
    """

    guardians: Mapping[str, Guardian]
    coins: NoiseSource
    outbox: StateStore
    note: Callable[[Json], None] = lambda _: None

    def gather(self, round_: int, mechanism: PrivateSum, request: Request, answers: object) -> IntArray:
        """Give the noisy sums of the clients' vectors in grid units, ``(n_entries,)``; see ``privbo.door.door``."""
        question = question_digest(mechanism, request)
        call = Call(run=self._first.run, round=round_, plan=self._first.plan, question=question)
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
        return joined_answers(answers, self._first.cards, call, request, self.note)

    @property
    def _first(self) -> Guardian:
        return next(iter(self.guardians.values()))

    def _ciphertexts(
        self, call: Call, mechanism: PrivateSum, request: Request, answers: object
    ) -> Sequence[Ciphertext]:
        if (kept := self.outbox.arrays(call.round)) is not None:
            box = CiphertextBox(call.round, request, len(self.guardians))
            for client, message in zip(kept["clients"].tolist(), kept["messages"], strict=True):
                box.receive(client, message.tobytes())
            return box.close()
        rows = vet_rows(answers, n_clients=request.n_clients, dim=request.dim)
        coins, ciphertexts = self.coins.stream(str(call.round)), list[Ciphertext]()
        for start in range(0, request.n_clients, _AT_ONCE):
            some = np.arange(start, min(start + _AT_ONCE, request.n_clients))
            units = own_units(mechanism, request, rows[some], some, coins)
            ciphertexts += encrypt_shares(call, units, some.tolist(), cards=self._first.cards, site="")
        self.outbox.put_arrays(call.round, stored(call.round, ciphertexts))
        return ciphertexts
