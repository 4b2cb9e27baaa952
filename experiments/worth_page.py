"""Tables and picture of the study ``worth``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.cells import Found
from experiments.figure import png_of
from experiments.played import Played, kept, played, read
from experiments.run import Seen
from experiments.statistics import geometric, losing
from experiments.study import Panel
from experiments.table import shown
from experiments.worth import MEASURES, Measure, families
from privbo.protocol.settings import JsonObject

EPSILONS = (0.5, 1.0, 2.0, 8.0)
OURS, PAPER = "default", "DP-FTS-DE"
SHOWN = (1.0, 2.0)
GROUPS: dict[str, Callable[[Played], bool]] = {
    "**all held out**": lambda f: f.purpose != "choosing",
    "drawn and shifted": lambda f: f.purpose == "reporting" and not f.is_model,
    "models": lambda f: f.purpose == "reporting" and f.is_model,
    "simulated systems": lambda f: f.purpose == "own",
    "used in development": lambda f: f.purpose == "choosing",
}


@dataclass(frozen=True)
class Column:
    """An arm of every family, as a column.

    Attributes:
        head: Of the column.
        series: Of the arm.
        epsilon: Of the arm; None is not private.
        zeroed: Whether it is the noise-only control.
    """

    head: str
    series: str
    epsilon: float | None
    zeroed: bool = False

    def label(self, family: Played) -> str | None:
        """Give the family's arm."""
        return family.label(self.series, self.epsilon, zeroed=self.zeroed)


