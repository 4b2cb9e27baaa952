"""An open release: paid for, its secret participants drawn, waiting for the answers."""

from __future__ import annotations

from typing import NoReturn

from accountant.ledger import Receipt
from privbo.door.adaptive import AdaptiveSum
from privbo.door.mechanism import PlainSum, PrivateSum
from privbo.door.noise import BoolArray, NoiseSource
from privbo.door.partial import Summing
from privbo.protocol.messages import Release, Request


class Ticket:
    """An open release: paid for, participants drawn, waiting for the answers.

    Who takes part is secret: it is neither shown nor copied nor pickled.

    Attributes:
        round: The round it answers.
        receipt: The durable charge.
        release: The release, if it was made and stored before; then nothing is drawn.
        plan_position: Its place in the run's plan.
    """

    def __init__(
        self,
        *,
        round: int,  # noqa: A002 (the protocol's word)
        request: Request,
        mechanism: PrivateSum | PlainSum | AdaptiveSum,
        receipt: Receipt,
        release: Release | None,
        participants: BoolArray | None,
        noise: NoiseSource,
        only_sampled_send: bool = False,
        plan_position: int | None = None,
        sums_groups: bool = True,
    ) -> None:
        self.plan_position = plan_position
        self._sums_groups = sums_groups
        self.round = round
        self.receipt = receipt
        self.release = release
        self._request = request
        self._mechanism = mechanism
        self._participants = participants
        self._noise = noise
        self._only_sampled_send = only_sampled_send

    @property
    def senders(self) -> BoolArray | None:
        """SECRET: who need send, ``(n_clients,)``, for a channel that hides it; None where everyone sends."""
        if not self._only_sampled_send or self._participants is None:
            return None
        return self._participants.copy()

    @property
    def summing(self) -> Summing | None:
        """SECRET: the sums to be made, for clients who are summed in groups; None where vectors are wanted whole."""
        if self._participants is None or isinstance(self._mechanism, PlainSum) or not self._sums_groups:
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
