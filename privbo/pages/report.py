"""The report of one run: what it cost, release by release, from public files only.

``report`` gives the numbers as plain data; ``write_report`` draws them as one HTML page
that opens offline: no script, no request, everything escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accountant.epsilon import epsilon_table
from accountant.events import (
    Adjacency,
    Composed,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
    compose,
    from_dict,
)
from accountant.ledger import Ledger
from privbo.pages.figures import epsilon_by_release
from privbo.privacy import default_delta, paper_delta
from privbo.record import write_atomically

NOISE_SOURCES = {
    "secure": "secure: cryptographic generator keyed by the operating system",
    "exact": "exact: discrete Gaussian",
    "simulation": "seeded noise: simulation, not a guarantee",
    "none": "none: not private",
}


def report(config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Everything public about a run, as plain JSON-able data.

    Epsilon is the plan's: when a run ends may depend on what it saw. Infinite values
    are given as None.
    """
    plan = config["plan"]
    adjacency = Adjacency(plan["adjacency"])
    event = from_dict(plan["event"])
    entries = ledger.entries(config["run_id"])
    state = ledger.verify()
    n_clients = config["problem"]["n_clients"]
    at = price(event, delta=plan["delta"], n_clients=n_clients, adjacency=adjacency)
    return {
        "name": config["name"],
        "run": config["run_id"],
        "created": config["created"],
        "epsilon": at[0]["epsilon"],
        "delta": plan["delta"],
        "epsilon_at": at,
        "releases": len(entries),
        "planned_releases": plan["releases"],
        "rounds": config["rounds"],
        "n_clients": n_clients,
        "unit": ledger.policy.unit.value,
        "adjacency": adjacency.value,
        "noise_multiplier": plan["noise_multiplier"],
        "sample_rate": config["privacy"].get("sample_rate"),
        "noise_source": plan["noise_source"],
        "noise_source_text": NOISE_SOURCES[plan["noise_source"]],
        "guarantee": plan["noise_source"] in {"secure", "exact"},
        "control": config["control"],
        "population": _population(ledger, plan["delta"], adjacency),
        "ledger": {
            "verified": state.ok,
            "problem": state.problem,
            "head": state.head,
            "entries": state.n_entries,
        },
        "entries": [_row(entry) for entry in entries],
        "cumulative_epsilon": _cumulative([e.event for e in entries], plan["delta"], adjacency),
        "problem": config["problem"],
        "algorithm": config["algorithm"],
        "privacy": config["privacy"],
        "seed": config["seed"],
        "public_seed": config["public_seed"],
        "versions": config["versions"],
    }


def _population(ledger: Ledger, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """What every run on this ledger's population has spent together."""
    everything = ledger.event()
    return {
        "name": ledger.policy.population,
        "releases": len(ledger.entries()),
        "runs": len({entry.run for entry in ledger.entries()}),
        "delta": delta,
        "epsilon": _table(everything, delta, adjacency),
    }


def price(event: Event, *, delta: float, n_clients: int, adjacency: Adjacency) -> list[dict[str, Any]]:
    """Epsilon by accountant at the run's delta, at min(1e-5, 1/(10 N)) and at N^-1.1; each delta once."""
    deltas = {"this run": delta, "default": default_delta(n_clients), "paper": paper_delta(n_clients)}
    return [
        {"label": label, "delta": at, "epsilon": _table(event, at, adjacency)}
        for label, at in _distinct(deltas).items()
    ]


def _distinct(deltas: Mapping[str, float]) -> dict[str, float]:
    kept: dict[str, float] = {}
    for label, delta in deltas.items():
        if not any(math.isclose(delta, other) for other in kept.values()):
            kept[label] = delta
    return kept


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(event: Event, delta: float, adjacency: Adjacency) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in epsilon_table(event, delta, adjacency=adjacency).items()}


def _row(entry: Any) -> dict[str, Any]:  # noqa: ANN401  # accountant.ledger.Entry
    return {
        "sequence": entry.sequence,
        "release": entry.release_id,
        "event": event_text(entry.event),
        "noise_source": entry.noise_source,
        "digest": entry.digest,
    }


def event_text(event: Event) -> str:
    """One line that says what a release was."""
    match event:
        case Gaussian():
            return f"Gaussian, multiplier {event.noise_multiplier:.4g}"
        case PoissonSampledGaussian():
            return f"Poisson-sampled Gaussian, rate {event.sample_rate:.4g}, multiplier {event.noise_multiplier:.4g}"
        case FixedSizeSampledGaussian():
            return (
                f"fixed-size-sampled Gaussian, {event.sample_size} of {event.n_clients}, "
                f"multiplier {event.noise_multiplier:.4g}"
            )
        case Composed():
            return ", ".join(f"{count} x ({event_text(part)})" for part, count in event.parts)
        case NonPrivate():
            return "not private"
        case _:
            return str(event)


def _cumulative(events: list[Event], delta: float, adjacency: Adjacency) -> list[dict[str, float | None]]:
    """Epsilon after every release by accountant; at most 40 points, the last always among them."""
    step = max(1, math.ceil(len(events) / 40))
    stops = sorted({*range(step, len(events) + 1, step), len(events)} - {0})
    return [{"releases": stop, **_table(compose(events[:stop]), delta, adjacency)} for stop in stops]


