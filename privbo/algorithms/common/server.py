"""The public side: it names points, absorbs what was released of them, and announces the one that won."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from privbo.algorithms.common.search import Search, Seen
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Release, Request, Setting


class SearchServer:
    """Rounds of common points, then one that announces the winner and asks for nothing."""

    def __init__(self, search: Search, setting: Setting, *, alone: bool) -> None:
        self._search, self._setting, self._alone = search, setting, alone
        self._seen = Seen.nothing(setting.space.n_dims)
        self._round = 0
        self._points = self._next()

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order."""
        rounds = range(0 if self._alone else len(self._search.counts))
        return (self._search.request(round_, self._setting) for round_ in rounds)

    def ask(self) -> Ask | None:
        """The points of the current round; the winner in the last one."""
        last = len(self._search.counts)
        if self._round > last or (self._alone and self._round == last):
            return None
        request, arrays = None, dict[str, npt.NDArray[np.generic]]()
        if self._round == last:
            arrays[CHOSEN] = self.chosen
        elif not self._alone:
            request = self._search.request(self._round, self._setting)
            arrays["points"] = self._points
        return Ask(broadcast=Broadcast(round=self._round, arrays=arrays), request=request)

    def tell(self, release: Release | None) -> None:
        """Take in what was released of the round's points, and name the next ones.

        Raises:
            ConfigurationError: If there is a release where none was asked for, or none where one was.
        """
        asked = self._round < len(self._search.counts) and not self._alone
        if (release is not None) != asked:
            raise ConfigurationError(
                f"round {self._round} {'ends with' if asked else 'has no'} release, told {release!r}"
            )
        if release is not None:
            self._seen = self._seen.with_more(self._points, release.values[0], release.noise_stddev)
        self._round += 1
        self._points = self._next()

    @property
    def chosen(self) -> FloatArray:
        """The point that wins by all that was released so far, ``(n_dims,)``."""
        return np.asarray(self._seen.points[self._search.choose(self._seen)])

    def _next(self) -> FloatArray:
        counts = self._search.counts
        if self._alone or self._round >= len(counts):
            return np.empty((0, self._setting.space.n_dims))
        return self._search.propose(self._seen, counts[self._round])
