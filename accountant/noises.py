"""Sums of independent noises, each enough alone: the price of the same releases for those who know fewer of them.

Guardians of a federation each add a rounded Gaussian of standard deviation s grid units to one sum, s at least 2^10.
Whoever knows none of G noises sees the sum under all of them, one guardian under G - 1, the server with G - 1 guardians
under one.

A sum of k rounded Gaussians is no rounded Gaussian. Up to a total variation of 3 k M exp(-s^2 pi^2 / 2) + tails, below
2^-1000 here, it is the rounding of one Gaussian of standard deviation s sqrt(k) to which k - 1 independent uniform
numbers of width 1 were added; both are made after the Gaussian, so they cost nothing. What is left of delta after
``SLACK`` pays for the difference.
"""

from __future__ import annotations

import dataclasses
import math

from accountant.errors import EventError
from accountant.events import Composed, Event, Gaussian, NonPrivate, PoissonSampledGaussian, compose, parts

SLACK = 2.0**-40
"""Share of delta and of the multiplier that is given up: for the rounding of the noises, and of the square root."""


def of_noises(event: Event, *, counted: int, unknown: int) -> Composed:
    """Give the event of the same releases for somebody to whom ``unknown`` of the independent noises are unknown.

    Proof: docs/proofs/guardians.md.

    Args:
        event: Gaussian releases, everybody's or a Poisson sample's, as a ledger was charged for them.
        counted: Number of noises that this event counts on.
        unknown: Number of noises that the other one does not know; at least 1.

    Raises:
        EventError: If a part of the event has no such noise, or a number is below 1.

    Example:
        >>> of_noises(Gaussian(noise_multiplier=2.0), counted=1, unknown=4)
        Composed(parts=((Gaussian(noise_multiplier=3.9999999999963...), 1),))
    """
    if min(counted, unknown) < 1:
        raise EventError(f"counted={counted!r}, unknown={unknown!r}: both must be integers >= 1")
    if counted == unknown:
        return compose([event])
    factor = math.sqrt(unknown / counted) * (1.0 - SLACK)
    return compose((_scaled(part, factor), count) for part, count in parts(event))


def _scaled(part: Event, factor: float) -> Event:
    if isinstance(part, NonPrivate):
        return part
    if isinstance(part, Gaussian | PoissonSampledGaussian):
        return dataclasses.replace(part, noise_multiplier=part.noise_multiplier * factor)
    raise EventError(f"{part} is no sum of guardians' noises; price it as it is")
