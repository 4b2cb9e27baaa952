"""A central model on noisy means: the server proposes common points by its own Gaussian process.

The mean score over clients is the objective. Its releases are noisy observations whose noise is known exactly, so the
process takes it as it is. Points follow from releases and public randomness only.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import ndtr

from experiments.baselines.common import CommonSearch, Question, Scores, Search, Seen, net, stream
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.settings import Count, settings

_NEAR, _STEP = 256, 0.05  # candidates around the best point so far, and how far from it they stand
_LARGEST_GRID = 4096
# Under wide log-normal priors a dozen noisy means tell no more than a grid does, and a grid has no local optimum.
_LENGTHSCALES = np.geomspace(0.05, 2.0, 12)  # times the root of the number of coordinates
_AMPLITUDES = np.geomspace(0.02, 1.0, 8)  # times the width of the scores' range
_CENTRES, _SPREAD = (0.3, 0.2), 1.0  # medians of the priors, and their spread in logarithms
_NUGGET = 1e-6  # of the amplitude's square


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
class CentralModel(CommonSearch):
    """Private Bayesian optimisation of the mean score by one model at the server.

    In the first round clients score ``n_init`` points that fill the space, then one point a round: that of the
    largest expected improvement of the server's Gaussian process, which knows released means only. In the end the
    evaluated point with the largest expected score is announced.

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
        >>> pb.plan(problem, CentralModel(evaluations=22), privacy=pb.Privacy(epsilon=2.0), rounds=40).releases
        19
    """

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


# ---- a Gaussian process over few points with known noise


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """A fitted process.

    Attributes:
        points: ``(m, e)``, embedded.
        factor: Lower Cholesky factor of the covariance of what was observed.
        weights: Its inverse times the centred observations, ``(m,)``.
        mean, lengthscale, amplitude: Of the process.
    """

    points: FloatArray
    factor: FloatArray
    weights: FloatArray
    mean: float
    lengthscale: float
    amplitude: float

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Give mean and standard deviation at embedded points ``(k, e)``."""
        cross = self.amplitude**2 * matern(points, self.points, self.lengthscale)
        mean = self.mean + cross @ self.weights
        explained = (solve_triangular(self.factor, cross.T, lower=True) ** 2).sum(axis=0)
        return mean, np.sqrt(np.maximum(self.amplitude**2 - explained, 0.0))


def matern(first: FloatArray, second: FloatArray, lengthscale: float) -> FloatArray:
    """Give the Matern-5/2 correlations of points ``(a, e)`` and ``(b, e)``, ``(a, b)``.

    Example:
        >>> float(matern(np.zeros((1, 2)), np.zeros((1, 2)), 0.5)[0, 0])
        1.0
    """
    distance = np.sqrt(((first[:, None] - second[None]) ** 2).sum(axis=-1)) * (math.sqrt(5.0) / lengthscale)
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


def fit(points: FloatArray, means: FloatArray, stddev: FloatArray, width: float) -> Posterior:
    """Fit a process to noisy means.

    Args:
        points: ``(m, e)``, embedded.
        means: Observations, ``(m,)``.
        stddev: Standard deviation of the noise in each, ``(m,)``.
        width: Of the range that the true means lie in.
    """
    found: tuple[float, Posterior] | None = None
    for length, amplitude in itertools.product(_LENGTHSCALES, _AMPLITUDES):
        lengthscale, height = float(length) * math.sqrt(points.shape[1]), float(amplitude) * width
        covariance = height**2 * matern(points, points, lengthscale)
        covariance += np.diag(stddev**2 + _NUGGET * height**2)
        factor = cholesky(covariance, lower=True)
        ones = cho_solve((factor, True), np.ones(len(means)))
        mean = float(ones @ means / ones.sum())
        weights = cho_solve((factor, True), means - mean)
        prior = sum((math.log(x / c) / _SPREAD) ** 2 for x, c in zip((length, amplitude), _CENTRES, strict=True))
        score = -0.5 * float((means - mean) @ weights) - float(np.log(np.diag(factor)).sum()) - 0.5 * prior
        if found is None or score > found[0]:
            made = Posterior(
                points=points, factor=factor, weights=weights, mean=mean, lengthscale=lengthscale, amplitude=height
            )
            found = score, made
    if found is None:
        raise AssertionError("the grid has no point")
    return found[1]


def expected_improvement(mean: FloatArray, stddev: FloatArray, best: float) -> FloatArray:
    """Give E[max(f - best, 0)] of normal values ``(k,)``.

    Example:
        >>> expected_improvement(np.array([0.0, 1.0]), np.array([1.0, 0.0]), 0.5).round(4).tolist()
        [0.1978, 0.5]
    """
    gap = mean - best
    z = np.divide(gap, stddev, out=np.zeros_like(gap), where=stddev > 0.0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return np.where(stddev > 0.0, gap * ndtr(z) + stddev * density, np.maximum(gap, 0.0))
