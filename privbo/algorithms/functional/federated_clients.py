"""The private side of federated F-LCB: gradients and losses of the clients' own functions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privbo.algorithms.functional.federated_search import Search
from privbo.algorithms.functional.settings import Arms, FLCBSettings
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


def answers(
    algorithm: FLCBSettings,
    arms: Arms,
    evaluate: Evaluate,
    clients: IntArray,
    queries: FloatArray,
    points: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """One vector per client, and the objective at its point.

    Args:
        algorithm: Bounds and scales.
        arms: Which coordinates are free.
        evaluate: The clients' objectives.
        clients: Numbers, ``(n,)``.
        queries: Where the gradient is taken, ``(n, n_dims)``.
        points: Where the loss is taken, ``(n, n_dims)``.

    Returns:
        Clipped gradients of the loss and scaled losses, ``(n, n_free + 1)``, NaN where an
        evaluation failed; objectives at the points, ``(n,)``.
    """
    gradients = np.empty((len(clients), len(arms.free)))
    for column, axis in enumerate(arms.free):
        ends = []
        for sign in (1.0, -1.0):
            moved = queries.copy()
            moved[:, axis] = np.clip(moved[:, axis] + sign * algorithm.difference, 0.0, 1.0)
            ends.append((moved[:, axis], evaluate(clients, moved)))
        (right, above), (left, below) = ends
        gradients[:, column] = -(above - below) / (right - left)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients *= np.minimum(1.0, algorithm.gradient_bound / np.maximum(norms, 1e-300))
    objective = evaluate(clients, points)
    losses = -np.clip(objective, *algorithm.reward_range)
    vectors = np.column_stack([gradients, algorithm.loss_scale * (losses - algorithm.centre)])
    vectors[~np.isfinite(vectors).all(axis=1)] = np.nan
    return vectors, objective


class _Record:
    """One evaluation per client and round: the objective at the point its loss was taken."""

    def __init__(self, n_clients: int, n_dims: int, recommended: FloatArray) -> None:
        self.units = np.empty((n_clients, 0, n_dims))
        self.values = np.empty((n_clients, 0))
        self.rounds = np.empty(0, dtype=np.int64)
        self.recommended = np.broadcast_to(recommended, (n_clients, n_dims)).copy()
        self.vectors = np.empty((0, n_clients, 0))

    def add(self, round_: int, points: FloatArray, values: FloatArray, vectors: FloatArray) -> None:
        self.units = np.concatenate([self.units, points[:, None, :]], axis=1)
        self.values = np.concatenate([self.values, values[:, None]], axis=1)
        self.rounds = np.append(self.rounds, round_)
        self.vectors = vectors[None] if not self.vectors.size else np.concatenate([self.vectors, vectors[None]])

    def answered(self, round_: int) -> FloatArray | None:
        at = np.flatnonzero(self.rounds == round_)
        return self.vectors[at[0]] if len(at) else None

    def history(self) -> ClientHistory:
        return ClientHistory(units=self.units, values=self.values, rounds=self.rounds, recommended=self.recommended)

    def snapshot(self) -> dict[str, npt.NDArray[np.generic]]:
        return {name: np.asarray(value) for name, value in vars(self).items()}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        for name in vars(self):
            setattr(self, name, np.array(snapshot[name]))


class FederatedCohort:
    """Clients that answer (arm, point) with gradient and loss; where nothing is shared, each runs its own search."""

    def __init__(self, algorithm: FLCBSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._algorithm, self._evaluate = algorithm, evaluate
        self._clients = np.asarray(clients, dtype=np.int64)
        self._arms = algorithm.arms(setting.space)
        shares = algorithm.share == "gradients"
        self._searches = None if shares else [Search(algorithm, setting) for _ in self._clients]
        start = self._arms.unit(0, np.full(len(self._arms.free), algorithm.start))
        self._record = _Record(len(self._clients), setting.space.n_dims, start)

    @property
    def clients(self) -> IntArray:
        """Global numbers, ``(n,)``."""
        return self._clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Gradient and loss at the broadcast point; the announcement is evaluated, not answered."""
        vectors = self._record.answered(broadcast.round)
        if vectors is None:
            vectors = self._play(broadcast)
        silent = self._searches is not None or "query" not in broadcast.arrays
        return np.zeros((len(self._clients), 0)) if silent else vectors

    def _play(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate what is asked for, or what the clients' own searches ask for."""
        told = {name: np.asarray(array, dtype=np.float64) for name, array in broadcast.arrays.items()}
        n = len(self._clients)
        if self._searches is not None:
            asked = [(search.selected, search.states[search.selected]) for search in self._searches]
            queries = np.array([self._arms.unit(arm, state.query) for arm, state in asked])
            points = np.array([self._arms.unit(arm, state.point) for arm, state in asked])
        else:
            self._record.recommended[:] = told["best"]
            points = np.tile(told["point"] if "query" in told else told["best"], (n, 1))
            queries = np.tile(told.get("query", points[0]), (n, 1))
        if self._searches is None and "query" not in told:
            vectors, values = np.zeros((n, len(self._arms.free) + 1)), self._evaluate(self._clients, points)
        else:
            vectors, values = answers(self._algorithm, self._arms, self._evaluate, self._clients, queries, points)
        self._record.add(broadcast.round, points, values, vectors)
        self._learn(vectors)
        return vectors

    def _learn(self, vectors: FloatArray) -> None:
        """Tell the clients' own searches what their clients found."""
        algorithm, searches = self._algorithm, self._searches
        for i, (search, vector) in enumerate(() if searches is None else zip(searches, vectors, strict=True)):
            if np.isfinite(vector).all():
                loss = algorithm.centre + vector[-1] / algorithm.loss_scale
                search.absorb(search.selected, vector[:-1], loss, noise=0.0, loss_noise=0.0)
                self._record.recommended[i] = search.best

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and answers so far; own searches follow from them."""
        return self._record.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot`` and replay its answers."""
        self._record.restore(snapshot)
        for vectors in self._record.vectors:
            self._learn(vectors)

    def history(self) -> ClientHistory:
        """One evaluation per round and client, at the point whose loss was asked."""
        return self._record.history()
