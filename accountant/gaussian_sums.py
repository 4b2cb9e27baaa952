"""Events of sums with Gaussian noise, by who takes part; ``accountant.events`` has all events."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from accountant.errors import EventError
from accountant.fields import as_float, as_floats, as_positive_int


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A vector query answered with Gaussian noise in every coordinate; everybody takes part.

    The worst pair is N(0, z^2) against N(1, z^2), under every adjacency.

    Proof: docs/proofs/gaussian-sum.md.

    Attributes:
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, gaussian_dp
        >>> event = Gaussian(noise_multiplier=2.0)
        >>> round(gaussian_dp.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT), 3)
        1.993
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class PoissonSampledGaussian:
    """Every unit joins independently with probability q, in secret; then a Gaussian sum.

    The sum must not be divided by the realised number of participants. Worst pairs:

    - add-or-remove-one and zero-out: (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has norm at most 1/2):
      (1-q) N(0, z^2) + q N(1/2, z^2) against (1-q) N(0, z^2) + q N(-1/2, z^2).

    Proof: docs/proofs/poisson.md.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> PoissonSampledGaussian(sample_rate=1.5, noise_multiplier=1.0)
        Traceback (most recent call last):
        accountant.errors.EventError: PoissonSampledGaussian.sample_rate must lie in (0, 1], got 1.5
    """

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        as_float(self, "sample_rate", 0.0, 1.0)
        as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampledGaussian:
    """Exactly ``sample_size`` of ``n_clients`` units take part, drawn uniformly, in secret.

    Without unit n another unit takes the slot, so the noise multiplier is relative to
    the shift *between two occupants of one slot* (``replace-one`` sensitivity), under
    zero-out as well. Undefined under add-or-remove-one, where n_clients itself differs.
    What is known of the pair is its profile: with q = sample_size / n_clients,
    H_{1+q(g-1)}(P || Q) <= q * H_g(N(1, z^2) || N(0, z^2)) for g >= 1, in both directions
    (Balle, Barthe, Gaboardi 2018, Theorem 10).

    Proof: docs/proofs/fixed-size.md.

    Attributes:
        n_clients: Number of units the sample is drawn from; public.
        sample_size: Number of units drawn, 1 to ``n_clients``.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=1.0).sample_rate
        0.25
    """

    n_clients: int
    sample_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_clients", "sample_size"):
            object.__setattr__(self, name, as_positive_int(owner, name, getattr(self, name)))
        if self.sample_size > self.n_clients:
            raise EventError(f"{owner}.sample_size must be at most n_clients={self.n_clients}, got {self.sample_size}")
        as_float(self, "noise_multiplier", 0.0, math.inf)

    @property
    def sample_rate(self) -> float:
        """q, the chance that one given unit is drawn."""
        return self.sample_size / self.n_clients


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampledGaussian:
    """Every unit joins with probability q, in secret; of more than B a uniform B stay; then a Gaussian sum.

    A bounded batch: no release has more than ``batch_size`` participants. The sum must not be divided by the realised
    number of participants. The noise multiplier is relative to the *Poisson* sensitivity (one contribution, or twice
    that under replace-one). What dominates is, with t the chance that at least B of the other N - 1 units
    join and q_T the chance of staying in such a batch (``accountant.truncation``),

    - with probability 1 - t a Poisson sample at rate q: fewer than B others joined, so nobody is cut and the others'
      coins are independent of our unit's;
    - with probability t a full batch in which our unit is with chance q_T, and another in its place where it is not,
      so that two contributions move (``accountant.truncation`` has the pair of every adjacency).

    Which of the two it is depends on the others' coins alone, hence has the same law in both data sets; telling it
    only helps the adversary (joint convexity). Of the
    pair that dominates the upper end of an interval is taken; the lower end is what data sets attain in which all
    others contribute zero, a Poisson sample at the chance of being in the batch (``accountant.verify.lower``). Where
    samples are often cut both ends lie far apart, because others that oppose the unit show whether it took a place:
    40 releases at N = 40, q = 1/4, z = 2, delta = 1e-5 under zero-out cost 3.95 to 4.01 with B = 16 and 3.79 to 4.43
    with B = 12.

    Proof: docs/proofs/truncated-poisson.md.

    .. versionadded:: 0.3.0

    Attributes:
        n_clients: N, number of units that toss coins, of the larger data set under add-or-remove-one.
        sample_rate: q in (0, 1].
        batch_size: B, the largest number of participants, at least 1; at N or above nobody is ever cut.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> bounded = TruncatedPoissonSampledGaussian(
        ...     n_clients=1000, sample_rate=0.05, batch_size=80, noise_multiplier=1.0
        ... )
        >>> poisson = PoissonSampledGaussian(sample_rate=0.05, noise_multiplier=1.0)
        >>> prices = [numerical.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (bounded, poisson)]
        >>> 1.0 <= prices[0] / prices[1] < 1.01
        True
    """

    n_clients: int
    sample_rate: float
    batch_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_clients", "batch_size"):
            object.__setattr__(self, name, as_positive_int(owner, name, getattr(self, name)))
        as_float(self, "sample_rate", 0.0, 1.0)
        as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class RandomAllocationGaussian:
    """A whole run of Gaussian sums: every unit takes part in exactly k of T rounds, at secret random times.

    Every unit's set of rounds is a uniform k-subset, drawn once before the first round, independently of all others';
    also called balls in bins (k = 1). It is one event for all T releases, each a sum that must not be divided by the
    realised number of participants; later queries may depend on earlier answers. The worst pair, exact, is the
    uniform mixture over k-subsets S of N(1_S, z^2 I) against N(0, z^2 I), both directions: given S, what the run
    answers is made round by round from 1_S and noise alone, along the direction that the unit contributes, whatever
    that depends on. It holds under add-or-remove-one and zero-out, where the others' rounds do not depend on the
    unit; under replace-one nothing is stated.

    For k > 1 it is priced as k independent allocations of one, each of T // k rounds or one more, an upper bound
    (``accountant.allocation`` has the proof); these have a dominating pair (``accountant.tight.allotted``). The lower
    end of an interval is a test's of the worst pair itself (``accountant.verify.lower``).

    Proof: docs/proofs/random-allocation.md.

    .. versionadded:: 0.3.0

    Attributes:
        n_rounds: T, number of releases.
        participations: k, 1 to ``n_rounds``.
        noise_multiplier: z, noise standard deviation of one release over one contribution's sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, renyi
        >>> event = RandomAllocationGaussian(n_rounds=100, participations=1, noise_multiplier=1.0)
        >>> openly = Gaussian(noise_multiplier=1.0)
        >>> prices = [renyi.epsilon(one, 1e-5, adjacency=Adjacency.ZERO_OUT) for one in (event, openly)]
        >>> prices[0] < 0.7 * prices[1]
        True
    """

    n_rounds: int
    participations: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_rounds", "participations"):
            object.__setattr__(self, name, as_positive_int(owner, name, getattr(self, name)))
        if self.participations > self.n_rounds:
            raise EventError(
                f"{owner}.participations must be at most n_rounds={self.n_rounds}, got {self.participations}"
            )
        as_float(self, "noise_multiplier", 0.0, math.inf)

    @property
    def sample_rate(self) -> float:
        """Chance that one given unit is in one given release: k / T."""
        return self.participations / self.n_rounds


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussians:
    """A Gaussian sum that one unit, or a group of them, moves by a length drawn in secret.

    The worst pair is the mixture of N(c_j, z^2) with chances p_j against N(0, z^2), both directions
    (``accountant.group`` has the proof for vectors, and makes this event for a group in a Poisson sample). It is
    stated under add-or-remove-one and zero-out.

    Proof: docs/proofs/groups.md.

    .. versionadded:: 0.3.0

    Attributes:
        noise_multiplier: z, the noise's standard deviation in the unit of the lengths; positive.
        sensitivities: c_j, lengths of at least 0 that rise; the last is positive.
        chances: p_j, positive, one for every length; they sum to 1.

    Example:
        >>> from accountant import Adjacency, numerical, repeat
        >>> two = MixtureOfGaussians(noise_multiplier=2.0, sensitivities=(0.0, 1.0), chances=(0.75, 0.25))
        >>> one = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
        >>> prices = [numerical.epsilon(repeat(event, 40), 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (two, one)]
        >>> abs(prices[0] - prices[1]) < 1e-6
        True
    """

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        as_float(self, "noise_multiplier", 0.0, math.inf)
        lengths, chances = (as_floats(self, name) for name in ("sensitivities", "chances"))
        rising = all(low < high for low, high in itertools.pairwise((-math.ulp(0.0), *lengths)))
        if not (lengths and rising and 0.0 < lengths[-1] < math.inf):
            raise EventError(f"MixtureOfGaussians.sensitivities must rise from at least 0, got {lengths!r}")
        one = len(chances) == len(lengths) and min(chances) > 0.0 and abs(math.fsum(chances) - 1.0) <= 1e-14
        if not one:
            raise EventError(
                f"MixtureOfGaussians.chances must be positive, one for each length, and sum to 1, got {chances!r}"
            )
