"""Clients whose answers are altered on the way: controls, and faults that checks plant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, FloatArray


@dataclass(frozen=True, kw_only=True)
class AlteredCohort:
    """Clients that act as ever and whose answers are altered on the way.

    Attributes:
        cohort: The clients.
        alter: Gives what arrives from their answers, ``(n, dim)``, and the index of the round.
    """

    cohort: Cohort
    alter: Callable[[FloatArray, int], FloatArray]

    @property
    def clients(self) -> npt.NDArray[np.int64]:
        """As the wrapped cohort."""
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act on the broadcast, answer with what is made of the answers."""
        return self.alter(self.cohort.respond(broadcast), broadcast.round)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """As the wrapped cohort."""
        return self.cohort.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """As the wrapped cohort."""
        self.cohort.restore(snapshot)

    def history(self) -> ClientHistory:
        """As the wrapped cohort."""
        return self.cohort.history()


def zeroed(cohort: Cohort) -> AlteredCohort:
    """Give the control in which clients act as ever, but every vector they send is zero.

    Run behind the same mechanism it shows what the noise alone does; a gain of sharing
    is claimed only against it.
    """
    return AlteredCohort(cohort=cohort, alter=lambda answers, _: np.zeros_like(answers))
