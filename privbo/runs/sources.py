"""Problems and algorithms by the names a configuration gives them: built-in, or code of the user's."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Algorithm, UnitName
from privbo.protocol.problem import ASK, FACTS, Objective, Problem, ProblemSource, require_call
from privbo.protocol.settings import JsonObject, dump_settings, read_settings


def load_problem(source: ProblemSource, default_name: str) -> Problem:
    """Make the problem that a ``[problem]`` table names; imports the user's module.

    Raises:
        ConfigurationError: If the table names no code, or code that makes another problem.
    """
    code: dict[str, Any] = {name: load_function(each, f"problem.{name}") for name, each in _named(source).items()}
    if source.factory is not None:
        factory = code["factory"]
        require_call(factory, "problem.factory", ", ".join(source.arguments), **source.arguments)
        problem = factory(**source.arguments)
        if not isinstance(problem, Problem):
            raise ConfigurationError(
                f"problem.factory={source.factory!r} returned {type(problem).__name__}, not a Problem"
            )
        given = [name for name in ("n_clients", "space", "constraints", "n_records") if getattr(source, name)]
        # A stated range is another object than the default, even where it equals it.
        if source.n_records or source.score_range is not ProblemSource.score_range:
            given.append("score_range")
        if source.n_records or source.training is not None:
            given.append("training")
        require_same(f"problem.factory={source.factory!r}", problem, source, given)
        names = ("name", "provenance", "fingerprint")
        shown = {name: getattr(source, name) or getattr(problem, name) for name in names}
        problem = dataclasses.replace(problem, source=source, **shown)
    else:
        problem = stated_problem(source, default_name, code.get("objective", ASK))
    brought = {name: code[name] for name in ("earlier", "enqueued") if name in code}
    return dataclasses.replace(problem, **brought) if brought else problem


def require_code(source: ProblemSource) -> None:
    """Refuse a ``[problem]`` table that names code which is certainly not there; executes nothing of it.

    A module may read data when it is imported, so only its file is looked for and parsed. Whatever can't be told from
    that, such as names that the module makes while it runs, is let pass.

    Raises:
        ConfigurationError: If the table names no code, a module that is not found, or a name that its source lacks.
    """
    for key, reference in _named(source).items():
        module, _, name = reference.partition(":")
        where = f"problem.{key}={reference!r}"
        if not name or not all(part.isidentifier() for part in (*module.split("."), name)):
            raise ConfigurationError(f"{where}: write module:function")
        _find_working_directory()
        try:
            found = _found(module)
            lacks = found is not None and _lacks(found, name)
        except SyntaxError as error:
            raise ConfigurationError(f"{where}: {module} is no Python ({error}); fix it") from None
        except Exception:  # noqa: S112 (a stranger's finder or file: it can't be told)
            continue
        if found is None:
            raise ConfigurationError(f"{where}: no module {module}; run where {module} can be imported")
        if lacks:
            raise ConfigurationError(f"{where}: {module} has no {name}")


def _named(source: ProblemSource) -> dict[str, str]:
    """Code that a ``[problem]`` table names, by its keys there."""
    if (source.factory is None) == (source.objective is None):
        raise ConfigurationError("problem: give exactly one of factory and objective (as module:function)")
    if source.arguments and source.factory is None:
        raise ConfigurationError(
            f"problem.arguments={source.arguments!r} go to a factory; name one, or drop them (and a sweep's seed_keys)"
        )
    named = {name: getattr(source, name) for name in ("factory", "objective", "earlier", "enqueued")}
    return {name: code for name, code in named.items() if code not in (None, ASK)}


def _found(module: str) -> ModuleSpec | None:
    """Where a module is, without importing it or a package around it; None where it is certainly nowhere.

    Raises:
        LookupError: If it can't be told.
    """
    first, *rest = module.split(".")
    found, name = importlib.util.find_spec(first), first
    for part in rest:
        if found is None:
            return None
        if (folders := found.submodule_search_locations) is None:
            raise LookupError(f"{name} is no package, and may make {part} when it is imported")
        name = f"{name}.{part}"
        tried = (finder.find_spec(name, folders) for finder in sys.meta_path)
        found = next((spec for spec in tried if spec is not None), None)
    return found


_DYNAMIC = {"*", "__getattr__", "globals", "locals", "vars", "setattr", "exec", "modules"}


def _lacks(found: ModuleSpec, name: str) -> bool:
    """Whether a module's source binds a name nowhere, and makes none while it runs."""
    if found.origin is None or not found.origin.endswith(".py"):
        return False
    words = set[str]()
    for node in ast.walk(ast.parse(Path(found.origin).read_bytes())):
        named = [getattr(node, part, None) for part in ("name", "id", "attr", "asname")]
        words |= {word.partition(".")[0] for word in named if isinstance(word, str)}
    return name not in words and not words & _DYNAMIC


