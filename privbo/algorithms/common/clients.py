"""The private side: clients that evaluate common points, or search alone where nothing is shared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privbo.algorithms.common.search import Question, Search, Seen
from privbo.protocol.common import CHOSEN
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


class SearchClients:
    """Clients of a search for a common setting.

    Args:
        search: The search, which every client makes on its own values where nothing is shared.
        setting: What both sides are told.
        alone: Whether nothing is shared.
        reward_range: Declared bounds of a score.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.
    """

    def __init__(
        self,
        search: Search,
        setting: Setting,
        *,
        alone: bool,
        reward_range: tuple[float, float],
        clients: IntArray,
        evaluate: Evaluate,
    ) -> None:
        self._search, self._setting, self._alone, self._range = search, setting, alone, reward_range
        self._clients, self._evaluate = np.asarray(clients, dtype=np.int64), evaluate
        n, d = len(self._clients), setting.space.n_dims
        self._state: dict[str, npt.NDArray[np.generic]] = {
            "units": np.empty((n, 0, d)),
            "values": np.empty((n, 0)),
            "rounds": np.empty(0, dtype=np.int64),
            "pulls": np.empty(0, dtype=np.int64),  # of the points of each evaluation's round
            "chosen": np.empty((0, d)),
        }

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients."""
        return self._clients

    @property
    def _units(self) -> FloatArray:
        return np.asarray(self._state["units"], dtype=np.float64)

    @property
    def _values(self) -> FloatArray:
        return np.asarray(self._state["values"], dtype=np.float64)

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the points of a round, unless it was answered before, and say how good they are.

        Returns:
            One vector per client, ``(n, k)``; ``(n, 0)`` where nothing is asked for.
        """
        n = len(self._clients)
        if CHOSEN in broadcast.arrays:
            self._state["chosen"] = np.asarray(broadcast.arrays[CHOSEN], dtype=np.float64)[None]
            return np.empty((n, 0))
        if broadcast.round not in self._state["rounds"]:
            points, pulls = self._own(broadcast.round) if self._alone else _told(broadcast, n)
            self._query(np.tile(points, (1, pulls, 1)), pulls, broadcast.round)
        return (
            np.empty((n, 0))
            if self._alone
            else self._search.form.vectors(self._of(broadcast.round), self._setting.unit)
        )

    def _of(self, round_: int) -> FloatArray:
        """Values of a round, ``(n, pulls, k)``."""
        here = self._state["rounds"] == round_
        pulls = int(self._state["pulls"][here][0])
        return self._values[:, here].reshape(len(self._clients), pulls, -1)

    def _query(self, points: FloatArray, pulls: int, round_: int) -> None:
        """Evaluate points ``(n, k, n_dims)``, of which every ``k / pulls`` are the same."""
        n, k, d = points.shape
        found = np.asarray(self._evaluate(np.repeat(self._clients, k), points.reshape(-1, d)), dtype=np.float64)
        values = np.where(np.isfinite(found), found, np.nan).reshape(n, k)
        low, high = self._range
        for client in self._clients[((values < low) | (values > high)).any(axis=1)]:
            self._evaluate.note(
                int(client),
                f"a score outside reward_range=({low:g}, {high:g}) was clipped; normalise the objective",
            )
        state = self._state
        state["units"] = np.concatenate([self._units, points], axis=1)
        state["values"] = np.concatenate([self._values, values], axis=1)
        state["rounds"] = np.append(state["rounds"], np.full(k, round_))
        state["pulls"] = np.append(state["pulls"], np.full(k, pulls))

    def _own(self, round_: int) -> tuple[FloatArray, int]:
        """The next points of clients that search alone, ``(n, k, n_dims)``, and the pulls of each."""
        seen = [Seen.nothing(self._setting.space.n_dims) for _ in self._clients]
        for earlier in np.unique(self._state["rounds"]):
            values, points = self._of(int(earlier)), self._units[:, self._state["rounds"] == earlier]
            known = np.where(np.isfinite(values), values, self._range[0])
            asked = [Question(points=p[: values.shape[2]], pulls=values.shape[1]) for p in points]
            seen = [s.with_more(q, v, 0.0) for s, q, v in zip(seen, asked, known.mean(axis=1), strict=True)]
        found = [self._search.propose(one, self._search.counts[round_]) for one in seen]
        told = [question for question in found if question is not None]
        return np.array([question.points for question in told]), told[0].pulls

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything (private)."""
        return dict(self._state)

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        self._state = {name: np.array(array) for name, array in snapshot.items()}

    def history(self) -> ClientHistory:
        """Every evaluation; the winner is recommended once it is announced, before and alone the client's own best."""
        values, units = self._values, self._units
        n, d = len(self._clients), self._setting.space.n_dims
        if len(self._state["chosen"]):
            recommended = np.tile(np.asarray(self._state["chosen"], dtype=np.float64), (n, 1))
        elif values.shape[1]:
            best = np.where(np.isfinite(values), values, -np.inf).argmax(axis=1)
            recommended = units[np.arange(n), best]
        else:
            recommended = np.full((n, d), np.nan)
        rounds = np.asarray(self._state["rounds"], dtype=np.int64)
        return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended)


def _told(broadcast: Broadcast, n: int) -> tuple[FloatArray, int]:
    points = np.asarray(broadcast.arrays["points"], dtype=np.float64)
    return np.tile(points, (n, 1, 1)), int(broadcast.arrays["pulls"])
