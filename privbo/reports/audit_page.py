"""The audit as a page, a private one; the black-box audit of the mechanism beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from privbo.audits.black_box import World
from privbo.audits.clipping import ClippingAudit
from privbo.audits.empirical import Empirical
from privbo.reports import document as doc
from privbo.reports.figures import layout, line


def document(name: str, audit: ClippingAudit | None, empirical: Sequence[Empirical]) -> doc.Document:
    """The page's parts; either half may be missing."""
    figures: dict[str, doc.Figure] = {}
    body = ""
    if audit is not None:
        body += _clipping(audit)
        figures |= {
            "bias-and-noise": bias_and_noise(audit),
            "norms": norms(audit),
            "clipped-share": clipped_share(audit),
            "error-by-bound": error_by_bound(audit),
        }
    body += _empirical(empirical)
    return doc.Document(title=f"Audit: {name}", body=body, figures=figures)


def _clipping(audit: ClippingAudit) -> str:
    last = audit.rounds[-1]
    best = audit.best_factor * audit.clipping_norm
    regions = [
        (region, signal, bias, last.noise_by_region)
        for region, (signal, bias) in enumerate(zip(last.signal_by_region, last.bias_by_region, strict=True))
    ]
    rows = [(r.round, r.bound, f"{r.clipped_share:.0%}", r.signal, r.bias, r.noise) for r in audit.rounds]
    head = ("round", "bound", "clipped", "signal", "bias", "noise")
    return "\n".join(
        (
            doc.paragraph(
                f"{audit.note[0].upper()}{audit.note[1:]}. Keep this page where the clients' data are.", "warn"
            ),
            doc.warnings(f"Notice: {words}." for words in audit.warnings),
            doc.section(
                "Bias against noise",
                doc.figure("bias-and-noise", "Norms of the released sums: as meant, lost to clipping, added as noise."),
                doc.figure("error-by-bound", "Root of bias squared plus noise squared had S been another."),
                doc.paragraph(
                    f"S was {audit.clipping_norm:.4g}; {best:.4g} had made bias and noise together smallest. "
                    "Using that for the next run is a choice made from private data, and no epsilon covers it."
                ),
            ),
            doc.section(
                "Norms of clients' vectors",
                doc.figure("norms", "Quantiles of the contributing vectors' norms, and the bound."),
                doc.figure("clipped-share", "Share of contributing participants whose vector was shortened."),
            ),
            doc.section("Rounds", f'<div class="long">{doc.table(head, rows)}</div>'),
            doc.section("Regions in the last round", doc.table(("region", "signal", "bias", "noise"), regions)),
        )
    )


def _empirical(found: Sequence[Empirical]) -> str:
    if not found:
        return ""
    rows = [
        (
            e.event,
            e.world,
            e.trials,
            e.epsilon,
            e.delta_lower,
            e.delta_claimed,
            "within the claim" if e.passed else "ABOVE THE CLAIM",
        )
        for e in found
    ]
    head = ("release", "world", "trials", "at epsilon", "delta measured, at least", "delta claimed", "verdict")
    extra = [
        f"{e.event}: epsilon at least {e.epsilon_lower:.4g} by attack (95 % confidence), at most "
        f"{e.epsilon_claimed:.4g} by the claim, at delta {e.delta:.3g} (one release)."
        for e in found[:: len(get_args(World))]
    ]
    extra.append("Below rate 1 the attack's bound takes participation as sampled at the stated rate.")
    words = "The shipped release code was attacked as a black box; no client's data were touched."
    return doc.section(
        "Black-box audit of the mechanism", doc.paragraph(words), doc.table(head, rows), *map(doc.paragraph, extra)
    )


def bias_and_noise(audit: ClippingAudit) -> doc.Figure:
    """Signal, bias and noise per round, in one unit."""
    x = [r.round for r in audit.rounds]
    data = [
        line("signal", x, [r.signal for r in audit.rounds], 0),
        line("lost to clipping (bias)", x, [r.bias for r in audit.rounds], 1),
        line("noise", x, [r.noise for r in audit.rounds], 2),
    ]
    return {"data": data, "layout": layout("round", "norm of the sums", yaxis={"rangemode": "tozero"})}


def norms(audit: ClippingAudit) -> doc.Figure:
    """Quantiles of norms per round and the bound."""
    levels = sorted({level for r in audit.rounds for level in r.norm_quantiles}, key=float)
    x = [r.round for r in audit.rounds]
    data = [
        line(f"{float(level):.0%}", x, [r.norm_quantiles.get(level) for r in audit.rounds], index)
        for index, level in enumerate(levels)
    ]
    bound = line("bound", x, [r.bound for r in audit.rounds], 1, mode="lines", line={"width": 4, "dash": "solid"})
    return {"data": [*data, bound], "layout": layout("round", "norm of one vector", yaxis={"rangemode": "tozero"})}


def clipped_share(audit: ClippingAudit) -> doc.Figure:
    """Share of vectors shortened per round."""
    bars = {"type": "bar", "x": [r.round for r in audit.rounds], "y": [r.clipped_share for r in audit.rounds]}
    return {"data": [bars], "layout": layout("round", "clipped", yaxis={"range": [0, 1], "tickformat": ".0%"})}


def error_by_bound(audit: ClippingAudit) -> doc.Figure:
    """Mean over rounds of bias and noise together against S."""
    errors = audit.mean_error()
    x = [factor * audit.clipping_norm for factor in errors]
    data = [
        line("bias and noise together", x, list(errors.values()), 0),
        line("S of this run", [audit.clipping_norm], [errors[1.0]], 1, mode="markers", marker={"size": 11}),
    ]
    return {
        "data": data,
        "layout": layout("clipping norm S", "error of the sums", xaxis={"type": "log", "dtick": "D1"}),
    }
