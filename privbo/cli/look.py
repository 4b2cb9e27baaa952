"""What the command line does with finished runs: report, audit, ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from accountant.ledger.export import Format, export
from privbo.audits.clipping import ClippingAudit, clipping_audit
from privbo.audits.empirical import Empirical, audit_plan, audit_run
from privbo.audits.publish import publish_norms
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_lines, write_json
from privbo.protocol.messages import FloatArray
from privbo.reports.audit_page import document as audit_document
from privbo.reports.data import report, write_page
from privbo.reports.diagnostics import diagnostics
from privbo.reports.document import write_document
from privbo.reports.history import write_parquet
from privbo.runs.config import read_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import plan_run, planned_requests
from privbo.runs.record import load
from privbo.runs.sources import load_problem


def report_data(directory: Path, *, private: bool = False, regret: bool = False) -> dict[str, Any]:
    """The report of a run; with ``private`` its private diagnostics under a key of their own.

    Raises:
        ConfigurationError: If regret is asked for and the problem states no best values.
    """
    home, result = RunDirectory(directory), load(directory)
    data = report(result)
    if not (private or regret):
        return data
    return data | {"private_diagnostics": diagnostics(home, _best_values(home) if regret else None)}


def report_run(
    directory: Path, *, out: Path | None, private: bool, regret: bool, shared_assets: bool
) -> dict[str, Any]:
    """Write a run's page and return the report with the page's path.

    A page with private diagnostics lies in the run's private folder unless ``out`` names
    another place.
    """
    home = RunDirectory(directory)
    data = report_data(directory, private=private, regret=regret)
    extra = data.get("private_diagnostics")
    target = out or (home.report_path if extra is None else home.private / "report.html")
    return data | {"report": str(write_page(data, target, private=extra, shared_assets=shared_assets))}


def audit_target(
    target: Path, *, empirical: bool, trials: int, publish: float | None, out: Path | None, shared_assets: bool
) -> dict[str, Any]:
    """Audit a run's clipping, or the mechanism of a run or a configuration, and write the private page.

    Raises:
        ConfigurationError: If a configuration is to be audited for what only a run has.
    """
    if target.suffix == ".toml":
        if publish is not None or not empirical:
            raise ConfigurationError(f"{target} is a configuration: only --empirical audits it; name a run's directory")
        spec, _ = read_spec(target)
        terms = plan_run(spec)
        found = audit_plan(planned_requests(spec), terms.mechanism, delta=terms.delta, trials=trials)
        return _audited(spec.name, None, found, out, shared_assets=shared_assets)
    home, result = RunDirectory(target), load(target)
    published = None if publish is None else publish_norms(result, noise_multiplier=publish)
    found = audit_run(result, trials=trials) if empirical else []
    page = out or home.private / "audit.html"
    clipping = clipping_audit(result)
    data = _audited(result.spec.name, clipping, found, page, shared_assets=shared_assets)
    if published is not None:
        write_json(home.path / "published_norms.json", dataclasses.asdict(published))
        data["published_norms"] = dataclasses.asdict(published)
    return data


def _audited(
    name: str, clipping: ClippingAudit | None, found: Sequence[Empirical], page: Path | None, *, shared_assets: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {"audit": name, "empirical": [dataclasses.asdict(row) for row in found]}
    if clipping is not None:
        best = clipping.best_factor * clipping.clipping_norm
        data |= {"note": clipping.note, "clipping": dataclasses.asdict(clipping) | {"best_clipping_norm": best}}
    if page is not None:
        document = audit_document(name, clipping, found)
        data["report"] = str(write_document(document, page, shared_assets=shared_assets))
    return data


def write_history(directory: Path, path: Path) -> Path:
    """Write a run's public history as Parquet."""
    result = load(directory)
    return write_parquet(result, path)


def _best_values(home: RunDirectory) -> FloatArray | Callable[[], FloatArray]:
    problem = home.manifest().spec.problem
    values = None if problem.source is None else load_problem(problem.source, problem.name).best_values
    if values is None:
        raise ConfigurationError(f"{home.path}: the problem states no best_values, so regret is not defined")
    return values


def verify_ledger(directory: Path) -> dict[str, Any]:
    """Read a run's whole ledger again, and hold it against the heads its history has seen."""
    result = load(directory)
    seen = [(row["sequence"], row["head"]) for row in read_lines(RunDirectory(directory).history_path) if "head" in row]
    state = result.ledger.verify(seen)
    return {
        "run": result.run_id,
        "verified": state.ok,
        "problem": state.problem,
        "head": state.head,
        "entries": state.n_entries,
        "receipts": len(seen),
    }


def export_ledger(directory: Path, form: str, *, population: bool) -> str:
    """A run's charges (or its whole population's) as text for another program."""
    result = load(directory)
    return export(result.ledger, cast("Format", form), None if population else result.run_id)


def show_ledger(directory: Path) -> dict[str, Any]:
    """Entries, totals and verification of a run's ledger."""
    result = load(directory)
    data = report(result)
    return {key: data[key] for key in ("run", "releases", "planned_releases", "ledger", "entries", "epsilon", "delta")}
