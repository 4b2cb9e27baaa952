"""Opening a run: from a ``Spec`` to its plan, an identity on disk, an open ledger, a door and a server.

Everything here happens before a client is asked anything; it is the same for every transport.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Event, Unit
from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger.address import PostgresAddress, stands
from accountant.ledger.policy import canonical
from accountant.ledger.tables import Place
from accountant.wording import upper_text
from privbo.door.adaptive import QuantileClipper
from privbo.door.door import Door, Gather
from privbo.door.sampling import Keeper
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError, PolicyError, RunError
from privbo.protocol.files import alone, require_no_link, today
from privbo.protocol.messages import Request, Server
from privbo.runs.clients import WorkerSetup, require_takes
from privbo.runs.evidence import declaration, gathered, require_agreement
from privbo.runs.manifest import KeptAllocation, Manifest, RunDirectory, derive_seed, noise_of, versions
from privbo.runs.record import Record
from privbo.runs.spec import Spec
from privbo.runs.states import States

_log = logging.getLogger("privbo")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that stands on disk (or in memory) and can be played.

    Attributes:
        record: What it is, with its open ledger; no release yet.
        setup: What the clients' side needs to know of it.
        door: The only way from clients' vectors to public numbers.
        server: The public side.
    """

    record: Record
    setup: WorkerSetup
    door: Door
    server: Server


def plan_run(spec: Spec) -> Plan:
    """Price a run without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
        BudgetExceeded: If no noise meets the target.
    """
    if spec.privacy.adaptive_clipping is not None and spec.algorithm.is_certified:
        raise ConfigurationError(
            "adaptive_clipping would break the guarantee of a certified elimination, which needs its clipping norm "
            "fixed; drop it, or choose the heuristic form"
        )
    unit = spec.privacy.unit  # these are refused here, and not where settings are read: kept runs stay readable
    if unit == "reward" and spec.attendance is not None and spec.attendance.late > 0:
        raise ConfigurationError(
            f"attendance.late={spec.attendance.late:g}, privacy.unit='reward': a late answer would bring the same "
            "rewards into two releases; set late=0"
        )
    for name, allowed in {"times": ("client",), "evaluation_seconds": ("client", "reward")}.items():
        if getattr(spec, name) is not None and unit not in allowed:
            raise ConfigurationError(
                f"{name}={getattr(spec, name)!r}, privacy.unit={unit!r}: the time of one {unit} would decide whether "
                f"others fail; leave {name} out"
            )
    idle = {
        "evaluation_seconds": "objective='ask': the time of trials is their evaluator's" * spec.problem.is_asked,
        "final_share": "final=None: there is no vote" * (spec.final is None),
    }
    for name, why in idle.items():
        if why and getattr(spec, name) != getattr(Spec, name):
            raise ConfigurationError(f"{name}={getattr(spec, name)!r}, {why}; leave {name} out")
    plan = spec.plan
    require_takes(spec.algorithm, spec.problem)
    return plan


def planned_requests(spec: Spec) -> Iterator[Request]:
    """Give every request a run can make, without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
    """
    return spec.server(spec.setting(public_seed=0)).plan()


