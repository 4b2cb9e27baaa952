"""Rules by which participants are drawn, and what they cost; who is drawn is secret.

| sampling | who takes part in a release | event |
|---|---|---|
| ``"poisson"`` | every client by its own coin of rate q | ``PoissonSampledGaussian``, per release |
| ``"fixed-size"`` | a uniform subset of round(q N) clients | ``FixedSizeSampledGaussian``, per release |
| ``"truncated-poisson"`` | as Poisson; of more than B a uniform B | ``TruncatedPoissonSampledGaussian``, per release |
| ``"random-allocation"`` | every client in exactly k of a run's T | ``RandomAllocationGaussian``, for all T together |

Draws never depend on what a client answers. Under random allocation all of a run's are made before its first release
and kept; its T releases need one noise multiplier and nothing else in common: clipping norms,
weights and dimensions may differ and depend on earlier releases.

Formal guarantees of a run's secret allocation; its keeper's ``keep`` is durable on return and never replaces anything:

| the process dies | kept | charged | a resumed run |
|---|---|---|---|
| before the plan is reserved | nothing | nothing | reserves, then draws |
| before ``keep`` returns | nothing, or all of it | the whole plan | takes what is kept, or draws: nothing had left |
| before the first release's charge | the allocation | the whole plan | takes it |
| at any later time | the allocation | the whole plan | takes it; a round that was stored is not made again |
| the allocation is lost after a charge | nothing | the whole plan | is refused: another draw would not be charged |

So however often a run is killed, all of its releases have one allocation, one place of which serves one round; two
processes that begin a run at once share what the first of them kept. The whole event is charged with the plan, so a run
that ends early is charged for all.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np

from accountant.events import (
    FixedSizeSampledGaussian,
    Gaussian,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
)
from accountant.mechanisms.truncated import shares
from accountant.sensitivity import Sampler
from privbo.door.noise import NoiseSource
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray
from privbo.protocol.settings import require_one_of

Sampling: TypeAlias = Literal["poisson", "fixed-size", "truncated-poisson", "random-allocation"]
_DRAWS_AT_ONCE = 2**22
SampledGaussian: TypeAlias = (
    Gaussian
    | PoissonSampledGaussian
    | FixedSizeSampledGaussian
    | TruncatedPoissonSampledGaussian
    | RandomAllocationGaussian
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A rule and its numbers, all public.

    Attributes:
        n_clients: N.
        sampling: The rule's name.
        sample_rate: q in (0, 1]; stays 1 under random allocation.
        max_cohort: B, of ``"truncated-poisson"``.
        participations: k, of ``"random-allocation"``.
        n_releases: T, of ``"random-allocation"``; None as long as the plan is not counted.

    Raises:
        ConfigurationError: If a number is out of range, missing, or another rule's.

    Example:
        >>> Sample(n_clients=40, sampling="random-allocation", participations=5, n_releases=20).rate
        0.25
    """

    n_clients: int
    sampling: Sampling = "poisson"
    sample_rate: float = 1.0
    max_cohort: int | None = None
    participations: int | None = None
    n_releases: int | None = None

    def __post_init__(self) -> None:
        require_sampling(self.sampling, self.sample_rate, self.max_cohort, self.participations)
        if self.sampling == "fixed-size" and self.size < 1:
            raise ConfigurationError(
                f"sample_rate={self.sample_rate!r} of {self.n_clients} clients rounds to a sample "
                "of none; raise the rate or use sampling='poisson'"
            )
        if self.participations is not None and self.participations > (self.n_releases or self.participations):
            raise ConfigurationError(
                f"participations={self.participations!r}, and the plan has {self.n_releases} releases; lower it, or "
                "plan more rounds"
            )

    @property
    def size(self) -> int:
        """Clients per release under fixed-size sampling."""
        return round(self.sample_rate * self.n_clients)

    @property
    def is_allocation(self) -> bool:
        """Tell whether all releases of a run are drawn, and charged, together."""
        return self.sampling == "random-allocation"

    @property
    def everyone(self) -> bool:
        """Tell whether every client takes part in every release, and nothing is drawn."""
        if self.sampling == "fixed-size":
            return self.size == self.n_clients
        within = self.max_cohort is None or self.max_cohort >= self.n_clients
        return self.sample_rate == 1.0 and within and not self.is_allocation

    @property
    def rate(self) -> float:
        """Chance of one given client to be in one given release, which its sums are divided by."""
        event = self.event(1.0)
        if isinstance(event, TruncatedPoissonSampledGaussian):
            return shares(event).least_rate
        return 1.0 if isinstance(event, Gaussian) else event.sample_rate

    @property
    def sampler(self) -> Sampler:
        """The sampler by which the sensitivity goes; whether a cut moves another client is the event's affair."""
        if self.everyone:
            return Sampler.EVERYONE
        return Sampler.FIXED_SIZE if self.sampling == "fixed-size" else Sampler.POISSON

    def event(self, noise_multiplier: float) -> SampledGaussian:
        """Give the event that covers a release; under random allocation it covers all of a run's."""
        if self.everyone:
            return Gaussian(noise_multiplier=noise_multiplier)
        if self.sampling == "fixed-size":
            return FixedSizeSampledGaussian(
                n_clients=self.n_clients, sample_size=self.size, noise_multiplier=noise_multiplier
            )
        if self.max_cohort is not None:
            return TruncatedPoissonSampledGaussian(
                n_clients=self.n_clients,
                sample_rate=self.sample_rate,
                batch_size=self.max_cohort,
                noise_multiplier=noise_multiplier,
            )
        if self.participations is None:
            return PoissonSampledGaussian(sample_rate=self.sample_rate, noise_multiplier=noise_multiplier)
        if self.n_releases is None:
            raise ConfigurationError(
                "sampling='random-allocation' is a whole run's: one release of it alone has no rate and no price; plan "
                "the run, or use sampling='poisson'"
            )
        return RandomAllocationGaussian(
            n_rounds=self.n_releases, participations=self.participations, noise_multiplier=noise_multiplier
        )

    def draw(self, n_trials: int, noise: NoiseSource) -> BoolArray:
        """Draw the participants of independent releases, ``(n_trials, n_clients)``; secret.

        Raises:
            ConfigurationError: Under random allocation, whose releases are not independent.
        """
        shape = (n_trials, self.n_clients)
        if self.is_allocation:
            raise ConfigurationError(
                "a random allocation is drawn once for a whole run, not release by release; audit the run's plan under "
                "sampling='poisson' instead"
            )
        if self.sampling == "fixed-size":
            return noise.subsets(shape, self.size)
        joined = noise.coins(shape, self.sample_rate)
        for row in joined if self.max_cohort is not None else ():
            members = np.flatnonzero(row)
            if len(members) > (largest := self.max_cohort or 0):  # a uniform subset of that many stays
                row[members[~noise.subsets((1, len(members)), largest)[0]]] = False
        return joined

    def allocate(self, noise: NoiseSource) -> Allocation:
        """Draw the releases of every client for a whole run; secret."""
        allocation = cast("RandomAllocationGaussian", self.event(1.0))
        table = np.empty((self.n_clients, allocation.n_rounds), dtype=bool)
        step = max(1, _DRAWS_AT_ONCE // allocation.n_rounds)
        for start in range(0, self.n_clients, step):
            rows = table[start : start + step]
            rows[:] = noise.subsets((len(rows), allocation.n_rounds), allocation.participations)
        return Allocation(table, secrets.token_hex(32).encode())


def sample_of(settings: object, n_clients: int, n_releases: int | None = None) -> Sample:
    """Describe the sample of settings that name a rule and its numbers as ``Privacy`` does, in a plan's releases."""
    named = {name: getattr(settings, name) for name in ("sampling", "sample_rate", "max_cohort", "participations")}
    allotted = n_releases if named["sampling"] == "random-allocation" else None
    return Sample(n_clients=n_clients, n_releases=allotted, **named)


def require_sampling(sampling: str, sample_rate: float, max_cohort: int | None, participations: int | None) -> None:
    """Refuse numbers that a rule lacks, or that are another rule's.

    Raises:
        ConfigurationError: Naming the setting.
    """
    require_one_of(Sampling, sampling=sampling)
    if not 0 < sample_rate <= 1:
        raise ConfigurationError(f"sample_rate={sample_rate!r} must lie in (0, 1]")
    for name, value, rule, meaning in (
        ("max_cohort", max_cohort, "truncated-poisson", "the most clients of one release"),
        ("participations", participations, "random-allocation", "the releases of every client"),
    ):
        if sampling != rule and value is not None:
            raise ConfigurationError(f"{name}={value!r} belongs to sampling={rule!r}, not {sampling!r}; leave it out")
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
        if sampling == rule and not whole:
            raise ConfigurationError(f"{name}={value!r} must be an integer >= 1 with sampling={sampling!r}: {meaning}")
    if sampling == "random-allocation" and sample_rate != 1.0:
        raise ConfigurationError(
            f"sample_rate={sample_rate!r} with sampling='random-allocation': participations out of the plan's releases "
            "is the rate; leave sample_rate out"
        )


class Allocation(NamedTuple):
    """SECRET: who takes part in which release, ``(n_clients, n_releases)``, and a salt that hides it in its digest."""

    table: BoolArray
    salt: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of both, which charges bind; public."""
        return hashlib.sha256(self.salt + np.packbits(self.table).tobytes()).hexdigest()


class Keeper:
    """Keeps one run's allocation: in memory, for as long as the process lives."""

    _allocation: Allocation | None = None

    def kept(self) -> Allocation | None:
        """SECRET: the allocation; None if none is kept."""
        return self._allocation

    def keep(self, allocation: Allocation) -> None:
        """Keep an allocation, as durable on return as it ever is; one that is kept already stays."""
        self._allocation = self._allocation or allocation
