"""Messages between Flower's server app and client apps: plain records, nothing pickled.

A question goes down as an ``ArrayRecord`` (the broadcast) and a ``ConfigRecord`` (the run,
the round, a nonce). An answer comes up as a ``ConfigRecord`` of bytes, one fixed-layout
message per client, which the door's inbox takes or drops. The nonce is drawn anew for every
node and round: a reply without it is none, so no node can answer in another's place.
"""

from __future__ import annotations

import builtins
import dataclasses
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
from privbo.door.payload import encode_answer
from privbo.flower.site import Question
from privbo.guardians.ciphertexts import EncryptedShare
from privbo.guardians.guardian import Answer
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, Standing

ACTION = "respond"
MESSAGE_TYPE = f"query.{ACTION}"
_FORMAT = 4


@dataclass(frozen=True, kw_only=True)
class Header:
    """Facts of the run that every question repeats, so that a restarted site needs nothing else.

    Everything else about the run a party computes from the files that it has approved.

    Attributes:
        run: Name of the run.
        public_seed: Seed of what both sides agree on.
    """

    run: str
    public_seed: int


def encode_question(header: Header, question: Question, nonce: bytes) -> RecordDict:
    """Encode one question to one node as Flower's records."""
    fields: dict[str, int | str | bytes] = {
        **vars(header), "format": _FORMAT, "round": question.broadcast.round, "released": question.released,
        "nonce": nonce,
    }  # fmt: skip
    if question.standing is not None:
        fields |= {**vars(question.standing), "chain": question.chain}
    return RecordDict({"question": ConfigRecord(fields), "broadcast": encode_broadcast(question.broadcast)})


def encode_broadcast(broadcast: Broadcast) -> ArrayRecord:
    """Encode a broadcast's arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in broadcast.arrays.items()})


def decode_broadcast(content: RecordDict, round_: int) -> Broadcast:
    """Decode what ``encode_broadcast`` wrote, beside the number of its round."""
    arrays = {name: array.numpy() for name, array in content.array_records["broadcast"].items()}
    return Broadcast(round=round_, arrays=arrays)


def decode_question(content: RecordDict) -> tuple[Header, Question, bytes]:
    """Decode a question that ``encode_question`` wrote.

    Returns:
        The facts of the run, the question, and the nonce that the reply has to repeat.

    Raises:
        RunError: If the question is of another format.
    """
    fields = content.config_records.get("question", {})
    if fields.get("format") != _FORMAT:
        raise RunError(f"the server speaks format {fields.get('format')!r}, this site {_FORMAT}; use one version")
    header = Header(run=str(fields["run"]), public_seed=int(fields["public_seed"]))
    question = Question(
        run=header.run,
        public_seed=header.public_seed,
        broadcast=decode_broadcast(content, int(fields["round"])),
        released=bool(fields["released"]),
        standing=Standing(plan=str(fields["plan"]), sequence=int(fields["sequence"]), head=str(fields["head"])),
        chain=bytes(fields["chain"]),
    )
    return header, question, bytes(fields["nonce"])


def vector_messages(round_: int, vectors: FloatArray) -> list[bytes]:
    """Give one message per client, ``vectors`` being ``(n, dim)``; none in a round of local work.

    An absent client sends NaN, so that absence does not show in the size.
    """
    return [encode_answer(round_, vector) for vector in vectors] if vectors.shape[1] else []


def encode_reply(site: str, nonce: bytes, clients: IntArray, messages: list[bytes], receipt: bytes) -> RecordDict:
    """Encode one site's answer.

    Args:
        site: The site's name.
        nonce: Nonce of the question.
        clients: Numbers of the site's clients, ``(n,)``.
        messages: Theirs, of one size; none in a round of local work.
        receipt: The ledger's head as the site has countersigned it.
    """
    numbers = [int(client) for client in clients] if messages else []
    content = {"site": site, "nonce": nonce, "clients": numbers, "vectors": messages, "receipt": receipt}
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
        return _decode_reply(message, nonce)
    except Exception as error:
        return f"malformed ({error_class(error)})"


def _decode_reply(message: Message, nonce: bytes) -> Reply | str:  # noqa: PLR0911 (one line per reason)
    if message.has_error():
        return f"flower error {int(message.error.code)}"
    record = message.content.config_records.get("answer")
    if record is None:
        return "no answer"
    echoed, site = record.get("nonce"), record.get("site")
    if type(echoed) is not bytes or not hmac.compare_digest(echoed, nonce):
        return "another question's answer"
    if type(site) is not str or len(site) > 200:
        return "no site"
    if "error" in record:
        sequence, head = record.get("sequence"), record.get("head")
        named = type(sequence) is int and type(head) is str and len(head) < 200
        return Reply(
            site=site, error=str(record["error"])[:40], seen=(cast("int", sequence), str(head)) if named else None
        )
    clients, vectors = record.get("clients"), record.get("vectors")
    if type(clients) is not list or type(vectors) is not list or len(clients) != len(vectors):
        return "no answer"
    return Reply(site=site, answers=tuple(zip(clients, vectors, strict=True)), receipt=record.get("receipt"))


GUARD = "guard"
GUARD_TYPE = f"query.{GUARD}"
MEETING = "guardian's greeting"
_FORMAT, _LONGEST = 3, 600


@dataclass(frozen=True, kw_only=True)
class GuardianQuestion:
    """A question to a guardian.

    Plan, noise and request are not among it: the guardian computes them from the files that it has approved.

    Attributes:
        kind: Which of the three.
        nonce: The reply has to repeat it.
        run: Name of the run.
        round: Index of the round; -1 in a meeting.
        public_seed: Of the run; with the shares.
        broadcast: What clients were shown; with the shares.
        encrypted_shares: Shares to receive.
        signed: The other guardians' statements to answer.
    """

    kind: Literal["meet", "receive", "answer"]
    nonce: bytes
    run: str
    round: int = -1
    public_seed: int = 0
    broadcast: Broadcast | None = None
    encrypted_shares: Sequence[EncryptedShare] = ()
    signed: Sequence[Json] = ()


def encode_guardian_question(question: GuardianQuestion) -> RecordDict:
    """Encode a question to one guardian."""
    fields: dict[str, int | str | bytes | list[int] | list[str] | list[bytes]] = {
        "format": _FORMAT, "kind": question.kind, "nonce": question.nonce, "run": question.run,
        "round": question.round,
    }  # fmt: skip
    records: dict[str, ConfigRecord | ArrayRecord] = {}
    if question.kind == "answer":
        fields |= {"signed": json.dumps(list(question.signed))}
    if question.broadcast is not None:
        fields |= {
            "public_seed": question.public_seed,
            "clients": [encrypted_share.client for encrypted_share in question.encrypted_shares],
            "share_ids": [encrypted_share.share_id for encrypted_share in question.encrypted_shares],
            "sealed": [encrypted_share.sealed for encrypted_share in question.encrypted_shares],
        }
        records = {"broadcast": encode_broadcast(question.broadcast)}
    return RecordDict({"guard": ConfigRecord(fields), **records})


def decode_guardian_question(content: RecordDict) -> GuardianQuestion:
    """Decode what ``encode_guardian_question`` wrote.

    Raises:
        RunError: If the question is of another format.
    """
    fields = content.config_records.get("guard", {})
    if fields.get("format") != _FORMAT:
        raise RunError(f"the server speaks format {fields.get('format')!r}, this guardian {_FORMAT}; use one version")
    kind, round_ = cast("Literal['meet']", str(fields["kind"])), int(fields["round"])
    asked = GuardianQuestion(kind=kind, nonce=bytes(fields["nonce"]), run=str(fields["run"]), round=round_)
    if kind == "meet":
        return asked
    if kind == "answer":
        return dataclasses.replace(asked, signed=json.loads(fields["signed"]))
    parts = zip(fields["clients"], fields["share_ids"], fields["sealed"], strict=True)
    return dataclasses.replace(
        asked,
        public_seed=int(fields["public_seed"]),
        broadcast=decode_broadcast(content, round_),
        encrypted_shares=[EncryptedShare(client=int(c), share_id=str(m), sealed=bytes(s)) for c, m, s in parts],
    )


def encode_said(nonce: bytes, *, statement: Json | None = None, answer: Answer | None = None) -> RecordDict:
    """Encode a guardian's greeting or statement, or its answer."""
    content: dict[str, bytes] = {"nonce": nonce}
    if statement is not None:
        content["statement"] = json.dumps(statement).encode()
    if answer is not None:
        content |= {"payload": answer.payload, "receipt": json.dumps(answer.receipt).encode()}
    return RecordDict({"said": ConfigRecord(content)})


