"""Requests of a plan as mechanisms with their counts, and as the one event that pays for them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable

from accountant.events import Event, most_expensive, of_one_run
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request


def counted(privacy: Privacy | NoPrivacy, requests: Iterable[Request]) -> Counter[tuple[Mechanism, int]]:
    """Give mechanisms for a multiplier of 1 and how many numbers they release."""
    found = Counter((privacy.mechanism(request, 1.0), request.dim * request.n_blocks) for request in requests)
    counts = Counter[tuple[Mechanism, int]]()
    for (mechanism, numbers), count in found.items():
        counts[_over(mechanism, found.total()), numbers] += count
    return counts


def _over(mechanism: Mechanism, n_releases: int) -> Mechanism:
    """The mechanism in a plan of so many releases, which matters where one draw serves them all."""
    if isinstance(mechanism, PrivateSum) and mechanism.sample.is_allocation:
        return dataclasses.replace(mechanism, n_releases=n_releases)
    return mechanism


def merged(asked: Counter[tuple[Mechanism, int]]) -> Counter[Mechanism]:
    """Give mechanisms with their counts, whatever the number of numbers."""
    counts: Counter[Mechanism] = Counter()
    for (mechanism, _), count in asked.items():
        counts[mechanism] += count
    return counts


def over_noise(asked: Counter[tuple[Mechanism, int]], z: float | None) -> float | None:
    """Give the largest norms over the noise's expected norms, together: releases of one vector could be averaged."""
    square = 0.0
    for (mechanism, numbers), count in asked.items():
        made = priced(mechanism, z)
        if isinstance(made, PrivateSum):
            square += count * (made.largest_norm() / made.noise_stddev()) ** 2 / numbers
    return math.sqrt(square) if square else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignalToNoise:
    """The most that releases of one kind can say.

    Attributes:
        count: Number of releases in the plan.
        largest_sum: Norm of what is released where every client answers alike, as loud as it may, without its noise.
        noise: Norm that its noise has on average.
    """

    count: int
    largest_sum: float
    noise: float

    @property
    def text(self) -> str:
        """The two norms side by side."""
        what = "a release" if self.count == 1 else f"each of {self.count} releases"
        beside = f"noise of expected norm {self.noise:.3g}"
        return f"{what}: largest possible sum of norm {self.largest_sum:.3g} beside {beside}"


def signal_to_noise(made: Iterable[tuple[Mechanism, Request]]) -> tuple[SignalToNoise, ...]:
    """Say of every kind of release the most that it can say, in the plan's order; equal to three digits is one kind."""
    kinds: dict[tuple[str, str], SignalToNoise] = {}
    for mechanism, request in made:
        if isinstance(mechanism, PrivateSum):
            largest, numbers = mechanism.largest_norm(), request.dim * request.n_blocks
            noise = mechanism.noise_stddev() * math.sqrt(numbers)
            kind = (f"{largest:.3g}", f"{noise:.3g}")
            count = kinds[kind].count + 1 if kind in kinds else 1
            kinds[kind] = SignalToNoise(count=count, largest_sum=largest, noise=noise)
    return tuple(kinds.values())


def whole_event(privacy: Privacy | NoPrivacy, counts: Counter[Mechanism], z: float | None) -> Event:
    """Give the event of all releases together, at a run's multiplier.

    Raises:
        ConfigurationError: If they have no price together.
    """
    each = [(priced(mechanism, z).event(), count) for mechanism, count in counts.items()]
    if privacy.unit == "reward":
        return most_expensive(event for event, _ in each)
    whole = of_one_run(each)
    if isinstance(privacy, Privacy) and privacy.sampling == "random-allocation" and len(whole.parts) > 1:
        multipliers = ", ".join(sorted({f"{part.noise_multiplier:.4g}" for part, _ in whole.parts}))
        raise ConfigurationError(
            "sampling='random-allocation' has a price where all releases have one noise multiplier; this plan's differ "
            f"({multipliers}); use sampling='poisson', or releases of equal noise"
        )
    return whole


def priced(mechanism: Mechanism, z: float | None) -> Mechanism:
    """Give a mechanism that was made for a multiplier of 1 at a run's multiplier."""
    if isinstance(mechanism, PrivateSum) and z is not None:
        # It was made for a run's multiplier of 1, so what it has is its scale.
        return dataclasses.replace(mechanism, noise_multiplier=z * mechanism.noise_multiplier)
    return mechanism
