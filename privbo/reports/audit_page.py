"""The audit as a page, a private one where it holds a clipping audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from privbo.audits.audit import Audit
from privbo.audits.canary import World
from privbo.audits.clipping import ClippedRound, ClippingAudit
from privbo.audits.empirical import Empirical
from privbo.reports.document import Document, write_document
from privbo.reports.figure import Axis, Figure, Series


def write_audit(audit: Audit, path: Path) -> Path:
    """Write an audit's HTML page atomically; returns its path."""
    return write_document(document(audit), path)


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


def audit_figures(audit: ClippingAudit) -> dict[str, Figure]:
    """PRIVATE: draw an audit's figures, by name."""
    return {
        "bias-and-noise": _bias_and_noise(audit.rounds),
        "norms": _norms(audit.rounds),
        "clipped-share": _clipped_share(audit.rounds),
        "error-by-bound": _error_by_bound(audit),
    }


_ROUND = Axis(label="round", integers=True)


def _bias_and_noise(rounds: Sequence[ClippedRound]) -> Figure:
    x = [r.round for r in rounds]
    series = (
        Series(label="signal", x=x, y=[r.signal for r in rounds]),
        Series(label="lost to clipping (bias)", x=x, y=[r.bias for r in rounds], colour=1),
        Series(label="noise", x=x, y=[r.noise for r in rounds], colour=2),
    )
    return Figure(series=series, x=_ROUND, y=Axis(label="norm of the sums", from_zero=True))


def _norms(rounds: Sequence[ClippedRound]) -> Figure:
    """A fan: all vectors, nine of ten, half of them, and their median."""
    there = [r for r in rounds if r.norm_quantiles]
    x = [r.round for r in there]
    fan = [
        Series(
            label=label,
            x=x,
            y=[r.norm_quantiles[high] for r in there],
            lower=[r.norm_quantiles[low] for r in there],
            kind="band",
            opacity=opacity,
        )
        for label, low, high, opacity in _FAN
    ]
    median = Series(label="median", x=x, y=[r.norm_quantiles["0.5"] for r in there])
    bound = Series(
        label="bound", x=[r.round for r in rounds], y=[r.bound for r in rounds], kind="line", colour=1, dash=0, width=3
    )
    return Figure(series=(*fan, median, bound), x=_ROUND, y=Axis(label="norm of one vector", from_zero=True))


_FAN = (("all", "0", "1", 0.15), ("nine of ten", "0.05", "0.95", 0.25), ("half", "0.25", "0.75", 0.4))


def _clipped_share(rounds: Sequence[ClippedRound]) -> Figure:
    shown = Series(label="clipped", x=[r.round for r in rounds], y=[r.clipped_share for r in rounds], kind="bars")
    return Figure(series=(shown,), x=_ROUND, y=Axis(label="clipped", limits=(0.0, 1.0), percent=True))


def _error_by_bound(audit: ClippingAudit) -> Figure:
    errors = audit.by_factor()
    x = [factor * audit.clipping_norm for factor in errors]
    series = (
        Series(label="with another S", x=x, y=list(errors.values())),
        Series(label="S of this run", x=[audit.clipping_norm], y=[errors[1.0]], kind="points", colour=1),
    )
    label = {
        "direction": "cosine similarity to the unclipped sum",
        "magnitude": "error of the sums",
    }[audit.advice.use]
    # Decades alone would leave most of the axis without marks.
    return Figure(series=series, x=Axis(label="clipping norm S", log=True, ticks=x[::2]), y=Axis(label=label))
