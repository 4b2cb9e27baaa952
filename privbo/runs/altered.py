"""Clients whose answers are altered on the way: controls, planted faults, and a simulated unreliable network.

Absence and lateness neither cost nor save privacy: a missing vector contributes zero, a late one is clipped
like any other, and the noise and the charge are what they would have been. Where one reward is the unit a run with
late answers is refused. Clients act and learn on their own as ever; it is their message that is lost or late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from privbo.protocol.messages import Array, Arrays, BoolArray, Broadcast, ClientHistory, Cohort, FloatArray, IntArray
from privbo.protocol.settings import Count, settings

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]

_KEPT = "attendance/"  # in a snapshot, before the names of what an alteration keeps
_AWAY, _LATE = 0, 1


@dataclass(frozen=True, kw_only=True)
class AlteredCohort:
    """Clients that act as ever and whose answers are altered on the way.

    Attributes:
        cohort: The clients.
        alter: Gives what arrives from their answers, ``(n, dim)``, and the index of the round.
        kept: Arrays that ``alter`` keeps between rounds; part of the clients' state.
    """

    cohort: Cohort
    alter: Callable[[FloatArray, int], FloatArray] = lambda answers, _: answers
    kept: dict[str, Array] = field(default_factory=dict)

    @property
    def clients(self) -> IntArray:
        """As the wrapped cohort."""
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act on the broadcast, answer with what is made of the answers."""
        return self.alter(self.cohort.respond(broadcast), broadcast.round)

    def snapshot(self) -> Arrays:
        """The wrapped cohort's, with what the alteration keeps; private."""
        return {**self.cohort.snapshot(), **{f"{_KEPT}{name}": array for name, array in self.kept.items()}}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``."""
        self.cohort.restore({name: array for name, array in snapshot.items() if not name.startswith(_KEPT)})
        self.kept.update({n.removeprefix(_KEPT): array for n, array in snapshot.items() if n.startswith(_KEPT)})

    def history(self) -> ClientHistory:
        """As the wrapped cohort."""
        return self.cohort.history()


def zeroed(cohort: Cohort) -> AlteredCohort:
    """Give the control in which clients act as ever, but every vector they send is zero.

    Run behind the same mechanism it shows what the noise alone does; a gain of sharing
    is claimed only against it.
    """
    return AlteredCohort(cohort=cohort, alter=lambda answers, _: np.zeros_like(answers))


@settings(table="attendance")
class Attendance:
    """Rates at which clients are away or late, drawn for every client and round on its own.

    Attributes:
        dropout: Probability that a client drops out in a round; its messages are lost from then on
            for ``away_for`` rounds. Partial participation is dropout with ``away_for=1``.
        away_for: Rounds a client stays away after dropping out.
        late: Probability that a client's previous answer arrives in place of its newest
            one (nothing in its first round); 0 where one reward is the unit of privacy, which enters one release.
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

    def away(self, round_: int, clients: IntArray) -> BoolArray:
        """Tell who is away in a round, ``(len(clients),)``."""
        gone = np.zeros(len(clients), dtype=bool)
        for start in range(max(0, round_ - self.away_for + 1), round_ + 1):
            gone |= self._draws(start, clients, _AWAY) < self.dropout
        return gone

    def is_late(self, round_: int, clients: IntArray) -> BoolArray:
        """Tell whose newest answer of a round has not arrived yet, ``(len(clients),)``."""
        return self._draws(round_, clients, _LATE) < self.late

    def _draws(self, round_: int, clients: IntArray, purpose: int) -> FloatArray:
        """One uniform draw per client; a client's own depends on its number, not on who else is asked."""
        generator = np.random.default_rng([self.seed, round_, purpose])
        return np.asarray(generator.random(int(clients.max(initial=-1)) + 1)[clients])


def unreliable(cohort: Cohort, attendance: Attendance) -> AlteredCohort:
    """Give a cohort some of whose answers are lost, as NaN rows, or late.

    It keeps the last two answers and their round, so that a round that is asked again has the same late answers.
    """
    kept: dict[str, Array] = {}

    def arrived(answers: FloatArray, round_: int) -> FloatArray:
        if not answers.shape[1]:
            return answers
        if "round" not in kept or round_ > int(kept["round"].item()):
            newest = kept.get("newest", np.empty(0))
            previous = newest if newest.shape == answers.shape else np.full_like(answers, np.nan)
            kept.update(previous=previous, newest=np.array(answers, dtype=np.float64), round=np.array(round_))
        late = attendance.is_late(round_, cohort.clients)
        rows = np.where(late[:, None], kept["previous"], kept["newest"]).astype(np.float64)
        rows[attendance.away(round_, cohort.clients)] = np.nan
        return rows

    return AlteredCohort(cohort=cohort, alter=arrived, kept=kept)
