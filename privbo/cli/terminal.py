"""Results for a person at a terminal: short tables and plain lines, one rendering per type."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import singledispatch

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from accountant.events import PoissonSampledGaussian
from accountant.ledger.pricing import Left, Total
from accountant.verify.text import shown
from accountant.wording import accountant_text, interval_text, multipliers_text, sampler_text, upper_text
from privbo.audits.audit import Audit
from privbo.audits.clipping import ClippingAudit
from privbo.audits.empirical import Empirical
from privbo.cli.results import Approval, FinishedRun, Milestones, PricedPlan, Rehearsal, WrittenReport
from privbo.plans.calibration import Calibration
from privbo.plans.prices import PriceColumn
from privbo.plans.trust import trust_lines, trust_text
from privbo.reports.bundle import Written
from privbo.reports.document import percent_bound
from privbo.reports.ledger import LedgerView
from privbo.reports.report import Report
from privbo.reports.tables import verdict_lines
from privbo.reports.training import TrainingLedgers
from privbo.runs.evidence import LedgerCheck
from privbo.runs.recovery import Recovered

_KINDS = 4  # of releases that a plan's lines tell apart


def number(value: float | None) -> str:
    """Write a number with four significant digits; infinity spelled out."""
    if value is None:
        return "-"
    return "infinite" if math.isinf(value) else f"{value:.4g}"


def show(result: object) -> None:
    """Print what a command found: its tables, then its plain lines; no text of a run steers the terminal."""
    console = Console()
    for part in render(result):
        console.print(verbatim(part) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def verbatim(value: object, style: str = "") -> Text:
    """Text as it is: no markup is read, control characters are written out."""
    return Text(shown(str(value)), style=style)


@singledispatch
def render(result: object) -> Iterator[RenderableType]:
    """Render a result as tables and plain lines without markup, in the order they are printed.

    Raises:
        TypeError: If nothing is known of the result's type.
    """
    raise TypeError(f"{type(result).__name__} has no form for the terminal; register one")


@render.register
def _report(report: Report) -> Iterator[RenderableType]:
    yield verbatim(report.name, "bold")
    yield from trust_lines(report.trust, report.exposures)
    if report.shares_its_ledger:
        yield verbatim(
            f"everything that this ledger knows was paid on {report.population}: {total_line(report.total)}", "bold"
        )
    yield facts_table(report)
    yield price_table(report.epsilon_at)
    yield attacker_line(report)


@render.register
def _written(found: WrittenReport) -> Iterator[RenderableType]:
    yield from render(found.report)
    if found.diagnostics is not None:
        yield from verdict_lines(found.diagnostics.verdicts)
    yield f"report: {found.page}"
    if found.statement is not None:
        yield f"statement, with blanks for purpose and signature: {found.statement}"


@render.register
def _finished(found: FinishedRun) -> Iterator[RenderableType]:
    yield from render(found.report)
    if found.milestones is not None:
        yield milestones_table(found.milestones)
        yield from verdict_lines(found.verdicts or ())
    else:
        yield "clients' scores are private: --show-private shows them, and privbo report --private later"
    yield f"report: {found.page}"


@render.register
def _plan(found: PricedPlan) -> Iterator[RenderableType]:
    plan = found.plan
    if (exposed := plan.exposures(found.epsilon_at[0].delta)) or plan.privacy.trust != "server":
        yield from trust_lines(trust_text(plan.privacy), exposed)
    yield price_table(found.epsilon_at)
    yield (
        f"plan of {found.name}: {found.rounds} rounds, {plan.releases} releases, noise multiplier "
        f"{multipliers_text(plan.event)}, {plan.adjacency.value} adjacency, noise {plan.noise_source}; "
        "no data was touched"
    )
    if (drawn := sampler_text(plan.event)) and not drawn.startswith("none"):
        yield f"participants: {drawn}{'; one price for all of them, however early it ends' * plan.is_allocated}"
    for kind in found.signal_to_noise[:_KINDS]:
        yield kind.text
    if len(found.signal_to_noise) > _KINDS:
        yield f"and {len(found.signal_to_noise) - _KINDS} kinds of release more; --json lists them"
    if plan.outlook is not None:
        yield plan.outlook
    if (vote := plan.vote_text(found.epsilon_at[0].delta)) is not None:
        yield f"vote at the end, in the price above: {vote}"
    if found.decision is not None:
        yield found.decision.verdict("this policy")


@render.register
def _approval(found: Approval) -> Iterator[RenderableType]:
    yield from _plan(found.plan)
    hidden, n_clients = found.plan.plan, sum(found.sites.values())
    what = "each client" if hidden.unit == "client" else "the outcome of each evaluation"
    trusted = f"; {trust_text(hidden.privacy)}" if hidden.privacy.trust == "server" else ""
    yield f"hidden: {what} ({n_clients} clients at {len(found.sites)} sites){trusted}"
    yield from (f"guardian {name}: signing key {key}" for name, key in found.guardians.items())
    yield f"run.toml {found.run}"
    yield f"federation.toml {found.federation}"
    yield found.verdict


@render.register
def _rehearsal(found: Rehearsal) -> Iterator[RenderableType]:
    yield price_table(found.plan.epsilon_at)
    if found.verdict is not None:
        yield found.verdict
    if not found.clients:
        yield f"{found.plan.name}: nothing was evaluated, charged, written or sent"
        return
    n_clients, everybody = found.clients, found.plan.plan.n_clients
    where = ", ".join(f"{name} = {value}" for name, value in found.params.items())
    who = f"each of {n_clients} clients" + ("" if n_clients == everybody else f" here (of {everybody})")
    yield f"{found.plan.name}: {who} evaluated {where}; nothing was charged, written or sent"
    if found.failures is None:
        yield "how it went is private: --show-private says who failed, and why"
        return
    yield f"private diagnostics, not covered by epsilon: {len(found.failures)} of {n_clients} clients failed"
    yield from (f"client {client}: {reason}" for client, reason in found.failures.items())


@render.register
def _ledger(found: LedgerView) -> Iterator[RenderableType]:
    title = f"{found.run}: {found.releases} of {found.planned_releases} planned, {found.ledger.text}"
    rows = (
        (e.sequence, e.release, e.text, e.noise_source, upper_text(e.cumulative_epsilon), e.digest[:12])
        for e in found.entries
    )
    yield table_of(title, ("charge", "release", "event", "noise", "epsilon so far", "chain hash"), rows, right=(4,))
    yield total_line(found.total)
    yield from (each.words for each in found.exposures)


@render.register
def _training(found: TrainingLedgers) -> Iterator[RenderableType]:
    yield verbatim(found.plan)
    yield from (table_of(part.text, part.columns, part.rows) for part in found.parts)


@render.register
def _check(found: LedgerCheck) -> Iterator[RenderableType]:
    yield f"{found.run}: {found.entries} charges, {found.text}, head {found.head}"
    yield f"held against {found.receipts} earlier heads that public files beside it keep, and all that private ones do"
    if found.absent:
        yield f"absent, so nothing was learnt from it: {', '.join(found.absent)}"


@render.register
def _left(found: Left) -> Iterator[RenderableType]:
    yield found.words


@render.register
def _file(found: Written) -> Iterator[RenderableType]:
    yield f"{found.run}: {found.path}"
    yield f"ledger head {found.head}"
    yield f"signed by Ed25519 key {found.key}, which stands on the statement for a board too"


@render.register
def _recovered(found: Recovered) -> Iterator[RenderableType]:
    yield found.text
    rounds = ", ".join(map(str, found.rounds)) or "none that the evidence names"
    yield f"uncertain rounds: {rounds}; {found.lost} rows of the ledger were lost; head {found.head}"


@render.register
def _audit(found: Audit) -> Iterator[RenderableType]:
    if found.clipping is not None:
        yield from render(found.clipping)
    for row in found.empirical:
        yield from render(row)
    if found.empirical:
        within = sum(row.passed for row in found.empirical)
        yield (
            f"{within} of {len(found.empirical)} attacks stay within the claim of one release; they try out the code "
            "that draws the noise, not the noise that this run drew"
        )
    if (norms := found.published) is not None:
        yield (
            f"published: median norm about {number(norms.median)} in round {norms.round}, charge {norms.sequence} of "
            "the ledger"
        )
    if found.page is not None:
        yield f"report: {found.page}"


@render.register
def _clipping(audit: ClippingAudit) -> Iterator[RenderableType]:
    rows = (
        (r.round, number(r.bound), f"{r.clipped_share:.0%}", number(r.signal), number(r.bias), number(r.noise))
        for r in audit.rounds
    )
    head = ("round", "bound", "clipped", "signal", "bias", "noise")
    yield table_of(f"{audit.name}: {audit.note}", head, rows, right=range(6))
    yield from (f"notice: {words}" for words in audit.warnings)
    yield audit.verdict


@render.register
def _empirical(row: Empirical) -> Iterator[RenderableType]:
    yield (
        f"{row.event}, {row.world}: at epsilon {number(row.epsilon)} delta measured at least "
        f"{number(row.delta_lower)}, claimed {number(row.delta_claimed)}: {row.verdict}"
    )
    bounds = f"{number(row.epsilon_lower)} (attack) <= epsilon <= {upper_text(row.epsilon_claimed)} (claim)"
    yield f"  {bounds} at delta {number(row.delta)}, one release"


@render.register
def _calibration(found: Calibration) -> Iterator[RenderableType]:
    for name in ("rounds", "sample_rate", "noise_multiplier", "delta"):
        yield f"{name}: {getattr(found, name)}"
    yield f"adjacency: {found.adjacency.value}"
    for accountant, value in found.epsilon.items():
        label = accountant_text(accountant, found.epsilon)
        yield f"epsilon ({label}): {upper_text(value)} at delta {upper_text(found.delta)}"
    event = PoissonSampledGaussian(sample_rate=found.sample_rate, noise_multiplier=found.noise_multiplier)
    yield f"at delta {number(found.delta)} {interval_text(found.interval, event)}"


def price_table(columns: Sequence[PriceColumn]) -> Table:
    """Tabulate epsilon by accountant at the run's delta and at the two deltas every table names."""
    head = ("accountant", *(f"delta={upper_text(column.delta)} ({column.label})" for column in columns))
    tables = [column.epsilon for column in columns]
    rows = ((accountant_text(name, *tables), *(upper_text(t.get(name)) for t in tables)) for name in tables[0])
    return table_of("Price of the plan (epsilon)", head, rows, right=range(1, len(head)))


