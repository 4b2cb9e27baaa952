"""A bundle as an auditor checks it: on any machine, with the standard library, numpy and ``cryptography`` alone.

A bundle is one signed JSON file: a run's public ledger, its settings and plan, and two numbers that the operator
quotes. Nothing in it is believed. The chain of digests is followed from the ledger's identity on, every charge is held
to the plan that was reserved before it, settings and plan are hashed and held to what the ledger binds, and epsilon is
computed anew (``accountant.verify.recomputation``). All else that is shown is on one list
(``accountant.verify.statement.BY_WORD``) and marked as the operator's word.

| outcome | exit code | when |
|---|---|---|
| VERIFIED | 0 | everything agrees, and no quote is below the certified lower end of what its releases cost |
| NOT VERIFIED, or no bundle | 3 | anything disagrees, or the file cannot be read as a bundle |
| NOT COUNTED | 4 | everything agrees, but no lower end is certified for these releases: neither verified nor refused |
| nothing | 2 | the command or a file's name is wrong |

    python -m accountant.verify.auditor BUNDLE [--receipt FILE] [--statement FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TextIO, TypeAlias, TypeVar

from accountant.verify.chain import Chain, read_chain, require_paid
from accountant.verify.reading import (
    BUNDLE,
    RECEIPT,
    AlteredError,
    BundleError,
    Json,
    hexadecimal,
    quoted,
    read_signed,
    table,
    text,
    whole,
)
from accountant.verify.statement import (
    BY_WORD,
    DRAWN,
    KEY,
    LOOKED,
    OTHERS,
    WHOLE,
    countersigned,
    hidden_by,
    n_guardians,
    plan_of,
    quotes,
    settings_of,
    statement_lines,
)
from accountant.verify.text import at_least, at_most, shown

T = TypeVar("T")

FORMAT = 2
Outcome: TypeAlias = Literal["VERIFIED", "NOT VERIFIED", "NOT COUNTED"]
CODES: dict[Outcome, int] = {"VERIFIED": 0, "NOT VERIFIED": 3, "NOT COUNTED": 4}
_KEYS = ("format", "run", "ledger", "settings", "plan", "quoted")


@dataclass(kw_only=True)
class Findings:
    """Outcome of checking a bundle.

    Attributes:
        run: Name of the run.
        key: Public key that signed the bundle.
        head: Digest of the ledger's last row; None where no chain could be followed.
        checks: What holds, in words.
        uncounted: Quotes of which nothing can be said; such a bundle is neither verified nor refused.
        problems: What does not hold; empty for a sound bundle.
        statement: What was promised to whom, a line each; nothing of a bundle that does not hold.
        word: What of it is the operator's word alone, a line each.
        unknown: What no check of a bundle can know, a line each.
    """

    run: str
    key: str
    head: str | None = None
    checks: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    statement: list[str] = field(default_factory=list)
    word: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def hold(self, words: str, check: Callable[[], T], *, is_told: bool = True) -> T | None:
        """What a check finds; None where it does not hold, for whatever reason a stranger's file gives."""
        try:
            found = check()
        except Exception as error:  # fails closed: what cannot be read does not hold
            self.problems.append(f"{words}: {error if isinstance(error, BundleError) else quoted(error)}")
            return None
        if is_told:
            self.checks.append(words)
        return found

    @property
    def outcome(self) -> Outcome:
        """The outcome in two words."""
        if self.problems:
            return "NOT VERIFIED"
        return "NOT COUNTED" if self.uncounted else "VERIFIED"

    @property
    def verified(self) -> bool:
        """Whether nothing disagrees, and every quote was compared with a certified lower end."""
        return self.outcome == "VERIFIED"

    @property
    def page(self) -> str:
        """Everything on one page of text; nothing in it steers a terminal."""
        seeded = any(line.startswith("Noise:") and "SEEDED" in line for line in self.statement)
        lines = [f"{self.outcome}: bundle of {quoted(self.run)}{', A SIMULATION WITH SEEDED NOISE' * seeded}", ""]
        lines += [f"  ok           {words}" for words in self.checks]
        lines += [f"  NOT COUNTED  {words}" for words in self.uncounted]
        lines += [f"  PROBLEM      {words}" for words in self.problems]
        for title, found in (
            ("What was promised", self.statement),
            ("The operator's word alone", self.word),
            ("What this check cannot know", self.unknown),
        ):
            lines += ["", title, "", *(f"  {words}" for words in found)] if found else []
        lines += ["", f"signed by Ed25519 key {self.key}", *([] if self.head is None else [f"ledger head {self.head}"])]
        return "".join(f"{shown(line)}\n" for line in lines)


