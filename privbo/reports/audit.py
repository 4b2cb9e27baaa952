"""The audit as a page, a private one where it holds a clipping audit."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from privbo.audits.clipping import ClippingAudit
from privbo.audits.empirical import Audit, World
from privbo.protocol.table import Table
from privbo.reports.document import Document
from privbo.reports.figure import Axis, Figure, Series

_FAN = (("all", "0", "1", 0.15), ("nine of ten", "0.05", "0.95", 0.25), ("half", "0.25", "0.75", 0.4))
_USES = {"direction": "cosine similarity to the unclipped sum", "magnitude": "error of the sums"}


def write_audit(audit: Audit, path: Path) -> Path:
    """Write an audit's HTML page atomically; returns its path."""
    clipping, worlds = audit.clipping, len(get_args(World))
    attacks = [audit.empirical[start : start + worlds] for start in range(0, len(audit.empirical), worlds)]
    content = {
        "audit": clipping,
        "attacks": attacks,
        "attacked": audit.attacks,
        "rounds": None if clipping is None else rounds_table(clipping),
    }
    figures = {} if clipping is None else audit_figures(clipping)
    page = Document(title=f"Audit: {audit.name}", template="audit.html.j2", content=content, figures=figures)
    return page.write(path, private=clipping is not None)


def rounds_table(audit: ClippingAudit) -> Table:
    """PRIVATE: tabulate signal, bias and noise by round."""
    return Table(
        title=f"{audit.name}: {audit.note}",
        headings=("round", "bound", "clipped", "signal", "bias", "noise"),
        rows=[(r.round, r.bound, r.clipped_share, r.signal, r.bias, r.noise) for r in audit.rounds],
        formats={2: "{:.0%}".format},
    )


def audit_figures(audit: ClippingAudit) -> dict[str, Figure]:
    """PRIVATE: draw an audit's figures, by name."""
    rounds = audit.rounds
    x, axis = [r.round for r in rounds], Axis(label="round", integers=True)
    there = [r for r in rounds if r.norm_quantiles]
    with_norms = [r.round for r in there]
    fan = [
        Series(
            label=label,
            x=with_norms,
            y=[r.norm_quantiles[high] for r in there],
            lower=[r.norm_quantiles[low] for r in there],
            kind="band",
            opacity=opacity,
        )
        for label, low, high, opacity in _FAN
    ]
    median = Series(label="median", x=with_norms, y=[r.norm_quantiles["0.5"] for r in there])
    bound = Series(label="bound", x=x, y=[r.bound for r in rounds], kind="line", colour=1, dash=0, width=3)
    clipped = Series(label="clipped", x=x, y=[r.clipped_share for r in rounds], kind="bars")
    sums = (
        Series(label="signal", x=x, y=[r.signal for r in rounds]),
        Series(label="lost to clipping (bias)", x=x, y=[r.bias for r in rounds], colour=1),
        Series(label="noise", x=x, y=[r.noise for r in rounds], colour=2),
    )
    errors = audit.by_factor()
    tried = [factor * audit.clipping_norm for factor in errors]
    by_bound = (
        Series(label="with another S", x=tried, y=list(errors.values())),
        Series(label="S of this run", x=[audit.clipping_norm], y=[errors[1.0]], kind="points", colour=1),
    )
    return {
        "bias-and-noise": Figure(series=sums, x=axis, y=Axis(label="norm of the sums", from_zero=True)),
        "norms": Figure(series=(*fan, median, bound), x=axis, y=Axis(label="norm of one vector", from_zero=True)),
        "clipped-share": Figure(series=(clipped,), x=axis, y=Axis(label="clipped", limits=(0.0, 1.0), percent=True)),
        # Decades alone would leave most of the axis without marks.
        "error-by-bound": Figure(
            series=by_bound,
            x=Axis(label="clipping norm S", log=True, ticks=tried[::2]),
            y=Axis(label=_USES[audit.advice.use]),
        ),
    }
