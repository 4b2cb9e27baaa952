"""Settings of DP-FTS-DE and of the shared prior, and what both sides compute from them; nothing here is private.

Of a client's own model and search, too, which spend no privacy.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import field
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.algorithms.thompson.exploration import Cut, Exploration, Regions, Weighting
from privbo.algorithms.thompson.features import Form, FourierFeatures, InducingFeatures, Kernel, draw_frequencies
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import N_CANDIDATES, ReleaseWhen, spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, FloatArray, Request, Setting
from privbo.protocol.settings import Count, Positive, Sequence, settings

Draw: TypeAlias = Literal["paths", "exact", "features"]
Part: TypeAlias = Literal["best", "newest", "spread"]


@settings(table="prior")
class Prior:
    """Log-normal prior of a positive hyperparameter, cut off at its bounds.

    Attributes:
        median: Where a fit begins, and what is used where nothing is fitted.
        spread: Standard deviation of the natural logarithm.
        low: Least value a fit may take.
        high: Largest value a fit may take.

    Raises:
        ConfigurationError: Unless ``0 < low < median < high`` and ``spread > 0``, all finite.

    Example:
        >>> import privbo as pb
        >>> smooth = pb.Prior(median=0.8, spread=0.3, low=0.1, high=5.0)
        >>> pb.OwnModel(lengthscale=smooth).lengthscale.median
        0.8
    """

    median: Positive
    spread: Positive
    low: Positive
    high: Positive

    def __post_init__(self) -> None:
        if not self.low < self.median < self.high:
            raise ConfigurationError(
                f"prior: need low < median < high, got low={self.low!r}, median={self.median!r}, high={self.high!r}"
            )


@settings(table="algorithm.own.inflation")
class Theorem1:
    """Inflation beta_t of a client's own draws, as Theorem 1 of the paper has it.

    ``beta_t = B + sigma sqrt(2 (gamma_{t-1} + 1 + log(4 / delta)))`` inflates a client's own draws and
    ``lambda = 1 + 2 / T`` regularises. Both are far larger than what works in practice.

    gamma, the largest information any t queries can give, is bounded by greedy choice:
    a greedy set has at least 1 - 1/e of it (Krause & Guestrin 2005), so dividing by that is
    an upper bound over the points that are considered.

    Attributes:
        norm_bound: B, on the objective's norm in the kernel's space.
        noise_stddev: sigma, of the observations, on standardised values.
        failure: delta of the theorem (no privacy parameter).

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> own = pb.OwnModel(inflation=pb.Theorem1(norm_bound=2.0))
        >>> round(own.inflation.beta(gain=3.0), 3)
        2.392
    """

    norm_bound: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    noise_stddev: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    failure: Annotated[float, Field(gt=0, lt=1)] = 0.1

    def beta(self, gain: float) -> float:
        """beta_t where the largest information gain of the queries so far is ``gain``."""
        return self.norm_bound + self.noise_stddev * math.sqrt(2.0 * (gain + 1.0 + math.log(4.0 / self.failure)))


def regularisation(rounds: int) -> float:
    """Lambda = 1 + 2 / T."""
    return 1.0 + 2.0 / rounds


def information_gains(covariance: FloatArray, noise: float, count: int) -> FloatArray:
    """Upper bounds on the information of any 0, 1, ..., ``count`` queries among the points, ``(count + 1,)``.

    Args:
        covariance: Prior covariance of the points, ``(n, n)``.
        noise: lambda; a query tells ``log(1 + variance / lambda) / 2``.
        count: Largest number of queries.
    """
    left = np.array(covariance, dtype=np.float64)
    gains = np.zeros(count + 1)
    for t in range(count):
        variances = np.maximum(left.diagonal(), 0.0)
        best = int(variances.argmax())
        gains[t + 1] = gains[t] + 0.5 * math.log1p(float(variances[best]) / noise)
        column = left[:, best]
        left = left - np.outer(column, column) / (variances[best] + noise)
    return gains / (1.0 - math.exp(-1.0))


@settings(table="algorithm.own")
class OwnModel:
    """A client's model and search of its own objective; it costs no privacy.

    The default priors suit points in the unit cube and values of unit variance: smooth on
    a scale of about half the cube, little noise. With a handful of observations they
    carry most of the weight.

    Attributes:
        kernel: ``"se"`` (squared exponential), ``"matern52"``, ``"matern32"`` or ``"matern12"`` (rough).
        draw: What a Thompson draw is. ``"paths"``: a random-feature path conditioned exactly
            (Wilson et al. 2020), maximised anywhere; ``"exact"``: a joint draw from the exact
            posterior at the whole grid of a finite space, else at the candidates;
            ``"features"``: a draw of the weights of random features (the authors' way).
        n_features: Random features of a draw (even); unused by exact draws.
        refit_every: Rounds after which a client that needs its model fits it anew; 0 never
            fits: every client uses the priors' medians.
        fit_steps: Adam steps of a fit.
        n_candidates: Candidates in the search for a draw's maximum; also the largest finite
            space searched whole.
        max_points: Most points that a model is made of; None takes all, at a cost like their cube. 200 cost no regret
            (docs/scale.md).
        kept: Points of a longer history that the model is made of, equal parts of them: those with the largest values,
            the newest, and others spread over the space. ``("newest",)`` follows an objective that drifts.
        ard: One length scale per coordinate; otherwise one for all.
        lengthscale: Prior, in units of the cube.
        outputscale: Prior of the kernel's variance, on standardised values.
        noise: Prior of the observation variance, on standardised values.
        noise_variance: Known observation variance in squared units of the objective; None
            fits it. At least ``noise.low`` once values are standardised.
        regularisation: lambda, used as the observation variance on standardised values instead of
            a fitted or known one; ``"theory"`` is Theorem 1's 1 + 2 / T.
        inflation: beta, by which a draw's deviation from the posterior mean is multiplied
            (Algorithm 2, line 6 of the paper): a number, or Theorem 1's beta_t.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> cheap = pb.OwnModel(refit_every=0, draw="exact", n_candidates=200)
        >>> pb.DPFTSDE(own=cheap).own.is_common
        True
    """

    kernel: Kernel = "matern52"
    draw: Draw = "paths"
    n_features: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    refit_every: Annotated[int, Field(ge=0)] = 1
    fit_steps: Count = 40
    n_candidates: Count = 512
    max_points: Annotated[int, Field(ge=8)] | None = 200
    kept: Annotated[Sequence[Part], Field(min_length=1)] = ("best", "newest", "spread")
    ard: bool = True
    lengthscale: Prior = Prior(median=0.4, spread=0.7, low=0.02, high=10.0)
    outputscale: Prior = Prior(median=1.0, spread=0.5, low=0.05, high=20.0)
    noise: Prior = Prior(median=1e-2, spread=1.0, low=1e-5, high=1.0)
    noise_variance: Positive | None = None
    regularisation: Positive | Literal["theory"] | None = None
    inflation: Positive | Theorem1 = 1.0

    def __post_init__(self) -> None:
        if self.regularisation is not None and self.noise_variance is not None:
            raise ConfigurationError("own: regularisation takes the place of noise_variance; give one of them")

    def scaled(self, share: float) -> OwnModel:
        """Give the model of a share of the values' variance."""
        prior = self.outputscale
        low, median = min(prior.low, share * prior.low), share * prior.median
        return dataclasses.replace(self, outputscale=dataclasses.replace(prior, low=low, median=median))

    def fixed_noise(self, rounds: int) -> float | None:
        """Lambda as a number for a run of T = ``rounds`` steps; None if the noise is fitted or known."""
        return regularisation(rounds) if self.regularisation == "theory" else self.regularisation

    @property
    def is_common(self) -> bool:
        """Whether all clients have the same kernel, so that what depends on it is made once."""
        return self.refit_every == 0


Start: TypeAlias = Literal["region", "everywhere"]
# Objectives are deterministic unless their values say otherwise: a model that takes a hundredth of the variance
# for noise stops refining its best point.
QUIET = Prior(median=1e-4, spread=3.0, low=1e-6, high=1.0)
# What a surface keeps to itself beside what is common can be little or much of its variance.
BROAD = Prior(median=1.0, spread=1.0, low=0.05, high=20.0)
_EXPLORE = 2
_LEAST_SIGNAL = 3.0  # N s / z; docs/results/shared-prior-tried.md has what clients gain on both sides of it
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
    schedule: Sequence[Whole] = field(default=(1, 5), metadata={"first": (0, 2, 5)})
    shares: Sequence[Positive] = field(default=(1.0, 1.0), metadata={"first": (5.0, 2.0, 1.0)})
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
        """Give the signal-to-noise ratio of what is shared below which clients gain as much from its noise alone.

        How many numbers are shared does not count: what clients have in common lies in few directions.
        """
        return _LEAST_SIGNAL / math.sqrt(self.n_features)

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.schedule, self.schedule[1:], strict=False)):
            raise ConfigurationError(f"schedule={list(self.schedule)} must rise; name every round once, in order")
        if len(self.shares) < len(self.schedule):
            raise ConfigurationError(
                f"shares={list(self.shares)} must name a share for each of the {len(self.schedule)} releases; "
                f"equal ones are shares={[1.0] * len(self.schedule)}"
            )
        if self.own.draw != "paths":
            raise ConfigurationError(f"own.draw={self.own.draw!r} belongs to DPFTSDE; use 'paths' here")

    def releases(self, setting: Setting) -> dict[int, float]:
        """The releases of a run: those that a later round uses, of two points or more, as one says nothing.

        None of them is of use once a client has one point left of a small space, and evaluates none twice.

        Returns:
            By the round that ends with a release, its share of the run's squared budget (Gaussian differential privacy
            adds in squares), in (0, 1].
        """
        every, grid = zip(self.schedule, self.shares, strict=False), setting.space.grid(N_CANDIDATES)
        most = math.inf if grid is None or self.repeats == "query" else len(grid) - 2
        used = {at: share for at, share in every if at < setting.rounds and 1 < self.n_init + at <= most}
        return {at: share / sum(used.values()) for at, share in used.items()}

    def pool_weight(self, round_: int, share: float) -> float:
        """Give a release's weight in the pool: its budget times the root of what its clients had seen."""
        return share * math.sqrt(self.n_init + round_)

    def request(self, share: float, n_clients: int) -> Request:
        """Give what the server asks for in a release of this share: the mean of the clients' vectors."""
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
