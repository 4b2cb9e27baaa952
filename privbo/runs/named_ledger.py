"""Which ledger the reading of a run opens: a place in data is like code, and a stranger's is not followed unasked."""

from __future__ import annotations

import shlex
from pathlib import Path

from accountant.ledger.address import place_of
from accountant.ledger.store import Place
from privbo.protocol.errors import RunError
from privbo.runs.manifest import Manifest, RunDirectory


def readable_ledger(home: RunDirectory, manifest: Manifest, named: Path | str | None = None) -> Place:
    """Find the ledger of a run that is read: inside its directory, or the one that the reader or this user's run named.

    Args:
        home: The run's directory.
        manifest: Of the run.
        named: File or address of the population's ledger, as the reader gives it; a run with a ledger of its own
            needs none.

    Raises:
        RunError: If a stranger's run names a ledger elsewhere; it was not opened.
    """
    shared = manifest.spec.ledger
    if shared is None:
        return home.ledger_path
    if named is not None:
        return place_of(str(named))
    place = place_of(shared.path)
    inside = isinstance(place, Path) and place.resolve().is_relative_to(home.path.resolve())
    if inside or home.is_ours:
        return place
    raise RunError(
        f"{home.path} was not made by this user and names the ledger {place}, which is not opened unasked; if you know "
        f"it, add --ledger {shlex.quote(str(place))} (ledger=... in Python)"
    )
