"""Federated Thompson sampling as first published (Dai, Low and Jaillet, NeurIPS 2020), for every agent at once.

Nobody sums anything: an agent receives the weights of every other agent's draw, and in a federated step picks one of
them at random and maximises it. Without privacy and without clipping; what the paper on DP-FTS-DE calls FTS is its own
algorithm with one region and no noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from experiments.baselines.dp_fts_de import OurAgents, Variant
from privbo.algorithms.thompson.maximise import Search, maximise
from privbo.algorithms.thompson.settings import digest_array, shared_vectors
from privbo.algorithms.thompson.streams import Stream, client_streams, public_stream
from privbo.protocol.messages import Ask, Broadcast, Cohort, Evaluate, FloatArray, IntArray, Release, Request, Setting
from privbo.protocol.settings import Count, settings

_UNCLIPPED = 1e9  # longer than any draw


@settings(table="algorithm")
class FTS(Variant):
    """Every agent keeps all vectors and picks one.

    Example:
        >>> FTS(n_features=50).n_regions
        1
    """

    answers_together: ClassVar[bool] = True
    type: Literal["fts"] = field(default="fts", repr=False)  # type: ignore[assignment]  # as a study names it
    share: Literal["mean", "sample"] = "sample"
    n_regions: Count = 1

    def server(self, setting: Setting) -> EveryVector:  # type: ignore[override]  # it forms no sums
        """Make the public side."""
        return EveryVector(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``."""
        return Picking(self, self.within(setting), clients=clients, evaluate=evaluate, seed=seed)


class EveryVector:
    """Server that passes every agent's vector on to all."""

    def __init__(self, algorithm: FTS, setting: Setting) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._round = 0
        self._last: Release | None = None

    def plan(self) -> Iterator[Request]:
        """Give every request of the run, in order."""
        requests = (self._request(round_) for round_ in range(self._setting.rounds + 1))
        return (request for request in requests if request is not None)

    def ask(self) -> Ask | None:
        """Give the current round; None after the last."""
        if self._round > self._setting.rounds:
            return None
        public: dict[str, npt.NDArray[np.generic]] = {
            "rounds": np.array(self._setting.rounds, dtype=np.int64),
            "features": digest_array(self._algorithm.draw_features(self._setting).digest),
        }
        if self._last is not None:
            public["vectors"] = np.asarray(self._last.values, dtype=np.float64)
        return Ask(broadcast=Broadcast(round=self._round, arrays=public), request=self._request(self._round))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request of a broadcast's round."""
        return self._request(broadcast.round)

    def tell(self, release: Release | None) -> None:
        """Keep the round's vectors for the next broadcast."""
        self._last = release
        self._round += 1

    def _request(self, round_: int) -> Request | None:
        if not self._algorithm.asks(round_, self._setting.rounds):
            return None
        apart = np.eye(self._setting.n_clients)
        return Request(dim=self._algorithm.n_features, clipping_norm=_UNCLIPPED, weights=apart)


class Picking(OurAgents):
    """Agents that choose the maximiser of an own draw, or of a draw of a random agent."""

    def read(self, broadcast: Broadcast) -> FloatArray | None:
        """Every agent's vector; None in a round that carries none."""
        return shared_vectors(broadcast, (self.setting.n_clients, self.algorithm.n_features))

    def points(self, broadcast: Broadcast, shared: FloatArray | None) -> FloatArray:
        """Choose the point of every agent in a round, ``(n, n_dims)``."""
        setting, round_ = self.setting, broadcast.round
        alone = np.ones(len(self.clients), dtype=bool) if shared is None else self.alone(round_)
        points = np.empty((len(alone), setting.space.n_dims))
        points[alone] = self.model.propose(self.seen, round_, rows=np.flatnonzero(alone))
        if shared is not None and not alone.all():
            streams = client_streams(self.seed, self.clients[~alone], round_, Stream.REPLACEMENT)
            picked = np.array([stream.integers(setting.n_clients) for stream in streams])
            points[~alone] = self._maximisers(shared[picked], round_)
        return points

    def _maximisers(self, vectors: FloatArray, round_: int) -> FloatArray:
        features, weights = self.algorithm.draw_features(self.setting), torch.as_tensor(vectors)[:, :, None]
        space = self.setting.space

        def draws(units: FloatArray) -> torch.Tensor:
            return (features(torch.as_tensor(space.embed(units))) @ weights)[..., 0]

        search = Search(n_candidates=self.algorithm.n_candidates, n_starts=8)
        return maximise(draws, space, search, public_stream(self.setting.public_seed, Stream.CANDIDATES, round_))
