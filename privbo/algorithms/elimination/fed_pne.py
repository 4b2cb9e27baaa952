"""Fed-PNE: clients find the optimum of their average objective by phased node elimination.

Li et al., "Federated X-armed bandit". The server keeps a set of active nodes, all clients
pull every one of them equally often, and the averages decide which nodes go on to be split.
A run takes a handful of phases; each is one release. A client would use the point it has seen with
the largest lower confidence bound of its own rewards: the common best node, which the tail pulls most,
unless its own rewards say another is better. Where rewards carry no noise, say so with a small c.

Private form: a client's answer is its vector of mean rewards, centred, clipped to
``S = clip sqrt(K)``; every comparison of the server is widened by the release's noise.

*Certified* (the default): no cap, no clipping below the declared range. Where c covers the
reward noise, the optimum's cell survives with probability at least 1 - delta_b - 0.05.
*Heuristic* (``FedPNE.heuristic()``): a cap drops nodes untested and tight clipping biases
means, so no such probability is promised; the regret is far lower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.confidence import noise_half_width
from privbo.algorithms.elimination.phases import Phase, PhaseCohort, among_best, count_fitting, cut_to, equal_pulls
from privbo.algorithms.elimination.settings import CappedSettings
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Evaluate, FloatArray, IntArray, Release, Request, Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class FedPNE(CappedSettings):
    """Federated phased node elimination.

    ``rounds`` of a run is the largest number of phases; a run that has made them, or whose
    next phase does not fit the horizon, plays its tail in silence.

    | Form | settings | the optimum's cell survives |
    |---|---|---|
    | certified | no cap, nothing clipped (``clip=None``), ``widen >= 1`` | with probability 1 - 1/M - 0.05 |
    | heuristic | any other, such as ``FedPNE.heuristic()`` | perhaps; ``caveat`` says why it may not |

    The first row holds where c covers the reward noise. Privacy is that of the run's plan in both.

    Attributes:
        horizon: T, pulls of every client.
        evaluations: Most pulls of every client where that is less than T; a pull is one call of the objective.
        nu1: Variation of the average objective over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals; 0.1 covers reward noise of about +-0.1.
        c1: Factor in their logarithm.
        n_children: k, 2 or 3.
        expand: Before a phase the nodes are split while ``"ktau"``: K tau_h < M (or at the
            root), ``"tau"``: tau_h < M, ``"none"``: never.
        tail: What is left of the horizon: ``"commit"`` plays the best node, ``"printed"``
            starts the phase that does not fit, ``"stop"`` leaves it.
        cap: Most active nodes after the first phase, or None; the best ones are kept. A
            capped run may drop the optimum untested.
        releases: Most releases, or None for as many as rounds and horizon allow. Noise that
            is larger than what still separates nodes makes late phases a lottery.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened; below 1
            the survival of the optimum's cell is not covered.
        centre: ``"middle"`` or ``"client"``, what a client subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"clip"`` clips rewards outside, so that what is certified speaks of the clipped
            objective; ``"absent"`` counts them as failed. Their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> pb.FedPNE().is_certified, pb.FedPNE(cap=8).is_certified
        (True, False)
        >>> print(pb.FedPNE(cap=8).caveat.split(". ")[0])
        Heuristic form: a cap of 8 drops nodes untested
    """

    answers_together: ClassVar[bool] = True
    type: Literal["fed-pne"] = field(default="fed-pne", repr=False)
    expand: Literal["ktau", "tau", "none"] = "ktau"
    tail: Literal["commit", "printed", "stop"] = "commit"
    releases: Count | None = None

    @classmethod
    def heuristic(cls, **changes: Any) -> FedPNE:  # noqa: ANN401  # the fields of this class
        """Give the low-regret private form: at most 8 active nodes, 5 releases, s = 0.15, client-centred.

        The cap drops nodes untested and so tight a clip biases means: the optimum may be lost.

        Example:
            >>> import privbo as pb
            >>> pb.FedPNE.heuristic(horizon=2000).releases
            5
        """
        return replace(cls(cap=8, releases=5, clip=0.15, centre="client"), **changes)

    def server(self, setting: Setting) -> FedPNEServer:
        """Make the public side."""
        return FedPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return PhaseCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every client eliminates alone, with its own pulls."""
        return alone(self, c=self.c, c1=self.c1)


