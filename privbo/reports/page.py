"""The report as a page: headline, price, releases, utility, configuration."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from privbo.plans.prices import smallest
from privbo.protocol.files import flat
from privbo.reports import document as doc
from privbo.reports import figures


def page(data: Mapping[str, Any]) -> str:
    """The report as one self-contained HTML document."""
    return doc.render(document(data, None))


def document(data: Mapping[str, Any], private: Mapping[str, Any] | None) -> doc.Document:
    """The page's parts; ``private`` adds diagnostics that are not covered by epsilon."""
    body = "\n".join(
        (
            _headline(data),
            doc.warnings(_warnings(data, private)),
            doc.section("What an attacker gains", *_attacker(data)),
            doc.section("Price of the plan", *_price(data)),
            doc.section("How it was run", doc.facts(_run_facts(data)), _population_note(data["population"])),
            doc.section("Releases", *_releases(data)),
            doc.section("What was broadcast", *_utility(data["utility"])),
            doc.section("Configuration and provenance", f'<div class="long">{doc.facts(_configuration(data))}</div>'),
            doc.section("How to reproduce it", *_reproduce(data)),
            _private_section(private),
        )
    )
    return doc.Document(title=f"Privacy report: {data['name']}", body=body, figures=report_figures(data, private))


def report_figures(data: Mapping[str, Any], private: Mapping[str, Any] | None = None) -> dict[str, doc.Figure]:
    """The page's figures by name, as Plotly's data and layout."""
    quoted = smallest(data["epsilon"])
    found = {}
    if quoted is not None and data["cumulative_epsilon"]:
        found["epsilon-by-release"] = figures.epsilon_by_release(data["cumulative_epsilon"], data["delta"])
    if data["delta_epsilon_curve"]:
        found["delta-epsilon"] = figures.delta_epsilon(data["delta_epsilon_curve"], quoted, data["delta"])
        found["trade-off"] = figures.trade_off(data["attacker"]["caught"])
    if data["utility"]["releases"]:
        found["release-norms"] = figures.release_norms(data["utility"]["releases"])
    if data["utility"]["active_nodes"]:
        found["active-nodes"] = figures.active_nodes(data["utility"]["active_nodes"])
    if private is not None and private["mean_best_score"]:
        found["best-scores"] = figures.best_scores(private["mean_best_score"])
    return found


def _headline(data: Mapping[str, Any]) -> str:
    best = smallest(data["epsilon"])
    if best is None:
        return doc.paragraph("This run is not private: epsilon is infinite.", "big")
    others = "; ".join(
        f"{doc.bound(smallest(row['epsilon']))} at delta {doc.text(row['delta'])} ({html.escape(row['label'])})"
        for row in data["epsilon_at"][1:]
    )
    again = f'<p class="soft">The same plan costs epsilon {others}.</p>' if others else ""
    return (
        f'<p class="big">epsilon = <b id="epsilon">{doc.bound(best)}</b> at delta = {doc.text(data["delta"])} for one '
        f"{doc.text(data['unit'])} over the whole run ({doc.text(data['adjacency'])} adjacency).</p>"
        + again
        + doc.paragraph(_guarantee_words(data))
    )


def _guarantee_words(data: Mapping[str, Any]) -> str:
    if data["guaranteed"] is None:
        words = f"Guaranteed: {data['because']}."
    else:
        words = f"Guaranteed: epsilon {doc.bound(data['guaranteed'])}, because {data['because']}."
    if data["as_if_non_adaptive"] is not None:
        words += (
            f" The {data['releases']} releases made so far, read as if nothing had been chosen from outputs: "
            f"epsilon {doc.bound(data['as_if_non_adaptive'])}."
        )
    return words


