"""What a bundle states of its run, recomputed for its reader, and what no check of a bundle can know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accountant.errors import LedgerError, PrivacyError
from accountant.events import Composed, Json, compose
from accountant.ledger.book import Book
from accountant.verify.guardians import Countersigned, in_words, read_countersigned
from accountant.verify.recomputation import recomputed
from accountant.wording import lower_text, upper_text

OTHERS = "whether the same people paid on another ledger too: this file shows one; have other runs declared"
DRAWN = "whether the noise was drawn as it says: that is the operator's word"
LOOKED = "whether the operator, who saw every client's answer before the noise, kept it to itself"
KEY = "whether the key is the operator's: compare it with the one on the signed statement"
WHOLE = "whether the whole ledger went back since: hold a receipt against it (--receipt FILE)"


def is_guarded(content: Json) -> bool:
    """Tell whether a run had guardians."""
    spec = content.get("manifest", {}).get("spec", {})
    return "guardians" in content or spec.get("privacy", {}).get("trust") == "guardians"


def countersigned(content: Json, run: str) -> tuple[list[Countersigned], dict[str, str]]:
    """Read what a run's guardians have signed, and their keys by name.

    Raises:
        LedgerError: If a bundle that should hold it does not, or a signature is bad.
    """
    if "guardians" not in content:
        raise LedgerError("the settings name guardians, and the bundle holds nothing that they have signed")
    found = content["guardians"]
    cards = {str(name): str(card["signing"]) for name, card in found["cards"].items()}
    return read_countersigned(found["signed"], run), cards


def _trust(content: Json, run: str) -> list[str]:
    if not is_guarded(content):
        return []
    try:
        signed, cards = countersigned(content, run)
    except (PrivacyError, KeyError, TypeError, ValueError):
        return ["Guardians:      what they have signed does not hold"]
    where = content["guardians"].get("where")
    together = ": IN ONE PROCESS, WHICH SAW EVERY VECTOR" if where == "one process" else ""
    return [
        f"Guardians:      one of them honest is enough{together}",
        *(f"  {line}" for line in in_words(signed, cards)),
    ]


def quoted_delta(report: Json, asked: float) -> float:
    """Give the delta of the report's headline: any that is no larger than the one asked for; else that one."""
    delta = float(report["delta"])
    return delta if 0.0 < delta <= asked else asked


def paid_by(book: Book, run: str) -> Composed:
    """Give everything that a run committed to, and what was published beside it under a name that begins so."""
    return compose(book.committed_by(name) for name in sorted(book.runs) if name == run or name.startswith(f"{run}-"))


def statement_lines(book: Book, content: Json, run: str) -> list[str]:
    """Say what was promised to whom, a line each.

    Raises:
        LedgerError: If the ledger binds no plan of the run.
    """
    plan, policy, report = book.plan_of(run), book.policy, content["report"]
    if plan is None:
        raise LedgerError("the ledger binds no plan of this run")
    declared, made = plan.declared, sum(entry.run == run for entry in book.entries)
    delta, total = quoted_delta(report, declared.delta), report["total"]
    stated = (report["smallest_epsilon"], total["epsilon"])
    quoted, paid = ("infinite" if epsilon is None else upper_text(epsilon, 6) for epsilon in stated)
    said = {
        "secure": "by the operator's word drawn from a cryptographic source",
        "exact": "by the operator's word drawn exactly, from a cryptographic source",
        "simulation": "THE NOISE WAS SEEDED: this was a simulation and protects nobody",
        "none": "THERE WAS NO NOISE: nobody is protected",
    }[declared.noise_source]
    runs = "this run alone" if book.runs == {run} else f"{len(book.runs)} runs"
    return [
        f"To whom:        each {policy.unit.value} of population {policy.population!r} ({policy.n_clients} clients)",
        f"Neighbours:     {policy.adjacency.value}: {_COMPARED[policy.adjacency.value]}",
        f"Epsilon quoted: {quoted} at delta {upper_text(delta)}, for the whole run",
        f"Computed here:  {_computed(book, run, delta)}",
        f"Plan:           {declared.releases} releases, declared in row {plan.sequence} before the first; {made} made",
        f"Ending:         {declared.stopping}; the whole plan is paid for, however early it ended",
        f"Noise:          {said}",
        f"This ledger:    epsilon {paid} at delta {upper_text(total['delta'])} for {runs}: {total['rule']}",
        *(f"Recovered:      {words}" for words in report["ledger"]["recovered"]),
        *_trust(content, run),
    ]


_COMPARED = {
    "zero-out": "compared with one part that is replaced by nothing",
    "add-or-remove-one": "compared with one part added or removed",
    "replace-one": "compared with one part replaced by another's",
}


def _computed(book: Book, run: str, delta: float) -> str:
    found = recomputed(paid_by(book, run), delta, book.policy.adjacency)
    if found is None:
        return "not computed here (a kind of release that this check has no arithmetic for)"
    if found.lower == found.upper:
        return f"{upper_text(found.upper, 6)}, {found.how}"
    return f"{lower_text(found.lower, 5)} to {upper_text(found.upper, 5)}, {found.how}"


def unknowable(content: Json, receipts: Sequence[Path]) -> tuple[str, ...]:
    """List what no check of a bundle can know; ``receipts`` were held against it."""
    looked = () if is_guarded(content) else (LOOKED,)
    return (OTHERS, DRAWN, *looked, KEY, *(() if receipts else (WHOLE,)))
