"""PF-PNE: every client finds its own optimum, helped at first by the average of all.

Li, Honorio, Song, "Personalized federated X-armed bandit" (AISTATS 2024). Stage 1 eliminates
on the average objective, one depth per phase, each phase one release. Stage 2 is silent:
every client goes through the tree again by its own rewards (PE); nodes the server kept are
not pulled again and cannot be removed, nodes it removed are only removed after the client's
own check.

``stage2`` chooses how clients go on alone:

- ``"printed"``: as in the paper.
- ``"in-phase"``: also looks at the means after 1, 2, 4, ... pulls of a phase.
- ``"warm"``: in-phase, but starts below the server's last survivors. What the average
  removed is gone for good: a client whose optimum lies there loses it (the double check
  is given up).
- ``"optimistic"`` (ours, the default): a tree of upper bounds from the client's own pulls.
  Nothing is removed at all; the shared stage only says where to look first. See ``forest``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.personal_clients import PersonalCohort
from privbo.algorithms.elimination.pf_pne_server import PFPNEServer
from privbo.algorithms.elimination.settings import PFPNESettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class PFPNE(PFPNESettings):
    """Personalised federated phased node elimination.

    The shared stage has ``H0 = ceil(log(Delta / nu1) / log rho)`` phases, at most ``rounds``
    of the run; everything after it is silent and costs no privacy.

    | ``stage2`` | no cap, nothing clipped, ``widen >= 1`` | any other form |
    |---|---|---|
    | ``"optimistic"`` | nothing is ever removed | the same: the shared stage only advises |
    | ``"printed"``, ``"in-phase"`` | a client's optimum survives as in the paper | may be lost; ``caveat`` says why |
    | ``"warm"`` | the average's optimum survives; a client's own may be lost | may be lost; ``caveat`` says why |

    Attributes:
        horizon: T, pulls of every client.
        evaluations: Most pulls of every client where that is less than T; a pull is one call of the objective.
        nu1: Variation of every objective over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        gap: Delta of the paper, bound on the difference between the best values of the
            average and of any client; has nothing to do with the delta of privacy.
        c, c1: Width of confidence intervals, and the factor in their logarithm.
        n_children: k, 2 or 3.
        stage2: ``"printed"``, ``"in-phase"``, ``"warm"`` or ``"optimistic"``, see above.
        tail: ``"commit"`` plays the best known node when the next pulls do not fit,
            ``"printed"`` pulls on in order.
        cap: Most nodes of a shared phase, or None; the best ones are kept. With
            ``stage2="optimistic"`` this loses nothing for good: the shared stage only advises.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened.
        centre: ``"middle"`` or ``"client"``, what a client subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"clip"`` clips rewards outside, so that what is certified speaks of the clipped
            objective; ``"absent"`` counts them as failed. Their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> pb.PFPNE(gap=0.04).shared_depths
        5
    """

    answers_together: ClassVar[bool] = True

    @classmethod
    def heuristic(cls, **changes: Any) -> PFPNE:  # noqa: ANN401  # the fields of this class
        """Give the low-noise private form: at most 8 nodes per phase, s = 0.15, client-centred.

        The cap drops nodes untested and so tight a clip biases means; the optimistic stage takes both as advice.

        Example:
            >>> import privbo as pb
            >>> pb.PFPNE.heuristic(horizon=2000).cap
            8
        """
        return replace(cls(cap=8, clip=0.15, centre="client"), **changes)

    def server(self, setting: Setting) -> PFPNEServer:
        """Make the public side."""
        return PFPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return PersonalCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every client alone from the first pull."""
        stage2 = "in-phase" if self.stage2 == "warm" else self.stage2
        return alone(self, c=self.c, c1=self.c1, stage2=stage2, tail=self.tail)
