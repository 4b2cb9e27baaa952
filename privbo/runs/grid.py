"""Times on a declared grid: a round begins and ends at multiples of its declared length, whoever is slow or quick."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Positive, settings

_MARGIN = 0.05  # share of a round that may pass before it begins, and again between its last answer and its end


@settings(table="times")
class Times:
    """A declared grid of times, on which a run's rounds begin and end; public.

    .. versionadded:: 0.3.0

    Attributes:
        round_seconds: Length of every round. A round lasts it though all have answered, and who
            has not answered by its end is absent.
        client_seconds: Seconds of a round that one client's evaluations may take together; what overruns
            them fails as if the objective had raised. By default half of the round, shared equally by the
            clients of one process, which are asked one after the other.

    Raises:
        ConfigurationError: If a number is out of range.

    Example:
        >>> Times(round_seconds=60.0).of_one(n_clients=10)
        3.0
    """

    round_seconds: Positive
    client_seconds: Positive | None = None

    @property
    def patience(self) -> float:
        """Seconds for which a round waits for answers; the rest is for what is done before and after."""
        return (1 - 2 * _MARGIN) * self.round_seconds

    def of_one(self, n_clients: int) -> float:
        """Give the seconds that one of so many clients in one process has for its evaluations in a round.

        Raises:
            ConfigurationError: If all of them together may overrun the round.
        """
        if self.client_seconds is None:
            return self.round_seconds / (2 * n_clients)
        if self.client_seconds * n_clients > self.patience:
            raise ConfigurationError(
                f"times.client_seconds={self.client_seconds:g}: {n_clients} clients, asked one after the other, may "
                f"take longer than the {self.patience:g} s in which a round of {self.round_seconds:g} s waits for "
                "answers; declare longer rounds"
            )
        return self.client_seconds


@dataclass(kw_only=True)
class Clock:
    """Keeps a grid: waits for its points and names them. Without a grid nothing waits and nothing is named.

    Attributes:
        times: The grid, or None.
        now: Gives the seconds since 1970.
        sleep: Waits for seconds.
    """

    times: Times | None
    now: Callable[[], float] = field(default_factory=lambda: time.time)
    sleep: Callable[[float], None] = time.sleep
    _end: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Wait for the point at which a round begins: the end of the one before, if that has only just been."""
        if self.times is None:
            return
        length = self.times.round_seconds
        late = self.now() - self._end
        start = self._end if 0 <= late < _MARGIN * length else math.ceil(self.now() / length) * length
        self._wait(start)
        self._end = start + length

    def end(self) -> str | None:
        """Wait for the end of the round and give it as text; if it has passed, the next point of the grid."""
        if self.times is None:
            return None
        length = self.times.round_seconds
        while self._end < self.now():
            self._end += length
        self._wait(self._end)
        return f"{datetime.fromtimestamp(self._end, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

    def _wait(self, moment: float) -> None:
        while (rest := moment - self.now()) > 0:
            self.sleep(rest)