def decided(spec: Spec, plan: Plan, *, run: str | None = None) -> Decision | None:
    """Judge a planned run by its own policy, on top of all runs on the same ledger; None without a policy.

    Args:
        spec: What to run.
        plan: Its plan.
        run: Identifier of a run that began already.

    Raises:
        RunError: If the ledger is one of other people, or of other bounds.
    """
    if spec.policy is None:
        return None
    begun, paid = False, tuple[Event, ...]()
    if spec.ledger is not None:
        with considered_shared(spec.ledger, plan) as ledger:
            book = ledger.book()
        begun, paid = run is not None and run in book.plans, book.all_paid
    return spec.judged(spec.policy, None if begun else plan.event, paid)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What the ledger that a run names says of the run, before anything is charged.

    Attributes:
        words: Its bound, what was charged so far, and what this run would make of it.
        allowed: Whether the run fits; None where the ledger was not opened.
    """

    words: str
    allowed: bool | None


def admission_of(spec: Spec, plan: Plan, *, opens: bool, run: str | None = None) -> Admission | None:
    """Try a plan on the ledger that its run names; charges nothing, makes nothing. None where it names none.

    Args:
        spec: The run.
        plan: Its plan.
        opens: Whether a ledger that exists may be opened; one that does not is as good as an empty one.
        run: Identifier of a run that began already.

    Raises:
        RunError: If the ledger is one of other people, or of other bounds.
    """
    if (shared := spec.ledger) is None:
        return None
    name = f"ledger {shared.path} of {shared.population}"
    if stands(shared.place) and not opens:
        return Admission(words=f"{name}: not opened; add --trust to see whether this run fits on it", allowed=None)
    with considered_shared(shared, plan) as ledger:
        if run is not None and run in ledger.book().plans:
            return Admission(words=f"{name}: this run's plan is charged to it already", allowed=True)
        budget = ledger.policy.budget
        try:
            projection = ledger.consider([("", plan.event, plan.noise_source)])
        except (BudgetExceeded, LedgerError) as error:
            return Admission(words=f"{name} would refuse this run: {error}", allowed=False)
    if budget is None:
        return Admission(words=f"{name}: it has no bound", allowed=True)
    charged, then = upper_text(projection.spent), upper_text(projection.projected)
    bound = f"bound epsilon {upper_text(budget.epsilon)} at delta {upper_text(budget.delta)}"
    return Admission(words=f"{name}: {bound}; charged so far {charged}, with this run {then}", allowed=True)


def require_beginning(spec: Spec, plan: Plan, home: RunDirectory | None) -> None:
    """Refuse a run that ``open_run`` would refuse; makes nothing and charges nothing.

    Raises:
        ConfigurationError: If a real run has no directory for its ledger.
        PolicyError: If the run's policy refuses it.
        RunError: If a run stands in the directory already, or the ledger is one of other people or of other bounds.
        BudgetExceeded: If the plan costs more than the ledger has left.
        LedgerError: If the ledger holds noise of another kind.
    """
    _require_allowed(spec, plan, home)
    if home is not None:
        home.require_new()
    if spec.ledger is not None:
        place = spec.ledger.place
        if isinstance(place, Path) and not place.parent.is_dir() and (home is None or place.parent != home.path):
            raise RunError(f"ledger.path={spec.ledger.path!r}: there is no folder {place.parent}; make it")
        _require_room(considered_shared(spec.ledger, plan), plan)


def _require_allowed(spec: Spec, plan: Plan, home: RunDirectory | None, *, begun: str | None = None) -> None:
    if home is None and plan.has_secret_noise:
        raise ConfigurationError("a private run needs a directory for its durable ledger; name one")
    if (decision := decided(spec, plan, run=begun)) is not None:
        decision.require("this policy")


def open_run(
    spec: Spec,
    plan: Plan,
    home: RunDirectory | None,
    *,
    resume: bool = False,
    root: int | None = None,
    gather: Callable[[Manifest], Gather] | None = None,
    held: ExitStack | None = None,
) -> Run:
    """Make a run, or open the one that is resumed.

    Args:
        spec: What to run.
        plan: Its plan.
        home: Its directory; None keeps a simulation in memory.
        resume: Go on with the run in ``home``.
        root: PRIVATE: root of a new run's seeds; None draws it.
        gather: Reaches the guardians, or joins the noisy sums of sites; None plays them in this process.
        held: Keeps other programs out of the run until it is left, and closes the ledger if by an error; who plays a
            run needs it.

    Raises:
        ConfigurationError: If a real run has no directory for its ledger.
        PolicyError: If the run's policy refuses it.
        RunError: If the directory can't be used as asked.
        BudgetExceeded: If the plan costs more than the ledger has left.
    """
    if home is not None:
        require_no_link(home.private)
    if resume:
        manifest, root = _resumed(home, spec, plan)
        _require_allowed(manifest.spec, plan, home, begun=manifest.run_id)
    else:
        require_beginning(spec, plan, home)
        root = root_of(spec) if root is None else root
        privacy, caveat = spec.privacy, spec.algorithm.caveat
        thinned = (privacy.sample_rate or 1.0) < 1 or privacy.participations or spec.attendance
        if spec.algorithm.is_certified and thinned:
            caveat = "Heuristic form: radii count the pulls of all clients, and not all are in every release."
        manifest = Manifest(
            spec=spec,
            plan=plan,
            run_id=f"{spec.name}-{secrets.token_hex(6)}",
            created=today(),
            public_seed=derive_seed(root, "public"),
            versions=versions(),
            caveat=caveat,
        )
    if home is not None and held is not None:
        held.enter_context(alone(home.private, wait=False))
    if home is not None and not resume:
        home.create(manifest, seed=root)
    ledger = _bound_ledger(home, manifest)
    if held is not None:  # an error object that is kept must not keep the ledger from the run's resume
        held.push(lambda failed, *_: ledger.close() if failed else None)
    asked = plan.privacy.adaptive_clipping
    if plan.privacy.trust == "guardians" and gather is None:
        from privbo.runs.guarded import guarded_here

        gather = partial(guarded_here, home=home, policy=ledger.policy, root=root)
    door = Door(
        ledger,
        run=manifest.run_id,
        noise=noise_of(plan.noise_source, root, "noise"),
        mechanism=plan.mechanism,
        clipper=None if asked is None else QuantileClipper(settings=asked),
        only_sampled_send=plan.privacy.channel == "anonymous",
        keeper=Keeper() if home is None else KeptAllocation(home=home, run=manifest.run_id),
        gather=None if gather is None else gather(manifest),
    )
    setup = setup_of(spec, root, manifest.public_seed)
    return Run(
        record=Record(manifest=manifest, ledger=ledger, directory=None if home is None else home.path),
        setup=setup,
        door=door,
        server=spec.server(setup.setting),
    )


def _resumed(home: RunDirectory | None, spec: Spec, plan: Plan) -> tuple[Manifest, int]:
    """The manifest of the run that is resumed, with the objects of this process, and the root of its seeds."""
    if home is None:
        raise RunError("only a run with a directory can be resumed; name it")
    stored = home.manifest()
    stored.spec.require_same(spec)
    if stored.plan.to_dict() != plan.to_dict():
        raise RunError(f"{home.path}: the plan is {plan.to_dict()!r} now, not the one recorded; use the same privbo")
    # Settings and the ledger's place are the stored ones; the objects that carry them out are this process's.
    kept = stored.spec.ledger
    ledger = kept if kept is None or stands(kept.place) else spec.ledger  # a project may have been moved
    return replace(stored, spec=replace(spec, ledger=ledger), plan=plan), home.seed


def root_of(spec: Spec) -> int:
    """PRIVATE: give the root of a new run's seeds, which is drawn where the run names none."""
    return secrets.randbits(63) if spec.seed is None else spec.seed


