"""Certified intervals of settings drawn at random, held against oracles.

``python -m benchmarks._random_settings 10000 --seed 1`` draws kinds of releases, their parameters, their number, and
delta, and computes both ends of epsilon under add-or-remove-one. It prints, by kind and region, how many settings were
run, how many an oracle resolved, what was found broken, and the worst width relative to the upper end: of those that
keep the promise (``Interval.is_tight``), and of those that say that they do not.

Oracles: of Gaussian and Poisson-sampled releases the quadrature of ``tests.golden.loss_quadrature``, which resolves a
setting where its two lines agree; of Laplace noise and mixtures dp-accounting's pessimistic and optimistic losses,
refined for ``ROW_SECONDS`` of CPU time a setting, which resolve it where they agree to 1 %; of truncated samples its
pessimistic value alone; of random allocation and zero-concentrated noise none. Broken is an end on the wrong side of an
oracle, and a width above the promise where two data sets attain the pair.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from accountant import numerical
from accountant.events import (
    Adjacency,
    Basic,
    Composed,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    ZeroConcentrated,
    parts,
    repeat,
)
from accountant.tight.numerical import Interval
from tests.golden.loss_quadrature import solve

TRUSTED = 3e-4  # of the quadrature, relative
ROW_SECONDS = 0.25
_ADD = Adjacency.ADD_OR_REMOVE_ONE
RESOLVED = 0.01  # of dp-accounting's two values, relative
_ROUNDING = 1e-4  # of dp-accounting's transforms, relative to epsilon, at deltas of at least 1e-9
_SMALLEST, _LARGEST = 1e-2, 60.0  # about epsilon; a setting beyond is drawn anew


@dataclass
class Group:
    """Settings of one kind and region."""

    n: int = 0
    resolved: int = 0
    checked: int = 0
    kept: float = 0.0
    marked: int = 0
    widest: float = 0.0
    broken: list[str] = field(default_factory=list)


def drawn(rng: np.random.Generator) -> tuple[str, str, Composed, float]:
    """A kind, a region, releases of that kind, and delta."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    q, z, count = between(1e-6, 1.0), between(0.3, 50.0), round(between(1.0, 1e4))
    n, kind = int(between(10, 1e5)), str(rng.choice(KINDS))
    rate = "rate below .001" if q < 1e-3 else "rate below .1" if q < 0.1 else "rate from .1"
    event: Basic
    if kind == "Gaussian":
        event, rate = Gaussian(noise_multiplier=z), "everybody"
    elif kind == "Poisson":
        event = PoissonSampledGaussian(sample_rate=q, noise_multiplier=z)
    elif kind == "Laplace":
        event, rate = Laplace(scale_multiplier=z), "everybody"
    elif kind == "sampled Laplace":
        event = PoissonSampledLaplace(sample_rate=q, scale_multiplier=z)
    elif kind == "mixture":
        chances = rng.dirichlet([1.0] * 3)
        event, rate = MixtureOfGaussians(noise_multiplier=z, sensitivities=(0.0, 1.0, 2.0), chances=tuple(chances)), "3"
    elif kind == "allocation":
        k = 1 if rng.random() < 0.5 else int(rng.integers(2, 9))
        event = RandomAllocationGaussian(n_rounds=max(n // 20, k), participations=k, noise_multiplier=z)
        rate, count = ("one of T" if k == 1 else "several of T"), int(rng.integers(1, 4))
    elif kind == "truncated":
        spread = math.sqrt(n * q * (1 - q)) + 1
        size = min(n, max(1, round(n * q + float(rng.uniform(-0.5, 5.0)) * spread)))
        event = TruncatedPoissonSampledGaussian(n_clients=n, sample_rate=q, batch_size=size, noise_multiplier=z)
        rate, count = ("rarely cut" if size > n * q + 3 * spread else "often cut"), min(count, 2000)
    else:
        event, rate = ZeroConcentrated(rho=between(1e-4, 1.0) / count), "zCDP"
    return kind, rate, repeat(event, count), between(1e-9, 1e-2)


KINDS = ("Gaussian", "Poisson", "Laplace", "sampled Laplace", "mixture", "allocation", "truncated", "zCDP", "Poisson")


def losses(event: Basic, interval: float, *, pessimistic: bool) -> PrivacyLossDistribution | None:
    """dp-accounting's privacy loss of one release; None of kinds that it does not have."""
    steps = {"value_discretization_interval": interval, "pessimistic_estimate": pessimistic}
    if isinstance(event, Gaussian | PoissonSampledGaussian):
        q = getattr(event, "sample_rate", 1.0)
        return pld.from_gaussian_mechanism(event.noise_multiplier, sampling_prob=q, **steps)
    if isinstance(event, Laplace | PoissonSampledLaplace):
        return pld.from_laplace_mechanism(
            event.scale_multiplier, sampling_prob=getattr(event, "sample_rate", 1.0), **steps
        )
    if isinstance(event, MixtureOfGaussians):
        return pld.from_mixture_gaussian_mechanism(event.noise_multiplier, event.sensitivities, event.chances, **steps)
    if isinstance(event, TruncatedPoissonSampledGaussian) and pessimistic:
        return pld.from_truncated_subsampled_gaussian_mechanism(
            event.n_clients,
            event.sample_rate,
            event.batch_size,
            event.noise_multiplier,
            value_discretization_interval=interval,
        )
    return None


def quadrature(event: Composed, delta: float) -> tuple[float, float] | None:
    """Ends by the characteristic function; None of other kinds, or where it does not settle."""
    ((one, count),) = parts(event)
    if not isinstance(one, Gaussian | PoissonSampledGaussian):
        return None
    with np.errstate(all="ignore"):
        q = getattr(one, "sample_rate", 1.0)
        value, _ = solve([(q, one.noise_multiplier, count)], delta)  # type: ignore[no-untyped-call]  # of the tests
    return None if value is None else (value * (1.0 - TRUSTED), value * (1.0 + TRUSTED))


def library(event: Composed, delta: float, near: float) -> tuple[float, float]:
    """dp-accounting's optimistic and pessimistic epsilon; 0 and infinity where it gives none in time."""
    ((one, count),) = parts(event)
    interval = min(0.1, max(1e-5, 0.1 * near / math.sqrt(count)))
    found = (0.0, math.inf)
    signal.signal(signal.SIGVTALRM, _alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, ROW_SECONDS)
    try:
        while not agreed(*found):
            above, below = (losses(one, interval, pessimistic=pessimistic) for pessimistic in (True, False))
            if above is None:
                break
            high = above.self_compose(count).get_epsilon_for_delta(delta)
            low = 0.0 if below is None else below.self_compose(count).get_epsilon_for_delta(delta)
            found, interval = (max(found[0], low), min(found[1], high)), 0.25 * interval
            if below is None:
                break
    except (TimeoutError, MemoryError, ValueError, OverflowError, ZeroDivisionError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return found


def agreed(low: float, high: float) -> bool:
    """Whether two ends resolve a value."""
    return math.isfinite(high) and high - low <= max(RESOLVED * high, 1e-4)


def _alarm(*_: object) -> None:
    raise TimeoutError


def held(event: Composed, delta: float, found: Interval) -> tuple[bool, bool, list[str]]:
    """Whether the oracle has an upper end of a setting, whether it resolves it, and what is broken."""
    low, high = quadrature(event, delta) or library(event, delta, max(found.upper, 1e-3))
    checked = math.isfinite(high)
    slack = _ROUNDING * (1.0 + found.upper)
    checks = {
        "no interval": 0.0 <= found.lower <= found.upper < math.inf,
        f"upper end below the oracle's {low:.6g}": found.upper >= low - slack,
        f"lower end above the oracle's {high:.6g}": found.lower <= high + slack,
        "wider than promised": found.is_tight or not all(part.is_attained for part, _ in parts(event)),
    }
    broken = [words for words, right in checks.items() if not right]
    return checked, agreed(low, high), broken


def settings(count: int, seed: int) -> Iterator[tuple[str, str, Composed, float, Interval]]:
    """So many settings with their intervals; by a first estimate epsilon is neither tiny nor huge."""
    rng, made = np.random.default_rng(seed), 0
    while made < count:
        kind, region, event, delta = drawn(rng)
        if not _SMALLEST < numerical.rough_epsilon(event, delta, adjacency=_ADD) < _LARGEST:
            continue
        made += 1
        yield kind, region, event, delta, numerical.epsilon_interval(event, delta, adjacency=_ADD)


def main(say: Callable[[str], object] = sys.stdout.write) -> None:
    """Run and print."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks._random_settings", description=__doc__)
    arguments.add_argument("count", type=int)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=math.inf, help="CPU time after which it stops")
    given = arguments.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    groups: dict[tuple[str, str], Group] = defaultdict(Group)
    for kind, region, event, delta, found in settings(given.count, given.seed):
        group, width = groups[kind, region], (found.upper - found.lower) / max(found.upper, 0.01)
        checked, resolved, broken = held(event, delta, found)
        group.n, group.resolved, group.checked = group.n + 1, group.resolved + resolved, group.checked + checked
        group.broken += [f"{words}: {event} at delta={delta!r} has {found}" for words in broken]
        if found.is_tight:
            group.kept = max(group.kept, width)
        else:
            group.marked, group.widest = group.marked + 1, max(group.widest, width)
        if time.process_time() > given.seconds:
            break
    say("kind | region | settings | oracle | resolved to 1 % | broken | worst width kept, % | ")
    say("said to be wider | worst of those, %\n")
    for (kind, region), one in sorted(groups.items()):
        say(f"{kind} | {region} | {one.n} | {one.checked} | {one.resolved} | {len(one.broken)} | ")
        say(f"{100 * one.kept:.2f} | {one.marked} | {100 * one.widest:.1f}\n")
    run, done, wrong = (
        sum(values) for values in zip(*((one.n, one.resolved, len(one.broken)) for one in groups.values()), strict=True)
    )
    say(f"{run} settings, {done} resolved to 1 %, {wrong} broken, {time.process_time():.0f} s of CPU time\n")
    for words in [words for one in groups.values() for words in one.broken][:20]:
        say(f"{words}\n")


if __name__ == "__main__":
    main()