def encode_refused(nonce: bytes, error: BaseException) -> RecordDict:
    """Encode a refusal: our own errors with their text, which holds names and rounds only; of others the class."""
    words = str(error)[:_LONGEST] if isinstance(error, PrivacyError) else ""
    return RecordDict({"said": ConfigRecord({"nonce": nonce, "error": error_class(error), "text": words})})


@dataclass(frozen=True, kw_only=True)
class Said:
    """A guardian's reply, as far as it has the form of one: a statement, an answer, or the words of a refusal."""

    statement: Json | None = None
    answer: Answer | None = None
    refusal: str | None = None


def decode_said(message: Message | None, nonce: bytes) -> Said:
    """Decode a reply; what is none is a refusal in words; raises nothing, whatever arrives."""
    try:
        return Said(refusal="its reply can't be read") if message is None else _decoded(message, nonce)
    except Exception as error:
        return Said(refusal=f"its reply is malformed ({error_class(error)})")


def _decoded(message: Message, nonce: bytes) -> Said:
    if message.has_error():
        return Said(refusal=f"Flower reports error {int(message.error.code)}")
    record: Mapping[str, object] | None = message.content.config_records.get("said")
    if record is None:
        return Said(refusal="it is no guardian")
    echoed = record.get("nonce")
    if type(echoed) is not bytes or not hmac.compare_digest(echoed, nonce):
        return Said(refusal="it answers another question")
    if "error" in record:
        return Said(refusal=f"{str(record['error'])[:60]}: {str(record['text'])[:_LONGEST]}")
    if "statement" in record:
        return Said(statement=dict(json.loads(cast("bytes", record["statement"]))))
    receipt = dict(json.loads(cast("bytes", record["receipt"])))
    return Said(answer=Answer(payload=cast("bytes", record["payload"]), receipt=receipt))
