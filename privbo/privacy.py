"""What privacy a user asks for, and what that means for a given plan.

``Privacy`` states a target (epsilon, delta) or a noise multiplier; ``resolve`` turns it
into ``Terms``: the noise multiplier, the planned event of the whole run, and its price.
All of it is arithmetic on public quantities; no data is touched.

Longer than 300 lines: what may be asked and what it costs in one place.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.disjoint import dearest
from accountant.epsilon import epsilon_table
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency, Event, compose
from privbo.errors import ConfigurationError
from privbo.protocol import Request, UnitName
from privbo.release.mechanism import Mechanism, PrivateSum, mechanism_for
from privbo.release.reward_unit import require_reward_unit


def paper_delta(n_clients: int) -> float:
    """N^-1.1, the delta of the federated Bayesian optimisation papers."""
    return min(0.5, math.pow(n_clients, -1.1))


def default_delta(n_clients: int) -> float:
    """min(1e-5, 1/(10 N)): well below the 1/N at which publishing one random client passes."""
    return min(1e-5, 0.1 / n_clients)


_CHOICES = {
    "calibration": ("tight", "paper"),
    "sampling": ("poisson", "fixed-size"),
    "noise": ("secure", "exact", "simulation"),
    "channel": ("open", "anonymous"),
    "unit": ("client", "reward"),
}


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Clip at a noisy quantile of the norms, found as the run goes, within the same price.

    A statistical guarantee that rests on a fixed clipping norm (certified
    eliminations) does not hold with it; privacy is unchanged.

    Attributes:
        target_quantile: Share of vectors that should be within the bound, in (0, 1).
        learning_rate: How fast the bound moves.
        count_stddev: Noise standard deviation of the count of clients within the bound; it
            must be worth more than the release's own noise multiplier.
    """

    count_stddev: float
    target_quantile: float = 0.5
    learning_rate: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy of a run: a target epsilon, or a noise multiplier.

    Attributes:
        epsilon: Target; the noise is calibrated so that the whole plan costs no more.
        noise_multiplier: z, noise standard deviation over L2 sensitivity, instead of a target.
        sample_rate: q, the probability with which a client takes part in a release. At 1
            (the default) a fixed number of rounds needs the least noise, no secrecy of
            the sample, and the price is exact.
        delta: Failure probability; None is ``min(1e-5, 1/(10 N))``, ``"paper"`` is N^-1.1.
        calibration: ``"tight"`` scales noise to the true sensitivity of the weights,
            ``"paper"`` draws the paper's noise (scaled to phi_max S) and charges the true
            multiplier.
        sampling: ``"poisson"``: every client by its own secret coin; ``"fixed-size"``: a
            secret subset of ``round(q N)`` clients, with its own larger sensitivity.
        adaptive_clipping: Move the clipping norm to a noisy quantile; None keeps what is asked.
        budget: Epsilon at ``delta`` that the ledger refuses to pass, beside a noise multiplier
            (a target epsilon is its own budget). A plan that costs more is refused before
            any data is touched.
        noise: ``"secure"`` is cryptographic noise; ``"exact"`` OpenDP's discrete Gaussian (the
            extra ``exact``, slower); ``"simulation"`` is seeded noise, for
            experiments only: no guarantee, and every report says so.
        channel: ``"open"``: who sends may be seen, so every client sends in every round and the
            sample stays secret; ``"anonymous"``: the channel hides who sends, so clients outside
            a round's sample send nothing (communication falls by the sample rate). A
            transport that can't hide it refuses.
        unit: Whose data is hidden. ``"client"``: all of one client. ``"reward"``: the
            outcome of one evaluation, for algorithms that can bound what it does; far less
            noise, and a client's habits as a whole stay unprotected. A run then costs
            what its dearest release costs, because no reward enters two.

    Raises:
        ConfigurationError: If not exactly one of epsilon and noise_multiplier is given
            or a value is out of range.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    sample_rate: float = 1.0
    delta: float | Literal["paper"] | None = None
    calibration: Literal["tight", "paper"] = "tight"
    sampling: Literal["poisson", "fixed-size"] = "poisson"
    adaptive_clipping: AdaptiveClipping | None = None
    budget: float | None = None
    noise: Literal["secure", "exact", "simulation"] = "secure"
    channel: Literal["open", "anonymous"] = "open"
    unit: UnitName = "client"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigurationError(
                f"privacy: epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}; "
                "give exactly one of them"
            )
        for name in ("epsilon", "noise_multiplier", "budget"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"privacy.{name}={value!r} must be a finite number > 0")
        if not 0 < self.sample_rate <= 1:
            raise ConfigurationError(f"privacy.sample_rate={self.sample_rate!r} must lie in (0, 1]")
        if self.budget is not None and self.epsilon is not None:
            raise ConfigurationError("privacy: a target epsilon is its own budget; drop budget")
        if self.delta not in (None, "paper") and not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise ConfigurationError(f"privacy.delta={self.delta!r} must lie in (0, 1), or be 'paper'")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"privacy.{name}={getattr(self, name)!r} must be one of {allowed}")
        if self.unit == "reward":
            self._require_reward_unit()

    def _require_reward_unit(self) -> None:
        require_reward_unit(self.sample_rate, self.sampling, self.calibration, self.adjacency)
        if self.adaptive_clipping is not None:
            raise ConfigurationError(
                "adaptive_clipping counts clients, and one reward may move a count by a whole client; drop it, or "
                "set privacy.unit='client'"
            )

    @property
    def adjacency(self) -> Adjacency:
        """Of every event: a client leaves by sending zero, a reward is replaced by another one."""
        return Adjacency.REPLACE_ONE if self.unit == "reward" else Adjacency.ZERO_OUT

    @property
    def bound(self) -> float | None:
        """Epsilon the ledger refuses to pass; None if there is no bound."""
        return self.budget if self.epsilon is None else self.epsilon

    def resolved_delta(self, n_clients: int) -> float:
        """The delta as a number for N clients; warns where it is too large to mean much."""
        if self.delta == "paper":
            delta = paper_delta(n_clients)
            warnings.warn(
                f"delta = N^-1.1 = {delta:.3g} follows the papers; publishing one random client whole "
                f"satisfies delta = 1/N = {1 / n_clients:.3g}, so read epsilon at 1e-5 beside it",
                stacklevel=2,
            )
            return delta
        return default_delta(n_clients) if self.delta is None else float(self.delta)