class FedPNEServer:
    """The public side of Fed-PNE: active nodes, budget and the best node so far."""

    def __init__(self, algorithm: FedPNE, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        self._sharing = algorithm.sharing
        self._confidence = algorithm.confidence(setting.n_clients)
        self._partition = algorithm.partition(setting)
        self._spent = 0
        self._round = 0
        self._best: tuple[int, int] | None = None
        self._active = 0, np.zeros(1, dtype=np.int64)
        self._first = self._start()
        self._phase: Phase | None = self._first
        most = setting.rounds if algorithm.releases is None else min(setting.rounds, algorithm.releases)
        # No run makes more: every phase after the first has at least k nodes.
        deeper = range(self._first.depth + 1, self._partition.max_depth + 1)
        least = (algorithm.n_children * self._confidence.pulls_per_client(depth) for depth in deeper)
        self._n_releases = count_fitting(chain([self._first.length], least), algorithm.budget, most)

    @property
    def phase(self) -> Phase | None:
        """The phase that is played now; None when the run is over."""
        return self._phase

    def plan(self) -> Iterator[Request]:
        """P requests; those after the first for as many nodes as the phase could hold."""
        first = self._first
        n_nodes = len(first.nodes)
        for depth in range(first.depth, first.depth + self._n_releases):
            yield self._sharing.request(n_nodes, self._confidence.pulls_per_client(depth), self._setting)
            n_nodes = min(self._algorithm.n_children * n_nodes, self._algorithm.budget)
            if self._algorithm.cap is not None:
                n_nodes = min(n_nodes, max(self._algorithm.cap, len(first.nodes)))

    def ask(self) -> Ask | None:
        """The current phase; without a request in the tail."""
        if self._phase is None:
            return None
        broadcast = self._phase.broadcast(self._round)
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the phase that a broadcast announces; None in the tail."""
        phase = Phase.of(broadcast)
        return self._sharing.request(len(phase.nodes), phase.equal_pulls, self._setting) if phase.sends else None

    def tell(self, release: Release | None) -> None:
        """Eliminate, split, and go on to the next phase or the tail."""
        phase = self._phase
        if phase is None:
            return
        self._spent += phase.length
        self._round += 1
        if release is None:
            self._phase = None
            return
        survivors = self._survivors(phase, release)
        following = self._next(phase.depth, survivors)
        if following is None or self._round == self._n_releases:
            following = self._tail(phase.depth, survivors)
        self._phase = following

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: centres of the nodes that are still active, best means first."""
        return self._partition.candidates(self._setting.space, *self._active, count)

    def _survivors(self, phase: Phase, release: Release) -> IntArray:
        """Nodes that stay, ``mu_i + b + w beta + nu1 rho^h >= mu_best - b - w beta``, best first cut to the cap."""
        means = release.values[0]
        best = int(np.argmax(means))
        self._best = (phase.depth, int(phase.nodes[best]))
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases)
        radius = self._confidence.radius(phase.pulls * self._setting.n_clients) + self._algorithm.widen * noise
        upper = means + radius + self._confidence.variation(phase.depth)
        keep = upper >= means[best] - radius[best]
        keep[best] = True
        if self._algorithm.cap is not None:
            keep &= among_best(means, self._algorithm.cap // self._algorithm.n_children)
        order = np.argsort(-means, kind="stable")
        self._active = phase.depth, phase.nodes[order[keep[order]]]
        return np.asarray(phase.nodes[keep])

    def _start(self) -> Phase:
        phase = self._next(-1, np.zeros(0, dtype=np.int64))
        if phase is None:
            raise ConfigurationError(
                f"{self._algorithm.budget} pulls of a client do not hold one phase for {self._setting.n_clients} "
                "clients; raise horizon or evaluations, or lower c"
            )
        return phase

    def _next(self, depth: int, survivors: IntArray) -> Phase | None:
        """The phase of the survivors' children (the root at depth -1); None if it does not fit."""
        if depth == self._partition.max_depth:
            return None
        depth, nodes = depth + 1, self._partition.children(survivors) if depth >= 0 else np.zeros(1, dtype=np.int64)
        while depth < self._partition.max_depth and self._splits(depth, len(nodes)):
            depth, nodes = depth + 1, self._partition.children(nodes)
        pulls = self._confidence.pulls_per_client(depth)
        if len(nodes) * pulls > self._algorithm.budget - self._spent:
            return None
        return Phase(depth=depth, nodes=nodes, pulls=equal_pulls(nodes, pulls), best=self._best)

    def _splits(self, depth: int, n_nodes: int) -> bool:
        """EXPAND: whether the nodes are split once more before they are pulled."""
        algorithm = self._algorithm
        deeper = algorithm.n_children * n_nodes * self._confidence.pulls_per_client(depth + 1)
        if not self._spent and deeper > algorithm.budget:
            return False  # the first phase has to fit, or nothing would be learned
        if self._spent and algorithm.cap is not None and algorithm.n_children * n_nodes > algorithm.cap:
            return False  # before the first phase nothing is known, so nothing is capped
        if algorithm.expand == "ktau":
            return depth == 0 or n_nodes * self._confidence.threshold(depth) < self._setting.n_clients
        return algorithm.expand == "tau" and self._confidence.threshold(depth) < self._setting.n_clients

    def _tail(self, depth: int, survivors: IntArray) -> Phase | None:
        left = self._algorithm.budget - self._spent
        if left == 0 or self._algorithm.tail == "stop" or self._best is None:
            return None
        if self._algorithm.tail == "printed" and depth < self._partition.max_depth:
            nodes = self._partition.children(survivors)
            each = max(self._confidence.pulls_per_client(depth + 1), -(-left // len(nodes)))
            pulls = cut_to(equal_pulls(nodes, each), left)
            played = pulls > 0
            return Phase(depth=depth + 1, nodes=nodes[played], pulls=pulls[played], best=self._best, sends=False)
        best_depth, best = self._best
        pulls = np.array([left], dtype=np.int64)
        nodes = np.array([best], dtype=np.int64)
        return Phase(depth=best_depth, nodes=nodes, pulls=pulls, best=self._best, sends=False)
