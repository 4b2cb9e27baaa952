"""Settings of DP-FTS-DE and of the shared prior, and what both sides compute from them; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.algorithms.thompson.exploration import Cut, Exploration, Regions, Weighting
from privbo.algorithms.thompson.features import Form, FourierFeatures, InducingFeatures, Kernel, draw_frequencies
from privbo.algorithms.thompson.own_model import OwnModel, Prior, regularisation
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import ReleaseWhen, spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, FloatArray, Request, Setting
from privbo.protocol.settings import Count, Positive, Sequence, settings

Start: TypeAlias = Literal["region", "everywhere"]
# Objectives are deterministic unless their values say otherwise: a model that takes a hundredth of the variance
# for noise stops refining its best point.
QUIET = Prior(median=1e-4, spread=3.0, low=1e-6, high=1.0)
# What a surface keeps to itself beside what is common can be little or much of its variance.
BROAD = Prior(median=1.0, spread=1.0, low=0.05, high=20.0)
_EXPLORE = 2
Whole: TypeAlias = Annotated[int, Field(ge=0)]


class ModellingSettings:
    """What the settings of both algorithms, whose clients model their objectives, have in common."""

    takes_points: ClassVar[bool] = True  # clients learn from points that they bring along
    caveat: ClassVar[str | None] = None  # every form of them does what its settings say
    is_certified: ClassVar[bool] = False  # no statement about the optimum rests on the clipping norm
    n_init: int
    evaluations: int | None

    def calls_per_client(self, setting: Setting) -> int:
        """Give the most calls of the objective by one client: the initial points, and one a round."""
        return self.n_init + self.within(setting).rounds

    def within(self, setting: Setting) -> Setting:
        """Give a run's facts with as many rounds as ``evaluations`` hold after the initial points, one point a round.

        Raises:
            ConfigurationError: If they do not hold one round.
        """
        if self.evaluations is None:
            return setting
        if self.evaluations <= self.n_init:
            raise ConfigurationError(
                f"evaluations={self.evaluations} do not hold n_init={self.n_init} initial points and one round; "
                f"give at least {self.n_init + 1}, or fewer initial points"
            )
        return setting.at_most(self.evaluations - self.n_init)


@settings(table="algorithm")
class ThompsonSettings(ModellingSettings):
    """Settings of federated Thompson sampling; ``DPFTSDE`` says what each of them means."""

    type: Literal["dp-fts-de"] = field(default="dp-fts-de", repr=False)
    n_regions: Count = 4
    cuts: Sequence[Cut] = ()
    start: Start = "region"
    n_features: Count = 100
    clipping_norm: Positive | None = None
    n_init: Count = 10
    exploration: Exploration = field(default_factory=lambda: Exploration(power=1.0))
    weighting: Weighting = field(default_factory=Weighting)
    lengthscale: Positive = 0.01
    noise: Positive | Literal["theory"] = 1e-6
    kernel: Kernel = "se"
    features: Form = "phase"
    own: OwnModel = field(default_factory=lambda: OwnModel(kernel="se"))
    values: Literal["standardised", "raw"] = "standardised"
    n_candidates: Count = 4096
    evaluations: Count | None = None

    def __post_init__(self) -> None:
        if self.features != "phase" and self.n_features % 2:
            raise ConfigurationError(
                f"n_features={self.n_features} must be even for {self.features} features; use {self.n_features + 1}"
            )
        boxes = math.prod(len(cut.at) + 1 for cut in self.cuts)
        if self.cuts and boxes != self.n_regions:
            raise ConfigurationError(f"n_regions={self.n_regions}, but the cuts make {boxes} boxes; state that number")

    @property
    def bound(self) -> float:
        """S as a number."""
        if self.clipping_norm is not None:
            return float(self.clipping_norm)
        return 1.1 * math.sqrt(self.n_features * self.n_regions)

    def regularisation(self, rounds: int) -> float:
        """Lambda of the shared features as a number."""
        return regularisation(rounds) if self.noise == "theory" else self.noise

    def federates(self, iteration: int) -> bool:
        """Whether any client may act on what is shared in an iteration; iterations count from 1."""
        return self.exploration.own_probability(iteration) < 1.0

    def asks(self, round_: int, rounds: int) -> bool:
        """Whether round ``round_`` of a run of T = ``rounds`` steps ends with a release."""
        return round_ < rounds and self.federates(round_ + 1)

    def draw_features(self, setting: Setting) -> FourierFeatures:
        """The feature map of a run, which all parties derive from the public seed (Rahimi & Recht 2007)."""
        generator = public_stream(setting.public_seed, Stream.FEATURES)
        count = self.n_features if self.features == "phase" else self.n_features // 2
        frequencies = draw_frequencies(generator, count, setting.space.n_embedded, self.kernel) / self.lengthscale
        phases = generator.uniform(0.0, 2.0 * math.pi, count) if self.features == "phase" else None
        return FourierFeatures(frequencies=frequencies, phases=phases)

    def regions(self, setting: Setting) -> Regions:
        """The partition of a run's space.

        Raises:
            ConfigurationError: If there are more regions than clients or the space
                cannot be cut into so many, as one with conditions can't at all.
        """
        if self.n_regions > setting.n_clients:
            raise ConfigurationError(
                f"n_regions={self.n_regions} is more than the {setting.n_clients} clients; use fewer regions"
            )
        if self.n_regions > 1 and not setting.space.is_whole:
            raise ConfigurationError(
                f"n_regions={self.n_regions}: a space with conditions or constraints is not cut into regions; set "
                "n_regions=1"
            )
        return Regions.cut(self.cuts, setting.space) if self.cuts else Regions.of(self.n_regions, setting.space)


def digest_array(digest: str) -> npt.NDArray[np.uint8]:
    """SHA-256 of a feature map as it travels with every broadcast."""
    return np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)


def shared_vectors(broadcast: Broadcast, shape: tuple[int, int]) -> FloatArray | None:
    """The broadcast's vectors, None in a round that carries none.

    Raises:
        ConfigurationError: If they have the wrong shape or are not finite.
    """
    if "vectors" not in broadcast.arrays:
        return None
    vectors = np.asarray(broadcast.arrays["vectors"], dtype=np.float64)
    if vectors.shape != shape or not np.isfinite(vectors).all():
        raise ConfigurationError(
            f"round {broadcast.round}: vectors of shape {vectors.shape} must be finite and of shape {shape}"
        )
    return vectors


@settings(table="algorithm")
class SharedPriorSettings(ModellingSettings):
    """Settings of the shared prior; ``SharedPrior`` says what each of them means."""

    type: Literal["shared-prior"] = field(default="shared-prior", repr=False)
    schedule: Sequence[Whole] = (0, 2, 5)
    shares: Sequence[Positive] = (5.0, 2.0, 1.0)
    release_when: ReleaseWhen = "useful"
    n_init: Count = 2
    explore: Whole | None = None
    n_features: Count = 64
    clipping_norm: Positive = 1.0
    lengthscale: Positive | None = None
    noise: Positive = 0.1
    kernel: Kernel = "matern52"
    own: OwnModel = field(default_factory=lambda: OwnModel(outputscale=BROAD, noise=QUIET))
    acquisition: Literal["log-ei", "thompson"] = "log-ei"
    repeats: Literal["avoid", "query"] = "avoid"
    failures: Literal["ignored", "worst"] = "worst"
    evaluations: Count | None = None

    def least_signal_to_noise(self, setting: Setting) -> float:  # noqa: ARG002  # the same for every run
        """Give the signal-to-noise ratio of what is shared below which a model of it would be one of noise."""
        return 1.0

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.schedule, self.schedule[1:], strict=False)):
            raise ConfigurationError(f"schedule={list(self.schedule)} must rise; name every round once, in order")
        if len(self.shares) < len(self.schedule):
            raise ConfigurationError(
                f"shares={list(self.shares)} must name a share for each of the {len(self.schedule)} releases"
            )
        if self.own.draw != "paths":
            raise ConfigurationError(f"own.draw={self.own.draw!r} belongs to DPFTSDE; use 'paths' here")

    def releases(self, setting: Setting) -> dict[int, float]:
        """The releases of a run: those that a later round uses.

        Returns:
            By the round that ends with a release, its share of the run's squared budget (Gaussian differential privacy
            adds in squares), in (0, 1].
        """
        used = [round_ for round_ in self.schedule if round_ < setting.rounds]
        shares = self.shares[: len(used)]
        return {round_: share / sum(shares) for round_, share in zip(used, shares, strict=True)}

    def pool_weight(self, round_: int, share: float) -> float:
        """Give a release's weight in the pool: its budget times the root of what its clients had seen."""
        return share * math.sqrt(self.n_init + round_)

    def request(self, share: float, n_clients: int) -> Request:
        """Give what the server asks for in a release of this share: the mean of the clients' clipped vectors."""
        return Request(
            dim=self.n_features,
            clipping_norm=self.clipping_norm,
            weights=np.full((1, n_clients), 1.0 / n_clients),
            noise_scale=1.0 / math.sqrt(share),
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
        space = setting.space
        shift = public_stream(setting.public_seed, Stream.FEATURES).random(space.n_dims)
        points = np.asarray(space.embed(spread(space, self.n_features, shift)), dtype=np.float64)
        default = 0.5 * math.pow(space.n_embedded / 2.0, 0.75)
        return InducingFeatures(
            points=np.resize(points, (self.n_features, space.n_embedded)),  # a small space's again from the first
            lengthscale=default if self.lengthscale is None else self.lengthscale,
            kernel=self.kernel,
        )
