"""Approving an app's files: the plan, its price and whom it hides, before a party's settings pin the digests."""

from __future__ import annotations

from pathlib import Path

from privbo.cli.results import Approval
from privbo.cli.run import price_run, require_no_ledger
from privbo.flower.approval import AppFiles, approve_files, run_of
from privbo.flower.party_policy import judged
from privbo.flower.settings import RUN_FILE, Party, read_party
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.runs.config import parse_toml
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec


def examined(path: Path, app: Path, *, trust: bool = False) -> tuple[Approval, Party, AppFiles]:
    """Price the run of an app's files as a party would serve it; writes nothing.

    Args:
        path: The party's ``site.toml`` or ``guardian.toml``.
        app: The app's folder, or its ``run.toml``.
        trust: Follow the code and the ledger that the app's files name.

    Raises:
        ConfigurationError: If a file is impossible, the party is not among the federation's, or the files name what is
            not followed unasked.
        RunError: If they name an algorithm of their own.
    """
    party = read_party(path)
    files = AppFiles.read(app.parent if app.name == RUN_FILE else app)
    if not trust:
        _require_unfollowed(files)
    run = run_of(files, party)
    sites = run.federation.registry(run.plan.n_clients).clients
    known = sites if party.role == "site" else run.federation.guardians
    if party.name not in known:
        raise ConfigurationError(
            f"{path}: name={party.name!r} is no {party.role} of federation.toml, which has {', '.join(known) or 'none'}"
        )
    try:
        decision = judged(run)
        verdict, refused = decision.verdict(f"this {party.role}"), not decision.allowed
    except PolicyError as error:
        verdict, refused = str(error), True
    found = Approval(
        party=party.name,
        role=party.role,
        plan=price_run(run.spec),
        sites={name: len(clients) for name, clients in sites.items()},
        guardians={name: card.signing for name, card in run.federation.guardians.items()},
        run=files.digests.run,
        federation=files.digests.federation,
        verdict=verdict,
        refused=refused,
        known=files.digests in party.approved,
    )
    return found, party, files


def _require_unfollowed(files: AppFiles) -> None:
    """Refuse files that are not approved yet and that to price would import code or open a ledger."""
    spec = Spec.from_dict(parse_toml(files.run, RUN_FILE))
    if isinstance(spec.algorithm, ForeignAlgorithm):
        raise spec.algorithm.not_loaded()
    require_no_ledger(spec, files.home / RUN_FILE)


def approve(path: Path, party: Party, files: AppFiles) -> str:
    """Pin the files' digests in a party's settings; returns a line that says so."""
    if approve_files(path, party, files):
        return f"{path}: approved; this {party.role} serves runs of exactly these two files"
    return f"{path}: these two files were approved before"
