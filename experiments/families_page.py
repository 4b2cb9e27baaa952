"""Tables of the study ``client-families``: the default over the best engine alone; the family is the unit of the error.

Which engine that is was told by the families for choosing, of which nothing else is shown. Clients and ends come first,
and kinds of families stand apart. Whether a single family loses is tested by its seeds, Holm-corrected over families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

import privbo as pb
from experiments.cells import Found
from experiments.played import Entry, Played, kept, played, read
from experiments.problems import client_families, later_families, third_families
from experiments.run import Seen
from experiments.statistics import Estimate, geometric, losing
from experiments.study import Panel
from experiments.worth import Measure, families
from privbo.protocol.settings import JsonObject

FAMILIES = client_families.FAMILIES | later_families.FAMILIES | third_families.FAMILIES
ORDER: tuple[Measure, Measure] = ("end", "mean")


@dataclass(frozen=True, kw_only=True)
class Aim:
    """An arm, and what is asked of it.

    Attributes:
        head: Its name.
        epsilon: Of the run; None is not private.
        zeroed: Whether it is the noise-only control.
        limits: Largest geometric mean over families, by measure; empty where none was set.
    """

    head: str
    epsilon: float | None
    zeroed: bool = False
    limits: Mapping[Measure, float] = field(default_factory=dict)

    def entry(self, family: Played) -> tuple[str, Entry]:
        """Give a family's label and entry of the arm.

        Raises:
            ConfigurationError: If it was not played.
        """
        found = family.label("default", self.epsilon, zeroed=self.zeroed)
        if found is None:
            raise pb.ConfigurationError(f"{family.title}: {self.head!r} was not played; play all arms of the study")
        return found, family.entries[found]


NOISE: Mapping[Measure, float] = {"mean": 1.02, "end": 1.02}
AIMS = (
    Aim(head="not private", epsilon=None, limits={"mean": 0.80, "end": 0.88}),
    Aim(head="epsilon 8", epsilon=8.0),
    Aim(head="epsilon 2", epsilon=2.0, limits={"mean": 0.85, "end": 0.92}),
    Aim(head="epsilon 1", epsilon=1.0, limits={"mean": 0.92, "end": 0.96}),
    Aim(head="epsilon 0.5", epsilon=0.5),
    *(Aim(head=f"noise only, {e:g}", epsilon=e, zeroed=True, limits=NOISE) for e in (2.0, 1.0)),
)
ALONE = "alone, exploring start"  # the best arm alone on families for choosing, and what sharing falls back on
# Of every family; clients over all families.
WORSE, DECILE, FEWEST = 0.25, 1.35, 3


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over families, and what they are made of as JSON."""
    return again(kept(played(family, ALONE) for family in families(panels)))


def again(summary: JsonObject) -> Seen:
    """Give the same tables from what is kept."""
    every = read(summary)
    report = [family for family in every if family.purpose == "reporting"]
    parts = [make(report) for make in (_clients, _means, _kinds, _families)]
    return Seen(text="\n".join([*parts, _engines(every)]), summary=summary)


