"""The loop: ask, open, collect, close, tell, record.

Order in every round: the charge is durable before clients are asked, the clients'
state is durable before the release is stored, and a release is stored before anyone is
told. A run killed at any point therefore resumes: stored releases are replayed to the
deterministic server, a charged round without stored bytes is drawn anew under the same
charge (nothing of it had left), and clients that answered answer the same again.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from accountant.ledger.book import Reservation
from privbo.door.door import Ticket
from privbo.door.sums import Partial, Sealed
from privbo.protocol.common import is_of_rounds
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, FloatArray, Standing
from privbo.runs.evidence import plan_of, recovered_places
from privbo.runs.final import keep_common
from privbo.runs.grid import Clock
from privbo.runs.history import History, OnRound
from privbo.runs.opening import Run
from privbo.runs.record import Record


class Transport(Protocol):
    """Carries a round to every client and brings the answers back."""

    @property
    def hides_senders(self) -> bool:
        """Whether the channel hides who sends, so that only a release's secret sample need send."""
        ...

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | Partial | Sealed:
        """Collect what clients send in a round.

        Args:
            ask: The question.
            ticket: The open release; None in a round of local work. It says who need send, and how groups are summed.

        Returns:
            Answers ``(n_clients, dim)``, rows that are not finite being absences; or the sums of groups, of clients
            who are in groups; or ciphertexts, where guardians sum.
        """
        ...


def play(opened: Run, transport: Transport, on_round: OnRound | None = None, *, clock: Clock | None = None) -> Record:
    """Play a run over a transport, from its first open round to the last: ask, open, collect, close, tell, record.

    Args:
        opened: The run.
        transport: Carries its rounds.
        on_round: Called after every round with public quantities.
        clock: Keeps the run's grid of times; made of ``spec.times`` unless given.

    Raises:
        ConfigurationError: If only sampled clients shall send over a transport that shows who sends.
    """
    if opened.door.only_sampled_send and not transport.hides_senders:
        raise ConfigurationError(
            f"privacy.channel='anonymous', but {type(transport).__name__} does not hide who sends; use channel='open'"
        )
    record, server, door = opened.record, opened.server, opened.door
    home = None if record.directory is None else record.home
    book = record.ledger.book()
    bound = plan_of(record.manifest, book)
    lost = recovered_places(book, record.run_id)
    history = History(home=home, on_round=on_round, sending_share=record.plan.sending_share, lost=lost)
    position, clock = 0, clock or Clock(times=record.spec.times)
    while (ask := server.ask()) is not None:
        if ask.request is None:
            clock.begin()
            transport.collect(_standing(ask, bound, len(book.rows), book.head))
            ended = clock.end()
            server.tell(None)
            history.add(ask.broadcast.round, None, None, ended=ended)
            continue
        ticket, ended = door.open(ask.broadcast.round, ask.request, plan_position=position), None
        position += 1
        if ticket.release is None:
            clock.begin()
            ask = _standing(ask, bound, ticket.receipt.sequence, ticket.receipt.head)
            answers = transport.collect(ask, ticket)
            ended = clock.end()
            release, clipping = door.close(ticket, answers)
        else:
            release, clipping = ticket.release, None
        server.tell(release)
        history.add(ask.broadcast.round, release, clipping if is_of_rounds(ask) else None, ended=ended)
    return dataclasses.replace(record, common=keep_common(server, opened.setting.space, record.directory))


def _standing(ask: Ask, plan: Reservation, sequence: int, head: str) -> Ask:
    """A question with the place of the ledger that stands behind it."""
    return dataclasses.replace(ask, standing=Standing(plan=plan.digest, sequence=sequence, head=head))