def facts_table(report: Report) -> Table:
    """Tabulate plan, releases, adjacency, noise source and the ledger's state."""
    held, at = report.guarantee, f" at delta {upper_text(report.epsilon_at[0].delta)}"
    rows = {
        "rounds": str(report.rounds),
        "releases charged": f"{report.releases} of {report.planned_releases} planned",
        "noise multiplier": multipliers_text(report.planned_event),
        "sample rate": number(report.sample_rate),
        "unit of privacy, adjacency": f"{report.unit.value}, {report.adjacency.value}",
        "noise source": report.noise_source_text,
        "guaranteed": f"{upper_text(held.guaranteed)}{at} ({held.because})",
        "as if non-adaptive, so far": f"{upper_text(held.as_if_non_adaptive)}{at}",
        "paid on this ledger": total_line(report.total),
        "ledger": f"{report.ledger.text}, head {report.ledger.head[:12]}",
    }
    if report.vote is not None:
        rows["vote at the end"] = report.vote
    if report.common is not None:
        rows["common setting"] = report.common.text
    rows |= {name: text for name in ("caveat", "outlook") if (text := getattr(report, name)) is not None}
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, verbatim(value))
    return table


def total_line(total: Total) -> str:
    """Say what a ledger knows that a population has paid, and by which rule."""
    runs = "1 run" if total.runs == 1 else f"{total.runs} runs together"
    return f"epsilon {upper_text(total.epsilon)} at delta {upper_text(total.delta)} for {runs} ({total.rule})"


def attacker_line(report: Report) -> str:
    """Say what a guess about one unit improves to, at most."""
    right = report.attacker.right_guess
    if right is None:
        return f"Nothing limits what can be learnt about a single {report.unit.value}."
    words = f"With even odds, a guess {report.question} is right at most {percent_bound(right)}"
    return f"{words} of the time (50.0 % without this run)."


def milestones_table(rows: Milestones) -> Table:
    """PRIVATE: tabulate the mean best score over clients at a few points of the run, one row per arm."""
    head = ("mean best score over clients", *next(iter(rows.values())))
    cells = ((label, *(f"{value:.4f}" for value in row.values())) for label, row in rows.items())
    return table_of("Private diagnostics, not covered by epsilon", head, cells, right=range(1, len(head)))


def table_of(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Container[int] = ()) -> Table:
    """Tabulate rows of values as they are; columns of ``right`` are flush right."""
    table = Table(title=verbatim(title), title_justify="left")
    for index, name in enumerate(head):
        table.add_column(verbatim(name), justify="right" if index in right else "left")
    for row in rows:
        table.add_row(*map(verbatim, row))
    return table
