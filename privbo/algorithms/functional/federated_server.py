"""The public side of federated F-LCB: T rounds of (arm, point), then the result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from privbo.algorithms.functional.federated_search import Search
from privbo.algorithms.functional.settings import FLCBSettings
from privbo.protocol.messages import Ask, Broadcast, Release, Request, Setting


class FederatedServer:
    """T rounds of (arm, point), then one round that announces the result and asks for nothing."""

    def __init__(self, algorithm: FLCBSettings, setting: Setting) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._search = Search(algorithm, setting)
        self._round = 0
        self._announced = False
        n = setting.n_clients
        self._request = Request(
            dim=len(self._search.arms.free) + 1,
            clipping_norm=algorithm.clipping_norm,
            weights=np.full((1, n), 1.0 / n),
        )

    def plan(self) -> Iterator[Request]:
        """T equal requests; none if nothing is shared."""
        shares = self._algorithm.share == "gradients"
        return iter([self._request] * (self._setting.rounds if shares else 0))

    def ask(self) -> Ask | None:
        """The arm with the smallest bound and its points; the result in the last round."""
        if self._announced:
            return None
        if self._algorithm.share == "nothing":
            return Ask(broadcast=Broadcast(round=self._round), request=None)
        search = self._search
        if self._round == self._setting.rounds or search.settled:
            arrays = {"best": search.best}
            return Ask(broadcast=Broadcast(round=self._round, arrays=arrays), request=None)
        arm = search.selected
        state = search.states[arm]
        arrays = {
            "arm": np.array([arm]),
            "query": search.arms.unit(arm, state.query),
            "point": search.arms.unit(arm, state.point),
            "best": search.best,
        }
        return Ask(broadcast=Broadcast(round=self._round, arrays=arrays), request=self._request)

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the one request that all broadcasts with an arm to pull have."""
        return self._request if "arm" in broadcast.arrays else None

    def tell(self, release: Release | None) -> None:
        """Absorb the answer; a round without request was local work or the announcement."""
        self._round += 1
        if release is None:
            self._announced = self._algorithm.share == "gradients" or self._round == self._setting.rounds
            return
        algorithm, values = self._algorithm, release.values[0]
        self._search.absorb(
            self._search.selected,
            values[:-1],
            algorithm.centre + float(values[-1]) / algorithm.loss_scale,
            noise=release.noise_stddev,
            loss_noise=release.noise_stddev / algorithm.loss_scale,
        )
