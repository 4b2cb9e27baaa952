"""A central model on noisy means: the server proposes common points by its own Gaussian process.

The mean score over clients is the objective. Its releases are noisy observations whose noise is known exactly, so the
process takes it as it is. Points follow from releases and public randomness only.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from privbo.algorithms.common.clients import SearchClients
from privbo.algorithms.common.forms import Scores
from privbo.algorithms.common.making import clients_of, server_of
from privbo.algorithms.common.model import Posterior, expected_improvement, fit
from privbo.algorithms.common.search import Question, Search, Seen
from privbo.algorithms.common.server import SearchServer
from privbo.algorithms.common.settings import CommonSettings, net, stream
from privbo.protocol.messages import Evaluate, FloatArray, IntArray, Setting
from privbo.protocol.settings import Count, settings

_NEAR, _STEP = 256, 0.05  # candidates around the best point so far, and how far from it they stand
_LARGEST_GRID = 4096


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The server's model of the mean score.

    Attributes:
        setting: Of the run.
        n_init: Points before there is a model.
        n_candidates: Points among which the next one is chosen.
        width: Of the scores' range.
    """

    setting: Setting
    n_init: int
    n_candidates: int
    width: float

    def propose(self, seen: Seen, count: int) -> Question:
        """Name the first points, then those of the largest expected improvement."""
        if not len(seen.points):
            return Question(points=net(self.setting, self.n_init)[:count])
        posterior, points = self._fit(seen), self._candidates(seen)
        best = float(posterior.at(self._embed(seen.points))[0].max())
        mean, stddev = posterior.at(self._embed(points))
        return Question(points=points[np.lexsort((-stddev, -expected_improvement(mean, stddev, best)))[:count]])

    def choose(self, seen: Seen) -> int:
        """Choose the point whose expected score is largest."""
        return int(self._fit(seen).at(self._embed(seen.points))[0].argmax())

    def _fit(self, seen: Seen) -> Posterior:
        return fit(self._embed(seen.points), seen.means, seen.stddev, self.width)

    def _embed(self, points: FloatArray) -> FloatArray:
        return self.setting.space.embed(points)

    def _candidates(self, seen: Seen) -> FloatArray:
        """Points that were not evaluated yet: spread over the space, and around the best one so far."""
        space, turn = self.setting.space, len(seen.points)
        whole = space.grid(_LARGEST_GRID)
        if whole is None:
            best = seen.points[self.choose(seen)]
            moves = _STEP * stream(self.setting, turn, 1).standard_normal((_NEAR, space.n_dims))
            near = space.snap(np.clip(best + moves, 0.0, 1.0))
            whole = np.concatenate([net(self.setting, self.n_candidates, turn), near[space.allows(near)]])
        new = ~(whole[:, None] == seen.points[None]).all(axis=-1).any(axis=1)
        return np.asarray(whole[new])


@settings(table="algorithm")
class CentralModel(CommonSettings):
    """Private Bayesian optimisation of the mean score by one model at the server.

    In the first round clients score ``n_init`` points that fill the space, then one point a round: that of the
    largest expected improvement of the server's Gaussian process, which knows released means only. In the end the
    evaluated point with the largest expected score is announced.

    .. versionadded:: 0.3.0

    Attributes:
        n_init: Points of the first round.
        n_candidates: Points among which the server chooses the next one.
        reward_range: Declared bounds of a score; it is clipped to them.
        evaluations: Most evaluations of one client over the whole run; None: ``n_init`` and one in every further round.
        alone: Nothing is shared: every client has a model of its own scores.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=40)
        >>> pb.plan(problem, pb.CentralModel(evaluations=22), privacy=pb.Privacy(epsilon=2.0), rounds=40).releases
        19
    """

    type: Literal["central-model"] = field(default="central-model", repr=False)
    n_init: Count = 4
    n_candidates: Count = 1024

    def search(self, setting: Setting) -> Search:
        """Give the search of a run."""
        whole = setting.space.grid(_LARGEST_GRID)
        low, high = self.reward_range
        model = _Model(setting=setting, n_init=self.n_init, n_candidates=self.n_candidates, width=high - low)
        first = len(net(setting, self.n_init))
        return Search(
            counts=self.schedule(first, 1, setting, math.inf if whole is None else len(whole)),
            form=Scores(low=low, high=high),
            propose=model.propose,
            choose=model.choose,
        )

    def local(self) -> CentralModel:
        """Give the same clients with nothing shared, each with a model of its own.

        Example:
            >>> import privbo as pb
            >>> pb.CentralModel().local().alone
            True
        """
        return dataclasses.replace(self, alone=True)

    def server(self, setting: Setting) -> SearchServer:
        """Make the public side."""
        return server_of(self, self.search(setting), setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> SearchClients:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return clients_of(self, self.search(setting), setting, clients, evaluate)
