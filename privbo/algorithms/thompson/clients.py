"""The private side of DP-FTS-DE: many clients at once (Algorithm 2 of the paper).

All that is kept is what was evaluated. An answer, a model and a choice are functions of
the history up to a round and of the client's streams, so answering a round twice, or
after a restart, gives the same vector without new evaluations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.design import first_in_regions
from privbo.algorithms.thompson.engine import LocalEngine
from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations, Values
from privbo.algorithms.thompson.exploration import Regions, assign_regions
from privbo.algorithms.thompson.growing import GrowingRidge
from privbo.algorithms.thompson.maximise import Search, maximise
from privbo.algorithms.thompson.own import OwnActors, chunks
from privbo.algorithms.thompson.posterior import Observations, ridge_sample
from privbo.algorithms.thompson.settings import ThompsonSettings, digest_array, shared_vectors
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms, public_stream
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting

_LARGEST = 2**15  # clients of one cohort, as runs group them


class Agents:
    """Clients of DP-FTS-DE, batched over all of them.

    Attributes:
        algorithm: The settings.
        setting: The run's facts.
        seen: Everything that was evaluated.
        ridge: Factors of the shared features that grow with the histories; None where they would not fit in memory.
        values: Scale on which clients model and share their values.
    """

    values: Values = "standardised"

    def __init__(
        self,
        algorithm: ThompsonSettings,
        setting: Setting,
        *,
        clients: IntArray,
        evaluate: Evaluate,
        seed: int,
    ) -> None:
        self.algorithm, self.setting = algorithm, setting
        self._clients = np.asarray(clients, dtype=np.int64)
        self._seed = seed
        self._device = torch.device(setting.device)
        self._regions = algorithm.regions(setting)
        self._home = assign_regions(setting.n_clients, algorithm.n_regions)[self._clients]
        self._features = algorithm.draw_features(setting)
        self._own = OwnActors(algorithm.own, setting, clients=self._clients, seed=seed)
        self.seen = Evaluations(self._clients, evaluate, setting.space, self._device)
        self.ridge = self._growing()

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        return self._clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Query a point per client, unless this round was answered before; answer with weights.

        Returns:
            One vector per client, ``(n, n_features)``; NaN rows are absences (nothing known,
            or this round's evaluation failed). ``(n, 0)`` in a round that asks for nothing.

        Raises:
            ConfigurationError: If the broadcast speaks of another run or has a wrong shape.
        """
        self._check(broadcast)
        if not len(self.seen.rounds):
            self._initialise()
            if self.seen.n_earlier:
                self.ridge = self._growing()
        if broadcast.round > self.seen.rounds[-1] and broadcast.round > 0:
            self.seen.query(self.points(broadcast), broadcast.round)
        return self._answer(broadcast.round)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and fitted models; private."""
        return {**self.seen.snapshot(), **self._own.snapshot()}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        self.seen.restore(snapshot)
        self._own.restore(snapshot)
        self.ridge = self._growing()

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        return self.seen.history()

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """Expected values of the clients' own models at shared points, ``(n, k)``; NaN where nothing is known."""
        self._check(broadcast)
        own = dataclasses.replace(self.algorithm.own, draw="paths")
        engine = LocalEngine(
            own, self.setting, acquisition="log-ei", avoid=False, clients=self._clients, seed=self._seed
        )
        return engine.expected(self.seen, broadcast.round + 1, None, units)

    def _check(self, broadcast: Broadcast) -> None:
        if not np.array_equal(broadcast.arrays.get("features", ()), digest_array(self._features.digest)):
            raise ConfigurationError(
                "the server's random features differ from this client's; use the same public seed and settings"
            )
        if not np.array_equal(broadcast.arrays.get("rounds", ()), self.setting.rounds):
            raise ConfigurationError(
                f"the server's run has {broadcast.arrays.get('rounds')} rounds, this client's "
                f"{self.setting.rounds}; use the same setting"
            )

    def _initialise(self) -> None:
        """Query n_init random points of every client's own region (Algorithm 2, line 2)."""
        space, count = self.setting.space, self.algorithm.n_init
        regions = self._regions if self.algorithm.start == "region" else Regions.of(1, space)
        homes = self._home % regions.count
        draws = client_uniforms(self._seed, self._clients, 0, Stream.INITIAL, 4 * count * space.n_dims)
        points, short = first_in_regions(regions, homes, count, space, draws)
        streams = client_streams(self._seed, self._clients[short], 0, Stream.INITIAL)
        for row, generator in zip(short, streams, strict=True):
            points[row] = regions.sample(int(homes[row]), count, space, generator)
        for index in range(count):
            self.seen.query(points[:, index], INITIAL_ROUND)

    def vectors(self, broadcast: Broadcast) -> FloatArray | None:
        """The broadcast's vectors, ``(n_regions, n_features)``; None in a round that carries none."""
        return shared_vectors(broadcast, (self.algorithm.n_regions, self.algorithm.n_features))

    def alone(self, round_: int) -> npt.NDArray[np.bool_]:
        """Clients whose coin says that they act on their own posteriors, ``(n,)``."""
        probability = self.algorithm.exploration.own_probability(round_)
        return client_uniforms(self._seed, self._clients, round_, Stream.CHOICE)[:, 0] < probability

    def points(self, broadcast: Broadcast) -> FloatArray:
        """Choose the maximiser of the own draw or of the shared function, by every client's coin, ``(n, n_dims)``."""
        vectors, round_ = self.vectors(broadcast), broadcast.round
        alone = np.ones(len(self.clients), dtype=bool) if vectors is None else self.alone(round_)
        points = np.empty((len(alone), self.setting.space.n_dims))
        self.own_points(points, np.flatnonzero(alone), round_)
        if vectors is not None and not alone.all():
            points[~alone] = self.shared_maximiser(vectors, round_)
        return points

    def own_points(self, points: FloatArray, rows: IntArray, round_: int) -> None:
        """Write the maximisers of draws from own models into ``points``."""
        for chunk in chunks(rows, self._own.entries(len(self.seen.rounds)), self._device):
            observations = self.known(chunk, round_ - 1)
            points[chunk] = self._own.maximisers(chunk, observations, self.seen.before(chunk, round_), round_)

    def shared_maximiser(self, vectors: FloatArray, round_: int) -> FloatArray:
        """Maximiser of phi(x) . vectors[region(x)], the same for all clients (Algorithm 2, line 8)."""
        search = Search(n_candidates=self.algorithm.n_candidates, n_starts=8)
        generator = public_stream(self.setting.public_seed, Stream.CANDIDATES, round_)
        best = maximise(self.heights(vectors), self.setting.space, search, generator)
        return np.asarray(best[0])

    def heights(self, vectors: FloatArray) -> Callable[[FloatArray], torch.Tensor]:
        """The shared function: phi(x) . vectors[region(x)]."""
        weights = self._tensor(vectors)

        def heights(units: FloatArray) -> torch.Tensor:
            found = self._features(self._tensor(self.setting.space.embed(units))) @ weights.T
            regions = torch.as_tensor(self._regions.index(units), device=self._device)
            return found.gather(-1, regions[..., None])[..., 0]

        return heights

    def _answer(self, round_: int) -> FloatArray:
        """Weights of the shared features given the history up to a round (Algorithm 2, line 10)."""
        algorithm, n = self.algorithm, len(self._clients)
        if not algorithm.asks(round_, self.setting.rounds):
            return np.empty((n, 0))
        self._extend_ridge()
        answer = np.empty((n, algorithm.n_features))
        entries = 3 * len(self.seen.rounds) * algorithm.n_features + algorithm.n_features**2
        with torch.no_grad():
            pieces = chunks(np.arange(n), entries, self._device) if self.ridge is None else [np.arange(n)]
            for chunk in pieces:
                answer[chunk] = self.weights(chunk, round_).cpu().numpy()
        answer[self.seen.lacking(round_)] = np.nan
        return answer

    def weights(self, rows: IntArray, round_: int) -> torch.Tensor:
        """Draw from the posterior of some clients' weights of the shared features, ``(n, n_features)``."""
        clients, seen = self._clients[rows], self.known(rows, round_)
        prior = self._normals(clients, round_, Stream.SHARED_SAMPLE, self.algorithm.n_features)
        noise = self._normals(clients, round_, Stream.SHARED_NOISE, seen.values.shape[1])
        if self.ridge is not None:
            return self.ridge.sample(seen.values, prior=prior, observation_noise=noise)
        level = self.algorithm.regularisation(self.setting.rounds)
        return ridge_sample(self.features_of(seen), seen.values, level, prior=prior, observation_noise=noise)

    def known(self, rows: IntArray, round_: int) -> Observations:
        """Histories of some clients up to and including a round, on the scale that they share."""
        return self.seen.observations(rows, round_, self.values)

    def features_of(self, seen: Observations) -> torch.Tensor:
        """Shared features of observations, ``(n, t, n_features)``; zero where one is missing."""
        return self._features(seen.embedded) * seen.mask[..., None]

    def _growing(self) -> GrowingRidge | None:
        """Factors that grow with the histories; None where they would not fit in memory."""
        algorithm, setting = self.algorithm, self.setting
        size = {
            # Of the run's clients, not the cohort's: whether factors grow must not depend on how clients are grouped.
            "n_clients": min(setting.n_clients, _LARGEST),
            "capacity": self.seen.n_earlier + algorithm.n_init + setting.rounds,
            "n_features": algorithm.n_features,
        }
        if not algorithm.asks(0, setting.rounds) or not GrowingRidge.fits(**size):
            return None
        size["n_clients"] = len(self._clients)
        return GrowingRidge(**size, noise=algorithm.regularisation(setting.rounds), device=self._device)

    def _extend_ridge(self) -> None:
        """Append what was evaluated since the last answer."""
        ridge = self.ridge
        while ridge is not None and ridge.count < len(self.seen.rounds):
            index = ridge.count
            mask = torch.as_tensor(np.isfinite(self.seen.values[:, index]), device=self._device)
            embedded = self._tensor(self.setting.space.embed(self.seen.units[:, index]))
            ridge.append(self._features(embedded[:, None])[:, 0] * mask[:, None])

    def _normals(self, clients: IntArray, round_: int, stream: Stream, count: int) -> torch.Tensor:
        return self._tensor(client_normals(self._seed, clients, round_, stream, (count,)))

    def _tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)
