"""A site's receipts: every head of the server's ledger that it was shown, kept and countersigned.

Before a site answers, it holds the rows it is shown against the last head it has seen: a server
whose ledger went back would ask for a second answer to a charge, and gets none. The first question shows
the rows from the run's plan on; later ones need only what came since, because a head binds everything
before it. What the site has seen is durable before anything leaves; the countersignature, which names it,
goes back with the answer, and where the rows do not go on from it the refusal does.

    DIR/RUN/receipts.jsonl   round, sequence, head and plan of every question that was answered
    DIR/signing.key          the site's own key (Ed25519), made at its first answer
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from accountant.events import Json
from accountant.ledger.chain import Position, Row, decode_rows, follows, makes_good
from accountant.ledger.signing import checked, sign, signing_key
from privbo.protocol.errors import RunError
from privbo.protocol.files import append_line, read_lines
from privbo.protocol.messages import Standing

PURPOSE = "countersignature"
_LONGEST = 4000


@dataclass(frozen=True, kw_only=True)
class SiteReceipts:
    """Receipts of one run's ledger, as a site keeps them.

    Attributes:
        path: ``receipts.jsonl`` of the run.
        key: Path of the site's signing key.
    """

    path: Path
    key: Path

    def require(self, run: str, round_: int, standing: Standing, chain: bytes, *, released: bool) -> list[Row]:
        """Refuse a question behind which no ledger stands that extends what was seen; returns the rows shown.

        Raises:
            LedgerError: If the rows are no chain.
            RunError: If they do not end at the head, lack the round's charge, or neither go on from the last
                head that this site has seen nor begin at the plan and pay for losing that head.
        """
        rows, kept = decode_rows(chain), read_lines(self.path)
        if not rows or (rows[-1].sequence, rows[-1].digest) != (standing.sequence, standing.head):
            raise RunError("the rows that were shown do not end at the ledger's head")
        if released and f"{run}/{round_}" not in {row.release_id for row in rows}:
            raise RunError(f"round {round_} was not charged in the ledger that was shown")
        if _seen(round_, standing) in kept:
            return rows  # asked again: the same bytes go back
        last = _place(kept[-1]) if kept else None
        if last is not None and kept[-1]["plan"] == standing.plan and follows(rows, last):
            return rows  # the plan was verified when it was first shown
        plan = next((row for row in rows if row.digest == standing.plan), None)
        if plan is None or json.loads(plan.body).get("run") != run:
            raise RunError("the ledger that was shown binds no plan of this run, and does not go on from what was seen")
        if last is not None and (kept[-1]["plan"] != standing.plan or not makes_good(rows, last)):
            raise RunError(
                f"the ledger does not extend row {last[0]}, which this site has seen: it went back, or it is another "
                "one; nothing is answered"
            )
        return rows

    def last(self) -> Position | None:
        """The last head that was seen: sequence and digest."""
        kept = read_lines(self.path)
        return _place(kept[-1]) if kept else None

    def keep(self, run: str, round_: int, standing: Standing) -> bytes:
        """Keep a head, durably, and countersign it."""
        seen = _seen(round_, standing)
        if seen not in read_lines(self.path):
            append_line(self.path, seen, durable=True)
        return json.dumps(sign(signing_key(self.key), PURPOSE, {"run": run} | seen).to_dict()).encode()


def countersigned(payload: object, run: str, round_: int, standing: Standing) -> Json | None:
    """Give a countersignature that a site sent, None for anything else; raises nothing, whatever arrives."""
    wanted = {"run": run} | _seen(round_, standing)
    try:
        statement = dict(json.loads(payload)) if type(payload) is bytes and len(payload) < _LONGEST else {}
        seen = checked(statement, PURPOSE)
        signed = {"key": str(statement["key"]), "signature": str(statement["signature"])}
    except Exception:  # a hostile site must not end a run
        return None
    return None if seen != wanted else {name: value for name, value in wanted.items() if name != "run"} | signed


def _seen(round_: int, standing: Standing) -> Json:
    return {"round": round_, "sequence": standing.sequence, "head": standing.head, "plan": standing.plan}


def _place(row: Json) -> Position:
    return int(row["sequence"]), str(row["head"])
