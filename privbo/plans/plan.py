"""The plan of a run: its noise, its event and its price, before any data is touched.

``price_plan`` turns what is asked (``Privacy``) and the run's requests into a ``Plan``. All of it is
arithmetic on public quantities.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from accountant.calibrate import noise_multiplier as calibrate_noise
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency, Event, compose, from_dict, most_expensive, of_one_run, to_dict
from accountant.ledger import Budget
from accountant.tight.numerical import epsilon_table
from accountant.wording import counted, multipliers_text, upper_text
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.plans.cost import Exposure, exposures
from privbo.plans.privacy import SITES_ARE_SEEN, NoiseSourceName, NoPrivacy, Privacy, delta_warning, safe_delta
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request, UnitName
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import in_two_lines

# Mechanisms for a run's multiplier of 1 (what they have is their scale), how many numbers each releases, how often.
_Releases: TypeAlias = Counter[tuple[Mechanism, int]]


def _asked(privacy: Privacy | NoPrivacy, requests: Iterable[Request]) -> _Releases:
    found = Counter((privacy.mechanism(request, 1.0), request.dim * request.n_blocks) for request in requests)
    if privacy.sampling != "random-allocation":
        return found
    n_releases, allotted = found.total(), _Releases()  # one draw serves them all
    for (mechanism, numbers), count in found.items():
        if isinstance(mechanism, PrivateSum):
            sample = dataclasses.replace(mechanism.sample, n_releases=n_releases)
            allotted[dataclasses.replace(mechanism, sample=sample), numbers] = count
    return allotted


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignalToNoise:
    """The most that releases of one kind can say.

    Attributes:
        count: Number of releases in the plan.
        largest_sum: Norm of what is released where every client answers alike, as loud as it may, without its noise.
        noise: Typical norm of its noise: the root of its mean square.
    """

    count: int
    largest_sum: float
    noise: float

    @property
    def text(self) -> str:
        """The two norms side by side."""
        what = "a release" if self.count == 1 else f"each of {self.count} releases"
        beside = f"noise of typical norm {self.noise:.3g}"
        return f"{what}: largest possible sum of norm {self.largest_sum:.3g} versus {beside}"


def _at(releases: _Releases, z: float | None) -> list[tuple[Mechanism, int, int]]:
    """Releases whose mechanisms were made for a multiplier of 1, at a run's: mechanism, numbers, count."""
    return [
        (
            dataclasses.replace(made, noise_multiplier=z * made.noise_multiplier)
            if isinstance(made, PrivateSum) and z is not None
            else made,
            numbers,
            count,
        )
        for (made, numbers), count in releases.items()
    ]


def _event(privacy: Privacy | NoPrivacy, made: Iterable[tuple[Mechanism, int, int]]) -> Event:
    """The event of all releases together."""
    each = [(mechanism.event(), count) for mechanism, _, count in made]
    if privacy.unit == "reward":
        return most_expensive(event for event, _ in each)
    whole = of_one_run(each)
    if privacy.sampling == "random-allocation" and len(whole.parts) > 1:
        multipliers = ", ".join(sorted({f"{part.noise_multiplier:.4g}" for part, _ in whole.parts}))
        raise ConfigurationError(
            "sampling='random-allocation' has a price where all releases have one noise multiplier; this plan's differ "
            f"({multipliers}); use sampling='poisson', or releases of equal noise"
        )
    return whole


@dataclass(frozen=True, kw_only=True)
class FinalVote:
    """The release at the end of a run that chooses a common setting: a vote over public candidates.

    Attributes:
        event: Its event.
        candidates: Most candidates.
        noise_stddev: Of the noise in every candidate's total, in ballots: one client's ballot has norm at most 1.
    """

    event: Event
    candidates: int
    noise_stddev: float