def verify_bundle(path: Path, receipts: Sequence[Path] = (), statement: Path | None = None) -> Findings:
    """Check a bundle, and hold it against receipts of its run and the statement that came with it.

    Raises:
        BundleError: If a file is no bundle, or no receipt, or not as it was signed.
        OSError: If a file cannot be read.
    """
    try:
        return _checked(path, receipts, statement)
    except (BundleError, OSError):
        raise
    except Exception as error:  # whatever a stranger's file makes a reader do
        raise BundleError(f"{path} is no bundle: it cannot be read ({type(error).__name__})") from None


def _checked(path: Path, receipts: Sequence[Path], statement: Path | None) -> Findings:
    content, key = _opened(path, BUNDLE)
    seen = [(receipt.name, *_opened(receipt, RECEIPT)) for receipt in receipts]
    found = Findings(run=content["run"], key=key, checks=["the bundle is as it was signed"])
    chain = found.hold(
        "every row of the ledger follows the one before it, and every charge its plan",
        lambda: read_chain(content["ledger"]),
    )
    guarded = False
    if chain is not None:
        found.head = chain.heads[-1] if chain.heads else None
        found.hold("every release that is stored was charged", lambda: require_paid(chain))
        guarded = _promised(found, content, chain)
        for name, receipt, signer in seen:
            words = f"the ledger extends {quoted(name)}, by the same key"
            found.hold(words, partial(_extends, content, chain, key, receipt, signer))
    if statement is not None:
        is_it = hashlib.sha256(statement.read_bytes()).hexdigest() == content.get("statement")
        words = f"{quoted(statement.name)} is {'' if is_it else 'not '}the statement whose hash was signed"
        (found.checks if is_it else found.problems).append(words)
    if found.problems:
        found.statement, found.word = [], []
    else:  # what nothing binds
        found.word += dict.fromkeys(words for at, words in BY_WORD if at.partition(".")[0] in content)
    found.unknown = [OTHERS, DRAWN, *([] if guarded else [LOOKED]), KEY, *([] if receipts else [WHOLE])]
    return found


def _opened(path: Path, purpose: str) -> tuple[Json, str]:
    """A signed file's content and key, of the one shape that such a file has."""
    try:
        content, key = read_signed(path, purpose)
        if purpose == BUNDLE:
            _require_shape(content)
    except AlteredError as error:
        raise AlteredError(f"{path} is an altered {purpose}: {error}") from None
    except (BundleError, ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, BundleError) else f"it cannot be read ({type(error).__name__})"
        raise BundleError(f"{path} is no {purpose}: {words}") from None
    return content, key


def _require_shape(content: Json) -> None:
    if content.get("format") != FORMAT or isinstance(content["format"], bool | float):
        raise BundleError(
            f"its format is {quoted(content.get('format'))}, this check reads {FORMAT}; have it written anew"
        )
    table(content, "content", _KEYS, optional=("guardians", "statement"))
    text(content["run"], "run")
    if "statement" in content:
        hexadecimal(content["statement"], "statement", 64)


