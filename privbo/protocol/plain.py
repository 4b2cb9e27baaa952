"""Results as JSON: every dataclass by its fields, every number that JSON cannot hold as null."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from accountant.verify.text import shown
from privbo.protocol.settings import JsonObject


def plain(value: object) -> JsonValue:
    """Give a result as JSON-able data.

    Dataclasses become objects of their fields, unless they have a ``to_dict`` of their own;
    infinity and NaN become None, which JSON calls null.

    Raises:
        TypeError: If a value has no such form, such as a function.

    Example:
        >>> plain({"epsilon": (1.5, float("inf"))})
        {'epsilon': [1.5, None]}
    """
    match value:
        case None | bool() | int() | str() if not isinstance(value, enum.Enum):
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
        case _:
            return _object(value)


def _object(value: object) -> JsonValue:
    if isinstance(value, type):
        raise TypeError(f"{value!r} is a class, not a value; make one")
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())  # one of another package may hold infinity
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON; use plain values or dataclasses")


def fields_of(value: object, *, but: Container[str] = ()) -> JsonObject:
    """Give a dataclass's public fields as JSON-able data, whether or not it has a ``to_dict``.

    Args:
        value: A dataclass.
        but: Names of fields to leave out.
    """
    named = [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]  # every caller holds a dataclass
    return {name: plain(getattr(value, name)) for name in named if name not in but and not name.startswith("_")}


def in_two_lines(kind: str, name: str, first: str, second: str) -> str:
    r"""Give a result's ``repr``: kind, name and the first facts, then the second; no text steers a terminal.

    Example:
        >>> print(in_two_lines("Plan", "", "3 releases", "epsilon 2"))
        <Plan: 3 releases
         epsilon 2>
    """
    head = " ".join(word for word in (kind, shown(name)) if word)
    return f"<{head}: {shown(first)}\n {shown(second)}>"
