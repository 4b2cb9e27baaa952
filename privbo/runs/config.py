"""TOML to objects; the only place that names every algorithm.

A configuration file::

    name = "quickstart"
    rounds = 20
    controls = ["local", "zeroed"]     # optional private diagnostics

    [problem]
    factory = "privbo.quickstart.digits_svm:problem"   # or: objective, n_clients and space
    [algorithm]
    type = "dp-fts-de"
    n_features = 50
    [privacy]
    epsilon = 2.0

Errors name the key, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from privbo.plans.privacy import NoPrivacy, Privacy, SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Algorithm
from privbo.protocol.problem import Problem
from privbo.protocol.space import Categorical, Int, Parameter, Real, Space
from privbo.runs.attendance import Attendance

T = TypeVar("T")


class ProblemConfig(BaseModel):
    """The ``[problem]`` table: a factory, or an objective with its space and clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factory: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    objective: str | None = None
    n_clients: int | None = None
    space: dict[str, dict[str, Any]] = Field(default_factory=dict)
    name: str | None = None
    provenance: str = ""


class Config(BaseModel):
    """A whole configuration file, checked for shape; ``build`` makes the objects."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    rounds: int = Field(ge=1)
    seed: int | None = Field(default=None, ge=0)
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)
    directory: str | None = None
    controls: tuple[Literal["local", "zeroed"], ...] = ()
    problem: ProblemConfig
    algorithm: dict[str, Any]
    privacy: dict[str, Any]
    ledger: dict[str, Any] | None = None
    attendance: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A configuration turned into objects."""

    config: Config
    problem: Problem
    algorithm: Algorithm
    privacy: Privacy | NoPrivacy
    ledger: SharedLedger | None
    attendance: Attendance | None


def algorithms() -> dict[str, type[Algorithm]]:
    """Every algorithm by its name in a configuration file."""
    from privbo.algorithms.elimination.fed_pne import FedPNE
    from privbo.algorithms.elimination.parallel import ParallelXArmed
    from privbo.algorithms.elimination.pf_pne import PFPNE
    from privbo.algorithms.functional.federated import FederatedFLCB
    from privbo.algorithms.thompson.dp_fts_de import DPFTSDE

    return {
        "dp-fts-de": DPFTSDE,
        "f-lcb": FederatedFLCB,
        "fed-pne": FedPNE,
        "parallel": ParallelXArmed,
        "pf-pne": PFPNE,
    }


_PARAMETERS: dict[str, type[Parameter]] = {"real": Real, "int": Int, "categorical": Categorical}


def read(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply ``key.path=value`` overrides.

    Raises:
        ConfigurationError: If the file can't be read or a value is not allowed.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    for override in overrides:
        _override(content, override)
    return parse(content)


def parse(content: Mapping[str, Any]) -> Config:
    """Check the shape of a configuration.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(explain(error, prefix="")) from None


def build(config: Config) -> Job:
    """Make the problem, the algorithm and the privacy; loads the user's module, no data.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    return Job(
        config=config,
        problem=_problem(config.problem, config.name),
        algorithm=_algorithm(config.algorithm),
        privacy=_privacy(config.privacy),
        ledger=None if config.ledger is None else construct(SharedLedger, config.ledger, "ledger"),
        attendance=None if config.attendance is None else construct(Attendance, config.attendance, "attendance"),
    )


