"""The answer of a run: parameters that clients use, from the run's directory or at a site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from accountant.verify.text import shown
from privbo.cli.terminal import Shown, render
from privbo.protocol.errors import RunError
from privbo.protocol.files import require_contained
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.protocol.table import Table
from privbo.runs.best import FACTS, Best, Common, best_at_site, common_at_site
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import load

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
    if RunDirectory(directory).config_path.exists():
        found = _of_run(directory, show_private=show_private, ledger=ledger)
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


def _of_run(directory: Path, *, show_private: bool, ledger: str | None) -> OwnPoints:
    home = RunDirectory(directory)
    record = load(directory, ledger=ledger)
    with record.ledger:
        if not record.has_clients:
            raise RunError(_without_clients(home))
        points = record.best()
        chosen = {point.client for point in points}
        without = tuple(n for n in range(record.spec.problem.n_clients) if n not in chosen)
    return OwnPoints(points=points, without=without, scores=show_private)


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
