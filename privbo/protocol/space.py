"""The search space and its one shared encoding to the unit cube.

The encoding is part of the protocol: clients agree on features only if they agree on
the unit coordinates of a parameter, so rounding happens inside the encoding and
nowhere else. Every parameter is one coordinate; integers and categories are bins of
equal width whose canonical coordinate is the bin's centre (which also makes a uniform
draw in the cube a uniform draw of values).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Sequence, settings

FloatArray: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = float | int | str | bool


def _check_range(low: float, high: float, *, log: bool, what: str) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigurationError(f"{what}: low={low!r}, high={high!r} must be finite")
    if not low < high:
        raise ConfigurationError(f"{what}: low={low!r} must be below high={high!r}")
    if log and low <= 0:
        raise ConfigurationError(f"{what}: log=True needs low > 0, got low={low!r}; raise low or drop log")


@settings(table="problem.space", kw_only=False)
class Real:
    """A real parameter in ``[low, high]``, optionally on a logarithmic scale.

    Raises:
        ConfigurationError: If the bounds are not finite, not increasing, or not
            positive with ``log=True``.

    Example:
        >>> Real(0.01, 100.0, log=True).decode(0.5)
        1.0
    """

    low: float
    high: float
    log: bool = False
    type: Literal["real"] = field(default="real", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=self.log, what="Real")

    @property
    def n_values(self) -> float:
        """Number of distinct values (infinite)."""
        return math.inf

    def encode(self, value: Value) -> float:
        """Unit coordinate of ``value``."""
        number = _number(value, self)
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def decode(self, unit: float) -> float:
        """Value at a unit coordinate."""
        if self.log:
            value = self.low * (self.high / self.low) ** unit
        else:
            value = self.low + unit * (self.high - self.low)
        return float(min(max(value, self.low), self.high))

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: inside the cube."""
        return np.clip(units, 0.0, 1.0)


