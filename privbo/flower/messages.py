"""Messages between Flower's server app and client apps: plain records, nothing pickled.

A message's fields are a ``ConfigRecord``, with what is neither number, text nor bytes as JSON; a broadcast's arrays
are an ``ArrayRecord``. A site's answer holds bytes, one fixed-layout message per client, which the door's inbox takes
or drops. The nonce is drawn anew for every node and round: a reply without it is none, so no node can answer in
another's place.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import Field, InstanceOf, Json, TypeAdapter

from accountant.ledger.chain import Position
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Broadcast, Standing

ACTION, GUARD, READY = "respond", "guard", "ready"
MEETING = "guardian's greeting"
_FORMAT = 6
LONGEST = 600  # characters of a refusal
_Statement: TypeAlias = Json[dict[str, Any]]


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

    record: ClassVar[str] = "question"
    action: ClassVar[str] = ACTION
    run: str
    public_seed: int
    broadcast: InstanceOf[Broadcast]
    released: bool
    standing: Json[Standing]
    chain: bytes

    def digest(self) -> bytes:
        """Compute SHA-256 over everything that is asked."""
        asked = (self.run, self.public_seed, self.broadcast.round, self.released)
        found = hashlib.sha256(repr(asked).encode())
        for name, array in sorted(self.broadcast.arrays.items()):
            found.update(repr((name, array.dtype.str, array.shape)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.digest()


@dataclass(frozen=True, kw_only=True)
class GuardianQuestion:
    """A question to a guardian.

    Plan, noise and request are not among it: the guardian computes them from the files that it has approved.

    Attributes:
        kind: Which of the three.
        run: Name of the run.
        public_seed: Of the run, except in a meeting.
        broadcast: What clients were shown, except in a meeting.
        encrypted_shares: Shares to receive.
        signed: The other guardians' statements to answer.
        terms: In a meeting before the run is made, its public terms; met is who would guard it.
    """

    record: ClassVar[str] = "guard"
    action: ClassVar[str] = GUARD
    kind: Literal["meet", "receive", "answer"]
    run: str
    public_seed: int = 0
    broadcast: InstanceOf[Broadcast] | None = None
    encrypted_shares: list[bytes] | None = None
    signed: Json[list[Any]] | None = None
    terms: Json[dict[str, Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class ReadinessQuestion:
    """Question to a site before a run is made: would you answer it? No reply follows from a client's value.

    Attributes:
        terms: The run's public terms as the server computes them; see ``privbo.flower.party.terms_of``.
    """

    record: ClassVar[str] = "readiness"
    action: ClassVar[str] = READY
    terms: Json[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A site's reply, as far as it has the form of one.

    Attributes:
        site: The name that the node gives itself.
        clients: Numbers of clients; nothing about them is known.
        vectors: What they sent, one each; nothing about it is known.
        receipt: A countersignature, perhaps.
        error: Class of the error in place of an answer, or None.
        sequence: With an error, the last row of the ledger that the site says it has seen, or None.
        head: That row's digest.
    """

    record: ClassVar[str] = "answer"
    site: Annotated[str, Field(max_length=200)]
    clients: list[Any] | None = None
    vectors: list[Any] | None = None
    receipt: Any = None
    error: Annotated[str, Field(max_length=200)] | None = None
    sequence: int | None = None
    head: Annotated[str, Field(max_length=200)] | None = None

    def __post_init__(self) -> None:
        if self.error is None and (self.clients is None or len(self.clients) != len(self.vectors or ())):
            raise ValueError("as many vectors as clients are an answer")


@dataclass(frozen=True, kw_only=True)
class GuardianReply:
    """A guardian's reply, as far as it has the form of one: a statement, an answer, or the words of a refusal."""

    record: ClassVar[str] = "reply"
    statement: _Statement | None = None
    payload: bytes = b""
    receipt: _Statement | None = None
    refusal: Annotated[str, Field(max_length=2 * LONGEST)] | None = None


_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Question, GuardianQuestion, ReadinessQuestion, Reply, GuardianReply)
}
Asked = TypeVar("Asked", bound=Question | GuardianQuestion | ReadinessQuestion)
Replied = TypeVar("Replied", bound=Reply | GuardianReply)


def encode(message: Asked | Replied, nonce: bytes) -> RecordDict:
    """Encode a message with a question's nonce."""
    fields: dict[str, Any] = {"nonce": nonce}
    records: dict[str, Any] = {message.record: fields}
    if not isinstance(message, Reply | GuardianReply):
        fields["format"] = _FORMAT
    for name, value in vars(message).items():
        match value:
            case None:
                continue
            case Broadcast():
                fields["round"] = value.round
                records["broadcast"] = ArrayRecord({name: Array(np.asarray(a)) for name, a in value.arrays.items()})
            case str() | int() | bytes() | list() if name != "signed":
                fields[name] = value
            case _:
                fields[name] = json.dumps(value, default=vars)
    return RecordDict(records | {message.record: ConfigRecord(fields)})


def decode(kind: type[Asked], content: RecordDict) -> Asked:
    """Decode a question.

    Raises:
        RunError: If the question is of another format.
        ValueError: If a field is missing or of another type.
    """
    fields = dict(content.config_records.get(kind.record, {}))
    if fields.get("format") != _FORMAT:
        raise RunError(f"the server speaks format {fields.get('format')!r}, this party {_FORMAT}; use one version")
    if "broadcast" in content.array_records:
        arrays = {name: array.numpy() for name, array in content.array_records["broadcast"].items()}
        fields["broadcast"] = Broadcast(round=int(fields["round"]), arrays=arrays)
    question: Asked = _ADAPTERS[kind].validate_python(fields)
    return question


def nonce_of(kind: type[Asked], content: RecordDict) -> bytes:
    """Give the nonce that a reply has to repeat, even to a question of another format; empty where there is none."""
    found = content.config_records.get(kind.record, ConfigRecord()).get("nonce")
    return found if isinstance(found, bytes) else b""


def decode_reply(kind: type[Replied], message: Message | None, nonce: bytes) -> Replied | str:
    """Decode a reply, or give the reason why it is none (PRIVATE); raises nothing, whatever arrives."""
    try:
        if message is None:
            return "unreadable"
        if message.has_error():
            return f"flower error {int(message.error.code)}"
        fields = dict(message.content.config_records[kind.record])
        echoed = fields.get("nonce")
        if type(echoed) is not bytes or not hmac.compare_digest(echoed, nonce):
            return "another question's answer"
        reply: Replied = _ADAPTERS[kind].validate_python(fields)
    except Exception as error:
        return f"malformed ({error_class(error)})"
    return reply


def failure(site: str, error: BaseException, seen: Position | None = None) -> Reply:
    """Give a site's failure: the class of the error, never its text, and the last head that the site has seen."""
    sequence, head = seen or (None, None)
    return Reply(site=site, error=error_class(error), sequence=sequence, head=head)


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
