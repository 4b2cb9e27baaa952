"""Tables and picture of the study ``worth``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.bars import BARS, NEVER_WORSE, Bar
from experiments.cells import Found
from experiments.figure import png_of
from experiments.played import Played, kept, played, read
from experiments.run import Seen
from experiments.study import Panel
from experiments.worth import MEASURES, Ratio, families, geometric
from privbo.protocol.settings import JsonObject

EPSILONS = (0.5, 1.0, 2.0, 8.0)
ENOUGH = 4  # seeds from which on an upper end means anything
OURS, PAPER = "default", "DP-FTS-DE"
# Families that a bar's means are over; it is held where no setting was chosen.
GROUPS = {
    "**all without a choice**": ("reporting", "own"),
    "reporting": ("reporting",),
    "own": ("own",),
    "choosing": ("choosing",),
}


@dataclass(frozen=True)
class Column:
    """An arm of every family, as a column.

    Attributes:
        head: Of the column.
        series: Of the arm.
        epsilon: Of the arm; None is not private.
        zeroed: Whether the clients' sum is zeroed.
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
    *(Column(f"zeroed {e:g}", OURS, e, zeroed=True) for e in EPSILONS),
    *(Column(f"DP-FTS-DE {e:g}", PAPER, e) for e in EPSILONS),
)


def overall(panels: Sequence[tuple[Panel, Found]]) -> Seen:
    """Give tables over all families, the same as JSON, and the picture."""
    return again(kept(map(played, families(panels))))


def again(summary: JsonObject) -> Seen:
    """Give the same from what was kept."""
    every = read(summary)
    plain = [family for family in every if family.purpose != "stress"]
    stress = [family for family in every if family.purpose == "stress"]
    parts = [_table(plain), _bars(plain), _never_worse(plain), _clients(plain), _stress(stress)]
    text = "\n".join(part for part in parts if part)
    return Seen(text=text, summary=summary, pictures={"figure": draw(plain)} if plain else {})


def _table(every: Sequence[Played]) -> str:
    """A row per family; every cell is mean over evaluations / at the end."""
    shown = [column for column in COLUMNS if any(column.label(family) for family in every)]
    if not shown:
        return ""
    lines = [
        "**Over the best arm alone** (regret, mean over evaluations / at the end; standard errors in brackets)",
        "",
        "| family | for | N | correlation | alone | seeds | " + " | ".join(column.head for column in shown) + " |",
        "|---" * (6 + len(shown)) + "|",
    ]
    for family in every:
        alone = " / ".join(f"{family.best_alone(measure).removeprefix('alone, ')}" for measure in MEASURES)
        cells = [_cell(family, column.label(family)) for column in shown]
        seeds = max(len(entry.seeds) for entry in family.entries.values())
        facts = [family.purpose, f"{family.n_clients}", f"{family.correlation:.2f}", alone, f"{seeds}"]
        lines.append(f"| {family.title} | " + " | ".join([*facts, *cells]) + " |")
    return "\n".join([*lines, ""])


def _cell(family: Played, label: str | None) -> str:
    if label is None:
        return "-"
    return " / ".join(f"{family.ratio(label, measure):.2f}" for measure in MEASURES)


