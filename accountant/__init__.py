"""What does it cost? Public arithmetic of differential privacy, and the ledger that keeps it.

No private data and no random numbers pass here. Names are loaded on first use, so that
importing this package stays free of scipy.

Which accountant may I quote, when?

| situation | quote | from |
|---|---|---|
| every parameter fixed beforehand, plan followed (queries may be adaptive) | tight | `numerical` |
| the same, everybody takes part in every release | Gaussian DP, exact | `gaussian_dp` |
| stopped early because of outputs | the whole plan's tight epsilon | `filters.quote` |
| noise, rate or count chosen from outputs | the filter's epsilon, if one admitted every charge | `filters` |
| comparing with a paper that prints the moments accountant | moments, named so | `moments` |
| a setting the lattice does not reach | Rényi; `Interval.method` says so | `renyi` |
| central-limit approximation | never as a guarantee: it can be too small | `gaussian_dp.clt_epsilon` |

`epsilon_table` prints moments, renyi, tight and, where exact, gaussian_dp side by side: all are
upper bounds, so the smallest may be quoted while the plan stands. `docs/accountants.md`
has the same table with its reasons.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accountant import calibrate, gaussian_dp, moments, renyi
    from accountant.epsilon import epsilon_table
    from accountant.errors import (
        AccountingError,
        BudgetExceeded,
        CalibrationError,
        EventError,
        LedgerError,
        PrivacyError,
    )
    from accountant.events import (
        Adjacency,
        Composed,
        Event,
        FixedSizeSampledGaussian,
        Gaussian,
        Laplace,
        NonPrivate,
        PoissonSampledGaussian,
        Unit,
        compose,
        from_dict,
        repeat,
        to_dict,
    )
    from accountant.tight import numerical

_HOMES = {
    "AccountingError": "errors",
    "Adjacency": "events",
    "Budget": "ledger",
    "BudgetExceeded": "errors",
    "CalibrationError": "errors",
    "Composed": "events",
    "Event": "events",
    "EventError": "errors",
    "FixedSizeSampledGaussian": "events",
    "Gaussian": "events",
    "Laplace": "events",
    "Ledger": "ledger",
    "LedgerError": "errors",
    "LedgerPolicy": "ledger",
    "NonPrivate": "events",
    "PoissonSampledGaussian": "events",
    "PrivacyError": "errors",
    "Unit": "events",
    "compose": "events",
    "epsilon_table": "epsilon",
    "from_dict": "events",
    "repeat": "events",
    "to_dict": "events",
}
_MODULES = {
    "calibrate": "calibrate",
    "gaussian_dp": "gaussian_dp",
    "moments": "moments",
    "numerical": "tight.numerical",
    "renyi": "renyi",
}

__all__ = [
    "AccountingError",
    "Adjacency",
    "Budget",
    "BudgetExceeded",
    "CalibrationError",
    "Composed",
    "Event",
    "EventError",
    "FixedSizeSampledGaussian",
    "Gaussian",
    "Laplace",
    "Ledger",
    "LedgerError",
    "LedgerPolicy",
    "NonPrivate",
    "PoissonSampledGaussian",
    "PrivacyError",
    "Unit",
    "calibrate",
    "compose",
    "epsilon_table",
    "from_dict",
    "gaussian_dp",
    "moments",
    "numerical",
    "renyi",
    "repeat",
    "to_dict",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use (PEP 562)."""
    if name in _HOMES:
        value: object = getattr(import_module(f"accountant.{_HOMES[name]}"), name)
        return value
    if name in _MODULES:
        return import_module(f"accountant.{_MODULES[name]}")
    raise AttributeError(f"module 'accountant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
