"""The one door: here, and only here, clients' vectors become a public number.

``open`` checks the request, charges the ledger, waits for the commit and only then draws
the secret participants. ``close`` clips, sums, adds noise, stores the bytes and hands out
the release read back from them. Where a run's participants are drawn all at once, that was
done and kept before. What was stored is what is sent, however often; a charge whose noise
was never stored is drawn anew, because nothing of it had left (``accountant.ledger.ledger``
has the table of what a crash at each point can and cannot do).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NoReturn, TypeAlias, cast

import numpy as np

from accountant.errors import LedgerError
from accountant.events import Unit
from accountant.ledger import Ledger, Receipt
from privbo.door.adaptive import AdaptiveSum, QuantileClipper
from privbo.door.mechanism import Mechanism, PlainSum, PrivateSum, WeightGeometry, require_request
from privbo.door.noise import NoiseSource
from privbo.door.payload import decode_release, encode_release, store, vet_rows
from privbo.door.sampling import Allocation, Keeper, Sample
from privbo.door.sums import Answer, Partial, Sealed, Summing, answer, noisy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, FloatArray, IntArray, Release, Request
from privbo.protocol.settings import JsonObject


@dataclass(kw_only=True, repr=False, eq=False)
class Ticket:
    """An open release: charged, participants drawn, waiting for the answers.

    Who takes part is secret: it is neither shown nor copied nor pickled.

    Attributes:
        round: The round it answers.
        receipt: The durable charge.
        release: The release, if it was made and stored before; then nothing is drawn.
    """

    round: int
    receipt: Receipt
    release: Release | None
    _request: Request
    _mechanism: PrivateSum | PlainSum | AdaptiveSum
    _participants: BoolArray | None
    _noise: NoiseSource
    _door: Door

    @property
    def senders(self) -> BoolArray | None:
        """SECRET: who need send, ``(n_clients,)``, for a channel that hides it; None where everyone sends."""
        if not self._door.only_sampled_send or self._participants is None:
            return None
        return self._participants.copy()

    @property
    def summing(self) -> Summing | None:
        """SECRET: the sums to be made, for clients who are summed in groups; None where vectors are wanted whole."""
        if self._participants is None or isinstance(self._mechanism, PlainSum) or self._door.gather is not None:
            return None
        return Summing(
            mechanism=self._mechanism,
            dim=self._request.dim,
            weights=self._request.weights,
            participants=self._participants,
        )

    def __repr__(self) -> str:
        return f"Ticket(round={self.round}, release_id={self.receipt.release_id!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a ticket holds secret participants and cannot be copied or pickled; open the round again")


Answers: TypeAlias = FloatArray | Partial | Sealed
"""What a transport brings back: every client's vector, the sums of all groups, or ciphertexts for guardians."""
Gather: TypeAlias = Callable[[int, PrivateSum, Request, Answers], IntArray]
"""Brings a round's noisy sums, ``(n_blocks * dim,)`` in grid units, together from guardians or sites."""


