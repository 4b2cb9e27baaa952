"""Errors of privacy accounting; every message names the value, the bound and the remedy."""

from __future__ import annotations


class PrivacyError(Exception):
    """Root of every error raised on purpose by the accountant.

    Example:
        >>> issubclass(BudgetExceeded, PrivacyError)
        True
    """


class EventError(PrivacyError):
    """An event that is malformed, unknown, or unsound under the stated adjacency.

    Example:
        >>> from accountant import Gaussian
        >>> Gaussian(noise_multiplier=0.0)
        Traceback (most recent call last):
        accountant.errors.EventError: Gaussian.noise_multiplier must lie in (1e-50, 1e+50], got 0.0
    """


class AccountingError(PrivacyError):
    """A cost that cannot be computed as asked, for example a delta outside (0, 1).

    Example:
        >>> from accountant import Adjacency, Gaussian, renyi
        >>> renyi.epsilon(Gaussian(noise_multiplier=1.0), 2.0, adjacency=Adjacency.ZERO_OUT)
        Traceback (most recent call last):
        accountant.errors.AccountingError: delta must lie in (0, 1), got 2.0; usual is at most 1/(10 n_clients)
    """


class CalibrationError(AccountingError):
    """A target that no parameter in the allowed range reaches.

    Example:
        >>> from accountant import Adjacency, NonPrivate, calibrate
        >>> target = {"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.ZERO_OUT}
        >>> calibrate.noise_multiplier(lambda z: NonPrivate(), **target)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        accountant.errors.CalibrationError: no noise multiplier below 1.67772e+07 reaches epsilon=1; ...
    """


class BudgetExceeded(PrivacyError):  # noqa: N818 - the field's word for a refused charge
    """A charge that would pass the budget; nothing was charged and nothing may be released.

    Example:
        >>> from accountant import Adjacency, Budget, Gaussian, Ledger, LedgerPolicy, Unit
        >>> policy = LedgerPolicy(
        ...     unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=9,
        ...     budget=Budget(epsilon=1.0, delta=1e-5),
        ... )
        >>> ledger = Ledger.create(None, policy)
        >>> event = Gaussian(noise_multiplier=1.0)
        >>> ledger.charge("r/0", event, run="r", noise_source="simulation")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        accountant.errors.BudgetExceeded: Gaussian, multiplier 1, on top of epsilon 0, comes to epsilon 4.37...
        >>> ledger.entries()
        []
    """


class LedgerError(PrivacyError):
    """A ledger that is corrupt, foreign, or used against its rules.

    Example:
        >>> from accountant import Ledger
        >>> Ledger.open("nowhere.sqlite")
        Traceback (most recent call last):
        accountant.errors.LedgerError: nowhere.sqlite is no file; restore it from a copy, or name another
    """


class DisagreementError(LedgerError):
    """Signed evidence that disagrees: not as it was signed, or of another run.

    Example:
        >>> issubclass(DisagreementError, LedgerError)
        True
    """
