"""Accountants side by side in one run: value, width and CPU time; and every job as a one-line call, with its time.

``python -m benchmarks._accountants`` prints two tables under add-or-remove-one. Peers are dp-accounting (losses on a
grid, which round up), Opacus' PRV (an estimate within its own error), riskcal (attacks) and pld-accounting (random
allocation); the last two come with ``privbo[bench]``. Ours is measured with empty caches. Width is what an accountant
itself says of its error: of an interval, both ends' distance relative to the upper one.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import dp_accounting as dp
import numpy as np

import accountant
from accountant import Adjacency, Event, RandomAllocationGaussian
from benchmarks._rows import smallest, timed
from benchmarks.accounting import fresh, history, pld_epsilon, poisson

ADD = Adjacency.ADD_OR_REMOVE_ONE
SAMPLED = {  # event, delta
    "rate .01, z 1.1, 1,000 rounds": (poisson(0.01, 1.1, 1000), 1e-5),
    "rate .25, z 2, 40 rounds": (poisson(0.25, 2.0, 40), 1e-5),
    "rate .001, z .8, 10,000 rounds": (poisson(0.001, 0.8, 10_000), 1e-6),
    "rate .0001, z .6, 10,000 rounds": (poisson(1e-4, 0.6, 10_000), 1e-8),
}
ALLOCATED = {"1 of 100 rounds, z 1": (100, 1, 1.0), "4 of 40 rounds, z 2": (40, 4, 2.0)}  # T, k, z
FPR = 0.01


class Found(NamedTuple):
    """An accountant's answer: value, width relative to it or None where it states none, CPU seconds."""

    value: float
    width: float | None
    seconds: float


def ours(event: Event, delta: float) -> Found:
    """Both certified ends."""
    work = fresh(lambda: accountant.epsilon_interval(event, delta, adjacency=ADD))
    found = work()
    return Found(found.upper, (found.upper - found.lower) / found.upper, smallest(work))


def of_pld(event: Event, delta: float) -> Found:
    """dp-accounting's upper value at its default interval."""
    seconds, value = timed(lambda: pld_epsilon(event, delta, None))
    return Found(value, None, seconds)


def of_prv(event: Event, delta: float) -> Found:
    """The PRV accountant that Opacus brings, at its default error; its upper value."""
    theirs = import_module("opacus.accountants").create_accountant("prv")
    theirs.history = history(event)
    seconds, value = timed(lambda: float(theirs.get_epsilon(delta)))
    return Found(value, 0.01 / value, seconds)


def of_riskcal(event: Event, fpr: float) -> Found:
    """Attack success at a false-alarm rate, from riskcal at its defaults."""
    theirs = import_module("riskcal").accountants.CTDAccountant()
    theirs.history = history(event)
    seconds, beta = timed(lambda: float(theirs.get_beta(alpha=fpr)))
    return Found(1.0 - beta, None, seconds)


def our_success(event: Event, fpr: float) -> Found:
    """Attack success at a false-alarm rate, both ends."""

    def work() -> tuple[float, float]:
        curve = accountant.tradeoff(event, adjacency=ADD)
        return curve.attack_success(fpr), curve.attack_success(fpr, attained=True)

    upper, lower = work()
    return Found(upper, (upper - lower) / upper, smallest(fresh(work)))


def of_pld_accounting(rounds: int, chosen: int, z: float, delta: float) -> Found:
    """Both ends of a random allocation by its authors' package."""
    given = {"delta": delta, "sigma": z, "num_steps": rounds, "num_selected": chosen}
    package: Any = import_module("PLD_accounting")
    seconds, ends = timed(lambda: package.gaussian_allocation_epsilon_range(**given))
    low, high = sorted(ends)
    return Found(high, (high - low) / high, seconds)


def asked_of(peer: str, question: Callable[[], Found]) -> tuple[str, Found]:
    """A peer's name and answer; none where it fails or is not installed."""
    try:
        return peer, question()
    except (ImportError, RuntimeError, ValueError, OverflowError) as error:
        return f"{peer}: {type(error).__name__}", Found(np.nan, None, np.nan)


