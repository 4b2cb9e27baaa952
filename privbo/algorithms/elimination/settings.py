"""Settings of the eliminations: what they have in common, and what each of them adds; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Strict

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.sharing import Centre, Outside, RewardRange, Sharing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Setting
from privbo.protocol.settings import Count, Positive, settings

# Silent rounds of the optimistic stage; a killed run repeats at most one of them.
SEGMENTS = 8

# c of rewards in [0, 1]: b = sqrt(L / 2n).
HOEFFDING = 2.0**-0.5

Fraction: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Bounds: TypeAlias = Annotated[tuple[Finite, Finite], Strict(strict=False)]
Expand: TypeAlias = Literal["ktau", "tau", "none"]
Stage2: TypeAlias = Literal["printed", "in-phase", "warm", "optimistic"]
AloneTail: TypeAlias = Literal["commit", "printed"]


@settings(table="algorithm")
class TreeSettings:
    """Horizon, smoothness, tree and declared rewards of an elimination."""

    horizon: Count = 5000
    nu1: Positive = 1.0
    rho: Fraction = 0.5
    n_children: Annotated[int, Field(ge=2, le=3)] = 2
    reward_range: Bounds = (0.0, 1.0)
    outside: Outside = "clip"
    evaluations: Count | None = None

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not low < high:
            raise ConfigurationError(f"reward_range={self.reward_range!r} must be increasing; give (lowest, highest)")

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what these settings give up; None if nothing."""
        return None

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell rests on fixed clipping norms."""
        return False

    @property
    def sharing(self) -> Sharing:
        """Form in which mean rewards leave a client."""
        return Sharing(allowed=self.allowed)

    @property
    def allowed(self) -> RewardRange:
        """The declared range of rewards."""
        low, high = self.reward_range
        return RewardRange(low=low, high=high, outside=self.outside)

    @property
    def budget(self) -> int:
        """Most pulls of one client over the whole run: the horizon, or ``evaluations`` where that is less."""
        return self.horizon if self.evaluations is None else min(self.horizon, self.evaluations)

    def variation(self, depth: int) -> float:
        """Largest variation inside a cell of a depth: ``nu1 rho^h``."""
        return float(self.nu1 * self.rho**depth)

    def partition(self, setting: Setting) -> Partition:
        """The tree over a run's space.

        Raises:
            ConfigurationError: If the space has constraints, which no box keeps.
        """
        if setting.space.constraints:
            raise ConfigurationError(
                f"constraints {list(setting.space.constraints)}: an elimination halves boxes and knows none; use "
                "shared-prior or dp-fts-de, or narrow the parameters' bounds"
            )
        return Partition(n_dims=setting.space.n_dims, n_children=self.n_children)


@settings(table="algorithm")
class PhasedSettings(TreeSettings):
    """An elimination whose nodes have thresholds tau_h."""

    c: Positive = 0.1
    c1: Positive = 1.0

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii for M clients; delta_b = 1/M."""
        return Confidence(horizon=self.budget, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=self.c, c1=self.c1)


@settings(table="algorithm")
class SharingSettings(TreeSettings):
    """An elimination whose clients send mean rewards."""

    clip: Positive | None = None
    widen: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    centre: Centre = "middle"

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what a heuristic form gives up; None for the certified one."""
        return self.sharing.caveat(None)

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell is covered (if c covers the reward noise)."""
        return self.caveat is None

    @property
    def sharing(self) -> Sharing:
        """Form in which mean rewards leave a client."""
        return Sharing(allowed=self.allowed, clip=self.clip, widen=self.widen, centre=self.centre)


@settings(table="algorithm")
class CappedSettings(PhasedSettings, SharingSettings):
    """A phased elimination whose active set may be capped."""

    cap: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None and self.cap < self.n_children:
            raise ConfigurationError(f"cap={self.cap!r} must be at least n_children={self.n_children}, or None")

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what a heuristic form gives up; None for the certified one."""
        return self.sharing.caveat(self.cap)


@settings(table="algorithm")
class FedPNESettings(CappedSettings):
    """Settings of Fed-PNE; ``FedPNE`` says what each of them means."""

    type: Literal["fed-pne"] = field(default="fed-pne", repr=False)
    expand: Expand = "ktau"
    tail: Literal["commit", "printed", "stop"] = "commit"
    releases: Count | None = None


@settings(table="algorithm")
class PFPNESettings(CappedSettings):
    """Settings of PF-PNE; ``PFPNE`` says what each of them means."""

    type: Literal["pf-pne"] = field(default="pf-pne", repr=False)
    gap: Positive = 0.01
    stage2: Literal["printed", "in-phase", "warm", "optimistic"] = "optimistic"
    tail: AloneTail = "commit"

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what a heuristic form gives up; None for the certified one."""
        advice = "The shared stage only advises: pulls may be lost, no optimum."
        loss = advice if self.stage2 == "optimistic" else "An optimum may be lost with a probability nothing bounds."
        return self.sharing.caveat(self.cap, loss)

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell rests on the shared stage; the optimistic stage drops nothing."""
        return self.caveat is None and self.stage2 != "optimistic"

    @property
    def shared_depths(self) -> int:
        """H0, number of phases of the shared stage, at least 1."""
        return max(1, math.ceil(math.log(self.gap / self.nu1) / math.log(self.rho)))


@settings(table="algorithm")
class ParallelSettings(SharingSettings):
    """Settings of the parallel X-armed bandit; ``ParallelXArmed`` says what each of them means."""

    type: Literal["parallel"] = field(default="parallel", repr=False)
    horizon: Count = 10_000
    nu1: Positive = 1.37
    rho: Fraction = 2.0**-0.5
    delta_b: Fraction | None = None

    def confidence(self, n_clients: int) -> Confidence:
        """Radii of a player's own means for rewards in [0, 1] (Hoeffding); the margin between nodes has its own."""
        return Confidence(horizon=self.budget, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=HOEFFDING, c1=1.0)

    def pulls_per_player(self, depth: int, n_nodes: int, n_players: int) -> int:
        """T_h, so that every mean is within ``nu1 rho^h`` of its node with the probability the run needs."""
        delta_b = 1.0 / self.budget if self.delta_b is None else self.delta_b
        log = math.log(math.pi**2 * (depth + 1) ** 2 * n_nodes / (3 * delta_b))
        return max(1, math.ceil(log / (2 * self.variation(depth) ** 2 * n_players)))


@settings(table="algorithm")
class PersonalSettings(PhasedSettings):
    """Settings of PE, clients that eliminate alone."""

    type: Literal["pe"] = field(default="pe", repr=False)
    stage2: Literal["printed", "in-phase", "optimistic"] = "optimistic"
    tail: AloneTail = "commit"
