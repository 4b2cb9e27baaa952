"""Random Fourier features: one shared map from the cube to vectors of unit norm.

All parties must agree on the map to the last bit, so it is drawn by numpy from the public
seed and travels as a digest with every broadcast. Unit norm is part of the protocol: a
vector's value at a point is then bounded by its clipped length.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from privbo.errors import ConfigurationError
from privbo.protocol import FloatArray
from privbo.thompson.streams import Stream, public_stream

if TYPE_CHECKING:
    import torch

Kernel: TypeAlias = Literal["se", "matern52", "matern32"]
Form: TypeAlias = Literal["paired", "phase"]


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
        angles = embedded @ frequencies.T
        if self.phases is None:
            waves = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
            return waves / math.sqrt(len(frequencies))
        waves = torch.cos(angles + torch.as_tensor(self.phases, device=embedded.device))
        lengths: torch.Tensor = torch.linalg.vector_norm(waves, dim=-1, keepdim=True)
        return waves / lengths


def draw_features(
    *, n_features: int, n_embedded: int, lengthscale: float, kernel: Kernel, form: Form, public_seed: int
) -> FourierFeatures:
    """The feature map everyone derives from the public seed (Rahimi & Recht 2007).

    Args:
        n_features: M; even for the paired form.
        n_embedded: Coordinates a kernel sees.
        lengthscale: Of the kernel, in units of the cube.
        kernel: Squared exponential, Matern 5/2 or Matern 3/2.
        form: ``"paired"``: cos and sin of M/2 frequencies, norm 1 by construction;
            ``"phase"``: cos(w.x + b) of M frequencies divided by its norm (the paper's).
        public_seed: Shared by all parties.
    """
    if form == "paired" and n_features % 2:
        raise ConfigurationError(f"n_features={n_features} must be even for the paired form; use {n_features + 1}")
    generator = public_stream(public_seed, Stream.FEATURES)
    count = n_features // 2 if form == "paired" else n_features
    frequencies = draw_frequencies(generator, count, n_embedded, kernel) / lengthscale
    phases = generator.uniform(0.0, 2.0 * math.pi, count) if form == "phase" else None
    return FourierFeatures(frequencies=frequencies, phases=phases)


def draw_frequencies(generator: np.random.Generator, count: int, n_embedded: int, kernel: Kernel) -> FloatArray:
    """Draws from a kernel's spectral density at unit length scale, ``(count, n_embedded)``."""
    normals = generator.standard_normal((count, n_embedded))
    if kernel == "se":
        return normals
    # A Matern kernel of smoothness v has a multivariate t spectrum with 2 v degrees of freedom.
    freedom = 5.0 if kernel == "matern52" else 3.0
    return normals / np.sqrt(generator.chisquare(freedom, (count, 1)) / freedom)