def _bars(every: Sequence[Played]) -> str:
    """Geometric means over families, beside what they are held to."""
    lines = [line for bar in BARS for name, purposes in GROUPS.items() if (line := _bar(every, bar, name, purposes))]
    if not lines:
        return ""
    head = ["**Bars** (geometric mean over families, with its 95 % interval; over evaluations / at the end)", ""]
    head += ["| families | for | number | found | at most | reached |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines, ""])


def _bar(every: Sequence[Played], bar: Bar, name: str, purposes: Sequence[str]) -> str:
    asked = [(family, family.label(OURS, bar.epsilon)) for family in every if bar.speaks_of(family, purposes)]
    known = [(family, label) for family, label in asked if label is not None]
    if not known:
        return ""
    means = {measure: geometric([f.ratio(label, measure) for f, label in known]) for measure in MEASURES}
    found = " / ".join(f"{means[measure].value:.2f}{means[measure].interval}" for measure in MEASURES)
    wanted = " / ".join(f"{bar.limits[measure]:.2f}" for measure in MEASURES)
    reached = all(means[measure].value <= bar.limits[measure] for measure in MEASURES)
    return (
        f"| epsilon {bar.epsilon:g}, N >= {bar.clients}, correlation >= {bar.correlation:g} | {name} "
        f"| {len(known)} | {found} | {wanted} | {'yes' if reached else 'no'} |"
    )


def private(every: Sequence[Played]) -> Iterator[tuple[Played, str, Ratio]]:
    """Give every private arm of the default, zeroed ones too, with its ratio over all evaluations."""
    for family in every:
        for label, entry in family.entries.items():
            if entry.series == OURS and entry.epsilon is not None:
                yield family, label, family.ratio(label, "mean")


def _never_worse(every: Sequence[Played]) -> str:
    """The worst cells, with upper ends that hold for all of them together."""
    cells = list(private(every))
    if not cells:
        return ""
    count = len(cells)
    worst = sorted(cells, key=lambda cell: -cell[2].value)[:8]
    unsure = sum(ratio.error > 0.02 for *_, ratio in cells)
    few = sum(ratio.count < ENOUGH for *_, ratio in cells)
    above = sum(ratio.upper(count) > NEVER_WORSE for *_, ratio in cells if ratio.count >= ENOUGH)
    found = sum(ratio.lower(count) > 1.0 for *_, ratio in cells if ratio.count >= ENOUGH)
    lines = [
        f"**Never worse than alone** (over all evaluations; {count} ratios, {unsure} with an error above 2 %)",
        "",
        f"Ends hold for all of them together with 95 % confidence; {few} have fewer than {ENOUGH} seeds and no ends.",
        f"Lower ends above 1, where it is found worse: {found}. Upper ends above {NEVER_WORSE}, where that it is",
        f"not worse is not shown: {above}. The largest ratios:",
        "",
        "| family | arm | over alone | lower end | upper end |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {f.title} | {label} | {ratio:.3f} | {_ends(ratio, count)} |" for f, label, ratio in worst]
    return "\n".join([*lines, ""])


def _ends(ratio: Ratio, count: int) -> str:
    return f"{ratio.lower(count):.2f} | {ratio.upper(count):.2f}" if ratio.count >= ENOUGH else "- | -"


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
            f"| {column.series}, {column.head} | {100 * sum(worse) / len(worse):.0f} % | {100 * max(worse):.0f} % "
            f"| {sum(deciles) / len(deciles):.2f} | {top[2]:.2f} ({top[0]}) |"
        )
    if not lines:
        return ""
    head = [
        "**Client by client** (regret over all evaluations, beside the same client alone)",
        "",
        "| arm | worse than alone, mean of families | most | worst decile, mean of families | worst |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines, ""])


def _stress(every: Sequence[Played]) -> str:
    """Every arm of the families with noise or poison."""
    if not every:
        return ""
    lines = ["**Noise and poison** (over the best arm alone)", "", "| family | arm | over alone |", "|---|---|---|"]
    for family in every:
        rows = [label for label in family.entries if label not in family.alone]
        lines += [f"| {family.title} | {label} | {_cell(family, label)} |" for label in rows]
    return "\n".join([*lines, ""])


def draw(every: Sequence[Played]) -> bytes:
    """Draw ratios against epsilon, a small picture per family, as PNG."""
    from matplotlib.figure import Figure

    columns = min(5, len(every))
    rows = math.ceil(len(every) / columns)
    figure = Figure(figsize=(2.7 * columns, 2.3 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).reshape(-1)
    lines = (
        (OURS, False, "mean", "#2b87c8", "-", "default, mean over evaluations"),
        (OURS, False, "end", "#2b87c8", ":", "default, at the end"),
        (OURS, True, "mean", "#7f7f7f", "-", "its clients' sum zeroed, mean"),
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
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    figure.supxlabel("epsilon of the whole run at delta = 1e-5   (*: settings were chosen on this family)", fontsize=8)
    figure.supylabel("regret over that of the best arm alone", fontsize=8)
    return png_of(figure, dpi=100)
