"""The one door: here, and only here, clients' vectors become a public number.

``open`` checks the request, charges the ledger, waits for the commit and only then draws
the secret participants. ``close`` clips, sums, adds noise, stores the bytes and hands out
the release read back from them. Where a run's participants are drawn all at once, that was done and kept before
(``privbo.door.allocation``). What was stored is what is sent, however often; a charge
whose noise was never stored is drawn anew, because nothing of it had left
(``accountant.ledger.ledger`` has the table of what a crash at each point can and cannot do).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from accountant.errors import LedgerError
from accountant.events import Unit
from accountant.ledger import Ledger
from privbo.door.adaptive import AdaptiveSum, QuantileClipper
from privbo.door.allocation import Allotments, InMemory, Keeper
from privbo.door.answer import Answer, answer, draw_participants, noisy
from privbo.door.clipping import ClipStatistics
from privbo.door.geometry import WeightGeometry, require_weights
from privbo.door.inbox import vet_rows
from privbo.door.mechanism import Mechanism, PlainSum, PrivateSum
from privbo.door.noise import BoolArray, NoiseSource
from privbo.door.partial import Partial
from privbo.door.payload import decode_release, encode_release
from privbo.door.requests import require_request
from privbo.door.ticket import Ticket
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import IntArray, Release, Request


class Gather(Protocol):
    """Brings the noisy sums of a round together where clients' vectors are shared among guardians."""

    def __call__(self, round_: int, mechanism: PrivateSum, request: Request, answers: object) -> IntArray:
        """Give the sums under everybody's noise in grid units, ``(n_blocks * dim,)``."""
        ...


