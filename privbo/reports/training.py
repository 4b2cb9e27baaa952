"""Both ledgers of a private training as types: its plan, its charges, and whether all of it agrees."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from accountant.events import Event, repeat
from accountant.ledger import Entry, Ledger
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_json, require_contained
from privbo.protocol.settings import JsonObject, fields_of, plain, read_settings
from privbo.protocol.table import Table
from privbo.training.plan import TrainingPlan


@dataclass(frozen=True, kw_only=True)
class PartLedger:
    """The ledger of the training or of the validation records.

    Attributes:
        part: ``"training"`` or ``"validation"``.
        charges: Its charges, in order.
        problem: The first disagreement, or None.
        head: Chain hash of the last row.
    """

    part: str
    charges: tuple[Entry, ...]
    problem: str | None
    head: str

    @property
    def table(self) -> Table:
        """The charges, under the ledger's state."""
        state = "verified" if self.problem is None else f"NOT VERIFIED: {self.problem}"
        return Table(
            title=f"{self.part} records: {len(self.charges)} charges, {state}",
            headings=("charge", "release", "event", "noise", "chain hash"),
            rows=[(e.sequence, e.release_id, e.event.text, e.noise_source, e.digest[:12]) for e in self.charges],
        )

    def to_dict(self) -> JsonObject:
        """Give the ledger as JSON-able data, events in words."""
        charges = [
            {"sequence": e.sequence, "release": e.release_id, "text": e.event.text}
            | {"noise_source": e.noise_source, "digest": e.digest}
            for e in self.charges
        ]
        return fields_of(self, but=("charges",)) | {"charges": plain(charges)}


@dataclass(frozen=True, kw_only=True)
class TrainingLedgers:
    """A private training's plan and ledgers.

    Attributes:
        directory: Where they are.
        plan: The plan and its price, in words.
        epsilon: The plan's price, as ``TrainingPlan.epsilon``.
        delta: Where it is quoted.
        parts: Both ledgers.
    """

    directory: str
    plan: str
    epsilon: dict[str, float]
    delta: float
    parts: tuple[PartLedger, PartLedger]

    @property
    def verified(self) -> bool:
        """Whether both ledgers are whole and hold what the plan says."""
        return all(part.problem is None for part in self.parts)


def is_training(directory: Path) -> bool:
    """Whether a private training stands there, and no run."""
    return (directory / "search.json").exists() and not (directory / "config.json").exists()


def training_ledgers(directory: Path) -> TrainingLedgers:
    """Read both ledgers of a private training again, and hold their charges against its plan.

    Raises:
        RunError: If no training stands there, or its description can't be read, or a link leads out of the directory.
        LedgerError: If a ledger is missing or damaged.
    """
    require_contained(directory)
    content = read_json(directory / "search.json")
    try:
        names = (field.name for field in fields(TrainingPlan))
        plan = read_settings(TrainingPlan, {name: content.get(name) for name in names}, "search.json")
    except ConfigurationError as error:
        raise RunError(f"{directory / 'search.json'} is no training's description ({error}); restore it") from None
    first, second = (
        _part(directory, part, event, plan) for part, event in zip(("training", "validation"), plan.events, strict=True)
    )
    return TrainingLedgers(
        directory=str(directory),
        plan=repr(plan).removeprefix("<TrainingPlan: ").removesuffix(">"),
        epsilon=plan.epsilon(),
        delta=plan.privacy.delta,
        parts=(first, second),
    )


def _part(directory: Path, part: str, planned: Event, plan: TrainingPlan) -> PartLedger:
    with Ledger.open(directory / f"{part}.sqlite") as ledger:
        check, entries = ledger.verify(), ledger.entries()
        charged = ledger.event()
        problem = check.problem or _problem(charged, planned, n_charges=len(entries), plan=plan)
        if problem is None and plan.runs is not None:
            file = directory / "selected.pt"
            if file.exists() and file.read_bytes() not in [ledger.stored_release(e.release_id) for e in entries]:
                problem = f"{file.name} is not the model that the ledger stored"
    return PartLedger(part=part, charges=tuple(entries), problem=problem, head=check.head)


def _problem(charged: Event, planned: Event, *, n_charges: int, plan: TrainingPlan) -> str | None:
    """Say whether something else was charged than planned; a search may be charged pull by pull, and for fewer."""
    if n_charges == 0:
        return None
    ((release, count),) = repeat(planned, 1).parts
    found = dict(cast("Any", charged).parts)
    if set(found) == {release} and (found[release] == count or (plan.runs is None and found[release] < count)):
        return None
    return f"{charged.text} was charged, the plan says {planned.text}"