@dataclass(repr=False, eq=False)
class Door:
    """Charges, draws, clips, sums, adds noise, stores; for one run.

    Proof: docs/proofs/resume.md.

    Attributes:
        ledger: What is charged.
        run: Name of the run; release ids are ``"{run}/{round}"``.
        noise: Source of noise and participation.
        mechanism: The mechanism that answers a request.
        clipper: Adapts the clipping bound to a noisy quantile of the norms at no further
            cost; without one every request is clipped as it asks.
        only_sampled_send: Whether tickets name their participants to a transport that hides
            who sends.
        keeper: Where the secret allocation of a run is kept whose clients take part at random times; by default for
            as long as the process lives.
        gather: Brings sums together that guardians have made, or sites, under noise of their own.

    Example:
        >>> import numpy as np
        >>> from accountant import Adjacency, LedgerPolicy
        >>> from privbo.door.mechanism import mechanism_for
        >>> from privbo.door.noise import SimulatedNoise
        >>> policy = LedgerPolicy(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=4)
        >>> door = Door(
        ...     Ledger.create(None, policy), run="r", noise=SimulatedNoise(0),
        ...     mechanism=lambda request: mechanism_for(request, noise_multiplier=1.0),
        ... )
        >>> request = Request(dim=2, clipping_norm=1.0, weights=np.full((1, 4), 0.25))
        >>> release, private = door.close(door.open(0, request), np.ones((4, 2)))
        >>> release.values.shape, release.noise_stddev
        ((1, 2), 0.25)
    """

    ledger: Ledger
    _: KW_ONLY
    run: str
    noise: NoiseSource
    mechanism: Callable[[Request], Mechanism]
    clipper: QuantileClipper | None = None
    only_sampled_send: bool = False
    keeper: Keeper = field(default_factory=Keeper)
    gather: Gather | None = None
    _allocation: Allocation | None = field(default=None, init=False)

    @property
    def n_clients(self) -> int:
        """N, the number of registered clients, of whom the ledger speaks."""
        return cast("int", self.ledger.policy.n_clients)  # no request fits a ledger that speaks of no number

    def open(
        self,
        round: int,  # noqa: A002 (the protocol's word)
        request: Request,
        plan_position: int | None = None,
        announced: str | None = None,
    ) -> Ticket:
        """Charge the ledger for ``request``, and for points that clients are told by their digest; draw participants.

        Raises:
            ConfigurationError: If the request is impossible; nothing was charged.
            BudgetExceeded: If the budget does not hold it; nothing was charged.
            LedgerError: If this round was charged as another release, or storage fails.
        """
        mechanism = self._vetted(request)
        sample = None if isinstance(mechanism, PlainSum) else mechanism.sample
        allotted = None
        if sample is not None and sample.is_allocation:
            allocation = self._allotted(sample, round, plan_position)
            allotted, announced = np.array(allocation.table[:, plan_position]), allocation.digest
        receipt = self.ledger.charge(
            f"{self.run}/{round}",
            mechanism.event(),
            run=self.run,
            noise_source="none" if isinstance(mechanism, PlainSum) else self.noise.name,
            plan_position=plan_position,
            announced=announced,
        )
        stored = self.ledger.stored_release(receipt.release_id) if receipt.known else None
        noise = self.noise.stream(str(round))
        participants: BoolArray | None = None
        if stored is None and (self.gather is not None or sample is None):
            participants = np.ones(self.n_clients, dtype=bool)  # under guardians each client draws for itself
        elif stored is None and sample is not None:
            participants = sample.draw(1, noise)[0] if allotted is None else allotted
        return Ticket(
            round=round,
            receipt=receipt,
            release=None if stored is None else self._read(stored),
            _request=request,
            _mechanism=mechanism,
            _participants=participants,
            _noise=noise,
            _door=self,
        )

    def _allotted(self, sample: Sample, round_: int, position: int | None) -> Allocation:
        """SECRET: give the allocation that the release at a place of the plan has; asked for before its charge."""
        entries = self.ledger.entries(self.run)
        taken = {entry.plan_position: entry.release_id for entry in entries}
        release_id = f"{self.run}/{round_}"
        if position is None or not 0 <= position < (sample.n_releases or 0):
            raise LedgerError(
                f"round {round_} has place {position} of an allocation over {sample.n_releases} releases; open rounds "
                "as they were planned"
            )
        if any((place == position) != (name == release_id) for place, name in taken.items()):
            raise LedgerError(
                f"place {position} of run {self.run!r} is another round's than {round_}; resume it as it was"
            )
        if self._allocation is None:
            allocation = self.keeper.kept()
            if allocation is None and taken:
                raise LedgerError(
                    f"run {self.run!r} has charged releases and its allocation is gone; restore private/ from a copy, "
                    "or end the run here: what was charged stays charged"
                )
            if allocation is None:
                self.keeper.keep(sample.allocate(self.noise.stream("allocation")))
                allocation = self.keeper.kept()  # another process may have been first
            shape = (sample.n_clients, sample.n_releases)
            if (
                allocation is None
                or allocation.table.shape != shape
                or np.any(allocation.table.sum(axis=1) != sample.participations)
                or any(entry.announced not in (None, allocation.digest) for entry in entries)
            ):
                raise LedgerError(
                    f"the allocation of run {self.run!r} is not the one that was drawn; restore it from a copy"
                )
            self._allocation = allocation
        return self._allocation

    def close(self, ticket: Ticket, answers: Answers) -> tuple[Release, JsonObject | None]:
        """Make the release from the clients' answers, store it, and hand it out.

        Args:
            ticket: From ``open``; used once.
            answers: One vector per client, ``(n_clients, dim)``; whatever is missing,
                malformed or not finite contributes nothing. Or the sums of all groups that ``Ticket.summing`` made of
                them. With guardians whatever carries encrypted shares.

        Returns:
            The public release, and PRIVATE clip statistics that must not leave; None where guardians hold the shares.

        Raises:
            ConfigurationError: If the answers are no sums of all groups; nothing left.
            LedgerError: If the ticket was used before or storage fails; nothing left then.
        """
        participants, ticket._participants = ticket._participants, None
        if participants is None:
            raise LedgerError(f"{ticket!r} has been closed already; late answers count for nothing")
        made = self._made(ticket, participants, answers)
        release = Release(
            round=ticket.round,
            values=made.values,
            noise_stddev=ticket._mechanism.noise_stddev(),
            sequence=ticket.receipt.sequence,
            head=ticket.receipt.head,
        )
        stored = store(self.ledger, ticket.receipt.release_id, encode_release(release, made.clipping))
        return self._read(stored), made.statistics

    @np.errstate(all="ignore")  # a warning would tell of the secret sample
    def _made(self, ticket: Ticket, participants: BoolArray, answers: Answers) -> Answer:
        """Give the numbers of a release: guardians', or of groups' sums, or of clients' vectors."""
        request, mechanism = ticket._request, ticket._mechanism
        if self.gather is not None:
            if not isinstance(mechanism, PrivateSum) or (mechanism.n_noises < 2 and mechanism.move is None):
                raise ConfigurationError("guardians hide sums of a fixed clipping norm, each with a noise of its own")
            totals = self.gather(ticket.round, mechanism, request, answers)
            values = totals.astype(np.float64) * mechanism.grid_step() / mechanism.sample.rate
            return Answer(values=values.reshape(request.n_blocks, request.dim), clipping=None, statistics=None)
        match answers:
            case Partial() if not isinstance(mechanism, PlainSum):
                if answers.measures.n_clients != self.n_clients:
                    raise ConfigurationError(
                        f"sums of {answers.measures.n_clients} clients, the run has {self.n_clients}; sum every group"
                    )
                return noisy(mechanism, answers, ticket._noise)
            case Sealed():
                raise ConfigurationError("only guardians read ciphertexts, and this run has none; nothing was released")
            case _:
                rows = vet_rows(answers, n_clients=self.n_clients, dim=request.dim)
                return answer(mechanism, request, rows, participants, ticket._noise)

    def _read(self, stored: bytes) -> Release:
        """The release in stored bytes; an adaptive bound learns from it, once per round."""
        release, clipping = decode_release(stored)
        if self.clipper is not None and clipping is not None:
            self.clipper.absorb(release.round, clipping.fraction)
        return release

    def _vetted(self, request: Request) -> PrivateSum | PlainSum | AdaptiveSum:
        """The request's mechanism, once everything about it is known to be possible."""
        require_request(request)
        geometry = WeightGeometry.of(request.weights)
        if geometry.n_clients != self.n_clients:
            raise ConfigurationError(
                f"weights speak of {request.n_clients} clients, the run has {self.n_clients}; give each one a column"
            )
        mechanism = self.mechanism(request)
        unit = self.ledger.policy.unit
        # A row is whoever the ledger is about, one client or one record, unless the request bounds a smaller unit.
        is_row = request.unit == "client" and unit is Unit.RECORD
        if not isinstance(mechanism, PlainSum) and not is_row and request.unit != unit.value:
            raise ConfigurationError(
                f"the request protects one {request.unit}, the ledger one {unit.value}: their "
                "costs never add up; give each unit its own ledger"
            )
        found: list[tuple[str, object, object]] = [("weights' geometry", mechanism.geometry, geometry)]
        if isinstance(mechanism, PrivateSum):
            bound, size = (None, 1) if mechanism.move is None else (mechanism.move.bound, mechanism.move.group_size)
            found += [
                ("clipping norm", mechanism.clipping_norm, request.clipping_norm),
                ("adjacency", mechanism.adjacency, self.ledger.policy.adjacency),
                ("bound on one unit", bound, request.unit_bound),
                ("units replaced together", size, request.group_size),
                ("models' training", mechanism.training, request.training),
            ]
        for what, described, asked in found:
            if described != asked:
                raise ConfigurationError(
                    f"the mechanism was described for the {what} {described!r}, and request and ledger have {asked!r}; "
                    "rebuild it"
                )
        if isinstance(mechanism, PrivateSum):
            mechanism.grid_step()
            return mechanism if self.clipper is None else self.clipper.mechanism(mechanism)
        return mechanism
