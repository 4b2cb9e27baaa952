"""What one cell of a sweep does, in a process of its own."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privbo.comparisons.comparison import Kind
from privbo.plans.prices import finite
from privbo.plans.privacy import NoPrivacy, Privacy, SharedLedger, default_delta
from privbo.protocol.errors import ConfigurationError
from privbo.runs.config import build, parse
from privbo.runs.record import RunDirectory
from privbo.runs.result import Result, run


@dataclass(frozen=True, kw_only=True)
class Content:
    """A cell's configuration and what it stands for."""

    content: Mapping[str, Any]
    kind: Kind
    label: str


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what settings warn of: the sweep has said it once, in the process of who asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@_quiet()
def run_public(cell: Content) -> dict[str, Any]:
    """A simulated run in memory: seeded noise, no guarantee, nobody charged."""
    job = build(parse(cell.content))
    privacy = job.privacy
    if isinstance(privacy, Privacy):
        privacy = dataclasses.replace(privacy, noise="simulation")
    result = run(
        job.problem,
        job.algorithm.local() if cell.kind == "local" else job.algorithm,
        privacy=NoPrivacy() if cell.kind == "non-private" else privacy,
        rounds=job.config.rounds,
        seed=job.config.seed,
        control="zeroed" if cell.kind == "zeroed" else None,
        device=job.config.device,
        attendance=job.attendance,
        name=job.config.name,
    )
    return _summary(cell, result)


@_quiet()
def run_private(cell: Content, home: Path, ledger: SharedLedger) -> dict[str, Any]:
    """PRIVATE: a run with secure noise that charges the population's ledger; resumes what a crash left.

    Raises:
        ConfigurationError: If the cell asks for simulated noise or none.
        BudgetExceeded: If the population's ledger can't pay for it.
    """
    job = build(parse(cell.content))
    if not isinstance(job.privacy, Privacy) or job.privacy.noise != "secure":
        raise ConfigurationError(f"{cell.label}: cells on private data need privacy with secure noise")
    result = run(
        job.problem,
        job.algorithm,
        privacy=job.privacy,
        rounds=job.config.rounds,
        seed=job.config.seed,
        directory=home,
        resume=RunDirectory(home).config_path.exists(),
        ledger=ledger,
        device=job.config.device,
        attendance=job.attendance,
        name=job.config.name,
    )
    values = result.clients.values
    return _summary(cell, result) | {"best_per_client": [finite(float(v)) for v in _best(values)]}


def _best(values: Any) -> Any:  # noqa: ANN401  # numpy in, numpy out
    import numpy as np

    return np.where(np.isfinite(values), values, -np.inf).max(axis=1)


def _summary(cell: Content, result: Result) -> dict[str, Any]:
    plan = result.config["plan"]
    at = default_delta(result.config["problem"]["n_clients"])
    return {
        "label": cell.label,
        "kind": cell.kind,
        "seed": result.config["seed"],
        "curve": result.best_so_far().tolist(),
        "epsilon": finite(result.epsilon()) if plan["releases"] else 0.0,
        "delta": result.delta,
        "strict_epsilon": finite(result.epsilon(at)) if plan["releases"] else 0.0,
        "strict_delta": at,
        "noise_multiplier": plan["noise_multiplier"],
        "releases": plan["releases"],
    }