@dataclass(frozen=True, kw_only=True)
class NoPrivacy:
    """A non-private baseline: the plain sum leaves the clients, epsilon is infinity."""


@dataclass(frozen=True, kw_only=True)
class SharedLedger:
    """A population's ledger that several runs on the same people charge.

    Attributes:
        path: The ledger's file; made by the first run that names it.
        population: Name of the people; runs on other people need another ledger.
        epsilon: Bound on all runs together, or None; fixed when the ledger is made.
        delta: Of that bound.

    Raises:
        ConfigurationError: If only one of epsilon and delta is given.
    """

    path: str
    population: str
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if not self.path or not self.population:
            raise ConfigurationError("ledger: path and population must not be empty")
        if (self.epsilon is None) != (self.delta is None):
            raise ConfigurationError(
                f"ledger: epsilon={self.epsilon!r}, delta={self.delta!r}; give both (a bound) or neither"
            )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run will cost, fixed and recorded before any data is touched.

    Attributes:
        privacy: What was asked for.
        noise_multiplier: Nominal z; None for a non-private run or an empty plan.
        delta: The delta epsilon is quoted at.
        n_clients: N.
        event: The planned event of the whole run.
        planned_releases: Number of releases in the plan.
    """

    privacy: Privacy | NoPrivacy
    noise_multiplier: float | None
    delta: float
    n_clients: int
    event: Event
    planned_releases: int

    @property
    def unit(self) -> UnitName:
        """The unit of privacy; a non-private run has that of its clients."""
        return self.privacy.unit if isinstance(self.privacy, Privacy) else "client"

    @property
    def adjacency(self) -> Adjacency:
        """Of every event; weights and N are public constants, so leaving is zeroing."""
        return self.privacy.adjacency if isinstance(self.privacy, Privacy) else Adjacency.ZERO_OUT

    @property
    def noise_source(self) -> str:
        """Source of the noise: "secure", "exact", "simulation", or "none" for a non-private run."""
        return "none" if isinstance(self.privacy, NoPrivacy) else self.privacy.noise

    @property
    def only_sampled_send(self) -> bool:
        """Whether clients outside a release's sample send nothing."""
        return isinstance(self.privacy, Privacy) and self.privacy.channel == "anonymous"

    @property
    def sending_share(self) -> float:
        """Share of the clients that send in a round on average; which and how many do is secret."""
        if not isinstance(self.privacy, Privacy) or not self.only_sampled_send:
            return 1.0
        if self.privacy.sampling == "fixed-size":
            return round(self.privacy.sample_rate * self.n_clients) / self.n_clients
        return self.privacy.sample_rate

    def mechanism(self, request: Request) -> Mechanism:
        """The mechanism that answers ``request`` under these terms."""
        return _mechanism(self.privacy, request, self.noise_multiplier)

    def epsilon(self, delta: float | None = None) -> dict[str, float]:
        """Planned epsilon by accountant, at the run's delta unless another is named."""
        return epsilon_table(self.event, self.delta if delta is None else delta, adjacency=self.adjacency)