class Door:
    """Charges, draws, clips, sums, adds noise, stores; for one run.

    Proof: docs/proofs/resume.md.

    Args:
        ledger: What is charged.
        run: Name of the run; release ids are ``"{run}/{round}"``.
        noise: Source of noise and participation.
        mechanism: The mechanism that answers a request.
        n_clients: N, the number of registered clients.
        clipper: Adapts the clipping bound to a noisy quantile of the norms at no further
            cost; without one every request is clipped as it asks.
        only_sampled_send: Whether tickets name their participants to a transport that hides
            who sends.
        keeper: Where the secret allocation of a run is kept whose clients take part at random times; by default for
            as long as the process lives.
        gather: Brings sums together that guardians have made.

    Raises:
        ConfigurationError: If the ledger speaks of another number of clients.

    Example:
        >>> import numpy as np
        >>> from accountant import Adjacency, LedgerPolicy
        >>> from privbo.door.mechanism import mechanism_for
        >>> from privbo.door.noise import SimulatedNoise
        >>> policy = LedgerPolicy(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=4)
        >>> door = Door(
        ...     Ledger.create(None, policy), run="r", noise=SimulatedNoise(0), n_clients=4,
        ...     mechanism=lambda request: mechanism_for(request, noise_multiplier=1.0),
        ... )
        >>> request = Request(dim=2, clipping_norm=1.0, weights=np.full((1, 4), 0.25))
        >>> release, private = door.close(door.open(0, request), np.ones((4, 2)))
        >>> release.values.shape, release.noise_stddev
        ((1, 2), 0.25)
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        noise: NoiseSource,
        mechanism: Callable[[Request], Mechanism],
        n_clients: int,
        clipper: QuantileClipper | None = None,
        only_sampled_send: bool = False,
        keeper: Keeper | None = None,
        gather: Gather | None = None,
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
        self._clipper = clipper
        self.only_sampled_send = only_sampled_send
        self._gather = gather
        self._allotments = Allotments(ledger=ledger, run=run, noise=noise, keeper=keeper or InMemory())

    def open(self, round: int, request: Request, plan_position: int | None = None) -> Ticket:  # noqa: A002 (the protocol's word)
        """Charge the ledger for ``request`` and draw the participants.

        Raises:
            ConfigurationError: If the request is impossible; nothing was charged.
            BudgetExceeded: If the budget does not hold it; nothing was charged.
            LedgerError: If this round was charged as another release, or storage fails.
        """
        mechanism = self._vetted(request)
        sample = None if isinstance(mechanism, PlainSum) else mechanism.sample
        allotted = None
        if sample is not None and sample.is_allocation:
            allotted = self._allotments.participants(sample, round, plan_position)
        receipt = self._ledger.charge(
            f"{self._run}/{round}",
            mechanism.event(),
            run=self._run,
            noise_source="none" if isinstance(mechanism, PlainSum) else self._noise.name,
            plan_position=plan_position,
        )
        stored = self._ledger.stored_release(receipt.release_id) if receipt.known else None
        noise = self._noise.stream(str(round))
        participants = None
        if stored is None and self._gather is not None:
            participants = np.ones(self._n_clients, dtype=bool)  # each client's own coin decides, where it is
        elif stored is None:
            participants = draw_participants(mechanism, noise) if allotted is None else allotted
        return Ticket(
            round=round,
            request=request,
            mechanism=mechanism,
            receipt=receipt,
            release=None if stored is None else self._read(stored),
            participants=participants,
            noise=noise,
            only_sampled_send=self.only_sampled_send,
            plan_position=plan_position,
            sums_groups=self._gather is None,
        )

    def close(self, ticket: Ticket, answers: object) -> tuple[Release, ClipStatistics | None]:
        """Make the release from the clients' answers, store it, and hand it out.

        Args:
            ticket: From ``open``; used once.
            answers: One vector per client, ``(n_clients, dim)``; whatever is missing,
                malformed or not finite contributes nothing. Or the sums of all groups that ``Ticket.summing`` made of
                them. With guardians whatever carries sealed shares.

        Returns:
            The public release, and PRIVATE clip statistics that must not leave; None where guardians hold the shares.

        Raises:
            ConfigurationError: If the answers are no sums of all groups; nothing left.
            LedgerError: If the ticket was used before or storage fails; nothing left then.
        """
        participants, ticket._participants = ticket._participants, None
        if participants is None:
            raise LedgerError(f"{ticket!r} has been closed already; late answers count for nothing")
        mechanism = ticket._mechanism
        if self._gather is None:
            made = self._made(ticket, participants, answers)
        else:
            made = self._gathered(self._gather, ticket, answers)
        release = Release(
            round=ticket.round,
            values=made.values,
            noise_stddev=mechanism.noise_stddev(),
            sequence=ticket.receipt.sequence,
            head=ticket.receipt.head,
        )
        self._ledger.store_release(ticket.receipt.release_id, encode_release(release, made.clipping))
        stored = self._ledger.stored_release(ticket.receipt.release_id)
        if stored is None:
            raise LedgerError(f"release {ticket.receipt.release_id!r} was stored and is gone; restore the ledger")
        return self._read(stored), made.statistics

    def _made(self, ticket: Ticket, participants: BoolArray, answers: object) -> Answer:
        """A release of clients' vectors, or of groups' sums."""
        request, mechanism = ticket._request, ticket._mechanism
        if isinstance(answers, Partial) and not isinstance(mechanism, PlainSum):
            if answers.measures.n_clients != self._n_clients:
                raise ConfigurationError(
                    f"sums of {answers.measures.n_clients} clients, the run has {self._n_clients}; sum every group"
                )
            return noisy(mechanism, answers, ticket._noise)
        rows = vet_rows(answers, n_clients=self._n_clients, dim=request.dim)
        return answer(mechanism, request, rows, participants, ticket._noise)

    @staticmethod
    def _gathered(gather: Gather, ticket: Ticket, answers: object) -> Answer:
        """A release that guardians have summed and hidden."""
        request, mechanism = ticket._request, ticket._mechanism
        if not isinstance(mechanism, PrivateSum) or mechanism.n_noises < 2:
            raise ConfigurationError("guardians hide sums of a fixed clipping norm, each with a noise of its own")
        totals = gather(ticket.round, mechanism, request, answers)
        values = totals.astype(np.float64) * mechanism.grid_step() / mechanism.rate
        return Answer(values=values.reshape(request.n_blocks, request.dim), clipping=None, statistics=None)

    def _read(self, stored: bytes) -> Release:
        """The release in stored bytes; an adaptive bound learns from it, once per round."""
        release, clipping = decode_release(stored)
        if self._clipper is not None and clipping is not None:
            self._clipper.absorb(release.round, clipping.fraction)
        return release

    def _vetted(self, request: Request) -> PrivateSum | PlainSum | AdaptiveSum:
        """The request's mechanism, once everything about it is known to be possible."""
        require_request(request)
        if require_weights(request.weights).shape[1] != self._n_clients:
            raise ConfigurationError(
                f"weights speak of {request.n_clients} clients, the run has {self._n_clients}; give each one a column"
            )
        mechanism = self._mechanism(request)
        unit = self._ledger.policy.unit
        rewards = request.unit == "reward"  # else a row is whoever the ledger is about: one client, one record
        if not isinstance(mechanism, PlainSum) and rewards != (unit is Unit.REWARD):
            raise ConfigurationError(
                f"the request protects one {request.unit}, the ledger one {unit.value}: their "
                "costs never add up; give each unit its own ledger"
            )
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
            if (None if mechanism.reward is None else mechanism.reward.bound) != request.reward_bound:
                raise ConfigurationError("the mechanism was described for another unit than the request's; rebuild it")
            mechanism.grid_step()
            return mechanism if self._clipper is None else self._clipper.mechanism(mechanism)
        return mechanism
