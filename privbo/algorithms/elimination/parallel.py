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

from typing import ClassVar

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.parallel_server import ParallelServer
from privbo.algorithms.elimination.phase_clients import PhaseCohort
from privbo.algorithms.elimination.settings import HOEFFDING, ParallelSettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class ParallelXArmed(ParallelSettings):
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
        reward_range: Declared bounds of a reward.
        outside: ``"clip"`` clips rewards outside, so that what is certified speaks of the clipped
            objective; ``"absent"`` counts them as failed. Their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> algorithm = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5)
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=16)
        >>> pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=4).releases
        4
    """

    answers_together: ClassVar[bool] = True

    def server(self, setting: Setting) -> ParallelServer:
        """Make the public side."""
        return ParallelServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; players draw nothing at random."""
        return PhaseCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every player alone; ``c = 1/sqrt(2)`` makes its margin ``3 nu1 rho^h`` too."""
        return alone(self, c=HOEFFDING, stage2="printed")
