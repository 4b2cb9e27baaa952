"""The audit as a page, a private one where it holds a clipping audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from privbo.audits.audit import Audit
from privbo.audits.canary import World
from privbo.audits.clipping import ClippedRound, ClippingAudit
from privbo.audits.empirical import Empirical
from privbo.reports.colours import COLOURS
from privbo.reports.document import Document, Figure, write_document
from privbo.reports.figures import bars, figure, line

if TYPE_CHECKING:
    import plotly.graph_objects as go


def write_audit(audit: Audit, path: Path, *, interactive: bool = False) -> Path:
    """Write an audit's HTML page atomically; returns its path."""
    return write_document(document(audit), path, interactive=interactive)


def document(audit: Audit) -> Document:
    """Compose the page; either half may be missing."""
    content = {
        "audit": audit.clipping,
        "attacked": _attacked(audit.empirical),
        "rounds": [] if audit.clipping is None else _rounds(audit.clipping.rounds),
        "regions": [] if audit.clipping is None else _regions(audit.clipping.rounds[-1]),
    }
    figures = {} if audit.clipping is None else audit_figures(audit.clipping)
    return Document(title=f"Audit: {audit.name}", template="audit.html.j2", content=content, figures=figures)


def _attacked(found: Sequence[Empirical]) -> list[tuple[Empirical, list[tuple[object, ...]]]]:
    """A mechanism's first outcome, which speaks for it, and a row of every world it was attacked in."""
    worlds = len(get_args(World))
    rows: list[tuple[object, ...]] = [
        (e.world, e.trials, e.epsilon, e.delta_lower, e.delta_claimed, e.verdict) for e in found
    ]
    return [(found[start], rows[start : start + worlds]) for start in range(0, len(found), worlds)]


def _rounds(rounds: Sequence[ClippedRound]) -> list[tuple[object, ...]]:
    return [(r.round, r.bound, f"{r.clipped_share:.0%}", r.signal, r.bias, r.noise) for r in rounds]


def _regions(last: ClippedRound) -> list[tuple[object, ...]]:
    pairs = zip(last.signal_by_region, last.bias_by_region, strict=True)
    return [(region, signal, bias, last.noise_by_region) for region, (signal, bias) in enumerate(pairs)]


def figures(audit: ClippingAudit) -> dict[str, go.Figure]:
    """PRIVATE: draw an audit's figures by name, as Plotly figures."""
    import plotly.graph_objects as go

    return {name: go.Figure(drawn) for name, drawn in audit_figures(audit).items()}


def audit_figures(audit: ClippingAudit) -> dict[str, Figure]:
    """PRIVATE: draw an audit's figures, as Plotly's data and layout by name."""
    return {
        "bias-and-noise": _bias_and_noise(audit.rounds),
        "norms": _norms(audit.rounds),
        "clipped-share": _clipped_share(audit.rounds),
        "error-by-bound": _error_by_bound(audit),
    }


def _bias_and_noise(rounds: Sequence[ClippedRound]) -> Figure:
    x = [r.round for r in rounds]
    data = [
        line("signal", x, [r.signal for r in rounds], 0),
        line("lost to clipping (bias)", x, [r.bias for r in rounds], 1),
        line("noise", x, [r.noise for r in rounds], 2),
    ]
    return figure(data, "round", "norm of the sums", yaxis={"rangemode": "tozero"})


def _norms(rounds: Sequence[ClippedRound]) -> Figure:
    """A fan: all vectors, nine of ten, half of them, and their median."""
    there = [r for r in rounds if r.norm_quantiles]
    x = [r.round for r in there]
    data = [_fan(name, there, low, high, opacity) for name, low, high, opacity in _FAN]
    data += [
        line("median", x, [r.norm_quantiles["0.5"] for r in there], 0, mode="lines+markers"),
        line("bound", [r.round for r in rounds], [r.bound for r in rounds], 1, line={"width": 4, "dash": "solid"}),
    ]
    return figure(data, "round", "norm of one vector", yaxis={"rangemode": "tozero"})


_FAN = (("all", "0", "1", 0.15), ("nine of ten", "0.05", "0.95", 0.25), ("half", "0.25", "0.75", 0.4))


def _fan(name: str, rounds: Sequence[ClippedRound], low: str, high: str, opacity: float) -> dict[str, object]:
    x = [r.round for r in rounds]
    ends = [r.norm_quantiles[high] for r in rounds], [r.norm_quantiles[low] for r in rounds][::-1]
    fill = {"fill": "toself", "fillcolor": COLOURS[0], "opacity": opacity, "hoverinfo": "skip"}
    return line(name, [*x, *x[::-1]], [*ends[0], *ends[1]], 0, mode="lines", line={"width": 0}) | fill


def _clipped_share(rounds: Sequence[ClippedRound]) -> Figure:
    shown = bars([r.round for r in rounds], [r.clipped_share for r in rounds])
    return figure([shown], "round", "clipped", yaxis={"range": [0, 1], "tickformat": ".0%"})


def _error_by_bound(audit: ClippingAudit) -> Figure:
    errors = audit.by_factor()
    x = [factor * audit.clipping_norm for factor in errors]
    data = [
        line("with another S", x, list(errors.values()), 0),
        line("S of this run", [audit.clipping_norm], [errors[1.0]], 1, mode="markers", marker={"size": 11}),
    ]
    ticks = x[::2]  # decades alone would leave most of the axis bare
    axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}
    name = {"direction": "agreement with the sum as meant (cosine)", "magnitude": "error of the sums"}[audit.advice.use]
    return figure(data, "clipping norm S", name, xaxis=axis)
