"""Conditional parameters: one that matters only where another one has certain values.

The coordinate of a parameter that does not matter is the canonical one in the middle, so that points that differ in
nothing that matters are one point: models, features and grids see one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.parameters import Categorical, Parameter, Value

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def require_conditions(parameters: Mapping[str, Parameter]) -> None:
    """Refuse conditions that speak of nothing.

    Raises:
        ConfigurationError: If one names a parameter that does not stand before it, is no ``Categorical``, or has no
            such choice.
    """
    before: list[str] = []
    for name, parameter in parameters.items():
        for parent, values in parameter.when.items():
            other = parameters.get(parent)
            if parent not in before or not isinstance(other, Categorical):
                raise ConfigurationError(
                    f"space: {name!r} depends on {parent!r}, which must be a Categorical that stands before it"
                )
            for value in _several(values):
                other.encode(value)  # refuses a choice that is none
        before.append(name)


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


def expected(parameters: Mapping[str, Parameter], params: Mapping[str, Value]) -> list[str]:
    """Name the parameters that matter beside given values."""
    found: list[str] = []
    for name, parameter in parameters.items():
        if all(
            parent in found and any(_same(params.get(parent), value) for value in _several(values))
            for parent, values in parameter.when.items()
        ):
            found.append(name)
    return found


def _several(values: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return values if isinstance(values, tuple) else (values,)


def _same(one: Value | None, other: Value) -> bool:
    return type(one) is type(other) and one == other
