"""The private side of the shared prior: many clients at once, each with its own model.

All that is kept is what was evaluated and the fitted models. What a client answers is a function of
its history up to a round, so a round that is asked twice is answered the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.design import first_points
from privbo.algorithms.thompson.engine import LocalEngine
from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations, without_depths
from privbo.algorithms.thompson.own import chunks
from privbo.algorithms.thompson.pooled import Blurs, Pooled, pool
from privbo.algorithms.thompson.posterior import ridge_mean
from privbo.algorithms.thompson.prior_settings import SharedPriorSettings
from privbo.algorithms.thompson.settings import digest_array
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


class PriorClients:
    """Clients of the shared prior, batched over all of them."""

    def __init__(
        self, algorithm: SharedPriorSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int
    ) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._device = torch.device(setting.device)
        self._seen = Evaluations(clients, evaluate, setting.space, self._device)
        self._features = algorithm.draw_features(setting)
        self._releases = algorithm.releases(setting)
        self._blurs = Blurs(algorithm, setting, self._features)
        self._exploring = algorithm.exploring(setting)
        self._engine = LocalEngine(
            algorithm.own,
            setting,
            acquisition=algorithm.acquisition,
            avoid=algorithm.repeats == "avoid",
            clients=self.clients,
            seed=seed,
            failures=algorithm.failures,
        )

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        return self._seen.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Query a point per client, unless this round was answered before; answer with weights.

        Returns:
            One vector per client, ``(n, n_features)``; NaN rows are absences (nothing known, or this round's
            evaluation failed). ``(n, 0)`` in a round that asks for nothing.

        Raises:
            ConfigurationError: If the broadcast speaks of another run or has a wrong shape.
        """
        pooled = self._read(broadcast)
        round_, n_init = broadcast.round, self._algorithm.n_init
        if not len(self._seen.rounds):
            for points in self._start()[:, :n_init].swapaxes(0, 1):
                self._seen.query(points, INITIAL_ROUND)
        if round_ > max(0, self._seen.rounds[-1]):
            if round_ <= self._exploring and (pooled is None or not pooled.leads):
                self._seen.query(self._start()[:, n_init + round_ - 1], round_)
            else:
                self._seen.query(self._engine.points(self._seen, round_, pooled), round_)
        return self._answer(round_)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and fitted models; private."""
        return {**self._seen.snapshot(), **self._engine.snapshot()}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        self._seen.restore(snapshot)
        self._engine.restore(snapshot)

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        return self._seen.history()

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """Expected values of the clients' own models at shared points, ``(n, k)``; NaN where nothing is known."""
        return self._engine.expected(self._seen, broadcast.round + 1, self._read(broadcast), units)

    def _start(self) -> FloatArray:
        return first_points(self._setting, self.clients, self._algorithm.n_init + self._exploring)

    def _read(self, broadcast: Broadcast) -> Pooled | None:
        """The pool in a broadcast, once it is known to speak of this run."""
        arrays = broadcast.arrays
        if not np.array_equal(arrays.get("features", ()), digest_array(self._features.digest)):
            raise ConfigurationError(
                "the server's random features differ from this client's; use the same public seed and settings"
            )
        if not np.array_equal(arrays.get("rounds", ()), self._setting.rounds):
            raise ConfigurationError(
                f"the server's run has {arrays.get('rounds')} rounds, this client's {self._setting.rounds}; "
                "use the same setting"
            )
        if "pooled" not in arrays:
            return None
        weights = np.asarray(arrays["pooled"], dtype=np.float64)
        stddev = np.asarray(arrays["noise_stddev"], dtype=np.float64)
        if weights.shape != (self._algorithm.n_features,) or not np.isfinite(weights).all() or not stddev >= 0.0:
            raise ConfigurationError(
                f"round {broadcast.round}: pooled weights of shape {weights.shape} must be finite and of shape "
                f"({self._algorithm.n_features},), their noise {stddev} at least 0"
            )
        return pool(self._features, self._setting, weights, float(stddev), self._blurs.before(broadcast.round))

    def _answer(self, round_: int) -> FloatArray:
        """Ridge weights of the shared features given the history up to a round."""
        algorithm, n = self._algorithm, len(self.clients)
        if all(release.round != round_ for release in self._releases):
            return np.empty((n, 0))
        answer = np.empty((n, algorithm.n_features))
        t = int((self._seen.rounds <= round_).sum())
        with torch.no_grad():
            for rows in chunks(np.arange(n), 3 * t * algorithm.n_features + t * t, self._device):
                seen = self._seen.observations(rows, round_)
                features = self._features(seen.embedded) * seen.mask[..., None]
                told = without_depths(seen.values.cpu().numpy(), seen.mask.cpu().numpy())
                values = torch.as_tensor(told, device=self._device)
                answer[rows] = ridge_mean(features, values, algorithm.noise).cpu().numpy()
        answer[self._seen.lacking(round_)] = np.nan
        return answer
