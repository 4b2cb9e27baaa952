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

from privbo.algorithms.thompson.engine import LocalEngine
from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations
from privbo.algorithms.thompson.exploration import Regions, assign_regions
from privbo.algorithms.thompson.growing import GrowingRidge
from privbo.algorithms.thompson.informed import Shared
from privbo.algorithms.thompson.maximise import Search, maximise
from privbo.algorithms.thompson.own import OwnActors, chunks
from privbo.algorithms.thompson.posterior import ridge_mean, ridge_sample
from privbo.algorithms.thompson.settings import ThompsonSettings, digest_array, shared_vectors
from privbo.algorithms.thompson.streams import Stream, client_normals, client_streams, client_uniforms, public_stream
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


class Agents:
    """Clients of DP-FTS-DE, batched over all of them."""

    def __init__(
        self, algorithm: ThompsonSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int
    ) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._clients = np.asarray(clients, dtype=np.int64)
        self._seed = seed
        self._device = torch.device(setting.device)
        self._regions = algorithm.regions(setting)
        self._home = assign_regions(setting.n_clients, algorithm.n_regions)[self._clients]
        self._features = algorithm.draw_features(setting)
        self._own = OwnActors(algorithm.own, setting, clients=self._clients, seed=seed)
        self._seen = Evaluations(self._clients, evaluate, setting.space, self._device)
        self._ridge = self._growing_ridge()

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
        if not len(self._seen.rounds):
            self._initialise()
        if broadcast.round > self._seen.rounds[-1] and broadcast.round > 0:
            self._step(broadcast)
        return self._answer(broadcast.round)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and fitted models; private."""
        return {**self._seen.snapshot(), **self._own.snapshot()}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        self._seen.restore(snapshot)
        self._own.restore(snapshot)
        self._ridge = self._growing_ridge()

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        return self._seen.history()

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """Expected values of the clients' own models at shared points, ``(n, k)``; NaN where nothing is known."""
        self._check(broadcast)
        own = dataclasses.replace(self._algorithm.own, draw="paths")
        engine = LocalEngine(
            own, self._setting, acquisition="log-ei", avoid=False, clients=self._clients, seed=self._seed
        )
        return engine.expected(self._seen, broadcast.round + 1, None, units)

    def _check(self, broadcast: Broadcast) -> None:
        if not np.array_equal(broadcast.arrays.get("features", ()), digest_array(self._features)):
            raise ConfigurationError(
                "the server's random features differ from this client's; use the same public seed and settings"
            )
        if not np.array_equal(broadcast.arrays.get("rounds", ()), self._setting.rounds):
            raise ConfigurationError(
                f"the server's run has {broadcast.arrays.get('rounds')} rounds, this client's "
                f"{self._setting.rounds}; use the same setting"
            )

    def _initialise(self) -> None:
        """Query n_init random points of every client's own region (Algorithm 2, line 2)."""
        space, count = self._setting.space, self._algorithm.n_init
        points = np.empty((len(self._clients), count, space.n_dims))
        regions = self._regions if self._algorithm.start == "region" else Regions.of(1, space)
        streams = client_streams(self._seed, self._clients, 0, Stream.INITIAL)
        for row, region, generator in zip(points, self._home % regions.count, streams, strict=True):
            row[...] = regions.sample(int(region), count, space, generator)
        for index in range(count):
            self._seen.query(points[:, index], INITIAL_ROUND)

    def _step(self, broadcast: Broadcast) -> None:
        """Query one point per client: its own draw's maximiser or that of the shared vectors."""
        round_ = broadcast.round
        shape = (self._algorithm.n_regions, self._algorithm.n_features)
        vectors = shared_vectors(broadcast, shape)
        uniform = self._algorithm.federated_step == "uniform" and self._algorithm.federates(round_)
        alone = np.ones(len(self._clients), dtype=bool)
        if vectors is not None or uniform:
            probability = self._algorithm.exploration.own_probability(round_)
            alone = client_uniforms(self._seed, self._clients, round_, Stream.CHOICE) < probability
        points = np.empty((len(self._clients), self._setting.space.n_dims))
        self._own_points(points, np.flatnonzero(alone), round_, None)
        if alone.all():
            pass
        elif vectors is None:
            points[~alone] = self._uniform_points(self._clients[~alone], round_, Stream.INITIAL)
        elif self._algorithm.federated_step == "informed":
            stddev = float(np.asarray(broadcast.arrays["noise_stddev"], dtype=np.float64))
            shared = Shared(heights=self._heights(vectors), noise_stddev=stddev)
            self._own_points(points, np.flatnonzero(~alone), round_, shared)
        else:
            points[~alone] = self._shared_maximiser(vectors, round_)
        if self._algorithm.repeats == "replace":
            again = (self._seen.units == points[:, None]).all(axis=2).any(axis=1)
            points[again] = self._uniform_points(self._clients[again], round_, Stream.REPLACEMENT)
        self._seen.query(points, round_)

    def _own_points(self, points: FloatArray, rows: IntArray, round_: int, shared: Shared | None) -> None:
        """Write the maximisers of draws from own models into ``points``."""
        for chunk in chunks(rows, self._own.entries(len(self._seen.rounds)), self._device):
            observations = self._seen.observations(chunk, round_ - 1, self._algorithm.values)
            known = self._seen.before(chunk, round_)
            points[chunk] = self._own.maximisers(chunk, observations, known, round_, shared)

    def _shared_maximiser(self, vectors: FloatArray, round_: int) -> FloatArray:
        """Maximiser of phi(x) . vectors[region(x)], the same for all clients (Algorithm 2, line 8)."""
        search = Search(n_candidates=self._algorithm.n_candidates, n_starts=8)
        generator = public_stream(self._setting.public_seed, Stream.CANDIDATES, round_)
        best = maximise(self._heights(vectors), self._setting.space, search, generator)
        return np.asarray(best[0])

    def _heights(self, vectors: FloatArray) -> Callable[[FloatArray], torch.Tensor]:
        """The shared function: phi(x) . vectors[region(x)]."""
        weights = self._tensor(vectors)

        def heights(units: FloatArray) -> torch.Tensor:
            found = self._features(self._tensor(self._setting.space.embed(units))) @ weights.T
            regions = torch.as_tensor(self._regions.index(units), device=self._device)
            return found.gather(-1, regions[..., None])[..., 0]

        return heights

    def _uniform_points(self, clients: IntArray, round_: int, stream: Stream) -> FloatArray:
        """A random point per client."""
        n_dims = self._setting.space.n_dims
        streams = client_streams(self._seed, clients, round_, stream)
        drawn = np.array([generator.random(n_dims) for generator in streams])
        return self._setting.space.snap(drawn.reshape(-1, n_dims))

    def _answer(self, round_: int) -> FloatArray:
        """Weights of the shared features given the history up to a round (Algorithm 2, line 10)."""
        algorithm, n = self._algorithm, len(self._clients)
        if not algorithm.asks(round_, self._setting.rounds):
            return np.empty((n, 0))
        self._extend_ridge()
        answer = np.empty((n, algorithm.n_features))
        entries = 3 * len(self._seen.rounds) * algorithm.n_features + algorithm.n_features**2
        with torch.no_grad():
            pieces = chunks(np.arange(n), entries, self._device) if self._ridge is None else [np.arange(n)]
            for chunk in pieces:
                answer[chunk] = self._weights(chunk, round_).cpu().numpy()
        answer[self._seen.lacking(round_)] = np.nan
        return answer

    def _weights(self, rows: IntArray, round_: int) -> torch.Tensor:
        algorithm, clients = self._algorithm, self._clients[rows]
        seen = self._seen.observations(rows, round_, algorithm.values)
        normals: dict[str, torch.Tensor] = {}
        if algorithm.share == "sample":
            normals["prior"] = self._normals(clients, round_, Stream.SHARED_SAMPLE, algorithm.n_features)
            normals["observation_noise"] = self._normals(clients, round_, Stream.SHARED_NOISE, seen.values.shape[1])
        if self._ridge is not None:
            return self._ridge.sample(seen.values, **normals) if normals else self._ridge.mean(seen.values)
        features = self._features(seen.embedded) * seen.mask[..., None]
        noise = algorithm.regularisation(self._setting.rounds)
        if normals:
            return ridge_sample(features, seen.values, noise, **normals)
        return ridge_mean(features, seen.values, noise)

    def _growing_ridge(self) -> GrowingRidge | None:
        """Factors that grow with the histories; None where they would not fit in memory."""
        algorithm, setting = self._algorithm, self._setting
        size = {
            "n_clients": len(self._clients),
            "capacity": algorithm.n_init + setting.rounds,
            "n_features": algorithm.n_features,
        }
        if not algorithm.asks(0, setting.rounds) or not GrowingRidge.fits(**size):
            return None
        return GrowingRidge(**size, noise=algorithm.regularisation(setting.rounds), device=self._device)

    def _extend_ridge(self) -> None:
        """Append what was evaluated since the last answer."""
        ridge = self._ridge
        while ridge is not None and ridge.count < len(self._seen.rounds):
            index = ridge.count
            mask = torch.as_tensor(np.isfinite(self._seen.values[:, index]), device=self._device)
            embedded = self._tensor(self._setting.space.embed(self._seen.units[:, index]))
            ridge.append(self._features(embedded) * mask[:, None])

    def _normals(self, clients: IntArray, round_: int, stream: Stream, count: int) -> torch.Tensor:
        return self._tensor(client_normals(self._seed, clients, round_, stream, (count,)))

    def _tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)
