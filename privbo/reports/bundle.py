"""Signed files for people outside: a small receipt of where the ledger stood, and one file for an auditor.

A receipt is for a board's drawer: it says where the ledger stood, so that no later ledger can
have lost what stood in it. A bundle is what can be checked of a run, signed, and is checked
without this package's heavy parts (``accountant.verify.auditor``).
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accountant.errors import DisagreementError, LedgerError
from accountant.events import Json
from accountant.ledger.chain import Row
from accountant.ledger.signing import BUNDLE, RECEIPT, checked, sign, signing_key
from accountant.verify.auditor import FORMAT
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import private_folder, read_json, read_lines, write_json
from privbo.protocol.settings import plain
from privbo.reports.report import report
from privbo.runs.evidence import Evidence, plan_of, planned
from privbo.runs.guarded import GUARDIANS, RECEIPTS
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import Record, load


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that may leave.

    Attributes:
        path: Where it stands.
        run: Identifier of the run.
        head: Digest of the ledger's last row.
        key: Public key that signed it: note it where the reader of the file will find it.
    """

    path: Path
    run: str
    head: str
    key: str


_KEY = "signing.key"


def operator_key(home: RunDirectory) -> Ed25519PrivateKey:
    """Read the operator's private key, which signs what leaves; makes one where there is none.

    Raises:
        RunError: If the folder is gone that may have held one.
    """
    if not home.private.is_dir():
        raise RunError(f"{home.private} is not here, nor the key in it that signs for the run; restore it from a copy")
    return signing_key(private_folder(home.path) / _KEY)


def public_key(home: RunDirectory, *, make: bool = False) -> str | None:
    """Give its public half, 64 hexadecimal digits; None where there is none, unless it is to be made."""
    if make or (home.private / _KEY).exists():
        return operator_key(home).public_key().public_bytes_raw().hex()
    return None


def write_receipt(directory: Path, out: Path | None = None, *, ledger: str | None = None) -> Written:
    """Sign where a run's ledger stands; ``DIR/receipt.json`` unless another place is named.

    Args:
        directory: Of the run.
        out: The file.
        ledger: As of ``load``.

    Raises:
        ConfigurationError: If another file stands there.
    """
    record = load(directory, ledger=ledger)
    with record.ledger as opened:
        book, found = opened.book(), report(record)
        content: Json = {
            "run": record.run_id,
            "ledger": opened.ledger_id,
            "population": opened.policy.population,
            "plan": plan_of(record.manifest, book).digest,
            "sequence": len(book.rows),
            "head": book.head,
            "stored": next(([row.sequence, row.digest] for row in reversed(opened.release_rows())), None),
            "epsilon": plain(found.smallest_epsilon),
            "delta": found.delta,
            "releases": found.releases,
            "planned_releases": found.planned_releases,
        }
    return _signed(record, RECEIPT, content, out or record.home.path / "receipt.json")


def read_receipts(paths: Sequence[Path], home: RunDirectory) -> list[Evidence]:
    """Read receipts of a run: the places of the ledger that each saw, once its signature is known to be good.

    Raises:
        LedgerError: If a file is no receipt.
        DisagreementError: If it is not as it was signed, or of another run.
    """
    run = home.manifest().run_id
    found = []
    for path in paths:
        if not path.is_file():
            raise RunError(f"{path} is no file; name a receipt that privbo ledger receipt wrote")
        content = checked(read_json(path), RECEIPT)
        try:
            owner, place, kept = content["run"], (int(content["sequence"]), str(content["head"])), content["stored"]
            stored = None if kept is None else (int(kept[0]), str(kept[1]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise LedgerError(f"{path} is no receipt ({error!r}); ask for a whole one") from None
        if owner != run:
            raise DisagreementError(f"{path} is a receipt of {owner}, not of {run}; name one of this run")
        found.append(Evidence(by=path.name, place=place, round=-1, stored=stored))
    return found


def write_bundle(
    directory: Path, out: Path | None = None, *, statement: Path | None = None, ledger: str | None = None
) -> Written:
    """Write what an auditor can check of a run into one signed file; ``DIR/bundle.json`` unless another is named.

    Nothing else goes in: all of it is bound by the ledger, held to what is computed from its rows, or on the list of
    what is the operator's word (``accountant.verify.statement.BY_WORD``).

    Args:
        directory: Of the run.
        out: The file.
        statement: Statement of this run that is handed over with it; its hash goes in.
        ledger: As of ``load``.

    Raises:
        ConfigurationError: If another file stands there.
    """
    record = load(directory, ledger=ledger)
    sheet = {} if statement is None else {"statement": _digest_of(statement, record.run_id)}
    with record.ledger as opened:
        found = report(record)
        content: Json = (
            {
                "format": FORMAT,
                "run": record.run_id,
                "ledger": {
                    "ledger_id": opened.ledger_id,
                    "policy": opened.stored_policy,
                    "charges": _lines(opened.book().rows),
                    "releases": _lines(opened.release_rows()),
                },
                "settings": record.spec.digested(),
                "plan": planned(record.manifest),
                "quoted": {"epsilon": plain(found.smallest_epsilon), "total": plain(found.total.epsilon)},
            }
            | _guardians(record.home)
            | sheet
        )
    return _signed(record, BUNDLE, content, out or record.home.path / "bundle.json")


def _digest_of(statement: Path, run: str) -> str:
    """Digest of a statement, which names its run."""
    content = statement.read_bytes()
    if run.encode() not in content:
        raise ConfigurationError(f"{statement} does not name {run}: it is no statement of this run; write it anew")
    return hashlib.sha256(content).hexdigest()


def _guardians(home: RunDirectory) -> Json:
    """Signing keys of a run's guardians, and what they have signed; nothing where it has none."""
    path = home.path / GUARDIANS
    if not path.exists():
        return {}
    known: Json = read_json(path)
    keys = {name: card["signing"] for name, card in known["cards"].items()}
    signed = sorted(read_lines(home.path / RECEIPTS), key=lambda row: int(str(row["round"])))
    return {"guardians": {"where": known["where"], "cards": keys, "signed": signed}}


def _lines(rows: Sequence[Row]) -> list[list[object]]:
    return [[row.sequence, row.release_id, b64encode(row.body).decode(), row.previous, row.digest] for row in rows]


def _signed(record: Record, purpose: str, content: Json, path: Path) -> Written:
    made = sign(operator_key(record.home), purpose, content)
    write_json(path, made, evidence=True)
    return Written(path=path, run=record.run_id, head=record.ledger.head, key=made["key"])
