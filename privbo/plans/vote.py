"""The vote at the end of a run, as a plan states and prices it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from accountant.events import Adjacency, Event, from_dict, to_dict
from accountant.tight.numerical import epsilon_table
from accountant.wording import upper_text
from privbo.door.mechanism import Mechanism
from privbo.protocol.messages import Request
from privbo.protocol.settings import JsonObject


@dataclass(frozen=True, kw_only=True)
class FinalVote:
    """The release at the end of a run that chooses a common setting: a vote over public candidates.

    Attributes:
        event: Its event.
        candidates: Most candidates.
        noise_stddev: Of the noise in every candidate's total, in ballots: one client's ballot has norm at most 1.
    """

    event: Event
    candidates: int
    noise_stddev: float

    def epsilon(self, delta: float, adjacency: Adjacency) -> float:
        """Give what the vote alone would cost."""
        return min(epsilon_table(self.event, delta, adjacency=adjacency).values())

    def text(self, n_clients: int, delta: float, adjacency: Adjacency) -> str:
        """Say what the vote is and costs."""
        return (
            f"over at most {self.candidates} public candidates; alone it would cost epsilon "
            f"{upper_text(self.epsilon(delta, adjacency))} at delta {upper_text(delta)}; noise of "
            f"{self.noise_stddev:.3g} ballots in every total of {n_clients}"
        )

    def to_dict(self) -> JsonObject:
        """Give the vote as JSON."""
        return {"event": to_dict(self.event), "candidates": self.candidates, "noise_stddev": self.noise_stddev}

    @staticmethod
    def from_dict(content: Mapping[str, object]) -> FinalVote:
        """Read the vote as ``to_dict`` wrote it."""
        return FinalVote(
            event=from_dict(cast("Mapping[str, object]", content["event"])),
            candidates=int(cast("int", content["candidates"])),
            noise_stddev=float(cast("float", content["noise_stddev"])),
        )


def final_vote(request: Request, mechanism: Mechanism) -> FinalVote:
    """Describe the vote that a request asks for and a mechanism answers."""
    stddev = request.n_clients * mechanism.noise_stddev()
    return FinalVote(event=mechanism.event(), candidates=request.dim, noise_stddev=stddev)
