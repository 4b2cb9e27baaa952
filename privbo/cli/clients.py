"""What clients' own data hold: the point that each of them uses, and the trials that wait for a value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from accountant.errors import PrivacyError
from accountant.verify.text import shown
from privbo.audits.clipping import of_scores
from privbo.cli.terminal import Result, Shown
from privbo.protocol.errors import RunError
from privbo.protocol.settings import fields_of
from privbo.protocol.space import Value
from privbo.protocol.table import Table
from privbo.runs.best import FACTS, best_at_site, common_at_site, file_of_one_run
from privbo.runs.manifest import SCORES, RunDirectory, clipped_shares
from privbo.runs.record import load
from privbo.runs.session import Site
from privbo.runs.trials import Trial


def own_points(
    directory: Path, *, client: int | None = None, show_private: bool = False, ledger: str | None = None
) -> tuple[Result, str]:
    """PRIVATE: give the point that every local client would use, for the terminal and as TOML.

    At a site its own clients' scores stand with their points; where many clients' data lie together, as in a run in
    one process, only where they are asked for.

    Args:
        directory: Of a run, or a site's folder of one run, or the folder in which a site keeps its runs.
        client: This one alone.
        show_private: Show scores.
        ledger: As of ``load``.

    Raises:
        RunError: If no client's evaluations are there, or not this client's.
    """
    home = RunDirectory(directory)
    if home.config_path.exists():
        record, scores = load(directory, ledger=ledger), show_private
        with record.ledger:
            if not record.has_clients:
                raise RunError(_without_clients(home))
            points = record.best()
        with_point = {point.client for point in points}
        without = tuple(n for n in range(record.spec.problem.n_clients) if n not in with_point)
    else:
        scores = True
        points, without = best_at_site(_site_folder(directory))
    if client is not None:
        here = ", ".join(str(point.client) for point in points) or "none"
        points, without = tuple(point for point in points if point.client == client), ()
        if not points:
            raise RunError(f"client {client} has no point here; those that have one: {here}")
    note, names = "private: every point belongs to its client; no epsilon covers it", _names(p.params for p in points)
    parts: list[Shown] = [
        note,
        Table(
            title="The clients' own best",
            headings=("client", *names, *(["score"] * scores)),
            rows=[(p.client, *(p.params.get(name) for name in names), *([p.value] * scores)) for p in points],
            right=range(1 + len(names)),
        ),
    ]
    if without:
        parts.append(f"without a finite value: {', '.join(map(str, without))}")
    if not scores:
        parts.append("scores are private as well: --show-private shows them")
    hidden = () if scores else ("value",)
    content = {"note": note, "clients": [fields_of(p, but=hidden) for p in points], "without": list(without)}
    tables = (f"[clients.{p.client}]\n" * (client is None) + _toml(p.params) for p in points)
    return Result(content=content, parts=parts), "\n".join(tables)


def clipped_scores(directory: Path) -> Result:
    """PRIVATE: tabulate the share of its records' scores that were clipped, for every client of a site.

    Args:
        directory: A site's folder of one run, or the folder in which a site keeps its runs.

    Raises:
        RunError: If no scores of records were kept there.
    """
    folder = _site_folder(directory)
    if not (shares := clipped_shares(folder / SCORES)):
        raise RunError(f"{folder}: no scores of records are kept here; only runs with n_records have them")
    note = "private: the site's own; no epsilon covers it, and nothing of it was sent"
    warnings = tuple(of_scores(shares, "score_range"))
    table = Table(
        title="Scores of records that were clipped",
        headings=("client", "clipped"),
        rows=list(shares.items()),
        formats={1: "{:.1%}".format},
    )
    parts: list[Shown] = [note, table, *(f"notice: {words}" for words in warnings)]
    return Result(content={"note": note, "score_shares": shares, "warnings": warnings}, parts=parts)


def common_point(directory: Path, *, ledger: str | None = None) -> tuple[Result, str]:
    """Give the common setting that a run announced, from the run's directory or at a site, also as TOML.

    Raises:
        RunError: If there is none.
    """
    if RunDirectory(directory).config_path.exists():
        record = load(directory, ledger=ledger)
        with record.ledger:
            common = record.common
        if common is None:
            way = (
                f"finish the run (privbo run --resume {directory}), or " if RunDirectory(directory).interrupted else ""
            )
            raise RunError(
                f"{directory}: no common setting was announced; {way}ask for a vote in the next one: final = 'common'"
            )
        params, vote = common.params, common.vote
    else:  # a site received the result alone
        folder = _site_folder(directory)
        if (announced := common_at_site(folder)) is None:
            raise RunError(
                f"{folder}: no common setting was announced here; the run ends with one where final = 'common'"
            )
        params, vote = announced, None
    parts: list[Shown] = [
        "public: the common setting, the same for every client; its cost is part of the run's",
        Table(title="The common setting", headings=("parameter", "value"), rows=list(params.items()), right=(1,)),
    ]
    if vote is not None:
        place = f"candidate {vote.place + 1} of {vote.candidates}"
        parts.append(f"{vote.text}; {place}, by the vote of round {vote.round}")
    chosen = None if vote is None else fields_of(vote)
    content = {"note": "public: the same for every client", "params": params, "vote": chosen}
    return Result(content=content, parts=parts), _toml(params)


def _names(rows: Iterable[Mapping[str, Value]]) -> tuple[str, ...]:
    """Names of parameters, each once."""
    return tuple(dict.fromkeys(name for row in rows for name in row))


def _without_clients(home: RunDirectory) -> str:
    if home.interrupted:
        return home.interrupted
    if sites := sorted(home.private.glob("sites/*")):
        return f"{home.path}: the points are at its simulated sites; name one, such as {sites[0]}"
    if not home.countersigned_path.exists():
        return (
            f"{home.path}: no client's evaluations are here; restore its private folder from a copy, or, of a "
            "federation, ask each site with privbo best and the directory of its site.toml"
        )
    return (
        f"{home.path}: the points are at the sites and never came here; each site reads its own with privbo "
        "best and the directory of its site.toml"
    )


def _site_folder(directory: Path) -> Path:
    if (facts := file_of_one_run(directory, FACTS)) is None:
        near = [*directory.glob(f"*/*/{FACTS}"), *directory.glob("*/config.json")]
        here = f", such as {min(path.parents[path.name == FACTS] for path in near)}" if near else ""
        raise RunError(
            f"{directory} is neither a run's directory nor a site's; name one{here}. A site's is the directory in its "
            "site.toml, once the site has answered"
        )
    return facts.parent


def _toml(params: Mapping[str, Value]) -> str:
    """Parameters in TOML."""
    keys = {name: name if re.fullmatch("[A-Za-z0-9_-]+", name) else _literal(name) for name in params}
    return "".join(f"{keys[name]} = {_literal(value)}\n" for name, value in params.items())


def _literal(value: Value) -> str:
    """A value in TOML, whose strings are JSON's; what would steer a terminal is written as TOML's escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if shown(c) == c else f"\\U{ord(c):08X}" for c in text)