_AGREED = 9  # significant digits of a noise multiplier on which all guardians agree


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run: its noise, event and price, fixed and recorded before any data is touched.

    Attributes:
        privacy: What was asked for.
        noise_multiplier: Nominal z, that of a release of noise scale 1, which no release of the plan may have; its
            events have their own. None for a non-private run or an empty plan.
        delta: The delta that was asked for.
        n_clients: N.
        n_records: Records of all sites together, where one record is the unit; None else.
        event: The planned event of the whole run.
        releases: Number of releases in the plan.
        budget: The bound that the run's own ledger refuses to pass; None if there is none.
        largest_over_noise: Norm of the largest sums that clients could send over the typical norm of
            their noise, in squares over all releases; of the releases that were given up where there are none. None
            without noise.
        final: The vote at the end, which is one of the releases; None where the run ends without one.
        mechanisms: The different mechanisms of the plan with their counts; empty for a plan read from disk.
        signal_to_noise: The most that its releases can say, by kind: equal to three digits is one. Empty for a plan
            read from disk.
        remedy: What would give a plan of nothing a release, in words; None where it was not looked for.
        calls_per_client: Most calls of the objective by one client; None where the algorithm does not say, and for a
            plan read from disk.
        training: The part of the event of models trained on records, at one site; None without any.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=40)
        >>> plan = pb.plan(problem, pb.DPFTSDE(), privacy=pb.Privacy(noise_multiplier=4.0), rounds=20)
        >>> plan.releases, round(min(plan.epsilon(1e-5).values()), 2)
        (20, 4.98)
    """

    privacy: Privacy | NoPrivacy
    noise_multiplier: float | None
    delta: float
    n_clients: int
    event: Event
    releases: int
    budget: Budget | None = None
    largest_over_noise: float | None = None
    final: FinalVote | None = None
    mechanisms: Mapping[Mechanism, int] = field(default_factory=dict, repr=False, compare=False)
    signal_to_noise: tuple[SignalToNoise, ...] = field(default=(), repr=False, compare=False)
    n_records: int | None = None
    training: Event | None = None
    remedy: str | None = field(default=None, repr=False, compare=False)
    calls_per_client: int | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        delta = self.safe_delta
        epsilon = upper_text(min(self.epsilon(delta).values()))
        return in_two_lines(
            "Plan",
            "",
            f"{counted(self.releases, 'release')} of {counted(self.n_clients, 'client')}, "
            f"noise multiplier {multipliers_text(self.event)}" + (f", {self.calls_text}" if self.calls_text else ""),
            f"epsilon {epsilon} at delta {upper_text(delta)} (noise: {self.noise_source})"
            + f" for {self.unit_text}" * (self.unit == "record")
            + (f"; {self.delta_warning}" if self.delta_warning else "")
            + (f"; {self.outlook}" if self.outlook and self.releases == (self.final is not None) else ""),
        )

    @property
    def unit(self) -> UnitName:
        """The unit of privacy; a non-private run has that of its clients."""
        return self.privacy.unit

    @property
    def unit_text(self) -> str:
        """Whom the run hides, and whom it does not, in words; and what of its price is for training."""
        trained = "" if self.training is None else f"; the price includes every site's trainings: {self.training.text}"
        seen = f"; {SITES_ARE_SEEN}" * (self.unit == "record" and self.releases > 0)
        return self.privacy.hidden.text + seen + trained

    @property
    def n_units(self) -> int:
        """Number of those of whom one is hidden: clients, or records of all sites together."""
        return self.n_clients if self.n_records is None else self.n_records

    @property
    def adjacency(self) -> Adjacency:
        """Adjacency of every event; weights and N are public constants, so leaving is zeroing."""
        return self.privacy.adjacency

    @property
    def noise_source(self) -> NoiseSourceName:
        """Source of the noise."""
        return self.privacy.noise_source

    @property
    def has_secret_noise(self) -> bool:
        """Whether the noise is secret, as a guarantee needs; that of a simulation is seeded."""
        return self.noise_source in {"secure", "exact"}

    @property
    def sending_share(self) -> float:
        """Share of the clients that send in a round on average; which and how many do is secret."""
        return self.privacy.sending_share(self.n_clients, self.releases)

    @property
    def delta_warning(self) -> str:
        """What is wrong with a delta above 1/N that was asked for; empty of a smaller one."""
        return delta_warning(self.delta, self.n_units)

    @property
    def safe_delta(self) -> float:
        """The delta that headlines name: the one asked for, and at most min(1e-5, 1/(10 N))."""
        return safe_delta(self.delta, self.n_units)

    @property
    def schedule(self) -> tuple[tuple[Event, int], ...]:
        """Everything that will be charged, as events with their counts; empty for a plan read from disk."""
        counts: Counter[Event] = Counter()
        for mechanism, count in self.mechanisms.items():
            counts[mechanism.event()] += count
        return of_one_run(counts.items()).parts if self.is_allocated else tuple(counts.items())

    @property
    def is_allocated(self) -> bool:
        """Whether one event covers all releases together."""
        return self.privacy.sampling == "random-allocation"

    def mechanism(self, request: Request) -> Mechanism:
        """Give the mechanism that answers ``request`` under this plan."""
        return self.privacy.mechanism(request, self.noise_multiplier, n_releases=self.releases)

    def epsilon(self, delta: float | None = None) -> dict[str, float]:
        """Give the planned epsilon by accountant, at the run's delta unless another is named."""
        return epsilon_table(self.event, self.delta if delta is None else delta, adjacency=self.adjacency)

    def exposures(self, delta: float) -> tuple[Exposure, ...]:
        """Give the planned cost against observers who know some of the guardians' noises; empty without guardians."""
        return exposures(self.privacy, self.event, delta)

    @property
    def outlook(self) -> str | None:
        """One sentence on the most that sharing can bring, from public numbers; None without noise or sharing."""
        nothing = f"{'before the vote ' if self.releases else ''}nothing is released or charged"
        if self.largest_over_noise is None:
            return f"{nothing}: no later round would use a release; {self.remedy}" if self.remedy else None
        found = f"{self.largest_over_noise:.2g} times the norm of its noise"
        by_site = self.unit == "record"
        if self.releases == (self.final is not None):
            why = f"even if all clients answered alike, what they share, {found} in total, would"
            if by_site:
                why = "with as much noise as sites of so few records need, what they share would"
            remedy = f"; {self.remedy}" if self.remedy else ""
            return f"{nothing}: {why} change too little{remedy}"
        if by_site:  # what sites share, releases of other points each, beside the noise of all of it
            ratio = self.largest_over_noise / math.sqrt(self.releases)
            return f"at best, what a site shares has {ratio:.2g} times the norm of its noise"
        return f"at best, with all clients answering alike, what they share has {found}"

    @property
    def calls(self) -> int | None:
        """Most calls of the objective by all clients together; None where the algorithm does not say."""
        return None if self.calls_per_client is None else self.n_clients * self.calls_per_client

    @property
    def calls_text(self) -> str | None:
        """Say how often the objective is called at most; None where the algorithm does not say."""
        if self.calls is None:
            return None
        return f"at most {self.calls_per_client:,} calls of the objective per client, {self.calls:,} in all"

    def vote_text(self, delta: float) -> str | None:
        """Say what the vote at the end is and costs; None where the run ends without one."""
        if self.final is None:
            return None
        alone = min(epsilon_table(self.final.event, delta, adjacency=self.adjacency).values())
        return (
            f"over at most {self.final.candidates} public candidates; alone it would cost epsilon {upper_text(alone)} "
            f"at delta {upper_text(delta)}; noise of {self.final.noise_stddev:.3g} ballots in every total of "
            f"{self.n_clients}"
        )

    def to_dict(self) -> JsonObject:
        """Give the plan as JSON, with the privacy that was asked for."""
        final = {} if self.final is None else {"final": vars(self.final) | {"event": to_dict(self.final.event)}}
        training: JsonObject = {} if self.training is None else {"training": to_dict(self.training)}
        return {
            **final,
            **training,
            "releases": self.releases,
            "noise_multiplier": self.noise_multiplier,
            "noise_source": self.noise_source,
            "sending_share": self.sending_share,
            "adjacency": self.adjacency.value,
            "delta": self.delta,
            "event": to_dict(self.event),
            "largest_over_noise": self.largest_over_noise,
        }

    @staticmethod
    def from_dict(
        content: Mapping[str, Any], privacy: Privacy | NoPrivacy, n_clients: int, n_records: int | None = None
    ) -> Plan:
        """Read the plan of a run as ``to_dict`` wrote it."""
        final, training = content.get("final"), content.get("training")
        stored = ("noise_multiplier", "delta", "releases", "largest_over_noise")
        return Plan(
            privacy=privacy,
            n_clients=n_clients,
            n_records=n_records,
            event=from_dict(content["event"]),
            budget=_budget(privacy, content["delta"]),
            final=None if final is None else FinalVote(**final | {"event": from_dict(final["event"])}),
            training=None if training is None else from_dict(training),
            **{name: content[name] for name in stored},
        )


