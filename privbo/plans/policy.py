"""Policy of a party: runs that it allows on its people, and what all of them together may cost.

A run is judged before any data is touched, from its settings and its plan. Everything that the policy does not allow is
refused in a sentence that names the setting, its value, the policy's bound and the remedy.

**All runs together.** The operator of a run may have seen the results of the runs before, so the total has to hold
for runs that are chosen adaptively. A run's own plan is fixed before its first release, and all of it is charged then.

- ``rule = "gaussian"``: an event of noise multiplier z costs mu^2 = 1/z^2, a sampled one as if all clients took part.
  Given everything released before, a release is a mu-GDP mechanism for every client: sampling only lowers its trade-off
  curve, by concavity, and a release without a client satisfies any mu for that client. As long as the sum of mu^2 of
  all admitted releases stays at most m^2 on every path of outputs, their composition is m-GDP, however they were chosen
  (Smith and Thakurta 2022). A run is admitted whole or not at all, so the sum stays below m^2 on every path; m is the
  largest with which an m-GDP mechanism is (epsilon, delta)-private.
- ``rule = "renyi"``: the Rényi divergences at one order, which depends on epsilon and delta alone, stay below a bound
  (Feldman and Zrnic 2021, Theorem 3.3). It admits every event and counts sampling; where all clients take part it
  costs more.

Neither depends on the number of clients: the sums speak of one client, whose data is replaced by zero (or of one
reward, replaced by another). So N may change from run to run, and the total is an upper bound for a client that joined
later. A run of rewards costs its most expensive release, and several runs are added up: the same evaluation may be
asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from accountant.events import Event, Unit, compose, parts
from accountant.ledger import Budget, LedgerPolicy
from accountant.ledger.ledger import holds
from accountant.verify.text import at_least
from accountant.wording import upper_text
from privbo.plans.privacy import NoPrivacy, Privacy, Protects, Trust, adjacency_of
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.protocol.messages import UnitName
from privbo.protocol.settings import Count, Positive, Sequence, settings


@settings(table="policy")
class Policy:
    """Runs that a party allows on its people, and what all of them together may cost.

    .. versionadded:: 0.3.0

    Attributes:
        epsilon: Bound on all runs together on these people. A site counts on a ledger of its own; in one process those
            runs count that charge the same ``[ledger]``, and without one a run counts alone.
        delta: Where the bound holds.
        unit: Unit of privacy that runs must have.
        protects: Which records runs must protect, as in ``Privacy``.
        records_per_person: The records of one person that the bound is for; runs must protect as many, or more.
        noise: Sources of noise allowed. ``"simulation"`` is seeded and gives no guarantee.
        trust: Who may be trusted with a client's vector, as in ``Privacy``.
        algorithms: Names of algorithms allowed, ``"package.module:Class"`` for one from outside; None allows all.
        max_rounds: The most rounds of a run; None for any number.
        no_privacy: Allow runs without privacy. They are not counted, and the bound does not cover them.
        rule: What makes the bound hold for runs chosen after seeing earlier ones. ``"gaussian"`` is exact where
            all clients take part, counts a sampled release as if all did, and admits nothing but Gaussian noise;
            ``"renyi"`` admits every release, counts sampling, and costs more.

    Raises:
        ConfigurationError: If a value is out of range.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=40)
        >>> policy = pb.Policy(epsilon=4.0, delta=1e-6, max_rounds=10)
        >>> pb.run(problem, pb.SharedPrior(), privacy=pb.Privacy(epsilon=2.0), rounds=20, policy=policy)
        Traceback (most recent call last):
        privbo.protocol.errors.PolicyError: this policy refuses: rounds=20, and policy.max_rounds=10; plan fewer rounds
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: UnitName = "client"
    protects: Protects = "records"
    records_per_person: Count = 1
    noise: Sequence[Literal["secure", "exact", "simulation"]] = ("secure", "exact")
    trust: Sequence[Trust] = ("server", "guardians", "sites")
    algorithms: Sequence[str] | None = None
    max_rounds: Count | None = None
    no_privacy: bool = False
    rule: Literal["gaussian", "renyi"] = "gaussian"

    def __post_init__(self) -> None:
        if self.unit != "record" and (self.protects, self.records_per_person) != ("records", 1):
            raise ConfigurationError(
                f"policy.protects={self.protects!r}, policy.records_per_person={self.records_per_person} go with "
                "policy.unit='record' only; drop them"
            )

    @property
    def budget(self) -> Budget:
        """The bound on all runs together."""
        return Budget(epsilon=self.epsilon, delta=self.delta, rule=self.rule)

    def ledger_policy(self, population: str) -> LedgerPolicy:
        """Give the policy of a ledger that counts all runs on these people, whatever their number."""
        return LedgerPolicy(
            unit=Unit(self.unit),
            adjacency=adjacency_of(self.unit),
            population=population,
            n_clients=None,
            budget=self.budget,
            protects=self.protects,
            records_per_person=self.records_per_person,
        )

    def refusals(self, privacy: Privacy | NoPrivacy, *, algorithm: str, rounds: int) -> tuple[str, ...]:
        """Give what the policy refuses of a run's settings, in sentences; empty where nothing is refused.

        Args:
            privacy: What the run asks for.
            algorithm: Name of its algorithm.
            rounds: Its rounds.

        Example:
            >>> from privbo.plans.privacy import Privacy
            >>> policy = Policy(epsilon=4.0, delta=1e-6, max_rounds=10)
            >>> policy.refusals(Privacy(epsilon=2.0), algorithm="f-lcb", rounds=20)
            ('rounds=20, and policy.max_rounds=10; plan fewer rounds',)
        """
        found: list[str] = []
        if isinstance(privacy, NoPrivacy):
            if not self.no_privacy:
                found.append("privacy.none=true, and policy.no_privacy=false; give the run epsilon or noise_multiplier")
        else:
            if privacy.unit != self.unit:
                found.append(f"privacy.unit={privacy.unit!r}, and policy.unit={self.unit!r}; set one to the other")
            protects, person = privacy.protects or "records", privacy.records_per_person
            if protects != self.protects or person < self.records_per_person:
                found.append(
                    f"privacy.protects={protects!r}, records_per_person={person}, and policy.protects="
                    f"{self.protects!r}, records_per_person={self.records_per_person}; protect these records, and as "
                    "many of a person"
                )
            for name, given, those in (("noise", privacy.noise, self.noise), ("trust", privacy.trust, self.trust)):
                if given not in those:
                    found.append(f"privacy.{name}={given!r}, and policy.{name}={list(those)!r}; set one of them")
            if privacy.n_counted != 1:
                found.append(
                    f"privacy.against={privacy.against!r} leaves epsilon larger against the server with all guardians "
                    "but one, and a policy counts against them; set privacy.against='coalition'"
                )
        if self.algorithms is not None and algorithm not in self.algorithms:
            found.append(
                f"algorithm.type={algorithm!r}, and policy.algorithms={list(self.algorithms)!r}; use one of them"
            )
        if self.max_rounds is not None and rounds > self.max_rounds:
            found.append(f"rounds={rounds}, and policy.max_rounds={self.max_rounds}; plan fewer rounds")
        return tuple(found)

    def decide(
        self,
        privacy: Privacy | NoPrivacy,
        event: Event | None,
        *,
        algorithm: str,
        rounds: int,
        paid: Iterable[Event] = (),
    ) -> Decision:
        """Judge a run before any data is touched.

        Args:
            privacy: What the run asks for.
            event: Everything that it will release; None where it stands in ``paid`` already.
            algorithm: Name of its algorithm.
            rounds: Its rounds.
            paid: Everything charged before, on the same people.
        """
        from accountant.ledger.pricing import opened

        refused = self.refusals(privacy, algorithm=algorithm, rounds=rounds)
        account = opened(self.ledger_policy("all runs"), self.budget)
        for before in paid:
            account = account.after(before)
        private = not isinstance(privacy, NoPrivacy)
        counted = event if private and event is not None else compose([])
        spent = account.epsilon
        projected = account.after(counted).epsilon if parts(counted) else spent
        if not refused and not holds(self.epsilon, spent, projected):
            refused = (
                f"the run releases {counted.text}, and policy.rule={self.rule!r} counts Gaussian releases only; "
                "a policy with rule = 'renyi' counts every release"
                if account.obstacle(counted) is not None
                else f"this would bring all runs together from epsilon {upper_text(spent)} to "
                f"{upper_text(projected)} at delta {upper_text(self.delta)}, and policy.epsilon={self.epsilon:g}; "
                + ("lower privacy.epsilon" if privacy.epsilon else "plan fewer rounds or more noise"),
            )
        return Decision(policy=self, refusals=refused, spent=spent, projected=projected, counted=private)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision of a policy about a run; public.

    Attributes:
        policy: The policy.
        refusals: What it refuses, in sentences; empty for a run that is allowed.
        spent: Epsilon of all runs before, at the policy's delta.
        projected: The same with this run.
        counted: Whether the run counts; one without privacy does not.
    """

    policy: Policy
    refusals: tuple[str, ...]
    spent: float
    projected: float
    counted: bool = True

    @property
    def allowed(self) -> bool:
        """Whether the run may go on."""
        return not self.refusals

    @property
    def words(self) -> str:
        """What is charged and left with the run, or what is refused."""
        if self.refusals:
            return "; ".join(self.refusals)
        bound, left = self.policy.epsilon, max(0.0, self.policy.epsilon - self.projected)
        return (
            f"epsilon {upper_text(self.projected)} of {bound:g} would be charged, {at_least(left)} left at delta "
            f"{upper_text(self.policy.delta)}"
        )

    def verdict(self, party: str) -> str:
        """Give the decision in one line, in the name of a party such as ``"this site"``.

        Example:
            >>> from privbo.plans.privacy import NoPrivacy
            >>> Policy(epsilon=4, delta=1e-6, no_privacy=True).decide(
            ...     NoPrivacy(), None, algorithm="pe", rounds=9
            ... ).verdict("this site")
            'this site would answer: without privacy, which policy.no_privacy allows; epsilon 0 of 4 would be charged, \
4 left at delta 1e-06'
        """
        if self.refusals:
            return f"{party} refuses: {self.words}"
        bare = "" if self.counted else "without privacy, which policy.no_privacy allows; "
        return f"{party} would answer: {bare}{self.words}"

    def require(self, party: str) -> None:
        """Refuse a run that is not allowed.

        Raises:
            PolicyError: With the verdict.
        """
        if self.refusals:
            raise PolicyError(self.verdict(party))