def _override(content: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigurationError(f"--set {override!r}: write key.path=value, such as privacy.epsilon=2")
    *tables, last = key.strip().split(".")
    table = content
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"--set {override!r}: {name!r} is a value, not a table")
    try:
        table[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = text.strip()


def _problem(config: ProblemConfig, name: str) -> Problem:
    if (config.factory is None) == (config.objective is None):
        raise ConfigurationError("problem: give exactly one of factory and objective (as module:function)")
    if config.factory is not None:
        problem = load_function(config.factory, "problem.factory")(**config.arguments)
        if not isinstance(problem, Problem):
            raise ConfigurationError(
                f"problem.factory={config.factory!r} returned {type(problem).__name__}, not a Problem"
            )
        return problem
    if config.n_clients is None:
        raise ConfigurationError("problem.n_clients is missing; say how many clients are registered")
    return Problem(
        space={key: _parameter(key, table) for key, table in config.space.items()},
        objective=load_function(str(config.objective), "problem.objective"),
        n_clients=config.n_clients,
        name=config.name or name,
        provenance=config.provenance,
    )


def space_from(tables: Mapping[str, Mapping[str, Any]]) -> Space:
    """The space a run's configuration describes."""
    return Space({key: _parameter(key, dict(table) | {"type": table["type"].lower()}) for key, table in tables.items()})


def algorithm_from(description: Mapping[str, Any]) -> Algorithm:
    """The algorithm a run's configuration describes.

    Raises:
        ConfigurationError: If it is none of this package.
    """
    kinds = {kind.__name__: kind for kind in algorithms().values()}
    return construct(_pick(kinds, description, "algorithm"), _plain(_without_type(description)), "algorithm")


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in table.items()}


def _plain_value(value: object) -> object:
    """A described value without the names of its types."""
    if isinstance(value, Mapping):
        return _plain(_without_type(value))
    return [_plain_value(item) for item in value] if isinstance(value, list) else value


def _parameter(key: str, table: Mapping[str, Any]) -> Parameter:
    where = f"problem.space.{key}"
    kind = _pick(_PARAMETERS, table, where)
    return construct(kind, _without_type(table), where)


def _algorithm(table: Mapping[str, Any]) -> Algorithm:
    return construct(_pick(algorithms(), table, "algorithm"), _without_type(table), "algorithm")


def _privacy(table: Mapping[str, Any]) -> Privacy | NoPrivacy:
    if table.get("none") is True:
        return construct(NoPrivacy, {k: v for k, v in table.items() if k != "none"}, "privacy")
    return construct(Privacy, table, "privacy")


def _pick(kinds: Mapping[str, type[T]], table: Mapping[str, Any], where: str) -> type[T]:
    name = table.get("type")
    if name not in kinds:
        raise ConfigurationError(f"{where}.type={name!r} is unknown; allowed: {', '.join(sorted(kinds))}")
    return kinds[str(name)]


def _without_type(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "type"}


def construct(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table; unknown keys and values of a wrong type are refused by name."""
    allowed = {f.name for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]  # T is a dataclass
    for key in table:
        if key not in allowed:
            raise ConfigurationError(f"{where}.{key} is unknown; allowed: {', '.join(sorted(allowed))}")
    try:
        return TypeAdapter(kind).validate_python(dict(table))
    except ValidationError as error:
        raise ConfigurationError(explain(error, prefix=f"{where}.")) from None


def explain(error: ValidationError, *, prefix: str) -> str:
    """Every fault of a table on one line: key, what is wrong, what was given."""
    lines = []
    for item in error.errors(include_url=False):
        key = prefix + ".".join(str(part) for part in item["loc"])
        lines.append(f"{key}: {item['msg']} (got {item['input']!r})")
    return "; ".join(dict.fromkeys(lines))


def load_function(reference: str, where: str) -> Callable[..., Any]:
    """The function a configuration names as ``module:function``.

    Raises:
        ConfigurationError: If there is no such module or function.
    """
    module, separator, function = reference.partition(":")
    if not separator:
        raise ConfigurationError(f"{where}={reference!r}: write module:function")
    here = str(Path.cwd())
    if here not in sys.path:  # the console script does not put the working directory on the path
        sys.path.insert(0, here)
    try:
        found: object = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{where}={reference!r}: {error}; run where {module} can be imported") from None
    except AttributeError:
        raise ConfigurationError(f"{where}={reference!r}: {module} has no {function}") from None
    if not callable(found):
        raise ConfigurationError(f"{where}={reference!r} is no function")
    return found
