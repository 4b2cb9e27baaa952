"""L2 sensitivity of a weighted, clipped sum, from weights, clipping norm, adjacency and sampler.

The release is the sum over participants n of w_n v_n with |v_n| <= C. When several blocks are
released together, w_n is client n's row of weights and |w_n| its Euclidean norm; the
concatenated vector then moves by |w_n| C. The noise multiplier is the noise's standard
deviation over this sensitivity, and nothing else.

| sampler | add-or-remove-one | zero-out | replace-one |
|---|---|---|---|
| everyone, Poisson | W C | W C | 2 W C |
| fixed size | refused | (W + V) C | 2 W C |

W is the largest of the norms |w_n| and V the second largest. With fixed-size sampling another
client takes the slot of the one that is gone, so both contributions move even under zero-out;
W C alone would under-report (true epsilon 4.12 against 3.11 at q=.35, z=1, delta=1e-5, one
release with the others opposing). Under replace-one the client may also keep its slot and send
the opposite vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from accountant.errors import AccountingError
from accountant.events import Adjacency


class Sampler(StrEnum):
    """Rule by which the participants of one release are chosen."""

    EVERYONE = "everyone"
    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"


def sensitivity(
    weight_norms: Sequence[float],
    clipping_norm: float,
    *,
    adjacency: Adjacency,
    sampler: Sampler,
    depends_on_n_clients: bool = True,
) -> float:
    """Give the L2 sensitivity of the weighted sum.

    Args:
        weight_norms: |w_n| of every client, or of the two clients where it is largest: no
            other one matters. Public, finite, not negative.
        clipping_norm: C, the bound on every client's vector; positive.
        adjacency: Which data sets are neighbours.
        sampler: How participants are chosen.
        depends_on_n_clients: Whether weights, denominators or assignments would change with
            one client more or less (normalised weights do).

    Raises:
        AccountingError: Weights or norm out of range, or add-or-remove-one where the release
            depends on the number of clients or draws a fixed-size sample.

    Example:
        >>> sensitivity([0.5, 0.3, 0.2], 2.0, adjacency=Adjacency.ZERO_OUT, sampler=Sampler.POISSON)
        1.0
        >>> sensitivity([0.5, 0.3, 0.2], 2.0, adjacency=Adjacency.ZERO_OUT, sampler=Sampler.FIXED_SIZE)
        1.6
    """
    norms = sorted(float(norm) for norm in weight_norms)
    if not norms or not all(0.0 <= norm < math.inf for norm in norms):
        raise AccountingError(f"weight_norms must be finite and not negative, one per client; got {weight_norms!r}")
    if not 0.0 < clipping_norm < math.inf:
        raise AccountingError(f"clipping_norm must be positive and finite, got {clipping_norm!r}")
    adjacency, sampler = Adjacency(adjacency), Sampler(sampler)
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE and (depends_on_n_clients or sampler is Sampler.FIXED_SIZE):
        raise AccountingError(
            "add-or-remove-one is unsound here: weights, denominators or the sample depend on the number of "
            "clients, so every contribution moves when one client leaves; use zero-out (n_clients public)"
        )
    if adjacency is Adjacency.REPLACE_ONE:
        return 2.0 * norms[-1] * clipping_norm
    return (sum(norms[-2:]) if sampler is Sampler.FIXED_SIZE else norms[-1]) * clipping_norm


def contribution_factor(adjacency: Adjacency, *, fixed_size: bool = False) -> float:
    """Give the sensitivity of an unweighted sum over the norm of one contribution: 1 or 2.

    Other libraries state noise multipliers relative to one contribution's norm.

    Args:
        adjacency: Which data sets are neighbours.
        fixed_size: Whether a sample of a fixed size is drawn.
    """
    sampler = Sampler.FIXED_SIZE if fixed_size else Sampler.POISSON
    return sensitivity([1.0, 1.0], 1.0, adjacency=adjacency, sampler=sampler, depends_on_n_clients=fixed_size)
