"""One reward as the unit of privacy: the distance it moves a release, every rounding included.

A client's vector is a mean over its pulls, so another value of one reward moves it by a
known small distance. Clipping is a projection onto a ball and brings vectors no farther
apart. Sums are truncated to a grid, which may part two nearby vectors by one grid step per
entry more; noise pays for that too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from accountant.events import Adjacency
from privbo.door.clipping import UNIT_ROUNDOFF
from privbo.protocol.errors import ConfigurationError

# Noise is 2^16 to 2^17 grid units: fine enough to cost nothing, coarse enough that the
# rounding errors of floating-point noise vanish in it (docs/noise.md).
GRID_BITS = 16


@dataclass(frozen=True, kw_only=True)
class RewardMove:
    """Distance that one reward moves one client's vector.

    Proof: docs/proofs/one-reward.md.

    Attributes:
        bound: L2 distance between the vectors a client sends for two values of one reward.
        n_entries: Released entries, all blocks together.
    """

    bound: float
    n_entries: int

    def after_clipping(self, vector_bound: float, noise_multiplier: float) -> float:
        """Largest distance between the two clipped, truncated vectors, per unit of weight.

        With z times this distance as noise, a grid step is at most 2^-16 of the noise, so
        truncation adds at most ``z sqrt(entries) 2^-16`` of the distance itself.

        Raises:
            ConfigurationError: If that is more than half of it.
        """
        coarse = noise_multiplier * math.sqrt(self.n_entries) * 2.0**-GRID_BITS
        if coarse > 0.5:
            raise ConfigurationError(
                f"noise_multiplier={noise_multiplier!r} is too large for {self.n_entries} entries with one reward as "
                f"the unit; keep it below {2 ** (GRID_BITS - 1) / math.sqrt(self.n_entries):.4g}"
            )
        rounding = 4 * (self.n_entries + 64) * UNIT_ROUNDOFF * vector_bound
        distance = min(self.bound, 2.0 * vector_bound) + rounding
        return distance / (1.0 - coarse)


def require_reward_unit(sample_rate: float, sampling: str, calibration: str, adjacency: Adjacency) -> None:
    """Refuse settings under which the price of one reward is not known.

    Raises:
        ConfigurationError: Naming the setting.
    """
    if sample_rate != 1.0:
        raise ConfigurationError(
            f"sample_rate={sample_rate!r}: with one reward as the unit everybody takes part; set sample_rate=1"
        )
    if sampling != "poisson":
        raise ConfigurationError(f"sampling={sampling!r} says nothing about one reward; leave it out")
    if calibration != "tight":
        raise ConfigurationError(f"calibration={calibration!r} is the paper's noise for one client; use 'tight'")
    if adjacency != Adjacency.REPLACE_ONE:
        raise ConfigurationError(
            f"adjacency={adjacency!r}: one reward is replaced by another one, never removed; use replace-one"
        )
