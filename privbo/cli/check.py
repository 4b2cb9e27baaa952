"""Configurations and apps tried out before a run: code, price, whom they hide, and one evaluation per client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privbo.cli.run import PricedPlan, price_run, require_no_ledger
from privbo.cli.terminal import Shown, render
from privbo.flower.party import (
    AppFiles,
    Party,
    PartyRun,
    SiteSettings,
    judged,
    read_party,
    read_site,
    run_of,
    site_spec,
)
from privbo.flower.registry import RUN_FILE, public_spec, read_federation
from privbo.plans.cost import trust_text
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.protocol.messages import IntArray
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.processes import limited_threads, watched_interrupts
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.reports.report import price_table
from privbo.runs.clients import require_answers
from privbo.runs.in_process import printed_to
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec, parse_toml, read_bytes, read_spec


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


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A configuration that was tried out: nothing was charged, nothing was written.

    Attributes:
        plan: The plan and its price.
        params: The point that every client evaluated.
        clients: Number of clients that evaluated it: all, those of one site, or none of a run that is refused.
        failures: PRIVATE: the error of every client that failed; None where it was not asked for.
        verdict: What the policy of the run, or of the site, says in one line; None where none was asked.
        refused: Whether it refuses the run.
    """

    plan: PricedPlan
    params: Mapping[str, Value]
    clients: int
    failures: Mapping[int, str] | None
    verdict: str | None = None
    refused: bool = False

    @property
    def passed(self) -> bool:
        """Whether no failure is shown and no policy refuses the run."""
        return not self.failures and not self.refused

    def to_dict(self) -> JsonObject:
        """Give plan, price and point as JSON-able data, and who failed where it was asked for."""
        found = self.plan.to_dict() | {"params": plain(self.params)}
        if self.verdict is not None:
            found["policy"] = self.verdict
        if self.failures is not None:
            note = "private diagnostics, not covered by epsilon"
            found["private_diagnostics"] = {"note": note, "failures": plain(self.failures)}
        return found


@render.register
def _rehearsal(found: Rehearsal) -> Iterator[Shown]:
    yield price_table(found.plan.epsilon_at)
    if found.verdict is not None:
        yield found.verdict
    if not found.clients:
        yield f"{found.plan.name}: nothing was evaluated, charged, written or sent"
        return
    n_clients, n_all = found.clients, found.plan.plan.n_clients
    where = ", ".join(f"{name} = {value}" for name, value in found.params.items())
    who = f"each of {n_clients} clients" + ("" if n_clients == n_all else f" here (of {n_all})")
    yield f"{found.plan.name}: {who} evaluated {where}; nothing was charged, written or sent"
    if found.failures is None:
        yield "failures are private: --show-private prints which clients failed, and why"
        return
    yield f"private diagnostics, not covered by epsilon: {len(found.failures)} of {n_clients} clients failed"
    yield from (f"client {client}: {reason}" for client, reason in found.failures.items())


def rehearse(config: Path, overrides: Sequence[str], *, show_private: bool, site: Path | None = None) -> Rehearsal:
    """Price a configuration and evaluate every client's objective once, in the middle of the space.

    A run that a policy refuses is not evaluated. Nothing is charged, written or sent. Who failed, and why, is private.

    Args:
        config: The file.
        overrides: Set on top of it.
        show_private: Say who failed, and leave what objectives print on the terminal.
        site: A federation's site's own settings: its own clients alone, with its own objective, by its own policy.

    Raises:
        ConfigurationError: If a setting is impossible, or the code has another signature.
    """
    own: SiteSettings | None = None
    if site is None:
        spec = read_spec(config, overrides)
        everyone: IntArray = np.arange(spec.problem.n_clients)
    else:
        own, spec, everyone = _of_site(config, overrides, site)
    if spec.problem.is_asked:
        raise ConfigurationError(
            "objective='ask': values come from outside, so there is nothing to try out; privbo run --dry-run prices it"
        )
    require_answers(spec)
    priced, problem = price_run(spec), spec.problem
    if own is not None:
        files = AppFiles.read(config.parent)
        verdict, refused = verdict_of(run_of(files, own), "this site")
        if not refused and files.digests not in own.approved:
            verdict += f"; these files are not approved yet: privbo flower approve {site} {config.parent}"
    elif priced.decision is not None:
        verdict, refused = priced.decision.verdict("this policy"), not priced.decision.allowed
    else:
        verdict, refused = None, False
    middle = problem.search_space.snap(np.full((1, problem.search_space.n_dims), 0.5))
    private = printed_to(None if show_private else Path(os.devnull))
    if refused:
        everyone = everyone[:0]
    with limited_threads(spec.threads), private, watched_interrupts() as stopped:
        limit = None if spec.times is None else spec.times.of_one(len(everyone))
        evaluate = problem.evaluator(stopped=stopped, client_seconds=limit)
        if len(everyone):
            evaluate(everyone, np.repeat(middle, len(everyone), axis=0))
    return Rehearsal(
        plan=priced,
        params=problem.search_space.decode(middle[0]),
        clients=len(everyone),
        failures=dict(evaluate.errors) if show_private else None,
        verdict=verdict,
        refused=refused,
    )


def _of_site(config: Path, overrides: Sequence[str], site: Path) -> tuple[SiteSettings, Spec, IntArray]:
    """A site's settings, a federation's run as the site plays it, and the site's clients."""
    if overrides or config.name != RUN_FILE:
        raise ConfigurationError(f"--site takes a federation's {RUN_FILE} as it is; drop --set, and name that file")
    own, app = read_site(site), config.parent
    clients = read_federation(app).checked(public_spec(app).problem.n_clients).clients
    if own.name not in clients:
        raise ConfigurationError(
            f"{site}: name={own.name!r} is not registered; federation.toml knows {', '.join(clients)}"
        )
    return own, site_spec(app, read_bytes(config), own), np.array(clients[own.name], dtype=np.int64)
