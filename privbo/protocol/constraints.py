"""Known constraints on parameters: short formulas that are public, the same for everybody, and cost nothing to check.

A formula compares sums and products of parameters: ``"width * depth <= 512"``, ``"low < high and kernel != 'poly'"``.
It is read, never executed as code: a stranger's configuration can be priced. Where a parameter that it names
does not matter, it holds.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Container, Mapping
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError

# Values of many points by name, each ``(n,)``; categories as objects.
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]
Formula: TypeAlias = Callable[[Columns], Any]


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
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"abs": np.abs, "min": np.minimum, "max": np.maximum}


def constraint(text: str, names: Container[str]) -> Callable[[Columns, Columns], npt.NDArray[np.bool_]]:
    """Read a constraint; gives a function of values and of where they matter that tells which points keep it.

    Args:
        text: The formula.
        names: Of the parameters it may speak of.

    Raises:
        ConfigurationError: If it is no formula, or speaks of something else.

    Example:
        >>> keeps = constraint("width * depth <= 512", {"width", "depth"})
        >>> matter = {"width": np.array([True, True]), "depth": np.array([True, True])}
        >>> keeps({"width": np.array([128, 256]), "depth": np.array([4, 4])}, matter).tolist()
        [True, False]
    """
    try:
        tree = ast.parse(text, mode="eval")
        formula = _formula(tree.body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(
            f"constraint {text!r}: {getattr(error, 'msg', error)}; compare sums and products of parameters, such as "
            "'width * depth <= 512'"
        ) from None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()

    def keeps(values: Columns, matter: Columns) -> npt.NDArray[np.bool_]:
        try:
            with np.errstate(all="ignore"):
                holds = np.asarray(formula(values)).astype(bool)
        except TypeError as error:
            raise ConfigurationError(f"constraint {text!r}: {error}; compare like with like") from None
        return reduce(lambda found, name: found | ~matter[name], used, holds)

    return keeps


def _formula(node: ast.expr, names: Container[str]) -> Formula:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return lambda _: value
        case ast.Name(id=name) if name in names:
            return lambda values: values[name]
        case ast.BoolOp(op=op, values=parts):
            return _folded(_OPERATORS[type(op)], parts, names)
        case ast.UnaryOp(op=op) | ast.BinOp(op=op) if type(op) in _OPERATORS:
            given = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
            return _applied(_OPERATORS[type(op)], given, names)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            sides = [left, *others]
            pairs = [_applied(_OPERATORS[type(op)], sides[i : i + 2], names) for i, op in enumerate(ops)]
            return lambda values: reduce(np.logical_and, [pair(values) for pair in pairs])
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as given, keywords=[]) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
            return _applied(function, given, names) if name == "abs" else _folded(function, given, names)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed")


def _applied(function: Callable[..., Any], given: list[ast.expr], names: Container[str]) -> Formula:
    parts = [_formula(part, names) for part in given]
    return lambda values: function(*(part(values) for part in parts))


def _folded(function: Callable[..., Any], given: list[ast.expr], names: Container[str]) -> Formula:
    parts = [_formula(part, names) for part in given]
    return lambda values: reduce(function, [part(values) for part in parts])
