"""A sweep's file: one problem or several, settings by grid or by name, and what is measured.

A sweep file::

    name = "levels"
    config = "quickstart.toml"                  # next to this file; or a [base] table
    seeds = 5                                   # 0..4, or a list
    seed_keys = ["problem.arguments.seed"]      # also set to the cell's seed
    data = "public"                             # or "simulated", "proxy", "private"
    controls = ["local", "non-private"]
    [grid]
    "privacy.epsilon" = [0.5, 1, 2, 4, 8]

Instead of a grid, or in addition to it, arms with names of their own; contrasts are paired differences::

    measure = "cumulative regret"
    contrasts = [["two regions", "one region"]]
    [[arms]]
    label = "two regions"
    overrides = { algorithm.n_regions = 2 }
    [[arms]]
    label = "one region"
    [[panels]]                                  # several problems: one comparison each
    name = "wards"
    config = "wards.toml"
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field

from privbo.comparisons.verdict import Data, Kind, Measure
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import flat
from privbo.protocol.settings import NAME, JsonObject, Sequence, read_settings, settings
from privbo.runs.spec import read_toml, with_overrides

Control = Literal["local", "non-private", "zeroed"]
OWN_CONTROLS: tuple[Control, Control] = ("local", "zeroed")
"""The controls of a setting's own algorithm, both of which it has to beat."""
_NAMES: dict[Control, str] = {"local": "local only", "non-private": "non-private", "zeroed": "noise-only control"}


def control_name(kind: Control, of: str) -> str:
    """Name a control in tables, and the setting that it is one of, where there are several."""
    return f"{_NAMES[kind]}, {of}" if of else _NAMES[kind]


@settings(table="arms")
class ArmConfig:
    """A setting with a name of its own.

    Attributes:
        label: Its name.
        kind: A private setting, or one of the controls.
        config: Another run configuration to start from, next to the sweep's file.
        algorithm: Replaces the whole ``[algorithm]`` table.
        privacy: Replaces the whole ``[privacy]`` table.
        overrides: Single keys, dotted or nested, that are set on top.
    """

    label: str
    kind: Kind = "private"
    config: str | None = None
    algorithm: JsonObject | None = None
    privacy: JsonObject | None = None
    overrides: JsonObject = Field(default_factory=dict)


@settings(table="panels")
class PanelConfig:
    """One of several problems of a study; what it leaves out is the study's.

    Attributes:
        name: Shown as its title.
        config: Its run configuration, next to the sweep's file.
        overrides: Single keys, dotted or nested, that are set on top.
        arms: Arms of this panel alone; one that bears the name of the study's replaces it.
        seeds: Number or list of seeds.
        first_seed: Seeds start here where their number is given.
        judge: As the study's.
    """

    name: str
    config: str | None = None
    overrides: JsonObject = Field(default_factory=dict)
    arms: Sequence[ArmConfig] = ()
    seeds: int | Sequence[int] | None = None
    first_seed: int | None = None
    judge: str | None = None


@settings(table="sweep")
class SweepConfig:
    """A sweep's file.

    Attributes:
        name: Shown in titles; letters, digits, dots, dashes.
        config: Run configuration next to this file, or else ``base``.
        base: The same as a table.
        seeds: Number or list of seeds.
        first_seed: Seeds start here where their number is given.
        seed_keys: Dotted keys that are set to the cell's seed too, such as ``problem.arguments.seed``, so that a
            factory draws other clients with every seed.
        data: Whose data the clients hold; private unless the file says otherwise. Only over private data
            is noise secret: elsewhere it is seeded and protects no client.
        controls: In addition to every setting's own ``"local"`` and ``"zeroed"`` arms, which are added unless the
            data is private; by default ``["local", "non-private"]`` with a grid, none with arms alone, and
            ``["local"]`` on private data.
        measure: What a setting is judged by; regret needs a problem that states ``best_values``.
        judge: ``module:function`` that makes losses of evaluations, called with a run's
            ``ClientHistory`` and the problem's arguments, ``(n_clients, n_evaluations)``; by default
            a loss is 1 - score.
        statement: What is to be shown, in a sentence.
        contrasts: Pairs of labels whose difference is the point.
        grid: Dotted keys and lists of their values; settings are all combinations.
        arms: Settings by name.
        panels: Several problems instead of one.
        ledger: The population's ledger; private data only.

    Raises:
        ConfigurationError: If a value is not allowed, or two contradict each other.
    """

    name: Annotated[str, Field(pattern=NAME)]
    config: str | None = None
    base: JsonObject | None = None
    seeds: int | Sequence[int] = 5
    first_seed: int = 0
    seed_keys: Sequence[str] = ()
    data: Data = "private"
    controls: Sequence[Control] | None = None
    measure: Measure = "mean over rounds"
    judge: str | None = None
    statement: str = ""
    contrasts: Sequence[Sequence[str]] = ()
    grid: JsonObject = Field(default_factory=dict)
    arms: Sequence[ArmConfig] = ()
    panels: Sequence[PanelConfig] = ()
    ledger: SharedLedger | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A setting before its cells ran.

    Attributes:
        content: Its run configuration, still without a seed.
    """

    label: str
    kind: Kind
    overrides: JsonObject
    content: JsonObject


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One problem's settings and seeds."""

    name: str
    settings: tuple[Planned, ...]
    seeds: tuple[int, ...]
    judge: str | None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep ready to run.

    Attributes:
        config: As read; a ledger's file by its whole path, as workers may stand in another folder.
        panels: One per problem.
    """

    config: SweepConfig
    panels: tuple[Panel, ...]


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file and plan its settings; no data is touched.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If it can't be read, or asks for what it may not.
    """
    config = read_settings(SweepConfig, read_toml(path), "sweep")
    _check(config)
    asked = config.panels or (PanelConfig(name=config.name),)
    panels = tuple(_panel(config, one, path) for one in asked)
    labels = {setting.label for panel in panels for setting in panel.settings}
    for label in itertools.chain.from_iterable(config.contrasts):
        if label not in labels:
            raise ConfigurationError(
                f"contrasts: no setting is called {label!r}; there are {', '.join(sorted(labels))}"
            )
    if config.ledger is not None:  # whole, wherever workers stand
        config = replace(config, ledger=replace(config.ledger, path=str(config.ledger.beside(path).place)))
    return Sweep(config=config, panels=panels)


