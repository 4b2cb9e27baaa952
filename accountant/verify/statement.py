"""What a bundle states of its run, recomputed for its reader, and what no check of a bundle can know."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accountant.verify.chain import Chain, Declared, Paid
from accountant.verify.events import Adjacency, composed
from accountant.verify.guardians import Countersigned, in_words
from accountant.verify.reading import BundleError, Json, canonical, number, one_of, quoted, table, whole
from accountant.verify.recomputation import Recomputation, recomputed
from accountant.verify.text import at_least, at_most

BY_WORD = (
    ("quoted.epsilon", "that epsilon is no more than quoted: it is held to the lower end that is computed here"),
    ("quoted.total", "that this ledger's epsilon is no more than quoted: it is held to a lower end, too"),
    ("ledger.releases", "that no release is stored which the file leaves out"),
    ("ledger.releases.*", "that no release is stored which the file leaves out"),
    ("guardians.where", "where the guardians ran"),
)
"""All that a bundle shows and nothing binds: paths within it (``*`` is any item of a list), and what each claims."""

OTHERS = "whether the same people paid on another ledger too: this file shows one; have other runs declared"
DRAWN = "whether the noise was drawn as it says: that is the operator's word"
LOOKED = "whether the operator, who saw every client's answer before the noise, kept it to itself"
KEY = "whether the key is the operator's: compare it with the one on the signed statement"
WHOLE = "whether the whole ledger went back since: hold a receipt against it (--receipt FILE)"

_ROUNDING = 1e-6  # relative, of either number
_LARGEST_DELTA = 1e-5
_COMPARED = {
    "zero-out": "compared with one part that is replaced by nothing",
    "add-or-remove-one": "compared with one part added or removed",
    "replace-one": "compared with one part replaced by another's",
}
_DRAWN_FROM = {
    "secure": "by the operator's word drawn from a cryptographic source",
    "exact": "by the operator's word drawn exactly, from a cryptographic source",
    "simulation": "THE NOISE WAS SEEDED: this was a simulation and protects nobody",
    "none": "THERE WAS NO NOISE: nobody is protected",
}


@dataclass(frozen=True, kw_only=True)
class Quote:
    """An epsilon that the operator quotes, and what its releases cost by the auditor's own arithmetic.

    Attributes:
        of: Whose epsilon it is.
        epsilon: As quoted; infinite where nothing is guaranteed.
        delta: Where it is quoted.
        found: What was computed here; None where no arithmetic is known.
    """

    of: str
    epsilon: float
    delta: float
    found: Recomputation | None

    @property
    def is_counted(self) -> bool:
        """Whether a certified lower end was there to compare: zero is one only where it is the exact cost."""
        return self.found is not None and (self.found.lower > 0 or self.found.upper == 0)

    @property
    def is_too_low(self) -> bool:
        """Whether less is quoted than the releases cost at least."""
        return self.found is not None and not self.epsilon >= self.found.lower * (1 - _ROUNDING)

    @property
    def computed(self) -> str:
        """What was computed, in words."""
        if self.found is None:
            return "nothing: this check has no arithmetic for a kind of release among them"
        if not self.is_counted:
            return f"at most {at_most(self.found.upper, 5)}, and no lower end is certified: {self.found.how}"
        if self.found.lower == self.found.upper:
            return f"{at_most(self.found.upper, 6)}, {self.found.how}"
        return f"{at_least(self.found.lower, 5)} to {at_most(self.found.upper, 5)}, {self.found.how}"


def settings_of(content: Json, plan: Declared) -> Json:
    """Give a run's settings, hashed and held to the digest that the ledger binds.

    Raises:
        BundleError: If they are other settings.
    """
    settings = table(content["settings"], "settings")
    if hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest() != plan.settings:
        raise BundleError("the settings are not those that the ledger binds")
    return settings


def plan_of(content: Json, plan: Declared) -> Json:
    """Give a run's plan, seed, date and caveat, hashed and held to the digest that the ledger binds.

    Raises:
        BundleError: If it is another plan.
    """
    given = table(content["plan"], "plan", ("plan", "public_seed", "created", "caveat"))
    if hashlib.sha256(canonical(given)).hexdigest() != plan.plan:
        raise BundleError("plan, seed, date or caveat are not those that the ledger binds")
    return given


def n_guardians(settings: Json) -> int:
    """Give the number of guardians that settings name; 0 where the server is trusted."""
    privacy = table(settings["privacy"], "privacy")
    if one_of(privacy.get("trust", "server"), "trust", ("server", "guardians")) == "server":
        return 0
    return whole(privacy.get("guardians") or 2, "guardians")


def quotes(content: Json, chain: Chain, plan: Declared) -> tuple[Quote, Quote]:
    """Give the two numbers that an operator quotes, of the run and of all that its ledger has paid."""
    given = table(content["quoted"], "quoted", ("epsilon", "total"))
    delta = _headline(plan.delta, chain.policy["n_clients"])
    adjacency, own, paid = chain.policy["adjacency"], chain.paid_by(plan.run), chain.paid
    run = _recomputed(own, delta, adjacency)
    total = run if own == paid else _recomputed(paid, delta, adjacency)
    return (
        Quote(of="the run", epsilon=_epsilon(given["epsilon"]), delta=delta, found=run),
        Quote(of="the ledger", epsilon=_epsilon(given["total"]), delta=delta, found=total),
    )


def _headline(asked: float, n_clients: int | None) -> float:
    """Delta of a headline: the one that was asked for, and at most min(1e-5, 1/(10 N))."""
    return min(asked, _LARGEST_DELTA, math.inf if n_clients is None else 0.1 / n_clients)


def _epsilon(value: object) -> float:
    return math.inf if value is None else number(value, "epsilon")


def _recomputed(paid: Paid, delta: float, adjacency: str) -> Recomputation | None:
    return recomputed(composed(paid), delta, Adjacency(adjacency))


def statement_lines(chain: Chain, plan: Declared, run: Quote, total: Quote, caveat: object) -> list[str]:
    """Say what was promised to whom, a line each; all of it is bound or computed here but the two quotes."""
    policy, runs = chain.policy, len(chain.runs)
    clients = "" if policy["n_clients"] is None else f" ({policy['n_clients']} clients)"
    planned, row = plan.slots.total(), plan.sequence
    together = "for this run alone" if runs == 1 else f"for {runs} runs together"
    return [
        f"To whom:        each {policy['unit']} of population {quoted(policy['population'])}{clients}",
        f"Neighbours:     {policy['adjacency']}: {_COMPARED[policy['adjacency']]}",
        f"Epsilon quoted: {at_most(run.epsilon, 6)} at delta {at_most(run.delta)}, for the whole run",
        f"Computed here:  {run.computed}",
        f"Plan:           {planned} releases, declared in row {row} before the first; {chain.made(plan.run)} made",
        f"Ending:         {plan.stopping}; the whole plan is paid for, however early it ended",
        f"Noise:          {_DRAWN_FROM[plan.noise_source]}",
        f"This ledger:    epsilon quoted {at_most(total.epsilon, 6)} at delta {at_most(total.delta)}, {together}",
        f"Computed here:  {total.computed}",
        *_recovered(chain),
        *([] if caveat is None else [f"Caveat:         {quoted(caveat)}"]),
    ]


def _recovered(chain: Chain) -> list[str]:
    return [
        f"Recovered:      row {each.sequence} pays again for {each.slots.total()} lost releases of {quoted(each.run)}"
        for each in chain.recoveries
    ]


def guardian_lines(content: Json, signed: Sequence[Countersigned], cards: dict[str, str]) -> list[str]:
    """Say who a run's guardians are, a line each."""
    together = content["guardians"]["where"] == "one process"
    where = "IN ONE PROCESS, WHICH SAW EVERY VECTOR" if together else "by the operator's word on machines of their own"
    return [
        f"Guardians:      one of them honest is enough: {where}",
        *(f"  {line}" for line in in_words(signed, cards)),
    ]


def by_word(content: Json) -> tuple[str, ...]:
    """List what of a bundle nothing binds, a line each."""
    here = (words for path, words in BY_WORD if path.partition(".")[0] in content)
    return tuple(dict.fromkeys(here))


def unknowable(receipts: Sequence[Path], *, guarded: bool) -> tuple[str, ...]:
    """List what no check of a bundle can know; ``receipts`` were held against it."""
    looked = () if guarded else (LOOKED,)
    return (OTHERS, DRAWN, *looked, KEY, *(() if receipts else (WHOLE,)))
