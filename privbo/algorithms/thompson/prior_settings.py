"""Settings of the shared prior, and everything that both sides compute from them; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from privbo.algorithms.thompson.budget import within
from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.inducing import InducingFeatures, draw_inducing
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request, Setting
from privbo.protocol.settings import Count, Positive, Sequence, settings

# Objectives are deterministic unless their values say otherwise: a model that takes a hundredth of the variance
# for noise stops refining its best point.
QUIET = Prior(median=1e-4, spread=3.0, low=1e-6, high=1.0)
_EXPLORE = 2
_KEPT = 200  # points of a long history: no more regret than with all of them (docs/scale.md)
Whole: TypeAlias = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """One release of a plan.

    Attributes:
        round: The round that ends with it.
        share: Its share of the run's squared budget (Gaussian differential privacy adds in squares), in (0, 1].
    """

    round: int
    share: float

    @property
    def noise_scale(self) -> float:
        """Its noise multiplier over that of a run's only release."""
        return 1.0 / math.sqrt(self.share)


@settings(table="algorithm")
class SharedPriorSettings:
    """Settings of the shared prior; ``SharedPrior`` says what each of them means."""

    takes_points: ClassVar[bool] = True  # clients learn from points that they bring along
    type: Literal["shared-prior"] = field(default="shared-prior", repr=False)
    schedule: Sequence[Whole] = (0, 2, 5)
    shares: Sequence[Positive] = (5.0, 2.0, 1.0)
    least_signal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    n_init: Count = 2
    explore: Whole | None = None
    n_features: Count = 64
    clipping_norm: Positive = 1.0
    lengthscale: Positive | None = None
    noise: Positive = 0.1
    kernel: Kernel = "matern52"
    own: OwnModel = field(default_factory=lambda: OwnModel(noise=QUIET, max_points=_KEPT))
    acquisition: Literal["log-ei", "thompson"] = "log-ei"
    repeats: Literal["avoid", "query"] = "avoid"
    failures: Literal["ignored", "worst"] = "worst"
    evaluations: Count | None = None

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.schedule, self.schedule[1:], strict=False)):
            raise ConfigurationError(f"schedule={list(self.schedule)} must rise; name every round once, in order")
        if len(self.shares) < len(self.schedule):
            raise ConfigurationError(
                f"shares={list(self.shares)} must name a share for each of the {len(self.schedule)} releases"
            )
        if self.own.draw != "paths":
            raise ConfigurationError(f"own.draw={self.own.draw!r} belongs to DPFTSDE; use 'paths' here")

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts with as many rounds as ``evaluations`` hold."""
        return within(setting, evaluations=self.evaluations, n_init=self.n_init)

    def signal(self, setting: Setting) -> float:
        """Give q = (largest norm of a mean of the clients' vectors / expected norm of one release's noise)^2.

        The release is a run's only one, so this is the most that sharing can stand above its noise. Infinite
        without noise, and where nobody said what the noise is.
        """
        if setting.single_release_noise is None:
            return math.inf
        noise = setting.single_release_noise()
        return math.inf if noise == 0.0 else (setting.n_clients / noise) ** 2 / self.n_features

    def releases(self, setting: Setting) -> tuple[PlannedRelease, ...]:
        """The releases of a run: those that a later round uses, and none where they would drown in their noise."""
        return () if self.signal(setting) < self.least_signal else self.usable(setting)

    def usable(self, setting: Setting) -> tuple[PlannedRelease, ...]:
        """The releases that a later round uses, whatever their noise."""
        used = [round_ for round_ in self.schedule if round_ < setting.rounds]
        shares = self.shares[: len(used)]
        return tuple(
            PlannedRelease(round=round_, share=share / sum(shares)) for round_, share in zip(used, shares, strict=True)
        )

    def pool_weight(self, release: PlannedRelease) -> float:
        """Give a release's weight in the pool: its budget times the root of what its clients had seen."""
        return release.share * math.sqrt(self.n_init + release.round)

    def request(self, release: PlannedRelease, n_clients: int) -> Request:
        """Give what the server asks for: the mean of the clients' clipped vectors."""
        return Request(
            dim=self.n_features,
            clipping_norm=self.clipping_norm,
            weights=np.full((1, n_clients), 1.0 / n_clients),
            noise_scale=release.noise_scale,
        )

    def exploring(self, setting: Setting) -> int:
        """Give the rounds in which clients go on with their exploring start, unless the pool leads by then.

        Two points are too few to fit a model to: alone, two more made later ones better on most problems, and eight
        were too many. A short run spends a quarter of its rounds at most.
        """
        chosen = min(_EXPLORE, setting.rounds // 4) if self.explore is None else self.explore
        return min(setting.rounds, chosen)

    def draw_features(self, setting: Setting) -> InducingFeatures:
        """The feature map of a run."""
        return draw_inducing(setting, n_features=self.n_features, lengthscale=self.lengthscale, kernel=self.kernel)
