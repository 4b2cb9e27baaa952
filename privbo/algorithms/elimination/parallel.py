"""Parallel X-armed bandit: m players look for the optimum of one function together.

Chen, Liu, Zhang, Li, "A parallel algorithm for X-armed bandits". At every depth all players
pull all active nodes equally often, exchange means once, and keep what lies within
``3 nu1 rho^h`` of the best. Judged by simple regret: what is returned, in the last broadcast, is the
best node of the last completed depth, whose loss is at most ``6 nu1 rho^h`` with probability 1 - delta_b.
A player uses the point it has seen with the largest lower confidence bound of its own rewards.

Private form: mean vectors are centred and clipped as in Fed-PNE, and the margin grows by
twice the half-width of the release's noise, so the optimum's cell is kept as before.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.phases import Phase, PhaseCohort, PhaseServer
from privbo.algorithms.elimination.settings import HOEFFDING, Fraction, SharingSettings, pulls_of
from privbo.protocol.messages import BoolArray, Evaluate, FloatArray, IntArray, Setting
from privbo.protocol.settings import Count, Positive, settings


@settings(table="algorithm")
class ParallelXArmed(SharingSettings):
    """Level-order search for the optimum of one function by many players.

    ``rounds`` of a run is the largest number of exchanges.

    Attributes:
        horizon: n, pulls of every player.
        evaluations: Most pulls of every player where that is less than n; a pull is one call of the objective.
        nu1: Variation of the function over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        delta_b: Failure probability of the bandit (not of privacy); None is 1/n.
        n_children: k, 2 or 3.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width in the margin.
        centre: ``"middle"`` or ``"client"``, what a player subtracts before sending.
        release_when: ``"useful"`` makes no release, and charges nothing, where it could change no client's point and no
            common answer, such as that of the root; ``"always"`` makes all.
        reward_range: Declared bounds of a reward. Rewards outside are clipped, so that what is certified speaks of the
            clipped objective; their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> algorithm = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5)
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=60)
        >>> pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=4).releases
        4
    """

    answers_together: ClassVar[bool] = True
    type: Literal["parallel"] = field(default="parallel", repr=False)
    horizon: Count = 10_000
    nu1: Positive = 1.37
    rho: Fraction = 2.0**-0.5
    delta_b: Fraction | None = None

    @classmethod
    def paper(cls, **changes: Any) -> ParallelXArmed:  # noqa: ANN401  # the fields of this class
        """Give the paper's algorithm, which always releases; nu1 and rho, which it does not print, suit Garland.

        The node it returns is ``Record.common``.

        Example:
            >>> import privbo as pb
            >>> pb.ParallelXArmed.paper(horizon=1600, nu1=5.0, rho=0.5).delta_b is None
            True
        """
        return replace(cls(release_when="always"), **changes)

    def pulls_per_player(self, depth: int, n_nodes: int, n_players: int) -> int:
        """T_h, so that every mean is within ``nu1 rho^h`` of its node with the probability the run needs."""
        delta_b = 1.0 / self.budget if self.delta_b is None else self.delta_b
        log = math.log(math.pi**2 * (depth + 1) ** 2 * n_nodes / (3 * delta_b))
        return pulls_of(log / (2 * n_players), math.log(self.nu1) + depth * math.log(self.rho))

    def server(self, setting: Setting) -> ParallelServer:
        """Make the public side."""
        return ParallelServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; players draw nothing at random."""
        return PhaseCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every player alone; ``c = 1/sqrt(2)`` makes its margin ``3 nu1 rho^h`` too."""
        return alone(self, c=HOEFFDING, stage2="printed")


class ParallelServer(PhaseServer[ParallelXArmed]):
    """The public side: active nodes of one depth; in the end one silent message that tells the players the result."""

    def _pulls(self, depth: int, n_nodes: int) -> int:
        return self._algorithm.pulls_per_player(depth, n_nodes, self._setting.n_clients)

    def _stays(self, phase: Phase, means: FloatArray, noise: float) -> BoolArray:
        return np.asarray(means >= means.max() - (3 * self._confidence.variation(phase.depth) + 2 * noise))

    def _end(self, depth: int, survivors: IntArray) -> Phase:  # noqa: ARG002  # the hook gives more
        none = np.zeros(0, dtype=np.int64)
        return Phase(depth=depth, nodes=none, pulls=none, best=self.best, sends=False)
