"""Accounting against Opacus and dp-accounting, CPU seconds, both sides measured in this run.

Settings A to G, of which F and G sample rarely with little noise, and calibration at epsilon 1 and 10. Each peer is
measured at its defaults and, where it has a resolution, at the coarsest one that stays within 1e-3 of the truth (our
certified interval is the truth; rows say which resolution that was; no row where none does, or the peer stops with an
error). Ours is the tight accountant with its certificate, without any cache: pairs and curves are recomputed. Both
sides of a row are the smaller of as many calls, and import nothing while the clock runs. Calibrations end where each
side ends by default: ours within .1 % below the target epsilon, Opacus within .01 of it; long ones stand beside a bar.
A ledger's charges are in ``benchmarks.ledger_and_noise``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TypeVar
from unittest.mock import patch

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from accountant import calibrate, renyi
from accountant.dp_event import to_dp_event
from accountant.events import Adjacency, Event, PoissonSampledGaussian, compose, parts, repeat
from accountant.tight import numerical, refine
from accountant.tight.bounds import LowerSums, Place
from benchmarks._rows import TRANSCENDENTAL, Limit, Row, least, smallest

T = TypeVar("T")

ADD = Adjacency.ADD_OR_REMOVE_ONE
INTERVALS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
DELTA = 1e-5

# 40 rounds with unequal rates and multipliers: (sample rate, noise multiplier)
ROUNDS_E = [
    (0.130769, 0.8), (0.1, 0.830769), (0.315385, 0.861538), (0.253846, 0.892308), (0.330769, 0.923077),
    (0.176923, 0.953846), (0.192308, 0.984615), (0.346154, 1.015385), (0.246154, 1.046154), (0.169231, 1.076923),
    (0.207692, 1.107692), (0.269231, 1.138462), (0.307692, 1.169231), (0.392308, 1.2), (0.123077, 1.230769),
    (0.284615, 1.261538), (0.4, 1.292308), (0.3, 1.323077), (0.2, 1.353846), (0.230769, 1.384615),
    (0.238462, 1.415385), (0.376923, 1.446154), (0.369231, 1.476923), (0.384615, 1.507692), (0.161538, 1.538462),
    (0.153846, 1.569231), (0.107692, 1.6), (0.353846, 1.630769), (0.215385, 1.661538), (0.323077, 1.692308),
    (0.146154, 1.723077), (0.223077, 1.753846), (0.276923, 1.784615), (0.292308, 1.815385), (0.138462, 1.846154),
    (0.115385, 1.876923), (0.338462, 1.907692), (0.361538, 1.938462), (0.261538, 1.969231), (0.184615, 2.0),
]  # fmt: skip


def poisson(q: float, z: float, count: int = 1) -> Event:
    """``count`` Poisson-sampled Gaussian releases."""
    return repeat(PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), count)


SETTINGS: dict[str, tuple[Event, float]] = {
    "A": (poisson(0.25, 1.0, 40), 200**-1.1),
    "B": (poisson(0.35, 1.0, 60), 200**-1.1),
    "C": (poisson(0.01, 1.1, 10_000), DELTA),
    "D": (poisson(0.001, 0.8, 100_000), DELTA),
    "E": (compose(poisson(q, z) for q, z in ROUNDS_E), DELTA),
    "F": (poisson(1e-4, 0.6, 10_000), 1e-8),
    "G": (poisson(1e-5, 0.4, 10_000), DELTA),
}
CALIBRATIONS = (  # rate, rounds, epsilon, delta
    (0.25, 40, 1.0, DELTA),
    (3e-3, 3_000, 1.0, DELTA),
    (1e-3, 10**5, 8.0, DELTA),
    (1e-3, 10**6, 8.0, DELTA),
    (1e-4, 10**5, 0.5, 1e-8),
    (5e-5, 10**6, 0.5, 1e-8),
    (1e-5, 10**6, 0.5, 1e-8),
)
REPEATS = 2


def fresh(work: Callable[[], T]) -> Callable[[], T]:
    """``work`` with every cache of the accountant emptied first."""

    def run() -> T:
        numerical._pairs.cache_clear()
        renyi._cached.cache_clear()
        return work()

    return run


def pld_epsilon(event: Event, delta: float, interval: float | None) -> float:
    """dp-accounting's tight epsilon; ``None`` is its default interval."""
    options = {} if interval is None else {"value_discretization_interval": interval}
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, **options)
    accountant.compose(to_dp_event(event, adjacency=ADD))
    return float(accountant.get_epsilon(delta))


