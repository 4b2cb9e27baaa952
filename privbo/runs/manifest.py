"""The configuration as run: a JSON description that identifies a run and prices its plan."""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from accountant.events import to_dict
from privbo.plans.plan import Terms
from privbo.protocol.errors import RunError
from privbo.protocol.problem import Problem
from privbo.protocol.space import Space

FORMAT = 1


def describe(value: object) -> Any:  # noqa: ANN401  # JSON has no narrower type
    """JSON form of settings: dataclasses by type and fields, enums by value, tuples as lists.

    Raises:
        TypeError: If a value has no such form, such as a function.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{value!r} can't be described in a run's configuration; use plain values or dataclasses")


def describe_space(space: Space) -> dict[str, Any]:
    """JSON form of a search space, in the order of its coordinates."""
    return {name: describe(parameter) for name, parameter in space.parameters.items()}


def describe_plan(terms: Terms) -> dict[str, Any]:
    """The plan and its price, fixed before any data is touched."""
    return {
        "releases": terms.planned_releases,
        "noise_multiplier": terms.noise_multiplier,
        "noise_source": terms.noise_source,
        "sending_share": terms.sending_share,
        "adjacency": terms.adjacency.value,
        "delta": terms.delta,
        "event": to_dict(terms.event),
    }


def describe_run(
    *,
    problem: Problem,
    algorithm: object,
    terms: Terms,
    rounds: int,
    control: str | None,
    ledger: object,
    attendance: object = None,
) -> dict[str, Any]:
    """The part of a configuration that makes two runs the same run."""
    return {
        "format": FORMAT,
        "problem": {
            "name": problem.name,
            "provenance": problem.provenance,
            "n_clients": problem.n_clients,
            "space": describe_space(problem.search_space),
        },
        "algorithm": describe(algorithm),
        "privacy": describe(terms.privacy),
        "rounds": rounds,
        "control": control,
        "ledger": describe(ledger),
        "attendance": describe(attendance),
        "plan": describe_plan(terms),
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = ("privbo", "numpy", "scipy", "torch", "gpytorch")
    found = {name: version for name in packages if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **found}


@cache
def _version(name: str) -> str | None:
    """The version of an installed package; asking takes milliseconds, and simulations make thousands of runs."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def now() -> str:
    """The clock, for information only; order comes from the ledger's sequence."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def require_same_run(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to resume another run.

    Raises:
        RunError: Naming the first setting that differs.
    """
    for key, value in wanted.items():
        if stored.get(key) != value:
            raise RunError(
                f"the run to resume was made with {key} = {stored.get(key)!r}, now it is {value!r}; "
                "resume with the same settings or start a new directory"
            )
