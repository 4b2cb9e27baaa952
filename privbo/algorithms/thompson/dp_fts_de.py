"""DP-FTS-DE: differentially private federated Thompson sampling with distributed exploration.

Dai, Low and Jaillet 2021, Algorithm 1 (the server) and its setting; clients are in
``agents``. Rounds, for a run of T federated steps:

    round 0      clients query their initial points and answer: release 0
    round t      clients act on release t - 1 (iteration t of the paper) and answer: release t
    round T      clients act on release T - 1; nothing would be broadcast, so nothing is asked

That makes T releases, each of which is used (the authors' loop makes T + 1). A release
that nobody can use, because every client acts on its own posterior in the next round,
is not made either. TS, FTS, FTS-DE and DP-FTS are settings: nothing shared, one region,
no privacy (a choice of the run, not of the algorithm), one region with privacy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.algorithms.thompson.exploration import Cut, Exploration, Regions, Weighting, assign_regions
from privbo.algorithms.thompson.features import Form, FourierFeatures, Kernel, draw_features
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.theory import regularisation
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Cohort, Evaluate, FloatArray, IntArray, Release, Request, Setting

Share: TypeAlias = Literal["mean", "sample"]
Start: TypeAlias = Literal["region", "everywhere"]
FederatedStep: TypeAlias = Literal["shared", "informed", "uniform"]
Values: TypeAlias = Literal["standardised", "raw"]
Repeats: TypeAlias = Literal["query", "replace"]

_CHOICES = {
    "share": ("mean", "sample"),
    "start": ("region", "everywhere"),
    "federated_step": ("shared", "informed", "uniform"),
    "values": ("standardised", "raw"),
    "repeats": ("query", "replace"),
}


@dataclass(frozen=True, kw_only=True)
class DPFTSDE:
    """Federated Thompson sampling with distributed exploration.

    Attributes:
        n_regions: P, parts of the space explored by different clients at first and
            summed with different weights. 1 is FTS. Boxes of equal volume, unless cut.
        cuts: Explicit cuts per parameter instead of equal volumes; their grid has
            ``n_regions`` boxes.
        start: Where a client's initial points lie: ``"region"`` its own, ``"everywhere"`` the
            whole space (distributed exploration without its first half).
        n_features: M, length of the shared vectors.
        clipping_norm: S; None is 1 for means and 1.1 sqrt(M) for samples, times sqrt(P)
            (which gives the paper's 11 and 22).
        share: ``"mean"`` sends the posterior mean of the features' weights, ``"sample"`` a
            draw from their posterior (the paper).
        n_init: Initial points per client.
        exploration: p_t, how often clients act on their own posterior.
        weighting: Clients' weights in the regions' sums over time.
        lengthscale: Of the shared features' kernel, in units of the cube; public.
        noise: lambda of the shared features, variance on standardised values; public.
            ``"theory"`` is the paper's 1 + 2 / T.
        kernel: Of the shared features.
        features: ``"paired"``, ``"phase"`` or ``"regular"``; see ``FourierFeatures``.
        own: How clients model their own objective.
        n_candidates: Candidates in the search for the shared vectors' maximum.
        local_after: Federated rounds before clients go on alone; afterwards nothing is
            asked, released or charged. None never switches; 0 is plain Thompson sampling.
        federated_step: ``"shared"`` maximises what is shared, alike for everyone; ``"informed"``
            maximises a draw from the client's own model with what is shared in its mean,
            trusted as far as it explains the client's own values; ``"uniform"`` draws a uniform
            random point instead and asks for nothing (a control: the same initial
            points and coins without any sharing).
        values: What clients model and share: ``"standardised"``, each client's values at mean 0
            and standard deviation 1, or ``"raw"``, as they come, under a prior of mean 0 (the
            authors' code): where all values are positive, unknown points are then poor ones.
            The own model's priors and every lambda are on that scale.
        repeats: What becomes of a point that the client has evaluated before: ``"query"`` evaluates
            it again, which tells something only where observations are noisy; ``"replace"`` draws
            a uniform random point instead (the authors' code), in a finite space perhaps another
            one evaluated before.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    n_regions: int = 1
    cuts: tuple[Cut, ...] = ()
    start: Start = "region"
    n_features: int = 64
    clipping_norm: float | None = None
    share: Share = "mean"
    n_init: int = 2
    exploration: Exploration = field(default_factory=Exploration)
    weighting: Weighting = field(default_factory=Weighting)
    lengthscale: float = 0.3
    noise: float | Literal["theory"] = 0.1
    kernel: Kernel = "se"
    features: Form = "paired"
    own: OwnModel = field(default_factory=OwnModel)
    n_candidates: int = 4096
    local_after: int | None = None
    federated_step: FederatedStep = "shared"
    values: Values = "standardised"
    repeats: Repeats = "query"

    def __post_init__(self) -> None:
        for name in ("n_regions", "n_features", "n_init", "n_candidates"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ConfigurationError(f"{name}={value!r} must be an integer >= 1")
        for name in ("lengthscale", "noise", "bound"):
            value = getattr(self, name)
            if value != "theory" and not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}={value!r} must be a finite number > 0")
        if self.features != "phase" and self.n_features % 2:
            raise ConfigurationError(f"n_features={self.n_features} must be even for {self.features} features")
        boxes = math.prod(len(cut.at) + 1 for cut in self.cuts)
        if self.cuts and boxes != self.n_regions:
            raise ConfigurationError(f"n_regions={self.n_regions}, but the cuts make {boxes} boxes; state that number")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be one of {allowed}")
        if self.local_after is not None and self.local_after < 0:
            raise ConfigurationError(f"local_after={self.local_after} must be at least 0")

    @staticmethod
    def paper(*, n_init: int = 10, clipping_norm: float = 22.0) -> DPFTSDE:
        """The paper's real-world setting (Section 5.2, Appendix B); its noise is a matter of the run."""
        return DPFTSDE(
            n_regions=4,
            n_features=100,
            clipping_norm=clipping_norm,
            share="sample",
            n_init=n_init,
            exploration=Exploration(power=1.0),
            lengthscale=0.01,
            noise=1e-6,
            features="phase",
            own=OwnModel(kernel="se"),
        )

    def local(self) -> DPFTSDE:
        """Plain Thompson sampling: the same clients with nothing shared, exploring the whole space."""
        return dataclasses.replace(self, n_regions=1, cuts=(), local_after=0)

    @property
    def bound(self) -> float:
        """S as a number."""
        if self.clipping_norm is not None:
            return float(self.clipping_norm)
        length = 1.0 if self.share == "mean" else 1.1 * math.sqrt(self.n_features)
        return length * math.sqrt(self.n_regions)

    def regularisation(self, rounds: int) -> float:
        """Lambda of the shared features as a number."""
        return regularisation(rounds) if self.noise == "theory" else self.noise

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
                cannot be cut into so many.
        """
        if self.n_regions > setting.n_clients:
            raise ConfigurationError(
                f"n_regions={self.n_regions} is more than the {setting.n_clients} clients; use fewer regions"
            )
        return Regions.cut(self.cuts, setting.space) if self.cuts else Regions.of(self.n_regions, setting.space)

    def server(self, setting: Setting) -> DPFTSDEServer:
        """The public side."""
        return DPFTSDEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """The private side for ``clients``."""
        from privbo.algorithms.thompson.clients import Agents  # loads torch, which the public side does not need

        return Agents(self, setting, clients=clients, evaluate=evaluate, seed=seed)


class DPFTSDEServer:
    """Algorithm 1: weights for every round, the last release for the next broadcast."""

    def __init__(self, algorithm: DPFTSDE, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        algorithm.regions(setting)  # refuses an impossible partition before any data is touched
        self._assignment = assign_regions(setting.n_clients, algorithm.n_regions)
        self._features = digest_array(algorithm.draw_features(setting))
        self._round = 0
        self._last: Release | None = None

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order; weights are made as they are asked for."""
        requests = (self._request(round_) for round_ in range(self._setting.rounds + 1))
        return (request for request in requests if request is not None)

    def ask(self) -> Ask | None:
        """The current round; None after the last."""
        if self._round > self._setting.rounds:
            return None
        broadcast = Broadcast(round=self._round, arrays=self._arrays())
        return Ask(broadcast=broadcast, request=self._request(self._round))

    def tell(self, release: Release | None) -> None:
        """Keep the round's release for the next broadcast."""
        wanted = self._algorithm.asks(self._round, self._setting.rounds)
        if (release is not None) != wanted:
            raise ConfigurationError(
                f"round {self._round} {'ends with' if wanted else 'has no'} release, told {release!r}"
            )
        self._last = release
        self._round += 1

    def _request(self, round_: int) -> Request | None:
        algorithm = self._algorithm
        if not algorithm.asks(round_, self._setting.rounds):
            return None
        # A release serves the next iteration, so it carries that iteration's weights.
        return Request(
            dim=algorithm.n_features,
            clipping_norm=algorithm.bound,
            weights=algorithm.weighting.weights(round_ + 1, self._assignment, algorithm.n_regions),
        )

    def _arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        public: dict[str, npt.NDArray[np.generic]] = {
            "rounds": np.array(self._setting.rounds, dtype=np.int64),
            "features": self._features,
        }
        if self._last is not None:
            public["vectors"] = np.asarray(self._last.values, dtype=np.float64)
            public["noise_stddev"] = np.array(self._last.noise_stddev, dtype=np.float64)
        return public


def digest_array(features: FourierFeatures) -> npt.NDArray[np.uint8]:
    """SHA-256 of a feature map as it travels with every broadcast."""
    return np.frombuffer(bytes.fromhex(features.digest), dtype=np.uint8)


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
