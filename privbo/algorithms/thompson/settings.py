"""Settings of DP-FTS-DE, and everything that both sides compute from them; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.algorithms.thompson.budget import within
from privbo.algorithms.thompson.exploration import Cut, Exploration, Regions, Weighting
from privbo.algorithms.thompson.features import Form, FourierFeatures, Kernel, draw_features
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.theory import regularisation
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, FloatArray, Setting
from privbo.protocol.settings import Count, Positive, Sequence, settings

Start: TypeAlias = Literal["region", "everywhere"]


@settings(table="algorithm")
class ThompsonSettings:
    """Settings of federated Thompson sampling; ``DPFTSDE`` says what each of them means."""

    takes_points: ClassVar[bool] = True  # clients learn from points that they bring along
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
        """Whether any client may leave its own posterior aside in an iteration; iterations count from 1."""
        return self.exploration.own_probability(iteration) < 1.0

    def asks(self, round_: int, rounds: int) -> bool:
        """Whether round ``round_`` of a run of T = ``rounds`` steps ends with a release."""
        return round_ < rounds and self.federates(round_ + 1)

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts with as many rounds as ``evaluations`` hold."""
        return within(setting, evaluations=self.evaluations, n_init=self.n_init)

    def draw_features(self, setting: Setting) -> FourierFeatures:
        """The feature map of a run."""
        return draw_features(
            n_features=self.n_features,
            n_embedded=setting.space.n_embedded,
            lengthscale=self.lengthscale,
            kernel=self.kernel,
            form=self.features,
            public_seed=setting.public_seed,
        )

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
