"""Reservations: what a run will release, bound into a ledger's chain before the first of it.

A reservation is paid for whole when it is made and its price never falls: a run that stops
early leaves slots that it may still spend, not budget that comes back (when a run stops may
depend on what it saw). What is quoted of a run is what stands here, never what a file beside
the ledger says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from accountant.errors import LedgerError, PrivacyError
from accountant.events import Event, Json, compose, from_dict, parts, to_dict
from accountant.ledger.policy import LedgerPolicy
from accountant.ledger.store import Row

KIND = "reservation"
Kind: TypeAlias = Literal["plan", "recovery"]
Place: TypeAlias = tuple[int, str]  # sequence and digest of a row


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A run as it is declared before its first release.

    Attributes:
        run: Name of the run.
        events: Every release that may be made, with its count.
        settings: Digest of the run's settings.
        plan: Digest of the run's plan as it is written down beside the ledger.
        delta: Where the run quotes epsilon, in (0, 1).
        noise_source: "secure", "exact", "simulation" or "none".
        stopping: When the run may end: ``"any time"`` (the whole plan is paid) is the only rule so far.
        kind: ``"plan"``, or ``"recovery"``: releases that a lost ledger had been charged for, once more.
        lost: Of a recovery: the charges that evidence beside the ledger names and its chain lacks.
    """

    run: str
    events: tuple[tuple[Event, int], ...]
    settings: str
    plan: str
    delta: float
    noise_source: str
    stopping: Literal["any time"] = "any time"
    kind: Kind = "plan"
    lost: tuple[Place, ...] = ()

    @property
    def slots(self) -> Counter[Event]:
        """Number of releases that may name each event; one that pays for several is named by all of them."""
        found: Counter[Event] = Counter()
        for event, count in self.events:
            for part, times in parts(event):
                found[part] += count * times * part.n_releases
        return found

    @property
    def releases(self) -> int:
        """Number of releases."""
        return self.slots.total()

    def to_dict(self) -> Json:
        """Plain values, as stored."""
        return {
            "run": self.run,
            "events": [[to_dict(event), count] for event, count in self.events],
            "settings": self.settings,
            "plan": self.plan,
            "delta": self.delta,
            "noise_source": self.noise_source,
            "stopping": self.stopping,
            "kind": self.kind,
            "lost": [list(place) for place in self.lost],
        }

    @staticmethod
    def from_dict(content: Mapping[str, object]) -> Declaration:
        """The declaration that ``to_dict`` described."""
        given = dict(content)
        events = cast("list[tuple[dict[str, object], int]]", given.pop("events"))
        lost = cast("list[Place]", given.pop("lost"))
        return Declaration(
            events=tuple((from_dict(event), int(count)) for event, count in events),
            lost=tuple((int(sequence), str(digest)) for sequence, digest in lost),
            **cast("dict[str, str]", given),  # type: ignore[arg-type]  # checked by whoever compares it
        )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A declaration with its place in the ledger's chain.

    Proof: docs/proofs/reservations.md.

    Attributes:
        declared: What was declared.
        sequence: Position in the chain.
        previous: Digest of the row before it.
        digest: Digest of its row: whoever has seen it has seen what was declared.
    """

    declared: Declaration
    sequence: int
    previous: str
    digest: str

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.declared.run


def row_name(declared: Declaration, earlier: int) -> str:
    """Key of a reservation's row: one plan for every run, and recoveries by number."""
    return f"plan of {declared.run}" if declared.kind == "plan" else f"recovery {earlier + 1} of {declared.run}"


def body_of(declared: Declaration, policy: LedgerPolicy) -> Json:
    """A reservation's row, with what the ledger's numbers mean."""
    return declared.to_dict() | {"row": KIND} | _meaning(policy)


def read_reservation(row: Row, policy: LedgerPolicy) -> Reservation | None:
    """The reservation that a verified row holds, None for a row of another kind.

    Raises:
        LedgerError: If it cannot be read or contradicts the policy.
    """
    try:
        content = json.loads(row.body)
        if content.get("row") != KIND:
            return None
        meaning = {name: content.pop(name, None) for name in _meaning(policy)}
        declared = Declaration.from_dict({key: value for key, value in content.items() if key not in ("row", "nonce")})
    except (TypeError, ValueError, KeyError, AttributeError, PrivacyError) as error:
        raise LedgerError(f"row {row.sequence} cannot be read ({error}); restore the ledger") from error
    if meaning != _meaning(policy):
        raise LedgerError(f"reservation {row.sequence} contradicts the ledger's policy; restore the ledger")
    return Reservation(declared=declared, sequence=row.sequence, previous=row.previous, digest=row.digest)


def require_declarable(declared: Declaration) -> None:
    """Refuse a declaration that could not be read again or quoted.

    Raises:
        LedgerError: Naming the value and the bound.
    """
    if not 0 < declared.delta < 1:
        raise LedgerError(f"delta={declared.delta!r} of a reservation must lie in (0, 1)")
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for _, count in declared.events):
        raise LedgerError("every event of a reservation needs a count >= 1")
    compose(declared.events)


def _meaning(policy: LedgerPolicy) -> Json:
    return {
        "unit": policy.unit.value,
        "adjacency": policy.adjacency.value,
        "population": policy.population,
        "n_clients": policy.n_clients,
    }
