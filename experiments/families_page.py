"""Tables of the study ``client-families``: the default over the best arm alone; the family is the unit of the error.

Clients and ends come first, and kinds of families stand apart. Whether a single family loses is tested by its seeds,
Holm-corrected over families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import privbo as pb
from experiments.cells import Found
from experiments.played import Entry, Played, kept, played, read
from experiments.problems.client_families import FAMILIES
from experiments.run import Seen
from experiments.statistics import geometric, losing
from experiments.study import Panel
from experiments.worth import MEASURES, Measure, families
from privbo.protocol.settings import JsonObject


@dataclass(frozen=True, kw_only=True)
class Aim:
    """An arm, and what is asked of it.

    Attributes:
        head: Its name.
        epsilon: Of the run; None is not private.
        zeroed: Whether it is the noise-only control.
        limits: Largest geometric mean over families, by measure.
    """

    head: str
    epsilon: float | None
    zeroed: bool = False
    limits: Mapping[Measure, float]

    def entry(self, family: Played) -> tuple[str, Entry]:
        """Give a family's label and entry of the arm.

        Raises:
            ConfigurationError: If it was not played.
        """
        found = family.label("default", self.epsilon, zeroed=self.zeroed)
        if found is None:
            raise pb.ConfigurationError(f"{family.title}: {self.head!r} was not played; play all arms of the study")
        return found, family.entries[found]


AIMS = (
    Aim(head="not private", epsilon=None, limits={"mean": 0.80, "end": 0.88}),
    Aim(head="epsilon 2", epsilon=2.0, limits={"mean": 0.85, "end": 0.92}),
    Aim(head="epsilon 1", epsilon=1.0, limits={"mean": 0.92, "end": 0.96}),
    Aim(head="noise only, 2", epsilon=2.0, zeroed=True, limits={"mean": 1.02, "end": 1.02}),
    Aim(head="noise only, 1", epsilon=1.0, zeroed=True, limits={"mean": 1.02, "end": 1.02}),
)
# Of every family; clients over all families.
LARGEST, WORSE, DECILE = 1.05, 0.25, 1.35


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over families, and what they are made of as JSON."""
    return again(kept(map(played, families(panels))))


def again(summary: JsonObject) -> Seen:
    """Give the same tables from what is kept."""
    every = read(summary)
    return Seen(text="\n".join([_clients(every), _means(every), _kinds(every), _families(every)]), summary=summary)


def _clients(every: Sequence[Played]) -> str:
    lines = [
        "**Clients** (regret over evaluations compared with the same client alone; aims: at most",
        f"{100 * WORSE:.0f} % worse, the worst decile at most {DECILE:g})",
        "",
        "| arm | clients worse | largest share | worst decile | largest |",
        "|---|---|---|---|---|",
    ]
    for aim in AIMS:
        found = [(family.title, aim.entry(family)[1]) for family in every]
        worse = [(entry.worse or 0.0, title) for title, entry in found]
        decile = [(entry.decile or 0.0, title) for title, entry in found]
        share, height = np.mean([value for value, _ in worse]), np.mean([value for value, _ in decile])
        lines.append(
            f"| {aim.head} | {100 * share:.0f} % | {100 * max(worse)[0]:.0f} % ({max(worse)[1]}) "
            f"| {height:.2f} | {max(decile)[0]:.2f} ({max(decile)[1]}) |"
        )
    return "\n".join([*lines, ""])


def _means(every: Sequence[Played]) -> str:
    lines = [
        "**Over families** (geometric means with 95 % intervals over families; the largest family; families shown to",
        "lose, by Holm's test over families of Student's t over seeds)",
        "",
        "| arm | families | over evaluations | aim | largest | lose | at the end | aim | largest | lose |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for aim in AIMS:
        cells = [aim.head, str(len(every))]
        for measure in MEASURES:
            ratios = {family.title: family.ratio(aim.entry(family)[0], measure) for family in every}
            mean = geometric(ratios.values())
            largest = max(ratios, key=lambda title: ratios[title].value)
            met = "met" if mean.value <= aim.limits[measure] else "missed"
            cells += [
                f"{mean:.3f[}",
                f"{aim.limits[measure]:.2f}, {met}",
                f"{ratios[largest].value:.2f} ({largest})",
                str(losing(ratios.values())),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _kinds(every: Sequence[Played]) -> str:
    kinds: dict[str, list[Played]] = {}
    for family in every:
        kinds.setdefault(FAMILIES[family.title].kind, []).append(family)
    heads = " | ".join(aim.head for aim in AIMS)
    lines = ["**By kind** (geometric means, over evaluations / at the end)", "", f"| kind | families | {heads} |"]
    lines.append("|---" * (2 + len(AIMS)) + "|")
    for kind, some in kinds.items():
        cells = [
            " / ".join(
                f"{geometric([family.ratio(aim.entry(family)[0], measure) for family in some]).value:.2f}"
                for measure in MEASURES
            )
            for aim in AIMS
        ]
        lines.append(f"| {kind} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _families(every: Sequence[Played]) -> str:
    aims = [aim for aim in AIMS if aim.epsilon and not aim.zeroed]  # the others are in what is kept
    lines = [
        "**By family** (over evaluations / at the end, with standard errors over seeds; share of clients worse)",
        "",
        f"| family | kind | correlation | {' | '.join(aim.head for aim in aims)} | regret of the best alone |",
        "|---" * (4 + len(aims)) + "|",
    ]
    for family in every:
        cells = []
        for aim in aims:
            label, entry = aim.entry(family)
            pair = " / ".join(f"{family.ratio(label, measure):.2f}" for measure in MEASURES)
            cells.append(f"{pair}; {100 * (entry.worse or 0.0):.0f} %")
        alone = " / ".join(
            f"{np.mean(list(family.entries[family.best_alone(measure)].values(measure).values())):.3f}"
            for measure in MEASURES
        )
        facts = f"{family.title} | {FAMILIES[family.title].kind} | {family.correlation:.2f}"
        lines.append(f"| {facts} | {' | '.join(cells)} | {alone} |")
    return "\n".join([*lines, ""])
