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

from dataclasses import replace
from typing import Any, ClassVar

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.fed_pne_server import FedPNEServer
from privbo.algorithms.elimination.phase_clients import PhaseCohort
from privbo.algorithms.elimination.settings import FedPNESettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class FedPNE(FedPNESettings):
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
