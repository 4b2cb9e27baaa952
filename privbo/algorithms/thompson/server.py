"""The public side of DP-FTS-DE (Algorithm 1 of the paper): it sees releases and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from privbo.algorithms.thompson.exploration import assign_regions
from privbo.algorithms.thompson.settings import ThompsonSettings, digest_array
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Release, Request, Setting


class ThompsonServer:
    """Algorithm 1: weights for every round, the last release for the next broadcast."""

    def __init__(self, algorithm: ThompsonSettings, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        algorithm.regions(setting)  # refuses an impossible partition before any data is touched
        self._assignment = assign_regions(setting.n_clients, algorithm.n_regions)
        self._features = digest_array(algorithm.draw_features(setting).digest)
        self._round = 0
        self._last: Release | None = None
        self._sum = np.zeros(algorithm.n_features)
        self._noise_variance, self._count = 0.0, 0

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

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request of a broadcast's round."""
        return self._request(broadcast.round)

    def tell(self, release: Release | None) -> None:
        """Keep the round's release for the next broadcast."""
        wanted = self._algorithm.asks(self._round, self._setting.rounds)
        if (release is not None) != wanted:
            raise ConfigurationError(
                f"round {self._round} {'ends with' if wanted else 'has no'} release, told {release!r}"
            )
        if release is not None:
            self._sum = self._sum + np.asarray(release.values, dtype=np.float64).mean(axis=0)
            self._noise_variance += release.noise_stddev**2 / len(release.values)
            self._count += 1
        self._last = release
        self._round += 1

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: the heights of the mean of all releases, or points that fill the space."""
        from privbo.algorithms.thompson.peaks import peaks  # loads torch, which no round of the server needs
        from privbo.algorithms.thompson.pooled import heights_of

        heights = None
        if self._count:
            features, stddev = (
                self._algorithm.draw_features(self._setting),
                math.sqrt(self._noise_variance) / self._count,
            )
            heights = heights_of(features, self._setting, self._sum / self._count, stddev)
        return peaks(self._setting, heights, count)

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