def typed(directory: Path, read: Callable[[str], str], say: Callable[[str], None]) -> Result:
    """PRIVATE: ask a person for the value of one trial after the other, until the run is over or the input ends.

    Args:
        directory: As of ``Site``.
        read: Prompts for a line; raises EOFError at the end of the input.
        say: Shows a line.
    """
    site, done = Site(directory), []
    say("one number per trial, larger is better; 'failed', with a reason if you like, where there is none; Ctrl-D ends")
    with suppress(EOFError):
        while waiting := site.ask():
            trial = waiting[0]
            values = ", ".join(f"{name} = {_value(value)}" for name, value in trial.params.items())
            text = read(f"trial {trial.number} of client {trial.client}: {values} -> ").strip()
            word, _, reason = text.partition(" ")
            try:
                if word == "failed":
                    done.append(site.tell(trial, failure=reason.strip() or "no reason given"))
                else:
                    done.append(site.tell(trial, float(text)))
            except PrivacyError as error:
                say(str(error))
            except ValueError:
                say(f"{text!r} is no number; type one, such as 0.71, or: failed REASON")
    return trials_of(site, done)


def _value(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def trials_of(site: Site, trials: list[Trial]) -> Result:
    """PRIVATE: show trials of clients, by number."""
    names = _names(trial.params for trial in trials)
    head = ("trial", "client", "round", *names, "state", "value")
    rows = [
        (
            t.number,
            t.client,
            t.round,
            *(_value(t.params[name]) if name in t.params else "-" for name in names),
            f"failed: {t.failure}" if t.failure is not None else "waits" if t.state == "open" else t.state,
            t.value if t.value is not None and math.isfinite(t.value) else None,
        )
        for t in trials
    ]
    table: Shown = Table(title="Trials", headings=head, rows=rows, right=range(len(head)))
    if not trials:
        table = f"no trial waits{': the run is over' * site.over}"
    parts = ["private: trials belong to their clients; no epsilon covers them", table]
    return Result(content={"trials": trials, "over": site.over}, parts=parts)
