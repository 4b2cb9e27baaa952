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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privbo.algorithms.elimination.alone import Alone, PersonalElimination, first_alone, require_alone
from privbo.algorithms.elimination.confidence import Confidence, noise_half_width
from privbo.algorithms.elimination.fed_pne_server import among_best
from privbo.algorithms.elimination.kept import Kept
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.personal import PersonalCohort, Stage2
from privbo.algorithms.elimination.rewards import Centre, Outside, RewardRange
from privbo.algorithms.elimination.sharing import Sharing, require_cap
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Evaluate, IntArray, Release, Request, Setting


@dataclass(frozen=True, kw_only=True)
class PFPNE:
    """Personalised federated phased node elimination.

    The shared stage has ``H0 = ceil(log(Delta / nu1) / log rho)`` phases, at most ``rounds``
    of the run; everything after it is silent and costs no privacy.

    Attributes:
        horizon: T, pulls of every client.
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
        outside: ``"error"`` or ``"clip"`` for rewards outside.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    horizon: int = 5000
    nu1: float = 1.0
    rho: float = 0.5
    gap: float = 0.01
    c: float = 0.1
    c1: float = 1.0
    n_children: int = 2
    stage2: Stage2 = "optimistic"
    tail: str = "commit"
    cap: int | None = None
    clip: float | None = None
    widen: float = 1.0
    centre: Centre = "middle"
    reward_range: tuple[float, float] = (0.0, 1.0)
    outside: Outside = "error"

    def __post_init__(self) -> None:
        self.confidence(1)
        require_cap(self.cap, self.n_children)
        require_alone(self.stage2, self.tail)
        if not (math.isfinite(self.gap) and self.gap > 0):
            raise ConfigurationError(f"gap={self.gap!r} must be a finite number > 0")
        object.__setattr__(self, "reward_range", tuple(self.reward_range))
        _ = self.sharing

    @classmethod
    def heuristic(cls, **changes: Any) -> PFPNE:  # noqa: ANN401  # the fields of this class
        """The low-noise private form: at most 8 nodes per phase, s = 0.15, client-centred.

        The cap drops nodes untested and so tight a clip biases means; the optimistic stage takes both as advice.
        """
        return replace(cls(cap=8, clip=0.15, centre="client"), **changes)

    @property
    def caveat(self) -> str | None:
        """What a page of a run says of a heuristic form."""
        said = self.sharing.caveat(self.cap)
        advice = "The shared stage only advises: pulls may be lost, no optimum."
        loss = advice if self.stage2 == "optimistic" else "An optimum may be lost with a probability nothing bounds."
        return said and f"{said}. {loss}"

    @property
    def sharing(self) -> Sharing:
        """How mean rewards leave a client in the shared stage."""
        allowed = RewardRange.of(self.reward_range, self.outside)
        return Sharing(allowed=allowed, clip=self.clip, widen=self.widen, centre=self.centre)

    @property
    def shared_depths(self) -> int:
        """H0, number of phases of the shared stage, at least 1."""
        return max(1, math.ceil(math.log(self.gap / self.nu1) / math.log(self.rho)))

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii for M clients."""
        return Confidence(horizon=self.horizon, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=self.c, c1=self.c1)

    def server(self, setting: Setting) -> PFPNEServer:
        """The public side."""
        return PFPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """The private side; the clients draw nothing at random."""
        return PersonalCohort(
            setting,
            partition=Partition(n_dims=setting.space.n_dims, n_children=self.n_children),
            clients=clients,
            evaluate=evaluate,
            sharing=self.sharing,
            confidence=self.confidence(setting.n_clients),
            stage2=self.stage2,
            commit=self.tail == "commit",
        )

    def local(self) -> PersonalElimination:
        """Every client alone from the first pull."""
        return PersonalElimination(
            horizon=self.horizon,
            nu1=self.nu1,
            rho=self.rho,
            c=self.c,
            c1=self.c1,
            n_children=self.n_children,
            stage2="in-phase" if self.stage2 == "warm" else self.stage2,
            tail=self.tail,
            reward_range=self.reward_range,
            outside=self.outside,
        )