def resolve(privacy: Privacy | NoPrivacy, plan: Iterable[Request], *, n_clients: int) -> Terms:
    """Price a plan: calibrate the noise to the target, or take the multiplier as given.

    Args:
        privacy: What is asked for.
        plan: Every request of the run; weights are reduced to their geometry one by one.
        n_clients: N.

    Raises:
        ConfigurationError: If a request can't be answered.
        CalibrationError: If no noise meets the target.
        BudgetExceeded: If the plan costs more than its budget.
    """
    nominal = 1.0 if isinstance(privacy, Privacy) else None
    counts = Counter(_mechanism(privacy, request, nominal) for request in plan)
    if isinstance(privacy, NoPrivacy):
        z, delta = None, default_delta(n_clients)
    else:
        delta = privacy.resolved_delta(n_clients)
        z = _multiplier(privacy, counts, delta) if counts else None
    terms = Terms(
        privacy=privacy,
        noise_multiplier=z,
        delta=delta,
        n_clients=n_clients,
        event=_planned(privacy, counts, z),
        planned_releases=counts.total(),
    )
    bound = privacy.bound if isinstance(privacy, Privacy) else None
    if bound is not None and (cost := min(terms.epsilon().values())) > bound:
        raise BudgetExceeded(
            f"the plan of {terms.planned_releases} releases costs epsilon {cost:.6g} at delta {delta:.3g}, over the "
            f"budget {bound:.6g}; plan fewer rounds, more noise or a larger budget"
        )
    return terms


def _mechanism(privacy: Privacy | NoPrivacy, request: Request, z: float | None) -> Mechanism:
    if isinstance(privacy, NoPrivacy):
        return mechanism_for(request, noise_multiplier=None)
    if request.unit != privacy.unit:
        raise ConfigurationError(
            f"privacy.unit={privacy.unit!r}: this algorithm states its releases for one {request.unit} only, because "
            "what a single evaluation does to them is not bounded; set privacy.unit='client'"
        )
    return mechanism_for(
        request,
        noise_multiplier=z,
        sample_rate=privacy.sample_rate,
        sampling=privacy.sampling,
        adjacency=privacy.adjacency,
        calibration=privacy.calibration,
    )


def _multiplier(privacy: Privacy, counts: Counter[Mechanism], delta: float) -> float:
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.epsilon is None:
        raise ConfigurationError("privacy names neither epsilon nor noise_multiplier")
    return calibrate_noise(
        lambda z: _planned(privacy, counts, z), epsilon=privacy.epsilon, delta=delta, adjacency=privacy.adjacency
    )


def _planned(privacy: Privacy | NoPrivacy, counts: Counter[Mechanism], z: float | None) -> Event:
    priced = ((_priced(mechanism, z).event(), count) for mechanism, count in counts.items())
    if isinstance(privacy, Privacy) and privacy.unit == "reward":
        return dearest(event for event, _ in priced)
    return compose(priced)


def _priced(mechanism: Mechanism, z: float | None) -> Mechanism:
    if isinstance(mechanism, PrivateSum) and z is not None:
        return dataclasses.replace(mechanism, noise_multiplier=z)
    return mechanism
