"""Messages between Flower's server app and client apps: plain records, nothing pickled.

A question goes down as an ``ArrayRecord`` (the broadcast) and a ``ConfigRecord`` (the run,
the round, a nonce). An answer comes up as a ``ConfigRecord`` of bytes, one fixed-layout
message per client, which the door's inbox takes or drops. The nonce is drawn anew for every
node and round: a reply without it is none, so no node can answer in another's place.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from accountant.errors import PrivacyError
from accountant.events import Json
from accountant.ledger.chain import Position
from privbo.guardians.ciphertexts import EncryptedShare
from privbo.guardians.guardian import Answer
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Broadcast, IntArray, Standing

ACTION, GUARD = "respond", "guard"
MEETING = "guardian's greeting"
_FORMAT = 5
_LONGEST = 600  # characters of a refusal


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question to a site in one round, with which a restarted site needs nothing else.

    Everything else about the run a party computes from the files that it has approved.

    Attributes:
        run: Name of the run.
        public_seed: Seed of what both sides agree on.
        broadcast: Public arrays that every client is shown.
        released: Whether the round ends with a release; else it is one of local work.
        standing: Where the server's ledger stands.
        chain: Rows of that ledger up to where it stands: from what the site has seen, else from the run's plan, on.
    """

    run: str
    public_seed: int
    broadcast: Broadcast
    released: bool
    standing: Standing
    chain: bytes

    def digest(self) -> bytes:
        """Compute SHA-256 over everything that is asked."""
        asked = (self.run, self.public_seed, self.broadcast.round, self.released)
        found = hashlib.sha256(repr(asked).encode())
        for name, array in sorted(self.broadcast.arrays.items()):
            found.update(repr((name, array.dtype.str, array.shape)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.digest()


def encode_question(question: Question, nonce: bytes) -> RecordDict:
    """Encode one question to one node as Flower's records."""
    fields: dict[str, int | str | bytes] = {
        "format": _FORMAT, "run": question.run, "public_seed": question.public_seed, "nonce": nonce,
        "round": question.broadcast.round, "released": question.released, "chain": question.chain,
    }  # fmt: skip
    fields |= vars(question.standing)
    return RecordDict({"question": ConfigRecord(fields), "broadcast": _encode_broadcast(question.broadcast)})


def _encode_broadcast(broadcast: Broadcast) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in broadcast.arrays.items()})


def _decode_broadcast(content: RecordDict, round_: int) -> Broadcast:
    arrays = {name: array.numpy() for name, array in content.array_records["broadcast"].items()}
    return Broadcast(round=round_, arrays=arrays)


def decode_question(content: RecordDict) -> tuple[Question, bytes]:
    """Decode a question that ``encode_question`` wrote, and the nonce that the reply has to repeat.

    Raises:
        RunError: If the question is of another format.
    """
    fields = _fields_of(content, "question")
    question = Question(
        run=str(fields["run"]),
        public_seed=int(fields["public_seed"]),
        broadcast=_decode_broadcast(content, int(fields["round"])),
        released=bool(fields["released"]),
        standing=Standing(plan=str(fields["plan"]), sequence=int(fields["sequence"]), head=str(fields["head"])),
        chain=bytes(fields["chain"]),
    )
    return question, bytes(fields["nonce"])


