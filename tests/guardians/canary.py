"""An algorithm all of whose clients send one number that is easily found again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from privbo.protocol.messages import Ask, Broadcast, ClientHistory, Evaluate, IntArray, Release, Request, Setting
from privbo.protocol.settings import settings

CANARY = 0.7071067811865476 * 0.123456789


@settings(table="algorithm")
class Canary:
    """Sends the canary in three rounds."""

    caveat = None
    is_certified = False
    answers_together = True

    def server(self, setting: Setting) -> Courier:
        return Courier(setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Birds:
        return Birds(clients)

    def local(self) -> Canary:
        return self


class Courier:
    def __init__(self, setting: Setting) -> None:
        n = setting.n_clients
        self.request = Request(dim=5, clipping_norm=1.0, weights=np.full((1, n), 1.0 / n))
        self.round, self.rounds = 0, setting.rounds

    def plan(self) -> Iterator[Request]:
        return iter([self.request] * self.rounds)

    def ask(self) -> Ask | None:
        done = self.round == self.rounds
        return None if done else Ask(broadcast=Broadcast(round=self.round), request=self.request)

    def tell(self, release: Release | None) -> None:
        self.round += 1


@dataclass
class Birds:
    clients: IntArray

    def respond(self, broadcast: Broadcast) -> np.ndarray:
        return np.full((len(self.clients), 5), CANARY)

    def snapshot(self) -> Mapping[str, np.ndarray]:
        return {}

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        pass

    def history(self) -> ClientHistory:
        n = len(self.clients)
        return ClientHistory(
            units=np.zeros((n, 0, 2)), values=np.zeros((n, 0)), rounds=np.zeros(0, int), recommended=np.zeros((n, 2))
        )
