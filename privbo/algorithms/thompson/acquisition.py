"""Log expected improvement, in a form that neither underflows nor flattens (Ament et al. 2023, eq. 9).

Expected improvement over the best value so far is exactly zero in floating point over most of
a space, where its logarithm still says which point is the better one.
"""

from __future__ import annotations

import math

import torch

_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
_ROOT_HALF_PI = math.sqrt(0.5 * math.pi)
# Below -1 the sum loses digits and the scaled complementary error function takes over; below -1000 its
# own difference does, and the leading terms of the series are closer.
_DIRECT, _SERIES = -1.0, -1e3


def log_expected_improvement(mean: torch.Tensor, variance: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Logarithm of E max(f - best, 0) for normal f, whatever the distance, as broadcast.

    Args:
        mean: Of f.
        variance: Of f, positive.
        best: Value to be improved upon.
    """
    stddev = variance.sqrt()
    return log_improvement((mean - best) / stddev) + stddev.log()


def log_improvement(u: torch.Tensor) -> torch.Tensor:
    """Logarithm of phi(u) + u Phi(u), the expected improvement of a standard normal shifted by u.

    Example:
        >>> import torch
        >>> [round(x, 4) for x in log_improvement(torch.tensor([0.0, -40.0], dtype=torch.float64)).tolist()]
        [-0.9189, -808.2986]
    """
    near = u.clamp_min(_DIRECT)
    direct: torch.Tensor = ((-0.5 * near.square() - _LOG_ROOT_2_PI).exp() + near * torch.special.ndtr(near)).log()
    if bool((u > _DIRECT).all()):
        return direct
    far = -u.clamp_max(_DIRECT)
    # phi(u) + u Phi(u) = phi(u) (1 - |u| sqrt(pi / 2) erfcx(|u| / sqrt 2)), which is phi(u) (1 / u^2 - 3 / u^4 + ...).
    scaled = 1.0 - far * _ROOT_HALF_PI * torch.special.erfcx(far / math.sqrt(2.0))
    inverse = far.square().reciprocal()
    share = torch.where(far > -_SERIES, inverse - 3.0 * inverse.square(), scaled)
    return torch.where(u > _DIRECT, direct, -0.5 * far.square() - _LOG_ROOT_2_PI + share.log())
