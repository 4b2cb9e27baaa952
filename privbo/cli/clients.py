"""What clients' own data hold: the point that each of them uses, and the trials that wait for a value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from accountant.errors import PrivacyError
from accountant.verify.text import shown
from privbo.cli.terminal import Shown, render
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import require_contained
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.protocol.table import Table
from privbo.runs.best import FACTS, Best, Common, best_at_site, common_at_site
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import load
from privbo.runs.session import Site
from privbo.runs.trials import Trial

_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class OwnPoints:
    """PRIVATE: the points that clients would use, each for its client alone.

    Attributes:
        points: One per client, of those that have one.
        without: Numbers of clients without a finite value.
        scores: Whether the scores there are shown as well.
    """

    points: tuple[Best, ...]
    without: tuple[int, ...]
    scores: bool

    def to_dict(self) -> JsonObject:
        """Give the points as JSON-able data."""
        hidden = () if self.scores else ("value",)
        return {
            "note": "private: every point belongs to its client; no epsilon covers it",
            "clients": [fields_of(point, but=hidden) for point in self.points],
            "without": list(self.without),
        }


@render.register
def _own(found: OwnPoints) -> Iterator[Shown]:
    names = tuple(dict.fromkeys(name for p in found.points for name in p.params))
    score = ("score",) if found.scores else ()
    yield "private: every point belongs to its client; no epsilon covers it"
    yield Table(
        title="The clients' own best",
        headings=("client", *names, *score),
        rows=[(p.client, *(p.params.get(name) for name in names), *(p.value for _ in score)) for p in found.points],
        right=range(1 + len(names)),
    )
    if found.without:
        yield f"without a finite value: {', '.join(map(str, found.without))}"
    if not found.scores:
        yield "scores are private as well: --show-private shows them"


@dataclass(frozen=True, kw_only=True)
class CommonPoint:
    """The common setting; public.

    Attributes:
        params: Values by name.
        vote: How it was chosen; None at a site, which received the result alone.
    """

    params: Mapping[str, Value]
    vote: Common | None

    def to_dict(self) -> JsonObject:
        """Give the setting as JSON-able data."""
        vote = None if self.vote is None else fields_of(self.vote, but=("params",))
        return {"note": "public: the same for every client", "params": plain(self.params), "vote": vote}


@render.register
def _common(found: CommonPoint) -> Iterator[Shown]:
    yield "public: the common setting, the same for every client; its cost is part of the run's"
    yield Table(
        title="The common setting", headings=("parameter", "value"), rows=list(found.params.items()), right=(1,)
    )
    if found.vote is not None:
        vote = found.vote
        yield f"{vote.lead_text}; candidate {vote.place + 1} of {vote.candidates}, by the vote of round {vote.round}"


def own_points(
    directory: Path, *, client: int | None = None, show_private: bool = False, ledger: str | None = None
) -> OwnPoints:
    """PRIVATE: give the point that every local client would use.

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
        record = load(directory, ledger=ledger)
        with record.ledger:
            if not record.has_clients:
                raise RunError(_without_clients(home))
            points = record.best()
        with_point = {point.client for point in points}
        without = tuple(n for n in range(record.spec.problem.n_clients) if n not in with_point)
        found = OwnPoints(points=points, without=without, scores=show_private)
    else:
        points, without = best_at_site(_site_folder(directory))
        found = OwnPoints(points=points, without=without, scores=True)
    if client is None:
        return found
    chosen = tuple(point for point in found.points if point.client == client)
    if not chosen:
        here = ", ".join(str(point.client) for point in found.points) or "none"
        raise RunError(f"client {client} has no point here; those that have one: {here}")
    return replace(found, points=chosen, without=())


def common_point(directory: Path, *, ledger: str | None = None) -> CommonPoint:
    """Give the common setting that a run's final vote chose, from the run's directory or at a site.

    Raises:
        RunError: If there is none.
    """
    if not RunDirectory(directory).config_path.exists():
        folder = _site_folder(directory)
        if (params := common_at_site(folder)) is None:
            raise RunError(
                f"{folder}: no common setting was announced here; the run asks for one with final = 'common'"
            )
        return CommonPoint(params=params, vote=None)
    record = load(directory, ledger=ledger)
    with record.ledger:
        if record.common is not None:
            return CommonPoint(params=record.common.params, vote=record.common)
        if record.spec.final is None:
            raise RunError(f"{directory}: the run was made without a common setting; ask for one: final = 'common'")
        raise RunError(f"{directory}: the vote was not made yet; go on with the run: privbo run --resume {directory}")


def _without_clients(home: RunDirectory) -> str:
    if home.all_states():
        return f"{home.path} was interrupted; go on with it first: privbo run --resume {home.path}"
    if sites := sorted(home.private.glob("sites/*")):
        return f"{home.path}: the points are at its simulated sites; name one, such as {sites[0]}"
    return (
        f"{home.path}: the points are at the sites and never came here; each site reads its own with privbo "
        "best and the directory of its site.toml"
    )


