"""Policy and ledger of a site or guardian: whether it serves a run at all, and the total of all runs on its people.

The ledger stands in ``DIR/_policy/ledger.sqlite``, where no run's folder can stand. It speaks of one client, so
the number of clients may change between runs; its total is an upper bound for a client that joined later. The
party prices a run's plan itself and charges all of it before anything is evaluated, opened or sent:

| the party's process dies | charged | sent | asked again |
|---|---|---|---|
| before the reservation commits | nothing | nothing | judged and reserved as new |
| after it, before an answer leaves | the whole plan | nothing | known: not charged again |
| later | the whole plan | what was sent | known: the same bytes |

So a crash may count too much and never too little. A run that goes on is judged again: a policy that became stricter
holds from the next question on.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accountant.ledger import Ledger
from privbo.flower.approval import PartyRun
from privbo.flower.settings import Party
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision, Policy
from privbo.protocol.errors import ConfigurationError, PolicyError, RunError
from privbo.runs.sources import algorithm_table
from privbo.runs.spec import Spec

POPULATION = "one client"


def ledger_path(party: Party) -> Path:
    """Path of the ledger of all runs at a party."""
    return Path(party.directory) / "_policy" / "ledger.sqlite"


def required_policy(party: Party) -> Policy:
    """Give a party's policy.

    Raises:
        PolicyError: If its settings have none.
    """
    if party.policy is None:
        raise PolicyError(
            f"this {party.role} refuses every question: {party.role}.toml has no [policy]; write one with epsilon and "
            "delta, the bound on all runs together on its people"
        )
    return party.policy


def judged(run: PartyRun) -> Decision:
    """Judge a run that has not begun, for the party's own eyes; writes nothing.

    Raises:
        PolicyError: If the party has no policy.
        ConfigurationError: If policy and ledger disagree.
    """
    party, policy = run.party, required_policy(run.party)
    if not ledger_path(party).exists():
        return _decision(policy, run.spec, run.plan, None)
    with Ledger.open(ledger_path(party)) as ledger:
        _require_bound(party, policy, ledger)
        return _decision(policy, run.spec, run.plan, ledger)


def admit(run: PartyRun, name: str, *, answered: bool) -> Decision:
    """Judge a run that asks something, and charge its whole plan to the party's ledger; durable on return.

    Args:
        run: As the party computes it.
        name: The name that the server gives it.
        answered: Whether the party has answered the run before.

    Raises:
        PolicyError: If the party refuses the run; nothing was evaluated.
        ConfigurationError: If policy and ledger disagree.
        RunError: If the ledger does not know a run that the party has answered, or knows it with other settings.
    """
    party, policy = run.party, required_policy(run.party)
    with _alone(party), _opened(party, policy) as ledger:
        _require_bound(party, policy, ledger)
        known = ledger.book().plan_of(name)
        if known is not None and known.declared.settings != run.settings:
            raise RunError(f"run {name!r} was charged with other settings than it has now; it is not answered")
        private = run.spec.privacy.noise_source != "none"
        if known is None and answered and private:
            raise RunError(
                f"{ledger_path(party)} does not know run {name!r}, which this {party.role} has answered; restore it "
                "from a copy"
            )
        decision = _decision(policy, run.spec, run.plan if known is None else None, ledger)
        decision.require(f"this {party.role}")
        if known is None and private:
            ledger.reserve(run.declared(name))
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


def _opened(party: Party, policy: Policy) -> Ledger:
    """The party's ledger; made before its first answer, and never after it."""
    path = ledger_path(party)
    if path.exists():
        return Ledger.open(path)
    if any(any(path.parent.parent.glob(f"*/{answers}")) for answers in ("sent/*.npz", "rounds/*.json")):
        raise RunError(f"{path} is gone though this {party.role} has answered; restore it from a copy")
    return Ledger.create(path, policy.ledger_policy(POPULATION))


def _require_bound(party: Party, policy: Policy, ledger: Ledger) -> None:
    """Hold the policy to the bound that the ledger was made with; a smaller epsilon is stricter and may stand."""
    kept, asked = ledger.policy.budget, policy.budget
    same = kept is not None and (kept.delta, kept.rule) == (asked.delta, asked.rule) and asked.epsilon <= kept.epsilon
    if kept is None or not same or ledger.policy.unit.value != policy.unit:
        held = (
            "no bound" if kept is None else f"epsilon = {kept.epsilon:g}, delta = {kept.delta:g}, rule = '{kept.rule}'"
        )
        raise ConfigurationError(
            f"policy: epsilon={policy.epsilon:g}, delta={policy.delta:g}, rule={policy.rule!r}, unit={policy.unit!r}; "
            f"the ledger of this {party.role}'s runs was made with {held}, unit = '{ledger.policy.unit.value}', and a "
            "bound over all runs is never raised; write these back, or a smaller epsilon"
        )


@contextmanager
def _alone(party: Party) -> Iterator[None]:
    """Let one process at a time judge and charge, so that two runs never share the same remainder."""
    folder = ledger_path(party).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
