"""The public side of clients that go on alone: a clock of silent rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.kept import Kept
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.settings import SEGMENTS, Stage2
from privbo.protocol.messages import Ask, Broadcast, Release, Request


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

    def request_for(self, broadcast: Broadcast) -> Request | None:  # noqa: ARG002  # the protocol's
        """Nothing is ever asked for."""
        return None

    def tell(self, release: Release | None) -> None:  # noqa: ARG002  # always None: nothing was asked for
        """Go on."""
        self._round += 1
        self._alone = self._alone.after()


def first_alone(confidence: Confidence, partition: Partition, start: int, stage2: Stage2) -> Alone:
    """The first silent round; their number is public and must not depend on how far clients came.

    An optimistic stage has a fixed number of equal shares. The others have one round per depth up to that whose nodes
    cannot all reach their threshold, and play whatever lies deeper in the last one.
    """
    if stage2 == "optimistic":
        return Alone(depth=0, last=SEGMENTS - 1)
    last = start
    while last < partition.max_depth and partition.n_children * confidence.threshold(last) <= confidence.horizon:
        last += 1
    return Alone(depth=start, last=last)
