"""Approving an app's files: the plan, its price and whom it hides, before a party's settings pin the digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privbo.cli.run import PricedPlan, price_run, require_no_ledger
from privbo.cli.terminal import Shown, render
from privbo.flower.party import AppFiles, Party, PartyRun, judged, read_party, run_of
from privbo.flower.registry import RUN_FILE
from privbo.plans.trust import trust_text
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.protocol.plain import fields_of
from privbo.protocol.settings import JsonObject
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec, parse_toml


@dataclass(frozen=True, kw_only=True)
class Approval:
    """An app's files as a site or guardian reads them before it approves them.

    Attributes:
        party: Name of the site or guardian.
        role: ``"site"`` or ``"guardian"``.
        plan: The plan and its price.
        sites: Number of clients of every site.
        guardians: Signing key of every guardian; empty where the server is trusted.
        run: SHA-256 of run.toml.
        federation: SHA-256 of federation.toml.
        verdict: What the party's own policy says in one line.
        refused: Whether it refuses the run.
        known: Whether the files were approved before.
    """

    party: str
    role: str
    plan: PricedPlan
    sites: Mapping[str, int]
    guardians: Mapping[str, str]
    run: str
    federation: str
    verdict: str
    refused: bool
    known: bool

    def to_dict(self) -> JsonObject:
        """Give plan, price and parties as JSON-able data."""
        return fields_of(self, but=("plan",)) | {"plan": self.plan.to_dict()}


@render.register
def _approval(found: Approval) -> Iterator[Shown]:
    yield from render(found.plan)
    hidden, n_clients = found.plan.plan, sum(found.sites.values())
    what = "each client" if hidden.unit == "client" else "the outcome of each evaluation"
    trusted = f"; {trust_text(hidden.privacy)}" if hidden.privacy.trust == "server" else ""
    yield f"hidden: {what} ({n_clients} clients at {len(found.sites)} sites){trusted}"
    yield from (f"guardian {name}: signing key {key}" for name, key in found.guardians.items())
    yield f"run.toml {found.run}"
    yield f"federation.toml {found.federation}"
    yield found.verdict


def verdict_of(run: PartyRun, who: str) -> tuple[str, bool]:
    """State what a party decides of a run, by its own policy and ledger, and whether it refuses it."""
    try:
        decision = judged(run)
    except PolicyError as error:
        return str(error), True
    return decision.verdict(who), not decision.allowed


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
        # Pricing would import code, or open a ledger, that the files name.
        spec = Spec.from_dict(parse_toml(files.run, RUN_FILE))
        if isinstance(spec.algorithm, ForeignAlgorithm):
            raise spec.algorithm.not_loaded()
        require_no_ledger(spec, files.home / RUN_FILE)
    run = run_of(files, party)
    sites = run.federation.checked(run.plan.n_clients).clients
    known = sites if party.role == "site" else run.federation.guardians
    if party.name not in known:
        raise ConfigurationError(
            f"{path}: name={party.name!r} is no {party.role} of federation.toml, which has {', '.join(known) or 'none'}"
        )
    verdict, refused = verdict_of(run, f"this {party.role}")
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
