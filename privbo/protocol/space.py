"""The search space and its one shared encoding to the unit cube.

The encoding is part of the protocol: clients agree on features only if they agree on
the unit coordinates of a parameter, so rounding happens inside the encoding and
nowhere else. Every parameter is one coordinate; see ``privbo.protocol.parameters``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.parameters import Categorical, FloatArray, Int, Parameter, Real, Value, canonical

__all__ = ["Categorical", "FloatArray", "Int", "Parameter", "Real", "Space", "Value"]

BoolArray: TypeAlias = npt.NDArray[np.bool_]
# Values of many points by name, each ``(n,)``; categories as objects.
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]
_TRIED, _LEAST_SHARE = 2048, 0.01


@dataclass(frozen=True)
class Space:
    """Named parameters and their joint encoding to ``[0, 1]^n_dims``.

    Example:
        >>> space = Space({"C": Real(1e-2, 1e2, log=True), "degree": Int(1, 4)})
        >>> space.decode(space.encode({"C": 1.0, "degree": 3}))
        {'C': 1.0, 'degree': 3}
        >>> space = Space({"kernel": Categorical(["linear", "rbf"]), "gamma": Real(0.1, 10.0, when={"kernel": "rbf"})})
        >>> [space.decode([unit, 0.0]) for unit in (0.0, 1.0)]
        [{'kernel': 'linear'}, {'kernel': 'rbf', 'gamma': 0.1}]

    Attributes:
        parameters: By name.
        constraints: Formulas that every point keeps, such as ``"width * depth <= 512"``; public.

    Raises:
        ConfigurationError: If there is no parameter, a condition names no category before it, or the constraints are
            no formulas or leave less than a hundredth of the space.
    """

    parameters: Mapping[str, Parameter]
    constraints: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise ConfigurationError(f"space={self.parameters!r} has no names; give a dict: {{'x': pb.Real(0, 1)}}")
        if not self.parameters:
            raise ConfigurationError("the space is empty; name at least one parameter")
        before: dict[str, Parameter] = {}
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, (Real, Int, Categorical)):
                raise ConfigurationError(f"space: parameter {name!r} is {parameter!r}; use Real, Int or Categorical")
            for parent, values in parameter.when.items():
                other = before.get(parent)
                if not isinstance(other, Categorical):
                    raise ConfigurationError(
                        f"space: {name!r} depends on {parent!r}, which must be a Categorical that stands before it"
                    )
                for value in _several(values):
                    other.encode(value)  # refuses a choice that is none
            before[name] = parameter
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        if self.constraints:
            tried = np.random.default_rng(0).random((_TRIED, self.n_dims))
            if (share := float(self.allows(tried).mean())) < _LEAST_SHARE:
                raise ConfigurationError(
                    f"constraints {list(self.constraints)}: they leave {share:.1%} of the space, and at least "
                    f"{_LEAST_SHARE:.0%} is needed; narrow the parameters' bounds"
                )

    @property
    def n_dims(self) -> int:
        """Number of parameters (one unit coordinate each)."""
        return len(self.parameters)

    @cached_property
    def has_conditions(self) -> bool:
        """Whether some parameter matters only for certain values of others."""
        return any(parameter.when for parameter in self.parameters.values())

    @property
    def is_whole(self) -> bool:
        """Whether every point of the cube is one of the space, each by itself: no conditions, no constraints."""
        return not (self.has_conditions or self.constraints)

    def allows(self, units: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which points ``(..., n_dims)`` keep the constraints, ``(...)``."""
        points = np.asarray(units, dtype=np.float64)
        if not self.constraints:
            return np.ones(points.shape[:-1], dtype=bool)
        flat = points.reshape(-1, self.n_dims)
        matter = active(self.parameters, flat)
        values = {name: p.values(flat[:, i]) for i, (name, p) in enumerate(self.parameters.items())}
        matters = {name: matter[:, i] for i, name in enumerate(self.parameters)}
        kept = np.ones(len(flat), dtype=bool)
        for text in self.constraints:
            kept &= keeps(text, values, matters)
        return kept.reshape(points.shape[:-1])

    @property
    def n_embedded(self) -> int:
        """Number of coordinates a kernel sees; see ``embed``."""
        return sum(len(p.choices) if isinstance(p, Categorical) else 1 for p in self.parameters.values())

    def encode(self, params: Mapping[str, Value]) -> FloatArray:
        """Unit coordinates of named values, ``(n_dims,)``.

        Raises:
            ConfigurationError: If a name is missing or unknown, does not matter given the others, a value is out of
                range, or a constraint is not kept.
        """
        names: list[str] = []  # of what matters beside the others
        for name, parameter in self.parameters.items():
            if all(
                parent in names and any(value == given and type(value) is type(given) for value in _several(values))
                for parent, values in parameter.when.items()
                for given in (params.get(parent),)
            ):
                names.append(name)
        if params.keys() != set(names):
            raise ConfigurationError(f"parameters {sorted(params)} do not match {sorted(names)}")
        coordinates = [p.encode(params[name]) if name in params else _middle(p) for name, p in self.parameters.items()]
        unit = np.array(coordinates, dtype=np.float64)
        if not self.allows(unit):
            raise ConfigurationError(f"{dict(params)} does not keep the constraints {list(self.constraints)}")
        return unit

    def decode(self, unit: npt.ArrayLike) -> dict[str, Value]:
        """Values by name at one point of the unit cube, shape ``(n_dims,)``, of the parameters that matter there."""
        coordinates = np.asarray(unit, dtype=np.float64).reshape(self.n_dims)
        pairs = zip(self.parameters.items(), coordinates.tolist(), strict=True)
        if not self.has_conditions:
            return {name: parameter.decode(u) for (name, parameter), u in pairs}
        matters = active(self.parameters, coordinates)
        return {name: p.decode(u) for ((name, p), u), here in zip(pairs, matters, strict=True) if here}

    def snap(self, units: npt.ArrayLike) -> FloatArray:
        """Round points ``(..., n_dims)`` to the canonical coordinates of their values."""
        raw = np.asarray(units, dtype=np.float64)
        columns = [p.snap(raw[..., i]) for i, p in enumerate(self.parameters.values())]
        snapped = np.stack(columns, axis=-1)
        if not self.has_conditions:
            return snapped
        middle = np.array([_middle(parameter) for parameter in self.parameters.values()])
        return np.where(active(self.parameters, snapped), snapped, middle)

    def embed(self, units: npt.ArrayLike) -> FloatArray:
        """Coordinates a kernel sees, ``(..., n_embedded)``, of points ``(..., n_dims)``.

        Numbers keep their coordinate; a category becomes its indicator over sqrt(2), so
        that two different choices stand one unit apart, whatever their order.
        """
        snapped = self.snap(units)
        columns: list[FloatArray] = []
        for i, parameter in enumerate(self.parameters.values()):
            if isinstance(parameter, Categorical):
                choice = parameter.index(snapped[..., i])
                columns.append(np.eye(len(parameter.choices))[choice] / math.sqrt(2.0))
            else:
                columns.append(snapped[..., i : i + 1])
        return np.concatenate(columns, axis=-1)

    def grid(self, limit: int = 4096) -> FloatArray | None:
        """All points of a finite space, ``(k, n_dims)``; None if infinite or larger than ``limit``."""
        counts = [parameter.n_values for parameter in self.parameters.values()]
        if math.prod(counts) > limit:
            return None
        axes = [canonical(parameter) for parameter in self.parameters.values()]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.n_dims)
        if self.is_whole:
            return points
        snapped = self.snap(points)
        _, first = np.unique(snapped, axis=0, return_index=True)
        different = snapped[np.sort(first)]
        return np.asarray(different[self.allows(different)])


