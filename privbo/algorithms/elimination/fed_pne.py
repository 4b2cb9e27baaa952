"""Fed-PNE: clients find the optimum of their average objective by phased node elimination.

Li et al., "Federated X-armed bandit". The server keeps a set of active nodes, all clients
pull every one of them equally often, and the averages decide which nodes go on to be split.
A run takes a handful of phases; each is one release. A client would use the point it has seen with
the largest lower confidence bound of its own rewards: the common best node, which the tail pulls most,
unless its own rewards say another is better. Where rewards carry no noise, say so with a small c.

Private form: a client's answer is its vector of mean rewards, centred, clipped to
``S = clip sqrt(K)``; every comparison of the server is widened by the release's noise.

*Certified* (the default): no cap, no clipping below the declared range. Where c covers the reward noise and
nu1 rho^h the objective's variation in the optimum's cell, that cell survives with probability at least
1 - delta_b - 0.05.
*Heuristic* (``FedPNE.heuristic()``): a cap drops nodes untested and tight clipping biases
means, so no such probability is promised; the regret is far lower.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.phases import Phase, PhaseCohort, PhaseServer
from privbo.algorithms.elimination.settings import CappedSettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class FedPNE(CappedSettings):
    """Federated phased node elimination.

    ``rounds`` of a run is the largest number of phases; a run that has made them, or whose
    next phase does not fit the horizon, plays its tail in silence. EXPAND splits the root, and before a
    phase its K nodes once more while K tau_h is below the number of clients. In the first phase the horizon bounds
    that, in later ones ``cap``. Where ``problem.training`` is declared, EXPAND acts before the first phase only.

    | Form | settings | the optimum's cell survives |
    |---|---|---|
    | certified | no cap, nothing clipped (``clip=None``), ``widen >= 1`` | with probability 1 - 1/M - 0.05 |
    | heuristic | any other, such as ``FedPNE.heuristic()`` | perhaps; ``caveat`` says why it may not |

    The first row holds where c covers the reward noise and nu1 rho^h the objective's variation in the optimum's cell
    at depth h. Privacy is that of the run's plan in both.

    Attributes:
        horizon: T, pulls of every client.
        evaluations: Most pulls of every client where that is less than T; a pull is one call of the objective.
        nu1: Variation of the average objective over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals; 0.1 covers reward noise of about +-0.1.
        c1: Factor in their logarithm.
        n_children: k, 2 or 3.
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
        release_when: ``"useful"`` makes no release, and charges nothing, where it could change no client's point and no
            common answer; ``"always"`` makes all.
        reward_range: Declared bounds of a reward. Rewards outside are clipped, so that what is certified speaks of the
            clipped objective; their client's own side is told.

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
    tail: Literal["commit", "printed", "stop"] = "commit"
    releases: Count | None = None

    @classmethod
    def paper(cls, **changes: Any) -> FedPNE:  # noqa: ANN401  # the fields of this class
        """Give the paper's algorithm and constants (Algorithm 1): its tail begins the phase that does not fit.

        The server's best node is the paper's answer: ``Record.common``. With ``problem.training`` this is not the
        paper's algorithm: after the first phase nodes are not split a further time.

        Example:
            >>> import privbo as pb
            >>> pb.FedPNE.paper(horizon=2000).tail
            'printed'
        """
        return replace(cls(tail="printed", release_when="always"), **changes)

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
        return FedPNEServer(self, setting, cap=self.cap, releases=self.releases)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return PhaseCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every client eliminates alone, with its own pulls."""
        return alone(self, c=self.c, c1=self.c1)


class FedPNEServer(PhaseServer[FedPNE]):
    """The public side of Fed-PNE: what EXPAND splits, and the tail."""

    def _splits(self, depth: int, n_nodes: int) -> bool:
        """EXPAND: whether K tau_h < M, or it is the root: then nodes are split once more before they are pulled."""
        algorithm = self._algorithm
        deeper = algorithm.n_children * n_nodes * self._confidence.pulls_per_client(depth + 1)
        if deeper > algorithm.budget - self._spent:
            return False  # the phase has to fit, or nothing would be learned
        if self._spent and algorithm.cap is not None and algorithm.n_children * n_nodes > algorithm.cap:
            return False  # before the first phase nothing is known, so nothing is capped
        if self._spent and self._setting.trains:
            return False  # a depth per release, so that no phase trains more models than are planned
        return depth == 0 or n_nodes * self._confidence.threshold(depth) < self._setting.n_clients

    def _end(self, depth: int, survivors: IntArray) -> Phase:
        """The tail: the best node, or the survivors' children in order, until the budget is spent; it may be empty."""
        left, best = self._algorithm.budget - self._spent, cast("tuple[int, int]", self.best)
        depth_pulled, nodes, pulls = best[0], np.array([best[1]]), np.array([left])
        if left == 0 or self._algorithm.tail == "stop":
            nodes = pulls = np.zeros(0, dtype=np.int64)
        elif self._algorithm.tail == "printed" and depth < self._partition.max_depth:
            depth_pulled, nodes = depth + 1, self._partition.children(survivors)
            each = max(self._confidence.pulls_per_client(depth + 1), -(-left // len(nodes)))
            pulls = np.clip(left - each * np.arange(len(nodes)), 0, each)
            nodes, pulls = nodes[pulls > 0], pulls[pulls > 0]
        return Phase(depth=depth_pulled, nodes=nodes, pulls=pulls, best=best, sends=False)
