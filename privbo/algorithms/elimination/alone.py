"""PE: clients that eliminate alone, and the clock of silent rounds they share with PF-PNE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.kept import Kept
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.personal import SEGMENTS, PersonalCohort, Stage2
from privbo.algorithms.elimination.rewards import Outside, RewardRange
from privbo.algorithms.elimination.sharing import Sharing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Evaluate, IntArray, Release, Request, Setting


@dataclass(frozen=True, kw_only=True)
class PersonalElimination:
    """PE: every client eliminates alone; nothing is ever sent.

    Attributes:
        horizon, nu1, rho, c, c1, n_children, tail, reward_range, outside: As for ``PFPNE``.
        stage2: ``"printed"``, ``"in-phase"`` or ``"optimistic"``.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    horizon: int = 5000
    nu1: float = 1.0
    rho: float = 0.5
    c: float = 0.1
    c1: float = 1.0
    n_children: int = 2
    stage2: Stage2 = "optimistic"
    tail: str = "commit"
    reward_range: tuple[float, float] = (0.0, 1.0)
    outside: Outside = "error"

    def __post_init__(self) -> None:
        self.confidence(1)
        require_alone(self.stage2, self.tail)
        if self.stage2 == "warm":
            raise ConfigurationError("stage2='warm' starts below a shared stage; PE alone has none")
        object.__setattr__(self, "reward_range", tuple(self.reward_range))

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii; delta_b = 1/M as in the shared algorithms."""
        return Confidence(horizon=self.horizon, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=self.c, c1=self.c1)

    def server(self, setting: Setting) -> AloneServer:
        """The public side: a clock."""
        partition = Partition(n_dims=setting.space.n_dims, n_children=self.n_children)
        return AloneServer(first_alone(self.confidence(setting.n_clients), partition, 0, self.stage2))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """The private side."""
        allowed = RewardRange.of(self.reward_range, self.outside)
        return PersonalCohort(
            setting,
            partition=Partition(n_dims=setting.space.n_dims, n_children=self.n_children),
            clients=clients,
            evaluate=evaluate,
            sharing=Sharing(allowed=allowed, clip=None, widen=1.0, centre="middle"),
            confidence=self.confidence(setting.n_clients),
            stage2=self.stage2,
            commit=self.tail == "commit",
        )

    def local(self) -> PersonalElimination:
        """Itself: nothing is shared."""
        return self


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A silent round: the depth (or share of the pulls) all clients play alone, and the last one."""

    depth: int
    last: int

    def ask(self, round_: int, kept: Kept | None) -> Ask | None:
        """The round; None after the last."""
        if self.depth > self.last:
            return None
        arrays = {"alone": np.array(self.depth), "last": np.array(self.depth == self.last)}
        said = {} if kept is None else kept.arrays()
        return Ask(broadcast=Broadcast(round=round_, arrays=arrays | said), request=None)

    def after(self) -> Alone:
        """The next depth."""
        return Alone(depth=self.depth + 1, last=self.last)


class AloneServer:
    """A server that shares nothing and only counts the silent rounds."""

    def __init__(self, first: Alone) -> None:
        self._alone = first
        self._round = 0

    def plan(self) -> Iterator[Request]:
        """Nothing is ever released."""
        return iter(())

    def ask(self) -> Ask | None:
        """The next silent round."""
        return self._alone.ask(self._round, None)

    def tell(self, release: Release | None) -> None:  # noqa: ARG002  # always None: nothing was asked for
        """Go on."""
        self._round += 1
        self._alone = self._alone.after()


def first_alone(confidence: Confidence, partition: Partition, start: int, stage2: Stage2) -> Alone:
    """The first silent round; their number is public and must not depend on how far clients came.

    An optimistic stage has a fixed number of equal shares. The others have one round per
    depth up to that whose nodes cannot all reach their threshold, and play whatever lies
    deeper in the last one.
    """
    if stage2 == "optimistic":
        return Alone(depth=0, last=SEGMENTS - 1)
    last = start
    while last < partition.max_depth and partition.n_children * confidence.threshold(last) <= confidence.horizon:
        last += 1
    return Alone(depth=start, last=last)


def require_alone(stage2: str, tail: str) -> None:
    """Refuse unknown ways to go on alone.

    Raises:
        ConfigurationError: Naming the setting.
    """
    if stage2 not in ("printed", "in-phase", "warm", "optimistic"):
        raise ConfigurationError(f"stage2={stage2!r} must be 'printed', 'in-phase', 'warm' or 'optimistic'")
    if tail not in ("commit", "printed"):
        raise ConfigurationError(f"tail={tail!r} must be 'commit' or 'printed'")