COLUMNS = (
    *(Column(f"epsilon {e:g}", OURS, e) for e in EPSILONS),
    Column("not private", OURS, None),
    Column("noise only, 2", OURS, 2.0, zeroed=True),
    Column("DP-FTS-DE, 2", PAPER, 2.0),
)


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give tables over all families, the same as JSON, and the picture."""
    return again(kept(map(played, families(panels))))


def again(summary: JsonObject) -> Seen:
    """Give the same from what was kept."""
    every = read(summary)
    plain = [family for family in every if family.purpose != "stress"]
    stress = [family for family in every if family.purpose == "stress"]
    parts = [_table(plain), _over(plain), _clients(plain), _stress(stress)]
    text = "\n".join(part for part in parts if part)
    return Seen(text=text, summary=summary, pictures={"figure": draw(plain)} if plain else {})


def _table(every: Sequence[Played]) -> str:
    """A row per family: regret over all evaluations, and at the end of the named epsilon."""
    columns = [column for column in COLUMNS if any(column.label(family) for family in every)]
    if not columns:
        return ""
    last = Column("at the end, 2", OURS, 2.0)
    heads = [*(column.head for column in columns), last.head]
    lines = [
        "**Regret divided by that of the best independent method** (over all evaluations, and at the end at epsilon 2;",
        "standard errors in brackets; *: a family used in development)",
        "",
        "| family | N | correlation | " + " | ".join(heads) + " |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for family in every:
        cells = [_one(family, column.label(family), "mean") for column in columns]
        name = f"{family.title} *" if family.purpose == "choosing" else family.title
        facts = [name, f"{family.n_clients}", f"{family.correlation:.2f}"]
        lines.append("| " + " | ".join([*facts, *cells, _one(family, last.label(family), "end")]) + " |")
    return "\n".join([*lines, ""])


def _one(family: Played, label: str | None, measure: Measure) -> str:
    return "-" if label is None else f"{family.ratio(label, measure):.2f}"


def _over(every: Sequence[Played]) -> str:
    """Geometric means over families of a kind: a row per kind and epsilon, with the worst family and how many lose."""
    lines = [
        "**Over families** (geometric means with 95 % intervals over families; the largest ratio; families shown to",
        "lose, by Holm's test over those of the row of Student's t over seeds)",
        "",
        "| families | epsilon | number | over evaluations | largest | lose | at the end | largest | lose |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for epsilon in SHOWN:
        for title, holds in GROUPS.items():
            played_ = [(f, label) for f in every if holds(f) and (label := f.label(OURS, epsilon)) is not None]
            cells = [title, f"{epsilon:g}", str(len(played_))]
            for measure in MEASURES if played_ else ():
                ratios = {family.title: family.ratio(label, measure) for family, label in played_}
                worst = max(ratios, key=lambda name: ratios[name].value)
                cells += [f"{geometric(ratios.values()):.2f[}", f"{ratios[worst].value:.2f} ({worst})"]
                cells.append(str(losing(ratios.values())))
            if played_:
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""]) if lines[5:] else ""


def _clients(every: Sequence[Played]) -> str:
    """How single clients fare at each epsilon."""
    lines = []
    for column in COLUMNS:
        found = [(f, f.entries[label]) for f in every if (label := column.label(f)) is not None]
        known = [(f.title, e.worse, e.decile) for f, e in found if e.worse is not None and e.decile is not None]
        if not known:
            continue
        worse, deciles = [share for _, share, _ in known], [decile for *_, decile in known]
        top = max(known, key=lambda one: one[2])
        lines.append(
            f"| {column.head} | {100 * sum(worse) / len(worse):.0f} % | {100 * max(worse):.0f} % "
            f"| {sum(deciles) / len(deciles):.2f} | {top[2]:.2f} ({top[0]}) |"
        )
    if not lines:
        return ""
    head = [
        "**Client by client** (regret over all evaluations, compared with the same client alone)",
        "",
        "| arm | clients worse off, mean over families | largest share | worst decile, mean over families | largest |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines, ""])


def _stress(every: Sequence[Played]) -> str:
    """A row per family with noise or poison, a column per arm."""
    if not every:
        return ""
    arms = dict.fromkeys(label for family in every for label in family.entries if label not in family.alone)
    lines = [
        "**Noise and poisoning** (regret over all evaluations, divided by that of the best independent method)",
        "",
        f"| family | {' | '.join(map(shown, arms))} |",
        "|---" * (1 + len(arms)) + "|",
    ]
    for family in every:
        cells = [_one(family, label if label in family.entries else None, "mean") for label in arms]
        lines.append(f"| {' | '.join([family.title, *cells])} |")
    return "\n".join([*lines, ""])


def draw(every: Sequence[Played]) -> bytes:
    """Draw ratios against epsilon, a small picture per family, as PNG."""
    from matplotlib.figure import Figure

    columns = min(3, len(every))
    rows = math.ceil(len(every) / columns)
    figure = Figure(figsize=(8.0, 1.9 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).reshape(-1)
    lines = (
        (OURS, False, "mean", "#2b87c8", "-", "default, mean over evaluations"),
        (OURS, False, "end", "#2b87c8", ":", "default, at the end"),
        (OURS, True, "mean", "#7f7f7f", "-", "noise-only control, mean"),
        (PAPER, False, "mean", "#d55e00", "-", "DP-FTS-DE as in the paper, mean"),
    )
    for axes, family in zip(grid, every, strict=False):
        purpose = " *" if family.purpose == "choosing" else ""
        axes.set_title(f"{family.title}{purpose}\nN = {family.n_clients}, {family.correlation:.2f}", fontsize=8)
        axes.axhline(1.0, color="black", lw=0.8)
        for series, zero, measure, colour, style, text in lines:
            found = [(e, label) for e in EPSILONS if (label := family.label(series, e, zeroed=zero)) is not None]
            if not found:
                continue
            ratios = [family.ratio(label, "mean" if measure == "mean" else "end") for _, label in found]
            bars = [ratio.error if math.isfinite(ratio.error) else 0.0 for ratio in ratios]
            points = [epsilon for epsilon, _ in found], [ratio.value for ratio in ratios]
            axes.errorbar(*points, bars, ls=style, marker="o", ms=2.5, lw=1.2, color=colour, label=text, capsize=1.5)
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axes.minorticks_off()
        axes.set_ylim(0.0, 2.0)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=7)
    for axes in grid[len(every) :]:
        axes.set_visible(False)
    named = {text: handle for axes in grid for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    figure.supxlabel("epsilon of the whole run at delta = 1e-5   (*: used in development)", fontsize=8)
    figure.supylabel("regret divided by that of the best independent method", fontsize=8)
    return png_of(figure, dpi=100)
