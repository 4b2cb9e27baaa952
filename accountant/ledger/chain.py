"""The hash chain of a ledger: its first digest, its rows, and whether one head extends another.

A row's digest covers its predecessor's, so a head binds everything before it. A party that has kept an
earlier head needs only the rows after it: either they go on from that head, or the ledger lost its
tail, or a recovery among them names the lost head, and charges it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accountant.errors import LedgerError

SCHEMA_VERSION = 1
BUSY_SECONDS = 60.0  # how long a writer waits for its turn
RESERVATION = "reservation"  # kind of a row that is no charge
Position: TypeAlias = tuple[int, str]  # sequence and digest of a row


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a ledger, fixed at creation."""

    ledger_id: str
    policy: str

    def genesis(self, table: str) -> str:
        """The digest before the first row of ``table``."""
        return sha256_of(f"privbo-ledger-{SCHEMA_VERSION}", table, self.ledger_id, self.policy)


def sha256_of(*parts: str | bytes) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts share their bytes."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


@dataclass(frozen=True)
class Row:
    """One row of a chain."""

    sequence: int
    release_id: str
    body: bytes
    previous: str
    digest: str

    @property
    def is_sound(self) -> bool:
        """Tell whether the digest is that of the row."""
        return row_digest(self.previous, self.sequence, self.release_id, self.body) == self.digest


def row_digest(previous: str, sequence: int, release_id: str, body: bytes) -> str:
    """Digest of a row; every part is length-prefixed, so no two rows share their bytes."""
    return sha256_of(previous, str(sequence), release_id, body)


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Rows as bytes that travel: one JSON array per line."""
    lines = ([row.sequence, row.release_id, row.body.decode(), row.previous, row.digest] for row in rows)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def decode_rows(payload: bytes) -> list[Row]:
    """Rows that ``encode_rows`` wrote, verified to follow one another.

    Raises:
        LedgerError: If they are no unbroken stretch of a chain.
    """
    try:
        lines = [json.loads(line) for line in payload.splitlines()]
        rows = [
            Row(sequence, release_id, body.encode(), previous, digest)
            for sequence, release_id, body, previous, digest in lines
        ]
        before: Row | None = None
        for row in rows:
            if not row.is_sound or (before is not None and not follows([row], (before.sequence, before.digest))):
                raise LedgerError(f"row {row.sequence} does not match its digest or does not follow the row before it")
            before = row
    except (ValueError, TypeError, AttributeError) as error:
        raise LedgerError(f"these are no rows of a ledger ({error})") from None
    return rows


def follows(rows: Sequence[Row], seen: Position) -> bool:
    """Tell whether rows go on from a position, or hold it: verified up to there, the chain is then verified whole."""
    if not rows:
        return False
    after = (rows[0].sequence, rows[0].previous) == (seen[0] + 1, seen[1])
    return after or any((row.sequence, row.digest) == seen for row in rows)


def makes_good(rows: Sequence[Row], seen: Position) -> bool:
    """Tell whether a recovery among rows names a position that was lost, and charges it again."""
    contents = (json.loads(row.body) for row in rows)
    recoveries = (one for one in contents if one.get("row") == RESERVATION and one.get("kind") == "recovery")
    return any(seen in map(tuple, one["lost"]) for one in recoveries)
