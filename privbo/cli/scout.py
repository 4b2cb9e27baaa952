"""A scout on the command line: priced, agreed to, run, and read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from accountant.ledger.pricing import Total
from accountant.wording import upper_text
from privbo.algorithms.thompson.scout import Scout, standard_error
from privbo.cli.options import agree, say
from privbo.cli.run import carry_out, price_run, require_no_ledger
from privbo.cli.terminal import Result, render
from privbo.plans.cost import Spending, spending
from privbo.plans.plan import Plan
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import fresh_directory
from privbo.protocol.table import Table
from privbo.runs.evidence import declared_by
from privbo.runs.opening import considered_shared, plan_run, planned_requests
from privbo.runs.spec import Spec, read_spec


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Regret of the default algorithm over that of the best local engine, on one family of problems.

    Attributes:
        family: Its name on the page ``docs/results/worth.md``, which says how it was measured.
        n_clients: N.
        n_dims: Parameters.
        correlation: Between clients' surfaces.
        epsilon: Of the whole run at delta = 1e-5.
        mean, end: Ratio of regrets, mean over the evaluations and at the end; below 1 sharing helped.
        mean_error, end_error: Their standard errors, over three seeds.
    """

    family: str
    n_clients: int
    n_dims: int
    correlation: float
    epsilon: float
    mean: float
    mean_error: float
    end: float
    end_error: float


with Path(__file__).with_suffix(".csv").open(newline="") as file:
    GAINS = TypeAdapter(tuple[Gain, ...]).validate_python(list(csv.DictReader(file)))


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
    errors, words = _expected_errors(spec, plan, n_points)
    say(f"privbo: {words}", err=True)
    agree(_price(spec, plan, n_points), yes=yes)
    home = directory or fresh_directory(spec.name)
    price = carry_out(spec, home, resume=False, progress=False).report
    found = price.likeness
    if found is None:
        raise RunError(f"{home}: nothing was released, so nothing was estimated; privbo report says what is there")
    gains = sorted(GAINS, key=lambda gain: abs(gain.correlation - found.correlation))
    content = {
        "directory": home,
        "correlation": found.correlation,
        "standard_error": found.standard_error,
        "expected_error": errors,
        "n_points": n_points,
        "gains": gains,
        "epsilon": price.epsilon,
        "delta": price.delta,
        "total": price.total,
    }
    parts = (
        f"correlation between two clients' surfaces: {found.text}, over {n_points} public points",
        f"charged: epsilon {upper_text(price.smallest_epsilon)} at delta {upper_text(price.delta)}",
        price.total.words,
        _gains_table(gains),
        "three seeds each, measured beforehand on public problems; the page on what sharing is worth has the errors",
        f"run: {home}",
    )
    return Result(content=content, parts=parts)


def forecast(config: Path, overrides: Sequence[str], *, epsilon: float, n_points: int, trust: bool) -> Result:
    """Give a scout's price and the error to expect; touches no data.

    Args:
        config: As of ``scout``.
        overrides: As of ``scout``.
        epsilon: As of ``scout``.
        n_points: As of ``scout``.
        trust: Import the code that the file names, and open the ledger on top of which its policy judges.

    Raises:
        ConfigurationError: If a setting is impossible, or a policy judges on top of a ledger.
    """
    asked = read_spec(config, overrides, load=trust)
    if not trust:
        require_no_ledger(asked, config)
    spec = scouting(asked, epsilon=epsilon, n_points=n_points)
    priced = price_run(spec, opens=trust)
    errors, words = _expected_errors(spec, priced.plan, n_points)
    content = priced.to_dict() | {"expected_error": errors, "n_points": n_points}
    return Result(content=content, parts=(*render(priced), words), passed=priced.passed)


def _expected_errors(spec: Spec, plan: Plan, n_points: int) -> tuple[dict[str, float], str]:
    """Standard errors that noise will give the estimate, where surfaces are unlike and where alike; also in a line."""
    (request,) = planned_requests(spec)
    noise = plan.mechanism(request).noise_stddev()
    found = {
        name: standard_error(r, n_clients=plan.n_clients, n_points=n_points, noise_stddev=noise)
        for name, r in (("unlike", 0.0), ("alike", 1.0))
    }
    ends = f"{found['unlike']:.2f} if surfaces are unlike (correlation 0), {found['alike']:.2f} if alike (1)"
    return found, f"expected standard error of the correlation: {ends}"


def _gains_table(gains: Sequence[Gain]) -> Table:
    """Measured gains, the nearest correlation first: a row per family of problems, a column per epsilon."""
    ratios = {(gain.family, gain.epsilon): f"{gain.mean:.2f} / {gain.end:.2f}" for gain in gains}
    families, epsilons = {gain.family: gain for gain in gains}, sorted({gain.epsilon for gain in gains})
    return Table(
        title="Regret with sharing over regret alone: over the run / at the end; epsilon at delta 1e-05",
        headings=("correlation", "N", "parameters", *(f"epsilon {e:g}" for e in epsilons), "problem"),
        rows=[
            (f"{one.correlation:.2f}", one.n_clients, one.n_dims, *(ratios.get((name, e)) for e in epsilons), name)
            for name, one in families.items()
        ],
        right=(0,),
    )


def scouting(spec: Spec, *, epsilon: float, n_points: int) -> Spec:
    """Give the scout of a run: the same people, ledger, delta, noise source and guardians; all clients take part.

    Raises:
        ConfigurationError: If the run is not private, hides something other than clients, or has one client only.
    """
    if not isinstance(spec.privacy, Privacy):
        raise ConfigurationError("this configuration is not private, and a scout is: add [privacy] epsilon = 1")
    if spec.privacy.unit != "client":
        raise ConfigurationError(
            f"privacy.unit={spec.privacy.unit!r}: a scout hides clients, and its price would not add to this run's; "
            "the first run on these clients shows how alike they are"
        )
    if spec.problem.n_clients < 2:
        raise ConfigurationError(f"n_clients={spec.problem.n_clients}: likeness is between clients; there must be 2")
    asked = spec.privacy
    return replace(
        spec,
        name=f"{spec.name}-scout",
        problem=replace(spec.problem, earlier=None, enqueued=None),  # a scout's points are its own
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