def _clients(every: Sequence[Played]) -> str:
    lines = [
        "**Clients** (regret over evaluations compared with the same client alone, on average over the seeds that draw",
        f"it and run by run; aims: at most {100 * WORSE:.0f} % worse, the worst decile at most {DECILE:g})",
        "",
        "| arm | clients worse | largest share | worst decile | largest | single runs worse | worst decile |",
        "|---" * 7 + "|",
    ]
    for aim in AIMS:
        entries = {family.title: aim.entry(family)[1] for family in every}
        share, most = _over_families({title: entry.typical_worse for title, entry in entries.items()})
        height, highest = _over_families({title: entry.typical_decile for title, entry in entries.items()})
        run, _ = _over_families({title: entry.worse for title, entry in entries.items()})
        tail, _ = _over_families({title: entry.decile for title, entry in entries.items()})
        cells = [f"{100 * share:.0f} %", f"{100 * most[0]:.0f} % ({most[1]})", f"{height:.2f}"]
        cells += [f"{highest[0]:.2f} ({highest[1]})", f"{100 * run:.0f} %", f"{tail:.2f}"]
        lines.append(f"| {aim.head} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _over_families(values: Mapping[str, float | None]) -> tuple[float, tuple[float, str]]:
    """Give the mean, and the largest with its family; NaN where seeds do not draw from the same clients."""
    known = {title: math.nan if value is None else value for title, value in values.items()}
    return float(np.mean(list(known.values()))), max((value, title) for title, value in known.items())


def _means(every: Sequence[Played]) -> str:
    lines = [
        "**Over families** (geometric means with 95 % intervals over families; the largest family; families shown to",
        "lose, by Holm's test over families of Student's t over seeds; the best of four alone is chosen on each family",
        "and measure, in hindsight)",
        "",
        "| clients | arm | families | at the end | aim | largest | lose | over evaluations | aim | largest | lose |",
        "|---" * 11 + "|",
    ]
    groups: dict[int, list[Played]] = {}
    for family in every:
        groups.setdefault(family.n_clients, []).append(family)
    shown = [(count, some) for count, some in groups.items() if len(some) >= FEWEST]  # two say little of the next
    return "\n".join([*lines, *(_row(count, some, aim) for count, some in shown for aim in (*AIMS, None)), ""])


def _row(n_clients: int, some: Sequence[Played], aim: Aim | None) -> str:
    """Row of an aim; None is the best of the arms alone, in hindsight."""
    cells = [str(n_clients), "best of four alone" if aim is None else aim.head, str(len(some))]
    for measure in ORDER:
        ratios = {
            family.title: _ratio(family, family.best_alone(measure) if aim is None else aim.entry(family)[0], measure)
            for family in some
        }
        mean = geometric(ratios.values())
        largest = max(ratios, key=lambda title: ratios[title].value)
        limit = None if aim is None else aim.limits.get(measure)
        met = "-" if limit is None else f"{limit:.2f}, {'met' if mean.value <= limit else 'missed'}"
        cells += [f"{mean:.3f[}", met, f"{ratios[largest].value:.2f} ({largest})", str(losing(ratios.values()))]
    return f"| {' | '.join(cells)} |"


def _ratio(family: Played, label: str, measure: Measure) -> Estimate:
    return family.ratio(label, measure, ALONE)


def _kinds(every: Sequence[Played]) -> str:
    kinds: dict[str, list[Played]] = {}
    for family in every:
        kinds.setdefault(FAMILIES[family.title].kind, []).append(family)
    heads = " | ".join(aim.head for aim in AIMS)
    lines = ["**By kind** (geometric means, at the end / over evaluations)", "", f"| kind | families | {heads} |"]
    lines.append("|---" * (2 + len(AIMS)) + "|")
    for kind, some in kinds.items():
        cells = [
            " / ".join(
                f"{geometric([_ratio(family, aim.entry(family)[0], measure) for family in some]).value:.2f}"
                for measure in ORDER
            )
            for aim in AIMS
        ]
        lines.append(f"| {kind} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _families(every: Sequence[Played]) -> str:
    aims = [aim for aim in AIMS if aim.epsilon and aim.limits and not aim.zeroed]
    lines = [
        "**By family** (at the end / over evaluations, with standard errors over seeds; share of clients worse",
        "on average over seeds)",
        "",
        f"| family | N | kind | correlation | {' | '.join(aim.head for aim in aims)} | regret alone |",
        "|---" * (5 + len(aims)) + "|",
    ]
    for family in every:
        cells = []
        for aim in aims:
            label, entry = aim.entry(family)
            pair = " / ".join(f"{_ratio(family, label, measure):.2f}" for measure in ORDER)
            cells.append(f"{pair}; {100 * (math.nan if entry.typical_worse is None else entry.typical_worse):.0f} %")
        regrets = family.entries[ALONE]
        alone = " / ".join(f"{np.mean(list(regrets.values(measure).values())):.3f}" for measure in ORDER)
        facts = f"{family.title} | {family.n_clients} | {FAMILIES[family.title].kind} | {family.correlation:.2f}"
        lines.append(f"| {facts} | {' | '.join(cells)} | {alone} |")
    return "\n".join([*lines, ""])


def _engines(every: Sequence[Played]) -> str:
    """Table by which the arm alone was chosen."""
    choosing = [family for family in every if family.purpose == "choosing"]
    if not choosing:
        return ""
    lines = [
        f"**Engines alone**, on {len(choosing)} families for choosing (over the best of the four in hindsight on each)",
        "",
        "| arm | at the end | over evaluations |",
        "|---|---|---|",
    ]
    for label in choosing[0].alone:
        means = (geometric([family.ratio(label, measure) for family in choosing]) for measure in ORDER)
        lines.append(f"| {label} | {' | '.join(f'{mean:.3f[}' for mean in means)} |")
    return "\n".join([*lines, ""])
