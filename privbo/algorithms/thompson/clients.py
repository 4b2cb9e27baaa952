"""The private sides of DP-FTS-DE (Algorithm 2 of the paper), the shared prior, the scout and the multi-task process.

Many clients at once.

All that is kept is what was evaluated, and fitted models. An answer, a model and a choice are functions of
the history up to a round and of the client's streams, so answering a round twice, or
after a restart, gives the same vector without new evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import torch

from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations, Failures, of_length_one, standardise
from privbo.algorithms.thompson.exploration import Regions, assign_regions, first_points
from privbo.algorithms.thompson.features import FourierFeatures, InducingFeatures
from privbo.algorithms.thompson.local_model import LocalModel, chunks
from privbo.algorithms.thompson.maximise import Search, maximise
from privbo.algorithms.thompson.pooled import Decoder, Pooled, of_releases
from privbo.algorithms.thompson.posterior import GrowingRidge, Observations, is_compiled, ridge_mean, ridge_sample
from privbo.algorithms.thompson.releases import STARTING, Posterior, Releases, front
from privbo.algorithms.thompson.settings import SharedPriorSettings, ThompsonSettings, digest_array, shared_vectors
from privbo.algorithms.thompson.streams import Stream, client_normals, client_uniforms, public_stream
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Array,
    Arrays,
    BoolArray,
    Broadcast,
    ClientHistory,
    Evaluate,
    FloatArray,
    IntArray,
    Setting,
)
from privbo.protocol.processes import limited_loaded_threads

T = TypeVar("T")


class Clients:
    """Clients, batched over all of them, that keep what they evaluated.

    Attributes:
        setting: The run's facts.
        seen: Everything that was evaluated.
        clients: Global numbers of the clients, ``(n,)``.
        model: Their models; None where they make none.
    """

    model: LocalModel | None = None

    def __init__(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, scaled: bool = True) -> None:
        self.setting, self.device = setting, torch.device(setting.device)
        self.seen = Evaluations(clients, evaluate, setting.space, self.device, scaled=scaled)
        self.clients = self.seen.clients

    def snapshot(self) -> Arrays:
        """Evaluations and fitted models; private."""
        return {**self.seen.snapshot(), **({} if self.model is None else self.model.snapshot())}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        self.seen.restore(snapshot)
        if self.model is not None:
            self.model.restore(snapshot)

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        return self.seen.history()


class ModellingClients(Clients, Generic[T]):
    """Clients that model their own objectives and answer with weights of shared features.

    Attributes:
        features: The shared features.
        model: Their models.
        failures: What a trial that failed counts for in answers.
        read: Gives what a broadcast shares, None if nothing; refuses what has a wrong shape.
        first: The initial points, each ``(n, n_dims)``.
        points: Chooses the point of every client in a round, ``(n, n_dims)``.
        asks: Whether a round ends with a release.
        weights: Weights of the shared features that some clients send at the end of a round, ``(n, n_features)``.
    """

    features: FourierFeatures | InducingFeatures
    model: LocalModel
    failures: Failures = "ignored"
    read: Callable[[Broadcast], T | None]
    first: Callable[[], Iterable[FloatArray]]
    points: Callable[[Broadcast, T | None], FloatArray]
    asks: Callable[[int], bool]
    weights: Callable[[IntArray, int], torch.Tensor]

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Query a point per client, unless this round was answered before; answer with weights.

        Returns:
            One vector per client, ``(n, n_features)``; NaN rows are absences (nothing known, or this round's evaluation
            failed and counts for nothing). ``(n, 0)`` in a round that asks for nothing.

        Raises:
            ConfigurationError: If the broadcast speaks of another run or has a wrong shape.
        """
        self._check(broadcast)
        shared, round_ = self.read(broadcast), broadcast.round
        if not len(self.seen.rounds):
            for points in self.first():
                self.seen.query(points, INITIAL_ROUND)
        if round_ > max(0, self.seen.rounds[-1]):
            self.seen.query(self.points(broadcast, shared), round_)
        if not self.asks(round_):
            return np.empty((len(self.clients), 0))
        answer = np.empty((len(self.clients), self.features.n_features))
        with torch.no_grad(), limited_loaded_threads(1):
            for rows in self.pieces():
                answer[rows] = self.weights(rows, round_).cpu().numpy()
        answer[self.seen.lacking(round_, self.failures)] = np.nan
        return answer

    def _check(self, broadcast: Broadcast) -> None:
        if not np.array_equal(broadcast.arrays.get("features", ()), digest_array(self.features.digest)):
            raise ConfigurationError(
                "the server's random features differ from this client's; use the same public seed and settings"
            )
        if not np.array_equal(broadcast.arrays.get("rounds", ()), self.setting.rounds):
            raise ConfigurationError(
                f"the server's run has {broadcast.arrays.get('rounds')} rounds, this client's "
                f"{self.setting.rounds}; use the same setting"
            )

    def pieces(self) -> list[IntArray]:
        """Clients whose answers are made at once."""
        m, t = self.features.n_features, len(self.seen.rounds)
        return chunks(np.arange(len(self.clients)), 3 * t * m + t * t + m * m, self.device)

    def features_of(self, observed: Observations) -> torch.Tensor:
        """Shared features of observations, ``(n, t, n_features)``; zero where one is missing."""
        return self.features(observed.embedded) * observed.mask[..., None]

    def tensor(self, array: Array) -> torch.Tensor:
        """Numbers on the run's device."""
        return torch.as_tensor(array, dtype=torch.float64, device=self.device)


