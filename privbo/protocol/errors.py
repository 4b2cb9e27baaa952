"""Errors of privbo; every message names the value, the bound and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accountant.errors import PrivacyError


class ConfigurationError(PrivacyError):
    """A setting is impossible; raised before any data is touched.

    Example:
        >>> import privbo as pb
        >>> pb.Real(2, 1)
        Traceback (most recent call last):
        privbo.protocol.errors.ConfigurationError: Real: low=2.0 must be below high=1.0
    """


class PolicyError(PrivacyError):
    """A run that a party's policy refuses; no data was touched and nothing was sent.

    .. versionadded:: 0.3.0

    Example:
        >>> issubclass(PolicyError, PrivacyError)
        True
    """


class RefusedError(PrivacyError):
    """A message or file that says another thing than the party computes from what it has approved; nothing was sent.

    .. versionadded:: 0.3.0

    Attributes:
        field: What differs.
        expected: What the party computes.
        found: What was declared.

    Example:
        >>> str(RefusedError("ledger's delta", expected=1e-6, found=0.5))
        "ledger's delta: found 0.5, this party computes 1e-06; nothing was sent"
    """

    def __init__(self, field: str, *, expected: object, found: object, remedy: str = "") -> None:
        self.field, self.expected, self.found = field, expected, found
        what = f"{field}: found {found!r:.200}, this party computes {expected!r:.200}; nothing was sent"
        super().__init__(what + (f"; {remedy}" if remedy else ""))


class RehearsalError(PrivacyError):
    """A run that did not begin, because none of its clients has a value; nothing was made, charged or written.

    .. versionadded:: 0.3.0

    Example:
        >>> issubclass(RehearsalError, PrivacyError)
        True
    """


class RunError(PrivacyError):
    """A run directory can't be used as asked.

    Example:
        >>> import privbo as pb
        >>> pb.load("nowhere")
        Traceback (most recent call last):
        privbo.protocol.errors.RunError: nowhere/config.json does not exist; name the directory of a run
    """


@contextmanager
def needs(program: str, extra: str) -> Iterator[None]:
    """Import in this block what an extra installs.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        yield
    except ImportError:
        raise ConfigurationError(f"{program} is not installed; install privbo[{extra}]") from None
