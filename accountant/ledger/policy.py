"""Policy, budget and entries of a ledger: all frozen, all public."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeAlias, get_args

from accountant.errors import LedgerError
from accountant.events import (
    Adjacency,
    Basic,
    BestOfRandomRuns,
    Event,
    FixedSizeSampledGaussian,
    Json,
    TruncatedPoissonSampledGaussian,
    Unit,
    from_dict,
    parts,
    repeat,
    to_dict,
)

Rule: TypeAlias = Literal["planned", "gaussian", "renyi", "envelope"]
RULES: tuple[Rule, ...] = get_args(Rule)
NOISE_SOURCES = ("secure", "exact", "simulation", "none")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A bound that all charges together never pass.

    Attributes:
        epsilon: Positive and finite.
        delta: In (0, 1).
        rule: What makes the bound hold. ``"planned"``: everything charged belongs to one
            run whose schedule was fixed beforehand; priced tightly. Where more than 32 different
            events stand together and some were charged outside of a reserved plan, the price is a
            sum of Rényi curves. The others hold whatever
            is chosen after looking at outputs, also by several runs: ``"gaussian"`` is exact where
            all clients take part in every release, charges a sampled one as if all did, and
            admits nothing else; ``"envelope"`` is tight where all of its ``slots`` are used, and
            admits what a free slot dominates (``accountant.envelope``); ``"renyi"`` admits
            every event and costs more (``accountant.filters``).
        order: Rényi order of ``"renyi"``, fixed with the ledger; None for the one that suits
            Gaussian releases.
        slots: Of an ``"envelope"``: events with counts, in the order in which they are tried.

    Raises:
        LedgerError: If a value is out of range.

    Example:
        >>> Budget(epsilon=2.0, delta=1e-5, rule="gaussian").rule
        'gaussian'
    """

    epsilon: float
    delta: float
    rule: Rule = "planned"
    order: float | None = None
    slots: tuple[tuple[Basic, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, Real):
                raise LedgerError(f"budget {name}={value!r} must be a number")
        if not 0 < self.epsilon < float("inf"):
            raise LedgerError(f"budget epsilon={self.epsilon!r} must be positive and finite")
        if not 0 < self.delta < 1:
            raise LedgerError(f"budget delta={self.delta!r} must lie in (0, 1)")
        if self.rule not in RULES:
            raise LedgerError(f"budget rule={self.rule!r} must be one of {', '.join(RULES)}")
        if self.order is not None and (self.rule != "renyi" or not 1.0 < self.order < float("inf")):
            raise LedgerError(f"budget order={self.order!r} must be above 1, and goes with the rule 'renyi' only")
        if (self.rule == "envelope") != bool(self.slots):
            raise LedgerError(f"budget rule={self.rule!r}, slots={self.slots!r}: slots make the rule 'envelope'")

    def to_dict(self) -> Json:
        """Plain values, as stored."""
        content = vars(self) | {"slots": [[to_dict(slot), count] for slot, count in self.slots]}
        return {name: value for name, value in content.items() if value not in (None, [])}

    @staticmethod
    def from_dict(content: Json) -> Budget:
        """The budget that ``to_dict`` described."""
        slots = [repeat(from_dict(row), count) for row, count in content.get("slots", ())]
        return Budget(**content | {"slots": tuple(pair for slot in slots for pair in slot.parts)})


@dataclass(frozen=True, kw_only=True)
class LedgerPolicy:
    """Meaning of a ledger's numbers; fixed at creation and bound into its chain.

    Attributes:
        unit: Whose presence is protected.
        adjacency: Which data sets count as neighbours.
        population: Name of the people the charges speak of; runs on the same people
            share one ledger.
        n_clients: N, public and constant; None where it may change between runs, as on a site's own ledger. Events
            whose price depends on N carry theirs.
        budget: The filter's bound, or None for an odometer.
        disjoint: No unit enters two releases, so charges don't add up: the most expensive counts
            (``accountant.events.most_expensive``). For rewards only; a client enters every release.
        protects: Which records are protected, where one record is the unit.
        records_per_person: Most records of one person, all of which are protected.

    Raises:
        LedgerError: If a value is out of range.

    Example:
        >>> policy = LedgerPolicy(
        ...     unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="hospitals", n_clients=40
        ... )
        >>> LedgerPolicy.from_dict(policy.to_dict()) == policy
        True
    """

    unit: Unit
    adjacency: Adjacency
    population: str
    n_clients: int | None
    budget: Budget | None = None
    disjoint: bool = False
    protects: str = "records"
    records_per_person: int = 1

    def __post_init__(self) -> None:
        counted = isinstance(self.n_clients, int) and not isinstance(self.n_clients, bool) and self.n_clients >= 1
        if self.n_clients is not None and not counted:
            raise LedgerError(f"n_clients={self.n_clients!r} must be an integer >= 1, or None where it may change")
        if not isinstance(self.population, str) or not self.population:
            raise LedgerError(f"population={self.population!r} must be a non-empty name")
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        if self.disjoint and self.unit is not Unit.REWARD:
            raise LedgerError(f"disjoint releases of one {self.unit.value} cannot be: only rewards enter one alone")

    @property
    def meaning(self) -> Json:
        """Plain values that every row repeats: whom its numbers speak of."""
        return {
            "unit": self.unit.value,
            "adjacency": self.adjacency.value,
            "population": self.population,
            "n_clients": self.n_clients,
        }

    def to_dict(self) -> Json:
        """Plain values, as stored."""
        budget = None if self.budget is None else self.budget.to_dict()
        content = vars(self) | self.meaning | {"budget": budget}
        later = {"disjoint": False, "protects": "records", "records_per_person": 1}  # not written where they say this
        return {name: value for name, value in content.items() if name not in later or value != later[name]}

    def difference(self, wanted: LedgerPolicy) -> str:
        """Say where this policy of a ledger differs from the one that is wanted.

        Example:
            >>> from dataclasses import replace
            >>> policy = LedgerPolicy(
            ...     unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="hospitals", n_clients=40
            ... )
            >>> policy.difference(replace(policy, unit=Unit.RECORD))
            "its unit is 'client', and 'record' is wanted"
        """
        found, other = vars(self) | self.to_dict(), vars(wanted) | wanted.to_dict()
        names = [name for name in found | other if found.get(name) != other.get(name)]
        return "; ".join(f"its {name} is {found.get(name)!r}, and {other.get(name)!r} is wanted" for name in names)

    @staticmethod
    def from_dict(content: Json) -> LedgerPolicy:
        """The policy that ``to_dict`` described."""
        budget = content.get("budget")
        return LedgerPolicy(**content | {"budget": None if budget is None else Budget.from_dict(budget)})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge, as stored.

    ``sequence`` orders entries. ``time`` is the date (UTC) of the run's first charge, in all of its
    charges: a later one would tell how long clients took. ``plan_position`` is the
    place in the run's plan, or None. ``nonce`` makes every row another one, so that a ledger which
    went back and was charged again the same has other heads. ``noise_source`` is "secure", "exact", "simulation"
    (seeded: no guarantee) or "none" (a non-private baseline). ``announced`` is the digest of public points that the run
    keeps next to the ledger and tells its clients, or, salted, of the secret allocation of its clients to releases, or
    None.
    """

    sequence: int
    release_id: str
    run: str
    event: Event
    unit: Unit
    population: str
    n_clients: int | None
    adjacency: Adjacency
    sampler: str
    noise_source: str
    plan_position: int | None
    nonce: str = ""
    time: str
    previous: str
    digest: str
    announced: str | None = None

    def to_dict(self) -> Json:
        """Plain values, for listings and exports."""
        plain = {"event": to_dict(self.event), "unit": self.unit.value, "adjacency": self.adjacency.value}
        return vars(self) | plain


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Outcome that a charge would have; nothing has been done.

    Attributes:
        allowed: Whether ``charge`` would accept the event.
        reason: Why not, or None.
        spent: Epsilon of everything charged so far at the budget's delta; None without
            a budget.
        projected: The same after the event.
        head: The chain head this holds for.
    """

    allowed: bool
    reason: str | None
    spent: float | None
    projected: float | None
    head: str


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof of a durable charge.

    Attributes:
        sequence: Position of the charge.
        head: Chain digest of the charge; a ledger that no longer has it lost its tail.
        release_id: What was charged.
        known: Whether it had been charged before (and was not charged again).
    """

    sequence: int
    head: str
    release_id: str
    known: bool


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Outcome of reading a whole ledger again."""

    ok: bool
    problem: str | None
    head: str
    n_entries: int


def canonical(content: Json) -> bytes:
    """JSON bytes that are equal exactly when the contents are."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(content: Json) -> str:
    """SHA-256 of the canonical bytes."""
    return hashlib.sha256(canonical(content)).hexdigest()


def sampler_of(event: Event) -> str:
    """Name the sampler of an event, in a word."""
    inner = [p.run if isinstance(p, BestOfRandomRuns) else p for p, _ in parts(event)]
    kinds = {str(to_dict(part)["type"]) for one in inner for part, _ in parts(one)}
    known = {kind: kind.partition("-sampled-")[0] for kind in kinds if "-sampled-" in kind}
    known["random-allocation-gaussian"] = "random-allocation"
    return "+".join(sorted({known.get(kind, "everyone") for kind in kinds})) or "everyone"


def require_population(event: Event, n_clients: int | None) -> None:
    """Refuse an event that samples from another number of clients than the ledger speaks of; None is any number."""
    if n_clients is None:
        return
    for part, _ in parts(event):
        if isinstance(part, BestOfRandomRuns):
            require_population(part.run, n_clients)
        if isinstance(part, FixedSizeSampledGaussian | TruncatedPoissonSampledGaussian) and part.n_clients != n_clients:
            raise LedgerError(f"{part} samples from {part.n_clients} clients, the ledger speaks of {n_clients}")


def require_names(**names: str) -> None:
    """Refuse names that are no strings of a sensible length."""
    for name, value in names.items():
        if not isinstance(value, str) or not value or len(value) > 500:
            raise LedgerError(f"{name}={value!r} must be a string of 1 to 500 characters")
