"""A server's broadcasts, replayed from public files: the configuration as run and the stored releases.

A server is a deterministic machine over public numbers, so its broadcasts need not be
kept: the same releases make it say the same again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from privbo.protocol.errors import RunError
from privbo.protocol.messages import Ask, Release
from privbo.runs.record import Record
from privbo.runs.sources import ForeignAlgorithm


@dataclass(frozen=True, kw_only=True)
class ActiveNodes:
    """Number of nodes of an elimination that were announced as active at one depth."""

    depth: int
    nodes: int


def replay(record: Record) -> Iterator[tuple[Ask, Release | None]]:
    """Replay every round that was answered: what was asked, and the release that answered it.

    Raises:
        RunError: If the algorithm is not loaded, or the releases do not belong to the configuration.
    """
    spec = dataclasses.replace(record.spec, device="cpu")
    server = spec.played.server(spec.setting(record.manifest.public_seed))
    releases = {release.round: release for release in record.releases}
    while (ask := server.ask()) is not None:
        release = releases.get(ask.broadcast.round)
        if ask.request is not None and release is None:
            return
        if ask.request is None and release is not None:
            raise RunError(f"round {release.round} has a release that its server never asked for; restore the ledger")
        yield ask, release
        server.tell(release)


def active_nodes(record: Record) -> tuple[ActiveNodes, ...] | None:
    """Count the nodes announced at every depth by an elimination; None for other algorithms."""
    if isinstance(record.spec.algorithm, ForeignAlgorithm):
        return None  # an algorithm of the user's own: only its own program can replay it
    announced = tuple(
        ActiveNodes(depth=int(ask.broadcast.arrays["depth"]), nodes=len(ask.broadcast.arrays["nodes"]))
        for ask, release in replay(record)
        if release is not None and {"depth", "nodes"} <= ask.broadcast.arrays.keys()
    )
    return announced or None
