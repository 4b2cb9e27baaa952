"""The envelope filter: slots reserved and priced tightly together, which releases take as they come.

.. versionadded:: 0.3.0

An envelope is K slots, each a rate and a noise multiplier (or another event), fixed and
recorded before the first release. A release is admitted if a free slot *dominates* it; it takes
that slot for good. Which releases are asked for, in what order, by which run and into which
slot they go may all depend on earlier outputs. What is quoted is the tight price of all K slots,
from the first release on; free slots can be spent later, by any run that shares the ledger.

**Claim.** Let (P_i, Q_i) be the dominating pair of slot i. For neighbouring data sets D, D', the
pair of laws of everything released is made by a kernel from (P_1 x ... x P_K, Q_1 x ... x Q_K).
So delta(epsilon) of the whole interaction is at most that of the product, at every epsilon at once.

**Assumptions.**
(1) One unit of privacy, one adjacency, and D, D' fixed before the first release: hence one
direction of the adjacency throughout. The price is the larger of both directions of the product.
(2) A release is *one-shot*: its event is fixed when it is admitted, and its coins and its noise
are fresh and serve nothing else. Several releases charged as one are as many one-shot releases.
(3) A slot is taken once and never given back or exchanged.
(4) Domination means: a kernel makes the release's dominating pair from the slot's, and with that
(Blackwell 1953; ``accountant.mechanisms``) a kernel N makes M(D) from P_i and M(D') from Q_i, for every
mechanism M that the release's event describes.

**Proof.** Draw X_1, ..., X_K independently, X_i from P_i (or all from Q_i), and play the
interaction: before step t the outputs o_1 ... o_{t-1} decide what is asked, M_t, and the free slot
s(t) it takes; output o_t = N_t(X_s(t)) with N_t from (4). The slot was free, so X_s(t) entered no
earlier output and is independent of them: given these, o_t has the law M_t(D) (or M_t(D')). Thus the
transcript has the law of the real interaction under D (under D'), and it was made from the X_i
without knowing which of the two they came from: post-processing, which lowers no delta. Slots
stayed free are X_i that no one looked at. Releases that are open at the same time change
nothing: each needs its own X_i only, whenever it answers.

**A whole run as one slot.** Random allocation answers T times, and other releases may be made in between. Its X_i is
1_S + N(0, z^2 I) over T rounds (N(0, z^2 I) without the unit). With v, |v| <= 1, what the unit contributes in round t,
the answer then has the law of v X_i[t] + N(0, z^2 (I - v v')), whatever v depends on, outputs of other slots among it:
so N_t reads X_i[t] alone, and the proof stands with every round as a step. The slot is taken whole, at the run's begin.

**Slots of which a Rényi curve is all that is known** (``ZeroConcentrated``, ``BestOfRandomRuns``) have no X_i. With one
of them the price of all slots together is Rényi's bound, and what was made adds up, at every order and whatever was
chosen, to no more than all slots' curves (Feldman and Zrnic 2021, Theorem 3.1): a release's curve lies nowhere above
its slot's, as domination implies too.

Without (3) the proof fails: had a release been made in one slot and booked on another later on,
N_t would depend on outputs that did not exist yet.

**Domination is known for** (z, z' noise multipliers, q, q' rates; the slot's without prime):

| slot | release | if | why |
|---|---|---|---|
| Gaussian or Poisson-sampled | Gaussian or Poisson-sampled | q' <= q, z' >= z | thinning, below |
| Gaussian or fixed-size-sampled | any of the three | q' <= q, z' >= z | by profiles, below |
| Laplace or Poisson-sampled Laplace | the same two | q' <= q, b' >= b | more noise, and thinning, below |
| truncated Poisson, random allocation, mixture of Gaussians | alike but for z' | z' >= z | added noise |
| zero-concentrated | the same | rho' <= rho, xi' <= xi | curves |
| best of random runs | the same | equal | curves |

Full participation has q = 1. Thinning: with probability q'/q hand on X + N(0, z'^2 - z^2), else draw
N(0, z'^2); this makes the release's two mixtures from the slot's under every adjacency. Laplace noise likewise, with
X + Y, Y = 0 with probability (b/b')^2 and else Laplace(b'), which has the law of Laplace(b') by characteristic
functions. Profiles: that of a sample of fixed size is
q H_{1+(g-1)/q}(N(1, z^2) || N(0, z^2)) at g >= 1 in both directions, the largest over sets A of
q (P(A) - Q(A)) - (g-1) Q(A), which grows with q and falls with z. A Poisson-sampled pair's is no larger, by
advanced joint convexity (Balle, Barthe, Gaboardi 2018, Theorem 2), under every adjacency. A profile
nowhere above another is made from it by a kernel (Blackwell).
A release without any guarantee is refused.

Example:
    >>> from accountant import Adjacency, Gaussian, PoissonSampledGaussian, repeat
    >>> slot = PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0)
    >>> places = free_places(envelope(repeat(slot, 100), adjacency=Adjacency.ZERO_OUT))
    >>> quieter = PoissonSampledGaussian(sample_rate=0.05, noise_multiplier=1.5)
    >>> places.take(repeat(quieter, 30)).take(repeat(slot, 70)).take(quieter) is None  # all slots are taken
    True
    >>> places.take(Gaussian(noise_multiplier=50.0)) is None  # no rate is named that covers everybody
    True
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np

from accountant import events, renyi
from accountant.errors import AccountingError
from accountant.events import Adjacency, Basic, Composed, Event, check_adjacency, compose, parts
from accountant.tight import numerical

SampledGaussian: TypeAlias = events.Gaussian | events.PoissonSampledGaussian | events.FixedSizeSampledGaussian
SampledLaplace: TypeAlias = events.Laplace | events.PoissonSampledLaplace
Noisy: TypeAlias = events.MixtureOfGaussians | events.RandomAllocationGaussian | events.TruncatedPoissonSampledGaussian
Slots: TypeAlias = tuple[tuple[Basic, int], ...]


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Slots that were priced together before the first release; make it with ``envelope``.

    Proof: docs/proofs/filters.md.

    Attributes:
        slots: Kinds of slots with their counts, in the order in which they are tried.
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: If there is no slot, or one without any guarantee.
        EventError: If a slot is unsound under the adjacency.
    """

    slots: Slots
    adjacency: Adjacency

    def __post_init__(self) -> None:
        if not self.slots:
            raise AccountingError("an envelope without slots admits nothing; declare at least one")
        for slot, _ in self.slots:
            if isinstance(slot, events.NonPrivate):
                raise AccountingError(f"{slot} can be no slot of an envelope: all slots together would cost infinity")
            check_adjacency(slot, self.adjacency)

    @property
    def event(self) -> Composed:
        """All slots together."""
        return compose(self.slots)

    def epsilon_at(self, delta: float) -> float:
        """Epsilon of all slots together: guaranteed at every delta, whatever was chosen adaptively."""
        return numerical.epsilon(self.event, delta, adjacency=self.adjacency)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Slots that are still free, kind by kind, in the envelope's order."""

    envelope: Envelope
    free: tuple[int, ...]

    def take(self, event: Event) -> Self | None:
        """The places left once ``event`` has taken its slots, each in the first that dominates it; None if none do."""
        check_adjacency(event, self.envelope.adjacency)
        free = list(self.free)
        for release, count in parts(event):
            for index, (slot, _) in enumerate(self.envelope.slots):
                if count and dominates(slot, release):
                    taken = min(count, free[index])
                    free[index], count = free[index] - taken, count - taken  # noqa: PLW2901 (counted down)
            if count:
                return None
        return replace(self, free=tuple(free))