class Agents(ModellingClients[FloatArray]):
    """Clients of DP-FTS-DE.

    Attributes:
        algorithm: The settings.
        seed: Of the clients' streams.
    """

    def __init__(
        self, algorithm: ThompsonSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int
    ) -> None:
        super().__init__(setting, clients=clients, evaluate=evaluate, scaled=algorithm.values == "standardised")
        self.algorithm, self.seed = algorithm, seed
        self.features = algorithm.draw_features(setting)
        self.model = LocalModel(algorithm.own, setting, self.clients, seed, acquisition="thompson", logits=True)
        self._regions = algorithm.regions(setting)
        self._home = assign_regions(setting.n_clients, algorithm.n_regions)[self.clients]

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        super().restore(snapshot)
        vars(self).pop("ridge", None)

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """Expected values of the clients' own models at shared points, ``(n, k)``; NaN where nothing is known."""
        self._check(broadcast)
        model = LocalModel(self.algorithm.own, self.setting, self.clients, self.seed)
        return model.expected(self.seen, broadcast.round + 1, units)

    def read(self, broadcast: Broadcast) -> FloatArray | None:
        """The broadcast's vectors, ``(n_regions, n_features)``; None in a round that carries none."""
        return shared_vectors(broadcast, (self.algorithm.n_regions, self.algorithm.n_features))

    def first(self) -> Iterable[FloatArray]:
        """Random points of every client's own region (Algorithm 2, line 2)."""
        space, count = self.setting.space, self.algorithm.n_init
        regions = self._regions if self.algorithm.start == "region" else Regions.of(1, space)

        def draw(rows: IntArray, many: int) -> FloatArray:
            return client_uniforms(self.seed, self.clients[rows], 0, Stream.INITIAL, many)

        return regions.sample(self._home % regions.count, count, space, draw).swapaxes(0, 1)

    def alone(self, round_: int) -> BoolArray:
        """Clients whose coin says that they act on their own posteriors, ``(n,)``."""
        probability = self.algorithm.exploration.own_probability(round_)
        return client_uniforms(self.seed, self.clients, round_, Stream.CHOICE)[:, 0] < probability

    def points(self, broadcast: Broadcast, shared: FloatArray | None) -> FloatArray:
        """Choose the maximiser of the own draw or of the shared function, by every client's coin, ``(n, n_dims)``."""
        alone = np.ones(len(self.clients), dtype=bool) if shared is None else self.alone(broadcast.round)
        points = np.empty((len(alone), self.setting.space.n_dims))
        points[alone] = self.model.propose(self.seen, broadcast.round, rows=np.flatnonzero(alone))
        if shared is not None and not alone.all():
            # The same for all clients (Algorithm 2, line 8).
            search = Search(n_candidates=self.algorithm.n_candidates, n_starts=8)
            generator = public_stream(self.setting.public_seed, Stream.CANDIDATES, broadcast.round)
            points[~alone] = maximise(self.shared_function(shared), self.setting.space, search, generator)[0]
        return points

    def shared_function(self, vectors: FloatArray) -> Callable[[FloatArray], torch.Tensor]:
        """The shared function: phi(x) . vectors[region(x)]."""
        weights = self.tensor(vectors)

        def values(units: FloatArray) -> torch.Tensor:
            everywhere = self.features(self.tensor(self.setting.space.embed(units))) @ weights.T
            regions = torch.as_tensor(self._regions.index(units), device=self.device)
            return everywhere.gather(-1, regions[..., None])[..., 0]

        return values

    def asks(self, round_: int) -> bool:
        """Whether a round ends with a release."""
        return self.algorithm.asks(round_, self.setting.rounds)

    def weights(self, rows: IntArray, round_: int) -> torch.Tensor:
        """Draw from the posterior of some clients' weights of the shared features (Algorithm 2, line 10)."""
        observed, ridge = self.seen.observations(rows, round_), self.grown()
        counts = (Stream.SHARED_SAMPLE, self.features.n_features), (Stream.SHARED_NOISE, observed.values.shape[1])
        prior, noise = (
            self.tensor(client_normals(self.seed, self.clients[rows], round_, stream, (count,)))
            for stream, count in counts
        )
        if ridge is not None:
            return ridge.sample(observed.values, prior=prior, observation_noise=noise)
        level = self.algorithm.regularisation(self.setting.rounds)
        return ridge_sample(self.features_of(observed), observed.values, level, prior=prior, observation_noise=noise)

    @cached_property
    def ridge(self) -> GrowingRidge | None:
        """Factors of the shared features that grow with the histories; None where each answer is made anew."""
        algorithm, setting = self.algorithm, self.setting
        m, capacity = algorithm.n_features, algorithm.n_init + setting.rounds
        # A question of the run, not of the cohort: answers must not depend on how clients are grouped.
        if not is_compiled(setting, draws=True) or not GrowingRidge.pays(setting.n_clients, capacity, m):
            return None
        return GrowingRidge(
            n_clients=len(self.clients),
            capacity=self.seen.n_earlier + capacity,
            n_features=m,
            noise=algorithm.regularisation(setting.rounds),
        )

    def grown(self) -> GrowingRidge | None:
        """The factors with what was evaluated since the last answer."""
        ridge = self.ridge
        while ridge is not None and ridge.count < len(self.seen.rounds):
            index = ridge.count
            mask = torch.as_tensor(np.isfinite(self.seen.values[:, index]), device=self.device)
            embedded = self.tensor(self.setting.space.embed(self.seen.units[:, index]))
            ridge.append(self.features(embedded[:, None])[:, 0] * mask[:, None])
        return ridge

    def pieces(self) -> list[IntArray]:
        """All clients at once where factors grow."""
        return super().pieces() if self.ridge is None else [np.arange(len(self.clients))]


