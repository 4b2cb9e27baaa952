"""DP-FTS-DE with what our experiments vary: means instead of samples, informed and uniform steps, raw values.

``pb.DPFTSDE`` is the paper's algorithm. This one, named in a study as
``experiments.baselines.dp_fts_de:Variant``, does the same where its further settings say so.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import field
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from pydantic import Field

from experiments.baselines.informed import InformedModel, Shared
from experiments.baselines.regular_features import regular_features
from privbo.algorithms.thompson.clients import Agents
from privbo.algorithms.thompson.dp_fts_de import DPFTSDE
from privbo.algorithms.thompson.exploration import Exploration
from privbo.algorithms.thompson.features import FourierFeatures
from privbo.algorithms.thompson.posterior import ridge_mean
from privbo.algorithms.thompson.servers import ThompsonServer
from privbo.algorithms.thompson.settings import OwnModel, ThompsonSettings
from privbo.algorithms.thompson.streams import Stream, client_streams
from privbo.protocol.messages import Broadcast, Cohort, Evaluate, FloatArray, IntArray, Setting
from privbo.protocol.settings import Count, Positive, settings

Form: TypeAlias = Literal["paired", "phase", "regular"]


@settings(table="algorithm")
class Variant(ThompsonSettings):
    """Federated Thompson sampling with our experiments' settings beside the paper's.

    Attributes:
        share: ``"mean"`` sends the posterior mean of the features' weights, ``"sample"`` a draw from their
            posterior (the paper).
        features: As the paper's, or ``"regular"``: a Fourier series of the kernel, nothing random.
        local_after: Federated rounds before clients go on alone; None never switches.
        federated_step: ``"shared"`` as in the paper; ``"informed"`` maximises a draw from the client's own model with
            what is shared in its mean; ``"uniform"`` draws a uniform random point and asks for nothing (a control: the
            same initial points and coins without any sharing).
        repeats: ``"replace"`` puts a uniform random point in the place of one that the client has evaluated
            before (the authors' code); ``"query"`` evaluates it again.

    Example:
        >>> Variant(share="sample", n_regions=4, n_features=100).bound, Variant().local().local_after
        (22.0, 0)
    """

    answers_together: ClassVar[bool] = True  # its cohort raises for no client's data, as the package's own do
    type: Literal["variant"] = field(default="variant", repr=False)  # type: ignore[assignment]  # as a study names it
    n_regions: Count = 1
    n_features: Count = 64
    share: Literal["mean", "sample"] = "mean"
    n_init: Count = 2
    exploration: Exploration = field(default_factory=Exploration)
    lengthscale: Positive = 0.3
    noise: Positive | Literal["theory"] = 0.1
    features: Form = "paired"  # type: ignore[assignment]  # one more than the paper's
    own: OwnModel = field(default_factory=OwnModel)
    local_after: Annotated[int, Field(ge=0)] | None = None
    federated_step: Literal["shared", "informed", "uniform"] = "shared"
    repeats: Literal["query", "replace"] = "query"

    @staticmethod
    def paper(*, n_init: int = 10, clipping_norm: float = 22.0) -> Variant:
        """Give the paper's real-world setting, as ``pb.DPFTSDE.paper``."""
        asked = vars(DPFTSDE.paper(n_init=n_init, clipping_norm=clipping_norm))
        return Variant(share="sample", **{name: value for name, value in asked.items() if name != "type"})

    @property
    def bound(self) -> float:
        """S as a number."""
        if self.clipping_norm is not None:
            return float(self.clipping_norm)
        length = 1.0 if self.share == "mean" else 1.1 * math.sqrt(self.n_features)
        return length * math.sqrt(self.n_regions)

    def federates(self, iteration: int) -> bool:
        """Whether any client may leave its own posterior aside in an iteration; iterations count from 1."""
        if self.local_after is not None and iteration > self.local_after:
            return False
        return self.exploration.own_probability(iteration) < 1.0

    def asks(self, round_: int, rounds: int) -> bool:
        """Whether round ``round_`` of a run of T = ``rounds`` steps ends with a release."""
        return self.federated_step != "uniform" and round_ < rounds and self.federates(round_ + 1)

    def draw_features(self, setting: Setting) -> FourierFeatures:
        """The feature map of a run."""
        if self.features == "regular":
            return regular_features(self.n_features // 2, setting.space.n_embedded, self.lengthscale, self.kernel)
        return ThompsonSettings.draw_features(self, setting)

    def local(self) -> Variant:
        """Give plain Thompson sampling: the same clients with nothing shared."""
        return dataclasses.replace(self, n_regions=1, cuts=(), local_after=0)

    def server(self, setting: Setting) -> ThompsonServer:
        """Make the public side."""
        return ThompsonServer(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``."""
        return OurAgents(self, self.within(setting), clients=clients, evaluate=evaluate, seed=seed)


class OurAgents(Agents):
    """Clients that choose by a variant's settings."""

    def __init__(
        self, algorithm: Variant, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int
    ) -> None:
        super().__init__(algorithm, setting, clients=clients, evaluate=evaluate, seed=seed)
        self.variant = algorithm
        self.model = self._informed = InformedModel(
            algorithm.own, setting, self.clients, seed, acquisition="thompson", logits=True
        )

    def points(self, broadcast: Broadcast, shared: FloatArray | None) -> FloatArray:
        """Choose the point of every client in a round, ``(n, n_dims)``."""
        points = self._chosen(broadcast, shared)
        if self.variant.repeats == "replace":
            again = (self.seen.units == points[:, None]).all(axis=2).any(axis=1)
            points[again] = self._uniform(self.clients[again], broadcast.round, Stream.REPLACEMENT)
        return points

    def _chosen(self, broadcast: Broadcast, vectors: FloatArray | None) -> FloatArray:
        round_, step = broadcast.round, self.variant.federated_step
        uniform = vectors is None and step == "uniform" and self.variant.federates(round_)
        if not uniform and step != "informed":
            return super().points(broadcast, vectors)
        alone = self.alone(round_) if uniform or vectors is not None else np.ones(len(self.clients), dtype=bool)
        points = np.empty((len(alone), self.setting.space.n_dims))
        points[alone] = self.model.propose(self.seen, round_, rows=np.flatnonzero(alone))
        if uniform:
            points[~alone] = self._uniform(self.clients[~alone], round_, Stream.INITIAL)
        elif vectors is not None:
            stddev = float(np.asarray(broadcast.arrays["noise_stddev"], dtype=np.float64))
            self._informed.shared = Shared(heights=self.shared_function(vectors), noise_stddev=stddev)
            points[~alone] = self.model.propose(self.seen, round_, rows=np.flatnonzero(~alone))
            self._informed.shared = None
        return points

    def _uniform(self, clients: IntArray, round_: int, stream: Stream) -> FloatArray:
        """A random point per client."""
        space = self.setting.space
        drawn = np.array([g.random(space.n_dims) for g in client_streams(self.seed, clients, round_, stream)])
        return space.snap(drawn.reshape(-1, space.n_dims))

    def weights(self, rows: IntArray, round_: int) -> torch.Tensor:
        """Make the vectors that some clients send at the end of a round, ``(n, n_features)``."""
        if self.variant.share == "sample":
            return super().weights(rows, round_)
        observed, ridge = self.seen.observations(rows, round_), self.grown()
        if ridge is not None:
            nothing = observed.values.new_zeros(len(rows), self.algorithm.n_features)
            return ridge.sample(observed.values, prior=nothing, observation_noise=torch.zeros_like(observed.values))
        level = self.algorithm.regularisation(self.setting.rounds)
        return ridge_mean(self.features_of(observed), observed.values, level)
