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
    """Clients that answer (arm, point) with gradient and loss."""

    def __init__(self, algorithm: FLCBSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._algorithm, self._evaluate = algorithm, evaluate
        self._clients = np.asarray(clients, dtype=np.int64)
        self._arms = algorithm.arms(setting.space)
        start = self._arms.unit(0, np.full(len(self._arms.free), algorithm.start))
        self._record = _Record(len(self._clients), setting.space.n_dims, start)

    @property
    def clients(self) -> IntArray:
        """Global numbers, ``(n,)``."""
        return self._clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Gradient and loss at the broadcast point; the announcement is evaluated, not answered."""
        known = self._record.answered(broadcast.round)
        if known is not None:
            return known
        arrays, n = broadcast.arrays, len(self._clients)
        self._record.recommended[:] = arrays["best"]
        if "query" not in arrays:
            points = np.tile(np.asarray(arrays["best"], dtype=np.float64), (n, 1))
            vectors = np.zeros((n, len(self._arms.free) + 1))
            self._record.add(broadcast.round, points, self._evaluate(self._clients, points), vectors)
            return np.zeros((n, 0))
        queries = np.tile(np.asarray(arrays["query"], dtype=np.float64), (n, 1))
        points = np.tile(np.asarray(arrays["point"], dtype=np.float64), (n, 1))
        vectors, values = answers(self._algorithm, self._arms, self._evaluate, self._clients, queries, points)
        self._record.add(broadcast.round, points, values, vectors)
        return vectors

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and answers so far."""
        return self._record.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        self._record.restore(snapshot)

    def history(self) -> ClientHistory:
        """One evaluation per round, at the point whose loss was asked."""
        return self._record.history()


class LocalCohort:
    """The control: every client runs F-LCB alone on its own function with exact gradients."""

    def __init__(self, algorithm: FLCBSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._algorithm, self._evaluate = algorithm, evaluate
        self._clients = np.asarray(clients, dtype=np.int64)
        self._searches = [Search(algorithm, setting) for _ in self._clients]
        self._arms = algorithm.arms(setting.space)
        start = self._arms.unit(0, np.full(len(self._arms.free), algorithm.start))
        self._record = _Record(len(self._clients), setting.space.n_dims, start)

    @property
    def clients(self) -> IntArray:
        """Global numbers, ``(n,)``."""
        return self._clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """One pull of every client's own search; nothing is sent."""
        if self._record.answered(broadcast.round) is None:
            selected = [search.selected for search in self._searches]
            states = [s.states[arm] for s, arm in zip(self._searches, selected, strict=True)]
            pairs = list(zip(selected, states, strict=True))
            queries = np.array([self._arms.unit(arm, state.query) for arm, state in pairs])
            points = np.array([self._arms.unit(arm, state.point) for arm, state in pairs])
            vectors, values = answers(self._algorithm, self._arms, self._evaluate, self._clients, queries, points)
            self._record.add(broadcast.round, points, values, vectors)
            self._learn(vectors)
        return np.zeros((len(self._clients), 0))

    def _learn(self, vectors: FloatArray) -> None:
        algorithm = self._algorithm
        for i, (search, vector) in enumerate(zip(self._searches, vectors, strict=True)):
            if np.isfinite(vector).all():
                loss = algorithm.centre + vector[-1] / algorithm.loss_scale
                search.absorb(search.selected, vector[:-1], loss, noise=0.0, loss_noise=0.0)
                self._record.recommended[i] = search.best

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and answers so far; the searches follow from them."""
        return self._record.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot`` and replay its answers."""
        self._record.restore(snapshot)
        for vectors in self._record.vectors:
            self._learn(vectors)

    def history(self) -> ClientHistory:
        """One evaluation per round and client."""
        return self._record.history()
