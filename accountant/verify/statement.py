"""What a bundle states of its run, recomputed for its reader, and what no check of a bundle can know.

A guardian signs every answer of its own: run, round, its place in its own ledger, and the digest of its noisy sum. So a
release that some guardian never charged has no signature of it, and two noises for one round have two.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from accountant.verify.chain import Chain, Declared
from accountant.verify.events import Adjacency, composed, parts_of
from accountant.verify.hidden import Hidden, hidden_unit
from accountant.verify.reading import (
    ANSWERED,
    BundleError,
    Json,
    canonical,
    hexadecimal,
    number,
    one_of,
    quoted,
    require_signed,
    rows,
    table,
    text,
    whole,
)
from accountant.verify.recomputation import Recomputation, recomputed
from accountant.verify.text import at_least, at_most

BY_WORD = (
    ("quoted.epsilon", "that epsilon is no more than quoted: it is held to the lower end that is computed here"),
    ("quoted.total", "that this ledger's epsilon is no more than quoted: it is held to a lower end, too"),
    ("ledger.releases", "that no release is stored which the file leaves out"),
    ("ledger.releases.*", "that no release is stored which the file leaves out"),
    ("guardians.where", "where the guardians ran"),
    ("statement", "what the statement says besides: its hash was signed, its words were not recomputed"),
)
"""All that a bundle shows and nothing binds: paths within it (``*`` is any item of a list), and what each claims."""

OTHERS = "whether the same people were charged on another ledger too: this file shows one; have other runs declared"
DRAWN = "whether the noise was drawn as it says: that is the operator's word"
LOOKED = "whether the operator, who saw every client's answer before the noise, kept it to itself"
KEY = "whether the key is the operator's: compare it with the one on the signed statement"
WHOLE = "whether the whole ledger went back since: hold a receipt against it (--receipt FILE)"

_ROUNDING = 1e-6  # relative, of either number
_LARGEST_DELTA = 1e-5
_COMPARED = {
    "zero-out": "the run is compared with one in which that part is nothing",
    "add-or-remove-one": "the run is compared with one that has one such part more or less",
    "replace-one": "the run is compared with one in which that part is another's",
}
_DRAWN_FROM = {
    "secure": "by the operator's word drawn from a cryptographic source",
    "exact": "by the operator's word drawn exactly, from a cryptographic source",
    "simulation": "THE NOISE WAS SEEDED: this was a simulation and protects no client",
    "none": "THERE WAS NO NOISE: no client is protected",
}
WHERE = {
    "one process": "IN ONE PROCESS, WHICH SAW EVERY VECTOR",
    "Flower": "by the operator's word on machines of their own",
}
_PROTECTS = ("records", "validation records")
_FEWEST = 2
_ANSWER = ("run", "guardian", "round", "sequence", "head", "sum", "key", "signature")


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
        found = self.found
        return found is not None and found.is_whole and (found.lower > 0 or found.upper == 0)

    @property
    def is_too_low(self) -> bool:
        """Whether less is quoted than the releases cost at least."""
        return self.found is not None and not self.epsilon >= self.found.lower * (1 - _ROUNDING)

    @property
    def computed(self) -> str:
        """What was computed, in words."""
        if self.found is None:
            return "nothing: this check has no arithmetic for these kinds of release"
        if not self.found.is_whole:
            return f"{at_least(self.found.lower, 5)} at least, without a kind of release that this check can't count"
        if not self.is_counted:
            return f"at most {at_most(self.found.upper, 5)}, and no lower end is certified: {self.found.how}"
        if self.found.lower == self.found.upper:
            return f"{at_most(self.found.upper, 6)}, {self.found.how}"
        return f"{at_least(self.found.lower, 5)} to {at_most(self.found.upper, 5)}, {self.found.how}"


def hidden_by(settings: Json, policy: Json) -> Hidden:
    """Say who is hidden, of settings and a policy that the ledger binds.

    Raises:
        BundleError: If settings and policy do not belong together.
    """
    unit = policy["unit"]
    privacy = table(settings["privacy"], "privacy")
    if privacy.get("unit", "client") != unit or (unit != "record" and "protects" in privacy):
        raise BundleError(f"the settings hide {quoted(privacy.get('unit', 'client'))}, and the ledger one {unit}")
    if unit != "record":
        return hidden_unit(unit)
    records = one_of(privacy.get("protects"), "protects", _PROTECTS)
    person = whole(privacy.get("records_per_person", 1), "records_per_person")
    if person < 1:
        raise BundleError("records_per_person is 0")
    if (kept := (policy.get("protects", "records"), policy.get("records_per_person", 1))) != (records, person):
        raise BundleError(
            f"the settings hide {person} {records} of a person, and the ledger {kept[1]} {quoted(kept[0])}"
        )
    return hidden_unit(unit, records, person)


def settings_of(content: Json, plan: Declared) -> Json:
    """Give a run's settings, hashed and held to the digest that the ledger binds.

    Raises:
        BundleError: If they are other settings.
    """
    settings = table(content["settings"], "settings")
    if hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest() != plan.settings:
        raise BundleError("the settings are not those that the ledger binds")
    return settings


def plan_of(content: Json, chain: Chain, plan: Declared) -> Json:
    """Give a run's plan, seed, date and caveat, hashed and held to the digest and the events that the ledger binds.

    Raises:
        BundleError: If it is another plan, or its events are not those that its run reserved.
    """
    given = table(content["plan"], "plan", ("plan", "public_seed", "created", "caveat"))
    if hashlib.sha256(canonical(given)).hexdigest() != plan.plan:
        raise BundleError("plan, seed, date or caveat are not those that the ledger binds")
    stated = table(given["plan"], "plan")
    bound = (chain.policy["adjacency"], plan.releases, chain.priced(plan.events))
    if (stated["adjacency"], stated["releases"], parts_of(stated["event"])) != bound:
        raise BundleError("the plan has other events, or other neighbours, than its run reserved")
    return given


def n_guardians(settings: Json) -> int:
    """Give the number of guardians that settings name; 0 where the server is trusted, or each site with its own."""
    privacy = table(settings["privacy"], "privacy")
    if one_of(privacy.get("trust", "server"), "trust", ("server", "guardians", "sites")) != "guardians":
        return 0
    return whole(privacy.get("guardians") or 2, "guardians")


def quotes(content: Json, chain: Chain, plan: Declared, settings: Json) -> tuple[Quote, Quote]:
    """Give the two numbers that an operator quotes, of the run and of all that its ledger has charged."""
    given = table(content["quoted"], "quoted", ("epsilon", "total"))
    n_units, adjacency = chain.policy["n_clients"], Adjacency(chain.policy["adjacency"])
    if chain.policy["unit"] == "record":
        n_units = sum(rows(table(settings["problem"], "problem")["n_records"], "n_records"))
    # The one that was asked for, and at most min(1e-5, 1/(10 N)), N clients or records.
    delta = min(plan.delta, _LARGEST_DELTA, math.inf if n_units is None else 0.1 / n_units)
    own, paid = chain.paid_by(plan.run), chain.paid
    run = recomputed(composed(own), delta, adjacency)
    total = run if own == paid else recomputed(composed(paid), delta, adjacency)
    said, said_total = (
        math.inf if given[name] is None else number(given[name], "epsilon") for name in ("epsilon", "total")
    )
    return (
        Quote(of="the run", epsilon=said, delta=delta, found=run),
        Quote(of="the ledger", epsilon=said_total, delta=delta, found=total),
    )


def statement_lines(
    chain: Chain, plan: Declared, run: Quote, total: Quote, hidden: Hidden, caveat: object
) -> list[str]:
    """Say what was promised to whom, a line each; all of it is bound or computed here but the two quotes."""
    policy, runs = chain.policy, len(chain.runs)
    clients = "" if policy["n_clients"] is None else f" ({policy['n_clients']} clients)"
    planned, row = plan.releases, plan.sequence
    releases = f"{planned} release{'s' * (planned != 1)}"
    together = "for this run alone" if runs == 1 else f"for {runs} runs together"
    said = f"at most epsilon {at_most(total.epsilon, 6)} at delta {at_most(total.delta)} quoted"
    budget = None if chain.recoveries else policy["budget"]
    kept = "" if budget is None else f"; its bound: {at_most(budget['epsilon'], 6)} at delta {at_most(budget['delta'])}"
    fixed = "; as if all had been planned beforehand" if runs > 1 else ""
    seen = "; what a client's records say together is not hidden" * (policy["unit"] == "record" and planned > 0)
    alone = "; each enters one release at most, so the most expensive one counts" * policy.get("disjoint", False)
    whom = f"each {hidden.noun} of population {quoted(policy['population'])}{clients}{hidden.more}{seen}{alone}"
    return [
        f"To whom:        {whom}",
        f"Neighbours:     {policy['adjacency']}: {_COMPARED[policy['adjacency']]}",
        f"Epsilon quoted: {at_most(run.epsilon, 6)} at delta {at_most(run.delta)}, for the whole run",
        f"Computed here:  {run.computed}",
        f"Plan:           {releases}, declared in row {row} before the first; {chain.made(plan.run)} made",
        f"Ending:         {plan.stopping}; the whole plan is charged, however early it ended",
        f"Noise:          {_DRAWN_FROM[plan.noise_source]}",
        f"This ledger:    {said}, {together}{kept}",
        f"All together:   {total.computed}{fixed}",
        *(
            f"Recovered:      row {each.sequence} charges again {each.releases} lost releases of {quoted(each.run)}"
            for each in chain.recoveries
        ),
        *([] if caveat is None else [f"Caveat:         {quoted(caveat)}"]),
    ]


@dataclass(frozen=True, kw_only=True)
class Countersigned:
    """One guardian's answer to one round, its signature known to be good.

    Attributes:
        guardian: Its name.
        round: The round.
        sequence: Place of the charge in the guardian's own ledger.
        head: That ledger's chain hash after the charge.
        total: Digest of its noisy sum.
        key: Public key that signed.
    """

    guardian: str
    round: int
    sequence: int
    head: str
    total: str
    key: str


def countersigned(content: Json, chain: Chain, run: str, named: int) -> list[str]:
    """Hold guardians' signatures against a run's releases, and say who the guardians are, a line each.

    Args:
        content: The bundle's.
        chain: Its ledger.
        run: Name of the run.
        named: Number of guardians that the run's settings name.

    Raises:
        BundleError: If a bundle that should hold signatures does not, or a row is not as it was signed, or of another
            run, if there are fewer guardians than the settings name, two of them share a key, one of them has not
            signed a release or has signed two sums of one round, its ledger went back, or its last key is another
            than the registered one.
    """
    if "guardians" not in content:
        raise BundleError("the settings name guardians, and the bundle holds nothing that they have signed")
    given = table(content["guardians"], "guardians", ("where", "cards", "signed"))
    where = one_of(given["where"], "where guardians ran", WHERE)
    cards = {name: hexadecimal(key, "key", 64) for name, key in table(given["cards"], "cards").items()}
    signed = [_answer(table(row, "answer", _ANSWER), run) for row in rows(given["signed"], "signed")]
    if any(before.round > after.round for before, after in pairwise(signed)) or len(set(signed)) < len(signed):
        raise BundleError("what guardians have signed is not in the order of the rounds, or stands there twice")
    if len(cards) != named or len(set(cards.values())) < max(named, _FEWEST):
        raise BundleError(f"the settings name {named} guardians, these are {len(set(cards.values()))}")
    if strangers := sorted({each.guardian for each in signed} - cards.keys()):
        raise BundleError(f"{', '.join(map(quoted, strangers))} signed and is none of the guardians")
    released = {_round(name, run) for name in chain.stored if chain.charged.get(name) == run}
    lines = ["Guardians:      one of them honest is enough: " + WHERE[where]]
    for name, key in cards.items():
        own = [each for each in signed if each.guardian == name]
        _require_answers(quoted(name), key, own, released)
        earlier = [each for each in dict.fromkeys(one.key for one in own) if each != key]
        words = f"  {quoted(name)}, key {key}" + "".join(f", earlier {each}" for each in earlier)
        words += f": row {own[-1].sequence} of its own ledger, {own[-1].head}" if own else ": nothing signed"
        lines.append(words)
    return lines


def _round(name: str, run: str) -> int:
    """The round of a release, which is in its name."""
    number = name.removeprefix(f"{run}/")
    if not number.isdecimal() or name != f"{run}/{int(number)}":
        raise BundleError(
            f"the release {quoted(name)} of {quoted(run)} names no round that guardians could have signed"
        )
    return int(number)


def _answer(row: Json, run: str) -> Countersigned:
    said = {name: value for name, value in row.items() if name not in ("key", "signature")}
    require_signed(said, row["key"], row["signature"], ANSWERED)
    if row["run"] != run:
        raise BundleError(f"a guardian's signature is of {quoted(row['run'])}, not of {quoted(run)}; ask for its own")
    return Countersigned(
        guardian=text(row["guardian"], "guardian"),
        round=whole(row["round"], "round"),
        sequence=whole(row["sequence"], "sequence"),
        head=hexadecimal(row["head"], "head", 64),
        total=text(row["sum"], "sum"),
        key=str(row["key"]),
    )


def _require_answers(name: str, key: str, own: Sequence[Countersigned], released: set[int]) -> None:
    """Hold one guardian's answers, in the order of the rounds, against the releases and its registered key."""
    if missing := sorted(released - {each.round for each in own}):
        raise BundleError(f"guardian {name} has not signed round {missing[0]}, of which a release is stored")
    for before, after in pairwise(own):
        if before.round == after.round and before.total != after.total:
            raise BundleError(f"guardian {name} has signed two sums of round {after.round}: two noises")
        if before.round < after.round and before.sequence >= after.sequence:
            raise BundleError(f"guardian {name} signed round {after.round} on a ledger that had gone back")
    if own and own[-1].key != key:
        raise BundleError(f"guardian {name} signed round {own[-1].round} with another key than its card names")
