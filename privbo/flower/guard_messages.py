"""Messages between Flower's server app and guardians' apps: plain records, nothing pickled.

Three questions: who is there (``meet``), take these shares and state what you hold (``receive``), sum what all have
agreed on (``answer``; it names the round only, the guardian has kept what clients were shown). A guardian's
identity is the key that signs what it says, whatever node it speaks from.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from accountant.errors import PrivacyError
from accountant.events import Json
from privbo.flower.messages import decode_broadcast, encode_broadcast, error_class
from privbo.guardians.guardian import Answer, Envelope
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Broadcast

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
        envelopes: Shares to receive.
        signed: The other guardians' statements to answer.
    """

    kind: Literal["meet", "receive", "answer"]
    nonce: bytes
    run: str
    round: int = -1
    public_seed: int = 0
    broadcast: Broadcast | None = None
    envelopes: Sequence[Envelope] = ()
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
            "clients": [envelope.client for envelope in question.envelopes],
            "marks": [envelope.mark for envelope in question.envelopes],
            "sealed": [envelope.sealed for envelope in question.envelopes],
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
    parts = zip(fields["clients"], fields["marks"], fields["sealed"], strict=True)
    return dataclasses.replace(
        asked,
        public_seed=int(fields["public_seed"]),
        broadcast=decode_broadcast(content, round_),
        envelopes=[Envelope(client=int(c), mark=str(m), sealed=bytes(s)) for c, m, s in parts],
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
