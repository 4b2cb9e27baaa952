"""Sweeps: settings x seeds of one configuration.

A sweep file::

    name = "levels"
    config = "quickstart.toml"                  # beside this file; or a [base] table
    seeds = 5                                   # 0..4, or a list
    seed_keys = ["problem.arguments.seed"]      # also set to the cell's seed
    data = "public"                             # or "simulated", "proxy", "private"
    controls = ["local", "non-private"]
    [grid]
    "privacy.epsilon" = [0.5, 1, 2, 4, 8]

Unless the data is private, cells run in memory with seeded noise. On private data a sweep
is a composition: all cells use secure noise and charge one population's ledger.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import privbo
from accountant.ledger import Ledger
from privbo.comparisons.cell_runs import Content, run_private, run_public
from privbo.comparisons.cells import Cell, OnCell, complete, digest
from privbo.comparisons.comparison import Comparison, Data, Kind, Setting, Utility
from privbo.comparisons.paid import Selection, paid_recommendation
from privbo.comparisons.recommend import recommend
from privbo.plans import prices
from privbo.plans.privacy import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import flat, private_folder
from privbo.protocol.settings import explain, read_settings
from privbo.runs.spec import Spec

_CELL_FORMAT = 2  # what a cell's file holds; older ones are made again


class SweepConfig(BaseModel):
    """A sweep file, checked for shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    config: str | None = None
    base: dict[str, Any] | None = None
    seeds: int | list[int] = 5
    seed_keys: tuple[str, ...] = ()
    data: Data = "public"
    controls: tuple[Literal["local", "non-private", "zeroed"], ...] | None = None
    utility: Utility = "mean over rounds"
    grid: dict[str, Any]
    ledger: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A setting before its cells ran."""

    label: str
    kind: Kind
    overrides: Mapping[str, Any]
    content: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep ready to run.

    Attributes:
        config: As read.
        settings: Private settings and controls.
        seeds: Seeds of every setting.
        ledger: The population's ledger; private data only.
    """

    config: SweepConfig
    settings: tuple[Planned, ...]
    seeds: tuple[int, ...]
    ledger: SharedLedger | None


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file and plan its settings; no data is touched.

    Raises:
        ConfigurationError: If it can't be read, or asks for what it may not.
    """
    config = _checked(_toml(path))
    if (config.config is None) == (config.base is None):
        raise ConfigurationError(f"{path}: give exactly one of config (a file) and [base] (a table)")
    base = config.base if config.base is not None else _toml(path.parent / str(config.config))
    seeds = tuple(range(config.seeds)) if isinstance(config.seeds, int) else tuple(config.seeds)
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ConfigurationError(f"seeds={config.seeds!r} must be a number >= 1 or different numbers >= 0")
    return Sweep(config=config, settings=tuple(_settings(config, base)), seeds=seeds, ledger=_ledger(config))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a sweep or configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None


def _checked(content: Mapping[str, Any]) -> SweepConfig:
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(explain(error, "sweep")) from None


def _ledger(config: SweepConfig) -> SharedLedger | None:
    if config.data != "private":
        if config.ledger is not None or config.selection is not None:
            raise ConfigurationError(f"data={config.data!r} charges nobody; drop [ledger] and [selection]")
        return None
    if config.ledger is None:
        raise ConfigurationError(
            "a sweep over private data charges one population's ledger for all its cells; add "
            '[ledger] path = "...", population = "..." (and a bound: epsilon, delta)'
        )
    return read_settings(SharedLedger, config.ledger, "ledger")


def _settings(config: SweepConfig, base: Mapping[str, Any]) -> list[Planned]:
    grid: dict[str, list[Any]] = {}
    for key, values in flat(config.grid).items():
        if not isinstance(values, list) or not values:
            raise ConfigurationError(f"grid.{key}={values!r} must be a list of values")
        grid[key] = values
    chosen = [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]
    planned = [
        Planned(label=_label(overrides), kind="private", overrides=overrides, content=_with(base, overrides))
        for overrides in chosen
    ]
    return planned + [p for kind in _controls(config) for p in _control(kind, base, chosen)]


def _controls(config: SweepConfig) -> tuple[Literal["local", "non-private", "zeroed"], ...]:
    if config.data != "private":
        return ("local", "non-private") if config.controls is None else config.controls
    if config.controls not in (None, (), ("local",)):
        raise ConfigurationError(
            f"controls={config.controls!r}: on private data only 'local' is allowed, which releases nothing"
        )
    return ("local",) if config.controls is None else config.controls


def _control(
    kind: Literal["local", "non-private", "zeroed"], base: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]]
) -> list[Planned]:
    """A control, once per part of the grid that changes it: privacy matters to "zeroed" only."""
    names = {"local": "local only", "non-private": "non-private", "zeroed": "clients' sum zeroed"}
    found: dict[str, Planned] = {}
    for overrides in chosen:
        kept = {k: v for k, v in overrides.items() if kind == "zeroed" or not k.startswith("privacy.")}
        label = f"{names[kind]}, {_label(kept)}" if kept else names[kind]
        content = _with(base, kept)
        if kind != "zeroed":
            content["privacy"] = {"none": True}
        found.setdefault(label, Planned(label=label, kind=kind, overrides=kept, content=content))
    return list(found.values())


def _label(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in overrides.items())


def _with(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with dotted keys replaced; the base stays as it is."""
    content = {key: _with(value, {}) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in overrides.items():
        *tables, last = key.split(".")
        table = content
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigurationError(f"{key!r}: {name!r} is a value in the configuration, not a table")
        table[last] = value
    return content


def run_sweep(
    sweep: Sweep, out: Path, *, jobs: int = 2, scheduler: str | None = None, on_cell: OnCell | None = None
) -> Comparison:
    """Run the cells that are not finished and compare the settings.

    Args:
        sweep: What to run.
        out: Folder of the cells and the results.
        jobs: Parallel processes.
        scheduler: Address of a Dask scheduler to use instead.
        on_cell: Called with every finished cell and its result.

    Raises:
        ConfigurationError: If a setting is impossible; no cell was run.
    """
    _check(sweep)
    folder = (private_folder(out) if sweep.config.data == "private" else out) / "cells"
    cells = [_cell(sweep, setting, seed, folder) for setting in sweep.settings for seed in sweep.seeds]
    results = complete(cells, jobs=jobs, scheduler=scheduler, on_cell=on_cell)
    count = len(sweep.seeds)
    settings = tuple(
        _collected(planned, sweep.seeds, results[i * count : (i + 1) * count])
        for i, planned in enumerate(sweep.settings)
    )
    found = Comparison(
        name=sweep.config.name,
        data=sweep.config.data,
        utility=sweep.config.utility,
        settings=settings,
        seeded=sweep.config.data != "private",
    )
    if sweep.ledger is None:
        return found
    return composed(found, sweep.ledger, settings[0].delta)


def _check(sweep: Sweep) -> None:
    """Refuse a bad setting before the first cell, and say here what the cells' processes keep quiet about."""
    for setting in sweep.settings:
        spec = Spec.from_dict(setting.content).loaded()
        spec.privacy.resolved_delta(spec.problem.n_clients)


def recommended(sweep: Sweep, comparison: Comparison, out: Path, budget: float) -> Comparison:
    """The comparison with the best setting within a budget; on private data the choice itself is charged.

    Raises:
        ConfigurationError: If nothing fits, or on private data without a [selection] table.
        BudgetExceeded: If the population's ledger can't pay for the choice.
    """
    if sweep.config.data != "private" or sweep.config.selection is None or sweep.ledger is None:
        return dataclasses.replace(comparison, recommendation=recommend(comparison, budget))
    selection = read_settings(Selection, sweep.config.selection, "selection")
    cells = out / "private" / "cells"
    scores = {
        setting.label: [_cell(sweep, setting, seed, cells).path for seed in sweep.seeds]
        for setting in sweep.settings
        if setting.kind == "private"
    }
    chosen = paid_recommendation(comparison, scores, selection, sweep.ledger, budget)
    found = dataclasses.replace(comparison, recommendation=chosen)
    return composed(found, sweep.ledger, comparison.settings[0].delta)


def _cell(sweep: Sweep, setting: Planned, seed: int, folder: Path) -> Cell:
    content = _with(setting.content, {**dict.fromkeys(sweep.config.seed_keys, seed), "seed": seed})
    private = sweep.ledger is not None
    name = digest([privbo.__version__, _CELL_FORMAT, content, setting.kind, seed, private])
    call = Content(content=content, kind=setting.kind, label=setting.label)
    if sweep.ledger is not None and setting.kind == "private":
        work = partial(run_private, call, folder / name, sweep.ledger)
    else:
        work = partial(run_public, call)
    return Cell(label=setting.label, seed=seed, path=folder / f"{name}.json", work=work)


def _collected(planned: Planned, seeds: tuple[int, ...], results: Sequence[Mapping[str, Any]]) -> Setting:
    first = results[0]
    return Setting(
        label=planned.label,
        kind=planned.kind,
        epsilon=first["epsilon"],
        delta=first["delta"],
        strict_epsilon=first["strict_epsilon"],
        strict_delta=first["strict_delta"],
        noise_multiplier=first["noise_multiplier"],
        releases=first["releases"],
        overrides=planned.overrides,
        seeds=seeds,
        curves=np.array([result["curve"] for result in results]),
    )


def composed(comparison: Comparison, shared: SharedLedger, delta: float) -> Comparison:
    """The comparison with the price of everything its population has paid so far."""
    at = shared.delta or delta
    with Ledger.open(shared.path) as ledger:
        table = prices.table(ledger.event(), at, ledger.policy.adjacency)
    return dataclasses.replace(comparison, composed=table, composed_delta=at)
