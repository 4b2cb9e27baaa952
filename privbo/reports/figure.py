"""Figures: what they show as data, drawn by Matplotlib for pages (inline SVG), notebooks and papers.

A page's figure has no script and no colour of its own: strokes and fills name the page's style variables, so that it
follows a light or dark screen and prints on paper.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from markupsafe import Markup

from accountant.verify.text import at_most, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Kind: TypeAlias = Literal["line", "points", "line and points", "bars", "band"]

# After Okabe and Ito: colour-blind readers can tell them apart. A page's style names them c0 to c6.
COLOURS = ("#1f77b8", "#c25200", "#00805d", "#a8558a", "#3182c0", "#a87000", "#6b6b6b")
_INK, _SOFT, _GRID = "#1c2330", "#5b6472", "#d5dae1"
_VARIABLES = {colour: f"c{place}" for place, colour in enumerate(COLOURS)} | {_INK: "ink", _SOFT: "soft", _GRID: "line"}
_DASHES = ("-", "--", ":", "-.", (0, (12, 4)))
_MARKED = 60  # longer lines have no marks
_STYLE: Any = {  # its type differs between versions of Matplotlib
    "svg.fonttype": "none",  # text stays text: it can be searched, and has the page's font
    "svg.hashsalt": "privbo",  # the same figure, the same bytes
    "text.parse_math": False,  # a dollar sign in a name is one
    "font.size": 11.5,
    "axes.titlecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "text.color": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, set of points, bars, or band of a figure.

    Attributes:
        label: Name in the legend; empty leaves it out.
        x, y: Values, of one length; None or a value that is not finite interrupts a line. Of a band, ``y`` is the
            upper edge.
        kind: How it is drawn.
        colour: Place among ``COLOURS``; a line's dashes go with it.
        dash: Place among the dashes, where they are not the colour's.
        errors: Half lengths of error bars.
        lower: Lower edge of a band.
        opacity: Of a band.
        width: Of a line, in points.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    kind: Kind = "line and points"
    colour: int = 0
    dash: int | None = None
    errors: Sequence[float] | None = None
    lower: Sequence[float] = ()
    opacity: float = 0.2
    width: float = 2.0

    def words(self, axis: str) -> str:
        """Say the ends of a series, for readers who cannot see it; empty for bands and series without values."""
        points = [(x, y) for x, y in zip(self.x, self.y, strict=True) if y is not None and math.isfinite(y)]
        if not points or self.kind == "band":
            return ""
        first, last = (f"{at_most(float(y))} at {at_most(float(x))}" for x, y in (points[0], points[-1]))
        if self.kind == "line" and len(self.x) == 1:  # a level
            first = at_most(float(points[0][1]))
        return f"{self.label or axis}: {f'from {first} to {last}' if len(points) > 1 else first}."


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a figure.

    Attributes:
        label: What it shows, with its unit.
        log: Whether it is logarithmic.
        limits: Its ends; None shows all values.
        from_zero: Whether it begins at zero.
        ticks: Values to mark; None chooses.
        integers: Whether only whole numbers are marked.
        percent: Whether values are written as percentages.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None
    from_zero: bool = False
    ticks: Sequence[float] | None = None
    integers: bool = False
    percent: bool = False


ROUNDS = Axis(label="round", integers=True)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: series over two axes.

    Attributes:
        series: What is drawn, the first behind the others.
        x, y: The axes.

    Example:
        >>> line = Series(label="tight", x=[1, 2], y=[0.5, 0.75])
        >>> drawn = Figure(series=(line,), x=Axis(label="releases", integers=True), y=Axis(label="epsilon"))
        >>> drawn.words
        'epsilon against releases. tight: from 0.5 at 1 to 0.75 at 2.'
        >>> drawn.svg("Price of a run.").startswith('<svg')
        True
    """

    series: Sequence[Series] = field(default=())
    x: Axis
    y: Axis

    @property
    def words(self) -> str:
        """Say in a few sentences what the figure shows, for readers who cannot see it."""
        found = [words for words in (series.words(self.y.label) for series in self.series) if words]
        kept = found if len(found) <= 8 else [*found[:8], f"And {len(found) - 8} more."]
        return " ".join([f"{self.y.label} against {self.x.label}.", *kept])

    def plot(self) -> Canvas:
        """Draw the figure with Matplotlib; a notebook shows what this returns."""
        with _canvas() as (canvas, axes):
            for series in self.series:
                _draw(axes, series)
            _lay_out(axes, self)
            named = [series for series in self.series if series.label]
            if len(named) > 1:
                columns = max(1, min(3, 75 // max(len(series.label) + 5 for series in named)))
                canvas.legend(loc="outside lower left", ncols=columns, handlelength=2.6)
        return canvas

    def svg(self, label: str, name: str = "figure") -> Markup:
        """Draw the figure as SVG for a page.

        Args:
            label: What it shows; the ends of its series are added in words.
            name: Its name, which no other figure of the page has.
        """
        return inline_svg(self.plot(), f"{label} {self.words}".strip(), name)

    def _repr_svg_(self) -> str:
        """Show the figure in a notebook, on white."""
        canvas = self.plot()
        canvas.set_facecolor("white")
        return _svg_text(canvas)


@contextmanager
def _canvas(**style: object) -> Iterator[tuple[Canvas, Axes]]:
    """An empty figure of a page's width, and the axes to draw on."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(_STYLE | style):
        canvas = Canvas(figsize=(6.6, 3.6), layout="constrained")
        yield canvas, canvas.add_subplot()


def _draw(axes: Axes, series: Series) -> None:
    colour = COLOURS[series.colour % len(COLOURS)]
    dash: Any = _DASHES[(series.colour if series.dash is None else series.dash) % len(_DASHES)]
    y = np.array([np.nan if v is None else v for v in series.y], dtype=np.float64)
    label = shown(series.label) or "_"
    if series.kind == "band":
        axes.fill_between(series.x, series.lower, y, color=colour, alpha=series.opacity, linewidth=0, label=label)
    elif series.kind == "bars":
        axes.bar(series.x, y, color=colour, label=label)
    elif series.kind == "line" and len(series.x) == 1:  # a level, across the whole figure
        axes.axhline(float(y[0]), color=colour, linestyle=dash, linewidth=series.width, label=label)
    else:
        marked = series.kind == "points" or (series.kind == "line and points" and len(y) <= _MARKED)
        style: Any = {
            "color": colour,
            "linestyle": "none" if series.kind == "points" else dash,
            "linewidth": series.width,
            "marker": "o" if marked or np.isfinite(y).sum() == 1 else "none",
            "markersize": 7 if series.kind == "points" else 4.5,
        }
        axes.errorbar(series.x, y, yerr=series.errors, capsize=3, elinewidth=1.3, label=label, **style)


def _lay_out(axes: Axes, figure: Figure) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(figure.x.label)
    axes.set_title(textwrap.fill(figure.y.label, 68), loc="left", fontsize="medium")  # read without tilting one's head
    for side, axis, values in (("x", figure.x, axes.get_xlim()), ("y", figure.y, axes.get_ylim())):
        drawn = axes.xaxis if side == "x" else axes.yaxis
        if axis.log:
            getattr(axes, f"set_{side}scale")("log")
        elif axis.integers:
            drawn.set_major_locator(MaxNLocator(integer=True, nbins=7))
        if axis.limits is not None:
            getattr(axes, f"set_{side}lim")(*axis.limits)
        elif axis.from_zero and values[1] > 0:
            getattr(axes, f"set_{side}lim")(0.0, values[1])
        if axis.ticks is not None:
            drawn.set_ticks(list(axis.ticks), [at_most(float(tick), 3) for tick in axis.ticks])
            drawn.set_ticks([], minor=True)
        if axis.percent:
            drawn.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def parallel(axes: Sequence[tuple[str, str, str]], rows: Sequence[Sequence[float]], name: str = "parallel") -> Markup:
    """Draw parallel coordinates: a line per row of unit values, the best quarter by the last axis in front.

    Args:
        axes: Name, lower end and upper end of every axis, in words.
        rows: Values in [0, 1], one of every axis.
        name: Of the figure, which no other figure of the page has.

    Example:
        >>> drawn = parallel([("x", "0", "1"), ("value", "0", "9")], [[0.5, 1.0]])
        >>> "1 trials over x, value" in drawn
        True
    """
    ordered = sorted(rows, key=lambda row: row[-1])
    first = len(ordered) - max(1, len(ordered) // 4)
    style = {"axes.grid.axis": "x", "axes.spines.left": False, "axes.spines.bottom": False}
    with _canvas(**style) as (canvas, drawn):
        for place, row in enumerate(ordered):
            best = place >= first
            drawn.plot(row, color=COLOURS[1 if best else 6], alpha=0.9 if best else 0.35, linewidth=1.6)
        names = [f"{shown(name)[:14]}\n{shown(low)[:9]} to {shown(high)[:9]}" for name, low, high in axes]
        drawn.set_xticks(range(len(axes)), names)
        drawn.set_yticks([])
        drawn.set_ylim(-0.02, 1.02)
    label = f"{len(rows)} trials over {', '.join(name for name, _, _ in axes)}; the best quarter stands in front."
    return inline_svg(canvas, label, name)


_HEAD = re.compile(r"\A.*?<svg[^>]*viewBox=\"([^\"]*)\".*?</metadata>\s*<defs>\s*<style.*?</defs>", re.DOTALL)
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(|href=")#([^)"]*)')
_FONT = re.compile(r"font-family: [^;\"]*; | transform=\"rotate\(-0[^\"]*\"")  # the page's font
_COLOUR = re.compile("|".join(_VARIABLES))


def inline_svg(canvas: Canvas, label: str, name: str) -> Markup:
    """Turn a Matplotlib figure into SVG that stands in a page, in the colours of the page's style.

    Args:
        canvas: Drawn in ``COLOURS``.
        label: What it shows, for readers who cannot see it.
        name: What its identifiers begin with, so that no two figures of a page share one.

    Raises:
        ValueError: If Matplotlib writes SVG of another form.
    """
    text = _svg_text(canvas)
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("Matplotlib wrote SVG of another form; use a version that pyproject.toml names")
    body = re.sub(r"<!--.*?-->", "", text[head.end() :])
    used = set(_REFERENCE.findall(body))
    body = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = _REFERENCE.sub(lambda found: found[0].replace("#", f"#{name}-"), body)
    body = _FONT.sub("", _COLOUR.sub(lambda found: f"var(--{_VARIABLES[found[0]]})", body))
    frame = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(head[1], shown(label))
    return frame + Markup(re.sub(r"\s*\n\s*", " ", body))  # noqa: S704  # Matplotlib escapes the text it writes


def _svg_text(canvas: Canvas) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Text stays text, and the page's font has what Matplotlib's lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        # ``savefig`` gives the same bytes, and draws twice.
        FigureCanvasSVG(canvas).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]  # its own
    return buffer.getvalue()