def setup_of(spec: Spec, root: int, public_seed: int | None = None) -> WorkerSetup:
    """PRIVATE: give what clients' side needs to know of the run that begins, or began, with a root of seeds."""
    setting = spec.setting(derive_seed(root, "public") if public_seed is None else public_seed)
    return WorkerSetup(spec=spec, setting=setting, seed=derive_seed(root, "clients"))


def _bound_ledger(home: RunDirectory | None, manifest: Manifest) -> Ledger:
    """The run's ledger: the plan of a run that has not begun is reserved; of one that has, everything must agree.

    Raises:
        BudgetExceeded: If the ledger can't hold the plan; no client was asked.
        RunError: If what is there disagrees.
    """
    shared, run = manifest.spec.ledger, manifest.run_id
    path = shared.place if shared is not None else home.ledger_path if home is not None else None
    seen = [] if home is None else gathered(home, run)[0]
    if path is not None and seen and not stands(path):
        raise RunError(f"{path} is gone though clients have answered; restore it from a copy")
    ledger = _opened(path, policy_of(manifest.plan, shared, run), shared)
    book = ledger.book()
    if (is_new := run not in book.plans) and not seen and (shared is not None or not book.rows):
        manifest.spec.hold(ledger)
        try:
            ledger.reserve(declaration(manifest))
        except (BudgetExceeded, PolicyError) as error:
            ledger.close()
            raise type(error)(f"{error}; no data was touched") from None
    require_agreement(manifest, ledger, home)
    if home is not None and not (is_new or home.countersigned_path.exists()):  # nor are its clients elsewhere
        needed = {States.of(home.private, group[0]).path for group in home.groups_of(manifest.plan.n_clients)}
        released = home.history_path.exists() or any(r.release_id.startswith(f"{run}/") for r in ledger.release_rows())
        if released and (not needed or needed != {states.path for states in home.all_states()}):
            ledger.close()
            raise RunError(f"{home.private} lacks clients' states, and they have answered; restore it from a copy")
    return ledger