class PriorClients(ModellingClients[Pooled]):
    """Clients of the shared prior."""

    features: InducingFeatures

    def __init__(
        self, algorithm: SharedPriorSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int
    ) -> None:
        super().__init__(setting, clients=clients, evaluate=evaluate)
        self._algorithm, self.features = algorithm, algorithm.draw_features(setting)
        self.failures = algorithm.failures
        self._releases = algorithm.releases(setting)
        self._decoder = Decoder(algorithm, setting, self.features)
        self._exploring = algorithm.exploring(setting)
        self.model = LocalModel(
            algorithm.own,
            setting,
            self.clients,
            seed,
            acquisition=algorithm.acquisition,
            avoid=algorithm.repeats == "avoid",
            failures=algorithm.failures,
        )

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """Expected values of the clients' own models at shared points, ``(n, k)``; NaN where nothing is known."""
        self._check(broadcast)
        return self.model.expected(self.seen, broadcast.round + 1, units, self.read(broadcast))

    def read(self, broadcast: Broadcast) -> Pooled | None:
        """The pool in a broadcast; None before the first."""
        arrays, m = broadcast.arrays, self._algorithm.n_features
        if "pooled" not in arrays:
            return None
        weights = np.asarray(arrays["pooled"], dtype=np.float64)
        stddev = np.asarray(arrays["noise_stddev"], dtype=np.float64)
        if weights.shape != (m,) or not np.isfinite(weights).all() or not stddev >= 0.0:
            raise ConfigurationError(
                f"round {broadcast.round}: pooled weights of shape {weights.shape} must be finite and of shape "
                f"({m},), their noise {stddev} at least 0"
            )
        return self._decoder.pool(weights, float(stddev), broadcast.round)

    def first(self) -> Iterable[FloatArray]:
        """The beginning of every client's exploring start."""
        return self._start()[: self._algorithm.n_init]

    def points(self, broadcast: Broadcast, shared: Pooled | None) -> FloatArray:
        """Go on with the exploring start, or choose by the own model, ``(n, n_dims)``."""
        if broadcast.round <= self._exploring and (shared is None or not shared.leads):
            return np.asarray(self._start()[self._algorithm.n_init + broadcast.round - 1])
        return self.model.propose(self.seen, broadcast.round, shared)

    def _start(self) -> FloatArray:
        points = first_points(self.setting, self.clients, self._algorithm.n_init + self._exploring)
        return points.swapaxes(0, 1)

    def asks(self, round_: int) -> bool:
        """Whether a round ends with a release."""
        return round_ in self._releases

    def weights(self, rows: IntArray, round_: int) -> torch.Tensor:
        """Ridge weights of the shared features given some clients' histories up to a round, of length S.

        What clients brought along counts for their own models only: no other party knows where it was evaluated.
        """
        observed = self.seen.observations(rows, round_, self.failures, earlier=False)
        weights = ridge_mean(self.features_of(observed), observed.values, self._algorithm.noise)
        return self.tensor(self._algorithm.clipping_norm * of_length_one(weights.cpu().numpy()))


