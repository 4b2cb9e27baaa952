"""A configuration tried out before a run: its code, its price, and one evaluation per client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privbo.cli.results import Rehearsal
from privbo.cli.run import price_run
from privbo.plans.policy import Decision
from privbo.protocol.errors import ConfigurationError, PolicyError
from privbo.protocol.messages import IntArray
from privbo.protocol.processes import limited_threads, watched_interrupts
from privbo.runs.clients import require_answers
from privbo.runs.config import read_bytes, read_spec
from privbo.runs.in_process import printed_to
from privbo.runs.spec import Spec


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
    spec, everyone = _everyone(config, overrides) if site is None else _of_site(config, overrides, site)
    if spec.problem.is_asked:
        raise ConfigurationError(
            "objective='ask': somebody else evaluates, so there is nothing to try out; privbo run --dry-run prices it"
        )
    require_answers(spec)
    priced, problem = price_run(spec), spec.problem
    verdict, refused = _of_run(priced.decision) if site is None else _verdict_of(site, config.parent)
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


def _of_run(decision: Decision | None) -> tuple[str | None, bool]:
    return (None, False) if decision is None else (decision.verdict("this policy"), not decision.allowed)


def _verdict_of(site: Path, app: Path) -> tuple[str, bool]:
    """What a site's own approvals, policy and ledger say of a run that has not begun."""
    from privbo.flower.approval import AppFiles, run_of
    from privbo.flower.party_policy import judged
    from privbo.flower.settings import read_site

    files, own = AppFiles.read(app), read_site(site)
    try:
        decision = judged(run_of(files, own))
    except PolicyError as error:
        return str(error), True
    verdict, refused = decision.verdict("this site"), not decision.allowed
    if refused or files.digests in own.approved:
        return verdict, refused
    return f"{verdict}; these files are not approved yet: privbo flower approve {site} {app}", False


def _everyone(config: Path, overrides: Sequence[str]) -> tuple[Spec, IntArray]:
    spec = read_spec(config, overrides)
    return spec, np.arange(spec.problem.n_clients)


def _of_site(config: Path, overrides: Sequence[str], site: Path) -> tuple[Spec, IntArray]:
    """A federation's run as one of its sites plays it, and the site's clients."""
    from privbo.flower.settings import RUN_FILE, public_spec, read_federation, read_site, site_spec

    if overrides or config.name != RUN_FILE:
        raise ConfigurationError(f"--site takes a federation's {RUN_FILE} as it is; drop --set, and name that file")
    own = read_site(site)
    n_clients = public_spec(config.parent).problem.n_clients
    clients = read_federation(config.parent).registry(n_clients).clients
    if own.name not in clients:
        raise ConfigurationError(
            f"{site}: name={own.name!r} is not registered; federation.toml knows {', '.join(clients)}"
        )
    return site_spec(config.parent, read_bytes(config), own), np.array(clients[own.name], dtype=np.int64)
