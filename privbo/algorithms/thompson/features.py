"""Features: one shared map from the cube to vectors of unit norm or less, by random waves or by a kernel's values.

All parties must agree on the map to the last bit, so it is drawn by numpy from the public
seed and travels as a digest with every broadcast. Unit norm is part of the protocol: a
vector's value at a point is then bounded by its clipped length.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from privbo.protocol.messages import FloatArray

if TYPE_CHECKING:
    import torch

Kernel: TypeAlias = Literal["se", "matern52", "matern32", "matern12"]
SMOOTHNESS = {"se": 0, "matern12": 1, "matern32": 3, "matern52": 5}  # twice a Matern kernel's
Form: TypeAlias = Literal["paired", "phase"]
_JITTER = 1e-6  # points of a small space coincide


@dataclass(frozen=True, kw_only=True)
class FourierFeatures:
    """A drawn feature map ``phi`` with ``phi(x) . phi(y)`` near a stationary kernel.

    Attributes:
        frequencies: Angular frequencies per unit of the embedded cube, ``(n, n_embedded)``.
        phases: Phases ``(n,)`` of the cosine form; None for the paired sine and cosine form.
    """

    frequencies: FloatArray
    phases: FloatArray | None = None

    @property
    def n_features(self) -> int:
        """M, the length of ``phi(x)``."""
        return len(self.frequencies) * (2 if self.phases is None else 1)

    @property
    def digest(self) -> str:
        """SHA-256 of the map; parties with different digests do not speak of the same features."""
        content = hashlib.sha256(str(self.frequencies.shape).encode())
        content.update(self.frequencies.astype("<f8").tobytes())
        content.update(b"" if self.phases is None else self.phases.astype("<f8").tobytes())
        return content.hexdigest()

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Features ``(..., n_features)`` of embedded points ``(..., n_embedded)``, each of norm 1."""
        import torch  # the server needs the digest only, and stays light

        frequencies = torch.as_tensor(self.frequencies, device=embedded.device)
        # In place: fresh memory of this size costs more than the cosines that fill it.
        angles = product(embedded, frequencies.T)
        if self.phases is None:
            waves = torch.cat([torch.cos(angles), angles.sin_()], dim=-1)
            return waves.mul_(1.0 / math.sqrt(len(frequencies)))
        waves = angles.add_(torch.as_tensor(self.phases, device=embedded.device)).cos_()
        return waves.div_(torch.linalg.vector_norm(waves, dim=-1, keepdim=True))


def product(rows: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products ``(n, a, ...)`` of every client's rows ``(n, a, b)`` with its matrix ``(n, b, c)``, or with one for all.

    One for all is a matrix ``(b, c)`` or a vector ``(b,)``. On a processor client by client through NumPy: of torch's
    batched products, which take 1.4 to 2 times as long, and of one large product a client's rounding errors depend
    on how many others there are.
    """
    import torch  # as above

    if rows.device.type != "cpu":
        return rows @ right
    matrices = right.numpy()
    return torch.from_numpy(np.matmul(rows.numpy(), matrices if right.ndim > 2 else np.ascontiguousarray(matrices)))


def draw_frequencies(generator: np.random.Generator, count: int, n_embedded: int, kernel: Kernel) -> FloatArray:
    """Draws from a kernel's spectral density at unit length scale, ``(count, n_embedded)``."""
    normals = generator.standard_normal((count, n_embedded))
    if kernel == "se":
        return normals
    # A Matern kernel of smoothness v has a multivariate t spectrum with 2 v degrees of freedom.
    freedom = SMOOTHNESS[kernel]
    return normals / np.sqrt(generator.chisquare(freedom, (count, 1)) / freedom)


@dataclass(frozen=True, kw_only=True)
class InducingFeatures:
    """The feature map ``phi(x) = K^-1/2 k(x)`` of a kernel's values at given points, of norm at most 1.

    Random Fourier features of as many numbers cover a kernel evenly, the directions that a space never shows included;
    in four coordinates and more, and among categories, few of them are left for those it shows. These are the best
    approximation of the kernel from its values at the given points (Nystroem; Williams & Seeger 2001).

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

        values = correlated(self.kernel, embedded, self.points, self.lengthscale)
        return product(values, torch.as_tensor(self._root, device=embedded.device))

    @cached_property
    def _root(self) -> FloatArray:
        import torch

        values = correlated(self.kernel, torch.from_numpy(self.points), self.points, self.lengthscale).numpy()
        variances, directions = np.linalg.eigh(values + _JITTER * np.eye(len(values)))
        return np.asarray(directions / np.sqrt(np.maximum(variances, _JITTER)) @ directions.T)


def correlated(
    kernel: Kernel, embedded: torch.Tensor, points: FloatArray, lengthscale: float | FloatArray
) -> torch.Tensor:
    """Correlations ``(..., k)`` of embedded points ``(..., e)`` with others ``(k, e)``, at one length scale or e."""
    import torch

    scale = torch.as_tensor(lengthscale, dtype=torch.float64, device=embedded.device)
    here, there = embedded / scale, torch.as_tensor(points, device=embedded.device) / scale
    squares = product(here, -2.0 * there.T).add_(squared_norms(here)[..., None]).add_(squared_norms(there))
    return correlations(kernel, squares.clamp_min_(0.0))


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Of short rows ``(..., e)``; torch's sum of two or three numbers takes four times as long as that of four."""
    squares = rows.square()
    return sum(squares.unbind(-1)[1:], squares[..., 0]) if rows.shape[-1] < 4 else squares.sum(-1)


def correlations(kernel: Kernel, squares: torch.Tensor) -> torch.Tensor:
    """Correlations at squared scaled distances, which are overwritten."""
    if kernel == "se":
        return squares.mul_(-0.5).exp_()
    if kernel == "matern12":
        return squares.sqrt_().neg_().exp_()
    if kernel == "matern32":
        distance = squares.mul_(3.0).sqrt_()
        return (1.0 + distance).mul_(distance.neg_().exp_())
    distance = (5.0 * squares).sqrt_()
    return squares.mul_(5.0 / 3.0).add_(distance).add_(1.0).mul_(distance.neg_().exp_())
