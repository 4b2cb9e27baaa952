"""Errors of privbo; every message names the value, the bound and the remedy."""

from __future__ import annotations

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


class RunError(PrivacyError):
    """A run directory can't be used as asked.

    Example:
        >>> import privbo as pb
        >>> pb.load("nowhere")
        Traceback (most recent call last):
        privbo.protocol.errors.RunError: nowhere/config.json does not exist; name the directory of a run
    """
