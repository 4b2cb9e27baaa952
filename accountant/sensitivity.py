"""L2 sensitivity of a weighted, clipped sum, from (weights, clipping norm, adjacency, sampler).

The release is sum over participants n of w_n v_n with |v_n| <= C. When several blocks are
released together, w_n is client n's row of weights and |w_n| its Euclidean norm; the
concatenated vector then moves by |w_n| C. Noise multiplier is noise standard deviation
over this sensitivity, and nothing else.

| sampler | add-or-remove-one | zero-out | replace-one |
|---|---|---|---|
| everyone, Poisson | max |w_n| C | max |w_n| C | 2 max |w_n| C |
| fixed size | refused | max over n != j of (|w_n| + |w_j|) C | 2 max |w_n| C |

With fixed-size sampling another client takes the slot of the one that is gone, so both
contributions move even under zero-out; max |w_n| C alone would under-report (true epsilon
4.12 against 3.11 at q=.35, z=1, delta=1e-5, one release with the others opposing). Under
replace-one the client may also keep its slot and send the opposite vector.
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from accountant.errors import AccountingError
from accountant.events import (
    Adjacency,
    Basic,
    Composed,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    PoissonSampledGaussian,
    compose,
    parts,
)

FloatArray = npt.NDArray[np.float64]


class Sampler(StrEnum):
    """How the participants of one release are chosen."""

    EVERYONE = "everyone"
    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"


def sensitivity(
    weight_norms: npt.ArrayLike,
    clipping_norm: float,
    *,
    adjacency: Adjacency,
    sampler: Sampler,
    depends_on_n_clients: bool = True,
) -> float:
    """L2 sensitivity of the weighted sum.

    Args:
        weight_norms: |w_n| of every client, shape ``(n_clients,)``; public.
        clipping_norm: C, the bound on every client's vector; positive.
        adjacency: Which data sets are neighbours.
        sampler: How participants are chosen.
        depends_on_n_clients: Whether weights, denominators or assignments would change with
            one client more or less (normalised weights do).

    Raises:
        AccountingError: Weights or norm out of range, or add-or-remove-one where the release
            depends on the number of clients or draws a fixed-size sample.
    """
    return float(
        np.max(
            client_sensitivities(
                weight_norms,
                clipping_norm,
                adjacency=adjacency,
                sampler=sampler,
                depends_on_n_clients=depends_on_n_clients,
            )
        )
    )


def client_sensitivities(
    weight_norms: npt.ArrayLike,
    clipping_norm: float,
    *,
    adjacency: Adjacency,
    sampler: Sampler,
    depends_on_n_clients: bool = True,
) -> FloatArray:
    """How far each single client can move the sum, shape ``(n_clients,)``; see ``sensitivity``.

    Fixed-size: (|w_n| + max over j != n of |w_j|) C for client n, over all j under replace-one.
    """
    norms = _checked(weight_norms, clipping_norm)
    adjacency, sampler = Adjacency(adjacency), Sampler(sampler)
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE and (depends_on_n_clients or sampler is Sampler.FIXED_SIZE):
        raise AccountingError(
            "add-or-remove-one is unsound here: weights, denominators or the sample depend on the number of "
            "clients, so every contribution moves when one client leaves; use zero-out (n_clients public)"
        )
    if sampler is Sampler.FIXED_SIZE:
        others = np.max(norms) if adjacency is Adjacency.REPLACE_ONE else _largest_other(norms)
        return np.asarray((norms + others) * clipping_norm, dtype=np.float64)
    factor = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    return np.asarray(factor * norms * clipping_norm, dtype=np.float64)


def _checked(weight_norms: npt.ArrayLike, clipping_norm: float) -> FloatArray:
    norms = np.asarray(weight_norms, dtype=np.float64)
    if norms.ndim != 1 or len(norms) == 0 or not np.all(np.isfinite(norms)) or np.any(norms < 0.0):
        raise AccountingError(f"weight_norms must be finite, non-negative, shape (n_clients,), got {norms!r}")
    if not 0.0 < clipping_norm < math.inf:
        raise AccountingError(f"clipping_norm must be positive and finite, got {clipping_norm!r}")
    return norms


def _largest_other(norms: FloatArray) -> FloatArray:
    """For every n the largest norm among the others; 0 for a single client."""
    if len(norms) == 1:
        return np.zeros(1)
    second, first = np.sort(norms)[-2:]
    others = np.full_like(norms, first)
    others[int(np.argmax(norms))] = second
    return others


def for_client(event: Event, share: float) -> Event:
    """``event`` as one client sees it, whose sensitivity is ``share`` of the largest; share in [0, 1].

    A client with a smaller weight moves the sum less against the same noise, so its own
    multiplier is larger. The sampled pairs keep their rate. Share 0 costs nothing.
    """
    if not 0.0 <= share <= 1.0:
        raise AccountingError(f"share must lie in [0, 1], got {share!r}: client's sensitivity over the largest")
    if share == 0.0:
        return Composed()
    return compose([(_scaled(part, share), count) for part, count in parts(event)])


def _scaled(part: Basic, share: float) -> Basic:
    match part:
        case Gaussian(noise_multiplier=z):
            return Gaussian(noise_multiplier=z / share)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            return PoissonSampledGaussian(sample_rate=q, noise_multiplier=z / share)
        case FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z):
            return FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z / share)
    if share == 1.0:
        return part
    raise AccountingError(f"no per-client form of {part!r} is offered; quote the release's own event")


def client_epsilons(rounds: list[tuple[Event, FloatArray]], delta: float, *, adjacency: Adjacency) -> FloatArray:
    """Tight epsilon of every client over a run whose weights differ between clients.

    Args:
        rounds: For each release its event and ``client_sensitivities`` of all clients.
        delta: In (0, 1).
        adjacency: The ledger's adjacency.

    Returns:
        Epsilons, shape ``(n_clients,)``; none is above the run's own epsilon by more than
        the accountant's certified width.
    """
    from accountant.epsilon import epsilon

    shares = np.array([moves / np.max(moves) if np.max(moves) > 0.0 else moves for _, moves in rounds])
    unique, inverse = np.unique(shares, axis=1, return_inverse=True)
    values = [
        epsilon(
            compose([for_client(event, float(share)) for (event, _), share in zip(rounds, column, strict=True)]),
            delta,
            adjacency=adjacency,
        )
        for column in unique.T
    ]
    return np.asarray(np.array(values)[np.ravel(inverse)], dtype=np.float64)
