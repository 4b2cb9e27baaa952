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
from privbo.plans.privacy import NoPrivacy, SharedLedger, default_delta
from privbo.protocol.errors import ConfigurationError
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import Record
from privbo.runs.spec import Spec


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
    spec = Spec.from_dict(cell.content).loaded()
    result = run_spec(
        dataclasses.replace(
            spec,
            algorithm=spec.algorithm.local() if cell.kind == "local" else spec.algorithm,
            privacy=NoPrivacy() if cell.kind == "non-private" else spec.privacy.simulated(),
            control="zeroed" if cell.kind == "zeroed" else None,
        ),
        None,
    )
    return _summary(cell, result)


@_quiet()
def run_private(cell: Content, home: Path, ledger: SharedLedger) -> dict[str, Any]:
    """PRIVATE: a run with secure noise that charges the population's ledger; resumes what a crash left.

    Raises:
        ConfigurationError: If the cell asks for simulated noise or none.
        BudgetExceeded: If the population's ledger can't pay for it.
    """
    spec = Spec.from_dict(cell.content).loaded()
    if spec.privacy.noise_source != "secure":
        raise ConfigurationError(f"{cell.label}: cells on private data need privacy with secure noise")
    spec = dataclasses.replace(spec, ledger=ledger)
    result = run_spec(spec, home, resume=RunDirectory(home).config_path.exists())
    values = result.clients.values
    return _summary(cell, result) | {"best_per_client": [finite(float(v)) for v in _best(values)]}


def _best(values: Any) -> Any:  # noqa: ANN401  # numpy in, numpy out
    import numpy as np

    return np.where(np.isfinite(values), values, -np.inf).max(axis=1)


def _summary(cell: Content, result: Record) -> dict[str, Any]:
    plan = result.plan
    at = default_delta(plan.n_clients)
    return {
        "label": cell.label,
        "kind": cell.kind,
        "seed": result.spec.seed,
        "curve": result.best_so_far().tolist(),
        "epsilon": finite(result.epsilon()) if plan.releases else 0.0,
        "delta": result.delta,
        "strict_epsilon": finite(result.epsilon(at)) if plan.releases else 0.0,
        "strict_delta": at,
        "noise_multiplier": plan.noise_multiplier,
        "releases": plan.releases,
    }