@settings(table="problem.space", kw_only=False)
class Int:
    """An integer parameter in ``low..high`` inclusive, optionally on a logarithmic scale.

    On the linear scale all integers have bins of equal width; on the log scale the bin
    of k spans ``log(k - 1/2) .. log(k + 1/2)``.

    Raises:
        ConfigurationError: If the bounds are not integers, not increasing, or not
            positive with ``log=True``.

    Example:
        >>> [Int(1, 3).decode(unit) for unit in (0.0, 0.5, 1.0)]
        [1, 2, 3]
    """

    low: int
    high: int
    log: bool = False
    type: Literal["int"] = field(default="int", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=self.log, what="Int")

    @property
    def n_values(self) -> float:
        """Number of distinct values."""
        return self.high - self.low + 1

    def _edge(self, value: npt.ArrayLike) -> FloatArray:
        edge = np.asarray(value, dtype=np.float64)
        return np.log(edge) if self.log else edge

    def encode(self, value: Value) -> float:
        """Unit coordinate of ``value``: the centre of its bin."""
        number = _number(value, self)
        if number != round(number):
            raise ConfigurationError(f"Int: {value!r} is not an integer")
        return float(self._centre(np.asarray(number)))

    def _centre(self, value: FloatArray) -> FloatArray:
        first, last = self._edge(self.low - 0.5), self._edge(self.high + 0.5)
        middle = 0.5 * (self._edge(value - 0.5) + self._edge(value + 0.5))
        return np.asarray((middle - first) / (last - first))

    def _value(self, units: FloatArray) -> FloatArray:
        first, last = self._edge(self.low - 0.5), self._edge(self.high + 0.5)
        edge = first + np.clip(units, 0.0, 1.0) * (last - first)
        raw = np.exp(edge) if self.log else edge
        return np.clip(np.floor(raw + 0.5), self.low, self.high)

    def decode(self, unit: float) -> int:
        """Value whose bin holds the unit coordinate."""
        return int(self._value(np.asarray(unit, dtype=np.float64)))

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: the centre of the bin."""
        return self._centre(self._value(units))


@settings(table="problem.space", kw_only=False)
class Categorical:
    """One of several choices without order.

    Raises:
        ConfigurationError: If there are fewer than two choices or two are equal.

    Example:
        >>> Categorical(["rbf", "linear"]).decode(0.9)
        'linear'
    """

    choices: Sequence[Value]
    type: Literal["categorical"] = field(default="categorical", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ConfigurationError(f"Categorical: {self.choices!r} needs at least two choices")
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
        n = len(self.choices)
        return np.minimum(np.floor(np.clip(units, 0.0, 1.0) * n), n - 1).astype(np.int64)

    def decode(self, unit: float) -> Value:
        """Choice whose bin holds the unit coordinate."""
        return self.choices[int(self.index(np.asarray(unit, dtype=np.float64)))]

    def snap(self, units: FloatArray) -> FloatArray:
        """Canonical coordinates: the centre of the bin."""
        return (self.index(units) + 0.5) / len(self.choices)


Parameter: TypeAlias = Annotated[Real | Int | Categorical, Field(discriminator="type")]


def _number(value: Value, parameter: Real | Int) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ConfigurationError(f"{parameter}: {value!r} is not a finite number")
    if not parameter.low <= value <= parameter.high:
        raise ConfigurationError(f"{parameter}: {value!r} lies outside [{parameter.low}, {parameter.high}]")
    return float(value)


@dataclass(frozen=True)
class Space:
    """Named parameters and their joint encoding to ``[0, 1]^n_dims``.

    Example:
        >>> space = Space({"C": Real(1e-2, 1e2, log=True), "degree": Int(1, 4)})
        >>> space.decode(space.encode({"C": 1.0, "degree": 3}))
        {'C': 1.0, 'degree': 3}

    Raises:
        ConfigurationError: If there is no parameter.
    """

    parameters: Mapping[str, Parameter]

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ConfigurationError("the space is empty; name at least one parameter")
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, (Real, Int, Categorical)):
                raise ConfigurationError(f"space: parameter {name!r} is {parameter!r}; use Real, Int or Categorical")
        object.__setattr__(self, "parameters", dict(self.parameters))

    @property
    def n_dims(self) -> int:
        """Number of parameters (one unit coordinate each)."""
        return len(self.parameters)

    @property
    def n_embedded(self) -> int:
        """Number of coordinates a kernel sees; see ``embed``."""
        return sum(_width(parameter) for parameter in self.parameters.values())

    def encode(self, params: Mapping[str, Value]) -> FloatArray:
        """Unit coordinates of named values, ``(n_dims,)``.

        Raises:
            ConfigurationError: If a name is missing or unknown or a value out of range.
        """
        if params.keys() != self.parameters.keys():
            raise ConfigurationError(f"parameters {sorted(params)} do not match {sorted(self.parameters)}")
        return np.array([p.encode(params[name]) for name, p in self.parameters.items()], dtype=np.float64)

    def decode(self, unit: npt.ArrayLike) -> dict[str, Value]:
        """Named values at one point of the unit cube, shape ``(n_dims,)``."""
        coordinates = np.asarray(unit, dtype=np.float64).reshape(self.n_dims)
        pairs = zip(self.parameters.items(), coordinates, strict=True)
        return {name: parameter.decode(float(u)) for (name, parameter), u in pairs}

    def snap(self, units: npt.ArrayLike) -> FloatArray:
        """Round points ``(..., n_dims)`` to the canonical coordinates of their values."""
        raw = np.asarray(units, dtype=np.float64)
        columns = [p.snap(raw[..., i]) for i, p in enumerate(self.parameters.values())]
        return np.stack(columns, axis=-1)

    def embed(self, units: npt.ArrayLike) -> FloatArray:
        """Coordinates a kernel sees, ``(..., n_embedded)``, of points ``(..., n_dims)``.

        Numbers keep their coordinate; a category becomes its indicator over sqrt(2), so
        that two different choices stand one unit apart, whatever their order.
        """
        snapped = self.snap(units)
        return np.concatenate(list(self._embedded(snapped)), axis=-1)

    def _embedded(self, snapped: FloatArray) -> Iterator[FloatArray]:
        for i, parameter in enumerate(self.parameters.values()):
            if isinstance(parameter, Categorical):
                choice = parameter.index(snapped[..., i])
                yield np.eye(len(parameter.choices))[choice] / math.sqrt(2.0)
            else:
                yield snapped[..., i : i + 1]

    def grid(self, limit: int = 4096) -> FloatArray | None:
        """All points of a finite space, ``(k, n_dims)``; None if infinite or larger than ``limit``."""
        counts = [parameter.n_values for parameter in self.parameters.values()]
        if math.prod(counts) > limit:
            return None
        axes = [_canonical(parameter) for parameter in self.parameters.values()]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.n_dims)


def _width(parameter: Parameter) -> int:
    return len(parameter.choices) if isinstance(parameter, Categorical) else 1


def _canonical(parameter: Parameter) -> FloatArray:
    if isinstance(parameter, Int):
        return parameter._centre(np.arange(parameter.low, parameter.high + 1, dtype=np.float64))
    if isinstance(parameter, Categorical):
        return np.array([parameter.encode(choice) for choice in parameter.choices])
    raise ConfigurationError(f"{parameter} has no finite list of values")
