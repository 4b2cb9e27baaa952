"""A scout on the command line: priced, agreed to, run, and read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accountant.ledger.pricing import Total
from accountant.wording import upper_text
from privbo.algorithms.thompson.scout import Scout, likeness
from privbo.cli.options import agree
from privbo.cli.run import carry_out
from privbo.cli.terminal import Shown, render
from privbo.plans.cost import Spending, spending
from privbo.plans.gains import Gain, gains_near
from privbo.plans.plan import Plan
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import fresh_directory
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import Table
from privbo.reports.report import Report, total_text
from privbo.runs.evidence import declared_by
from privbo.runs.opening import considered_shared, plan_run
from privbo.runs.record import load
from privbo.runs.spec import Spec, read_spec


@dataclass(frozen=True, kw_only=True)
class Scouted:
    """A scout's estimate, and what sharing brought elsewhere.

    Attributes:
        report: The scout's report: what it cost.
        directory: The scout's directory.
        correlation: Estimated mean correlation of two clients' surfaces.
        standard_error: Of the noise in it.
        n_points: Public points that it is over.
        gains: Measured gains, the nearest correlation first.
    """

    report: Report
    directory: Path
    correlation: float
    standard_error: float
    n_points: int
    gains: tuple[Gain, ...]

    def to_dict(self) -> JsonObject:
        """Give the estimate as JSON-able data with price, directory and gains."""
        priced = {"epsilon": plain(self.report.epsilon), "delta": self.report.delta, "total": plain(self.report.total)}
        return fields_of(self, but=("report",)) | priced


@render.register
def _scouted(found: Scouted) -> Iterator[Shown]:
    yield (
        f"correlation between two clients' surfaces: {found.correlation:.2f} +- {found.standard_error:.2f} "
        f"(standard error of the noise), over {found.n_points} public points"
    )
    yield f"paid: epsilon {upper_text(found.report.smallest_epsilon)} at delta {upper_text(found.report.delta)}"
    yield total_text(found.report.total)
    families: dict[str, dict[float, Gain]] = {}
    for gain in found.gains:
        families.setdefault(gain.family, {})[gain.epsilon] = gain
    epsilons = sorted({gain.epsilon for gain in found.gains})
    rows = []
    for family, gains in families.items():
        first = next(iter(gains.values()))
        ratios = (gains.get(epsilon) for epsilon in epsilons)
        shown = ("-" if gain is None else f"{gain.mean:.2f} / {gain.end:.2f}" for gain in ratios)
        rows.append((f"{first.correlation:.2f}", first.n_clients, first.n_dims, *shown, family))
    head = ("correlation", "N", "parameters", *(f"epsilon {e:g}" for e in epsilons), "problem")
    title = "Regret with sharing over regret alone: over the run / at the end"
    yield Table(title=title, headings=head, rows=rows, right=(0,))
    yield "two seeds each, measured beforehand on public problems: docs/results/worth.md has the errors"
    yield f"run: {found.directory}"


def scout(
    config: Path, overrides: Sequence[str], *, epsilon: float, n_points: int, directory: Path | None, yes: bool
) -> Scouted:
    """Estimate how alike the surfaces of a configuration's clients are, by a run of one paid release.

    Args:
        config: The file; its problem, delta, noise source and ledger are taken.
        overrides: Set on top of it.
        epsilon: Price of the release, at the configuration's delta.
        n_points: Evaluations of every client.
        directory: Where the run is kept; a fresh one by default.
        yes: Pay without being asked.

    Raises:
        ConfigurationError: If a setting is impossible or nobody agreed to the price; nothing was touched.
        BudgetExceeded: If the population's ledger can't pay.
    """
    spec = scouting(read_spec(config, overrides), epsilon=epsilon, n_points=n_points)
    plan = plan_run(spec)
    agree(_price(spec, plan, n_points), yes=yes)
    home = directory or fresh_directory(spec.name)
    done = carry_out(spec, home, resume=False, progress=False)
    record = load(home)
    with record.ledger:
        (release,) = record.releases
    found = likeness(release, n_clients=plan.n_clients)
    return Scouted(
        report=done.report,
        directory=home,
        correlation=found.correlation,
        standard_error=found.standard_error,
        n_points=n_points,
        gains=gains_near(found.correlation),
    )


def scouting(spec: Spec, *, epsilon: float, n_points: int) -> Spec:
    """Give the scout of a run: the same people, ledger, delta, noise source and guardians; everybody takes part.

    Raises:
        ConfigurationError: If the run is not private, or there is nobody to compare with.
    """
    if not isinstance(spec.privacy, Privacy):
        raise ConfigurationError("this configuration is not private, and a scout is: add [privacy] epsilon = 1")
    if spec.problem.n_clients < 2:
        raise ConfigurationError(f"n_clients={spec.problem.n_clients}: likeness is between clients; there must be 2")
    asked = spec.privacy
    return dataclasses.replace(
        spec,
        name=f"{spec.name}-scout",
        problem=dataclasses.replace(spec.problem, earlier=None, enqueued=None),  # a scout's points are its own
        algorithm=Scout(evaluations=n_points),
        privacy=Privacy(
            epsilon=epsilon,
            delta=asked.delta,
            noise=asked.noise,
            trust=asked.trust,
            guardians=asked.guardians,
            against=asked.against,
        ),
        rounds=1,
        final=None,
        controls=(),
        control=None,
    )


def _price(spec: Spec, plan: Plan, n_points: int) -> Spending:
    delta, shared = plan.safe_delta, spec.ledger
    what = f"one release, for which each of {plan.n_clients} clients evaluates {n_points} points"
    if shared is None:
        alone, rule = min(plan.epsilon(delta).values()), "the scout's own ledger, which no later run adds to"
        return Spending(
            what=what, price=alone, total=Total(epsilon=alone, delta=delta, releases=plan.releases, runs=1, rule=rule)
        )
    with considered_shared(shared, plan) as ledger:
        return spending(ledger, delta, what, declared=[declared_by(plan, run=spec.name, settings=spec.digest())])
