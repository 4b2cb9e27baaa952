"""A bundle as an auditor checks it: on any machine, with the standard library, numpy and ``cryptography`` alone.

A bundle is one signed JSON file: a run's public ledger, its manifest and its report. Nothing in it is
believed. The chain of digests is followed from the ledger's identity on, every charge is held
to the plan that was reserved before it, what the manifest and the report say is held to what
the ledger binds, and epsilon is computed anew (``accountant.verify.recomputation``): exactly where everybody
takes part, between certified ends where participants are sampled. A report that quotes less than its releases
cost at least does not verify; it may quote more, as it has to after a recovery or beside a publication.

    python -m accountant.verify.auditor BUNDLE [--receipt FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accountant.errors import DisagreementError, LedgerError, PrivacyError
from accountant.events import Json
from accountant.ledger.book import Book
from accountant.ledger.extension import require_chain
from accountant.ledger.file import Identity
from accountant.ledger.policy import LedgerPolicy, canonical
from accountant.ledger.signing import BUNDLE, RECEIPT, checked
from accountant.ledger.store import Row
from accountant.verify.guardians import require_countersigned
from accountant.verify.recomputation import recomputed
from accountant.verify.statement import countersigned, is_guarded, paid_by, quoted_delta, statement_lines, unknowable
from accountant.wording import lower_text, upper_text

_ROUNDING = 1e-6  # relative, of either number


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Outcome of checking a bundle.

    Attributes:
        run: Name of the run.
        key: Public key that signed the bundle.
        head: Digest of the ledger's last row.
        checks: What holds, in words.
        problems: What does not; empty for a sound bundle.
        statement: What was promised to whom, a line each.
        unknown: What no check of a bundle can know, a line each.
    """

    run: str
    key: str
    head: str
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    statement: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether nothing disagrees."""
        return not self.problems

    @property
    def page(self) -> str:
        """Everything on one page of text."""
        state = "VERIFIED" if self.verified else "NOT VERIFIED"
        lines = [f"Bundle of {self.run}: {state}", ""]
        lines += [f"  ok       {words}" for words in self.checks] + [f"  PROBLEM  {words}" for words in self.problems]
        lines += ["", "What was promised", ""]
        lines += [f"  {words}" for words in self.statement]
        lines += ["", "What this check cannot know", ""]
        lines += [f"  {words}" for words in self.unknown]
        return "\n".join([*lines, "", f"signed by Ed25519 key {self.key}", f"ledger head {self.head}", ""])


def verify_bundle(path: Path, receipts: Sequence[Path] = ()) -> Findings:
    """Check a bundle, and hold it against receipts of its run; raises only where there is nothing to check.

    Raises:
        DisagreementError: If the bundle is not as it was signed.
        LedgerError: If a file is no bundle, or no receipt.
    """
    statement = _read(path, BUNDLE)
    content = checked(statement, BUNDLE)
    checks, problems = ["the bundle is as it was signed"], list[str]()

    def hold(words: str, check: Callable[[], None]) -> bool:
        try:
            check()
        except (PrivacyError, KeyError, TypeError, ValueError) as error:
            problems.append(f"{words}: {error if isinstance(error, PrivacyError) else repr(error)}")
            return False
        checks.append(words)
        return True

    book = _empty_book(content)
    hold("every row of the ledger follows the one before it, and every charge its plan", lambda: _fill(book, content))
    hold("every release that is stored was charged", lambda: _releases(book, content))
    run = str(content["run"])
    hold(
        "plan, settings and delta are those that the ledger fixed before the first release",
        lambda: _manifest(book, content, run),
    )
    hold("the report agrees with that plan and quotes no less than it costs", lambda: _report(book, content, run))
    if is_guarded(content):
        words = "every guardian has signed every release, once, at a later place of its own ledger"
        hold(words, lambda: _guardians(content, run))
    for receipt in receipts:
        kept = _read(receipt, RECEIPT)
        hold(f"the ledger extends {receipt.name}, by the same key", partial(_extends, book, statement, kept))
    lines = statement_lines(book, content, run) if book.plan_of(run) is not None else ["The ledger binds no plan."]
    return Findings(
        run=run,
        key=str(statement["key"]),
        head=book.head,
        checks=tuple(checks),
        problems=tuple(problems),
        statement=tuple(lines),
        unknown=unknowable(content, receipts),
    )


def _read(path: Path, purpose: str) -> Json:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path} is no {purpose} ({error}); name a file that privbo wrote") from None
    if not isinstance(found, dict):
        raise LedgerError(f"{path} is no {purpose}; name a file that privbo wrote")
    return found


def _extends(book: Book, statement: Json, kept: Json) -> None:
    """Hold a bundle against a receipt of an earlier day."""
    seen, content = checked(kept, RECEIPT), statement["content"]
    for what, theirs, ours in (
        ("run", seen["run"], content["run"]),
        ("ledger", seen["ledger"], content["ledger"]["ledger_id"]),
        ("key", kept["key"], statement["key"]),
    ):
        if theirs != ours:
            raise LedgerError(f"the receipt is of another {what}, {theirs}")
    if book.digest_at(int(seen["sequence"])) != seen["head"]:
        raise LedgerError(f"it has seen row {seen['sequence']}, which is not in the ledger, or is another one")


def _identity(content: Json) -> Identity:
    ledger = content["ledger"]
    return Identity(ledger_id=str(ledger["ledger_id"]), policy=str(ledger["policy"]))


def _empty_book(content: Json) -> Book:
    try:
        identity = _identity(content)
        return Book(policy=LedgerPolicy.from_dict(json.loads(identity.policy)), genesis=identity.genesis("charges"))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"the bundle holds no ledger ({error!r}); ask for a whole one") from None


def _rows(lines: Sequence[Sequence[object]], genesis: str) -> list[Row]:
    rows = [
        Row(sequence=int(str(n)), release_id=str(name), body=b64decode(str(body)), previous=str(p), digest=str(d))
        for n, name, body, p, d in lines
    ]
    require_chain(rows)
    if rows and (rows[0].sequence, rows[0].previous) != (1, genesis):
        raise LedgerError("its first row does not follow from the ledger's identity and policy")
    return rows


def _fill(book: Book, content: Json) -> None:
    for row in _rows(content["ledger"]["charges"], book.genesis):
        book.admit(row)


def _releases(book: Book, content: Json) -> None:
    for row in _rows(content["ledger"]["releases"], _identity(content).genesis("releases")):
        if book.find(row.release_id) is None:
            raise LedgerError(f"release {row.release_id!r} was stored and never charged")


def _manifest(book: Book, content: Json, run: str) -> None:
    manifest, plan = content["manifest"], book.plan_of(run)
    if plan is None:
        raise LedgerError("the ledger binds no plan of this run")
    quoted = {name: manifest[name] for name in ("plan", "public_seed", "created", "caveat")}
    bound = plan.declared
    stated = (manifest["run_id"], manifest["digest"], hashlib.sha256(canonical(quoted)).hexdigest())
    if stated != (run, bound.settings, bound.plan):
        raise LedgerError("config.json was changed since the plan was bound")


def _report(book: Book, content: Json, run: str) -> None:
    report, plan = content["report"], book.plan_of(run)
    if plan is None:
        raise LedgerError("the ledger binds no plan of this run")
    made = sum(entry.run == run for entry in book.entries)
    asked = report.get("asked_delta", report["delta"])  # an older bundle quotes at the delta that was asked for
    stated = (report["run"], asked, report["planned_releases"], report["releases"], report["unit"])
    bound = (run, plan.declared.delta, plan.declared.releases, made, book.policy.unit.value)
    if stated != bound:
        raise LedgerError(f"the report says {stated}, the ledger {bound}")
    delta = quoted_delta(report, asked)
    if report["total"]["delta"] != report["delta"]:
        raise LedgerError("the report quotes its ledger's total at another delta than the run's")
    if report["delta"] != delta:
        raise LedgerError(f"the report quotes epsilon at delta {report['delta']}, over the {asked} that was asked for")
    for whose, stated_epsilon, paid in (
        ("the run", report["smallest_epsilon"], paid_by(book, run)),
        ("the ledger", report["total"]["epsilon"], book.committed),
    ):
        quoted = math.inf if stated_epsilon is None else float(stated_epsilon)
        found = recomputed(paid, delta, book.policy.adjacency)
        if found is not None and quoted < found.lower * (1 - _ROUNDING):
            said, least = upper_text(quoted, 6), lower_text(found.lower, 6)
            raise LedgerError(f"the report quotes epsilon {said} for {whose}, computed here it is at least {least}")


def _guardians(content: Json, run: str) -> None:
    signed, cards = countersigned(content, run)
    privacy = content["manifest"]["spec"]["privacy"]
    if privacy.get("trust") != "guardians":
        raise LedgerError("guardians have signed, and the settings name none")
    names = [str(row[1]) for row in content["ledger"]["releases"]]
    released = [int(name.removeprefix(f"{run}/")) for name in names if name.startswith(f"{run}/")]
    require_countersigned(signed, cards, n_guardians=privacy["guardians"] or 2, released=released)


def main(arguments: Sequence[str]) -> int:
    """Check the bundle named on the command line; 0 if it holds, 3 if anything disagrees, 2 without one to check."""
    parser = argparse.ArgumentParser(
        prog="python -m accountant.verify.auditor",
        description="Check a bundle: exit code 0 if it holds, 3 if anything disagrees, 2 if there is nothing to check.",
    )
    parser.add_argument("bundle", type=Path, help="file that privbo bundle wrote")
    parser.add_argument("--receipt", type=Path, action="append", default=[], help="receipt that it has to extend")
    asked = parser.parse_args(arguments)
    try:
        found = verify_bundle(asked.bundle, asked.receipt)
    except LedgerError as error:
        sys.stderr.write(f"{error}\n")
        return 3 if isinstance(error, DisagreementError) else 2
    sys.stdout.write(found.page)
    return 0 if found.verified else 3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
