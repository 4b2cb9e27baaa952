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

import math
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from privbo.algorithms.elimination.alone import (
    AloneServer,
    AloneTail,
    PersonalElimination,
    PersonalSettings,
    Stage2,
    Survivors,
    alone,
    silent_rounds,
)
from privbo.algorithms.elimination.phases import Phase, PhaseServer
from privbo.algorithms.elimination.settings import CappedSettings
from privbo.protocol.messages import (
    Ask,
    BoolArray,
    Broadcast,
    FloatArray,
    IntArray,
    Release,
    Request,
    Setting,
)
from privbo.protocol.settings import Positive, settings


@settings(table="algorithm")
class PFPNE(CappedSettings, PersonalSettings):
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
        release_when: ``"useful"`` makes no release, and charges nothing, where it could change no client's point, such
            as that of the root; ``"always"`` makes all.
        reward_range: Declared bounds of a reward. Rewards outside are clipped, so that what is certified speaks of the
            clipped objective; their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> pb.PFPNE(gap=0.04).shared_depths
        5
    """

    type: Literal["pf-pne"] = field(default="pf-pne", repr=False)
    gap: Positive = 0.01
    stage2: Stage2 = "optimistic"
    tail: AloneTail = "commit"

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what a heuristic form gives up; None for the certified one."""
        advice = "The shared stage only advises: pulls may be lost, no optimum."
        loss = advice if self.stage2 == "optimistic" else "An optimum may be lost with a probability nothing bounds."
        return self.sharing.caveat(self.cap, loss)

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell rests on the shared stage; the optimistic stage drops nothing."""
        return self.caveat is None and self.stage2 != "optimistic"

    @property
    def shared_depths(self) -> int:
        """H0, number of phases of the shared stage, at least 1."""
        exact = (math.log(self.gap) - math.log(self.nu1)) / math.log(self.rho)
        return max(1, math.ceil(exact - 1e-9))  # no phase more by rounding

    @classmethod
    def paper(cls, **changes: Any) -> PFPNE:  # noqa: ANN401  # the fields of this class
        """Give the paper's algorithm and constants: every client's own elimination checks what the server removed.

        The paper's answer is a client's own: ``Record.best(client)``.

        Example:
            >>> import privbo as pb
            >>> pb.PFPNE.paper().stage2, pb.PFPNE.paper(horizon=2000).tail
            ('printed', 'printed')
        """
        return replace(cls(stage2="printed", tail="printed", release_when="always"), **changes)

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
        releases = self.shared_depths - (self.release_when == "useful")
        return PFPNEServer(self, setting, cap=self.cap, releases=max(1, releases))

    def local(self) -> PersonalElimination:
        """Give the control: every client alone from the first pull."""
        stage2 = "in-phase" if self.stage2 == "warm" else self.stage2
        return alone(self, c=self.c, c1=self.c1, stage2=stage2, tail=self.tail)


class PFPNEServer(PhaseServer[PFPNE]):
    """The public side of PF-PNE: shared phases, then a clock of silent rounds."""

    _survivors: Survivors | None = None
    _silent: AloneServer | None = None

    def ask(self) -> Ask | None:
        """A shared phase, then one silent round per depth."""
        if self._silent is not None:
            return self._silent.ask()
        phase = self.phase
        if phase is None:
            return None
        arrays = {"depth": np.array(phase.depth), "nodes": phase.nodes, "pulls": np.array(phase.equal_pulls)}
        survivors = {} if self._survivors is None else self._survivors.arrays()
        broadcast = Broadcast(round=self._round, arrays=arrays | survivors)
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the nodes and pulls that a broadcast names; None in a silent round."""
        if "nodes" not in broadcast.arrays or "pulls" not in broadcast.arrays:
            return None
        phase = Phase.shared(broadcast)
        return self._request(broadcast.round, len(phase.nodes), phase.equal_pulls)

    def tell(self, release: Release | None) -> None:
        """Eliminate on the average; after the last shared phase only count silent rounds."""
        if self._silent is None:
            super().tell(release)
        else:
            self._silent.tell(None)

    def _stays(self, phase: Phase, means: FloatArray, noise: float) -> BoolArray:
        stays = super()._stays(phase, means, noise)
        radii = np.full(int(stays.sum()), self._radius(phase) + noise)
        self._survivors = Survivors(depth=phase.depth, nodes=phase.nodes[stays], means=means[stays], radii=radii)
        return stays

    def _end(self, depth: int, survivors: IntArray) -> None:  # noqa: ARG002  # the hook gives more
        """Start the clock of the silent rounds."""
        rounds = self._silent_rounds(depth + 1)
        self._silent = AloneServer(rounds, self._setting, first_round=self._round, survivors=self._survivors)

    def _silent_rounds(self, depth: int) -> range:
        """Depths of the silent rounds, the shared ones having ended above ``depth``."""
        start = min(depth, self._partition.max_depth) if self._algorithm.stage2 == "warm" else 0
        return silent_rounds(self._confidence, self._partition, start, self._algorithm.stage2)