def _promised(found: Findings, content: Json, chain: Chain) -> bool:
    """Check what is stated outside the ledger, and state what was promised; whether guardians kept it."""
    if (plan := chain.plans.get(content["run"])) is None:
        found.problems.append("the ledger binds the run's plan: the ledger binds no plan of this run")
        return False
    words = "settings and delta are those that the ledger fixed before the first release"
    settings = found.hold(words, lambda: settings_of(content, plan))
    words = "plan, seed, date and caveat are those that the ledger fixed before the first release"
    bound = found.hold(words, lambda: plan_of(content, chain, plan))
    if settings is None or bound is None:
        return False
    words = "the quoted numbers can be read"
    quoted_numbers = found.hold(words, lambda: quotes(content, chain, plan, settings), is_told=False)
    words = "the settings say who is hidden"
    hidden = found.hold(words, lambda: hidden_by(settings, chain.policy), is_told=False)
    if quoted_numbers is None or hidden is None:
        return False
    found.word = list(hidden.assumed)
    for quote in quoted_numbers:
        words = f"what is quoted for {quote.of} is no less than its releases cost at least"
        if quote.is_too_low and quote.found is not None:
            said, least = at_most(quote.epsilon, 6), at_least(quote.found.lower, 6)
            found.problems.append(f"{words}: epsilon {said} is quoted, computed here it is at least {least}")
        elif quote.is_counted:
            found.checks.append(words)
        else:
            found.uncounted.append(
                f"epsilon {at_most(quote.epsilon, 6)} of {quote.of}: no lower end is certified to hold it to"
            )
    found.statement = statement_lines(chain, plan, *quoted_numbers, hidden, bound["caveat"])
    named = found.hold("the settings say who had to be trusted", lambda: n_guardians(settings), is_told=False)
    if not named:
        if "guardians" in content:
            found.problems.append("guardians have signed, and the settings name none")
        return False
    words = "every guardian has signed every release, once, at a later place of its own ledger"
    found.statement += found.hold(words, lambda: countersigned(content, chain, plan.run, named)) or []
    return True


def _extends(content: Json, chain: Chain, key: str, receipt: Json, signer: str) -> None:
    """Hold a bundle against a receipt of an earlier day."""
    for what, theirs, ours in (
        ("run", receipt["run"], content["run"]),
        ("ledger", receipt["ledger"], chain.ledger_id),
        ("key", signer, key),
    ):
        if theirs != ours:
            raise BundleError(f"the receipt is of another {what}, {quoted(theirs)}")
    sequence = whole(receipt["sequence"], "sequence")
    if chain.digest_at(sequence) != hexadecimal(receipt["head"], "head", 64):
        raise BundleError(f"it has seen row {sequence}, which is not in the ledger, or is another one")
    if (stored := receipt["stored"]) is not None and tuple(stored) not in chain.stored.values():
        raise BundleError(f"it has seen stored release {stored[0]}, which is not in the ledger, or is another one")


def main(arguments: Sequence[str]) -> int:
    """Check the bundle named on the command line; 0 if it holds, 3 if not, 4 if not counted, 2 without one to check."""
    parser = argparse.ArgumentParser(
        prog="python -m accountant.verify.auditor",
        description="Check a bundle. Exit code 0: VERIFIED. 3: NOT VERIFIED, or no bundle. 4: NOT COUNTED: everything "
        "agrees, but no lower end of epsilon is certified for these releases, so it is neither verified nor refused. "
        "2: the command or a file's name is wrong.",
    )
    parser.add_argument("bundle", type=Path, help="file that privbo bundle wrote")
    parser.add_argument("--receipt", type=Path, action="append", default=[], help="receipt that it has to extend")
    parser.add_argument("--statement", type=Path, help="statement that was handed over with it")
    asked = parser.parse_args(arguments)
    try:
        found = verify_bundle(asked.bundle, asked.receipt, asked.statement)
    except OSError as error:
        words = (
            f"{error.filename} cannot be read ({error.strerror}); name a file that privbo wrote: a bundle, a receipt "
        )
        _write(sys.stderr, f"{shown(words)}(--receipt) or a statement (--statement)\n")
        return 2
    except BundleError as error:
        _write(sys.stderr, f"{shown(str(error))}\n")
        return 3
    _write(sys.stdout, found.page)
    return CODES[found.outcome]


def _write(stream: TextIO, page: str) -> None:
    """Write a page; what the terminal's encoding lacks is written out."""
    encoding = stream.encoding or "ascii"
    stream.write(page.encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