class PFPNEServer:
    """The public side of PF-PNE: the shared stage, then the clock of the silent one."""

    def __init__(self, algorithm: PFPNE, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        self._sharing = algorithm.sharing
        self._confidence = algorithm.confidence(setting.n_clients)
        self._partition = Partition(n_dims=setting.space.n_dims, n_children=algorithm.n_children)
        self._n_releases = self._count_plan(min(setting.rounds, algorithm.shared_depths))
        self._round = 0
        self._depth = 0
        self._nodes = np.zeros(1, dtype=np.int64)
        self._spent = 0
        self._kept: Kept | None = None
        self._alone: Alone | None = None

    def plan(self) -> Iterator[Request]:
        """H0 requests, or as many as the horizon or the rounds allow."""
        for depth in range(self._n_releases):
            n_nodes = min(self._algorithm.n_children**depth, self._algorithm.cap or self._algorithm.horizon)
            yield self._sharing.request(n_nodes, self._confidence.pulls_per_client(depth), self._setting)

    def ask(self) -> Ask | None:
        """A shared phase, then one silent round per depth."""
        if self._alone is not None:
            return self._alone.ask(self._round, self._kept)
        pulls = self._confidence.pulls_per_client(self._depth)
        arrays = {"depth": np.array(self._depth), "nodes": self._nodes, "pulls": np.array(pulls)}
        kept = {} if self._kept is None else self._kept.arrays()
        return Ask(
            broadcast=Broadcast(round=self._round, arrays=arrays | kept),
            request=self._sharing.request(len(self._nodes), pulls, self._setting),
        )

    def tell(self, release: Release | None) -> None:
        """Eliminate on the average; after the last shared phase only count silent rounds."""
        self._round += 1
        if release is None or self._alone is not None:
            if self._alone is not None:
                self._alone = self._alone.after()
            return
        self._kept = self._eliminate(release)
        self._spent += len(self._nodes) * self._confidence.pulls_per_client(self._depth)
        self._depth += 1
        self._nodes = self._partition.children(self._kept.nodes)
        length = len(self._nodes) * self._confidence.pulls_per_client(self._depth)
        if self._depth == self._n_releases or self._spent + length > self._algorithm.horizon:
            start = self._depth if self._algorithm.stage2 == "warm" else 0
            self._alone = first_alone(self._confidence, self._partition, start, self._algorithm.stage2)

    def _eliminate(self, release: Release) -> Kept:
        """Survivors of mu + b + w beta + nu1 rho^h >= mu_best - b - w beta, with means and radii."""
        means, depth = release.values[0], self._depth
        pulls = self._confidence.pulls_per_client(depth) * self._setting.n_clients
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases)
        radius = float(self._confidence.radius(pulls)) + self._algorithm.widen * noise
        keep = means + radius + self._confidence.variation(depth) >= means.max() - radius
        if self._algorithm.cap is not None:
            keep &= among_best(means, self._algorithm.cap // self._algorithm.n_children)
        return Kept(depth=depth, nodes=self._nodes[keep], means=means[keep], radii=np.full(int(keep.sum()), radius))

    def _count_plan(self, most: int) -> int:
        if self._confidence.pulls_per_client(0) > self._algorithm.horizon:
            raise ConfigurationError(
                f"horizon={self._algorithm.horizon} does not hold one phase for {self._setting.n_clients} clients; "
                "raise horizon or lower c"
            )
        spent, count = self._confidence.pulls_per_client(0), 1
        while count < most and count <= self._partition.max_depth:
            spent += self._algorithm.n_children * self._confidence.pulls_per_client(count)
            if spent > self._algorithm.horizon:
                break
            count += 1
        return count
