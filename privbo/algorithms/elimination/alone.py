"""PE: clients that eliminate alone, and the clock of their silent rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.personal_clients import SEGMENTS, AloneTail, PersonalCohort, Stage2, Survivors
from privbo.algorithms.elimination.settings import PhasedSettings, TreeSettings
from privbo.protocol.messages import Ask, Broadcast, Evaluate, IntArray, Release, Request, Setting
from privbo.protocol.settings import settings

AloneStage: TypeAlias = Literal["printed", "in-phase", "optimistic"]


@settings(table="algorithm")
class PersonalElimination(PhasedSettings):
    """Elimination by every client alone (PE); nothing is ever sent.

    Attributes:
        horizon, evaluations, nu1, rho, c, c1, n_children, tail, reward_range, outside: As for ``PFPNE``.
        stage2: ``"printed"``, ``"in-phase"`` or ``"optimistic"``.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    answers_together: ClassVar[bool] = True
    type: Literal["pe"] = field(default="pe", repr=False)
    stage2: AloneStage = "optimistic"
    tail: AloneTail = "commit"

    def server(self, setting: Setting) -> AloneServer:
        """Make the public side: a clock."""
        rounds = silent_rounds(self.confidence(setting.n_clients), self.partition(setting), 0, self.stage2)
        return AloneServer(rounds)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side."""
        return PersonalCohort(self, setting, self.stage2, self.tail, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give itself: nothing is shared."""
        return self


def alone(
    shared: TreeSettings,
    *,
    c: float,
    c1: float = 1.0,
    stage2: AloneStage = "optimistic",
    tail: AloneTail = "commit",
) -> PersonalElimination:
    """Give the clients of a shared elimination alone, with the same tree, horizon and rewards."""
    common = {each.name: getattr(shared, each.name) for each in fields(TreeSettings)}
    return PersonalElimination(**common, c=c, c1=c1, stage2=stage2, tail=tail)


class AloneServer:
    """A clock of silent rounds, the public side of clients that share nothing from now on.

    Args:
        depths: What all clients play alone round by round: a depth, or a share of the pulls.
        first_round: Number of the first silent round.
        survivors: What the server kept of the last shared phase, told in every round; None without one.
    """

    def __init__(self, depths: range, *, first_round: int = 0, survivors: Survivors | None = None) -> None:
        self._depths, self._round = depths, first_round
        self._survivors = {} if survivors is None else survivors.arrays()

    def plan(self) -> Iterator[Request]:
        """Nothing is ever released."""
        return iter(())

    def ask(self) -> Ask | None:
        """The next silent round; None after the last."""
        if not self._depths:
            return None
        arrays = {"alone": np.array(self._depths[0]), "last": np.array(len(self._depths) == 1)}
        return Ask(broadcast=Broadcast(round=self._round, arrays=arrays | self._survivors), request=None)

    def request_for(self, broadcast: Broadcast) -> Request | None:  # noqa: ARG002  # the protocol's
        """Nothing is ever asked for."""
        return None

    def tell(self, release: Release | None) -> None:  # noqa: ARG002  # always None: nothing was asked for
        """Go on."""
        self._round += 1
        self._depths = self._depths[1:]


def silent_rounds(confidence: Confidence, partition: Partition, start: int, stage2: Stage2) -> range:
    """Depths of the silent rounds; their number is public and must not depend on how far clients came.

    An optimistic stage has a fixed number of equal shares. The others have one round per depth up to that whose nodes
    cannot all reach their threshold, and play whatever lies deeper in the last one.
    """
    if stage2 == "optimistic":
        return range(SEGMENTS)
    last = start
    while last < partition.max_depth and partition.n_children * confidence.threshold(last) <= confidence.horizon:
        last += 1
    return range(start, last + 1)
