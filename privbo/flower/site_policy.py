"""A site's own policy and ledger: whether it answers a run at all, and the total of all runs on its people.

The ledger stands in ``DIR/_site/ledger.sqlite``, where no run's folder can stand. It speaks of one client of the site,
so the number of clients may change between runs; its total is an upper bound for a client that joined later. The
site prices a run's plan itself and charges all of it before it evaluates anything:

| the site's process dies | charged | sent | asked again |
|---|---|---|---|
| before the reservation commits | nothing | nothing | judged and reserved as new |
| after it, before an answer leaves | the whole plan | nothing | known: not charged again |
| later | the whole plan | what was sent | known: the same bytes |

So a crash may count too much and never too little. A run that goes on is judged again: a policy that became stricter
holds from the next question on.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accountant.events import parts
from accountant.ledger import Ledger
from accountant.ledger.policy import canonical
from accountant.ledger.reservation import Declaration
from privbo.flower.settings import SiteSettings
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision, Policy
from privbo.protocol.errors import ConfigurationError, PolicyError, RunError
from privbo.runs.algorithms import algorithm_table
from privbo.runs.opening import plan_run
from privbo.runs.spec import Spec

POPULATION = "one client of this site"


def ledger_path(site: SiteSettings) -> Path:
    """Path of the ledger of all runs at a site."""
    return Path(site.directory) / "_site" / "ledger.sqlite"


def required_policy(site: SiteSettings) -> Policy:
    """Give a site's policy.

    Raises:
        PolicyError: If its ``site.toml`` has none.
    """
    if site.policy is None:
        raise PolicyError(
            "this site refuses every question: site.toml has no [policy]; write one with epsilon and delta, the bound "
            "on all runs together on this site's people"
        )
    return site.policy


def judged(site: SiteSettings, spec: Spec) -> Decision:
    """Judge a run that has not begun, for the site's own eyes; writes nothing.

    Args:
        site: The site's settings.
        spec: The run as the site plays it.

    Raises:
        PolicyError: If the site has no policy.
        ConfigurationError: If policy and ledger disagree.
    """
    policy = required_policy(site)
    if not ledger_path(site).exists():
        return _decision(policy, spec, plan_run(spec), None)
    with Ledger.open(ledger_path(site)) as ledger:
        _require_bound(policy, ledger)
        return _decision(policy, spec, plan_run(spec), ledger)


def admit(site: SiteSettings, spec: Spec, *, run: str, settings: str, answered: bool) -> Decision:
    """Judge a run that asks something, and charge its whole plan to the site's ledger; durable on return.

    Args:
        site: The site's settings.
        spec: The run as the site plays it.
        run: The name that the server gives the run.
        settings: Digest of the run's public settings.
        answered: Whether the site has answered the run before.

    Raises:
        PolicyError: If the site refuses the run; nothing was evaluated.
        ConfigurationError: If policy and ledger disagree.
        RunError: If the ledger does not know a run that the site has answered, or knows it with other settings.
    """
    policy = required_policy(site)
    with _alone(site), _opened(site, policy) as ledger:
        _require_bound(policy, ledger)
        known = ledger.book().plan_of(run)
        if known is not None and known.declared.settings != settings:
            raise RunError(f"run {run!r} was charged with other settings than it has now; it is not answered")
        private = spec.privacy.noise_source != "none"
        if known is None and answered and private:
            raise RunError(
                f"{ledger_path(site)} does not know run {run!r}, which this site has answered; restore it from a copy"
            )
        plan = plan_run(spec) if known is None else None
        decision = _decision(policy, spec, plan, ledger)
        decision.require("this site")
        if plan is not None and private:
            ledger.reserve(_declaration(plan, run, settings))
    return decision


def _decision(policy: Policy, spec: Spec, plan: Plan | None, ledger: Ledger | None) -> Decision:
    book = None if ledger is None else ledger.book()
    return policy.decide(
        spec.privacy,
        None if plan is None else plan.event,
        algorithm=str(algorithm_table(spec.algorithm)["type"]),
        rounds=spec.rounds,
        paid=() if book is None else (*book.paid, *book.paid_again),
    )


def _declaration(plan: Plan, run: str, settings: str) -> Declaration:
    return Declaration(
        run=run,
        events=parts(plan.event),
        settings=settings,
        plan=hashlib.sha256(canonical(plan.to_dict())).hexdigest(),
        delta=plan.delta,
        noise_source=plan.noise_source,
    )


def _opened(site: SiteSettings, policy: Policy) -> Ledger:
    """The site's ledger; made before the site's first answer, and never after it."""
    path = ledger_path(site)
    if path.exists():
        return Ledger.open(path)
    if any(path.parent.parent.glob("*/sent/*.npz")):
        raise RunError(f"{path} is gone though this site has answered; restore it from a copy")
    return Ledger.create(path, policy.ledger_policy(POPULATION))


def _require_bound(policy: Policy, ledger: Ledger) -> None:
    """Hold the policy to the bound that the ledger was made with; a smaller epsilon is stricter and may stand."""
    kept, asked = ledger.policy.budget, policy.budget
    same = kept is not None and (kept.delta, kept.rule) == (asked.delta, asked.rule) and asked.epsilon <= kept.epsilon
    if kept is None or not same or ledger.policy.unit.value != policy.unit:
        held = (
            "no bound" if kept is None else f"epsilon = {kept.epsilon:g}, delta = {kept.delta:g}, rule = '{kept.rule}'"
        )
        raise ConfigurationError(
            f"policy: epsilon={policy.epsilon:g}, delta={policy.delta:g}, rule={policy.rule!r}, unit={policy.unit!r}; "
            f"the ledger of this site's runs was made with {held}, unit = '{ledger.policy.unit.value}', and a bound "
            "over all runs is never raised; write these back, or a smaller epsilon"
        )


@contextmanager
def _alone(site: SiteSettings) -> Iterator[None]:
    """Let one process at a time judge and charge, so that two runs never share the same remainder."""
    folder = ledger_path(site).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
