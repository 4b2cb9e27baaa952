"""Public arithmetic of differential privacy, and the ledger that keeps account of it.

No private data and no random numbers pass here. Names are loaded on first use, so that
importing this package stays free of scipy.

Which accountant may I quote, when?

| situation | quote | from |
|---|---|---|
| every parameter fixed beforehand, plan followed (queries may be adaptive) | tight | `numerical` |
| the same, everybody takes part in every release | Gaussian DP, exact | `gaussian_dp` |
| stopped early because of outputs | the whole plan's tight epsilon | `filters.quote` |
| noise, rate or count chosen from outputs | a filter's epsilon, if it admitted every charge | `filters`, `envelope` |
| comparing with a paper that prints the moments accountant | moments, named so | `moments` |
| a setting the lattice does not reach | Rényi; `Interval.method` says so | `renyi` |

`epsilon_table` prints moments, renyi, tight and, where exact, gaussian_dp side by side: all are
upper bounds, so the smallest may be quoted while the plan stands. `docs/accountants.md`
has the same table with its reasons.

Example:
    >>> import accountant
    >>> round(accountant.epsilon(noise_multiplier=2.0, sample_rate=0.25, rounds=40, delta=1e-5), 2)
    3.96
    >>> release = accountant.PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
    >>> table = accountant.epsilon_table(
    ...     accountant.repeat(release, 40), 1e-5, adjacency=accountant.Adjacency.ZERO_OUT
    ... )
    >>> round(table["tight"], 2)
    3.96
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from accountant.ours import DISTRIBUTION as DISTRIBUTION  # whoever imports the package compares it

if TYPE_CHECKING:
    from accountant import calibrate, gaussian_dp, moments, renyi
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
        BestOfRandomRuns,
        Composed,
        Event,
        FixedSizeSampledGaussian,
        Gaussian,
        Laplace,
        MixtureOfGaussians,
        NonPrivate,
        PoissonSampledGaussian,
        PoissonSampledLaplace,
        RandomAllocationGaussian,
        TruncatedPoissonSampledGaussian,
        Unit,
        ZeroConcentrated,
        compose,
        from_dict,
        repeat,
        to_dict,
    )
    from accountant.front import Accountant, epsilon, noise_multiplier
    from accountant.group import of_group
    from accountant.ledger import Budget, Ledger, LedgerPolicy
    from accountant.tight import numerical
    from accountant.tightest import Interval, epsilon_interval, epsilon_table
    from accountant.wording import event_text

_HOMES = {
    name: home
    for home, names in {
        "errors": "AccountingError BudgetExceeded CalibrationError EventError LedgerError PrivacyError",
        "events": "Adjacency BestOfRandomRuns Composed Event FixedSizeSampledGaussian Gaussian Laplace "
        "MixtureOfGaussians NonPrivate PoissonSampledGaussian PoissonSampledLaplace RandomAllocationGaussian "
        "TruncatedPoissonSampledGaussian Unit ZeroConcentrated compose from_dict repeat to_dict",
        "front": "Accountant epsilon noise_multiplier",
        "group": "of_group",
        "ledger": "Budget Ledger LedgerPolicy",
        "tightest": "Interval epsilon_interval epsilon_table",
        "wording": "event_text",
    }.items()
    for name in names.split()
}

__all__ = [
    "Accountant",
    "AccountingError",
    "Adjacency",
    "BestOfRandomRuns",
    "Budget",
    "BudgetExceeded",
    "CalibrationError",
    "Composed",
    "Event",
    "EventError",
    "FixedSizeSampledGaussian",
    "Gaussian",
    "Interval",
    "Laplace",
    "Ledger",
    "LedgerError",
    "LedgerPolicy",
    "MixtureOfGaussians",
    "NonPrivate",
    "PoissonSampledGaussian",
    "PoissonSampledLaplace",
    "PrivacyError",
    "RandomAllocationGaussian",
    "TruncatedPoissonSampledGaussian",
    "Unit",
    "ZeroConcentrated",
    "calibrate",
    "compose",
    "epsilon",
    "epsilon_interval",
    "epsilon_table",
    "event_text",
    "from_dict",
    "gaussian_dp",
    "moments",
    "noise_multiplier",
    "numerical",
    "of_group",
    "renyi",
    "repeat",
    "to_dict",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use (PEP 562)."""
    if name in _HOMES:
        value: object = getattr(import_module(f"accountant.{_HOMES[name]}"), name)
        return value
    if name in __all__:
        return import_module("accountant.tight.numerical" if name == "numerical" else f"accountant.{name}")
    raise AttributeError(f"module 'accountant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
