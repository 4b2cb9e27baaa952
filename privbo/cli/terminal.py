"""Results for a person at a terminal: short tables and plain lines, one rendering per type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeAlias

from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from accountant.events import PoissonSampledGaussian
from accountant.ledger.pricing import Left
from accountant.verify.text import at_least, shown
from accountant.wording import accountant_text, counted, interval_text, upper_text
from privbo.audits.empirical import Audit
from privbo.comparisons.comparison import SEEDED, Comparison
from privbo.plans.calibration import Calibration
from privbo.plans.cost import trust_lines
from privbo.protocol.table import Table, text_of
from privbo.reports.audit import rounds_table
from privbo.reports.bundle import Written
from privbo.reports.comparison import contrast_lines, note_lines, table
from privbo.reports.document import percent_bound
from privbo.reports.report import LedgerView, Report, price_table
from privbo.reports.training import TrainingLedgers
from privbo.runs.evidence import LedgerCheck
from privbo.runs.recovery import Recovered

Shown: TypeAlias = str | Text | Table


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command found where no library function returns it.

    Attributes:
        content: For programs, as JSON.
        parts: For people, in the order they are printed.
        passed: Whether what was checked holds; else the command's exit code is 3.
    """

    content: object
    parts: Iterable[Shown]
    passed: bool = True

    def to_dict(self) -> object:
        """Give the content alone."""
        return self.content


def show(result: object, console: Console | None = None) -> None:
    """Print a command's result: its tables and plain lines; no text of a run steers the terminal."""
    console = console or Console()
    for part in render(result):
        shown_part = drawn(part) if isinstance(part, Table) else verbatim(part) if isinstance(part, str) else part
        console.print(shown_part, soft_wrap=isinstance(part, str))


def verbatim(value: object, style: str = "") -> Text:
    """Text as it is: no markup is read, control characters are written out."""
    return Text(shown(str(value)), style=style)


def drawn(table: Table) -> Drawn:
    """Draw a table of values as they are; one of names and values has no lines."""
    made = Drawn(title=verbatim(table.title) if table.title else None, title_justify="left")
    if not table.headings:
        made.show_header, made.box = False, None
    for at, heading in enumerate(table.headings):
        # What cannot be told apart when cut is folded.
        made.add_column(verbatim(heading), justify="right" if at in table.numeric else "left", overflow="fold")
    for row in table.cells:
        made.add_row(*map(verbatim, row))
    return made


@singledispatch
def render(result: object) -> Iterator[Shown]:
    """Render a result as tables and plain lines without markup, in the order they are printed.

    Raises:
        TypeError: If nothing is known of the result's type.
    """
    raise TypeError(f"{type(result).__name__} has no form for the terminal; register one")


@render.register
def _result(found: Result) -> Iterator[Shown]:
    yield from found.parts


@render.register
def _report(report: Report) -> Iterator[Shown]:
    yield verbatim(report.name, "bold")
    yield from trust_lines(report.trust, report.exposures)
    if report.shares_its_ledger:
        yield verbatim(f"all runs on {report.population} by this ledger: {report.total.words}", "bold")
    yield Table(headings=(), rows=[fact for fact in report.facts.items() if fact[0] != "trust"])
    yield price_table(report.epsilon_at)
    right = report.right_guess
    if right == 1.0:
        yield f"Nothing limits what can be learnt about one {report.hidden.noun}."
    else:
        odds = "With even odds" if report.has_secret_noise else "If the noise had been secret: with even odds"
        words = f"{odds}, a guess {report.question} is right at most {percent_bound(right)}"
        yield f"{words} of the time (50.0 % without this run)."


@render.register
def _ledger(found: LedgerView) -> Iterator[Shown]:
    yield found.table
    yield found.total.words
    yield from (each.words for each in found.exposures)


@render.register
def _training(found: TrainingLedgers) -> Iterator[Shown]:
    yield from found.plan.splitlines()
    yield from (part.table for part in found.parts)


@render.register
def _check(found: LedgerCheck) -> Iterator[Shown]:
    yield f"{found.run}: {counted(found.entries, 'charge')}, {found.text}, head {found.head}"
    yield f"compared with {found.receipts} earlier heads in public files, and with all heads in private ones"
    if found.absent:
        yield f"evidence files not found: {found.absent_text}"


