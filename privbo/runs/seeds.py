"""Seeds of a run by stream, and the source of its privacy noise, which is seeded in simulations only."""

from __future__ import annotations

import numpy as np

from privbo.door.noise import ExactNoise, NoiseSource, SecureNoise, SimulatedNoise


def derive_seed(root: int, stream: str) -> int:
    """Give a 63-bit seed for one named stream of a run."""
    words = np.random.SeedSequence([root, *stream.encode()]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def noise_of(source: str, root: int, stream: str) -> NoiseSource:
    """Give the noise that a plan names; a simulation's is derived from the run's root and the stream's name."""
    if source == "simulation":
        return SimulatedNoise(derive_seed(root, stream))
    return ExactNoise() if source == "exact" else SecureNoise()
