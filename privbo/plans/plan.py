"""What the privacy asked for means for a given plan: its noise, its event and its price.

``resolve`` turns ``Privacy`` into ``Terms``. All of it is arithmetic on public quantities;
no data is touched.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.disjoint import dearest
from accountant.epsilon import epsilon_table
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency, Event, compose
from privbo.door.mechanism import Mechanism, PrivateSum, mechanism_for
from privbo.plans.privacy import NoPrivacy, Privacy, default_delta
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request, UnitName


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
