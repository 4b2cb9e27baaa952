"""The public side of the shared prior: it pools releases and sees nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from privbo.algorithms.thompson.prior_settings import SharedPriorSettings
from privbo.algorithms.thompson.settings import digest_array
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Release, Request, Setting


class SharedPriorServer:
    """The weighted mean of all releases so far; it goes out with every round."""

    def __init__(self, algorithm: SharedPriorSettings, setting: Setting) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._releases = {release.round: release for release in algorithm.releases(setting)}
        self._features = digest_array(algorithm.draw_features(setting).digest)
        self._round = 0
        self._sum = np.zeros(algorithm.n_features)
        self._weight, self._noise_variance = 0.0, 0.0

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order."""
        return (self._algorithm.request(release, self._setting.n_clients) for release in self._releases.values())

    def foregone(self) -> Iterator[Request]:
        """Requests that are not made because noise would drown even equal answers of all clients."""
        given_up = () if self._releases else self._algorithm.usable(self._setting)
        return (self._algorithm.request(release, self._setting.n_clients) for release in given_up)

    def ask(self) -> Ask | None:
        """The current round; None after the last."""
        if self._round > self._setting.rounds:
            return None
        broadcast = Broadcast(round=self._round, arrays=self._arrays())
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request of a broadcast's round."""
        release = self._releases.get(broadcast.round)
        return None if release is None else self._algorithm.request(release, self._setting.n_clients)

    def tell(self, release: Release | None) -> None:
        """Add the round's release to the pool."""
        planned = self._releases.get(self._round)
        if (release is not None) != (planned is not None):
            raise ConfigurationError(
                f"round {self._round} {'ends with' if planned else 'has no'} release, told {release!r}"
            )
        if release is not None and planned is not None:
            weight = self._algorithm.pool_weight(planned)
            self._sum = self._sum + weight * np.asarray(release.values, dtype=np.float64)[0]
            self._weight += weight
            self._noise_variance += (weight * release.noise_stddev) ** 2
        self._round += 1

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: the highest points of the pooled function, or points that fill the space."""
        from privbo.algorithms.thompson.peaks import peaks  # loads torch, which no round of the server needs
        from privbo.algorithms.thompson.pooled import Blurs, pool

        pooled = None
        if self._weight > 0.0:
            features = self._algorithm.draw_features(self._setting)
            blurred = Blurs(self._algorithm, self._setting, features).before(self._round)
            weights, stddev = self._sum / self._weight, math.sqrt(self._noise_variance) / self._weight
            pooled = pool(features, self._setting, weights, stddev, blurred)
        return peaks(self._setting, None if pooled is None else pooled.heights, count)

    def _arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        public: dict[str, npt.NDArray[np.generic]] = {
            "rounds": np.array(self._setting.rounds, dtype=np.int64),
            "features": self._features,
        }
        if self._weight > 0.0:
            public["pooled"] = self._sum / self._weight
            public["noise_stddev"] = np.array(math.sqrt(self._noise_variance) / self._weight)
        return public
