"""Clients in this process: the default transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import Ask, Broadcast, ClientHistory, Cohort, FloatArray
from privbo.runs.aside import printed_to


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """Asks a cohort directly and makes its state durable before the answer goes on.

    Attributes:
        cohort: All clients, in the order of the request's weights.
        save: Called with the cohort's snapshot and what was asked after every answer, so that a
            stored release never stands before the state of the clients that answered it.
        output: PRIVATE: where what the clients' code prints goes; None leaves it on the terminal.
    """

    cohort: Cohort
    save: Callable[[Mapping[str, npt.NDArray[np.generic]], Ask], None]
    output: Path | None = None

    def collect(self, ask: Ask) -> FloatArray:
        """Every client's answer, ``(n_clients, dim)``."""
        with printed_to(self.output):
            answers = self.cohort.respond(ask.broadcast)
        self.save(self.cohort.snapshot(), ask)
        return answers

    def collect_from(self, ask: Ask, senders: npt.NDArray[np.bool_]) -> FloatArray:
        """The senders' answers; nothing leaves this process, so nobody sees who sent."""
        return np.where(senders[:, None], self.collect(ask), np.nan)


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