def _site_folder(directory: Path) -> Path:
    if (directory / FACTS).exists():
        require_contained(directory)
        return directory
    runs = sorted(path.parent for path in directory.glob(f"*/{FACTS}"))
    if len(runs) > 1:
        raise RunError(
            f"{directory} holds {len(runs)} runs: {', '.join(path.name for path in runs)}; name one's folder"
        )
    if not runs:
        raise RunError(f"{directory} is neither a run's directory nor a site's; name one")
    require_contained(directory)
    return runs[0]


def toml_of(found: OwnPoints | CommonPoint, *, alone: bool) -> str:
    """Write points as TOML: the parameters of one, or a table ``[clients.N]`` for each client."""
    if isinstance(found, CommonPoint):
        return _lines(found.params)
    points = found.points
    if alone:
        return "".join(_lines(point.params) for point in points)
    return "\n".join(f"[clients.{point.client}]\n{_lines(point.params)}" for point in points)


def _lines(params: Mapping[str, Value]) -> str:
    return "".join(f"{_key(name)} = {_literal(value)}\n" for name, value in params.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _literal(name)


def _literal(value: Value) -> str:
    """A value in TOML, whose strings are JSON's; what would steer a terminal is written as TOML's escapes."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if shown(c) == c else f"\\U{ord(c):08X}" for c in text)


_WORDS = {"open": "waits", "told": "told", "failed": "failed"}


@dataclass(frozen=True, kw_only=True)
class Trials:
    """PRIVATE: trials of clients.

    Attributes:
        trials: By number.
        over: Whether the run has ended.
    """

    trials: tuple[Trial, ...]
    over: bool

    def to_dict(self) -> JsonObject:
        """Give them as JSON-able data."""
        return {"trials": [plain(trial) for trial in self.trials], "over": self.over}


def listed(directory: Path, *, client: int | None, everything: bool) -> Trials:
    """PRIVATE: give the trials that wait for a value, or all of them."""
    site = Site(directory)
    found = site.trials(client)
    return Trials(trials=found if everything else tuple(t for t in found if t.state == "open"), over=site.over)


def told(directory: Path, trial: int, value: float | None, failure: str | None) -> Trials:
    """PRIVATE: tell one trial and give it.

    Raises:
        ConfigurationError: If neither or both of value and failure are given.
    """
    if (value is None) == (failure is None):
        raise ConfigurationError("give a value, or --failed REASON")
    site = Site(directory)
    return Trials(trials=(site.tell(trial, value, failure=failure),), over=site.over)


def typed(directory: Path, read: Callable[[str], str], say: Callable[[str], None]) -> Trials:
    """PRIVATE: ask a person for the value of one trial after the other, until the run is over or the input ends.

    Args:
        directory: As of ``Site``.
        read: Prompts for a line; raises EOFError at the end of the input.
        say: Shows a line.
    """
    site, done = Site(directory), []
    say("one number per trial, larger is better; 'failed', with a reason if you like, where there is none; Ctrl-D ends")
    try:
        while waiting := site.ask():
            done.append(_typed(site, waiting[0], read, say))
    except EOFError:
        pass
    return Trials(trials=tuple(done), over=site.over)


def _typed(site: Site, trial: Trial, read: Callable[[str], str], say: Callable[[str], None]) -> Trial:
    while True:
        values = ", ".join(f"{name} = {_value(value)}" for name, value in trial.params.items())
        text = read(f"trial {trial.number} of client {trial.client}: {values} -> ").strip()
        word, _, reason = text.partition(" ")
        try:
            if word == "failed":
                return site.tell(trial, failure=reason.strip() or "no reason given")
            return site.tell(trial, _number(text))
        except PrivacyError as error:
            say(str(error))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no number; type one, such as 0.71, or: failed REASON") from None


def _value(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@render.register
def _trials(found: Trials) -> Iterator[Shown]:
    names = tuple(dict.fromkeys(name for trial in found.trials for name in trial.params))
    head = ("trial", "client", "round", *names, "state", "value")
    rows = [
        (
            t.number,
            t.client,
            t.round,
            *(_value(t.params[name]) if name in t.params else "-" for name in names),
            _WORDS[t.state] if t.failure is None else f"failed: {t.failure}",
            t.value if t.value is not None and math.isfinite(t.value) else None,
        )
        for t in found.trials
    ]
    yield "private: trials belong to their clients; no epsilon covers them"
    if found.trials:
        yield Table(title="Trials", headings=head, rows=rows, right=range(len(head)))
    elif found.over:
        yield "no trial waits: the run is over"
    else:
        yield "no trial waits"
