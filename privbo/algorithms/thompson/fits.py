"""One road from tensors to compiled fits: the steps of many clients towards their maxima a posteriori."""

from __future__ import annotations

import numpy as np
import torch

from privbo.algorithms.thompson import adam
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.shared_part import Shared
from privbo.protocol.messages import FloatArray

_OPTIMISER = np.array([adam.RATE, adam.FIRST, adam.SECOND, adam.TINY, adam.ROUNDING])


def is_compiled(device: torch.device) -> bool:
    """Whether fits, posteriors and paths on a device are machine code; elsewhere, as on GPUs, they are torch's."""
    return device.type == "cpu"


def climb(
    observations: Observations,
    own: OwnModel,
    parameters: FloatArray,
    *,
    known: torch.Tensor | None,
    steps: int,
    jitter: float = 0.0,
    constant: float = 0.0,
    between: bool = False,
    shared: Shared | None = None,
    slopes: FloatArray | None = None,
) -> None:
    """Move parameters by Adam's steps towards every client's maximum a posteriori; see ``compiled.climb``.

    Args:
        observations: Of n clients.
        own: Kernel and priors.
        parameters: Of length scales, kernel variance and observation variance, ``(n, w + 2)``.
        known: Known observation variances, ``(n,)``; None fits them.
        steps: Of Adam.
        jitter: Added to every observation variance.
        constant: Variance of a constant in the values.
        between: Whether parameters are logits between the bounds; else logarithms, cut off at them.
        shared: The shared function at the points; None where nothing is shared.
        slopes: Multiples of the shared function, ``(n,)``; moved too.
    """
    from privbo.algorithms.thompson import compiled  # loads Numba, which nobody needs who fits nothing

    scales = [own.lengthscale] * (parameters.shape[1] - 2)
    priors = [*scales, own.outputscale, own.noise]
    bounds = np.array([[p.low, p.high, np.log(p.median), p.spread] for p in priors]).T
    compiled.climb(
        compiled.SMOOTHNESS[own.kernel],
        as_array(observations.embedded),
        as_array(observations.values),
        np.ascontiguousarray(observations.mask.numpy()),
        np.empty((0, 0)) if shared is None else as_array(shared.heights),
        compiled.NOTHING if shared is None else as_array(shared.covariance),
        shared is not None,
        np.array([0.0, 1.0] if shared is None else [shared.slope.mean, shared.slope.stddev]),
        known is not None,
        np.empty(0) if known is None else as_array(known),
        jitter,
        constant,
        np.ascontiguousarray(bounds),
        between,
        steps,
        _OPTIMISER,
        parameters,
        np.empty(len(parameters)) if slopes is None else slopes,
    )


def as_array(tensor: torch.Tensor) -> FloatArray:
    """A tensor's numbers in one piece, as compiled code takes them."""
    return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float64)