def make_shared(shared: SharedLedger, plan: Plan, owner: str) -> Ledger:
    """Make a population's ledger in PostgreSQL, by the address of its database's owner, for the role that runs name.

    Raises:
        ConfigurationError: If the ledger is a file.
        BudgetExceeded: If it would not hold the plan; nothing was made.
        LedgerError: If it stands already, or the owner may not make it.
    """
    place, policy = shared.place, policy_of(plan, shared)
    if not isinstance(place, PostgresAddress):
        raise ConfigurationError(f"ledger.path={shared.path!r} is a file, which the first run makes; nothing was made")
    _require_room(Ledger.create(None, policy), plan)
    from accountant.ledger.postgres import make  # and with it psycopg

    make(place, owner, canonical(policy.to_dict()).decode(), secrets.token_hex(16))
    return Ledger.open(place)


def considered_shared(shared: SharedLedger, plan: Plan) -> Ledger:
    """Open a population's ledger to price a plan on it; where it is missing one in memory stands for it.

    Raises:
        RunError: If the file is a ledger of other people, or of other bounds.
    """
    place = shared.place
    return _opened(place if stands(place) else None, policy_of(plan, shared), shared)


def _opened(path: Place | None, policy: LedgerPolicy, shared: SharedLedger | None) -> Ledger:
    """Open a ledger, or make it; one in memory without a path."""
    if path is None or not stands(path):
        try:
            made = Ledger.create(path, policy)
        except LedgerError:
            if path is None or not stands(path):
                raise
        else:
            if path is not None and shared is not None:
                new = "made a new ledger of %s, to which nothing was charged before: %s"
                _log.warning(new, shared.population, path)
            return made  # where another run has made it meanwhile, it is opened
    ledger = Ledger.open(path)
    require_policy(ledger, policy, shared)
    return ledger


def _require_room(ledger: Ledger, plan: Plan) -> None:
    """Try a plan, on an empty ledger where it would be the first: a refused one must not decide the others' rule."""
    with ledger:
        try:
            ledger.consider([("", plan.event, plan.noise_source)])
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{error} and no data was touched") from None


def require_policy(ledger: Ledger, policy: LedgerPolicy, shared: SharedLedger | None) -> None:
    """Refuse a ledger that does not mean what a run's numbers mean, and close it.

    Raises:
        RunError: Naming both policies.
    """
    if shared is not None:
        policy = replace(policy, budget=shared.kept(ledger.policy.budget, policy.budget))
    if ledger.policy != policy:
        ledger.close()
        raise RunError(
            f"{ledger.path} is another run's ledger: {ledger.policy.difference(policy)}; "
            "set this run's to the ledger's, or name another ledger, to which nothing of this one adds up"
        )


def policy_of(plan: Plan, shared: SharedLedger | None, run: str = "") -> LedgerPolicy:
    """Give what the ledger of a plan means: the run's own, or a population's."""
    population, budget = run if shared is None else shared.population, plan.budget
    if shared is not None:
        sampled = plan.privacy.sample_rate != 1.0  # a plan of no release does not show it
        budget = shared.budget(plan.event, n_clients=plan.n_clients, adjacency=plan.adjacency, sampled=sampled)
    return LedgerPolicy(
        unit=Unit(plan.unit),
        adjacency=plan.adjacency,
        population=population,
        n_clients=plan.n_clients,
        budget=budget,
        disjoint=plan.unit == "reward",
        protects=plan.privacy.protects or "records",
        records_per_person=plan.privacy.records_per_person,
    )
