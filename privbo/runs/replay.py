"""What a server said, replayed from public files: the configuration as run and the stored releases.

A server is a deterministic machine over public numbers, so its broadcasts need not be
kept: the same releases make it say the same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accountant.ledger import Ledger
from privbo.door.payload import decode_release
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Ask, Release, Setting
from privbo.runs.config import algorithm_from, space_from


def stored_releases(ledger: Ledger, run: str) -> list[Release]:
    """Every release of a run that was made, in order of their rounds."""
    stored = (ledger.stored_release(entry.release_id) for entry in ledger.entries(run))
    return sorted((decode_release(payload)[0] for payload in stored if payload is not None), key=lambda r: r.round)


def setting_of(config: Mapping[str, Any]) -> Setting:
    """What both sides were told before the run."""
    return Setting(
        space=space_from(config["problem"]["space"]),
        n_clients=config["problem"]["n_clients"],
        rounds=config["rounds"],
        public_seed=config["public_seed"],
        device="cpu",
        unit=config["privacy"].get("unit", "client"),
    )


def replay(config: Mapping[str, Any], ledger: Ledger) -> Iterator[tuple[Ask, Release | None]]:
    """Every round that was answered: what was asked and the release that answered it.

    Raises:
        ConfigurationError: If the algorithm is none of this package.
        RunError: If the releases do not belong to the configuration.
    """
    server = algorithm_from(config["algorithm"]).server(setting_of(config))
    releases = {release.round: release for release in stored_releases(ledger, config["run_id"])}
    while (ask := server.ask()) is not None:
        release = releases.get(ask.broadcast.round)
        if ask.request is not None and release is None:
            return
        if ask.request is None and release is not None:
            raise RunError(f"round {release.round} has a release that its server never asked for; restore the ledger")
        yield ask, release
        server.tell(release)


def active_nodes(config: Mapping[str, Any], ledger: Ledger) -> list[dict[str, int]] | None:
    """Nodes announced at every depth by an elimination; None for other algorithms."""
    try:
        announced = [
            {"depth": int(ask.broadcast.arrays["depth"]), "nodes": len(ask.broadcast.arrays["nodes"])}
            for ask, release in replay(config, ledger)
            if release is not None and {"depth", "nodes"} <= ask.broadcast.arrays.keys()
        ]
    except ConfigurationError:
        return None  # an algorithm of the user's own: only its own program can replay it
    return announced or None