def price_plan(
    privacy: Privacy | NoPrivacy,
    requests: Iterable[Request],
    *,
    n_clients: int,
    n_records: int | None = None,
    final: Request | None = None,
) -> Plan:
    """Price a plan: calibrate the noise to the target, or take the multiplier as given.

    Args:
        privacy: What is asked for.
        requests: Every request of the run but the vote; weights are reduced to their geometry one by one.
        n_clients: N.
        n_records: Records of all sites together, where one record is the unit.
        final: The vote at the end.

    Raises:
        ConfigurationError: If a request can't be answered.
        CalibrationError: If no noise meets the target.
        BudgetExceeded: If the plan costs more than its budget.
    """
    delta = privacy.resolved_delta(n_clients if n_records is None else n_records)
    if final is not None and privacy.sampling == "random-allocation":
        raise ConfigurationError(
            "final='common' with sampling='random-allocation': the vote has a noise of its own, and a random "
            "allocation one for all releases; use sampling='poisson', or drop final"
        )
    asked, vote = _asked(privacy, requests), _asked(privacy, () if final is None else (final,))
    z = _multiplier(privacy, asked + vote, delta)
    sums, ballots = _at(asked, z), _at(vote, z)
    square = 0.0  # of the largest norms over the noise's typical norms: releases of one vector could be averaged
    mechanisms, kinds = Counter[Mechanism](), dict[tuple[str, str], SignalToNoise]()
    for place, (made, numbers, count) in enumerate(sums + ballots):
        mechanisms[made] += count
        if isinstance(made, PrivateSum):
            largest, stddev = made.largest_norm(), made.noise_stddev()
            square += count * (largest / stddev) ** 2 / numbers if place < len(sums) else 0.0
            noise = stddev * math.sqrt(numbers)
            kind = (f"{largest:.3g}", f"{noise:.3g}")
            before = kinds[kind].count if kind in kinds else 0
            kinds[kind] = SignalToNoise(count=before + count, largest_sum=largest, noise=noise)
    votes = [
        FinalVote(event=made.event(), candidates=candidates, noise_stddev=n_clients * made.noise_stddev())
        for made, candidates, _ in ballots
    ]
    trained = [(made.training, n) for made, n in mechanisms.items() if isinstance(made, PrivateSum) and made.training]
    plan = Plan(
        privacy=privacy,
        noise_multiplier=z,
        delta=delta,
        n_clients=n_clients,
        n_records=n_records,
        event=_event(privacy, sums + ballots),
        releases=mechanisms.total(),
        budget=_budget(privacy, delta),
        final=votes[0] if votes else None,
        largest_over_noise=math.sqrt(square) if square else None,
        mechanisms=mechanisms,
        signal_to_noise=tuple(kinds.values()),
        training=compose(trained) if trained else None,
    )
    if privacy.budget is not None and (cost := min(plan.epsilon().values())) > privacy.budget:
        raise BudgetExceeded(
            f"the plan of {counted(plan.releases, 'release')} costs epsilon {upper_text(cost, 6)} at delta "
            f"{upper_text(delta)}, over the budget {privacy.budget:.6g}; plan fewer rounds, more noise or a "
            "larger budget"
        )
    return plan


def _budget(privacy: Privacy | NoPrivacy, delta: float) -> Budget | None:
    """The bound of the run's own ledger: a target is its own budget."""
    bound = privacy.budget if privacy.epsilon is None else privacy.epsilon
    return None if bound is None else Budget(epsilon=bound, delta=delta)


def _multiplier(privacy: Privacy | NoPrivacy, releases: _Releases, delta: float) -> float | None:
    """The run's noise multiplier; None where nothing is released or nothing hides it."""
    if not releases or privacy.epsilon is None:
        return privacy.noise_multiplier if releases else None
    z = calibrate_noise(
        lambda z: _event(privacy, _at(releases, z)), epsilon=privacy.epsilon, delta=delta, adjacency=privacy.adjacency
    )
    # Every guardian computes z for itself, and all must mean the same plan: last digits are the machine's arithmetic.
    return z if privacy.trust == "server" else float(upper_text(z, _AGREED))
