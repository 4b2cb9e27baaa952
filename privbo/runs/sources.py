"""Code that a configuration names: a problem's factory or objective, a class of the user's."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from privbo.protocol.calls import require_call
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.evaluator import Earlier, Enqueued
from privbo.protocol.problem import ASK, Objective, Problem, ProblemSource


def load_problem(source: ProblemSource, default_name: str) -> Problem:
    """Make the problem that a ``[problem]`` table names; imports the user's module.

    Raises:
        ConfigurationError: If the table names no code, or code that makes another problem.
    """
    if (source.factory is None) == (source.objective is None):
        raise ConfigurationError("problem: give exactly one of factory and objective (as module:function)")
    if source.factory is not None:
        factory = load_function(source.factory, "problem.factory")
        require_call(factory, "problem.factory", ", ".join(source.arguments), **source.arguments)
        problem = factory(**source.arguments)
        if not isinstance(problem, Problem):
            raise ConfigurationError(
                f"problem.factory={source.factory!r} returned {type(problem).__name__}, not a Problem"
            )
        _require_same(source, problem)
        problem = dataclasses.replace(problem, source=source, fingerprint=source.fingerprint or problem.fingerprint)
    elif source.objective == ASK:
        problem = stated_problem(source, default_name, ASK)
    else:
        objective = cast("Objective", load_function(str(source.objective), "problem.objective"))
        problem = stated_problem(source, default_name, objective)
    return _with_points(problem, source)


def _with_points(problem: Problem, source: ProblemSource) -> Problem:
    """A problem with what its clients bring along, where the table names functions that say so."""
    if source.earlier is not None:
        problem = dataclasses.replace(
            problem, earlier=cast("Earlier", load_function(source.earlier, "problem.earlier"))
        )
    if source.enqueued is not None:
        enqueued = cast("Enqueued", load_function(source.enqueued, "problem.enqueued"))
        problem = dataclasses.replace(problem, enqueued=enqueued)
    return problem


def stated_problem(source: ProblemSource, default_name: str, objective: Objective | Literal["ask"]) -> Problem:
    """Make a problem of the public facts in its table and an objective.

    Raises:
        ConfigurationError: If the table leaves out the clients or the space.
    """
    if source.n_clients is None:
        raise ConfigurationError("problem.n_clients is missing; say how many clients are registered")
    return Problem(
        space=source.space,
        constraints=source.constraints,
        objective=objective,
        n_clients=source.n_clients,
        name=source.name or default_name,
        provenance=source.provenance,
        fingerprint=source.fingerprint,
        source=source,
    )


def load_function(reference: str, where: str) -> Callable[..., object]:
    """Import the function or class that a configuration names as ``module:function``.

    Raises:
        ConfigurationError: If there is no such module or function.
    """
    module, separator, name = reference.partition(":")
    if not separator:
        raise ConfigurationError(f"{where}={reference!r}: write module:function")
    here = str(Path.cwd())
    if here not in sys.path:  # the console script does not put the working directory on the path
        sys.path.insert(0, here)
    try:
        found: object = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{where}={reference!r}: {error}; run where {module} can be imported") from None
    except AttributeError:
        raise ConfigurationError(f"{where}={reference!r}: {module} has no {name}") from None
    except Exception as error:
        raise ConfigurationError(
            f"{where}={reference!r}: importing {module} failed ({type(error).__name__}: {error}); mend it"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{where}={reference!r} is no function")
    return found


def _require_same(source: ProblemSource, problem: Problem) -> None:
    """A factory may have changed since a run was recorded, or be another site's."""
    ours, theirs = dict(problem.search_space.parameters), source.space
    kept = tuple(problem.search_space.constraints)
    if source.constraints and source.constraints != kept:
        raise ConfigurationError(
            f"problem.factory={source.factory!r} makes the constraints {list(kept)}, the run's are "
            f"{list(source.constraints)}; state the same"
        )
    if source.n_clients not in (None, problem.n_clients) or (theirs and theirs != ours):
        raise ConfigurationError(
            f"problem.factory={source.factory!r} makes space {ours!r} and {problem.n_clients} clients, the run's are "
            f"{theirs!r} and {source.n_clients}; state the same space and N"
        )
