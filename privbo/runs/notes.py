"""What a run writes down as it goes: public history and private diagnostics, apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privbo.door.clipping import ClipStatistics
from privbo.protocol.files import append_line, write_lines
from privbo.protocol.messages import Release
from privbo.runs.record import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a callback is told after every round; public.

    Attributes:
        index: Zero-based round.
        release: The round's release, or None for a round of local work.
    """

    index: int
    release: Release | None


OnRound = Callable[[Round], None]


@dataclass(kw_only=True)
class Notes:
    """Collects what happened, and writes it beside the ledger, public and private apart."""

    home: RunDirectory | None
    on_round: OnRound | None
    sending_share: float = 1.0
    releases: list[Release] = field(default_factory=list)
    clipping: list[ClipStatistics] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The public history is rebuilt from replayed releases, so a resumed run lists none twice.
        if self.home is not None:
            write_lines(self.home.history_path, [])

    def add(self, index: int, release: Release | None, clipping: ClipStatistics | None) -> None:
        """Write one round down; a callback hears of it last."""
        if release is not None:
            self.releases.append(release)
        if self.home is not None:
            append_line(self.home.history_path, _public_line(index, release, self.sending_share))
            if clipping is not None:
                append_line(self.home.clipping_path, {"round": index} | clipping.to_dict())
        if clipping is not None:
            self.clipping.append(clipping)
        if self.on_round is not None:
            self.on_round(Round(index=index, release=release))


def _public_line(index: int, release: Release | None, sending_share: float) -> dict[str, Any]:
    """What a round was, and numbers sent by a client on average (who really sent is secret) and received by each."""
    if release is None:
        return {"round": index, "released": False}
    return {
        "round": index,
        "released": True,
        "sequence": release.sequence,
        "head": release.head,
        "noise_stddev": release.noise_stddev,
        "norm": float(np.linalg.norm(release.values)),
        "floats_up": sending_share * release.values.shape[1],
        "floats_down": int(release.values.size),
    }
