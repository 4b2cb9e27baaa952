"""The search space and its one shared encoding to the unit cube.

The encoding is part of the protocol: clients agree on features only if they agree on
the unit coordinates of a parameter, so rounding happens inside the encoding and
nowhere else. Every parameter is one coordinate. Integers, steps and categories are bins of equal width whose canonical
coordinate is the bin's centre, so that a uniform draw in the cube is one of values.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence as Texts
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, reduce
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Sequence, settings

FloatArray: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = float | int | str | bool
# Values of other parameters, one or several each, beside which alone a parameter matters.
When: TypeAlias = dict[str, Value | Sequence[Value]]
_OFF = 1e-9  # of a step, by which rounding may move a value
_LARGEST = 10**12  # integers that one coordinate still tells apart, on every scale


def _check(parameter: Real | Int, what: str) -> None:
    low, high, step = parameter.low, parameter.high, parameter.step
    if isinstance(parameter, Int) and max(-low, high) > _LARGEST:
        raise ConfigurationError(f"{what}: low={low!r}, high={high!r} must lie within 1e12 of 0; use a Real")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigurationError(f"{what}: low={low!r}, high={high!r} must be finite")
    if not low < high:
        raise ConfigurationError(f"{what}: low={low!r} must be below high={high!r}")
    if parameter.log and low <= 0:
        raise ConfigurationError(f"{what}: log=True needs low > 0, got low={low!r}; raise low or drop log")
    if step is None or (step == 1 and isinstance(parameter, Int)):
        return
    if not (math.isfinite(step) and step > 0):
        raise ConfigurationError(f"{what}: step={step!r} must be a finite number above 0")
    if parameter.log:
        raise ConfigurationError(f"{what}: log=True and step={step!r} go not together; drop one")
    steps = (high - low) / step
    if abs(steps - round(steps)) > _OFF * max(1.0, steps):
        raise ConfigurationError(
            f"{what}: high={high!r} is no whole number of steps of {step!r} above low={low!r}; "
            + (f"write high={type(high)(_at_step(low, int(steps), step))!r}" if steps > 1 else "take a smaller step")
        )


def _at_step(low: float, place: int, step: float) -> float:
    """The value of a step, without the error that 0.1 + 0.2 shows."""
    return float(Decimal(repr(low)) + place * Decimal(repr(step)))


def _number(value: Value, parameter: Real | Int) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ConfigurationError(f"{parameter}: {value!r} is not a finite number")
    slack = 0.0 if parameter.step is None else min(0.4, _OFF * parameter.n_values) * parameter.step
    if not parameter.low - slack <= value <= parameter.high + slack:
        raise ConfigurationError(f"{parameter}: {value!r} lies outside [{parameter.low}, {parameter.high}]")
    return float(value)


def _step_unit(value: Value, parameter: Real | Int, step: float) -> float:
    """The centre of the bin of a value in steps."""
    number = _number(value, parameter)
    steps = (number - parameter.low) / step
    if abs(steps - round(steps)) > _OFF * max(1.0, steps):
        raise ConfigurationError(
            f"{type(parameter).__name__}: {number!r} is no whole number of steps of {step!r} above {parameter.low!r}"
        )
    return (round(steps) + 0.5) / parameter.n_values


def _bin(units: FloatArray, n_values: float) -> FloatArray:
    """Which of n bins of equal width holds each coordinate."""
    return np.minimum(np.floor(np.clip(units, 0.0, 1.0) * n_values), n_values - 1)


def _centre(units: FloatArray, n_values: float) -> FloatArray:
    """The centre of the bin that holds each coordinate."""
    return (_bin(units, n_values) + 0.5) / n_values


@settings(table="problem.space", kw_only=False)
class Real:
    """A real parameter in ``[low, high]``, optionally on a logarithmic scale or in steps.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Logarithmic scale.
        step: Only ``low``, ``low + step`` and so on up to ``high``; None for every value.
        when: Values of earlier categories for which alone it matters: ``{"kernel": "rbf"}``, or several values.

    Raises:
        ConfigurationError: If the bounds are not finite, not increasing, not positive with ``log=True``, or not a
            whole number of steps apart.

    Example:
        >>> Real(0.01, 100.0, log=True).decode(0.5)
        1.0
        >>> [Real(0.0, 0.3, step=0.1).decode(unit) for unit in (0.0, 0.3, 0.6, 1.0)]
        [0.0, 0.1, 0.2, 0.3]
    """

    low: float
    high: float
    log: bool = False
    step: float | None = field(default=None, kw_only=True)
    when: When = field(default_factory=dict, repr=False, kw_only=True)
    type: Literal["real"] = field(default="real", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Real")

    @property
    def n_values(self) -> float:
        """Number of distinct values; infinite without steps."""
        return math.inf if self.step is None else round((self.high - self.low) / self.step) + 1

    def encode(self, value: Value) -> float:
        """Unit coordinate of ``value``: in steps, the centre of its bin."""
        if self.step is not None:
            return _step_unit(value, self, self.step)
        number = _number(value, self)
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def decode(self, unit: float) -> float:
        """Value at a unit coordinate."""
        if self.step is not None:
            return _at_step(self.low, int(_bin(np.asarray(unit), self.n_values)), self.step)
        value = self.low * (self.high / self.low) ** unit if self.log else self.low + unit * (self.high - self.low)
        return float(min(max(value, self.low), self.high))

    def values(self, units: FloatArray) -> FloatArray:
        """Values at many coordinates, to the bit those of ``decode``."""
        if self.step is not None:
            bins, place = np.unique(_bin(units, self.n_values), return_inverse=True)
            return np.array([_at_step(self.low, int(one), self.step) for one in bins])[place].reshape(units.shape)
        if self.log:  # by Python's power: NumPy's differs from it, and by its own vector units
            raw = self.low * np.asarray((self.high / self.low) ** units.astype(object), dtype=np.float64)
        else:
            raw = self.low + units * (self.high - self.low)
        return np.asarray(np.minimum(np.maximum(raw, self.low), self.high))

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: inside the cube; in steps, the centre of the bin."""
        if self.step is not None:
            return _centre(units, self.n_values)
        return np.clip(units, 0.0, 1.0)


