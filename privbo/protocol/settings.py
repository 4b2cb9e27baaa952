"""Settings that a user writes, checked once: Python and TOML refuse the same values in the same words.

``@settings`` makes a frozen dataclass whose constructor validates strictly (no text for a
number, no number for a flag) and whose faults are ``ConfigurationError`` with the key, the
value, what is allowed, and where to look. ``read_settings`` makes one from a table of a TOML
or JSON document, ``dump_settings`` gives that table back, ``settings_schema`` its JSON schema.
Results become JSON by ``plain``: dataclasses by their fields, numbers that JSON cannot hold as null.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pydantic
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, Strict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, PydanticSerializationError

from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic_core import ErrorDetails

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, JsonValue]
# Sequences in a setting: Python's lists and tuples and TOML's arrays are all taken.
Sequence: TypeAlias = Annotated[tuple[T, ...], Strict(strict=False)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Ends: TypeAlias = tuple[Finite, Finite]


def _rising(ends: Ends) -> Ends:
    if not ends[0] < ends[1]:
        raise PydanticCustomError("rising", "input must be increasing, (lowest, highest)")
    return ends


Range: TypeAlias = Annotated[Ends, Strict(strict=False), AfterValidator(_rising)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Count: TypeAlias = Annotated[int, Field(ge=1)]

_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
_DIRECTIONS = {"direction", "minimise", "minimize", "maximise", "maximize"}
_MISSING = {"missing", "missing_argument"}
_NO_TABLE = {"dict_type", "dataclass_type"}
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # of runs and sweeps: part of paths
_BOUNDS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
_CONFIG = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True, validate_default=False)


def path_name(words: str) -> str:
    """Make a run's name of any words."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-._") or "run"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, Field))
