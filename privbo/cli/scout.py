"""A scout on the command line: priced, agreed to, run, and read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from accountant.ledger.pricing import Total
from accountant.wording import upper_text
from privbo.algorithms.thompson.scout import Scout, likeness
from privbo.cli.options import agree
from privbo.cli.run import carry_out
from privbo.cli.terminal import Result
from privbo.plans.cost import Spending, spending
from privbo.plans.gains import Gain, gains_near
from privbo.plans.plan import Plan
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import fresh_directory
from privbo.protocol.table import Table
from privbo.reports.report import total_text
from privbo.runs.evidence import declared_by
from privbo.runs.opening import considered_shared, plan_run
from privbo.runs.record import load
from privbo.runs.spec import Spec, read_spec


def scout(
    config: Path, overrides: Sequence[str], *, epsilon: float, n_points: int, directory: Path | None, yes: bool
) -> Result:
    """Estimate how alike the surfaces of a configuration's clients are, by a run of one small release.

    Args:
        config: The file; its problem, delta, noise source and ledger are taken.
        overrides: Set on top of it.
        epsilon: Price of the release, at the configuration's delta.
        n_points: Evaluations of every client.
        directory: Where the run is kept; a fresh one by default.
        yes: Accept the cost without being asked.

    Raises:
        ConfigurationError: If a setting is impossible or the operator did not agree to the cost; nothing was touched.
        BudgetExceeded: If the population's ledger's budget is too small.
    """
    spec = scouting(read_spec(config, overrides), epsilon=epsilon, n_points=n_points)
    plan = plan_run(spec)
    agree(_price(spec, plan, n_points), yes=yes)
    home = directory or fresh_directory(spec.name)
    done = carry_out(spec, home, resume=False, progress=False)
    record = load(home)
    with record.ledger:
        (release,) = record.releases
    found, price = likeness(release, n_clients=plan.n_clients), done.report
    gains = gains_near(found.correlation)
    content = {
        "directory": home,
        "correlation": found.correlation,
        "standard_error": found.standard_error,
        "n_points": n_points,
        "gains": gains,
        "epsilon": price.epsilon,
        "delta": price.delta,
        "total": price.total,
    }
    size = f"{found.correlation:.2f} +- {found.standard_error:.2f} (standard error of the noise)"
    parts = (
        f"correlation between two clients' surfaces: {size}, over {n_points} public points",
        f"charged: epsilon {upper_text(price.smallest_epsilon)} at delta {upper_text(price.delta)}",
        total_text(price.total),
        _gains_table(gains),
        "two seeds each, measured beforehand on public problems: docs/results/worth.md has the errors",
        f"run: {home}",
    )
    return Result(content=content, parts=parts)


def _gains_table(gains: Sequence[Gain]) -> Table:
    """Measured gains, the nearest correlation first: a row per family of problems, a column per epsilon."""
    families: dict[str, dict[float, Gain]] = {}
    for gain in gains:
        families.setdefault(gain.family, {})[gain.epsilon] = gain
    epsilons = sorted({gain.epsilon for gain in gains})
    rows = []
    for family, there in families.items():
        first = next(iter(there.values()))
        ratios = (there.get(epsilon) for epsilon in epsilons)
        shown = ("-" if gain is None else f"{gain.mean:.2f} / {gain.end:.2f}" for gain in ratios)
        rows.append((f"{first.correlation:.2f}", first.n_clients, first.n_dims, *shown, family))
    return Table(
        title="Regret with sharing over regret alone: over the run / at the end",
        headings=("correlation", "N", "parameters", *(f"epsilon {e:g}" for e in epsilons), "problem"),
        rows=rows,
        right=(0,),
    )


def scouting(spec: Spec, *, epsilon: float, n_points: int) -> Spec:
    """Give the scout of a run: the same people, ledger, delta, noise source and guardians; all clients take part.

    Raises:
        ConfigurationError: If the run is not private, or has one client only.
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
