"""Read experiments from ``studies/*.toml``: problems, arms, seeds, contrasts, the paper's statement, pictures.

A file holds experiments by name and what they share::

    [shared.synthetic]                          # any table, merged in wherever ``use`` names it
    problem = {type = "experiments.problems.synthetic:homogeneous", n_clients = {paper = 200, small = 40}}
    names.theirs = {type = "dp-fts-de", n_regions = 2}

    [dp-fts-de-2b]
    title = "clipping norms"
    panels = [{use = "synthetic"}]
    arms = ["controls", {label = "S={s:g}", each = {s = [3.0, 6.0]}, algorithm = {clipping_norm = "{s}"}}]

``{paper = ..., small = ...}`` is a value by scale; ``only = "paper"`` drops a table at the other scale;
``each`` repeats a panel or an arm for every combination and fills ``{name}`` in its strings; an arm that is
a string stands for a shared list of arms; ``zeroed = true`` adds the same arm with its sum zeroed; ``like`` takes
others' panels. A panel has its experiment's keys, an arm its panel's problem, player, rounds, options.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, cast

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Count, JsonObject, Sequence, read_settings, settings

FOLDER = Path(__file__).parent / "studies"
Scale: TypeAlias = Literal["small", "paper"]
Table: TypeAlias = dict[str, object]
_OF_ARMS = ("problem", "play", "rounds", "options")
_OF_STUDY = ("title", "statement", "note", "pictures", "overall", "again")


@settings(table="claim")
class Claim:
    """Something the paper says of a figure that a paired difference can tell.

    Attributes:
        says: The sentence.
        less: Label of the arm that loses less, or a pattern for several (``"DP-FTS-DE, q=*"``).
        than: Label of the other.
        by: The measure that the sentence speaks of; empty for the panel's.
        within: Where the paper says that arms are alike: the largest difference, as a share of the other's loss.
        exists: Whether the sentence says that one such arm exists, and not that all of them lose less.
        chosen: Values of the setting that the paper does not name, which are ours; empty where all are the paper's.
        ours: Whether it is our control and not the paper's sentence.
        stands: Whether it is judged where its panel is withdrawn: the reason does not concern its arms.
    """

    says: str
    less: str
    than: str
    by: str = ""
    within: float | None = None
    exists: bool = False
    chosen: str = ""
    ours: bool = False
    stands: bool = False

    def of(self, labels: Iterable[str]) -> list[str]:
        """Give the labels that are held against the other.

        Example:
            >>> Claim(says="", less="q=*", than="q=1").of(["q=1", "q=2", "q=3, sum zeroed"])
            ['q=2']
        """
        found = (label for label in labels if fnmatch.fnmatchcase(label, self.less) and label != self.than)
        return [label for label in found if label == self.less or "zeroed" not in label]


@settings(table="arm")
class Arm:
    """One thing that is compared.

    Attributes:
        label: Its name in tables and pictures.
        play: The player, as ``module:function``.
        problem: ``type`` as ``module:function``, and its arguments.
        rounds: Federated rounds.
        algorithm: ``type`` as in a configuration file, and what departs from its defaults, or from its
            ``preset`` (``"paper"``, ``"heuristic"``); ``local = true`` shares nothing.
        privacy: As in a configuration file; empty is none. ``price_of`` aims at an arm's tight epsilon at N^-1.1.
        control: ``"zeroed"`` replaces the clients' sum by zero.
        options: Further arguments of the player.
        seeds: At most so many of the panel's seeds.
        series: Arms of one series are one line in a picture against ``x``.
        x: Place on the horizontal axis of such a picture.
    """

    label: str
    play: str = "experiments.plays.tune:tune"
    problem: JsonObject
    rounds: Count = 1
    algorithm: JsonObject = field(default_factory=dict)
    privacy: JsonObject = field(default_factory=dict)
    control: Literal["zeroed"] | None = None
    options: JsonObject = field(default_factory=dict)
    seeds: Count | None = None
    series: str = ""
    x: float | None = None


@settings(table="panel")
class Panel:
    """Arms on one problem, with everything that is said of them.

    Attributes:
        title: Name of the panel.
        arms: What is compared.
        seeds: Number of seeds.
        first_seed: Seeds start here.
        seeds_fixed: Whether ``--seeds`` leaves them alone.
        needs: Files of which one must stand in ``PRIVBO_DATA``, or the panel is left out.
        measure: The measure of differences, ratios and pictures.
        note, columns: Said below the title; table columns by head, see ``table``.
        contrasts: Pairs of labels whose paired difference the statement is about.
        ratios: Pairs of labels whose ratio of means is given, with its 95 % interval.
        slope: Range of ``x`` within which the slope of log measure over log x is given.
        controls: Labels every arm's difference to is given, where the arm starts in as many regions.
        noise_by_regions: Whether an arm without a zeroed one of its own is held against that of as many regions.
        prices: Whether epsilons are computed.
        collect: In place of cells: ``module:function`` that gives outcomes by label.
        picture: The picture that shows the panel; empty for none.
        purpose: ``"choosing"`` (settings were chosen looking at it), ``"reporting"``, ``"own"`` (systems
            of our own making, on which nothing was chosen either) or ``"stress"``.
        correlation: Between clients' surfaces, where it is stated.
        horizon: Value of the horizontal axis at a curve's end; 0 counts rounds.
        claims: What the paper says of it.
        withdrawn: Why nothing is judged: what differs from the paper's setting before any loss is seen.
    """

    title: str
    arms: Sequence[Arm]
    seeds: Count
    first_seed: int = 0
    seeds_fixed: bool = False
    needs: Sequence[str] = ()
    measure: str = "cumulative"
    note: str = ""
    columns: dict[str, str]
    contrasts: Sequence[Sequence[str]] = ()
    ratios: Sequence[Sequence[str]] = ()
    slope: Sequence[float] = ()
    controls: Sequence[str] = ()
    noise_by_regions: bool = False
    prices: bool = False
    collect: str = ""
    options: JsonObject = field(default_factory=dict)
    picture: str = "figure"
    horizon: float = 0.0
    purpose: Literal["", "choosing", "reporting", "own", "stress"] = ""
    correlation: float | None = None
    claims: Sequence[Claim] = ()
    withdrawn: str = ""


@settings(table="picture")
class Picture:
    """Picture of panels.

    Attributes:
        kind: ``"curves"``, ``"trade-off"`` against ``x`` or epsilon, ``"bars"``, or a ``module:function``.
        measure: What is drawn.
        x, y: Texts of the axes.
        of: Shows the panels of another picture; empty for its own.
        log: Logarithmic axes: ``"x"``, ``"y"``, ``"xy"``.
        legend: Text per arm; fields as in a table's columns.
        spread: What is shaded: the standard ``"error"`` or ``"deviation"``.
        levels: Horizontal lines by name.
        omit: Labels that are not drawn.
    """

    kind: str = "curves"
    measure: str = "cumulative"
    x: str = "round"
    y: str = ""
    of: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    legend: str = "{label}"
    spread: Literal["error", "deviation"] = "error"
    levels: dict[str, float] = field(default_factory=dict)
    omit: Sequence[str] = ()


@settings(table="study")
class Study:
    """One experiment at one scale.

    Attributes:
        name: What ``python -m experiments`` calls it.
        title: One line.
        statement: What the paper says the figure shows.
        note: Where the paper leaves a value open.
        panels: Its parts.
        pictures: By the name of the file, without ``.png``.
        overall: ``module:function`` that adds tables and pictures over the outcomes of all panels.
        again: ``module:function`` that makes the same from what ``overall`` keeps; empty where it keeps too little.
    """

    name: str
    title: str
    statement: str = ""
    note: str = ""
    panels: Sequence[Panel]
    pictures: dict[str, Picture]
    overall: str = ""
    again: str = ""


def titles() -> dict[str, str]:
    """Give the title of every experiment, by name."""
    return {name: str(table["title"]) for tables in files() for name, table in tables.items() if name != "shared"}


def study(name: str, scale: Scale, folder: Path = FOLDER) -> Study:
    """Read one experiment from a folder of studies.

    Raises:
        ConfigurationError: If there is none of that name, or its file asks for what it may not.

    Example:
        >>> study("f-lcb-smooth", "paper").panels[0].seeds
        10
    """
    for tables in files(folder):
        if name in tables and name != "shared":
            content = cast("dict[str, Table]", _scaled(tables, scale))
            found = _study(name, with_panels(content[name], content), content.get("shared", {}))
            return read_settings(Study, found, name)
    raise ConfigurationError(f"experiment {name!r} is unknown; `python -m experiments --list` names all")


@cache
def files(folder: Path = FOLDER) -> tuple[dict[str, Table], ...]:
    """Read every file of studies in a folder."""
    return tuple(tomllib.loads(path.read_text()) for path in sorted(folder.glob("*.toml")))


def _study(name: str, table: Table, shared: Table) -> Table:
    table = _used(table, shared)
    common = {key: value for key, value in table.items() if key not in (*_OF_STUDY, "panels")}
    panels = [
        _panel(panel, shared)
        for entry in cast("list[Table]", table.get("panels", [{}]))
        for panel in _each(merged(common, _used(entry, shared)))
    ]
    found = {key: _resolved(table[key], shared) for key in _OF_STUDY if key in table}
    return {"pictures": {"figure": {}}} | found | {"name": name, "panels": panels}


def _panel(panel: Table, shared: Table) -> Table:
    names = shared | cast("Table", panel.pop("names", {}))
    given = {key: panel[key] for key in _OF_ARMS if key in panel}
    arms = [_resolved(merged(given, arm), names) for arm in _arms(panel["arms"], names)]
    kept = {key: value for key, value in panel.items() if key not in ("problem", "play", "rounds", "arms")}
    return {"title": "", **cast("Table", _resolved(kept, names)), "arms": arms}


def _arms(entries: object, names: Table) -> Iterator[Table]:
    for entry in cast("list[object]", entries):
        if isinstance(entry, str):
            yield from _arms(cast("Table", names[entry])["arms"], names)
            continue
        for arm in _each(_used(cast("Table", entry), names)):
            zeroed = arm.pop("zeroed", False)
            yield arm
            if zeroed:
                yield arm | {"label": f"{arm['label']}, sum zeroed", "control": "zeroed"}


def _each(table: Table) -> Iterator[Table]:
    """One table per combination of ``each``: lists by name, or a list of combinations."""
    each = table.get("each", {})
    rest = {key: value for key, value in table.items() if key != "each"}
    rows = cast("list[Table]", each)
    if isinstance(each, dict):
        grid = cast("dict[str, list[object]]", each)
        rows = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for row in rows:
        yield cast("Table", filled(rest, row))


def _scaled(value: object, scale: Scale) -> object:
    """Values by scale chosen, tables of the other scale dropped."""
    if isinstance(value, list):
        kept = (one for one in value if not isinstance(one, dict) or one.get("only", scale) == scale)
        return [_scaled(one, scale) for one in kept]
    if isinstance(value, dict):
        if set(value) == {"paper", "small"}:
            return _scaled(value[scale], scale)
        return {key: _scaled(inside, scale) for key, inside in value.items() if key != "only"}
    return value


def _used(table: Table, names: Table) -> Table:
    """The table on top of those that its ``use`` names; what is inside stays as it is."""
    found: Table = {}
    for name in names_used(table):
        if name not in names:
            raise ConfigurationError(f"use={name!r} names nothing that is shared; there are {', '.join(names)}")
        found = merged(found, _used(cast("Table", names[name]), names))
    return merged(found, {key: value for key, value in table.items() if key != "use"})


def _resolved(value: object, names: Table) -> object:
    """Every ``use`` inside replaced."""
    if isinstance(value, dict):
        return {key: _resolved(inside, names) for key, inside in _used(value, names).items()}
    return [_resolved(inside, names) for inside in value] if isinstance(value, list) else value


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> Table:
    """Give a table on top of another, table by table."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return found