def settings(*, table: str = "", kw_only: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen, validated dataclass of settings.

    Args:
        table: The table of a configuration file that holds these settings; messages name keys by it.
        kw_only: Whether the constructor takes names only.

    Returns:
        The decorator.

    Example:
        >>> @settings(table="stove")
        ... class Stove:
        ...     watts: Positive = 1000.0
        >>> Stove(watts="much")
        Traceback (most recent call last):
        privbo.protocol.errors.ConfigurationError: stove.watts='much': input should be a valid number; correct it
    """

    def decorate(cls: type[T]) -> type[T]:
        made = pydantic.dataclasses.dataclass(frozen=True, kw_only=kw_only, config=_CONFIG)(cls)
        checked = made.__init__
        names = [f.name for f in dataclasses.fields(made) if f.init and not f.kw_only]
        kept = {f.name for f in dataclasses.fields(made) if "SkipValidation" in str(f.type)}

        @functools.wraps(checked)
        def __init__(self: T, *values: object, **named: object) -> None:  # noqa: N807  # it is the constructor
            if len(values) > len(names):
                raise ConfigurationError(f"{cls.__name__} takes {len(names)} values without a name; name the others")
            given = dict(zip(names, values, strict=False)) | named
            where = f"{table}.".lstrip(".")
            given = {key: v if key in kept else _unwrapped(v, where + key) for key, v in given.items()}
            try:
                checked(self, **given)
            except ValidationError as error:
                raise ConfigurationError(_explain(error, table, given, cls)) from None

        setattr(made, "__init__", __init__)  # noqa: B010  # the same constructor with our errors; mypy refuses the plain form
        return cast("type[T]", made)

    return decorate


def require_one_of(words: object, **given: object) -> None:
    """Refuse values that a ``Literal`` does not name, for functions and results, whose types nothing else checks.

    Raises:
        ConfigurationError: Naming the value and what is allowed.

    Example:
        >>> require_one_of(Literal["open", "anonymous"], channel="Open")
        Traceback (most recent call last):
        privbo.protocol.errors.ConfigurationError: channel='Open' must be one of 'open', 'anonymous'; correct it
    """
    for name, value in given.items():
        if value not in get_args(words):
            raise ConfigurationError(
                f"{name}={value!r} must be one of {', '.join(map(repr, get_args(words)))}; correct it"
            )


def _unwrapped(value: object, key: str) -> object:
    """A value without NumPy's types; a set is refused, as processes order it differently."""
    if isinstance(value, set | frozenset):
        raise ConfigurationError(f"{key}={value!r}: a set has no order; give a list")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if type(value) is dict:
        return {name: _unwrapped(item, f"{key}.{name}") for name, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(_unwrapped(item, key) for item in value)
    return value


# The validator of a type, kept: making one takes milliseconds, and a sweep asks for thousands.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def read_settings(
    kind: type[T], table: Mapping[str, object], where: str, context: Mapping[str, object] | None = None
) -> T:
    """Make settings from a table of a document.

    Args:
        kind: The class of the settings.
        table: As a document has it.
        where: Key of the table; messages name keys under it.
        context: Given to validators of the class.

    Raises:
        ConfigurationError: Naming the key under ``where``, the value and what is allowed.
    """
    if _is_settings(kind):
        allowed = sorted(f.name for f in dataclasses.fields(kind) if f.init)
        for key in table.keys() - set(allowed):
            raise ConfigurationError(f"{where}.{key} is unknown; allowed: {', '.join(allowed)}".lstrip("."))
    try:
        # As JSON, where arrays may become tuples and objects settings, however strict the types are.
        return cast("T", _adapter(kind).validate_json(json.dumps(table, default=str), context=context))
    except ValidationError as error:
        raise ConfigurationError(_explain(error, where, table, kind)) from None


def dump_settings(value: object, *, defaults: bool | Literal["first"] = True) -> JsonObject:
    """Give settings as the table of a document.

    Args:
        value: The settings.
        defaults: Write every field out; otherwise only what departs from its default, which
            stays the same table when settings are added later. ``"first"`` takes the default that a field was
            published with, its metadata's ``first``, and stays the same table when a default changes, too.

    Raises:
        ConfigurationError: If a field's type has no place in a document.
    """
    try:
        adapter = _adapter(type(value))
    except pydantic.errors.PydanticSchemaGenerationError as error:
        first = str(error).partition(chr(10))[0]
        raise ConfigurationError(f"{type(value).__name__}: {first} Use plain values or dataclasses") from None
    try:
        table = cast("JsonObject", adapter.dump_python(value, mode="json"))
    except PydanticSerializationError as error:  # in which pydantic wraps what a field's own writer raises
        raise error.__cause__ or error from None
    return table if defaults is True else cast("JsonObject", _departures(table, value, defaults == "first"))


def _departures(table: JsonValue, value: object, first: bool) -> JsonValue:
    """A table without the fields that are as by (first) default; a tag, which says what the table is, stays."""
    if isinstance(table, list) and isinstance(value, list | tuple):
        return [_departures(item, held, first) for item, held in zip(table, value, strict=True)]
    if not isinstance(table, dict):
        return table
    held, names = cast("Mapping[str, object]", value), list(table)
    if _is_settings(kind := type(value)):
        tags, held = _tags(kind), vars(value)
        names = [
            f.name
            for f in dataclasses.fields(kind)
            if f.init and (f.name in tags or held[f.name] != _default(f, first))
        ]
    inside = {
        name: _departures(table[name], held[name], first) for name in names if isinstance(table[name], dict | list)
    }
    return {name: inside.get(name, table[name]) for name in names}


def _default(one: dataclasses.Field[Any], first: bool) -> object:
    made = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
    return one.metadata.get("first", made) if first else made


@functools.lru_cache(maxsize=256)
def _tags(kind: type[DataclassInstance]) -> frozenset[str]:
    """Fields that say what a table is; kept, because a run asks for its digest several times."""
    hints = get_type_hints(kind).items()
    return frozenset(name for name, hint in hints if get_origin(hint) is Literal and len(get_args(hint)) == 1)


def settings_schema(kind: type[object]) -> JsonObject:
    """Give the JSON schema of settings, for editors."""
    return cast("JsonObject", _adapter(kind).json_schema())


def _explain(error: ValidationError, where: str, given: Mapping[str, object], kind: type[object]) -> str:
    """Say every fault of a table on one line: key, value, what is allowed, remedy; once per key."""
    allowed = ", ".join(sorted(f.name for f in dataclasses.fields(kind) if f.init)) if _is_settings(kind) else ""
    faults: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for item in error.errors(include_url=False):
        faults.setdefault(_keys(item, given), []).append(item)
    # Where a key inside a table is at fault, that the table is no number either helps nobody.
    told = {
        keys: items for keys, items in faults.items() if not any(k != keys and k[: len(keys)] == keys for k in faults)
    }
    return "; ".join(
        _fault(".".join([where, *keys]).strip("."), items, allowed if len(keys) == 1 else "")
        for keys, items in told.items()
    )


def _is_settings(kind: object) -> TypeGuard[type[DataclassInstance]]:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _keys(item: ErrorDetails, given: object) -> tuple[str, ...]:
    """The user's keys on the way to a fault: pydantic's location without the branches of unions it names."""
    keys: list[str] = []
    for step in item["loc"]:
        inside = dict(enumerate(given)) if isinstance(given, list | tuple) else given
        if isinstance(inside, Mapping) and step in inside:
            given = inside[step]
            keys.append(str(step))
    if item["type"] in _MISSING:
        keys.append(str(item["loc"][-1]))
    return tuple(keys)


def _fault(key: str, items: list[ErrorDetails], allowed: str) -> str:
    """All that is wrong with one key; the branches of a union are what its value may be instead."""
    first = items[0]
    if first["type"] in _UNKNOWN:
        way = "; larger is better: return the negated loss" if key.rpartition(".")[2] in _DIRECTIONS else ""
        return f"{key} is unknown{way}; allowed: {allowed}" if allowed else f"{key} is unknown{way}"
    if first["type"] in _MISSING:
        return f"{key} is missing; give it"
    if first["type"] == "union_tag_not_found":
        return f"{key}.{first['ctx']['discriminator'].strip(chr(39))} is missing; give it"
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]["discriminator"].strip(chr(39))
        return f"{key}.{tag}={first['ctx']['tag']!r} must be one of {first['ctx']['expected_tags']}; correct it"
    makers = [f"{item['ctx']['class_name']}(...)" for item in items if item["type"] == "dataclass_exact_type"]
    if makers and (len(makers) == len(items) or isinstance(first["input"], Mapping)):
        remedy = f"make one: {' or '.join(makers)}"
    else:
        remedy = f"write [{key}] and its keys" if first["type"] in _NO_TABLE else "correct it"
    said, *others = dict.fromkeys(map(_expected, items))
    expected = ", or ".join([said, *(other.removeprefix("input should be ") for other in others)])
    return f"{key}={first['input']!r}: {expected}; {remedy}"


def _expected(item: ErrorDetails) -> str:
    if item.get("ctx", {}).get("pattern") == NAME:
        return "input should be letters, digits, dots, underscores and hyphens, no spaces, a letter or digit first"
    sign = _BOUNDS.get(item["type"])
    if sign is not None:
        return f"input should be a number {sign} {next(iter(item['ctx'].values())):g}"
    return item["msg"][:1].lower() + item["msg"][1:].replace("an object", "a table").replace("a valid tuple", "a list")


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
            return _of_object(value)


def _of_object(value: object) -> JsonValue:
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
