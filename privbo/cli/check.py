"""Configurations and apps tried out before a run: code, price, whom they hide, and one evaluation per client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privbo.audits.clipping import NOTE
from privbo.cli.options import loaded
from privbo.cli.run import price_run, require_no_ledger
from privbo.cli.terminal import Result, Shown, render
from privbo.flower.party import AppFiles, Party, PartyRun, judged, read_party, read_site, run_of
from privbo.flower.registry import RUN_FILE, named_spec
from privbo.plans.cost import trust_text
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.protocol.messages import IntArray
from privbo.protocol.processes import limited_threads
from privbo.protocol.settings import JsonObject, plain
from privbo.reports.report import price_table
from privbo.reports.watch import duration_text
from privbo.runs.clients import require_answers, require_device
from privbo.runs.in_process import printed_to
from privbo.runs.rehearsal import Rehearsal, check, middle
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec, read_spec


def verdict_of(run: PartyRun, who: str) -> tuple[str, bool]:
    """State what a party decides of a run, by its own policy and ledger, and whether it allows it."""
    try:
        decision = judged(run)
    except PolicyError as error:
        return str(error), False
    return decision.verdict(who), decision.allowed


def examined(path: Path, app: Path, *, trust: bool = False) -> tuple[Result, Party, AppFiles]:
    """Price the run of an app's files as a party would serve it; writes nothing.

    Args:
        path: The party's ``site.toml`` or ``guardian.toml``.
        app: The app's folder, or its ``run.toml``.
        trust: Follow the code and the ledger that the app's files name.

    Returns:
        Plan, price, parties and the verdict of the party's own policy; the party; the files.

    Raises:
        ConfigurationError: If a file is impossible, the party is not among the federation's, or the files name what is
            not followed unasked.
        RunError: If they name an algorithm of their own.
    """
    party = read_party(path)
    files = AppFiles.read(app.parent if app.name == RUN_FILE else app)
    if not trust:
        # Pricing would import code, or open a ledger, that the files name.
        spec = named_spec(files.run)
        if isinstance(spec.algorithm, ForeignAlgorithm):
            raise spec.algorithm.not_loaded()
        require_no_ledger(spec, files.home / RUN_FILE)
    try:
        run = run_of(files, party)
    except PolicyError as error:
        return _without_price(error), party, files
    sites, guardians = {name: len(own) for name, own in run.federation.clients.items()}, run.federation.guardians
    verdict, allowed = verdict_of(run, f"this {party.role}")
    priced, keys = price_run(run.spec, opens=None), {name: card.signing for name, card in guardians.items()}
    hidden = priced.plan
    what = "each client" if hidden.unit == "client" else hidden.unit_text
    trusted = f"; {trust_text(hidden.privacy)}" if hidden.privacy.trust == "server" else ""
    content = {
        "party": party.name,
        "role": party.role,
        "sites": sites,
        "guardians": keys,
        "run": files.digests.run,
        "federation": files.digests.federation,
        "verdict": verdict,
        "refused": not allowed,
        "known": files.digests in party.approved,
        "plan": priced,
    }
    parts = [
        *render(priced),
        f"hidden: {what} ({sum(sites.values())} clients at {len(sites)} sites){trusted}",
        *(f"guardian {name}: signing key {key}" for name, key in keys.items()),
        f"run.toml {files.digests.run}",
        f"federation.toml {files.digests.federation}",
        verdict,
    ]
    return Result(content=content, parts=parts, passed=allowed), party, files


def _without_price(error: PolicyError) -> Result:
    """A run whose algorithm the party's policy does not allow; its module would be imported to price it."""
    said = f"{error}; its algorithm was not imported, so it has no price"
    return Result(content={"verdict": str(error), "refused": True}, parts=[said], passed=False)


def rehearse_site(party: Party, files: AppFiles) -> str | None:
    """Evaluate each of a site's own clients once before it serves a private run; what they print is dropped.

    Args:
        party: The site; a guardian has no clients.
        files: The app's files, which its people want to approve.

    Returns:
        How many clients have no value, for the site's own people; None if each has one, or nothing is rehearsed.

    Raises:
        RehearsalError: If no client has a value.
    """
    run = run_of(files, party)
    if not run.plan.has_secret_noise or party.role != "site" or run.own_spec.problem.is_asked:
        return None
    found = _rehearsal(run.own_spec, run.clients(), show_private=False)
    found.require_value()
    return f"rehearsal: {found.text}; privbo check --site says who and why" if found.failures else None


