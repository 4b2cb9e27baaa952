"""Does one head of a ledger extend another? Decided from the rows alone, by whoever was shown them.

A row's digest covers its predecessor's, so a head binds everything before it. Who has kept an
earlier head needs only the rows after it: either they go on from that head, or the ledger lost its
tail, or a recovery among them names the lost head and pays for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from accountant.errors import LedgerError
from accountant.ledger.reservation import KIND, Place
from accountant.ledger.store import Row, row_digest


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Rows as bytes that travel: one JSON array per line."""
    lines = ([row.sequence, row.release_id, row.body.decode(), row.previous, row.digest] for row in rows)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def decode_rows(payload: bytes) -> list[Row]:
    """Rows that ``encode_rows`` wrote, verified to follow one another.

    Raises:
        LedgerError: If they are no unbroken stretch of a chain.
    """
    rows: list[Row] = []
    try:
        for line in payload.splitlines():
            sequence, release_id, body, previous, digest = json.loads(line)
            rows.append(
                Row(sequence=sequence, release_id=release_id, body=body.encode(), previous=previous, digest=digest)
            )
    except (ValueError, TypeError, AttributeError) as error:
        raise LedgerError(f"these are no rows of a ledger ({error})") from None
    require_chain(rows)
    return rows


def require_chain(rows: Sequence[Row]) -> None:
    """Refuse rows that do not follow one another or do not match their digests.

    Raises:
        LedgerError: Naming the first such row.
    """
    before: Row | None = None
    for row in rows:
        sound = row_digest(row.previous, row.sequence, row.release_id, row.body) == row.digest
        follows = before is None or (before.sequence + 1, before.digest) == (row.sequence, row.previous)
        if not sound or not follows:
            raise LedgerError(f"row {row.sequence} does not match its digest or does not follow the row before it")
        before = row


def follows(rows: Sequence[Row], seen: Place) -> bool:
    """Tell whether rows go on from a place, or hold it: who verified the chain up to there has verified all of it."""
    if not rows:
        return False
    after = (rows[0].sequence, rows[0].previous) == (seen[0] + 1, seen[1])
    return after or any((row.sequence, row.digest) == seen for row in rows)


def makes_good(rows: Sequence[Row], seen: Place) -> bool:
    """Tell whether a recovery among rows names a place that was lost, and pays for it."""
    return seen in _recovered(rows)


def _recovered(rows: Sequence[Row]) -> set[Place]:
    found: set[Place] = set()
    for row in rows:
        content = json.loads(row.body)
        if content.get("row") == KIND and content.get("kind") == "recovery":
            found |= {(sequence, digest) for sequence, digest in content["lost"]}
    return found
