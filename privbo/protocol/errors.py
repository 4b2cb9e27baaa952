"""Errors of privbo; every message names the value, the bound and the remedy."""

from __future__ import annotations

from accountant.errors import PrivacyError


class ConfigurationError(PrivacyError):
    """A setting is impossible; raised before any data is touched."""


class RunError(PrivacyError):
    """A run directory can't be used as asked."""
