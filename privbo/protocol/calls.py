"""Calls of functions that a user hands in, checked before anything depends on them."""

from __future__ import annotations

import inspect

from privbo.protocol.errors import ConfigurationError


def require_call(function: object, name: str, arguments: str, *given: object, **named: object) -> None:
    """Refuse a function that can't be called as it will be, so that no round is charged in vain.

    Raises:
        ConfigurationError: If its signature does not take the arguments; compiled code that has none passes.
    """
    if not callable(function):
        raise ConfigurationError(f"{name}={function!r} is no function; write {name}({arguments})")
    try:
        inspect.signature(function).bind(*given, **named)
    except ValueError:
        return  # compiled code without a signature
    except TypeError as error:
        raise ConfigurationError(f"{name} can't be called as {name}({arguments}): {error}; mend it") from None
