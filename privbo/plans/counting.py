"""Requests of a plan as mechanisms with their counts, and as the one event that pays for them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable

from accountant.disjoint import dearest
from accountant.events import Event
from accountant.rounds import of_one_run
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


def whole_event(privacy: Privacy | NoPrivacy, counts: Counter[Mechanism], z: float | None) -> Event:
    """Give the event of all releases together, at a run's multiplier.

    Raises:
        ConfigurationError: If they have no price together.
    """
    each = [(priced(mechanism, z).event(), count) for mechanism, count in counts.items()]
    if privacy.unit == "reward":
        return dearest(event for event, _ in each)
    whole = of_one_run(each)
    if isinstance(privacy, Privacy) and privacy.sampling == "random-allocation" and len(whole.parts) > 1:
        multipliers = ", ".join(sorted({f"{part.noise_multiplier:.4g}" for part, _ in whole.parts}))  # type: ignore[union-attr]  # all are allocations
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
