"""Commands on finished runs: report, audit, ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from privbo.audits.audit import Audit
from privbo.audits.clipping import audit
from privbo.audits.empirical import audit_plan, audit_run
from privbo.audits.publish import price_of_norms, publish_norms
from privbo.cli.results import WrittenReport
from privbo.cli.spend import agree
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import require_no_link, write_json
from privbo.protocol.messages import FloatArray
from privbo.protocol.plain import fields_of
from privbo.protocol.problem import Problem
from privbo.protocol.space import Parameter
from privbo.reports.audit_page import write_audit
from privbo.reports.bundle import read_receipts
from privbo.reports.data import report, write_page
from privbo.reports.diagnostics import diagnostics
from privbo.reports.signing import known_public_key, public_key
from privbo.reports.statement import write_statement
from privbo.runs.config import read_spec
from privbo.runs.evidence import LedgerCheck, check_directory
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import plan_run, planned_requests
from privbo.runs.record import load


def read_report(
    directory: Path, *, private: bool = False, regret: Path | None = None, ledger: str | None = None
) -> WrittenReport:
    """Report a run; with ``private`` or ``regret`` its private diagnostics beside it.

    Raises:
        ConfigurationError: If regret is asked for and the problem states no best values.
    """
    home, found = RunDirectory(directory), report(load(directory, ledger=ledger))
    attainable = None if regret is None else _best_values(home, regret)
    wanted = diagnostics(home, attainable) if private or regret is not None else None
    return WrittenReport(report=found, diagnostics=wanted)


def report_run(
    directory: Path,
    *,
    out: Path | None,
    private: bool,
    regret: Path | None,
    statement: bool = False,
    ledger: str | None = None,
) -> WrittenReport:
    """Write a run's page and return the report with the page's path.

    A page with private diagnostics lies in the run's private folder unless ``out`` names
    another place; a statement for a board lies beside it.

    Raises:
        RunError: If that private folder is a link.
    """
    require_no_link(RunDirectory(directory).private)
    home, found = RunDirectory(directory), read_report(directory, private=private, regret=regret, ledger=ledger)
    target = out or (home.report_path if found.diagnostics is None else home.private / "report.html")
    key = public_key(home) if statement else known_public_key(home)
    page = write_page(found.report, target, private=found.diagnostics, key=key)
    sheet = write_statement(found.report, target.with_name("statement.html"), key=key) if statement else None
    return replace(found, page=page, statement=sheet)


def audit_target(
    target: Path,
    *,
    empirical: bool,
    trials: int,
    publish: float | None,
    out: Path | None,
    yes: bool = False,
    trust: bool = False,
    ledger: str | None = None,
) -> Audit:
    """Audit a run's clipping, or the mechanism of a run or a configuration, and write the private page.

    Raises:
        ConfigurationError: If a configuration is to be audited for what only a run has, or nobody agreed to the
            price of a publication.
    """
    if target.suffix == ".toml":
        if publish is not None or not empirical:
            raise ConfigurationError(f"{target} is a configuration: only --empirical audits it; name a run's directory")
        found, page = _audit_configuration(target, trials, trust=trust), out
    else:
        require_no_link(RunDirectory(target).private)
        record = load(target, ledger=ledger)
        if publish is not None:
            agree(price_of_norms(record, noise_multiplier=publish), yes=yes)
        here = record.home.clipping_path.exists()  # the attack needs none of what is private
        found = Audit(
            name=record.spec.name,
            published=None if publish is None else publish_norms(record, noise_multiplier=publish),
            empirical=audit_run(record, trials=trials, trust=trust) if empirical else (),
            clipping=audit(record) if here or not empirical else None,
        )
        page = out or (record.home.private / "audit.html" if here else None)
        if found.published is not None:
            write_json(record.home.path / "published_norms.json", fields_of(found.published))
    return found if page is None else replace(found, page=write_audit(found, page))


def _audit_configuration(path: Path, trials: int, *, trust: bool) -> Audit:
    spec = read_spec(path, load=trust)
    plan = plan_run(spec)
    attacked = audit_plan(planned_requests(spec), plan.mechanism, delta=plan.delta, trials=trials)
    return Audit(name=spec.name, clipping=None, empirical=attacked)


def _best_values(home: RunDirectory, config: Path) -> FloatArray | Callable[[], FloatArray]:
    """Best values that the reader's own configuration states; the code that the directory names is not imported."""
    ours, theirs = read_spec(config).problem, home.manifest().spec.problem
    if _facts(ours) != _facts(theirs):
        raise ConfigurationError(f"{config} states another problem than {home.path}'s; name the run's configuration")
    if ours.best_values is None:
        raise ConfigurationError(f"{config}: the problem states no best_values, so regret is not defined")
    return ours.best_values


def _facts(problem: Problem) -> tuple[int, dict[str, Parameter]]:
    return problem.n_clients, dict(problem.search_space.parameters)


def verify_ledger(directory: Path, receipts: Sequence[Path] = (), *, ledger: str | None = None) -> LedgerCheck:
    """Read a run's whole ledger again, and hold it against everything that stands beside it, and against receipts.

    Raises:
        DisagreementError: If a receipt is not as it was signed, or of another run.
        LedgerError: If a file is no receipt.
        RunError: If no run stands there.
    """
    home = RunDirectory(directory)
    return check_directory(home, read_receipts(receipts, home), ledger=ledger)
