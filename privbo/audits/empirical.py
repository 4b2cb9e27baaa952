"""The black-box audit of a plan's mechanism: measured lower bound versus the accountant's claim.

Vectors are made up, noise is the shipped secure source: this touches no client and says
something about the code that ran, not about this run's data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from accountant.wording import event_text
from privbo.audits.black_box import ALPHA, World, audit_curve, epsilon_lower_bound
from privbo.audits.clipping import ClippingAudit, PublishedNorms
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.door.noise import SecureNoise
from privbo.plans.privacy import SITES_ARE_SEEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request
from privbo.protocol.plain import in_two_lines, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import Table
from privbo.runs.code import CODE
from privbo.runs.manifest import versions
from privbo.runs.opening import planned_requests
from privbo.runs.record import Record

_MOST_MECHANISMS = 3


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """Outcome of attacking one mechanism in one world.

    Attributes:
        event: What a release is charged as.
        world: What the other clients send.
        trials: Releases with and without the canary.
        passed: Whether the measured curve stays below the claimed one.
        epsilon: Where they come closest.
        delta_lower: Lower confidence bound there.
        delta_claimed: The accountant's value there.
        delta: Of the two below.
        epsilon_lower: Epsilon of one release is at least this, with 95 % confidence; below
            rate 1 if participation is sampled as stated.
        epsilon_claimed: The accountant's epsilon of one release.
        alpha: False-alarm rate of ``passed``.
    """

    event: str
    world: str
    trials: int
    passed: bool
    epsilon: float
    delta_lower: float
    delta_claimed: float
    delta: float
    epsilon_lower: float
    epsilon_claimed: float
    alpha: float

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        return "within the claim" if self.passed else "ABOVE THE CLAIM"


def audit_run(record: Record, *, trials: int, trust: bool = False) -> tuple[Empirical, ...]:
    """Audit the mechanisms of a run's plan, from its public configuration.

    Args:
        record: A private run, finished or not.
        trials: Releases with and without the canary, each.
        trust: Import the algorithm that a loaded run names, where it is one of the user's own.

    Raises:
        RunError: If the algorithm is a user's own, and was not imported.
        ConfigurationError: If the run is not private, or was made by other code than is installed, which
            is what would be attacked.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda clients, x: x[:, 0], n_clients=5)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> made = pb.run(problem, pb.DPFTSDE(n_features=8), privacy=privacy, rounds=1, seed=1)
        >>> [(row.world, row.verdict) for row in audit_run(made, trials=1000)][0]
        ('others zero', 'within the claim')
    """
    if record.plan.noise_multiplier is None:
        raise ConfigurationError("a run without noise claims nothing, so there is nothing to audit")
    ours, made_by = versions(), record.manifest.versions
    for name in (name for name in ("privbo", CODE) if name in made_by and made_by[name] != ours[name]):
        raise ConfigurationError(
            f"the run was made by {name} {made_by[name]}, installed is {ours[name]}, which the attack would "
            "try out instead; audit it with that version, or audit its configuration file (TOML)"
        )
    spec = record.spec.with_algorithm() if trust else record.spec
    return audit_plan(planned_requests(spec), record.plan.mechanism, delta=record.delta, trials=trials)


def audit_plan(
    plan: Iterable[Request], mechanism: Callable[[Request], Mechanism], *, delta: float, trials: int
) -> tuple[Empirical, ...]:
    """Audit the first mechanisms of a plan that differ, at most three, in every world.

    Args:
        plan: The requests of a run.
        mechanism: Builds the mechanism that answers a request.
        delta: Where the claimed and the measured epsilon are compared, in (0, 1).
        trials: Releases with and without the canary, each.

    Raises:
        ConfigurationError: If the plan releases nothing.
    """
    found, seen = list[Empirical](), set[Mechanism]()
    for request in plan:
        if (described := mechanism(request)) not in seen:
            seen.add(described)
            found += _audit(request, mechanism, delta=delta, trials=trials)
        if len(seen) == _MOST_MECHANISMS:
            break
    if not found:
        raise ConfigurationError("the plan releases nothing, so there is nothing to audit")
    return tuple(found)


def _audit(
    request: Request, mechanism: Callable[[Request], Mechanism], *, delta: float, trials: int
) -> Iterator[Empirical]:
    def build(weights: FloatArray) -> PrivateSum:
        described = mechanism(dataclasses.replace(request, weights=weights))
        if not isinstance(described, PrivateSum):
            raise ConfigurationError("a release without noise claims nothing, so there is nothing to audit")
        return described

    whole, noise = build(request.weights), SecureNoise()
    lower, claimed = epsilon_lower_bound(whole, request.weights, noise=noise, delta=delta, trials=trials)
    for world in get_args(World):
        point = audit_curve(build, request.weights, noise=noise, world=world, trials=trials)
        yield Empirical(
            event=f"{event_text(whole.event())}, clipped to {request.clipping_norm:.4g}"
            + f" ({SITES_ARE_SEEN})" * (request.unit == "record"),
            world=world,
            trials=trials,
            passed=point.passed,
            delta=delta,
            epsilon_lower=lower,
            epsilon_claimed=claimed,
            alpha=ALPHA,
            **vars(point),
        )


@dataclass(frozen=True, kw_only=True)
class Audit:
    """PRIVATE where it holds a clipping audit: what an audit found.

    Attributes:
        name: Name of the run or the configuration.
        clipping: PRIVATE: effect of clipping on the run's vectors; None for a configuration.
        empirical: Outcomes of attacking the mechanism, one per mechanism and world.
        published: Public: histogram of norms under a charge, or None.
        page: Where the page was written, or None.
    """

    name: str
    clipping: ClippingAudit | None
    empirical: tuple[Empirical, ...]
    published: PublishedNorms | None = None
    page: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether no attack contradicts the claim."""
        return all(row.passed for row in self.empirical)

    def __repr__(self) -> str:
        clipping = "no clipping audit" if self.clipping is None else self.clipping.verdict
        attacks = f"{len(self.empirical)} attacks, {'none' if self.passed else 'SOME'} beyond the claim"
        return in_two_lines("Audit", self.name, attacks, clipping)

    def _repr_html_(self) -> str:
        """Show the verdicts in a notebook."""
        clipping = {} if self.clipping is None else {"clipping": self.clipping.verdict}
        attacks = {f"{row.event}, {row.world}": row.verdict for row in self.empirical}
        return Table.of(f"Audit: {self.name}", clipping | attacks).html()

    def to_dict(self) -> JsonObject:
        """Give the audit as JSON-able data; what was not asked for is left out."""
        found: JsonObject = {"audit": self.name, "empirical": plain(self.empirical)}
        if self.clipping is not None:
            found |= {"note": self.clipping.note, "clipping": plain(self.clipping)}
        if self.page is not None:
            found["report"] = str(self.page)
        if self.published is not None:
            found["published_norms"] = plain(self.published)
        return found
