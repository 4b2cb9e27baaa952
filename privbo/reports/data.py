"""The report of one run: what it cost, release by release, from public files only.

``report`` gives the numbers as plain data; ``write_report`` draws them as one HTML page.
Nothing private is read here; ``privbo.reports.diagnostics`` adds that, marked, on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accountant.disjoint import combination
from accountant.dp_event import dp_event_expression
from accountant.event_text import event_text
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
    Unit,
    from_dict,
    parts,
    to_dict,
)
from accountant.ledger import Entry, Ledger
from privbo.plans import prices
from privbo.protocol.messages import Release
from privbo.reports.document import write_document
from privbo.reports.page import document, page, report_figures
from privbo.runs.record import Record
from privbo.runs.replay import active_nodes, stored_releases

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["page", "report", "write_page", "write_report"]

NOISE_SOURCES = {
    "secure": "secure: cryptographic generator keyed by the operating system",
    "exact": "exact: discrete Gaussian",
    "simulation": "seeded noise: simulation, not a guarantee",
    "none": "none: not private",
}
UNITS = {
    Unit.CLIENT: "one client: everything it ever sent",
    Unit.RECORD: "one record of the training data",
    Unit.REWARD: "one reward: the outcome of one evaluation; what a client does as a whole is not hidden",
}
TRUST = "the aggregating server is trusted; readers of broadcasts, other clients among them, are not"


def write_report(record: Record, path: str | Path | None = None) -> Path:
    """Write a run's HTML report, ``report.html`` in its directory unless another path is named; returns the path."""
    return write_page(report(record), record.home.report_path if path is None else Path(path))


def figures(record: Record) -> dict[str, go.Figure]:
    """Draw the report's figures by name, as Plotly figures; public."""
    import plotly.graph_objects as go

    return {name: go.Figure(drawn) for name, drawn in report_figures(report(record)).items()}


def write_page(
    data: Mapping[str, Any], path: Path, *, private: Mapping[str, Any] | None = None, shared_assets: bool = False
) -> Path:
    """Write a report's HTML page atomically; returns its path.

    Args:
        data: The report.
        path: Where to.
        private: PRIVATE diagnostics to add in a marked section; such a page is not for export.
        shared_assets: Put Plotly once beside the page instead of into it.
    """
    return write_document(document(data, private), path, shared_assets=shared_assets)


def report(record: Record) -> dict[str, Any]:
    """Everything public about a run, as plain JSON-able data.

    Epsilon is the plan's: when a run ends may depend on what it saw. Infinite values
    are given as None.
    """
    config: dict[str, Any] = record.config
    ledger = record.ledger
    plan = config["plan"]
    adjacency, delta = Adjacency(plan["adjacency"]), plan["delta"]
    event = from_dict(plan["event"])
    entries = ledger.entries(config["run_id"])
    state = ledger.verify()
    at = prices.price(event, delta=delta, n_clients=config["problem"]["n_clients"], adjacency=adjacency)
    combine = combination(disjoint=ledger.policy.disjoint)
    points = prices.cumulative([entry.event for entry in entries], delta, adjacency, combine=combine)
    curve = prices.curve(event, delta, adjacency)
    budget = ledger.policy.budget
    return {
        "name": config["name"],
        "run": config["run_id"],
        "created": config["created"],
        "epsilon": at[0]["epsilon"],
        "delta": delta,
        "epsilon_at": at,
        "epsilon_interval": prices.interval(event, delta, adjacency),
        **prices.guarantee(entries, plan=event, delta=delta, adjacency=adjacency, budget=budget, combine=combine),
        "attacker": prices.attacker(curve),
        "delta_epsilon_curve": curve,
        "planned_event": plan["event"],
        "dp_event": dp_event_expression(event, adjacency=adjacency),
        "releases": len(entries),
        "planned_releases": plan["releases"],
        "rounds": config["rounds"],
        "n_clients": config["problem"]["n_clients"],
        "unit": ledger.policy.unit.value,
        "unit_text": UNITS[ledger.policy.unit],
        "adjacency": adjacency.value,
        "trust": TRUST,
        "samplers": sorted({_sampler(part) for part, _ in parts(event)}),
        "noise_multiplier": plan["noise_multiplier"],
        "sample_rate": config["privacy"].get("sample_rate"),
        "noise_source": plan["noise_source"],
        "noise_source_text": NOISE_SOURCES[plan["noise_source"]],
        "guarantee": plan["noise_source"] in {"secure", "exact"},
        "control": config["control"],
        "caveat": config.get("caveat"),
        "population": _population(ledger, delta, adjacency),
        "ledger": {
            "verified": state.ok,
            "problem": state.problem,
            "head": state.head,
            "entries": state.n_entries,
        },
        "entries": [
            _row(entry, after) for entry, after in zip(entries, prices.after_each(points, len(entries)), strict=True)
        ],
        "cumulative_epsilon": points,
        "utility": _utility(record),
        "problem": config["problem"],
        "algorithm": config["algorithm"],
        "privacy": config["privacy"],
        "seed": config["seed"],
        "public_seed": config["public_seed"],
        "device": config["device"],
        "source": config["source"],
        "versions": config["versions"],
    }


