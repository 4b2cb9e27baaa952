"""Who has to be trusted with a vector, and what a run costs against whom, in numbers and words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from accountant.events import SLACK, Adjacency, Event, compose, of_noises, of_seen_samples
from accountant.tight.numerical import epsilon_table
from accountant.wording import upper_text
from privbo.plans.privacy import Against, NoPrivacy, Privacy, unknown_noises

_WORDS: tuple[tuple[Against, str], ...] = (
    ("coalition", "the server with all guardians but one"),
    ("guardian", "one guardian"),
    ("outsiders", "the server alone, other clients and readers of broadcasts"),
)
_READERS: tuple[Literal["readers"], str] = ("readers", "readers of broadcasts, other clients among them")
_TRAFFIC: tuple[Literal["traffic"], str] = (
    "traffic",
    "whoever sees who is asked or sends all the same: the network, the channel's operators",
)
SERVER = (
    "whoever operates the aggregating server sees every client's vector and has to be trusted with it; epsilon holds "
    "against readers of what is published, other clients among them"
)


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Price of a run against somebody who knows some of the guardians' noises, or sees who is asked.

    Attributes:
        against: Who it is, as ``privacy.against`` names it; ``"readers"`` and ``"traffic"`` of an anonymous channel.
        who: The same in words.
        unknown: Number of noises that it does not know.
        epsilon: Upper bound.
        delta: Where it is quoted.
    """

    against: Against | Literal["readers", "traffic"]
    who: str
    unknown: int
    epsilon: float
    delta: float

    @property
    def words(self) -> str:
        """The price in words."""
        return (
            f"against {self.who}: epsilon {upper_text(self.epsilon)} at delta {upper_text(self.delta)} ({self.aside})"
        )

    @property
    def aside(self) -> str:
        """The reason why the price is no higher."""
        match self.against:
            case "readers":
                return "the sample is secret"
            case "traffic":
                return "the sample is seen"
            case _:
                return "1 unknown noise" if self.unknown == 1 else f"{self.unknown} unknown noises"


def exposures(
    privacy: Privacy | NoPrivacy, event: Event, delta: float, *, adjacency: Adjacency
) -> tuple[Exposure, ...]:
    """Price a run against those who know more than what is broadcast; empty where there are none.

    With guardians: the server with all of them but one, one guardian, and outsiders. Where only sampled clients send
    over an anonymous channel: who reads what is broadcast, and who sees the traffic nevertheless.

    Args:
        privacy: What was asked for.
        event: What was charged.
        delta: Where to quote.
        adjacency: Of the event.

    Example:
        >>> from accountant import Gaussian
        >>> privacy = Privacy(epsilon=2.0, trust="guardians", guardians=3)
        >>> found = exposures(privacy, Gaussian(noise_multiplier=4.0), 1e-5, adjacency=Adjacency.ZERO_OUT)
        >>> [(each.against, round(each.epsilon, 3)) for each in found]
        [('coalition', 0.926), ('guardian', 0.634), ('outsiders', 0.508)]
    """

    def exposed(
        against: Against | Literal["readers", "traffic"], who: str, unknown: int, seen: Event, at: float
    ) -> Exposure:
        epsilon = min(epsilon_table(seen, at, adjacency=adjacency).values())
        return Exposure(against=against, who=who, unknown=unknown, epsilon=epsilon, delta=delta)

    if isinstance(privacy, NoPrivacy):
        return ()
    if privacy.channel == "anonymous" and (seen := of_seen_samples(event)) != compose([event]):
        return exposed(*_READERS, 1, event, delta), exposed(*_TRAFFIC, 1, seen, delta)
    if privacy.trust != "guardians":
        return ()
    found = []
    for against, who in _WORDS:
        unknown = unknown_noises(against, privacy.n_noises)
        seen = of_noises(event, counted=privacy.n_counted, unknown=unknown)
        at = delta if unknown == privacy.n_counted else delta * (1.0 - SLACK)
        found.append(exposed(against, who, unknown, seen, at))
    return tuple(found)


def trust_text(privacy: Privacy | NoPrivacy) -> str:
    """Say who has to be trusted with a client's vector."""
    if privacy.trust == "server":
        return SERVER
    return (
        f"nobody has to be trusted with a vector, as long as one of {privacy.n_noises} guardians is honest: each "
        "holds a "
        "share that says nothing, and adds noise of its own; the server carries ciphertexts"
    )


def trust_lines(trust: str, exposures: Iterable[Exposure]) -> list[str]:
    """List who has to be trusted with a vector, and the run's price against everybody else."""
    return [f"trust: {trust}", *(f"  {each.words}" for each in exposures)]
