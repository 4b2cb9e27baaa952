"""The report as a page: its figures and notes; the template says the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from accountant.wording import accountant_text, interval_text, multipliers_text, upper_text
from privbo.protocol.files import flat
from privbo.protocol.plain import plain
from privbo.reports import document as doc
from privbo.reports import figures
from privbo.reports.diagnostics import Diagnostics
from privbo.reports.figure import Figure
from privbo.reports.parts import ReleaseRow
from privbo.reports.report import Report

_ENDS = 200  # charges that are listed of either end of a long run


def document(report: Report, private: Diagnostics | None = None, *, key: str | None = None) -> doc.Document:
    """Compose the page; ``private`` adds diagnostics that are not covered by epsilon, ``key`` signs what leaves."""
    tables = [column.epsilon for column in report.epsilon_at]
    content = {
        "report": report,
        "private": private,
        "regret": {} if private is None or private.regret is None else flat(vars(private.regret)),
        "notes": _notes(report, private),
        "price_head": ["accountant", *(f"delta {upper_text(c.delta)} ({c.label})" for c in report.epsilon_at)],
        "price_rows": [
            [accountant_text(name, *tables), *(table.get(name) for table in tables)] for name in report.epsilon
        ],
        "interval_text": interval_text(report.epsilon_interval, report.planned_event),
        "entry_rows": [
            (
                entry.sequence,
                entry.release,
                entry.mechanism,
                entry.noise_multiplier,
                entry.sample_rate,
                entry.cumulative_epsilon,
                entry.digest[:16],
            )
            for entry in _listed(report.entries)
        ],
        "left_out": max(0, len(report.entries) - 2 * _ENDS),
        "facts": _run_facts(report) | {"signing key": key or "none yet; privbo bundle makes it"},
        "glossary": glossary(report),
        "configuration": _configuration(report),
        "source": json.dumps(report.spec.to_dict(), indent=1) if _is_repeatable(report) else None,
    }
    return doc.Document(
        title=f"Privacy report: {report.name}",
        template="report.html.j2",
        content=content,
        figures=report_figures(report, private),
    )


def _listed(entries: Sequence[ReleaseRow]) -> Sequence[ReleaseRow]:
    """All charges, or the first and the last where they are many; the ledger lists the rest."""
    return entries if len(entries) <= 2 * _ENDS else (*entries[:_ENDS], *entries[-_ENDS:])


def report_figures(report: Report, private: Diagnostics | None = None) -> dict[str, Figure]:
    """Give the page's figures by name."""
    found: dict[str, Figure] = {}
    quoted = report.smallest_epsilon
    if math.isfinite(quoted) and report.cumulative_epsilon:
        quoted_by = min(report.epsilon, key=lambda name: report.epsilon[name])
        found["epsilon-by-release"] = figures.epsilon_by_release(report.cumulative_epsilon, report.delta, (quoted_by,))
        found["epsilon-by-accountant"] = figures.epsilon_by_release(report.cumulative_epsilon, report.delta)
    if report.delta_epsilon_curve:
        found["delta-epsilon"] = figures.delta_epsilon(report.delta_epsilon_curve, quoted, report.delta)
        found["trade-off"] = figures.trade_off(report.attacker.caught)
    if report.utility.releases:
        found["release-norms"] = figures.release_norms(report.utility.releases)
    if report.utility.active_nodes:
        found["active-nodes"] = figures.active_nodes(report.utility.active_nodes)
    if private is not None and private.mean_best_score:
        found["best-scores"] = figures.best_scores(private.mean_best_score)
    return found


def glossary(report: Report) -> dict[str, str]:
    """Explain the page's words for who reads none of the literature."""
    unit = report.unit.value
    return {
        "epsilon": f"the largest factor, e to the power of epsilon, by which one {unit}'s data can change the odds of "
        "anything that was published; smaller protects better",
        "delta": "the probability with which that factor may be exceeded; it has to be far below one in the number of "
        "people",
        "adjacency": f"what is compared: the run as it was, and the run in which one {unit}'s part was "
        f"{CHANGED[report.adjacency.value]}",
        "release": "something computed from clients' answers and published: a sum with noise added",
        "noise multiplier": f"the noise's standard deviation, in units of the most that one {unit} can move a release",
        "sample rate": "the probability with which a client is drawn, in secret, into a release",
        "clipping": "shortening every client's answer to an agreed length, so that nobody can move a release further",
        "ledger": "the list of everything that was paid, written before data were looked at and chained by hashes, so "
        "that nothing can be removed unnoticed",
        "accountant": "arithmetic that turns the ledger into epsilon; all of them are upper bounds, and the smallest "
        "may be quoted",
        "simulation": "noise from a seed, which repeats and protects nobody",
    }


CHANGED = {
    "zero-out": "replaced by nothing",
    "add-or-remove-one": "added or removed",
    "replace-one": "replaced by another's",
}


def _notes(report: Report, private: Diagnostics | None) -> list[str]:
    """Warnings that must not be missed."""
    notes = []
    if private is not None:
        notes.append("This page holds private diagnostics that no epsilon covers: do not publish it.")
    if not report.has_secret_noise:
        notes.append(f"Noise source: {report.noise_source_text}.")
    if report.caveat is not None:
        notes.append(report.caveat)
    if report.control is not None:
        notes.append(f"This run is a control ({report.control}).")
    if not report.ledger.verified:
        notes.append(f"The ledger did not verify: {report.ledger.problem}.")
    if report.releases < report.planned_releases:
        notes.append(f"{report.releases} of {report.planned_releases} planned releases were made so far.")
    return notes


def _run_facts(report: Report) -> dict[str, object]:
    return {
        "run": report.run,
        "created": report.created,
        "unit of privacy": report.unit_text,
        "adjacency": report.adjacency.value,
        "trust": report.trust,
        "sampler": "; ".join(report.samplers) or "nothing is released",
        "noise source": report.noise_source_text,
        "noise multiplier": multipliers_text(report.planned_event),
        "sample rate": report.sample_rate,
        "clients": report.n_clients,
        "rounds": report.rounds,
        "releases charged": f"{report.releases} of {report.planned_releases} planned",
        "sharing": report.outlook or "no bound on what it brings: nothing hides it, or nothing is shared",
        "vote at the end": report.vote or "none",
        "common setting": "none" if report.common is None else report.common.text,
        "ledger verified": "yes" if report.ledger.verified else f"NO: {report.ledger.problem}",
        "ledger head": report.ledger.head,
        "absent beside the ledger": ", ".join(report.ledger.absent) or "nothing",
    }


def _configuration(report: Report) -> dict[str, object]:
    table = report.provenance | {"versions": plain(report.versions), "public_seed": report.public_seed}
    names = ("problem", "algorithm", "privacy", "versions", "seed", "public_seed", "device")
    return flat({name: table[name] for name in names})


def _is_repeatable(report: Report) -> bool:
    """Whether the settings name the objective's module, so that they are a configuration file."""
    source = report.spec.problem.source
    return source is not None and (source.factory is not None or source.objective is not None)