def rdp_epsilon(event: Event, delta: float) -> float:
    """dp-accounting's Rényi epsilon at its default orders."""
    accountant = RdpAccountant()
    accountant.compose(to_dp_event(event, adjacency=ADD))
    return float(accountant.get_epsilon(delta))


def opacus_epsilon(mechanism: str, event: Event, delta: float) -> float:
    """Epsilon of an Opacus accountant at its defaults."""
    from opacus.accountants import create_accountant

    accountant = create_accountant(mechanism)
    accountant.history = history(event)
    return float(accountant.get_epsilon(delta))


def history(event: Event) -> list[tuple[float, float, int]]:
    """The event as Opacus keeps it: noise multiplier, sample rate, count."""
    steps = [(part, count) for part, count in parts(event) if isinstance(part, PoissonSampledGaussian)]
    return [(part.noise_multiplier, part.sample_rate, count) for part, count in steps]


def coarse_interval(event: Event, delta: float, truth: float) -> float | None:
    """The coarsest interval at which dp-accounting is within 1e-3 of the truth, or None."""
    for interval in INTERVALS:
        if abs(pld_epsilon(event, delta, interval) - truth) <= 1e-3 * truth:
            return interval
    return None


def coarse_prv(event: Event, delta: float, truth: float) -> float | None:
    """The coarsest error parameter at which Opacus PRV is within 1e-3 of the truth, or None."""
    for error in (0.3, 0.1, 0.03, 0.01, 0.003):
        if abs(prv_epsilon(event, delta, error) - truth) <= 1e-3 * truth:
            return error
    return None


def prv_epsilon(event: Event, delta: float, error: float) -> float:
    """Opacus PRV epsilon at an error parameter."""
    from opacus.accountants import create_accountant

    accountant = create_accountant("prv")
    accountant.history = history(event)
    return float(accountant.get_epsilon(delta, eps_error=error))


