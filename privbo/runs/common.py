"""The common setting of a finished run, as it stands in its directory: public, and held against the ledger."""

from __future__ import annotations

import math
from pathlib import Path

from accountant.ledger import Ledger
from privbo.door.payload import decode_release
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_json, write_json
from privbo.protocol.messages import Server
from privbo.protocol.settings import dump_settings, read_settings, settings
from privbo.protocol.space import Space, Value
from privbo.runs.best import site_facts
from privbo.runs.final import CommonServer

COMMON = "common.json"


@settings(table="common")
class Common:
    """The setting that a run's final vote chose for everybody; public and paid for.

    Attributes:
        params: Values by name.
        candidates: Number of candidates that were voted on.
        place: Which of them was chosen, from 0.
        lead: Its total over the second best's, in standard deviations of the noise between two totals; None without
            noise or with one candidate. Below 2 another candidate may well have had more ballots.
        round: The round of the vote.

    Example:
        >>> Common(params={"C": 1.0}, candidates=16, place=3, lead=4.0, round=21).params["C"]
        1.0
    """

    params: dict[str, Value]
    candidates: int
    place: int
    lead: float | None
    round: int

    @property
    def text(self) -> str:
        """The setting in one line."""
        chosen = ", ".join(f"{k} = {v:.4g}" if isinstance(v, float) else f"{k} = {v}" for k, v in self.params.items())
        return f"{chosen} ({self.lead_text})"

    @property
    def lead_text(self) -> str:
        """Say how clear the vote was."""
        if self.lead is None:
            return "chosen without noise" if self.candidates > 1 else "the only candidate"
        return f"{self.lead:.2g} standard deviations of noise ahead of the second"


def keep_common(server: Server, space: Space, directory: Path | None) -> Common | None:
    """Give the common setting that a run's server has chosen, and write it down; None where there is none.

    It follows from stored releases, so the same is written again whenever the run is replayed.
    """
    if not isinstance(server, CommonServer) or (release := server.released) is None:
        return None
    totals = sorted(release.values[0].tolist())
    lead = None
    if len(totals) > 1 and release.noise_stddev > 0.0:
        lead = (totals[-1] - totals[-2]) / (math.sqrt(2.0) * release.noise_stddev)
    params = space.decode(server.candidates[server.place])
    found = Common(params=params, candidates=len(totals), place=server.place, lead=lead, round=release.round)
    if directory is not None:
        write_json(directory / COMMON, dump_settings(found))
    return found


def read_common(directory: Path, run: str, ledger: Ledger) -> Common | None:
    """Read a run's common setting; None where there is none.

    Raises:
        RunError: If it is not what the ledger's stored release chose.
    """
    path = directory / COMMON
    if not path.exists():
        return None
    found = read_settings(Common, read_json(path), COMMON)
    stored = ledger.stored_release(f"{run}/{found.round}")
    values = None if stored is None else decode_release(stored)[0].values[0]
    if values is None or (len(values), int(values.argmax())) != (found.candidates, found.place):
        raise RunError(f"{path} is not what the ledger's stored release chose; remove it and resume the run")
    return found


def common_at_site(folder: Path) -> dict[str, Value] | None:
    """Decode the common setting that a site was told, from its folder of one run; None where it was told none."""
    path = folder / COMMON
    return site_facts(folder).search_space.decode(read_json(path)["unit"]) if path.exists() else None
