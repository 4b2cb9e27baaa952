"""Tables and picture of the study ``worth``."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.cells import Found
from experiments.run import Seen
from experiments.study import Panel
from experiments.worth import BARS, MEASURES, NEVER_WORSE, Bar, Family, Ratio, families, geometric
from privbo.protocol.settings import JsonObject

EPSILONS = (0.5, 1.0, 2.0, 8.0)
ENOUGH = 4  # seeds from which on an upper end means anything
OURS, PAPER = "default", "DP-FTS-DE"


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

    def label(self, family: Family) -> str | None:
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
    every = families(panels)
    plain = [family for family in every if family.panel.purpose != "stress"]
    stress = [family for family in every if family.panel.purpose == "stress"]
    parts = [_table(plain), _bars(plain), _never_worse(plain), _clients(plain), _stress(stress)]
    text = "\n".join(part for part in parts if part)
    return Seen(text=text, summary=_summary(every), pictures={"figure": draw(plain)} if plain else {})


def _table(every: Sequence[Family]) -> str:
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
        seeds = max(len(runs) for runs in family.found.values())
        facts = [family.panel.purpose, f"{family.n_clients}", f"{family.correlation:.2f}", alone, f"{seeds}"]
        lines.append(f"| {family.title} | " + " | ".join([*facts, *cells]) + " |")
    return "\n".join([*lines, ""])


def _cell(family: Family, label: str | None) -> str:
    if label is None:
        return "-"
    return " / ".join(f"{family.ratio(label, measure):.2f}" for measure in MEASURES)


def _bars(every: Sequence[Family]) -> str:
    """Geometric means over families, beside what they are held to."""
    lines = [line for bar in BARS for purpose in ("reporting", "choosing") if (line := _bar(every, bar, purpose))]
    if not lines:
        return ""
    head = ["**Bars** (geometric mean over families, mean over evaluations / at the end)", ""]
    head += ["| families | for | number | found | at most | reached |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines, ""])


def _bar(every: Sequence[Family], bar: Bar, purpose: str) -> str:
    kept = [(family, family.label(OURS, bar.epsilon)) for family in every if bar.speaks_of(family, purpose)]
    known = [(family, label) for family, label in kept if label is not None]
    if not known:
        return ""
    means = {measure: geometric([f.ratio(label, measure) for f, label in known]) for measure in MEASURES}
    found = " / ".join(f"{means[measure]:.3f}" for measure in MEASURES)
    wanted = " / ".join(f"{bar.limits[measure]:.2f}" for measure in MEASURES)
    reached = all(means[measure].value <= bar.limits[measure] for measure in MEASURES)
    return (
        f"| epsilon {bar.epsilon:g}, N >= {bar.clients}, correlation >= {bar.correlation:g} | {purpose} "
        f"| {len(known)} | {found} | {wanted} | {'yes' if reached else 'no'} |"
    )


def private(every: Sequence[Family]) -> Iterator[tuple[Family, str, Ratio]]:
    """Give every private arm of the default, zeroed ones too, with its ratio over all evaluations."""
    for family in every:
        for label, arm in family.arms.items():
            if arm.series == OURS and arm.x is not None:
                yield family, label, family.ratio(label, "mean")


def _never_worse(every: Sequence[Family]) -> str:
    """The worst cells, with upper ends that hold for all of them together."""
    cells = list(private(every))
    if not cells:
        return ""
    ends = [(ratio.upper(len(cells)), family, label, ratio) for family, label, ratio in cells]
    worst = sorted(ends, key=lambda one: -one[0])[:8]
    unsure = sum(ratio.error > 0.02 for _, _, ratio in cells)
    above = sum(end > NEVER_WORSE for end, *_ in ends)
    lines = [
        f"**Never worse than alone** (over all evaluations; {len(cells)} ratios, {unsure} with an error above 2 %)",
        "",
        f"Upper ends hold for all of them together with 95 % confidence; {above} are above {NEVER_WORSE}. The largest:",
        "",
        "| family | arm | over alone | upper end |",
        "|---|---|---|---|",
    ]
    lines += [f"| {f.title} | {label} | {ratio:.3f} | {_end(end, ratio)} |" for end, f, label, ratio in worst]
    return "\n".join([*lines, ""])


def _end(value: float, ratio: Ratio) -> str:
    return f"{value:.2f}" if ratio.seeds >= ENOUGH else f"{ratio.seeds} seeds are too few"


def _clients(every: Sequence[Family]) -> str:
    """How single clients fare at each epsilon."""
    lines = []
    for column in COLUMNS:
        found = [(f, f.clients(label)) for f in every if (label := column.label(f)) is not None]
        known = [(family, clients) for family, clients in found if clients is not None]
        if not known:
            continue
        worse = [clients.worse for _, clients in known]
        deciles = [clients.decile for _, clients in known]
        top = max(known, key=lambda pair: pair[1].decile)
        lines.append(
            f"| {column.series}, {column.head} | {100 * sum(worse) / len(worse):.0f} % | {100 * max(worse):.0f} % "
            f"| {sum(deciles) / len(deciles):.2f} | {top[1].decile:.2f} ({top[0].title}) |"
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


def _stress(every: Sequence[Family]) -> str:
    """Every arm of the families with noise or poison."""
    if not every:
        return ""
    lines = ["**Noise and poison** (over the best arm alone)", "", "| family | arm | over alone |", "|---|---|---|"]
    for family in every:
        rows = [label for label in family.arms if label not in family.alone]
        lines += [f"| {family.title} | {label} | {_cell(family, label)} |" for label in rows]
    return "\n".join([*lines, ""])


def _summary(every: Sequence[Family]) -> JsonObject:
    return {
        family.title: {
            "purpose": family.panel.purpose,
            "n_clients": family.n_clients,
            "correlation": family.correlation,
            "alone": {measure: family.best_alone(measure) for measure in MEASURES},
            "ratios": {
                label: {measure: _json(family.ratio(label, measure)) for measure in MEASURES} for label in family.arms
            },
        }
        for family in every
    }


def _json(ratio: Ratio) -> JsonObject:
    return {"value": ratio.value, "error": ratio.error if math.isfinite(ratio.error) else None, "seeds": ratio.seeds}


def draw(every: Sequence[Family]) -> bytes:
    """Draw ratios against epsilon, a small picture per family, as PNG."""
    from matplotlib.figure import Figure

    columns = min(5, len(every))
    rows = math.ceil(len(every) / columns)
    figure = Figure(figsize=(2.7 * columns, 2.3 * rows + 0.6), layout="constrained", dpi=100)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).reshape(-1)
    lines = (
        (OURS, False, "mean", "#2b87c8", "-", "default, mean over evaluations"),
        (OURS, False, "end", "#2b87c8", ":", "default, at the end"),
        (OURS, True, "mean", "#7f7f7f", "-", "its clients' sum zeroed, mean"),
        (PAPER, False, "mean", "#d55e00", "-", "DP-FTS-DE as in the paper, mean"),
    )
    for axes, family in zip(grid, every, strict=False):
        purpose = "" if family.panel.purpose == "reporting" else " *"
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
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