def tried_out(config: Path, overrides: Sequence[str], *, show_private: bool, site: Path | None = None) -> Result:
    """Price a configuration and evaluate every client's objective once, in the middle of the space.

    A run that a policy refuses is not evaluated. Nothing is charged, written or sent. Who failed, and why, is private.

    Args:
        config: The file.
        overrides: Set on top of it.
        show_private: Say who failed, and leave what objectives print on the terminal.
        site: A federation's site's own settings: its own clients alone, with its own objective, by its own policy.

    Returns:
        The price, the point and, where it was asked for, who failed; passed unless a policy refuses, all failed, or
        one did and it was asked for.

    Raises:
        ConfigurationError: If a setting is impossible, or the code has another signature.
    """
    try:
        run = None if site is None else _of_site(config, overrides, site)
    except PolicyError as error:
        return _without_price(error)
    spec = read_spec(config, overrides) if run is None else run.own_spec
    clients = np.arange(spec.problem.n_clients) if run is None else run.clients()
    if spec.problem.is_asked:
        raise ConfigurationError(
            "objective='ask': values come from outside, so there is nothing to try out; privbo run --dry-run prices it"
        )
    require_answers(spec)
    if not spec.executor.startswith("dask"):
        require_device(spec.device)
    priced = price_run(spec, opens=True if run is None else None)
    allowed = priced.passed
    params = spec.problem.search_space.decode(middle(spec.problem.search_space))
    content: JsonObject = priced.to_dict() | {"params": plain(params)}
    parts: list[Shown] = [price_table(priced.epsilon_at), *priced.verdicts]
    if run is not None:
        verdict, allowed = verdict_of(run, "this site")
        if allowed and run.files.digests not in run.party.approved:
            verdict += f"; these files are not approved yet: privbo flower approve {site} {config.parent}"
        content["policy"] = verdict
        parts.append(verdict)
    found = _rehearsal(spec, clients, show_private=show_private) if allowed else Rehearsal(n_clients=0, seconds=0.0)
    if show_private:
        content["private_diagnostics"] = {
            "note": NOTE,
            "failures": plain(found.failures),
            "dropped": plain(found.dropped),
        }
    if not allowed:
        parts.append(f"{spec.name}: nothing was evaluated, charged, written or sent")
        return Result(content=content, parts=parts, passed=False)
    where, n_all = ", ".join(f"{name} = {value}" for name, value in params.items()), spec.problem.n_clients
    who = f"each of {len(clients)} clients" + ("" if len(clients) == n_all else f" here (of {n_all})")
    parts.append(f"{spec.name}: {who} evaluated {where}; nothing was charged, written or sent")
    parts += _shown(found, priced.plan.calls_per_client, show_private=show_private)
    return Result(content=content, parts=parts, passed=not found.failures if show_private else found.has_values)


def _shown(found: Rehearsal, calls: int | None, *, show_private: bool) -> list[str]:
    if show_private:
        lines = [f"client {client}: {reason}" for client, reason in [*found.failures.items(), *found.dropped.items()]]
        failed = f"{len(found.failures)} of {found.n_clients} clients failed"
        time = "" if calls is None else f", at most {duration_text(calls * found.seconds)} per client in the run"
        return [f"{NOTE}: {failed}; {found.seconds:.3g} s per evaluation{time}", *lines]
    lines = ["failures are private: --show-private prints which clients failed, and why"]
    return lines if found.has_values else ["no client has a value: a run would be charged in vain", *lines]


def _of_site(config: Path, overrides: Sequence[str], site: Path) -> PartyRun:
    """A federation's run as a site plays it."""
    if overrides or config.name != RUN_FILE:
        raise ConfigurationError(f"--site takes a federation's {RUN_FILE} as it is; drop --set, and name that file")
    return run_of(AppFiles.read(config.parent), read_site(site))


def _rehearsal(spec: Spec, clients: IntArray, *, show_private: bool) -> Rehearsal:
    limits = [spec.evaluation_seconds, None if spec.times is None else spec.times.of_one(len(clients))]
    seconds = min((limit for limit in limits if limit is not None), default=None)
    loaded()
    with limited_threads(spec.threads), printed_to(None if show_private else Path(os.devnull)):
        return check(spec.problem, clients=clients, evaluation_seconds=seconds, algorithm=spec.algorithm)
