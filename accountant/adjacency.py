"""Neighbours and units: between which data sets, and about whom, a guarantee speaks."""

from __future__ import annotations

from enum import StrEnum

from accountant.errors import EventError


class Adjacency(StrEnum):
    """Neighbouring data sets: what the presence of one unit may change.

    ``ADD_OR_REMOVE_ONE``: one unit is present in one data set and absent from the other.
    ``ZERO_OUT``: the number of units is public; one unit's contribution becomes zero.
    ``REPLACE_ONE``: one unit's contribution becomes any other allowed contribution.

    Example:
        >>> Adjacency("zero-out") is Adjacency.ZERO_OUT
        True
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise EventError(f"adjacency={value!r} is unknown; use one of {', '.join(cls)}")


class Unit(StrEnum):
    """Unit of privacy, whose presence is hidden; costs of different units never add up.

    Example:
        >>> [unit.value for unit in Unit]
        ['client', 'record', 'reward']
    """

    CLIENT = "client"
    RECORD = "record"
    REWARD = "reward"
