"""The private side of a scout: values at public points, as one vector of norm 1 per client."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations, standardise
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


class ScoutClients:
    """Clients of a scout, batched over all of them."""

    def __init__(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._n_dims = setting.space.n_dims
        self._seen = Evaluations(clients, evaluate, setting.space, torch.device("cpu"))

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        return self._seen.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the broadcast's points, unless that was done before; answer with values of norm 1.

        Returns:
            One vector per client, ``(n, n_points)``; a NaN row is an absence, of who knows no two different values.

        Raises:
            ConfigurationError: If the broadcast holds no points of this run's space.
        """
        points = np.asarray(broadcast.arrays.get("points", ()), dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self._n_dims or not ((points >= 0.0) & (points <= 1.0)).all():
            raise ConfigurationError(
                f"points of shape {points.shape} must lie in the unit cube of {self._n_dims} dimensions"
            )
        if not len(self._seen.rounds):
            for point in points:
                self._seen.query(np.tile(point, (len(self.clients), 1)), INITIAL_ROUND, fixed=True)
        values, _ = standardise(self._seen.values, np.isfinite(self._seen.values))
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        return np.asarray(np.where(norms > 0.0, values / np.where(norms > 0.0, norms, 1.0), np.nan))

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations; private."""
        return self._seen.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        self._seen.restore(snapshot)

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        return self._seen.history()