def _check(config: SweepConfig) -> None:
    """Rules between keys."""
    if any(len(pair) != 2 for pair in config.contrasts):
        raise ConfigurationError(f"contrasts={config.contrasts!r}: write pairs of labels, [[first, second], ...]")
    if not (config.grid or config.arms or any(panel.arms for panel in config.panels)):
        raise ConfigurationError("a sweep needs settings; add [grid] or [[arms]]")
    if config.data != "private" and config.ledger is not None:
        raise ConfigurationError(f"data={config.data!r} charges nothing; drop [ledger]")
    if config.data != "private":
        return
    if config.ledger is None:
        raise ConfigurationError(
            "a sweep over private data charges one population's ledger for all its cells; add "
            '[ledger] path = "...", population = "..." (and a bound: epsilon, delta), or say data = "public" (or '
            '"simulated", "proxy"), which replaces secret noise by seeded noise and gives no guarantee'
        )
    if len(config.panels) > 1 or config.measure not in ("mean over rounds", "final"):
        raise ConfigurationError("a sweep over private data has one problem, judged by its scores; drop panels")
    kinds = {arm.kind for arm in config.arms} | set(config.controls or ())
    if "non-private" in kinds:
        raise ConfigurationError(
            f"controls={sorted(kinds)!r}: on private data only 'local' and 'zeroed' are allowed, which release nothing"
        )


def _panel(config: SweepConfig, panel: PanelConfig, path: Path) -> Panel:
    file, extra, grid = panel.config or config.config, flat(panel.overrides), _grid(config)
    if panel.config is None and (config.config is None) == (config.base is None):
        raise ConfigurationError(f"{path}: give exactly one of config (a file) and [base] (a table)")
    base = read_toml(path.parent / file) if file is not None else dict(config.base or {})
    whole = with_overrides(base, extra)
    planned = [_planned(_label(chosen), "private", whole, chosen) for chosen in grid]
    for arm in {arm.label: arm for arm in (*config.arms, *panel.arms)}.values():
        content = base if arm.config is None else read_toml(path.parent / arm.config)
        tables = {"algorithm": arm.algorithm, "privacy": arm.privacy}
        content = with_overrides({**content, **{k: v for k, v in tables.items() if v is not None}}, extra)
        planned.append(_planned(arm.label, arm.kind, content, flat(arm.overrides)))
    usual: Sequence[Control] = ("local",) if config.data == "private" else ("local", "non-private") * bool(config.grid)
    controls = usual if config.controls is None else config.controls
    planned += [p for kind in controls for p in _control(kind, whole, grid or [{}])]
    labels = [p.label for p in planned]
    if len(set(labels)) < len(labels):
        raise ConfigurationError(f"{panel.name}: two settings bear one name ({', '.join(labels)}); rename one")
    wanted = config.seeds if panel.seeds is None else panel.seeds
    first = config.first_seed if panel.first_seed is None else panel.first_seed
    seeds = tuple(range(first, first + wanted)) if isinstance(wanted, int) else tuple(wanted)
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigurationError(
            f"seeds={wanted!r}, first_seed={first!r}: give a number >= 1 or different numbers >= 0, and a first >= 0"
        )
    return Panel(name=panel.name, settings=tuple(planned), seeds=seeds, judge=panel.judge or config.judge)


def _grid(config: SweepConfig) -> list[dict[str, object]]:
    grid: dict[str, list[object]] = {}
    for key, values in flat(config.grid).items():
        if not isinstance(values, list) or not values:
            raise ConfigurationError(f"grid.{key}={values!r} must be a list of values")
        grid[key] = values
    rows = itertools.product(*grid.values()) if grid else ()
    return [dict(zip(grid, row, strict=True)) for row in rows]


def _planned(label: str, kind: Kind, base: JsonObject, overrides: Mapping[str, object]) -> Planned:
    content = with_overrides(base, overrides)
    return Planned(label=label, kind=kind, overrides=cast("JsonObject", overrides), content=content)


def _control(kind: Control, base: JsonObject, chosen: list[dict[str, object]]) -> Iterable[Planned]:
    """A control, once per part of the grid that changes it: privacy matters to "zeroed" only."""
    found: dict[str, Planned] = {}
    for overrides in chosen:
        kept = {k: v for k, v in overrides.items() if kind == "zeroed" or not k.startswith("privacy.")}
        label = control_name(kind, _label(kept))
        found.setdefault(label, _planned(label, kind, base, kept))
    return found.values()


def _label(overrides: Mapping[str, object]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in overrides.items())