def stated_problem(source: ProblemSource, default_name: str, objective: Objective | Literal["ask"]) -> Problem:
    """Make a problem of the public facts in its table and an objective.

    Raises:
        ConfigurationError: If the table leaves out the clients or the space.
    """
    if source.n_clients is None:
        raise ConfigurationError("problem.n_clients is missing; say how many clients are registered")
    facts = {name: getattr(source, name) for name in FACTS} | {"name": source.name or default_name}
    facts |= {"constraints": source.constraints, "training": source.training_event()}
    return Problem(space=source.space, objective=objective, source=source, **facts)


def load_function(reference: str, where: str) -> Callable[..., object]:
    """Import the function or class that a configuration names as ``module:function``.

    Raises:
        ConfigurationError: If there is no such module or function.
    """
    module, separator, name = reference.partition(":")
    if not separator:
        raise ConfigurationError(f"{where}={reference!r}: write module:function")
    _find_working_directory()
    try:
        found: object = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{where}={reference!r}: {error}; run where {module} can be imported") from None
    except AttributeError:
        raise ConfigurationError(f"{where}={reference!r}: {module} has no {name}") from None
    except Exception as error:
        raise ConfigurationError(
            f"{where}={reference!r}: importing {module} failed ({type(error).__name__}: {error}); fix it"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{where}={reference!r} is no function")
    return found


def _find_working_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path:  # the console script does not put the working directory on the path
        sys.path.insert(0, here)


def require_same(whose: str, problem: Problem, stated: ProblemSource, names: Iterable[str]) -> None:
    """Refuse a problem of which a fact is not as stated: it changed since a run was recorded, or is another site's.

    Raises:
        ConfigurationError: Naming the fact and both values.
    """
    made = problem.table()
    for name in names:
        found, wanted = (one.training_event() if name == "training" else getattr(one, name) for one in (made, stated))
        if found != wanted:
            raise ConfigurationError(
                f"{whose} has {name}={found!r}, the run has {name}={wanted!r}; state the same {name}"
            )


_BUILT_IN = {
    "dp-fts-de": "privbo.algorithms.thompson.dp_fts_de:DPFTSDE",
    "f-lcb": "privbo.algorithms.functional.federated:FederatedFLCB",
    "fed-pne": "privbo.algorithms.elimination.fed_pne:FedPNE",
    "multi-task": "privbo.algorithms.thompson.multi_task:MultiTask",
    "parallel": "privbo.algorithms.elimination.parallel:ParallelXArmed",
    "pe": "privbo.algorithms.elimination.alone:PersonalElimination",
    "pf-pne": "privbo.algorithms.elimination.pf_pne:PFPNE",
    "scout": "privbo.algorithms.thompson.scout:Scout",
    "shared-prior": "privbo.algorithms.thompson.shared_prior:SharedPrior",
}


def algorithms() -> dict[str, type[Algorithm]]:
    """Give every built-in algorithm by its name in a configuration."""
    return {name: _built_in(name) for name in _BUILT_IN}


def default_algorithm(unit: UnitName) -> Algorithm:
    """Make the algorithm of a run that names none.

    Raises:
        ConfigurationError: If one reward is the unit of privacy, for which there are several.
    """
    if unit == "reward":
        raise ConfigurationError("privacy.unit='reward' has no default algorithm; name one, such as FedPNE()")
    return _built_in("multi-task" if unit == "record" else "shared-prior")()


def _built_in(name: str) -> type[Algorithm]:
    module, _, kind = _BUILT_IN[name].partition(":")
    return cast("type[Algorithm]", getattr(importlib.import_module(module), kind))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignAlgorithm:
    """An algorithm of the user's as a table names it, not imported yet.

    Attributes:
        reference: ``package.module:Class``.
        table: Its settings.
        caveat: Unknown before it is loaded.
        is_certified: Unknown before it is loaded.
    """

    reference: str
    table: JsonObject
    caveat: str | None = None
    is_certified: bool = False

    def load(self) -> Algorithm:
        """Import the class and make the algorithm.

        Raises:
            ConfigurationError: If there is no such class or it refuses its settings.
        """
        kind = load_function(self.reference, "algorithm.type")
        if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
            raise ConfigurationError(f"algorithm.type={self.reference!r} is no dataclass; name one with settings")
        made = cast("Algorithm", read_settings(kind, self.table, "algorithm"))
        require_algorithm(made)
        return made

    def not_loaded(self) -> RunError:
        """Give the refusal to import the class unasked."""
        return RunError(f"Not importing {self.reference} without --trust (trust=True in Python).")

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self.not_loaded()

    server = cohort = local = _refuse


def read_algorithm(table: Mapping[str, object]) -> Algorithm:
    """Read an ``[algorithm]`` table; a class of the user's is named, not imported.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    name = table.get("type")
    settings = {key: value for key, value in table.items() if key != "type"}
    if isinstance(name, str) and ":" in name:
        return ForeignAlgorithm(reference=name, table=cast("JsonObject", settings))
    if name not in _BUILT_IN:
        raise ConfigurationError(
            f"algorithm.type={name!r} is unknown; allowed: {', '.join(sorted(_BUILT_IN))}, or package.module:Class"
        )
    return read_settings(_built_in(str(name)), settings, "algorithm")


def algorithm_table(algorithm: Algorithm, *, defaults: bool | Literal["first"] = True) -> JsonObject:
    """Give an algorithm as the ``[algorithm]`` table that names it.

    Args:
        algorithm: Its settings.
        defaults: As in ``dump_settings``. A class of the user's is written out in full either way: who
            reads the table does not import the class, so its defaults are not known to all parties.
    """
    if isinstance(algorithm, ForeignAlgorithm):
        return {"type": algorithm.reference, **algorithm.table}
    kind = type(algorithm)
    reference = f"{kind.__module__}:{kind.__qualname__}"
    name = next((name for name, built_in in _BUILT_IN.items() if built_in == reference), None)
    if not dataclasses.is_dataclass(algorithm):
        raise ConfigurationError(
            f"algorithm={algorithm!r} is no dataclass, so its settings can't be recorded; make it one"
        )
    return {**dump_settings(algorithm, defaults=defaults if name else True), "type": name or reference}


def require_algorithm(value: object) -> None:
    """Refuse what is no algorithm, such as the class instead of its settings.

    Raises:
        ConfigurationError: Saying what was given.
    """
    if isinstance(value, type):
        raise ConfigurationError(f"algorithm={value.__name__} is a class; give its settings: {value.__name__}()")
    if isinstance(value, str) and value in _BUILT_IN:
        kind = _BUILT_IN[value].rpartition(":")[2]
        raise ConfigurationError(f"algorithm={value!r} is a name of configuration files; give pb.{kind}()")
    missing = [name for name in ("server", "cohort", "local", "caveat", "is_certified") if not hasattr(value, name)]
    if missing:
        raise ConfigurationError(
            f"algorithm={value!r}: input should be an algorithm, with {', '.join(missing)}; use DPFTSDE() or another"
        )