@settings(table="problem.space", kw_only=False)
class Int:
    """An integer parameter in ``low..high`` inclusive, optionally on a logarithmic scale or in steps.

    On the log scale the bin of k spans ``log(k - 1/2) .. log(k + 1/2)``.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Logarithmic scale.
        step: Only ``low``, ``low + step`` and so on up to ``high``.
        when: As of ``Real``.

    Raises:
        ConfigurationError: As of ``Real``, or if the bounds are no integers, or beyond 1e12.

    Example:
        >>> [Int(1, 3).decode(unit) for unit in (0.0, 0.5, 1.0)]
        [1, 2, 3]
        >>> [Int(16, 64, step=16).decode(unit) for unit in (0.0, 0.3, 0.6, 1.0)]
        [16, 32, 48, 64]
    """

    low: int
    high: int
    log: bool = False
    step: Annotated[int, Field(ge=1)] = field(default=1, kw_only=True)
    when: When = field(default_factory=dict, repr=False, kw_only=True)
    type: Literal["int"] = field(default="int", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Int")

    @property
    def n_values(self) -> float:
        """Number of distinct values."""
        return (self.high - self.low) // self.step + 1

    def encode(self, value: Value) -> float:
        """Unit coordinate of ``value``: the centre of its bin."""
        number = _number(value, self)
        if number != round(number):
            raise ConfigurationError(f"Int: {value!r} is not an integer")
        return float(self.centres(np.asarray(number))) if self.log else _step_unit(value, self, self.step)

    @property
    def _ends(self) -> tuple[float, float]:
        """Logarithms of the outer ends of the first and the last bin."""
        return np.log(self.low - 0.5), np.log(self.high + 0.5)

    def centres(self, value: FloatArray) -> FloatArray:
        """Give the centres of the bins of whole numbers on the log scale."""
        first, last = self._ends
        middle = 0.5 * (np.log(value - 0.5) + np.log(value + 0.5))
        return np.asarray((middle - first) / (last - first))

    def values(self, units: FloatArray) -> FloatArray:
        """Values at many coordinates."""
        if not self.log:
            return self.low + self.step * _bin(units, self.n_values)
        first, last = self._ends
        raw = np.exp(first + np.clip(units, 0.0, 1.0) * (last - first))
        return np.clip(np.floor(raw + 0.5), self.low, self.high)

    def decode(self, unit: float) -> int:
        """Value whose bin holds the unit coordinate."""
        return int(self.values(np.asarray(unit, dtype=np.float64)))

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: the centre of the bin."""
        return self.centres(self.values(units)) if self.log else _centre(units, self.n_values)


@settings(table="problem.space", kw_only=False)
class Categorical:
    """One of several choices without order.

    Attributes:
        choices: At least two, all different.
        when: Choices of other parameters for which this one matters, as of ``Real``.

    Raises:
        ConfigurationError: If there are fewer than two choices, two are equal, or one is NaN.

    Example:
        >>> Categorical(["rbf", "linear"]).decode(0.9)
        'linear'
    """

    choices: Sequence[Value]
    when: When = field(default_factory=dict, repr=False, kw_only=True)
    type: Literal["categorical"] = field(default="categorical", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ConfigurationError(f"Categorical: {self.choices!r} needs at least two choices")
        if any(isinstance(choice, float) and math.isnan(choice) for choice in self.choices):
            raise ConfigurationError(f"Categorical: {self.choices!r} has NaN, which equals no choice; leave it out")
        if len({(type(choice), choice) for choice in self.choices}) != len(self.choices):
            raise ConfigurationError(f"Categorical: {self.choices!r} names a choice twice")

    @property
    def n_values(self) -> float:
        """Number of choices."""
        return len(self.choices)

    def encode(self, value: Value) -> float:
        """Unit coordinate of ``value``: the centre of its bin."""
        matches = [i for i, c in enumerate(self.choices) if type(c) is type(value) and c == value]
        if not matches:
            raise ConfigurationError(f"Categorical: {value!r} is none of {self.choices!r}")
        return (matches[0] + 0.5) / len(self.choices)

    def index(self, units: FloatArray) -> npt.NDArray[np.int64]:
        """Index of the choice whose bin holds each coordinate."""
        return _bin(units, self.n_values).astype(np.int64)

    def values(self, units: FloatArray) -> npt.NDArray[np.object_]:
        """Choices at many coordinates."""
        return np.array(self.choices, dtype=object)[self.index(units)]

    def decode(self, unit: float) -> Value:
        """Choice whose bin holds the unit coordinate."""
        return self.choices[int(_bin(np.asarray(unit), self.n_values))]

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: the centre of the bin."""
        return _centre(units, self.n_values)


Parameter: TypeAlias = Annotated[Real | Int | Categorical, Field(discriminator="type")]


def canonical(parameter: Parameter) -> FloatArray:
    """Give the unit coordinates of every value of a parameter that has finitely many."""
    if isinstance(parameter, Int) and parameter.log:
        return parameter.centres(np.arange(parameter.low, parameter.high + 1, dtype=np.float64))
    return np.asarray((np.arange(parameter.n_values) + 0.5) / parameter.n_values)


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
    constraints: Texts[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise ConfigurationError(f"space={self.parameters!r} has no names; give a dict: {{'x': pb.Real(0, 1)}}")
        if not self.parameters or "" in self.parameters:
            raise ConfigurationError("the space is empty, or a parameter's name is; name at least one parameter")
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
        # A NumPy scalar is taken as the Python value that it is, a row of a table as a dict.
        params = {name: v.item() if isinstance(v, np.generic) else v for name, v in dict(params).items()}
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
        if self.allows(unit):
            return unit
        # Rounding may have moved it over a bound that it touches: the nearest floats around it are as good.
        near = self.snap(unit + 1e-15 * np.random.default_rng(0).uniform(-1.0, 1.0, (_TRIED, self.n_dims)))
        if not len(near := near[self.allows(near)]):
            raise ConfigurationError(f"{params} does not keep the constraints {list(self.constraints)}")
        return np.asarray(near[0])

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
        snapped = np.empty_like(raw)
        for i, parameter in enumerate(self.parameters.values()):
            snapped[..., i] = parameter.snap(raw[..., i])
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
        if self.n_embedded == self.n_dims:  # numbers only
            return snapped
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
        found = different(self.snap(points))
        return np.asarray(found[self.allows(found)])


def different(points: FloatArray) -> FloatArray:
    """Give the points without repetitions, in their order."""
    _, first = np.unique(points, axis=0, return_index=True)
    return np.asarray(points[np.sort(first)])


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


def _truth(value: Any) -> BoolArray:  # noqa: ANN401  # an array or a number
    found = np.asarray(value)
    if found.size and np.asarray(found.tolist() if found.dtype == object else found).dtype != bool:
        raise ValueError("it has no comparison")
    return found.astype(bool)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.USub: operator.neg,
    ast.Not: lambda one: ~_truth(one),
    ast.And: lambda one, other: _truth(one) & _truth(other),
    ast.Or: lambda one, other: _truth(one) | _truth(other),
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
            holds = _truth(_value(tree.body, values))
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
        case ast.Name(id=name):
            if name not in values:
                raise ValueError(f"{name!r} is none of the parameters {list(values)}")
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
