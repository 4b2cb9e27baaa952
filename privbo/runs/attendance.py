"""Clients that are away, and answers that come late: the simulated side of an unreliable network.

Neither costs nor saves privacy: a missing vector contributes zero, a late one is clipped
like any other, and the noise and the charge are what they would have been. Clients act and
learn on their own as ever; it is their message that is lost or late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, FloatArray, IntArray
from privbo.protocol.settings import Count, settings

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]

_PREVIOUS, _NEWEST, _ROUND = "attendance/previous", "attendance/newest", "attendance/round"
_AWAY, _LATE = 0, 1


@settings(table="attendance")
class Attendance:
    """Rates at which clients are away or late, drawn for every client and round on its own.

    Attributes:
        dropout: Probability that a client drops out in a round; its messages are lost from then on
            for ``away_for`` rounds. Partial participation is dropout with ``away_for=1``.
        away_for: Rounds a client stays away after dropping out.
        late: Probability that a client's previous answer arrives in place of its newest
            one (nothing in its first round).
        seed: Of these draws alone.

    Example:
        >>> import numpy as np
        >>> Attendance(dropout=1.0).away(0, np.arange(3)).tolist()
        [True, True, True]

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    dropout: Share = 0.0
    away_for: Count = 1
    late: Share = 0.0
    seed: Annotated[int, Field(ge=0)] = 0

    def away(self, round_: int, clients: IntArray) -> npt.NDArray[np.bool_]:
        """Tell who is away in a round, ``(len(clients),)``."""
        gone = np.zeros(len(clients), dtype=bool)
        for start in range(max(0, round_ - self.away_for + 1), round_ + 1):
            gone |= self._draws(start, clients, _AWAY) < self.dropout
        return gone

    def is_late(self, round_: int, clients: IntArray) -> npt.NDArray[np.bool_]:
        """Tell whose newest answer of a round has not arrived yet, ``(len(clients),)``."""
        return self._draws(round_, clients, _LATE) < self.late

    def _draws(self, round_: int, clients: IntArray, purpose: int) -> FloatArray:
        """One uniform draw per client; a client's own depends on its number, not on who else is asked."""
        generator = np.random.default_rng([self.seed, round_, purpose])
        return np.asarray(generator.random(int(clients.max(initial=-1)) + 1)[clients])


@dataclass(kw_only=True)
class UnreliableCohort:
    """A cohort some of whose answers are lost or late.

    Attributes:
        cohort: The clients.
        attendance: Which of their answers.
    """

    cohort: Cohort
    attendance: Attendance
    _answers: tuple[FloatArray, FloatArray] | None = field(default=None, repr=False)
    _round: int = -1

    @property
    def clients(self) -> IntArray:
        """As the wrapped cohort."""
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Answers as they arrive; absences are NaN rows."""
        answers = np.array(self.cohort.respond(broadcast), dtype=np.float64)
        if not answers.shape[1]:
            return answers
        if broadcast.round > self._round:
            fits = self._answers is not None and self._answers[1].shape == answers.shape
            previous = self._answers[1] if self._answers is not None and fits else np.full_like(answers, np.nan)
            self._answers, self._round = (previous, answers), broadcast.round
        previous, newest = self._answers if self._answers is not None else (answers, answers)
        late = self.attendance.is_late(broadcast.round, self.clients)
        arrived = np.where(late[:, None], previous, newest)
        arrived[self.attendance.away(broadcast.round, self.clients)] = np.nan
        return arrived

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """The cohort's, with the last two answers; private."""
        kept: dict[str, npt.NDArray[np.generic]] = dict(self.cohort.snapshot())
        if self._answers is not None:
            kept |= {_PREVIOUS: self._answers[0], _NEWEST: self._answers[1], _ROUND: np.array(self._round)}
        return kept

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        own = {_PREVIOUS, _NEWEST, _ROUND}
        self.cohort.restore({key: value for key, value in snapshot.items() if key not in own})
        if _ROUND in snapshot:
            self._answers = snapshot[_PREVIOUS].astype(np.float64), snapshot[_NEWEST].astype(np.float64)
            self._round = int(snapshot[_ROUND].item())

    def history(self) -> ClientHistory:
        """As the wrapped cohort."""
        return self.cohort.history()
