"""PRIVATE: utility that needs clients' data; a report shows it only where it is asked for.

Everything here comes from a run's private folder or from its objectives, and no epsilon
covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from privbo.protocol.files import load_arrays, read_json
from privbo.protocol.messages import FloatArray
from privbo.runs.manifest import RunDirectory

NOTE = (
    "Computed from clients' own scores. Publishing any of it breaks the guarantee above; it is here because this "
    "run's private folder lies on this machine."
)
LABELS = {"private": "this run", "local": "local only, nothing shared", "zeroed": "clients' sum set to zero"}


def diagnostics(home: RunDirectory, best_values: FloatArray | Callable[[], FloatArray] | None = None) -> dict[str, Any]:
    """PRIVATE: best score of every client, mean best-score curves of the run and its controls, regret.

    Args:
        home: The run's directory.
        best_values: Best attainable score per client, for regret; None leaves regret out.
    """
    curves = read_json(home.private / "diagnostics.json")["mean_best_so_far"] if _has_curves(home) else {}
    best = _best(home)
    found: dict[str, Any] = {
        "note": NOTE,
        "mean_best_score": {LABELS.get(name, name): curve for name, curve in curves.items()},
        "best_score_per_client": [[client, None if np.isnan(b) else float(b)] for client, b in enumerate(best)],
        "regret": None,
    }
    if best_values is not None and len(best):
        attainable = np.asarray(best_values() if callable(best_values) else best_values, dtype=np.float64)
        found["regret"] = _regret(attainable, best, found["mean_best_score"])
    return found


def _has_curves(home: RunDirectory) -> bool:
    return (home.private / "diagnostics.json").exists()


def _best(home: RunDirectory) -> FloatArray:
    if not home.evaluations_path.exists():
        return np.empty(0)
    values = load_arrays(home.evaluations_path)["values"].astype(np.float64)
    best = np.where(np.isfinite(values), values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)


def _regret(attainable: FloatArray, best: FloatArray, curves: Mapping[str, list[float]]) -> dict[str, Any]:
    top = float(attainable.mean())
    return {
        "mean_attainable_score": top,
        "simple_regret": float(np.nanmean(attainable - best)),
        "cumulative_regret": {name: float(np.sum(top - np.array(curve[1:]))) for name, curve in curves.items()},
    }