class ScoutClients(Clients):
    """Clients of a scout: values at public points, as one vector of norm 1 per client."""

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the broadcast's points, unless that was done before; answer with values of norm 1.

        Returns:
            One vector per client, ``(n, n_points)``; a NaN row is an absence, of who knows no two different values.

        Raises:
            ConfigurationError: If the broadcast holds no points of this run's space.
        """
        points, n_dims = np.asarray(broadcast.arrays.get("points", ()), dtype=np.float64), self.setting.space.n_dims
        if points.ndim != 2 or points.shape[1] != n_dims or not ((points >= 0.0) & (points <= 1.0)).all():
            raise ConfigurationError(f"points of shape {points.shape} must lie in the unit cube of {n_dims} dimensions")
        if not len(self.seen.rounds):
            for point in points:
                self.seen.query(np.tile(point, (len(self.clients), 1)), broadcast.round, fixed=True)
        values, _ = standardise(self.seen.values, np.isfinite(self.seen.values))
        return np.where(values.any(axis=1, keepdims=True), of_length_one(values), np.nan)


class Sites(Clients):
    """Sites that keep what they evaluated.

    A site's points after the front are functions of its own values and of all releases; they are never released. With
    ``is_common`` they are those that are announced, which follow from releases alone; values at them are released.

    Args:
        setting: Of the run.
        n_points: Points of every site's front, and of any second release.
        is_shared: Whether they are released.
        is_common: Whether the points that are announced are what sites evaluate after the front.
        clients: Which sites.
        evaluate: Their objectives.
        seed: Of their models.
    """

    model: LocalModel

    def __init__(
        self,
        setting: Setting,
        n_points: tuple[int, ...],
        *,
        is_shared: bool,
        is_common: bool,
        clients: IntArray,
        evaluate: Evaluate,
        seed: int,
    ) -> None:
        super().__init__(setting, clients=clients, evaluate=evaluate)
        self._records, self._is_common = setting.records if is_shared else None, is_common
        self._n_points, self._n_front, self._prior = n_points, n_points[0], dict[tuple[bytes, bytes], Pooled | None]()
        self.model = LocalModel(SharedPriorSettings().own, setting, self.clients, seed, avoid=True, failures="worst")

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the front, announced points or one point per site, unless this round was answered before.

        Returns:
            In a round with a release the centred sums of every site's scores at its points, ``(n, k)``, those of a
            failed evaluation as if all its records had the lowest score; else ``(n, 0)``.

        Raises:
            ConfigurationError: If the broadcast has a wrong shape.
        """
        seen, records, round_ = self.seen, self._records, broadcast.round
        if not len(seen.rounds):
            for points in front(self.setting, self.clients, self._n_front).swapaxes(0, 1):
                seen.query(points, INITIAL_ROUND, fixed=True)
        if round_ > max(0, seen.rounds[-1]):
            for points in self._announced(broadcast) if self._is_common else self._own(broadcast)[None]:
                seen.query(points, round_, fixed=True)
        if round_ >= len(self._n_points) or records is None:
            return np.empty((len(self.clients), 0))
        values = seen.values[:, seen.rounds == (round_ or INITIAL_ROUND)]
        counts = np.array(records.counts, dtype=np.float64)[self.clients]
        return np.asarray(counts[:, None] * (np.where(np.isfinite(values), values, records.low) - records.middle))

    def _own(self, broadcast: Broadcast) -> FloatArray:
        """Every site's next point: the rest of a start, if releases say too little, or by its own model."""
        prior, place = self._prior_of(broadcast), self._n_front + broadcast.round
        if prior is None and place <= STARTING:
            return np.asarray(front(self.setting, self.clients, place)[:, -1])
        return self.model.propose(self.seen, broadcast.round, prior)

    def _announced(self, broadcast: Broadcast) -> FloatArray:
        """The points of a second release, or the common setting, once for every site, ``(k, n, n_dims)``."""
        is_last, space = broadcast.round >= len(self._n_points), self.setting.space
        name, count = ("the common setting", 1) if is_last else ("points", self._n_points[broadcast.round])
        points = np.asarray(broadcast.arrays.get(CHOSEN if is_last else "points", ()), dtype=np.float64)
        shape = (space.n_dims,) if is_last else (count, space.n_dims)
        if points.shape != shape:
            raise ConfigurationError(f"round {broadcast.round}: {name} of shape {points.shape} must have shape {shape}")
        return np.tile(points.reshape(count, 1, space.n_dims), (1, len(self.clients), 1))

    def _prior_of(self, broadcast: Broadcast) -> Pooled | None:
        """What all releases say of every site's surface, None if too little; made once: all of them come at once."""
        if self._records is None:
            return None
        means, noise = (np.asarray(broadcast.arrays.get(name, ())) for name in ("means", "noise_stddev"))
        shape = (self.setting.n_clients, self._n_front)
        if means.shape != shape or noise.shape != shape[:1] or not (noise >= 0.0).all():
            raise ConfigurationError(
                f"round {broadcast.round}: means of shape {means.shape} and noise_stddev of shape {noise.shape} "
                f"must have shapes {shape} and {shape[:1]}"
            )
        key = means.tobytes(), noise.tobytes()
        if key not in self._prior:
            points = front(self.setting, np.arange(self.setting.n_clients), self._n_front)
            posterior = Posterior(self.setting.space, Releases.of_front(points, means, noise))
            self._prior = {key: of_releases(posterior, self.device) if posterior.stands_out else None}
        return self._prior[key]
