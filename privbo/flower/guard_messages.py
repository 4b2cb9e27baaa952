"""Messages between Flower's server app and guardians' apps: plain records, nothing pickled.

Three questions: who is there (``meet``), take these shares and state what you hold (``receive``), sum what all have
agreed on (``answer``; it names the round only, the guardian has kept what was asked with the shares). A guardian's
identity is the key that signs what it says, whatever node it speaks from.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from accountant.errors import PrivacyError
from accountant.events import Json
from accountant.ledger.reservation import Declaration
from privbo.flower.messages import decode_request, encode_request, error_class
from privbo.guardians.guardian import Answer, Envelope
from privbo.guardians.sealing import Call
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Request

GUARD = "guard"
GUARD_TYPE = f"query.{GUARD}"
MEETING = "guardian's greeting"
_FORMAT, _LONGEST = 2, 600


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Facts of a run that a guardian is told, and judges by its own files.

    Attributes:
        declared: The plan that it is to reserve.
        noise_multiplier: Nominal z.
    """

    declared: Declaration
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A question to a guardian.

    Attributes:
        kind: Which of the three.
        nonce: The reply has to repeat it.
        run: Name of the run.
        call: The round; None in a meeting.
        terms, request: With the shares; None where they were sent before.
        envelopes: Shares to receive.
        signed: The other guardians' statements to answer.
        plan_position: Place in the run's plan.
    """

    kind: Literal["meet", "receive", "answer"]
    nonce: bytes
    run: str
    terms: Terms | None = None
    call: Call | None = None
    request: Request | None = None
    envelopes: Sequence[Envelope] = ()
    signed: Sequence[Json] = ()
    plan_position: int | None = None


def encode_wanted(wanted: Wanted) -> RecordDict:
    """Encode a question to one guardian."""
    fields: dict[str, int | str | bytes | float | list[int] | list[str] | list[bytes]] = {
        "format": _FORMAT, "kind": wanted.kind, "nonce": wanted.nonce, "run": wanted.run
    }  # fmt: skip
    records: dict[str, ConfigRecord | ArrayRecord] = {}
    if wanted.call is not None:
        fields |= {"call": json.dumps(wanted.call.to_dict())}
    if wanted.kind == "answer":
        fields |= {"signed": json.dumps(list(wanted.signed))}
        fields |= {} if wanted.plan_position is None else {"plan_position": wanted.plan_position}
    if wanted.terms is not None and wanted.request is not None:
        fields |= {
            "declared": json.dumps(wanted.terms.declared.to_dict()),
            "clients": [envelope.client for envelope in wanted.envelopes],
            "marks": [envelope.mark for envelope in wanted.envelopes],
            "sealed": [envelope.sealed for envelope in wanted.envelopes],
        }
        records = encode_request(wanted.request, {"noise_multiplier": wanted.terms.noise_multiplier})
    return RecordDict({"guard": ConfigRecord(fields), **records})


def decode_wanted(content: RecordDict) -> Wanted:
    """Decode what ``encode_wanted`` wrote.

    Raises:
        RunError: If the question is of another format.
    """
    fields = content.config_records.get("guard", {})
    if fields.get("format") != _FORMAT:
        raise RunError(f"the server speaks format {fields.get('format')!r}, this guardian {_FORMAT}; use one version")
    kind, nonce, run = cast("Literal['meet']", str(fields["kind"])), bytes(fields["nonce"]), str(fields["run"])
    if kind == "meet":
        return Wanted(kind=kind, nonce=nonce, run=run)
    call = Call(**json.loads(fields["call"]))
    if kind == "answer":
        position = int(fields["plan_position"]) if "plan_position" in fields else None
        signed = json.loads(fields["signed"])
        return Wanted(kind=kind, nonce=nonce, run=run, call=call, signed=signed, plan_position=position)
    request, numbers = decode_request(content)
    parts = zip(fields["clients"], fields["marks"], fields["sealed"], strict=True)
    return Wanted(
        kind=kind,
        nonce=nonce,
        run=run,
        call=call,
        terms=Terms(
            declared=Declaration.from_dict(json.loads(fields["declared"])),
            noise_multiplier=float(numbers["noise_multiplier"]),
        ),
        request=request,
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