def write_report(config: Mapping[str, Any], ledger: Ledger, path: Path) -> Path:
    """Write the HTML page atomically; returns its path."""
    write_atomically(path, page(report(config, ledger)).encode())
    return path


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--soft:#5b6472;--line:#d9dde3;--paper:#fff;--mark:#eef3fb}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa4b2;--line:#353c47;--paper:#14181f;--mark:#1d2836}
}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}
h2{font-size:1.15rem;margin-top:2rem}
p.big{font-size:1.35rem;background:var(--mark);padding:.8rem 1rem;border-radius:.4rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);text-align:left}
td.n{font-variant-numeric:tabular-nums;text-align:right}
.soft,figcaption{color:var(--soft)}
.warn{border-left:.3rem solid #c2410c;padding-left:.8rem}
figure{margin:0;background:#fff;border-radius:.4rem}
figure svg{width:100%;height:auto}
code{overflow-wrap:anywhere}
"""


def page(data: Mapping[str, Any]) -> str:
    """The report as one self-contained HTML document."""
    title = f"Privacy report: {data['name']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _headline(data),
        _warnings(data),
        "<h2>Price of the plan</h2>",
        _price(data),
        "<figure>" + epsilon_by_release(data["cumulative_epsilon"], data["delta"]) + "</figure>",
        "<h2>How it was run</h2>",
        _facts(_run_facts(data)),
        _population_note(data["population"]),
        "<h2>Releases</h2>",
        _releases(data["entries"]),
        "<h2>Configuration</h2>",
        _facts(_flat({key: data[key] for key in ("problem", "algorithm", "privacy", "versions")})),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _text(value: object) -> str:
    if value is None:
        return "-"
    return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def _smallest(table: Mapping[str, float | None]) -> float | None:
    return min((value for value in table.values() if value is not None), default=None)


def _headline(data: Mapping[str, Any]) -> str:
    best = _smallest(data["epsilon"])
    if best is None:
        return '<p class="big">This run is not private: epsilon is infinite.</p>'
    others = "; ".join(
        f"{_text(_smallest(row['epsilon']))} at delta {_text(row['delta'])} ({html.escape(row['label'])})"
        for row in data["epsilon_at"][1:]
    )
    return (
        f'<p class="big">epsilon = <b>{_text(best)}</b> at delta = {_text(data["delta"])} for one '
        f"{_text(data['unit'])} over the whole run ({_text(data['adjacency'])} adjacency).</p>"
        f'<p class="soft">The same plan costs epsilon {others}.</p>'
    )


def _population_note(population: Mapping[str, Any]) -> str:
    if population["runs"] < 2:
        return ""
    return (
        f"<p>All {population['runs']} runs on population <b>{html.escape(population['name'])}</b> together have made "
        f"{population['releases']} releases: epsilon {_text(_smallest(population['epsilon']))} at delta "
        f"{_text(population['delta'])}.</p>"
    )


def _warnings(data: Mapping[str, Any]) -> str:
    notes = []
    if not data["guarantee"]:
        notes.append(f"Noise source: {data['noise_source_text']}.")
    if data["control"] is not None:
        notes.append(f"This run is a control ({data['control']}).")
    if not data["ledger"]["verified"]:
        notes.append(f"The ledger did not verify: {data['ledger']['problem']}.")
    if data["releases"] < data["planned_releases"]:
        notes.append(f"{data['releases']} of {data['planned_releases']} planned releases were made so far.")
    return "".join(f'<p class="warn">{html.escape(note)}</p>' for note in notes)


def _price(data: Mapping[str, Any]) -> str:
    columns = data["epsilon_at"]
    head = "".join(f"<th>delta {_text(c['delta'])} ({html.escape(c['label'])})</th>" for c in columns)
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td>"
        + "".join(f'<td class="n">{_text(c["epsilon"].get(name))}</td>' for c in columns)
        + "</tr>"
        for name in data["epsilon"]
    )
    return f"<table><tr><th>accountant</th>{head}</tr>{rows}</table>"


def _run_facts(data: Mapping[str, Any]) -> dict[str, object]:
    return {
        "run": data["run"],
        "created": data["created"],
        "clients": data["n_clients"],
        "rounds": data["rounds"],
        "releases charged": f"{data['releases']} of {data['planned_releases']} planned",
        "noise multiplier": data["noise_multiplier"],
        "sample rate": data["sample_rate"],
        "noise source": data["noise_source_text"],
        "trust": "the aggregating server is trusted; clients and readers of broadcasts are not",
        "ledger verified": "yes" if data["ledger"]["verified"] else "NO",
        "ledger head": data["ledger"]["head"],
    }


def _facts(facts: Mapping[str, object]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td><code>{_text(value)}</code></td></tr>" for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _releases(entries: Iterable[Mapping[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td class="n">{_text(e["sequence"])}</td><td>{_text(e["release"])}</td><td>{_text(e["event"])}</td>'
        f"<td><code>{_text(e['digest'][:16])}</code></td></tr>"
        for e in entries
    )
    return f"<table><tr><th>charge</th><th>release</th><th>event</th><th>chain hash</th></tr>{rows}</table>"