@render.register
def _left(found: Left) -> Iterator[Shown]:
    yield found.words


@render.register
def _file(found: Written) -> Iterator[Shown]:
    yield f"{found.run}: {found.path}"
    yield f"ledger head {found.head}"
    yield f"signed by Ed25519 key {found.key}, which stands on the statement for a board too"


@render.register
def _recovered(found: Recovered) -> Iterator[Shown]:
    yield found.text
    rounds = ", ".join(map(str, found.rounds)) or "none that the evidence names"
    yield f"uncertain rounds: {rounds}; {found.lost} rows of the ledger were lost; head {found.head}"


@render.register
def _audit(found: Audit) -> Iterator[Shown]:
    if (clipping := found.clipping) is not None:
        yield rounds_table(clipping)
        yield from (f"notice: {words}" for words in clipping.warnings)
        yield clipping.verdict
    for row in found.empirical:
        yield (
            f"{row.event}, {row.world}: at epsilon {text_of(row.epsilon)} delta measured at least "
            f"{at_least(row.delta_lower)}, claimed {upper_text(row.delta_claimed)}: {row.verdict}"
        )
        bounds = f"{at_least(row.epsilon_lower)} (attack) <= epsilon <= {upper_text(row.epsilon_claimed)} (claim)"
        yield f"  {bounds} at delta {upper_text(row.delta)}, one release"
    if found.empirical:
        within = sum(row.passed for row in found.empirical)
        yield (
            f"{within} of {found.attacks} stay within the claim of one release; they try out the code that draws the "
            "noise, not the noise that this run drew"
        )
    if (norms := found.published) is not None:
        yield (
            f"published: median norm about {text_of(norms.median)} in round {norms.round}, charge {norms.sequence} of "
            "the ledger"
        )
    if found.page is not None:
        yield f"report: {found.page}"


@render.register
def _calibration(found: Calibration) -> Iterator[Shown]:
    for name in ("rounds", "sample_rate", "noise_multiplier", "delta"):
        yield f"{name}: {getattr(found, name)}{' (not one fits)' * (name == 'rounds' and not found.rounds)}"
    yield f"adjacency: {found.adjacency.value}"
    for accountant, value in found.epsilon.items():
        label = accountant_text(accountant, found.epsilon)
        yield f"epsilon ({label}): {upper_text(value)} at delta {upper_text(found.delta)}"
    event = PoissonSampledGaussian(sample_rate=found.sample_rate, noise_multiplier=found.noise_multiplier)
    yield f"at delta {upper_text(found.delta)} {interval_text(found.interval, event)}"


@render.register
def _comparison(comparison: Comparison) -> Iterator[Shown]:
    yield _comparison_table(comparison)
    yield from (*contrast_lines(comparison), *note_lines(comparison))
    yield from (f"{verdict.setting}: {verdict.text}" for verdict in comparison.verdicts())
    if comparison.shows_utility and comparison.data == "private":
        yield "private diagnostics, not covered by epsilon"
    if comparison.seeded:
        of = f" ({', '.join(comparison.seeded)})" if isinstance(comparison.seeded, tuple) else ""
        yield f"noise: {SEEDED}{of}"
    if comparison.total is not None:
        yield f"all runs on this population by its ledger: {comparison.total.words}"
    if comparison.recommendation is not None:
        chosen = comparison.recommendation
        price = (
            f"epsilon {upper_text(chosen.epsilon)} at delta {upper_text(chosen.delta)}"
            if chosen.lead is not None
            else "nothing is shared"
        )
        yield f"recommended: {chosen.label} ({price})"
        yield chosen.because


def _comparison_table(comparison: Comparison) -> Table:
    """Give the page's table with the columns that 80 characters have room for."""
    what = comparison.measure if comparison.shows_utility else "privacy costs; utility is private (--private shows it)"
    whole, wide = table(comparison), {"noise multipliers", "releases", "final"} - {comparison.measure}
    if any(heading.startswith("epsilon at ") for heading in whole.headings):
        wide |= {"epsilon", "delta"}  # at a delta that was asked for and is larger
    kept = [at for at, heading in enumerate(whole.headings) if heading not in wide]
    return replace(
        whole,
        title=f"{comparison.name}: {what} ({comparison.data} data)",
        headings=[whole.headings[at] for at in kept],
        rows=[[row[at] for at in kept] for row in whole.rows],
    )