def beside() -> Iterator[tuple[str, str, Found, str, Found]]:
    """Setting, what is asked, ours, the peer and its answer."""
    for name, (event, delta) in SAMPLED.items():
        asked, mine = f"epsilon at {delta:g}", ours(event, delta)
        for peer, of in {"dp-accounting": of_pld, "Opacus PRV": of_prv}.items():
            yield name, asked, mine, *asked_of(peer, partial(of, event, delta))
        success = f"success at {FPR}", our_success(event, FPR)
        yield name, *success, *asked_of("riskcal", partial(of_riskcal, event, FPR))
    for name, (rounds, chosen, z) in ALLOCATED.items():
        event = RandomAllocationGaussian(n_rounds=rounds, participations=chosen, noise_multiplier=z)
        theirs = asked_of("pld-accounting", partial(of_pld_accounting, rounds, chosen, z, 1e-5))
        yield name, "epsilon at 1e-05", ours(event, 1e-5), *theirs


ROUNDS = poisson(0.01, 1.1, 1000)
JOBS: dict[str, Callable[[], object]] = {
    "accountant.epsilon(noise_multiplier=1.1, sample_rate=.01, rounds=1000, delta=1e-5)": lambda: accountant.epsilon(
        noise_multiplier=1.1, sample_rate=0.01, rounds=1000, delta=1e-5
    ),
    "accountant.epsilon(event, 1e-5)": lambda: accountant.epsilon(ROUNDS, 1e-5),
    "accountant.epsilon(DpEvent, 1e-5)": lambda: accountant.epsilon(
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 1000), 1e-5
    ),
    "accountant.noise_multiplier(epsilon=2, delta=1e-5, sample_rate=.01, rounds=1000)": (
        lambda: accountant.noise_multiplier(epsilon=2.0, delta=1e-5, sample_rate=0.01, rounds=1000)
    ),
    "accountant.noise_multiplier(tpr=.05, at_fpr=.01, sample_rate=.01, rounds=1000)": (
        lambda: accountant.noise_multiplier(tpr=0.05, at_fpr=0.01, sample_rate=0.01, rounds=1000)
    ),
    "accountant.noise_multiplier(advantage=.1, sample_rate=.01, rounds=1000)": lambda: accountant.noise_multiplier(
        advantage=0.1, sample_rate=0.01, rounds=1000
    ),
    "accountant.tradeoff(event).attack_success(.01)": lambda: accountant.tradeoff(ROUNDS).attack_success(0.01),
    "accountant.tradeoff(event).advantage()": lambda: accountant.tradeoff(ROUNDS).advantage(),
    "accountant.tradeoff(event).bayes_risk(.5)": lambda: accountant.tradeoff(ROUNDS).bayes_risk(0.5),
    "accountant.tradeoff(event).delta(epsilons), 400 of them": lambda: accountant.tradeoff(ROUNDS).delta(
        np.linspace(0.0, 3.0, 400)
    )[200],
}


def main() -> None:
    """Measure and print both tables."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    say = sys.stdout.write
    say("setting | asked | ours | width | CPU s | peer | theirs | width | CPU s | ours over theirs | times faster\n")
    for setting, asked, mine, peer, theirs in beside():
        ends = [
            f"{one.value:.5g} | {'not stated' if one.width is None else f'{one.width:.2%}'} | {one.seconds:.3g}"
            for one in (mine, theirs)
        ]
        below = theirs.value < mine.value * (1.0 - (mine.width or 0.0))  # less than a test shows: not a bound
        ratios = f"{mine.value / theirs.value:.4f}{' (theirs is too small)' * below} | "
        ratios += f"{theirs.seconds / mine.seconds:.3g}"
        say(f"{setting} | {asked} | {ends[0]} | {peer} | {ends[1]} | {ratios}\n")
        sys.stdout.flush()
    say("\ncall | answer | CPU s\n")
    for call, work in JOBS.items():
        say(f"{call} | {work():.4g} | {smallest(fresh(work)):.3g}\n")


if __name__ == "__main__":
    main()
