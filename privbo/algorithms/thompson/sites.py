"""The private side of the multi-task process: sites release their front, and go on alone or as is announced."""

from __future__ import annotations

import numpy as np

from privbo.algorithms.thompson.clients import Clients
from privbo.algorithms.thompson.evaluations import INITIAL_ROUND
from privbo.algorithms.thompson.local_model import LocalModel
from privbo.algorithms.thompson.pooled import Pooled, of_releases
from privbo.algorithms.thompson.releases import STARTING, Posterior, Releases, front
from privbo.algorithms.thompson.settings import BROAD, QUIET, OwnModel
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Arrays, Broadcast, Evaluate, FloatArray, IntArray, Setting

_OWN = OwnModel(outputscale=BROAD, noise=QUIET)


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
        self.model = LocalModel(_OWN, setting, self.clients, seed, avoid=True, failures="worst")

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

    def snapshot(self) -> Arrays:
        """Evaluations and fitted models; private."""
        return {**super().snapshot(), **self.model.snapshot()}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        super().restore(snapshot)
        self.model.restore(snapshot)