def _population(ledger: Ledger, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """What every run on this ledger's population has spent together."""
    budget = ledger.policy.budget
    return {
        "name": ledger.policy.population,
        "releases": len(ledger.entries()),
        "runs": len({entry.run for entry in ledger.entries()}),
        "delta": delta,
        "epsilon": prices.table(ledger.event(), delta, adjacency),
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta, "rule": budget.rule},
    }


def _row(entry: Entry, epsilon: float | None) -> dict[str, Any]:
    event = entry.event
    return {
        "sequence": entry.sequence,
        "release": entry.release_id,
        "event": event_text(event),
        "mechanism": to_dict(event),
        "noise_multiplier": getattr(event, "noise_multiplier", None),
        "sample_rate": _rate(event),
        "cumulative_epsilon": epsilon,
        "noise_source": entry.noise_source,
        "digest": entry.digest,
    }


def _rate(event: Event) -> float | None:
    if isinstance(event, Gaussian):
        return 1.0
    return getattr(event, "sample_rate", None)


def _sampler(event: Event) -> str:
    match event:
        case Gaussian():
            return "none: every client takes part in every release"
        case PoissonSampledGaussian():
            return f"Poisson: every client by its own secret coin, rate {event.sample_rate:.4g}"
        case FixedSizeSampledGaussian():
            return f"fixed size: a secret subset of {event.sample_size} of {event.n_clients} clients"
        case BestOfRandomRuns():
            return "; ".join(dict.fromkeys(_sampler(part) for part, _ in event.run.parts))
        case NonPrivate():
            return "none: nothing is protected"
        case _:
            return type(event).__name__


def _utility(record: Record) -> dict[str, Any]:
    """What was broadcast and what it took to send it: functions of the releases, so public."""
    releases = stored_releases(record.ledger, record.run_id)
    rows = [_released(release) for release in releases]
    return {
        "releases": rows,
        "communication": _communication(releases, record.spec.rounds, record.plan.sending_share),
        "active_nodes": active_nodes(record),
    }


def _released(release: Release) -> dict[str, Any]:
    return {
        "round": release.round,
        "blocks": int(release.values.shape[0]),
        "dim": int(release.values.shape[1]),
        "norm": float(np.linalg.norm(release.values)),
        "noise_stddev": release.noise_stddev,
        "noise_norm": release.noise_stddev * float(np.sqrt(release.values.size)),
    }


def _communication(releases: Sequence[Release], rounds: int, sending_share: float) -> dict[str, Any]:
    """Bytes of one client at eight per number: one vector up per release, every block of the last release down.

    Where only sampled clients send, that is their expected share of rounds; who sent is secret.
    """
    return {
        "rounds": rounds,
        "releases": len(releases),
        "sending_share": sending_share,
        "bytes_up_per_client": round(sending_share * sum(8 * release.values.shape[1] for release in releases)),
        "bytes_down_per_client": sum(8 * release.values.size for release in releases),
    }
