"""Finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from privbo.comparisons.cells import digest, setting_of
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.sweep import composed, summary
from privbo.comparisons.sweep_file import OWN_CONTROLS, Control, control_name
from privbo.comparisons.verdict import Data, Kind, Setting
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import flat
from privbo.protocol.settings import JsonObject
from privbo.runs.best import read_history
from privbo.runs.record import Record, load, mean_best_so_far
from privbo.runs.spec import Spec


def compare(
    runs: Sequence[Record | str | Path],
    *,
    data: Data = "private",
    name: str = "runs",
    measure: Literal["mean over rounds", "final"] = "mean over rounds",
    ledger: str | Path | None = None,
) -> Comparison:
    """Compare finished runs; runs that differ in their seed only are one setting.

    A population's ledger that all runs charged is priced as a whole. Where a run's evaluations are not on
    this machine (no private folder) prices alone are compared. Where runs kept the curves of their controls
    (``controls = ["local", "zeroed"]``), these are settings, too; without both there is no verdict on sharing.

    Args:
        runs: Records or their directories.
        data: Whose data the runs saw. A run doesn't know, so unless you say otherwise its
            clients' scores are private: in this object, and never in what is written for others.
        name: Shown in the page's title.
        measure: What a setting is judged by.
        ledger: As of ``load``, for directories whose runs name a population's.

    Raises:
        RunError: If runs of one setting have different lengths.
        ConfigurationError: If nothing is given.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda n, p: -p["x"], n_clients=4)
        >>> simulated = pb.Privacy(epsilon=4, noise="simulation")
        >>> runs = [pb.run(problem, pb.DPFTSDE(), privacy=simulated, rounds=2, seed=s) for s in (0, 1)]
        >>> compare(runs, data="simulated").rows()[0].seeds
        2
    """
    results = [run if isinstance(run, Record) else load(run, ledger=ledger) for run in runs]
    if not results:
        raise ConfigurationError("give at least one run to compare")
    groups: dict[str, list[Record]] = {}
    for result in results:
        groups.setdefault(digest(_identity(result.spec)), []).append(result)
    measured = all(result.has_clients for result in results)
    labels = _labels(list(groups.values()))
    settings = [_grouped(label, group, measured=measured) for label, group in zip(labels, groups.values(), strict=True)]
    if measured:
        for index, (setting, group) in enumerate(zip(tuple(settings), groups.values(), strict=True)):
            of = setting.label if len(groups) > 1 else ""
            made = {kind: _control(setting, group, kind, control_name(kind, of)) for kind in OWN_CONTROLS}
            own = {kind: arm for kind, arm in made.items() if arm is not None}
            named = {kind: arm.label for kind, arm in own.items()}
            settings[index] = replace(setting, alone=named.get("local", ""), noise_only=named.get("zeroed", ""))
            settings += own.values()
    seeded = any(r.plan.noise_source == "simulation" for r in results)
    found = Comparison(name=name, data=data, measure=measure, settings=tuple(settings), seeded=seeded)
    shared = results[0].spec.ledger
    if shared is None or any(r.spec.ledger != shared for r in results):
        return found
    return composed(found, results[0].ledger.book(), shared)


def _identity(spec: Spec) -> JsonObject:
    return {key: value for key, value in spec.identity().items() if key not in {"seed", "ledger", "attendance"}}


def _labels(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Name settings by what differs, and by the folders of their runs, which tell runs of one configuration apart."""
    tables = [flat({"name": group[0].spec.name} | _identity(group[0].spec)) for group in groups]
    names = list(dict.fromkeys(key for table in tables for key in table))
    differing = [key for key in names if len({repr(table.get(key)) for table in tables}) > 1]
    telling = [key for key in differing if key in ("name", "privacy.epsilon", "algorithm.type", "rounds")]
    asked = telling or differing[:3]
    found = []
    for index, (group, table) in enumerate(zip(groups, tables, strict=True)):
        words = ", ".join(_said(key, table.get(key)) for key in asked) or group[0].spec.name
        folders = ", ".join(record.directory.name for record in group if record.directory is not None)
        found.append(f"{index + 1}: {words}" + (f" ({folders})" if folders else ""))
    return found


def _said(key: str, value: object) -> str:
    return str(value) if key in ("name", "algorithm.type") else f"{key.rpartition('.')[2]}={value}"


def _grouped(label: str, group: Sequence[Record], *, measured: bool) -> Setting:
    spec, plan = group[0].spec, group[0].plan
    curves = [result.best_so_far() if measured else np.empty(0) for result in group]
    if len({len(curve) for curve in curves}) > 1:
        raise RunError(f"runs of {spec.name!r} have different lengths; finish them before comparing")
    kind: Kind = "zeroed" if spec.control is not None else "non-private" if plan.noise_source == "none" else "private"
    pairs = zip(group, curves, strict=True)
    found = [summary(result, {"score": curve} if measured else {}) for result, curve in pairs]
    return setting_of(
        dict(zip(_seeds(group), found, strict=True)),
        label=label,
        kind=kind if plan.releases else "local",
        curve="score",
    )


def _seeds(group: Sequence[Record]) -> Sequence[int]:
    known = [result.spec.seed for result in group if result.spec.seed is not None]
    return known if len(set(known)) == len(group) else range(len(group))


def _control(setting: Setting, group: Sequence[Record], kind: Control, label: str) -> Setting | None:
    """PRIVATE: a control of a setting's runs, where every one of them kept its evaluations."""
    paths = [record.home.control_path(kind, "npz") for record in group if record.directory is not None]
    if setting.kind != "private" or len(paths) < len(group) or not all(path.exists() for path in paths):
        return None
    arms = [read_history(path) for path in paths]
    curves = [mean_best_so_far(arm) for arm in arms]
    if len({len(curve) for curve in curves}) > 1:
        return None
    if kind == "local":
        setting = replace(setting, epsilon=0.0, strict_epsilon=0.0, noise_multipliers=(), releases=0)
    return replace(
        setting,
        label=label,
        kind=kind,
        curves=np.array(curves),
        evaluations=np.array([arm.evaluations.mean() for arm in arms]),
    )
