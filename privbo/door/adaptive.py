"""Clipping at a noisy quantile, covered by the same release (Andrew et al. 2021).

Every participant adds to its vector one bit, +1/2 where its norm is within the bound and
-1/2 where it is not (who is absent adds nothing). With N public and q the rate,

    b = 1/2 + (sum of bits + N(0, sigma_b^2)) / (q N),    C <- C exp(-eta (b - gamma)).

Vector and bit are one vector to the accountant: with multiplier z for the release and z_b
for the bits, the vectors' noise uses z_v = (z^-2 - z_b^-2)^(-1/2), so that z_v and z_b
together are worth z. Here z_b = sigma_b over the bits' sensitivity, which is 1/2 where a
client may only leave and 1 where another bit may take its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from accountant.events import Event
from privbo.door.clipping import row_norms
from privbo.door.mechanism import PrivateSum, WeightGeometry
from privbo.door.sampling import Sample
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request
from privbo.protocol.settings import Positive, settings

# The split of the noise is rounded; this much more noise makes the rounding safe.
_MARGIN = 1.0 + 2.0**-40


@dataclass(frozen=True, kw_only=True)
class AdaptiveSum:
    """A private sum whose clipping bound is chosen by earlier releases, with the bits for the next.

    Proof: docs/proofs/adaptive-clipping.md.

    Attributes:
        base: The mechanism of the plan; its event is the price of everything here.
        clipping_norm: The bound S of this round, a public number.
        count_stddev: sigma_b, the noise standard deviation of the sum of bits.
        bits: The sum of bits.
        vectors: The sums of vectors.

    Raises:
        ConfigurationError: If the bits' noise alone would cost more than the event.
    """

    base: PrivateSum
    clipping_norm: float
    count_stddev: float

    bits: PrivateSum = field(init=False)
    vectors: PrivateSum = field(init=False)

    def __post_init__(self) -> None:
        multiplier = float(self.base.event().noise_multiplier)  # type: ignore[union-attr]  # a PrivateSum is Gaussian
        geometry = WeightGeometry.of(np.ones((1, self.base.geometry.n_clients)))
        unit = replace(self.base, clipping_norm=0.5, geometry=geometry, noise_multiplier=1.0, calibration="tight")
        count_multiplier = self.count_stddev / (unit.sensitivity() * unit.sample.rate)
        if not count_multiplier > multiplier * (1 + 1e-9):
            raise ConfigurationError(
                f"count_stddev={self.count_stddev!r} is worth a noise multiplier of {count_multiplier:.6g}, "
                f"not above the release's {multiplier:.6g}; raise count_stddev"
            )
        # The vectors' noise leaves room for the bits.
        z = self.base.noise_multiplier * _MARGIN / math.sqrt(1.0 - (multiplier / count_multiplier) ** 2)
        object.__setattr__(self, "bits", replace(unit, noise_multiplier=count_multiplier))
        object.__setattr__(self, "vectors", replace(self.base, clipping_norm=self.clipping_norm, noise_multiplier=z))

    @property
    def geometry(self) -> WeightGeometry:
        """Of the vectors' weights."""
        return self.base.geometry

    @property
    def sample(self) -> Sample:
        """The rule by which participants are drawn, the same for vectors and bits."""
        return self.base.sample

    def event(self) -> Event:
        """The price of vectors and bits together."""
        return self.base.event()

    def sensitivity(self) -> float:
        """L2 sensitivity of the released sums of vectors."""
        return self.vectors.sensitivity()

    def noise_stddev(self) -> float:
        """Noise standard deviation in every entry of the released sums of vectors."""
        return self.vectors.noise_stddev()


@settings(table="privacy.adaptive_clipping")
class AdaptiveClipping:
    """Clip at a noisy quantile of the norms, found as the run goes, within the same price.

    A statistical guarantee that rests on a fixed clipping norm (certified
    eliminations) does not hold with it; privacy is unchanged.

    Attributes:
        target_quantile: Share of vectors that should be within the bound, in (0, 1).
        learning_rate: How fast the bound moves.
        count_stddev: Noise standard deviation of the count of clients within the bound; it
            must be worth more than the release's own noise multiplier.

    Example:
        >>> AdaptiveClipping(count_stddev=10.0)
        AdaptiveClipping(count_stddev=10.0, target_quantile=0.5, learning_rate=0.2)
    """

    count_stddev: Positive
    target_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    learning_rate: Positive = 0.2


@dataclass(kw_only=True)
class QuantileClipper:
    """Public state: where the bound stands after the releases so far.

    Attributes:
        settings: Quantile gamma, rate eta, and noise sigma_b of the counts.
    """

    settings: AdaptiveClipping
    _fractions: dict[int, float] = field(default_factory=dict, init=False)

    def clipping_norm(self, initial: float) -> float:
        """The bound now, for a request that began with ``initial``."""
        drift = math.fsum(fraction - self.settings.target_quantile for fraction in self._fractions.values())
        # Far from any sensible scale the bound stops rather than overflow.
        return initial * math.exp(min(max(-self.settings.learning_rate * drift, -100.0), 100.0))

    def mechanism(self, base: PrivateSum) -> AdaptiveSum:
        """The mechanism of this round."""
        norm = self.clipping_norm(base.clipping_norm)
        return AdaptiveSum(base=base, clipping_norm=norm, count_stddev=self.settings.count_stddev)

    def absorb(self, round: int, fraction: float) -> None:  # noqa: A002 (the protocol's word)
        """Take the released fraction of a round; a round that was taken before changes nothing."""
        self._fractions.setdefault(round, min(max(fraction, 0.0), 1.0))


def clip_bits(rows: FloatArray, bound: float) -> FloatArray:
    """+1/2 for rows within ``bound``, -1/2 for longer ones, NaN for absent ones; ``(n_clients, 1)``."""
    norms = row_norms(rows)
    bits = np.where(norms <= bound, 0.5, -0.5)
    return np.where(np.isfinite(norms), bits, np.nan)[:, None]


def norm_histogram_request(edges: FloatArray, n_clients: int) -> Request:
    """The request for a private histogram of norms, a release of its own to start from.

    Clients answer with ``one_hot_norms``; ``histogram_quantile`` reads the release.
    """
    return Request(dim=len(edges) + 1, clipping_norm=1.0, weights=np.ones((1, n_clients)))


def one_hot_norms(rows: FloatArray, edges: FloatArray) -> FloatArray:
    """Each client's answer: one in the bin of its norm, ``(n_clients, len(edges) + 1)``; NaN if absent."""
    norms = row_norms(rows)
    present = np.isfinite(norms)
    hot = np.zeros((len(rows), len(edges) + 1))
    hot[np.arange(len(rows)), np.searchsorted(edges, np.where(present, norms, 0.0))] = 1.0
    hot[~present] = np.nan
    return hot


def histogram_quantile(values: FloatArray, edges: FloatArray, quantile: float) -> float:
    """The edge nearest to a quantile of the released histogram (post-processing).

    Args:
        values: The release's values, ``(1, len(edges) + 1)``.
        edges: Increasing positive bin edges.
        quantile: In (0, 1).
    """
    below = np.cumsum(values[0])[:-1]
    return float(edges[np.argmin(np.abs(below - quantile * values[0].sum()))])
