"""Public arithmetic of differential privacy, and the ledger that keeps account of it.

No private data and no random numbers pass here. Names stand in ``__init__.pyi`` and are loaded on first
use, so that importing this package stays free of scipy.

Which accountant may I quote, when?

| situation | quote | from |
|---|---|---|
| every parameter fixed beforehand, plan followed (queries may be adaptive) | tight | `numerical` |
| the same, all clients take part in every release | Gaussian DP, exact | `gaussian_dp` |
| stopped early because of outputs | the whole plan's tight epsilon | `filters.quote` |
| noise, rate or count chosen from outputs | a filter's epsilon, if it admitted every charge | `filters`, `envelope` |
| comparing with a paper that prints the moments accountant | moments, named so | `moments` |
| a setting the lattice does not reach | Rényi; `Interval.method` says so | `renyi` |

`epsilon_table` prints moments, renyi, tight and, where exact, gaussian_dp side by side: all are
upper bounds, so the smallest may be quoted while the plan stands. `docs/accountants.md`
has the same table with its reasons.

In addition to epsilon there is the whole trade-off (``tradeoff``): attack success at any false-alarm rate, advantage,
Bayes risk, the privacy curve; ``noise_multiplier`` takes each of them as its target.

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

from accountant.lazy import attach_stub
from accountant.ours import DISTRIBUTION as DISTRIBUTION  # whoever imports the package compares it

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