def envelope(slots: Event, *, adjacency: Adjacency) -> Envelope:
    """Reserve the parts of ``slots``, to be tried in the order of their Rényi divergences of order two.

    A slot that dominates another comes after it, so that a release takes the least it needs.

    Raises:
        AccountingError: If there is no slot, or one without any guarantee.
        EventError: If a slot is unsound under the adjacency.
    """
    unordered = Envelope(slots=parts(slots), adjacency=adjacency)
    costs = [float(renyi.curve(slot, np.array([2.0]), adjacency=adjacency)[0]) for slot, _ in unordered.slots]
    order = sorted(range(len(costs)), key=lambda index: costs[index])
    return replace(unordered, slots=tuple(unordered.slots[index] for index in order))


def free_places(reserved: Envelope) -> Places:
    """All slots of an envelope, none taken."""
    return Places(envelope=reserved, free=tuple(count for _, count in reserved.slots))


def dominates(slot: Basic, release: Basic) -> bool:
    """Tell whether ``release`` is proven to be made from ``slot``'s pair by a kernel; see the module's table.

    Example:
        >>> from accountant.events import PoissonSampledGaussian
        >>> slot = PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=1.0)
        >>> [dominates(slot, PoissonSampledGaussian(sample_rate=q, noise_multiplier=2.0)) for q in (0.1, 0.2, 0.3)]
        [True, True, False]
    """
    if isinstance(slot, SampledGaussian) and isinstance(release, SampledGaussian):
        in_both_directions = slot.sample_rate == 1.0 or isinstance(slot, events.FixedSizeSampledGaussian)
        known = in_both_directions or isinstance(release, events.PoissonSampledGaussian)
        return known and release.noise_multiplier >= slot.noise_multiplier and release.sample_rate <= slot.sample_rate
    if isinstance(slot, SampledLaplace) and isinstance(release, SampledLaplace):
        return release.scale_multiplier >= slot.scale_multiplier and release.sample_rate <= slot.sample_rate
    if isinstance(slot, Noisy) and isinstance(release, Noisy) and release.noise_multiplier >= slot.noise_multiplier:
        return replace(release, noise_multiplier=slot.noise_multiplier) == slot
    if isinstance(slot, events.ZeroConcentrated) and isinstance(release, events.ZeroConcentrated):
        return release.rho <= slot.rho and release.xi <= slot.xi
    return isinstance(slot, events.BestOfRandomRuns) and slot == release