def _fields_of(content: RecordDict, name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = content.config_records.get(name, {})
    if fields.get("format") != _FORMAT:
        raise RunError(f"the server speaks format {fields.get('format')!r}, this party {_FORMAT}; use one version")
    return fields


def encode_reply(site: str, nonce: bytes, clients: IntArray, messages: list[bytes], receipt: bytes) -> RecordDict:
    """Encode one site's answer.

    Args:
        site: The site's name.
        nonce: Nonce of the question.
        clients: Numbers of its clients, ``(n,)``.
        messages: One per client; none in a round of local work.
        receipt: Countersignature of the ledger's head that was shown.
    """
    content: dict[str, str | bytes | list[int] | list[bytes]] = {
        "site": site, "nonce": nonce, "clients": [int(client) for client in clients] if messages else [],
        "vectors": messages, "receipt": receipt,
    }  # fmt: skip
    return RecordDict({"answer": ConfigRecord(content)})


def encode_failure(site: str, nonce: bytes, error: BaseException, seen: Position | None = None) -> RecordDict:
    """Encode a failure: the class of the error, never its text, and the last head that the site has seen."""
    content = {"site": site, "nonce": nonce, "error": error_class(error)}
    place = {} if seen is None else {"sequence": seen[0], "head": seen[1]}
    return RecordDict({"answer": ConfigRecord(content | place)})


def error_class(error: BaseException) -> str:
    """Name the first class of an error that is Python's or ours; a user's class name could tell something.

    Example:
        >>> import json
        >>> error_class(json.JSONDecodeError("ward seven is empty", "", 0))
        'ValueError'
    """
    return next(
        kind.__name__
        for kind in type(error).__mro__
        if getattr(builtins, kind.__name__, None) is kind or kind.__module__.split(".")[0] in {"privbo", "accountant"}
    )


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A node's reply, as far as it has the form of an answer.

    Attributes:
        site: The name that the node gives itself.
        answers: Pairs of client number and bytes; nothing about either is known.
        receipt: A countersignature, perhaps.
        error: Class of the error in place of an answer, or None.
        seen: With an error, the last place of the ledger that the node says it has seen, or None.
    """

    site: str
    answers: tuple[tuple[Any, Any], ...] = ()
    receipt: object = None
    error: str | None = None
    seen: Position | None = None


def decode_reply(message: Message, nonce: bytes) -> Reply | str:
    """Decode a reply, or give the reason why it is none (PRIVATE); raises nothing, whatever arrives."""
    try:
        record = _record_of(message, "answer", nonce)
        site = record.get("site")
        if type(site) is not str or len(site) > 200:
            return "no site"
        if "error" in record:
            sequence, head = record.get("sequence"), record.get("head")
            named = type(sequence) is int and type(head) is str and len(head) < 200
            seen = (cast("int", sequence), str(head)) if named else None
            return Reply(site=site, error=str(record["error"])[:40], seen=seen)
        clients, vectors = record.get("clients"), record.get("vectors")
        if type(clients) is not list or type(vectors) is not list or len(clients) != len(vectors):
            return "no answer"
        return Reply(site=site, answers=tuple(zip(clients, vectors, strict=True)), receipt=record.get("receipt"))
    except RunError as error:
        return str(error)
    except Exception as error:
        return f"malformed ({error_class(error)})"


def _record_of(message: Message, name: str, nonce: bytes) -> Mapping[str, Any]:
    """Give a reply's record.

    Raises:
        RunError: If there is none, or it answers another question.
    """
    if message.has_error():
        raise RunError(f"flower error {int(message.error.code)}")
    record: Mapping[str, Any] | None = message.content.config_records.get(name)
    if record is None:
        raise RunError("no answer")
    echoed = record.get("nonce")
    if type(echoed) is not bytes or not hmac.compare_digest(echoed, nonce):
        raise RunError("another question's answer")
    return record


@dataclass(frozen=True, kw_only=True)
class GuardianQuestion:
    """A question to a guardian.

    Plan, noise and request are not among it: the guardian computes them from the files that it has approved.

    Attributes:
        kind: Which of the three.
        run: Name of the run.
        round: Index of the round; -1 in a meeting.
        public_seed: Of the run; with the shares.
        broadcast: What clients were shown; with the shares.
        encrypted_shares: Shares to receive.
        signed: The other guardians' statements to answer.
    """

    kind: Literal["meet", "receive", "answer"]
    run: str
    round: int = -1
    public_seed: int = 0
    broadcast: Broadcast | None = None
    encrypted_shares: Sequence[EncryptedShare] = ()
    signed: Sequence[Json] = ()


def encode_guardian_question(question: GuardianQuestion, nonce: bytes) -> RecordDict:
    """Encode a question to one guardian."""
    fields: dict[str, int | str | bytes | list[int] | list[str] | list[bytes]] = {
        "format": _FORMAT, "kind": question.kind, "nonce": nonce, "run": question.run,
        "round": question.round, "public_seed": question.public_seed, "signed": json.dumps(list(question.signed)),
    }  # fmt: skip
    if question.broadcast is None:
        return RecordDict({"guard": ConfigRecord(fields)})
    fields |= {
        "clients": [share.client for share in question.encrypted_shares],
        "share_ids": [share.share_id for share in question.encrypted_shares],
        "sealed": [share.sealed for share in question.encrypted_shares],
    }
    return RecordDict({"guard": ConfigRecord(fields), "broadcast": _encode_broadcast(question.broadcast)})


def decode_guardian_question(content: RecordDict) -> tuple[GuardianQuestion, bytes]:
    """Decode what ``encode_guardian_question`` wrote, and the nonce that the reply has to repeat.

    Raises:
        RunError: If the question is of another format.
    """
    fields = _fields_of(content, "guard")
    has_shares, round_ = "broadcast" in content.array_records, int(fields["round"])
    shares = zip(fields["clients"], fields["share_ids"], fields["sealed"], strict=True) if has_shares else ()
    question = GuardianQuestion(
        kind=cast("Literal['meet']", str(fields["kind"])),
        run=str(fields["run"]),
        round=round_,
        public_seed=int(fields["public_seed"]),
        broadcast=_decode_broadcast(content, round_) if has_shares else None,
        encrypted_shares=[EncryptedShare(client=int(c), share_id=str(i), sealed=bytes(s)) for c, i, s in shares],
        signed=json.loads(fields["signed"]),
    )
    return question, bytes(fields["nonce"])


@dataclass(frozen=True, kw_only=True)
class GuardianReply:
    """A guardian's reply, as far as it has the form of one: a statement, an answer, or the words of a refusal."""

    statement: Json | None = None
    answer: Answer | None = None
    refusal: str | None = None


def encode_guardian_reply(nonce: bytes, reply: GuardianReply) -> RecordDict:
    """Encode a guardian's reply."""
    content: dict[str, str | bytes] = {"nonce": nonce}
    if reply.statement is not None:
        content["statement"] = json.dumps(reply.statement).encode()
    if reply.answer is not None:
        content |= {"payload": reply.answer.payload, "receipt": json.dumps(reply.answer.receipt).encode()}
    if reply.refusal is not None:
        content["refusal"] = reply.refusal
    return RecordDict({"reply": ConfigRecord(content)})


def refusal_of(error: BaseException) -> GuardianReply:
    """Give a refusal: our own errors with their text, which holds names and rounds only; of others the class."""
    words = str(error)[:_LONGEST] if isinstance(error, PrivacyError) else ""
    return GuardianReply(refusal=f"{error_class(error)}: {words}")


def decode_guardian_reply(message: Message | None, nonce: bytes) -> GuardianReply:
    """Decode a reply; what is none is a refusal in words; raises nothing, whatever arrives."""
    if message is None:
        return GuardianReply(refusal="its reply can't be read")
    try:
        record = _record_of(message, "reply", nonce)
        if "refusal" in record:
            return GuardianReply(refusal=str(record["refusal"])[: 2 * _LONGEST])
        if "statement" in record:
            return GuardianReply(statement=dict(json.loads(record["statement"])))
        receipt = dict(json.loads(record["receipt"]))
        return GuardianReply(answer=Answer(payload=record["payload"], receipt=receipt))
    except RunError as error:
        return GuardianReply(refusal=str(error))
    except Exception as error:
        return GuardianReply(refusal=f"its reply is malformed ({error_class(error)})")
