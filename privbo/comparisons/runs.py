"""Finished runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privbo.comparisons.cells import digest
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.setting import Data, Kind, Setting
from privbo.comparisons.sweep import composed
from privbo.plans import prices
from privbo.plans.privacy import SharedLedger, default_delta
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.runs.result import Result, load


def compare(
    runs: Sequence[Result | str | Path],
    *,
    data: Data = "private",
    name: str = "runs",
    measure: Literal["mean over rounds", "final"] = "mean over rounds",
) -> Comparison:
    """Compare finished runs; runs that differ in their seed only are one setting.

    A population's ledger that all runs charged is priced as a whole.

    Args:
        runs: Results or their directories.
        data: Whose data the runs saw. A run doesn't know, so unless you say otherwise its
            clients' scores are private: in this object, and never in what is written for others.
        name: Shown in the page's title.
        measure: What a setting is judged by.

    Raises:
        RunError: If a run's evaluations are not on this machine.
        ConfigurationError: If nothing is given or runs of one setting share a seed.
    """
    results = [run if isinstance(run, Result) else load(run) for run in runs]
    if not results:
        raise ConfigurationError("give at least one run to compare")
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(digest(_identity(result.config)), []).append(result)
    settings = tuple(_grouped(index, group) for index, group in enumerate(groups.values()))
    seeded = any(r.config["plan"]["noise_source"] == "simulation" for r in results)
    found = Comparison(name=name, data=data, measure=measure, settings=settings, seeded=seeded)
    shared = results[0].config["ledger"]
    if shared is None or any(r.config["ledger"] != shared for r in results):
        return found
    return composed(found, SharedLedger(**{k: v for k, v in shared.items() if k != "type"}), settings[0].delta)


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("problem", "algorithm", "privacy", "rounds", "control")
    return {key: config[key] for key in kept} | {"name": config["name"]}


def _grouped(index: int, group: Sequence[Result]) -> Setting:
    first = group[0]
    plan = first.config["plan"]
    curves = [result.best_so_far() for result in group]
    if len({len(curve) for curve in curves}) > 1:
        raise RunError(f"runs of {first.config['name']!r} have different lengths; finish them before comparing")
    seeds = [result.config["seed"] for result in group]
    distinct = None not in seeds and len(set(seeds)) == len(seeds)
    kind: Kind = "non-private" if plan["noise_source"] == "none" and plan["releases"] else "private"
    if plan["releases"] == 0:
        kind = "local"
    at = default_delta(first.config["problem"]["n_clients"])
    return Setting(
        label=f"{index + 1}: {first.config['name']}",
        kind=kind,
        epsilon=prices.finite(first.epsilon()),
        delta=first.delta,
        strict_epsilon=prices.finite(first.epsilon(at)) if plan["releases"] else 0.0,
        strict_delta=at,
        noise_multiplier=plan["noise_multiplier"],
        releases=plan["releases"],
        overrides={},
        seeds=tuple(seeds) if distinct else tuple(range(len(group))),
        curves=np.array(curves),
    )
