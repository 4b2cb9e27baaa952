"""Finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from privbo.comparisons.cells import digest
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.results import setting_of
from privbo.comparisons.run_cell import summary
from privbo.comparisons.setting import Data, Kind, Setting
from privbo.comparisons.sweep import composed
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.settings import JsonObject
from privbo.runs.record import Record, load
from privbo.runs.spec import Spec


def compare(
    runs: Sequence[Record | str | Path],
    *,
    data: Data = "private",
    name: str = "runs",
    measure: Literal["mean over rounds", "final"] = "mean over rounds",
) -> Comparison:
    """Compare finished runs; runs that differ in their seed only are one setting.

    A population's ledger that all runs charged is priced as a whole. Where a run's evaluations are not on
    this machine (no private folder) prices alone are compared.

    Args:
        runs: Records or their directories.
        data: Whose data the runs saw. A run doesn't know, so unless you say otherwise its
            clients' scores are private: in this object, and never in what is written for others.
        name: Shown in the page's title.
        measure: What a setting is judged by.

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
    results = [run if isinstance(run, Record) else load(run) for run in runs]
    if not results:
        raise ConfigurationError("give at least one run to compare")
    groups: dict[str, list[Record]] = {}
    for result in results:
        groups.setdefault(digest(_identity(result.spec)), []).append(result)
    measured = all(result.has_clients for result in results)
    settings = tuple(_grouped(index, group, measured=measured) for index, group in enumerate(groups.values()))
    seeded = any(r.plan.noise_source == "simulation" for r in results)
    found = Comparison(name=name, data=data, measure=measure, settings=settings, seeded=seeded)
    shared = results[0].spec.ledger
    if shared is None or any(r.spec.ledger != shared for r in results):
        return found
    return composed(found, shared, settings[0].safe_delta)


def _identity(spec: Spec) -> JsonObject:
    return {key: value for key, value in spec.identity().items() if key not in {"seed", "ledger", "attendance"}}


def _label(index: int, group: Sequence[Record]) -> str:
    """A setting's name with the folders of its runs, so that runs of one configuration are told apart."""
    folders = [result.directory.name for result in group if result.directory is not None]
    return f"{index + 1}: {group[0].spec.name}" + (f" ({', '.join(folders)})" if folders else "")


def _grouped(index: int, group: Sequence[Record], *, measured: bool) -> Setting:
    spec, plan = group[0].spec, group[0].plan
    curves = [result.best_so_far() if measured else np.empty(0) for result in group]
    if len({len(curve) for curve in curves}) > 1:
        raise RunError(f"runs of {spec.name!r} have different lengths; finish them before comparing")
    known = [result.spec.seed for result in group if result.spec.seed is not None]
    seeds = known if len(set(known)) == len(group) else range(len(group))
    kind: Kind = "non-private" if plan.noise_source == "none" else "private"
    pairs = zip(group, curves, strict=True)
    found = [summary(result, {"score": curve} if measured else {}) for result, curve in pairs]
    return setting_of(
        dict(zip(seeds, found, strict=True)),
        label=_label(index, group),
        kind=kind if plan.releases else "local",
        curve="score",
    )
