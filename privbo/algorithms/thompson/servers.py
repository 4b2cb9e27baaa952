"""The public sides of DP-FTS-DE (Algorithm 1 of the paper) and of the shared prior: they see releases only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from privbo.algorithms.thompson.exploration import assign_regions
from privbo.algorithms.thompson.settings import SharedPriorSettings, ThompsonSettings, digest_array
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Array, Arrays, Ask, Broadcast, FloatArray, Release, Request, Setting

if TYPE_CHECKING:
    from privbo.algorithms.thompson.maximise import Functions


class RoundServer:
    """One round after the other, each with one release at most; what is asked for follows from the round's number.

    Args:
        last: The last round.
    """

    _request: Callable[[int], Request | None]  # of a round
    _arrays: Callable[[], Arrays]  # to be broadcast in the current one

    def __init__(self, last: int) -> None:
        self._round, self._end = 0, last

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order; weights are made as they are asked for."""
        requests = (self._request(round_) for round_ in range(self._end + 1))
        return (request for request in requests if request is not None)

    def ask(self) -> Ask | None:
        """The current round; None after the last."""
        if self._round > self._end:
            return None
        broadcast = Broadcast(round=self._round, arrays=self._arrays())
        return Ask(broadcast=broadcast, request=self._request(self._round))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request of a broadcast's round."""
        return self._request(broadcast.round)

    def tell(self, release: Release | None) -> None:
        """Take the release of a round, and move on.

        Raises:
            ConfigurationError: If the round ends otherwise than planned: a release is missing, or was not asked for.
        """
        planned = self._request(self._round)
        if (release is None) != (planned is None):
            raise ConfigurationError(
                f"round {self._round} {'ends with' if planned else 'has no'} release, told {release!r}"
            )
        self._take(release)
        self._round += 1

    def _take(self, release: Release | None) -> None:
        """Learn from what a round ended with."""


class PoolingServer(RoundServer):
    """The weighted mean of all releases."""

    _function: Callable[[FloatArray, float], Functions | None]  # of pooled weights and their noise, if it stands out

    def __init__(self, algorithm: ThompsonSettings | SharedPriorSettings, setting: Setting) -> None:
        super().__init__(setting.rounds)
        self._setting = setting
        self._features = digest_array(algorithm.draw_features(setting).digest)
        self._weights: Mapping[int, float] = {}  # of releases in the pool, by round, where they are not equal
        self._sum = np.zeros(algorithm.n_features)
        self._weight, self._noise_variance = 0.0, 0.0
        self._last: Release | None = None

    def _take(self, release: Release | None) -> None:
        """Add the round's release to the pool."""
        if release is not None:
            weight = self._weights.get(self._round, 1.0)
            self._sum = self._sum + weight * np.asarray(release.values, dtype=np.float64).mean(axis=0)
            self._weight += weight
            self._noise_variance += (weight * release.noise_stddev) ** 2 / len(release.values)
        self._last = release

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: the maxima of the pooled function, or points that fill the space."""
        from privbo.algorithms.thompson.maximise import peaks  # loads torch, which no round of the server needs

        function = self._function(*self._pool()) if self._weight else None
        return peaks(self._setting, function, count)

    def _pool(self) -> tuple[FloatArray, float]:
        """Pooled weights, and the standard deviation of the noise in every one of them."""
        return self._sum / self._weight, math.sqrt(self._noise_variance) / self._weight

    def _arrays(self) -> dict[str, Array]:
        return {
            "rounds": np.array(self._setting.rounds, dtype=np.int64),
            "features": self._features,
        }


class ThompsonServer(PoolingServer):
    """Algorithm 1: weights for every round, the last release for the next broadcast."""

    def __init__(self, algorithm: ThompsonSettings, setting: Setting) -> None:
        algorithm.regions(setting)  # refuses an impossible partition before any data is touched
        super().__init__(algorithm, setting)
        self._algorithm = algorithm
        self._assignment = assign_regions(setting.n_clients, algorithm.n_regions)

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

    def _arrays(self) -> dict[str, Array]:
        public = super()._arrays()
        if self._last is not None:
            public["vectors"] = np.asarray(self._last.values, dtype=np.float64)
            public["noise_stddev"] = np.array(self._last.noise_stddev, dtype=np.float64)
        return public

    def _function(self, weights: FloatArray, noise_stddev: float) -> Functions | None:
        from privbo.algorithms.thompson.pooled import function_of

        return function_of(self._algorithm.draw_features(self._setting), self._setting, weights, noise_stddev)


class SharedPriorServer(PoolingServer):
    """The weighted mean of all releases so far; it goes out with every round."""

    def __init__(self, algorithm: SharedPriorSettings, setting: Setting) -> None:
        super().__init__(algorithm, setting)
        self._algorithm = algorithm
        self._releases = algorithm.releases(setting)
        self._weights = {at: algorithm.pool_weight(at, share) for at, share in self._releases.items()}

    def _request(self, round_: int) -> Request | None:
        share = self._releases.get(round_)
        return None if share is None else self._algorithm.request(share, self._setting.n_clients)

    def _arrays(self) -> dict[str, Array]:
        public = super()._arrays()
        if self._weight > 0.0:
            weights, noise_stddev = self._pool()
            public["pooled"], public["noise_stddev"] = weights, np.array(noise_stddev)
        return public

    def _function(self, weights: FloatArray, noise_stddev: float) -> Functions | None:
        from privbo.algorithms.thompson.pooled import Decoder

        decoder = Decoder(self._algorithm, self._setting, self._algorithm.draw_features(self._setting))
        if not decoder.stands_out(weights, noise_stddev):
            return None
        pooled = decoder.pool(weights, noise_stddev, self._round)
        return lambda units: pooled.function(units)[0]
