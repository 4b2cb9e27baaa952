"""The loop: ask, open, collect, close, tell, record.

Order in every round: the charge is durable before clients are asked, the clients'
state is durable before the release is stored, and a release is stored before anyone is
told. A run killed at any point therefore resumes: stored releases are replayed to the
deterministic server, a charged round without stored bytes is drawn anew under the same
charge (nothing of it had left), and clients that answered answer the same again.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

from accountant.ledger.reservation import Reservation
from privbo.door.noise import BoolArray
from privbo.door.partial import Partial, Summing
from privbo.door.ticket import Ticket
from privbo.protocol.common import is_of_rounds
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, FloatArray, Standing
from privbo.runs.common import keep_common
from privbo.runs.evidence import plan_of, recovered_places
from privbo.runs.grid import Clock
from privbo.runs.history import History, OnRound
from privbo.runs.opening import Run
from privbo.runs.record import Record


class Transport(Protocol):
    """Carries a round to every client and brings the answers back."""

    def collect(self, ask: Ask) -> object:
        """Collect answers ``(n_clients, dim)``, rows that are not finite being absences; or what guardians open."""
        ...


@runtime_checkable
class AnonymousTransport(Transport, Protocol):
    """A transport whose channel hides who sends, so that only a release's secret sample need send."""

    def collect_from(self, ask: Ask, senders: BoolArray) -> FloatArray:
        """Collect answers as ``collect`` does, with a message from the senders alone; the other rows are NaN."""
        ...


@runtime_checkable
class SummingTransport(Transport, Protocol):
    """A transport whose clients are in groups, of which each hands on its sums instead of everybody's vectors."""

    def collect_sums(self, ask: Ask, summing: Summing) -> Partial:
        """Collect the sums of all clients' answers; PRIVATE as long as they have no noise."""
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
    if opened.door.only_sampled_send and not isinstance(transport, AnonymousTransport):
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
            answers = _collected(transport, ask, ticket)
            ended = clock.end()
            release, clipping = door.close(ticket, answers)
        else:
            release, clipping = ticket.release, None
        server.tell(release)
        history.add(ask.broadcast.round, release, clipping if is_of_rounds(ask) else None, ended=ended)
    return dataclasses.replace(record, common=keep_common(server, opened.setting.space, record.directory))


def _collected(transport: Transport, ask: Ask, ticket: Ticket) -> object:
    """Answers of those who are asked; sums of groups where the transport has groups."""
    senders, summing = ticket.senders, ticket.summing
    if senders is not None and isinstance(transport, AnonymousTransport):
        return transport.collect_from(ask, senders)
    if summing is not None and isinstance(transport, SummingTransport):
        return transport.collect_sums(ask, summing)
    return transport.collect(ask)


def _standing(ask: Ask, plan: Reservation, sequence: int, head: str) -> Ask:
    """A question with the place of the ledger that stands behind it."""
    return dataclasses.replace(ask, standing=Standing(plan=plan.digest, sequence=sequence, head=head))
