"""What the door sends and what it takes in: the bytes of a release, and clients' answers.

The bytes of a release that the ledger stores are exactly what is sent.

Clients' answers as they arrive: anything may be sent, one well-formed vector per client counts.

Whatever is missing or malformed becomes a row of NaN, which contributes nothing. A client's
answer decides its own row and no other; nothing is resampled, rejected aloud or published
about who sent what.

A message from a channel is bytes of a fixed layout (no pickle, nothing evaluated), whose
length is checked against its header and the header against what was asked for before
anything is allocated. Who a message comes from is what the channel's authentication says,
never what the message says. Refused messages are not answered.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeGuard

import numpy as np

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger import Ledger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Array, FloatArray, Release

_RELEASE = b"privbo release 1\n"
_ANSWER = b"privbo answer 1\n"
_NUMBER = struct.Struct("<Q")
_OVERHEAD = len(_ANSWER) + 2 * _NUMBER.size
_ACCEPTED = (np.dtype(np.float64), np.dtype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Public side of adaptive clipping in one release.

    Attributes:
        norm: The bound S that clipped.
        fraction: Noisy share of vectors within it.
    """

    norm: float
    fraction: float


def framed(magic: bytes, header: Json, values: Array) -> bytes:
    """Canonical bytes: a magic line, a JSON header line, the values in little-endian order."""
    line = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return magic + line + b"\n" + values.tobytes()


def unframed(magic: bytes, payload: bytes) -> tuple[bytes, Json, bytes]:
    """Read the magic line, the header and the values' bytes; nothing is checked but that there are as many."""
    line, values = payload[len(magic) :].split(b"\n", 1)
    return payload[: len(magic)], json.loads(line), values


def encode_release(release: Release, clipping: Clipping | None = None) -> bytes:
    """The bytes of a release."""
    header: Json = {
        "round": release.round,
        "shape": list(release.values.shape),
        "noise_stddev": release.noise_stddev,
        "sequence": release.sequence,
        "head": release.head,
        "clipping": None if clipping is None else asdict(clipping),
    }
    return framed(_RELEASE, header, np.ascontiguousarray(release.values, dtype="<f8"))


def decode_release(payload: bytes) -> tuple[Release, Clipping | None]:
    """Read what ``encode_release`` wrote; the header is checked before anything is allocated.

    Raises:
        LedgerError: If the bytes are no release.
    """
    try:
        magic, header, values = unframed(_RELEASE, payload)
        n_blocks, dim = (int(n) for n in header.pop("shape"))
        adapted = header.pop("clipping")
        sound = magic == _RELEASE and min(n_blocks, dim) >= 1 and len(values) == 8 * n_blocks * dim
        if sound and math.isfinite(header["noise_stddev"]) and header["noise_stddev"] >= 0:
            array = np.frombuffer(values, dtype="<f8").reshape(n_blocks, dim).astype(np.float64)
            return Release(values=array, **header), None if adapted is None else Clipping(**adapted)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerError(f"stored bytes are no release ({error}); restore the ledger from a copy") from error
    raise LedgerError("stored bytes are no release (header and bytes disagree); restore the ledger from a copy")


def store(ledger: Ledger, release_id: str, content: bytes) -> bytes:
    """Store a release's bytes, and give those that stand in the ledger now: they alone may leave.

    Raises:
        LedgerError: If other bytes stand there, or none.
    """
    ledger.store_release(release_id, content)
    stored = ledger.stored_release(release_id)
    if stored is None:
        raise LedgerError(f"release {release_id!r} was stored and is gone; restore the ledger from a copy")
    return stored


