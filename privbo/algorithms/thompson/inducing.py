"""Features from a kernel's values at points that fill the space: what the shared prior's vectors are weights of.

Random Fourier features of as many numbers cover a kernel evenly, the directions that a space never shows included;
in four coordinates and more, and among categories, few of them are left for those it shows. These are the best
approximation of the kernel from its values at the given points (Nystroem; Williams & Seeger 2001).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privbo.algorithms.thompson.features import Kernel, times
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import spread
from privbo.protocol.messages import FloatArray, Setting

if TYPE_CHECKING:
    import torch

_JITTER = 1e-6  # points of a small space coincide


@dataclass(frozen=True, kw_only=True)
class InducingFeatures:
    """The feature map ``phi(x) = K^-1/2 k(x)`` of a kernel's values at given points, of norm at most 1.

    The root is the symmetric one, so that parties whose linear algebra differs in the last bits have the same
    features but for the last bits.

    Attributes:
        points: Embedded, ``(n_features, n_embedded)``.
        lengthscale: Of the kernel, in units of the cube.
        kernel: Of unit variance.
    """

    points: FloatArray
    lengthscale: float
    kernel: Kernel

    @property
    def n_features(self) -> int:
        """M, the length of ``phi(x)``."""
        return len(self.points)

    @property
    def digest(self) -> str:
        """SHA-256 of the map; parties with different digests do not speak of the same features."""
        content = hashlib.sha256(f"{self.points.shape} {self.lengthscale.hex()} {self.kernel}".encode())
        content.update(self.points.astype("<f8").tobytes())
        return content.hexdigest()

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Features ``(..., n_features)`` of embedded points ``(..., n_embedded)``."""
        import torch  # the server needs the digest only, and stays light

        return times(self._correlations(embedded), torch.as_tensor(self._root, device=embedded.device))

    def weighted(self, weights: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Functions with given weights ``(n_features, k)``, ``(..., k)`` at embedded points ``(..., n_embedded)``.

        The same as the features times the weights, in one product instead of two.
        """
        import torch

        rooted = times(torch.as_tensor(self._root, device=weights.device), weights)
        return lambda embedded: times(self._correlations(embedded), rooted)

    @cached_property
    def _root(self) -> FloatArray:
        import torch

        values = self._correlations(torch.from_numpy(self.points)).numpy()
        variances, directions = np.linalg.eigh(values + _JITTER * np.eye(len(values)))
        return np.asarray(directions / np.sqrt(np.maximum(variances, _JITTER)) @ directions.T)

    def _correlations(self, embedded: torch.Tensor) -> torch.Tensor:
        import torch

        from privbo.algorithms.thompson.posterior import correlations

        here = embedded / self.lengthscale
        there = torch.as_tensor(self.points, device=embedded.device) / self.lengthscale
        squares = times(here, -2.0 * there.T).add_(here.square().sum(-1)[..., None]).add_(there.square().sum(-1))
        return correlations(self.kernel, squares.clamp_min_(0.0))


def draw_inducing(setting: Setting, *, n_features: int, lengthscale: float | None, kernel: Kernel) -> InducingFeatures:
    """Give the feature map that everyone derives from the public seed.

    Args:
        setting: Of the run.
        n_features: M.
        lengthscale: Of the kernel, in units of the cube; None is .5 (e / 2)^(3/4) in e embedded coordinates.
        kernel: Squared exponential, Matern 5/2, 3/2 or 1/2.
    """
    space = setting.space
    shift = public_stream(setting.public_seed, Stream.FEATURES).random(space.n_dims)
    points = np.asarray(space.embed(spread(space, n_features, shift)), dtype=np.float64)
    default = 0.5 * math.pow(space.n_embedded / 2.0, 0.75)
    return InducingFeatures(
        points=np.resize(points, (n_features, space.n_embedded)),  # a small space's again from the first
        lengthscale=default if lengthscale is None else lengthscale,
        kernel=kernel,
    )
