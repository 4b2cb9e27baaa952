"""The one door: here, and only here, clients' vectors become a public number.

``open`` checks the request, charges the ledger, waits for the commit and only then draws
the secret participants. ``close`` clips, sums, adds noise, stores the bytes and hands out
the release read back from them. What was stored is what is sent, however often; a charge
whose noise was never stored is drawn anew, because nothing of it had left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from accountant.errors import LedgerError
from accountant.ledger import Ledger, Receipt
from privbo.errors import ConfigurationError
from privbo.protocol import FloatArray, Release, Request
from privbo.release import sums
from privbo.release.clipping import ClipStatistics, clip_rows, clip_statistics
from privbo.release.intake import vet_rows
from privbo.release.mechanism import Mechanism, PrivateSum, WeightGeometry, require_request, require_weights
from privbo.release.noise import BoolArray, NoiseSource
from privbo.release.payload import decode_release, encode_release


class Ticket:
    """An open release: paid for, participants drawn, waiting for the answers.

    Who takes part is secret: it is neither shown nor copied nor pickled.

    Attributes:
        round: The round it answers.
        receipt: The durable charge.
        release: The release, if it was made and stored before; then nothing is drawn.
    """

    def __init__(
        self,
        *,
        round: int,  # noqa: A002 (the protocol's word)
        request: Request,
        mechanism: Mechanism,
        receipt: Receipt,
        release: Release | None,
        participants: BoolArray | None,
        noise: NoiseSource,
    ) -> None:
        self.round = round
        self.receipt = receipt
        self.release = release
        self._request = request
        self._mechanism = mechanism
        self._participants = participants
        self._noise = noise

    def __repr__(self) -> str:
        return f"Ticket(round={self.round}, release_id={self.receipt.release_id!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a ticket holds secret participants and cannot be copied or pickled; open the round again")


class Door:
    """Charges, draws, clips, sums, adds noise, stores; for one run.

    Args:
        ledger: What is charged.
        run: Name of the run; release ids are ``"{run}/{round}"``.
        noise: Source of noise and participation.
        mechanism: The mechanism that answers a request.
        n_clients: N, the number of registered clients.

    Raises:
        ConfigurationError: If the ledger speaks of another number of clients.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        noise: NoiseSource,
        mechanism: Callable[[Request], Mechanism],
        n_clients: int,
    ) -> None:
        if ledger.policy.n_clients != n_clients:
            raise ConfigurationError(
                f"the run has {n_clients} clients, its ledger speaks of {ledger.policy.n_clients}; "
                "register the same clients or start a ledger of their own"
            )
        self._ledger = ledger
        self._run = run
        self._noise = noise
        self._mechanism = mechanism
        self._n_clients = n_clients

    def open(self, round: int, request: Request, plan_position: int | None = None) -> Ticket:  # noqa: A002
        """Charge the ledger for ``request`` and draw the participants.

        Raises:
            ConfigurationError: If the request is impossible; nothing was charged.
            BudgetExceeded: If the budget does not hold it; nothing was charged.
            LedgerError: If this round was charged as another release, or storage fails.
        """
        mechanism = self._vetted(request)
        private = isinstance(mechanism, PrivateSum)
        receipt = self._ledger.charge(
            f"{self._run}/{round}",
            mechanism.event(),
            run=self._run,
            noise_source=self._noise.name if private else "none",
            plan_position=plan_position,
        )
        stored = self._ledger.stored_release(receipt.release_id) if receipt.known else None
        noise = self._noise.stream(str(round))
        participants = None
        if stored is None:
            participants = _participants(mechanism, noise)
        return Ticket(
            round=round,
            request=request,
            mechanism=mechanism,
            receipt=receipt,
            release=None if stored is None else decode_release(stored),
            participants=participants,
            noise=noise,
        )

    def close(self, ticket: Ticket, answers: Any) -> tuple[Release, ClipStatistics]:  # noqa: ANN401
        """Make the release from the clients' answers, store it, and hand it out.

        Args:
            ticket: From ``open``; used once.
            answers: One vector per client, ``(n_clients, dim)``; whatever is missing,
                malformed or not finite contributes nothing.

        Returns:
            The public release, and PRIVATE clip statistics that must not leave.

        Raises:
            LedgerError: If the ticket was used before or storage fails; nothing left then.
        """
        participants, ticket._participants = ticket._participants, None
        if participants is None:
            raise LedgerError(f"{ticket!r} has been closed already; late answers count for nothing")
        request, mechanism = ticket._request, ticket._mechanism
        rows = vet_rows(answers, n_clients=self._n_clients, dim=request.dim)
        values, statistics = _answer(mechanism, request, rows, participants, ticket._noise)
        release = Release(
            round=ticket.round,
            values=values,
            noise_stddev=mechanism.noise_stddev(),
            sequence=ticket.receipt.sequence,
            head=ticket.receipt.head,
        )
        self._ledger.store_release(ticket.receipt.release_id, encode_release(release))
        stored = self._ledger.stored_release(ticket.receipt.release_id)
        if stored is None:
            raise LedgerError(f"release {ticket.receipt.release_id!r} was stored and is gone; restore the ledger")
        return decode_release(stored), statistics

    def _vetted(self, request: Request) -> Mechanism:
        """The request's mechanism, once everything about it is known to be possible."""
        require_request(request)
        if require_weights(request.weights).shape[1] != self._n_clients:
            raise ConfigurationError(
                f"weights speak of {request.n_clients} clients, the run has {self._n_clients}; give each one a column"
            )
        mechanism = self._mechanism(request)
        if mechanism.geometry != WeightGeometry.of(request.weights):
            raise ConfigurationError("the mechanism was described for other weights than the request's; rebuild it")
        if isinstance(mechanism, PrivateSum):
            if mechanism.clipping_norm != request.clipping_norm:
                raise ConfigurationError(
                    f"the mechanism clips to {mechanism.clipping_norm!r}, the request asks for "
                    f"{request.clipping_norm!r}; rebuild it"
                )
            if mechanism.adjacency != self._ledger.policy.adjacency:
                raise ConfigurationError(
                    f"the mechanism is described under {mechanism.adjacency.value}, the ledger under "
                    f"{self._ledger.policy.adjacency.value}; state the same adjacency"
                )
            mechanism.grid_step()
        return mechanism


def _participants(mechanism: Mechanism, noise: NoiseSource) -> BoolArray:
    if isinstance(mechanism, PrivateSum):
        return np.asarray(sums.draw_participation(mechanism, 1, noise)[0])
    return np.ones(mechanism.geometry.n_clients, dtype=bool)


def _answer(
    mechanism: Mechanism, request: Request, rows: FloatArray, participants: BoolArray, noise: NoiseSource
) -> tuple[FloatArray, ClipStatistics]:
    """Values of the release and the private statistics of its making."""
    if isinstance(mechanism, PrivateSum):
        clipped = clip_rows(rows, mechanism.applied_bound)
        values = sums.noisy_sums(mechanism, request.weights, clipped, participants[None], noise)[0]
        bound, rate = mechanism.vector_bound, mechanism.rate
    else:
        clipped = clip_rows(rows, np.inf)
        values = request.weights @ clipped
        bound, rate = np.inf, 1.0
    statistics = clip_statistics(
        rows, clipped, participants=participants, weights=request.weights, bound=bound, rate=rate
    )
    return values, statistics