def _middle(parameter: Parameter) -> float:
    """The coordinate of a parameter that does not matter."""
    return float(parameter.snap(np.asarray(0.5)))


def active(parameters: Mapping[str, Parameter], snapped: FloatArray) -> BoolArray:
    """Tell which coordinates matter at canonical points ``(..., n_dims)``, of the same shape."""
    names = list(parameters)
    found = np.ones(snapped.shape, dtype=bool)
    for i, parameter in enumerate(parameters.values()):
        for parent, values in parameter.when.items():
            j, other = names.index(parent), parameters[parent]
            if isinstance(other, Categorical):
                allowed = [int(other.index(np.asarray(other.encode(value)))) for value in _several(values)]
                found[..., i] &= found[..., j] & np.isin(other.index(snapped[..., j]), allowed)
    return found


def _several(values: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return values if isinstance(values, tuple) else (values,)


def _divided(one: Any, other: Any) -> Any:  # noqa: ANN401  # arrays or numbers
    """A quotient; by zero none, and nothing compares with that."""
    return np.divide(one, np.where(np.equal(other, 0), np.nan, other))


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.USub: operator.neg,
    ast.Not: np.logical_not,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum}


def keeps(text: str, values: Columns, matter: Columns) -> npt.NDArray[np.bool_]:
    """Tell which points keep a constraint; one that speaks of what does not matter at a point is kept there.

    Args:
        text: The formula.
        values: By parameter, ``(n,)``.
        matter: Where it matters, ``(n,)``.

    Raises:
        ConfigurationError: If it is no formula, or speaks of something else.

    Example:
        >>> matter = {"width": np.array([True, True]), "depth": np.array([True, True])}
        >>> keeps("width * depth <= 512", {"width": np.array([128, 256]), "depth": np.array([4, 4])}, matter).tolist()
        [True, False]
    """
    try:
        tree = ast.parse(text, mode="eval")
        with np.errstate(all="ignore"):
            holds = np.asarray(_value(tree.body, values)).astype(bool)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(
            f"constraint {text!r}: {getattr(error, 'msg', error)}; compare sums and products of parameters, such as "
            "'width * depth <= 512'"
        ) from None
    except TypeError as error:
        raise ConfigurationError(f"constraint {text!r}: {error}; compare like with like") from None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & values.keys()
    return reduce(lambda found, name: found | ~matter[name], used, holds)


def _value(node: ast.expr, values: Columns) -> Any:  # noqa: ANN401  # an array or a number
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=op, operand=part) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(part, values))
        case ast.Call(func=ast.Name(id="abs"), args=[part], keywords=[]):
            return np.abs(_value(part, values))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            sides = pairwise(_value(side, values) for side in (left, *others))
            return reduce(np.logical_and, [_OPERATORS[type(op)](*two) for op, two in zip(ops, sides, strict=True)])
        case ast.BoolOp(op=op, values=parts):
            function = _OPERATORS[type(op)]
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            function, parts = _OPERATORS[type(op)], [left, right]
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as parts, keywords=[]) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed")
    return reduce(function, [_value(part, values) for part in parts])
