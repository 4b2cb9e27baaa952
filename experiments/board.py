"""Standings of the leaderboard: ranks and ratios of all algorithms over families of problems.

A competitor is a series of arms at an epsilon, or an arm alone. It is ranked on every family among all that played
every one, over the seeds that all of them have; a rank's interval is Student's over families, which are what another
user's problem is drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from experiments.played import Played
from experiments.statistics import LEVEL, Estimate, geometric, mean
from experiments.worth import MEASURES, Measure
from privbo.comparisons.verdict import holm

HOUSE = ("SharedPrior", "DP-FTS-DE", "Fed-PNE", "PF-PNE", "parallel", "F-LCB")


def is_ours(name: str) -> bool:
    """Whether a competitor is one of our algorithms, in whatever form."""
    return name.partition(",")[0] in HOUSE


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Results of a competitor over families.

    Attributes:
        name: Of the series, or of the arm alone.
        rank: Mean rank, 1 is best; None where it did not play every family.
        ratios: Regret over that of the best arm alone, geometric mean over families, by measure.
        zeroed: The same of the zeroed arm; empty without one.
        over_noise: Regret over that of the zeroed arm, over the families that have both; empty without one.
        worse: Mean share of clients worse off than alone; None for who is alone.
        won: Titles of the families where its regret over all evaluations is the smallest.
        families: Number of families it played.
        seeds: Fewest and most seeds of a family.
    """

    name: str
    rank: Estimate | None
    ratios: Mapping[Measure, Estimate]
    zeroed: Mapping[Measure, Estimate]
    over_noise: Mapping[Measure, Estimate]
    worse: float | None
    won: tuple[str, ...]
    families: int
    seeds: tuple[int, int]


def ranks(family: Played, epsilon: float | None, measure: Measure, names: Sequence[str]) -> dict[str, float]:
    """Give mean ranks over the seeds that all of some competitors have."""
    labels = family.competitors(epsilon)
    values = [family.entries[labels[name]].values(measure) for name in names]
    seeds = sorted(set.intersection(*(set(one) for one in values)))
    table = rankdata([[one[seed] for seed in seeds] for one in values], axis=0)
    return dict(zip(names, table.mean(axis=1).tolist(), strict=True))


def standings(every: Sequence[Played], epsilon: float | None, measure: Measure = "mean") -> list[Standing]:
    """Give all competitors, best mean rank first, then those that did not play every family."""
    players = [family.competitors(epsilon) for family in every]
    names = list(dict.fromkeys(name for one in players for name in one))
    ranked = [name for name in names if all(name in one for one in players)]
    by_family = [ranks(family, epsilon, measure, ranked) for family in every]
    best = [winner(family, epsilon) for family in every]
    found = []
    for name in names:
        here = [(family, one[name]) for family, one in zip(every, players, strict=True) if name in one]
        noise = [(family, one) for family in every if (one := family.label(name, epsilon, zeroed=True)) is not None]
        both = [(family, one, family.label(name, epsilon)) for family, one in noise]
        counts = [len(family.entries[label].seeds) for family, label in here]
        worse = [share for family, label in here if (share := family.entries[label].worse) is not None]
        found.append(
            Standing(
                name=name,
                rank=mean([one[name] for one in by_family]) if name in ranked else None,
                ratios={m: geometric(family.ratio(label, m) for family, label in here) for m in MEASURES},
                zeroed={m: geometric(family.ratio(one, m) for family, one in noise) for m in MEASURES if noise},
                over_noise={
                    m: geometric(family.ratio(own, m, one) for family, one, own in both if own is not None)
                    for m in MEASURES
                    if noise
                },
                worse=float(np.mean(worse)) if worse else None,
                won=tuple(family.title for family, first in zip(every, best, strict=True) if first == name),
                families=len(here),
                seeds=(min(counts), max(counts)),
            )
        )
    return sorted(found, key=lambda one: math.inf if one.rank is None else one.rank.value)


def winner(family: Played, epsilon: float | None) -> str:
    """Give the competitor with the smallest regret over all evaluations."""
    labels = family.competitors(epsilon)
    return min(labels, key=lambda name: family.ratio(labels[name], "mean").value)


def recommended(
    groups: Mapping[str, Sequence[Played]], epsilon: float, measure: Measure = "mean"
) -> dict[str, tuple[Standing, float]]:
    """Give, by group, the best of our algorithms that beats the best arm alone and its own noise alone, with its p.

    Both by Student's t over families at level .05, one-sided: another user's problem is another family. All of ours on
    all groups are claimed together (Holm). A group on which nothing is shown is left out.
    """
    claims = [
        (title, one, max(one.ratios[measure].below(1.0), one.over_noise[measure].below(1.0)))
        for title, some in groups.items()
        for one in standings(some, epsilon)
        if is_ours(one.name) and one.families == len(some) and one.over_noise
    ]
    adjusted = zip(claims, holm([p for *_, p in claims]), strict=True)
    shown = [(title, one, p) for (title, one, _), p in adjusted if p is not None and p <= LEVEL]
    found: dict[str, tuple[Standing, float]] = {}
    for title, one, p in sorted(shown, key=lambda claim: claim[1].ratios[measure].value):
        found.setdefault(title, (one, p))
    return found


@dataclass(frozen=True)
class Class:
    """A class of problems: families of which something holds."""

    title: str
    holds: Callable[[Played], bool]


# In this order: a family is of the first class that holds.
CLASSES = (
    Class("fewer than 20 clients", lambda f: f.n_clients < 20),
    Class("surfaces hardly alike (correlation below .4)", lambda f: f.correlation < 0.4),
    Class("categories among the settings", lambda f: "mixed" in f.title),
    Class("models with numbers for settings", lambda f: f.is_model),
    Class("simulated systems with numbers for settings", lambda f: f.purpose == "own"),
    Class("smooth surfaces, 100 clients or more", lambda f: f.n_clients >= 100),
    Class("smooth surfaces, fewer clients", lambda _: True),
)


def classed(every: Sequence[Played]) -> dict[str, list[Played]]:
    """Give families by class; those on which no setting was chosen once more, together, where they are of several."""
    found: dict[str, list[Played]] = {}
    for family in every:
        found.setdefault(next(one.title for one in CLASSES if one.holds(family)), []).append(family)
    every_class = {one.title: found[one.title] for one in CLASSES if one.title in found}
    fresh = [family for family in every if family.purpose != "choosing"]
    return every_class | ({"all held-out families together": fresh} if len(every_class) > 1 and fresh else {})


def common(every: Sequence[Played], epsilon: float, *, zeroed: bool = False) -> dict[str, Estimate]:
    """Give the regret of clients that all use the announced setting, by series: mean over families.

    Families on which more than one series is missing are left out, so that means are over the same families but for
    a series that cannot play everywhere.
    """
    found = [
        {
            entry.series: float(np.mean(entry.common))
            for entry in family.entries.values()
            if (entry.epsilon, entry.zeroed) == (epsilon, zeroed) and entry.common
        }
        for family in every
    ]
    names = dict.fromkeys(name for one in found for name in one)
    whole = [one for one in found if len(one) >= len(names) - 1]
    return {name: mean([one[name] for one in whole if name in one]) for name in names}
