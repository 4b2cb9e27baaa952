"""A bundle as an officer checks it: on any machine, with the standard library, numpy and ``cryptography`` alone.

A bundle is one signed JSON file: a run's public ledger, its manifest and its report. Nothing in it is
believed. The chain of digests is followed from the ledger's identity on, every charge is held
to the plan that was reserved before it, what the manifest and the report say is held to what
the ledger binds, and epsilon is computed anew by arithmetic of its own (``accountant.ledger.recount``): exactly where
everybody takes part, between certified ends where participants are sampled. A report that quotes less than its
releases cost at least does not verify; it may quote more, as it has to after a recovery or beside a publication.

    python -m accountant.ledger.officer BUNDLE
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accountant.errors import LedgerError, PrivacyError
from accountant.events import Composed, Json, compose
from accountant.ledger.book import Book
from accountant.ledger.extension import require_chain
from accountant.ledger.file import Identity
from accountant.ledger.guardians import Countersigned, in_words, read_countersigned, require_countersigned
from accountant.ledger.policy import LedgerPolicy, canonical
from accountant.ledger.recount import recount
from accountant.ledger.signing import checked
from accountant.ledger.store import Row

PURPOSE = "bundle"
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
        promise: What was promised to whom, in paragraphs.
    """

    run: str
    key: str
    head: str
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    promise: tuple[str, ...]

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
        lines += [f"  {words}" for words in self.promise]
        return "\n".join([*lines, "", f"signed by Ed25519 key {self.key}", f"ledger head {self.head}", ""])


def verify_bundle(path: Path) -> Findings:
    """Check a bundle; raises only where there is nothing to check.

    Raises:
        LedgerError: If the file is no bundle, or not as it was signed.
    """
    try:
        statement = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path} is no bundle ({error}); name a file that privbo bundle wrote") from None
    content = checked(statement, PURPOSE)
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
    hold("every release that is stored was charged, in a chain of its own", lambda: _releases(book, content))
    run = str(content["run"])
    hold("the manifest is what the ledger binds: plan, settings, delta", lambda: _manifest(book, content, run))
    hold("the report quotes what the ledger binds", lambda: _report(book, content, run))
    if _is_guarded(content):
        words = "every guardian has signed every release, once, at a later place of its own ledger"
        hold(words, lambda: _guardians(content, run))
    promise = _promise(book, content, run) if book.plan_of(run) is not None else ["The ledger binds no plan."]
    return Findings(
        run=run,
        key=str(statement["key"]),
        head=book.head,
        checks=tuple(checks),
        problems=tuple(problems),
        promise=tuple(promise),
    )


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
    if report["delta"] != (delta := _quoted_delta(report, asked)):
        raise LedgerError(f"the report quotes epsilon at delta {report['delta']}, over the {asked} that was asked for")
    quoted = math.inf if report["smallest_epsilon"] is None else float(report["smallest_epsilon"])
    found = recount(_paid(book, run), delta, book.policy.adjacency)
    if found is not None and quoted < found.lower * (1 - _ROUNDING):
        raise LedgerError(f"the report quotes epsilon {quoted:.6g}, computed here it is at least {found.lower:.6g}")


def _is_guarded(content: Json) -> bool:
    spec = content.get("manifest", {}).get("spec", {})
    return "guardians" in content or spec.get("privacy", {}).get("trust") == "guardians"


def _countersigned(content: Json, run: str) -> tuple[list[Countersigned], dict[str, str]]:
    if "guardians" not in content:
        raise LedgerError("the settings name guardians, and the bundle holds nothing that they have signed")
    found = content["guardians"]
    cards = {str(name): str(card["signing"]) for name, card in found["cards"].items()}
    return read_countersigned(found["signed"], run), cards


def _guardians(content: Json, run: str) -> None:
    signed, cards = _countersigned(content, run)
    privacy = content["manifest"]["spec"]["privacy"]
    if privacy.get("trust") != "guardians":
        raise LedgerError("guardians have signed, and the settings name none")
    names = [str(row[1]) for row in content["ledger"]["releases"]]
    released = [int(name.removeprefix(f"{run}/")) for name in names if name.startswith(f"{run}/")]
    require_countersigned(signed, cards, n_guardians=privacy["guardians"] or 2, released=released)


def _trust(content: Json, run: str) -> list[str]:
    if not _is_guarded(content):
        return []
    try:
        signed, cards = _countersigned(content, run)
    except (PrivacyError, KeyError, TypeError, ValueError):
        return ["Guardians:      what they have signed does not hold"]
    where = content["guardians"].get("where")
    together = ": IN ONE PROCESS, WHICH SAW EVERY VECTOR" if where == "one process" else ""
    return [
        f"Guardians:      one of them honest is enough{together}",
        *(f"  {line}" for line in in_words(signed, cards)),
    ]


def _quoted_delta(report: Json, asked: float) -> float:
    """The delta of the report's headline: any that is no larger than the one asked for; else that one."""
    delta = float(report["delta"])
    return delta if 0.0 < delta <= asked else asked


def _paid(book: Book, run: str) -> Composed:
    """Everything that a run committed to, and what was published beside it under a name that begins with the run's."""
    return compose(book.committed_by(name) for name in sorted(book.runs) if name == run or name.startswith(f"{run}-"))


def _promise(book: Book, content: Json, run: str) -> list[str]:
    plan, policy, report = book.plan_of(run), book.policy, content["report"]
    if plan is None:
        raise LedgerError("the ledger binds no plan of this run")
    declared, made = plan.declared, sum(entry.run == run for entry in book.entries)
    delta = _quoted_delta(report, declared.delta)
    found, total = recount(_paid(book, run), delta, policy.adjacency), report["total"]
    quoted, paid = ("infinite" if e is None else f"{e:.6g}" for e in (report["smallest_epsilon"], total["epsilon"]))
    said = {
        "secure": "the noise was drawn from a cryptographic source",
        "exact": "the noise was drawn exactly, from a cryptographic source",
        "simulation": "THE NOISE WAS SEEDED: this was a simulation and protects nobody",
        "none": "THERE WAS NO NOISE: nobody is protected",
    }[declared.noise_source]
    own = "not computed here (a kind of release that this check has no arithmetic for)"
    if found is not None:
        ends = f"{found.upper:.6g}" if found.lower == found.upper else f"{found.lower:.5g} to {found.upper:.5g}"
        own = f"{ends}, {found.how}"
    return [
        f"To whom:        each {policy.unit.value} of population {policy.population!r} ({policy.n_clients} clients)",
        f"Neighbours:     {policy.adjacency.value}",
        f"Epsilon quoted: {quoted} at delta {delta:.3g}, for the whole run",
        f"Computed here:  {own}",
        f"Plan:           {declared.releases} releases, bound in row {plan.sequence} before the first; {made} made",
        f"Ending:         {declared.stopping}; the whole plan is paid for, however early it ended",
        f"Noise:          {said}",
        f"Population:     epsilon {paid} at delta {total['delta']:.3g} for {total['runs']} run(s): {total['rule']}",
        *(f"Recovered:      {words}" for words in report["ledger"]["recovered"]),
        *_trust(content, run),
    ]


def main(arguments: Sequence[str]) -> int:
    """Check the bundle named on the command line; 0 if it holds, 3 if not, 2 if there is nothing to check."""
    if len(arguments) != 1:
        sys.stderr.write("name one bundle: python -m accountant.ledger.officer BUNDLE\n")
        return 2
    try:
        found = verify_bundle(Path(arguments[0]))
    except LedgerError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(found.page)
    return 0 if found.verified else 3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