def vet_rows(answers: object, *, n_clients: int, dim: int) -> FloatArray:
    """One row per registered client, NaN where there is no usable vector.

    A well-formed matrix is taken whole. A list or an array of objects with one entry per
    client is vetted entry by entry. Anything else is an absence of everyone. Integers,
    booleans, complex and half-precision numbers, objects and foreign byte orders are refused
    rather than converted: an honest client sends none of them.

    Args:
        answers: Anything.
        n_clients: Registered clients.
        dim: Length of the vector that was asked for.

    Returns:
        A float64 matrix of its own, ``(n_clients, dim)``.

    Example:
        >>> vet_rows([np.array([1.0, 2.0]), "a lie"], n_clients=2, dim=2)
        array([[ 1.,  2.],
               [nan, nan]])
    """
    rows = np.full((n_clients, dim), np.nan)
    with np.errstate(invalid="ignore"):
        if _is_native(answers, (n_clients, dim)):
            rows[:] = answers
        elif isinstance(answers, (list, tuple)) or (
            type(answers) is np.ndarray and answers.dtype.hasobject and answers.ndim == 1
        ):
            for client, vector in enumerate(answers if len(answers) == n_clients else ()):
                if _is_native(vector, (dim,)):
                    rows[client] = vector
    return rows


def _is_native(value: object, shape: tuple[int, ...]) -> TypeGuard[FloatArray]:
    return type(value) is np.ndarray and value.dtype in _ACCEPTED and value.shape == shape


def encode_answer(round: int, vector: FloatArray) -> bytes:  # noqa: A002 (the protocol's word)
    """A client's message: magic, round, length, float64 values in little-endian order."""
    body = np.ascontiguousarray(vector, dtype="<f8")
    return _ANSWER + _NUMBER.pack(round) + _NUMBER.pack(body.size) + body.tobytes()


class Box:
    """Collects a message of every client in a round; whatever else arrives is dropped silently.

    Args:
        n_clients: Registered clients; others are unknown.
        head: How a message of this round begins, part by part, each with the reason for which another one is dropped.
        size: Bytes of a message.
    """

    def __init__(self, *, n_clients: int, head: Mapping[str, bytes], size: int) -> None:
        self._n_clients, self._head, self._size = n_clients, head, size
        self._arrived: dict[int, bytes] = {}
        self._closed = False
        self._refused: Counter[str] = Counter()

    def receive(self, client: int, message: bytes) -> None:
        """Take a message, or drop it silently.

        Args:
            client: Number of the client as authenticated by the channel.
            message: What it sent.
        """
        reason = self._refusal(client, message)
        if reason is None:
            self._arrived[client] = message
        else:
            self._refused[reason] += 1

    def _refusal(self, client: int, message: bytes) -> str | None:
        if self._closed:
            return "late"
        if type(client) is not int or not 0 <= client < self._n_clients:
            return "unknown client"
        if client in self._arrived:
            return "duplicate"
        if type(message) is not bytes or len(message) != self._size:
            return "wrong size"
        at = 0
        for reason, part in self._head.items():
            if message[at : at + len(part)] != part:
                return reason
            at += len(part)
        return None

    @property
    def refused(self) -> dict[str, int]:
        """PRIVATE: how many messages were dropped, by reason; covered by no epsilon."""
        return dict(self._refused)


class Inbox(Box):
    """Collects the answers of one round.

    Args:
        round: The round that is open.
        n_clients: Registered clients; others are unknown.
        dim: Length of the vector that was asked for.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    def __init__(self, *, round: int, n_clients: int, dim: int) -> None:  # noqa: A002 (the protocol's word)
        if min(round, n_clients, dim - 1) < 0:
            raise ConfigurationError(f"round={round!r}, n_clients={n_clients!r}, dim={dim!r} describe no round")
        head = {"no answer": _ANSWER, "another round": _NUMBER.pack(round), "wrong length": _NUMBER.pack(dim)}
        super().__init__(n_clients=n_clients, head=head, size=_OVERHEAD + 8 * dim)
        self._dim = dim

    def close(self) -> FloatArray:
        """Every client's row, ``(n_clients, dim)``, NaN where none arrived; later messages are late."""
        self._closed = True
        rows = np.full((self._n_clients, self._dim), np.nan)
        with np.errstate(invalid="ignore"):
            for client, message in self._arrived.items():
                rows[client] = np.frombuffer(message, dtype="<f8", offset=_OVERHEAD)
        return rows
