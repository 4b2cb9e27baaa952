"""Parameters of a search space, each with its encoding to one unit coordinate.

Rounding happens inside the encoding and nowhere else. Integers, steps and categories are bins of equal width whose
canonical coordinate is the bin's centre, so that a uniform draw in the cube is one of values.
"""

from __future__ import annotations

import math
from dataclasses import field
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias

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


def _check(parameter: Real | Int, what: str) -> None:
    low, high, step = parameter.low, parameter.high, parameter.step
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
            f"write high={_at_step(low, math.floor(steps), step)!r}"
        )


def _at_step(low: float, place: int, step: float) -> float:
    """The value of a step, without the error that 0.1 + 0.2 shows."""
    return float(Decimal(repr(low)) + place * Decimal(repr(step)))


def _number(value: Value, parameter: Real | Int) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ConfigurationError(f"{parameter}: {value!r} is not a finite number")
    if not parameter.low <= value <= parameter.high:
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
        """Values at many coordinates, for comparing; up to rounding those of ``decode``."""
        if self.step is not None:
            return np.asarray(self.low + self.step * _bin(units, self.n_values))
        raw = self.low * (self.high / self.low) ** units if self.log else self.low + units * (self.high - self.low)
        return np.asarray(np.clip(raw, self.low, self.high))

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
        ConfigurationError: As of ``Real``, or if the bounds are no integers.

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
        ConfigurationError: If there are fewer than two choices or two are equal.

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