def _warnings(data: Mapping[str, Any], private: Mapping[str, Any] | None) -> list[str]:
    notes = []
    if private is not None:
        notes.append("This page holds private diagnostics that no epsilon covers: do not publish it.")
    if not data["guarantee"]:
        notes.append(f"Noise source: {data['noise_source_text']}.")
    if data["caveat"] is not None:
        notes.append(data["caveat"])
    if data["control"] is not None:
        notes.append(f"This run is a control ({data['control']}).")
    if not data["ledger"]["verified"]:
        notes.append(f"The ledger did not verify: {data['ledger']['problem']}.")
    if data["releases"] < data["planned_releases"]:
        notes.append(f"{data['releases']} of {data['planned_releases']} planned releases were made so far.")
    return notes


def _attacker(data: Mapping[str, Any]) -> list[str]:
    right = data["attacker"]["right_guess"]
    if right is None:
        return [doc.paragraph(f"Nothing limits what can be learnt about a single {data['unit']}.")]
    caught = {row["false_alarms"]: row["caught"] for row in data["attacker"]["caught"]}
    unless = "" if data["guarantee"] else "If the noise had been secret, this would hold: "
    words = (
        f"{unless}Somebody who knows the data of every other {data['unit']}, and has even odds on {_question(data)}, "
        f"is right half of the time by guessing. Having seen everything this run published, no method can "
        f"make them right more than {_percent(right)} of the time."
    )
    innocent, guilty = ("with the first value", "with the second") if data["unit"] == "reward" else (
        "whose data were not used", "whose data were"
    )  # fmt: skip
    careful = (
        f"An accuser who is wrong about 1 in 100 {data['unit']}s {innocent} catches at most "
        f"{_percent(caught[0.01])} of those {guilty}; one who is wrong about 1 in 1,000 at most "
        f"{_percent(caught[1e-3])}."
    )
    return [
        doc.paragraph(words),
        doc.paragraph(careful),
        doc.figure("trade-off", "Bound on what is caught against false accusations, from the privacy curve."),
    ]


def _question(data: Mapping[str, Any]) -> str:
    """What the attacker guesses: clients and records may be absent, a reward had this value or that."""
    if data["unit"] == "reward":
        return "which of two values one reward had"
    return f"whether one {data['unit']}'s data were used"


def _percent(share: float) -> str:
    """Rounded up, so that a bound stays a bound."""
    return f"{min(100.0, -(-share * 1000 // 1) / 10):.1f} %"


def _price(data: Mapping[str, Any]) -> list[str]:
    columns = data["epsilon_at"]
    head = ["accountant", *(f"delta {c['delta']:.4g} ({c['label']})" for c in columns)]
    rows = [[name, *(c["epsilon"].get(name) for c in columns)] for name in data["epsilon"]]
    parts = [doc.table(head, rows)]
    found = data["epsilon_interval"]
    if found["upper"] is not None:
        how = {"closed-form": "in closed form", "numerical": "by certified bounds", "renyi": "by the Rényi bound alone"}
        parts.append(
            doc.paragraph(
                f"Tight accountant: the true epsilon lies between {found['lower']:.6g} and {found['upper']:.6g} "
                f"({how[found['method']]}); the upper end is quoted.",
                "soft",
            )
        )
        parts.append(doc.figure("delta-epsilon", "The whole curve: delta that goes with every epsilon."))
    if data["cumulative_epsilon"] and found["upper"] is not None:
        parts.insert(1, doc.figure("epsilon-by-release", "Epsilon of the releases made so far, by accountant."))
    return parts


def _run_facts(data: Mapping[str, Any]) -> dict[str, object]:
    return {
        "run": data["run"],
        "created": data["created"],
        "unit of privacy": data["unit_text"],
        "adjacency": data["adjacency"],
        "trust": data["trust"],
        "sampler": "; ".join(data["samplers"]) or "nothing is released",
        "noise source": data["noise_source_text"],
        "noise multiplier": data["noise_multiplier"],
        "sample rate": data["sample_rate"],
        "clients": data["n_clients"],
        "rounds": data["rounds"],
        "releases charged": f"{data['releases']} of {data['planned_releases']} planned",
        "ledger verified": "yes" if data["ledger"]["verified"] else f"NO: {data['ledger']['problem']}",
        "ledger head": data["ledger"]["head"],
    }


