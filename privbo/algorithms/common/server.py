"""The public side: it names points, absorbs what was released of them, and announces the one that won."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from privbo.algorithms.common.search import Question, Search, Seen
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Release, Request, Setting


class SearchServer:
    """Rounds of common points, then one that announces the winner and asks for nothing."""

    def __init__(self, search: Search, setting: Setting, *, alone: bool) -> None:
        self._search, self._setting, self._alone = search, setting, alone
        self._seen = Seen.nothing(setting.space.n_dims)
        self._announced = False
        self._round = 0
        self._asked = self._next()

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order; a search that is over earlier leaves some out."""
        rounds = range(0 if self._alone else len(self._search.counts))
        return (self._search.planned(round_, self._setting) for round_ in rounds)

    def ask(self) -> Ask | None:
        """The points of the current round; the winner in the last one."""
        if self._alone:
            is_over = self._round == len(self._search.counts)
            return None if is_over else Ask(broadcast=Broadcast(round=self._round), request=None)
        if self._asked is not None:
            arrays = {"points": self._asked.points, "pulls": np.array(self._asked.pulls)}
            broadcast = Broadcast(round=self._round, arrays=arrays)
            return Ask(broadcast=broadcast, request=self.request_for(broadcast))
        if self._announced:
            return None
        return Ask(broadcast=Broadcast(round=self._round, arrays={CHOSEN: self.chosen}), request=None)

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the points that a broadcast names; None where it names none.

        Raises:
            ConfigurationError: If it names more points than its round has.
        """
        if "points" not in broadcast.arrays:
            return None
        points, round_ = np.asarray(broadcast.arrays["points"]), broadcast.round
        most = self._search.counts[round_] if 0 <= round_ < len(self._search.counts) else 0
        if not 1 <= len(points) <= most:
            raise ConfigurationError(f"round {round_} names {len(points)} points, this run has at most {most} there")
        asked = Question(points=points, pulls=int(broadcast.arrays["pulls"]))
        return self._search.request(asked, self._setting)

    def tell(self, release: Release | None) -> None:
        """Take in what was released of the round's points, and name the next ones.

        Raises:
            ConfigurationError: If there is a release where none was asked for, or none where one was.
        """
        if (release is not None) != (self._asked is not None):
            wanted = "has no" if self._asked is None else "ends with"
            raise ConfigurationError(f"round {self._round} {wanted} release, told {release!r}")
        self._round += 1
        if release is None or self._asked is None:
            self._announced = not self._alone
            return
        self._seen = self._seen.with_more(self._asked, release.values[0], release.noise_stddev)
        self._asked = self._next()

    @property
    def chosen(self) -> FloatArray:
        """The point that wins by all that was released so far, ``(n_dims,)``."""
        return np.asarray(self._seen.points[self._search.choose(self._seen)])

    def _next(self) -> Question | None:
        counts = self._search.counts
        if self._alone or self._round >= len(counts):
            return None
        return self._search.propose(self._seen, counts[self._round])
