"""Tables of the study ``client-families``: the default over the best arm alone; the family is the unit of the error.

Clients and ends come first, and kinds of families stand apart. Whether a single family loses is tested by its seeds,
Holm-corrected over families. Families for choosing are kept, and not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

import privbo as pb
from experiments.cells import Found
from experiments.played import Entry, Played, kept, played, read
from experiments.problems import client_families, later_families, third_families
from experiments.run import Seen
from experiments.statistics import geometric, losing
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
        label: Of an arm alone; None is one that shares.
        limits: Largest geometric mean over families, by measure; empty where none was set.
    """

    head: str
    epsilon: float | None
    zeroed: bool = False
    label: str | None = None
    limits: Mapping[Measure, float] = field(default_factory=dict)

    def entry(self, family: Played) -> tuple[str, Entry]:
        """Give a family's label and entry of the arm.

        Raises:
            ConfigurationError: If it was not played.
        """
        found = self.label or family.label("default", self.epsilon, zeroed=self.zeroed)
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
# What sharing falls back on. The best of four arms alone is chosen on each family after the fact; this one is not.
ITS_ENGINE = Aim(head="its own engine alone", epsilon=None, label="alone, exploring start")
# Of every family; clients over all families.
WORSE, DECILE, FEWEST = 0.25, 1.35, 3


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give the tables over families, and what they are made of as JSON."""
    return again(kept(map(played, families(panels))))


def again(summary: JsonObject) -> Seen:
    """Give the same tables from what is kept."""
    every = read(summary)
    report = [family for family in every if family.purpose == "reporting"]
    return Seen(text="\n".join(make(report) for make in (_clients, _means, _kinds, _families)), summary=summary)


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
        "| clients | arm | families | at the end | aim | largest | lose | over evaluations | aim | largest | lose |",
        "|---" * 11 + "|",
    ]
    groups: dict[int, list[Played]] = {}
    for family in every:
        groups.setdefault(family.n_clients, []).append(family)
    shown = [(count, some) for count, some in groups.items() if len(some) >= FEWEST]  # two say little of the next
    return "\n".join([*lines, *(_row(count, some, aim) for count, some in shown for aim in (*AIMS, ITS_ENGINE)), ""])


def _row(n_clients: int, some: Sequence[Played], aim: Aim) -> str:
    cells = [str(n_clients), aim.head, str(len(some))]
    for measure in ORDER:
        ratios = {family.title: family.ratio(aim.entry(family)[0], measure) for family in some}
        mean = geometric(ratios.values())
        largest = max(ratios, key=lambda title: ratios[title].value)
        limit = aim.limits.get(measure)
        met = "-" if limit is None else f"{limit:.2f}, {'met' if mean.value <= limit else 'missed'}"
        cells += [f"{mean:.3f[}", met, f"{ratios[largest].value:.2f} ({largest})", str(losing(ratios.values()))]
    return f"| {' | '.join(cells)} |"


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
                f"{geometric([family.ratio(aim.entry(family)[0], measure) for family in some]).value:.2f}"
                for measure in ORDER
            )
            for aim in AIMS
        ]
        lines.append(f"| {kind} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _families(every: Sequence[Played]) -> str:
    aims = [aim for aim in AIMS if aim.epsilon and aim.limits and not aim.zeroed]
    lines = [
        "**By family** (at the end / over evaluations, with standard errors over seeds; share of clients worse)",
        "",
        f"| family | N | kind | correlation | {' | '.join(aim.head for aim in aims)} | regret of the best alone |",
        "|---" * (5 + len(aims)) + "|",
    ]
    for family in every:
        cells = []
        for aim in aims:
            label, entry = aim.entry(family)
            pair = " / ".join(f"{family.ratio(label, measure):.2f}" for measure in ORDER)
            cells.append(f"{pair}; {100 * (entry.worse or 0.0):.0f} %")
        alone = " / ".join(
            f"{np.mean(list(family.entries[family.best_alone(measure)].values(measure).values())):.3f}"
            for measure in ORDER
        )
        facts = f"{family.title} | {family.n_clients} | {FAMILIES[family.title].kind} | {family.correlation:.2f}"
        lines.append(f"| {facts} | {' | '.join(cells)} | {alone} |")
    return "\n".join([*lines, ""])
