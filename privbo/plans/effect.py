"""Whether what a run would release can change anything, or gain anything, by public numbers alone.

Clients that are all alike answer as loudly as clipping allows. If even then the run would be the same without
their sums, its releases say nothing: none is made and nothing is charged. Algorithms that fit a model to what is
released name the least signal-to-noise ratio that gains (``least_signal_to_noise``). For the others alike clients are
played on drawn surfaces, with their sums and without, under the same noise, until they differ.

The noise drawn here hides nothing: it is seeded, and meets no client's data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np

from privbo.door.mechanism import PrivateSum
from privbo.plans.plan import Plan
from privbo.protocol.common import CHOSEN, ReleaseWhen
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    Cohort,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Release,
    Request,
    Server,
    Setting,
)

_SURFACES, _CLEAR = 40, 6  # most surfaces, and the lead of one answer over the other at which no more are drawn
_WAVES = 8
_FREQUENCY = 3.0  # standard deviation, in radians over the cube's side: about one hill or valley per coordinate
_NET = 512  # points by which a surface is stretched over the range of rewards
_LOOKS = 24  # most turns of evaluations between two releases, or after the last; runs that differ do so in the first


def is_optional(algorithm: Algorithm) -> bool:
    """Tell whether an algorithm leaves out releases that can change nothing; one that does not say makes them all."""
    return getattr(algorithm, "release_when", "always") == "useful"


def always(algorithm: Algorithm) -> Algorithm:
    """Give the algorithm that makes all its releases, whatever they can change: for studies of it, and for tests."""
    return _releasing(algorithm, "always") if is_optional(algorithm) else algorithm


def useful(algorithm: Algorithm) -> Algorithm:
    """Give the algorithm that leaves out what can change nothing, if it has the setting; else the same."""
    return _releasing(algorithm, "useful") if hasattr(algorithm, "release_when") else algorithm


def _releasing(algorithm: Algorithm, when: ReleaseWhen) -> Algorithm:
    return cast("Algorithm", dataclasses.replace(cast("Any", algorithm), release_when=when))


def acts(algorithm: Algorithm, setting: Setting, plan: Plan) -> bool:
    """Tell whether releases, at their loudest, change a point or the common answer with probability one half, or gain.

    Args:
        algorithm: What is run.
        setting: Public facts of the run.
        plan: With every release that the algorithm can make.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=12)
        >>> def releases(epsilon):
        ...     return pb.plan(problem, pb.PFPNE(horizon=22), privacy=pb.Privacy(epsilon=epsilon), rounds=20).releases
        >>> releases(2.0), releases(40.0)
        (0, 5)
    """
    if plan.largest_over_noise is None:
        return True
    least: Callable[[Setting], float] | None = getattr(algorithm, "least_signal_to_noise", None)
    if least is not None:
        return plan.largest_over_noise >= least(setting)
    lead = 0  # of surfaces on which runs differ over those on which they don't
    for surface in range(_SURFACES):
        lead += 1 if _differs(algorithm, setting, plan, surface) else -1
        if abs(lead) == _CLEAR:
            break
    return lead >= 0


def _differs(algorithm: Algorithm, setting: Setting, plan: Plan, seed: int) -> bool:
    """Whether alike clients on a drawn surface evaluate, use or announce another point than by noise alone."""
    loud, zeroed = (_Side(algorithm, setting, seed) for _ in range(2))
    rng = np.random.default_rng([seed, 1])
    while True:
        ask, other = loud.ask(), zeroed.ask()
        if loud.done != zeroed.done:
            return True
        if ask is None or other is None or loud.turns > _LOOKS:
            return False
        if ask.request is None or other.request is None:
            loud.server.tell(None)
            zeroed.server.tell(None)
            continue
        mechanism = plan.mechanism(ask.request)
        stddev = mechanism.noise_stddev() if isinstance(mechanism, PrivateSum) else 0.0
        noise = rng.normal(0.0, stddev, (ask.request.n_blocks, ask.request.dim))
        loud.tell(ask, noise + loud.sums(ask.request), stddev)
        zeroed.tell(other, noise, stddev)


class _TiredError(Exception):
    """A client has been looked at for long enough."""


class _Side:
    """All clients of a run as one, which they are while they are alike, on a drawn surface.

    Attributes:
        server, cohort: The public side, and the one client.
        done: What the last round did, to be compared: points that were evaluated, announced or would be used.
        turns: Of evaluations since the last release.
    """

    def __init__(self, algorithm: Algorithm, setting: Setting, seed: int) -> None:
        self.done: list[bytes] = []
        self.turns = 0
        self._asked: list[bytes] = []
        self._answer = np.zeros(0)
        low, high = getattr(algorithm, "reward_range", (0.0, 1.0))
        share = _surface(seed, setting.space.n_dims)

        def pull(_clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
            self.turns += 1
            if self.turns > _LOOKS:
                raise _TiredError
            self._asked.append(units.tobytes() + counts.tobytes())
            return low + (high - low) * share(units)

        evaluate = PlainEvaluate(lambda clients, units: pull(clients, units, np.ones(len(units), int)), pull=pull)
        one = np.zeros(1, dtype=np.int64)
        self.cohort: Cohort = algorithm.cohort(setting, clients=one, evaluate=evaluate, seed=seed)
        self.server: Server = algorithm.server(setting)

    def ask(self) -> Ask | None:
        """Ask the server, and let the client answer."""
        ask = self.server.ask()
        if ask is None:
            self.done = [b"over", self.cohort.history().recommended.tobytes()]
            return None
        self._asked.clear()
        with suppress(_TiredError):
            self._answer = np.asarray(self.cohort.respond(ask.broadcast), dtype=np.float64)
        chosen = ask.broadcast.arrays.get(CHOSEN)
        shape = b"local" if ask.request is None else str((ask.request.n_blocks, ask.request.dim)).encode()
        self.done = [shape, b"" if chosen is None else chosen.tobytes(), *self._asked]
        return ask

    def sums(self, request: Request) -> FloatArray:
        """What is released of clients that all give this answer, without noise, ``(n_blocks, dim)``."""
        answer = self._answer[0] if np.isfinite(self._answer[0]).all() else np.zeros(request.dim)
        bound, norm = request.clipping_norm / np.sqrt(request.n_blocks), float(np.linalg.norm(answer))
        return np.outer(request.weights.sum(axis=1), answer * min(1.0, bound / max(norm, 1e-300)))

    def tell(self, ask: Ask, values: FloatArray, stddev: float) -> None:
        """Tell the server a release."""
        round_, self.turns = ask.broadcast.round, 0
        self.server.tell(Release(round=round_, values=values, noise_stddev=stddev, sequence=round_, head=""))


def _surface(seed: int, n_dims: int) -> Callable[[FloatArray], FloatArray]:
    """A smooth random function on the cube, a sum of waves, whose values fill the range from 0 to 1."""
    rng = np.random.default_rng([seed, 0])
    frequencies = rng.normal(0.0, _FREQUENCY, (_WAVES, n_dims))
    phases = rng.uniform(0.0, 2.0 * np.pi, _WAVES)

    def waves(units: FloatArray) -> FloatArray:
        return np.asarray(np.cos(units @ frequencies.T + phases).sum(axis=1))

    net = waves(rng.random((_NET, n_dims)))
    return lambda units: np.clip((waves(units) - net.min()) / (net.max() - net.min()), 0.0, 1.0)