def rows() -> Iterator[Row]:
    """All measurements."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("opacus.accountants.utils")
        for name, (event, delta) in SETTINGS.items():
            yield from epsilon_rows(name, event, delta)
        for target in (1.0, 10.0):
            yield from calibration_rows(target)
        yield from calibration_bars()
    logging.disable(logging.NOTSET)


def epsilon_rows(name: str, event: Event, delta: float) -> Iterator[Row]:
    """Tight against tight at two resolutions, Rényi against Rényi."""
    certified = fresh(lambda: numerical.epsilon_interval(event, delta, adjacency=ADD))
    ours, found = smallest(certified, REPEATS), certified()
    truth = 0.5 * (found.lower + found.upper)
    tight, quick = f"accounting {name} tight", f"accounting {name} renyi"
    limit = last_look(certified)
    seconds = smallest(lambda: pld_epsilon(event, delta, None), REPEATS)
    yield Row(tight, ours, "dp-accounting PLD, default interval", seconds, least=limit)
    interval = coarse_interval(event, delta, truth)
    if interval is not None:
        seconds = smallest(lambda: pld_epsilon(event, delta, interval), REPEATS)
        yield Row(tight, ours, f"dp-accounting PLD, interval {interval:g}", seconds)
    with contextlib.suppress(RuntimeError, ValueError, OverflowError):
        seconds = smallest(lambda: opacus_epsilon("prv", event, delta), REPEATS)
        yield Row(tight, ours, "Opacus PRV, default", seconds)
        error = coarse_prv(event, delta, truth)
        if error is not None:
            seconds = smallest(lambda: prv_epsilon(event, delta, error), REPEATS)
            yield Row(tight, ours, f"Opacus PRV, error {error:g}", seconds)
    ours = smallest(fresh(lambda: renyi.epsilon(event, delta, adjacency=ADD)), REPEATS)
    seconds = smallest(lambda: rdp_epsilon(event, delta), REPEATS)
    yield Row(quick, ours, "dp-accounting RDP, default orders", seconds)
    seconds = smallest(lambda: opacus_epsilon("rdp", event, delta), REPEATS)
    yield Row(quick, ours, "Opacus RDP, default orders", seconds)


def last_look(work: Callable[[], object]) -> Limit:
    """Give the time of the longest look of a certified interval at the machine's peak: this method needs one at least.

    A look transforms the lattice of every part three times (above, and P and Q below), takes powers of the transforms,
    and goes back three times. What fills the lattice, distribution functions of the normal, is not counted.
    """
    longest = 0.0
    lower = vars(refine)["lower_sums"]

    def counted(place: Place) -> LowerSums:
        nonlocal longest
        found: LowerSums = lower(place)
        parts = len(place.pairs)
        points = len(found.p.tilted)
        transform = 2.5 * points * math.log2(max(points, 2))
        longest = max(longest, 3.0 * ((parts + 1) * transform + (parts * points / 2.0) * 2.0 * TRANSCENDENTAL))
        return found

    with patch.object(refine, "lower_sums", counted):
        work()
    return least(flops=longest)


def calibration_rows(target: float) -> Iterator[Row]:
    """The noise multiplier of 1,000 steps at rate 0.01."""
    from opacus.accountants.utils import get_noise_multiplier

    def plan(z: float) -> Event:
        return poisson(0.01, z, 1000)

    def ours() -> float:
        return calibrate.noise_multiplier(plan, epsilon=target, delta=DELTA, adjacency=ADD)

    def ours_renyi() -> float:
        return calibrate.noise_multiplier(plan, epsilon=target, delta=DELTA, adjacency=ADD, accountant=renyi.epsilon)

    def theirs_dp() -> float:
        return float(
            dp.calibrate_dp_mechanism(
                lambda: PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE),
                lambda z: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(z)), 1000),
                target,
                DELTA,
                dp.LowerEndpointAndGuess(0.3, 1.0),
            )
        )

    def theirs_opacus(mechanism: str) -> float:
        return float(
            get_noise_multiplier(
                target_epsilon=target, target_delta=DELTA, sample_rate=0.01, steps=1000, accountant=mechanism
            )
        )

    name = f"calibration epsilon {target:g}"
    mine = smallest(fresh(ours), REPEATS)
    seconds = smallest(theirs_dp, REPEATS)
    yield Row(f"{name} tight", mine, "dp-accounting PLD, default", seconds)
    seconds = smallest(lambda: theirs_opacus("prv"), REPEATS)
    yield Row(f"{name} tight", mine, "Opacus PRV, default", seconds)
    seconds = smallest(lambda: theirs_opacus("rdp"), REPEATS)
    yield Row(f"{name} tight", mine, "Opacus RDP, default (looser)", seconds)
    mine = smallest(fresh(ours_renyi), REPEATS)
    yield Row(f"{name} renyi", mine, "Opacus RDP, default", seconds)


def calibration_bars() -> Iterator[Row]:
    """Calibrations that are long ones, without a peer: the bars are a tenth of a second at rates of 1e-3, else one."""
    for rate, rounds, target, delta in CALIBRATIONS:

        def ours(rate: float = rate, rounds: int = rounds, target: float = target, delta: float = delta) -> float:
            return calibrate.noise_multiplier(
                lambda z: poisson(rate, z, rounds), epsilon=target, delta=delta, adjacency=ADD
            )

        bar = 0.1 if rate >= 1e-3 else 1.0
        name = f"calibration at rate {rate:g}, {rounds:g} rounds, epsilon {target:g}"
        limit = last_look(fresh(ours))
        yield Row(name, smallest(fresh(ours), REPEATS), f"the bar of {bar:g} s", bar, kind="bar", least=limit)
