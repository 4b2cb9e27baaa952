"""A configuration tried out before a run: its code, its price, and one evaluation per client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privbo.cli.run import PricedPlan, price_run
from privbo.cli.terminal import Shown, render
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import IntArray
from privbo.protocol.plain import plain
from privbo.protocol.processes import limited_threads, watched_interrupts
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.reports.report import price_table
from privbo.runs.clients import require_answers
from privbo.runs.in_process import printed_to
from privbo.runs.spec import Spec, read_bytes, read_spec


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
    if site is None:
        spec = read_spec(config, overrides)
        everyone = np.arange(spec.problem.n_clients)
    else:
        spec, everyone = _of_site(config, overrides, site)
    if spec.problem.is_asked:
        raise ConfigurationError(
            "objective='ask': values come from outside, so there is nothing to try out; privbo run --dry-run prices it"
        )
    require_answers(spec)
    priced, problem = price_run(spec), spec.problem
    if site is not None:
        verdict, refused = _verdict_of(site, config.parent)
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


def _verdict_of(site: Path, app: Path) -> tuple[str, bool]:
    """What a site decides of a run that has not begun, and whether it refuses it."""
    from privbo.cli.approve import verdict_of
    from privbo.flower.party import AppFiles, read_site, run_of

    files, own = AppFiles.read(app), read_site(site)
    verdict, refused = verdict_of(run_of(files, own), "this site")
    if refused or files.digests in own.approved:
        return verdict, refused
    return f"{verdict}; these files are not approved yet: privbo flower approve {site} {app}", False


def _of_site(config: Path, overrides: Sequence[str], site: Path) -> tuple[Spec, IntArray]:
    """A federation's run as one of its sites plays it, and the site's clients."""
    from privbo.flower.party import read_site, site_spec
    from privbo.flower.registry import RUN_FILE, public_spec, read_federation

    if overrides or config.name != RUN_FILE:
        raise ConfigurationError(f"--site takes a federation's {RUN_FILE} as it is; drop --set, and name that file")
    own = read_site(site)
    n_clients = public_spec(config.parent).problem.n_clients
    clients = read_federation(config.parent).checked(n_clients).clients
    if own.name not in clients:
        raise ConfigurationError(
            f"{site}: name={own.name!r} is not registered; federation.toml knows {', '.join(clients)}"
        )
    return site_spec(config.parent, read_bytes(config), own), np.array(clients[own.name], dtype=np.int64)