def with_panels(table: Table, content: Mapping[str, Table]) -> Table:
    """Give an experiment's table with the panels of those that it is ``like``, with the arms that their uses name."""
    if "like" not in table:
        return table
    found: list[Table] = []
    left_out = cast("Mapping[str, list[str]]", table.get("leave", {}))
    for name, by_use in cast("Mapping[str, Mapping[str, list[object]]]", table["like"]).items():
        for panel in cast("list[Table]", content[name]["panels"]):
            uses = {*names_used(panel), *names_used(cast("Table", panel.get("problem", {})))}
            arms = [arm for use, arms in by_use.items() if use in uses for arm in arms]
            gone = {arm for use, arms in left_out.items() if use in uses for arm in arms}
            if kept := [arm for arm in arms if arm not in gone]:
                found.append(panel | {"arms": kept})
    return {key: value for key, value in table.items() if key not in ("like", "leave")} | {"panels": found}


def names_used(table: Table) -> list[str]:
    """Give the names of the shared tables that a table uses."""
    use = table.get("use", [])
    return [use] if isinstance(use, str) else cast("list[str]", use)


def filled(value: object, row: Mapping[str, object]) -> object:
    """Fill in names: ``"{z}"`` becomes the value itself, ``"z={z:g}"`` a text; what has no name in ``row`` stays.

    Example:
        >>> filled({"q": "{q}", "label": "q={q:g}, {other}"}, {"q": 0.5})
        {'q': 0.5, 'label': 'q=0.5, {other}'}
    """
    if isinstance(value, dict):
        return {key: filled(inside, row) for key, inside in value.items()}
    if isinstance(value, list):
        return [filled(inside, row) for inside in value]
    if not isinstance(value, str):
        return value
    if value[:1] + value[-1:] == "{}" and value[1:-1] in row:
        return row[value[1:-1]]
    return re.sub(
        r"\{(\w+)(:[^}]*)?\}",
        lambda found: f"{{{found[2] or ''}}}".format(row[found[1]]) if found[1] in row else found[0],
        value,
    )
