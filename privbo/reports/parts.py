"""The parts of a report as types: charges, broadcasts, a ledger's rows."""

from __future__ import annotations

from dataclasses import dataclass

from accountant.events import Event, Gaussian, to_dict
from accountant.wording import event_text
from privbo.protocol.plain import fields_of
from privbo.protocol.settings import JsonObject
from privbo.runs.record import ActiveNodes


@dataclass(frozen=True, kw_only=True)
class ReleaseRow:
    """One charge of the run.

    Attributes:
        sequence: Position in the ledger, from 1.
        release: Identifier of the release, RUN/ROUND.
        event: What was charged.
        cumulative_epsilon: Bound on epsilon of the releases so far, by the smallest accountant.
        noise_source: ``"secure"``, ``"exact"``, ``"simulation"`` or ``"none"``.
        digest: Chain hash after the charge.
        is_vote: Whether it is the vote at the end, which chose a common setting.
    """

    sequence: int
    release: str
    event: Event
    cumulative_epsilon: float
    noise_source: str
    digest: str
    is_vote: bool = False

    @property
    def noise_multiplier(self) -> float | None:
        """Z of the event; None without noise."""
        return getattr(self.event, "noise_multiplier", None)

    @property
    def sample_rate(self) -> float | None:
        """Rate of the event's sampler; None where the event has none."""
        return 1.0 if isinstance(self.event, Gaussian) else getattr(self.event, "sample_rate", None)

    @property
    def text(self) -> str:
        """The event in words."""
        return event_text(self.event) + (", the vote at the end" if self.is_vote else "")

    @property
    def mechanism(self) -> str:
        """Kind of the event, as the ledger names it."""
        return str(to_dict(self.event)["type"])

    def to_dict(self) -> JsonObject:
        """Give the row as JSON-able data, the event in words and in full."""
        return fields_of(self, but=("event",)) | {
            "event": self.text,
            "mechanism": to_dict(self.event),
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.sample_rate,
        }


@dataclass(frozen=True, kw_only=True)
class Released:
    """One release as it was broadcast.

    Attributes:
        round: Zero-based.
        blocks: Number of blocks (regions).
        dim: Length of every block.
        norm: L2 norm of all blocks together, noise included.
        noise_stddev: Standard deviation of the noise in every entry.
        noise_norm: L2 norm that the noise alone has on average.
    """

    round: int
    blocks: int
    dim: int
    norm: float
    noise_stddev: float
    noise_norm: float


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Traffic of one client at eight bytes per number.

    Attributes:
        rounds: Planned rounds.
        releases: Releases made.
        sending_share: Expected share of rounds in which a client sends, in (0, 1].
        bytes_up_per_client: Expected bytes a client has sent: one vector per release.
        bytes_down_per_client: Bytes a client has received: every block of every release.
    """

    rounds: int
    releases: int
    sending_share: float
    bytes_up_per_client: int
    bytes_down_per_client: int


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Public quantities that say what was learnt: functions of the releases.

    Attributes:
        releases: Every release, in order of the rounds.
        communication: Traffic of one client.
        active_nodes: Nodes still active by depth, for eliminations; None for other algorithms.
    """

    releases: tuple[Released, ...]
    communication: Communication
    active_nodes: tuple[ActiveNodes, ...] | None
