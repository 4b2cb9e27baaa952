"""Configuration files: TOML to a ``Spec``, overrides from the command line, and the schema for editors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import JsonObject, settings_schema
from privbo.runs.sources import algorithms
from privbo.runs.spec import Spec


def read_toml(path: Path) -> JsonObject:
    """Read a TOML file as one table.

    Raises:
        ConfigurationError: If the file can't be read.
    """
    return parse_toml(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """Read a configuration file.

    Raises:
        ConfigurationError: If it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a configuration file") from None


def parse_toml(content: bytes, name: str) -> JsonObject:
    """Parse the bytes of a TOML file as one table.

    Raises:
        ConfigurationError: If they are not TOML, with the file's name.
    """
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name} is not TOML: {error}") from None


def read_spec(path: Path, overrides: Sequence[str] = (), *, load: bool = True) -> Spec:
    """Read a run from a TOML file with ``key.path=value`` overrides, and load the code it names.

    Args:
        path: The file.
        overrides: Set on top.
        load: Import that code; without it the run can be priced, not played.

    Raises:
        ConfigurationError: If the file can't be read or a value is not allowed.
    """
    table = read_toml(path)
    for override in overrides:
        table = with_overrides(table, dict([_parsed(override)]))
    spec = Spec.from_dict(table, trusted=load)
    return spec.loaded() if load else spec


def with_overrides(table: Mapping[str, object], overrides: Mapping[str, object]) -> JsonObject:
    """Give a table with dotted keys replaced; the table itself stays as it is.

    Raises:
        ConfigurationError: If a key goes through a value.
    """
    content = {key: with_overrides(value, {}) if isinstance(value, Mapping) else value for key, value in table.items()}
    for key, value in overrides.items():
        *tables, last = key.split(".")
        inner = content
        for name in tables:
            found = inner.setdefault(name, {})
            if not isinstance(found, dict):
                raise ConfigurationError(f"{key!r}: {name!r} is a value in the configuration, not a table")
            inner = found
        inner[last] = value
    return cast("JsonObject", content)


def _parsed(override: str) -> tuple[str, object]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigurationError(f"--set {override!r}: write key.path=value, such as privacy.epsilon=2")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()


def schema() -> JsonObject:
    """Give the JSON schema of a configuration file, for editors; ``privbo schema`` prints it."""
    found = settings_schema(Spec)
    kinds: list[JsonObject] = []
    definitions: JsonObject = {}
    for name, kind in algorithms().items():
        part = settings_schema(kind)
        definitions |= cast("JsonObject", part.pop("$defs", {}))
        properties = cast("JsonObject", part["properties"]) | {"type": {"const": name}}
        kinds.append(part | {"properties": properties, "required": ["type"]})
    own = {"type": "object", "properties": {"type": {"pattern": ".+:.+"}}, "required": ["type"]}
    privacies = [settings_schema(Privacy), settings_schema(NoPrivacy)]
    for part in privacies:
        definitions |= cast("JsonObject", part.pop("$defs", {}))
    properties = cast("JsonObject", found["properties"])
    properties["algorithm"] = {"oneOf": [*kinds, cast("JsonObject", own)]}
    properties["privacy"] = {"oneOf": list(privacies)}
    return found | {"$defs": cast("JsonObject", found.get("$defs", {})) | definitions, "title": "privbo run"}