def _population_note(population: Mapping[str, Any]) -> str:
    if population["runs"] < 2:
        return ""
    return (
        f"<p>All {population['runs']} runs on population <b>{html.escape(population['name'])}</b> together have made "
        f"{population['releases']} releases: epsilon {doc.bound(smallest(population['epsilon']))} at delta "
        f"{doc.text(population['delta'])}.</p>"
    )


def _releases(data: Mapping[str, Any]) -> list[str]:
    if not data["entries"]:
        return [doc.paragraph("Nothing has been released.")]
    head = ("charge", "release", "mechanism", "multiplier", "rate", "cumulative epsilon", "chain hash")
    rows = [
        (
            e["sequence"],
            e["release"],
            e["mechanism"]["type"],
            e["noise_multiplier"],
            e["sample_rate"],
            e["cumulative_epsilon"],
            e["digest"][:16],
        )
        for e in data["entries"]
    ]
    note = "Cumulative epsilon is that of the smallest accountant, rounded up to the next computed release."
    return [f'<div class="long">{doc.table(head, rows, code=(6,))}</div>', doc.paragraph(note, "soft")]


def _often(share: float) -> str:
    """A remark where clients outside a round's sample send nothing."""
    return "" if share == 1.0 else f" on average (it sends in {share:.3g} of the rounds; the channel hides which)"


def _utility(utility: Mapping[str, Any]) -> list[str]:
    if not utility["releases"]:
        return []
    sent = utility["communication"]
    parts = [
        doc.paragraph(
            f"{sent['releases']} releases in {sent['rounds']} rounds. A client that takes part in all of them sends "
            f"{sent['bytes_up_per_client']:,} bytes{_often(sent['sending_share'])} and receives "
            f"{sent['bytes_down_per_client']:,}, at eight bytes per number."
        ),
        doc.figure("release-norms", "Norm of every release beside the norm that its noise alone has on average."),
    ]
    if utility["active_nodes"]:
        parts.append(doc.figure("active-nodes", "Nodes of the partition still active at each depth.", 260))
    return parts


def _configuration(data: Mapping[str, Any]) -> dict[str, object]:
    keys = ("problem", "algorithm", "privacy", "versions")
    seeds = {"seed": data["seed"], "public_seed": data["public_seed"], "device": data["device"]}
    return flat({key: data[key] for key in keys}) | seeds


def _reproduce(data: Mapping[str, Any]) -> list[str]:
    check = "privbo ledger verify DIR\nprivbo ledger export DIR --format dpevent"
    words = (
        "The ledger can be checked and handed to another accountant:",
        "The algorithm's own choices repeat with the same seed; privacy noise never does, or it would not protect.",
    )
    parts = [doc.paragraph(words[0]), f"<pre>{check}</pre>"]
    if data["source"] is not None:
        settings = html.escape(json.dumps(data["source"], indent=1))
        again = "The run was made from this configuration file (here as JSON): privbo run CONFIG.toml"
        parts += [doc.paragraph(again), f'<div class="long"><pre>{settings}</pre></div>']
    return [*parts, doc.paragraph(words[1], "soft")]


def _private_section(private: Mapping[str, Any] | None) -> str:
    if private is None:
        return ""
    rows = private["best_score_per_client"]
    regret = {} if private["regret"] is None else flat(private["regret"])
    return doc.section(
        "Private diagnostics, not covered by epsilon",
        doc.paragraph(private["note"], "warn"),
        doc.figure("best-scores", "Mean over clients of the best score so far.") if private["mean_best_score"] else "",
        doc.facts(regret) if regret else "",
        f'<div class="long">{doc.table(("client", "best score"), rows)}</div>' if rows else "",
    )
