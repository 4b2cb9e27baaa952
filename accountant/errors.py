"""What can go wrong in privacy accounting; every message names the value, the bound and the remedy."""

from __future__ import annotations


class PrivacyError(Exception):
    """Root of every error raised on purpose by the accountant."""


class EventError(PrivacyError):
    """An event that is malformed, unknown, or unsound under the stated adjacency."""


class AccountingError(PrivacyError):
    """A cost that cannot be computed as asked, for example a delta outside (0, 1)."""


class CalibrationError(AccountingError):
    """A target that no parameter in the allowed range reaches."""


class BudgetExceeded(PrivacyError):  # noqa: N818 - the field's word for a refused charge
    """A charge that would pass the budget; nothing was charged and nothing may be released."""


class LedgerError(PrivacyError):
    """A ledger that is corrupt, foreign, or used against its rules."""
