"""Whom a run hides, in the words of every page and of every check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Who is hidden.

    Attributes:
        noun: What one unit is, to be written after "one" or "each".
        more: What else of it is hidden, and what is not; begins with its own punctuation.
        assumed: What the guarantee rests on by the operator's word alone, a line each.
    """

    noun: str
    more: str
    assumed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it but what is assumed, as a phrase."""
        return f"one {self.noun}{self.more}"


def hidden_unit(unit: str, protects: str | None = None, records_per_person: int = 1) -> Hidden:
    """Say who is hidden by a run of this unit.

    Example:
        >>> hidden_unit("record", "validation records", 2).noun
        "person's validation records"
    """
    if unit == "client":
        return Hidden(noun="client", more=" and everything it sent")
    if unit == "reward":
        more = ": the outcome of one evaluation; what a client does as a whole is not hidden"
        return Hidden(noun="reward", more=more)
    records, person = protects or "records", records_per_person
    is_trained = records != "records"
    basis = "on models trained without it" if is_trained else "on models that are public or priced"
    most = f"no person has more than {person} {records if person > 1 else records[:-1]} at all sites together"
    return Hidden(
        noun=records[:-1] if person == 1 else f"person's {records}",
        more=f", at most {person} at all sites together" * (person > 1)
        + "; records that models were trained on are not hidden" * is_trained,
        assumed=(f"that each score depends on its own record alone and {basis}", f"that {most}"),
    )
