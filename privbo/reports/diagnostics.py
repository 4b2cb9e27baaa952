"""PRIVATE: utility that needs clients' data; a report shows it only where it is asked for.

Everything here comes from a run's private folder or from its objectives, and no epsilon
covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privbo.comparisons.verdict import AT_THE_END, OVER_ROUNDS, SCORES, Effort, Verdict, verdict_of
from privbo.protocol.files import load_arrays, read_json
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import best_so_far_by_client

NOTE = (
    "Computed from clients' own scores. Publishing any of it breaks the guarantee above; it is here because this "
    "run's private folder lies on this machine."
)
LABELS = {"private": "this run", "local": "local only, nothing shared", "zeroed": "noise-only control"}


@dataclass(frozen=True, kw_only=True)
class Regret:
    """PRIVATE: distance from the best attainable scores, in units of the score.

    Attributes:
        mean_attainable_score: Mean over clients of the best attainable score.
        simple_regret: Mean over clients of attainable minus best score found.
        cumulative_regret: Sum over rounds of the same for the mean best score, by arm.
    """

    mean_attainable_score: float
    simple_regret: float
    cumulative_regret: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """PRIVATE: scores of a run's clients, not covered by epsilon.

    Attributes:
        mean_best_score: Mean over clients of the best score so far, after initialisation and
            every round, by arm (the run and its controls).
        best_score_per_client: Number and best score of every client; NaN without a finite one.
        regret: Distance from the best attainable scores, where it was asked for.
        first_errors: First error of every client that ever failed, in its own words.
        verdicts: Whether sharing helped: over rounds and at the end; why it is not known where a control is missing.
        note: What all of this is.
    """

    mean_best_score: Mapping[str, Sequence[float]]
    best_score_per_client: tuple[tuple[int, float], ...]
    regret: Regret | None
    first_errors: Mapping[int, str]
    verdicts: tuple[Verdict, ...] = ()
    note: str = NOTE


def diagnostics(home: RunDirectory, best_values: FloatArray | Callable[[], FloatArray] | None = None) -> Diagnostics:
    """PRIVATE: read clients' best scores, mean best-score curves of the run and its controls, and regret.

    Args:
        home: The run's directory.
        best_values: Best attainable score per client, ``(n_clients,)``, for regret; None leaves regret out.
    """
    path = home.private / SCORES
    kept = read_json(path) if path.exists() else {}
    curves = kept.get("mean_best_so_far", {})
    labelled, there = {LABELS.get(name, name): curve for name, curve in curves.items()}, home.evaluations_path
    best = best_per_client(load_arrays(there)["values"].astype(np.float64)) if there.exists() else np.empty(0)
    regret = None
    if best_values is not None and len(best):
        attainable = np.asarray(best_values() if callable(best_values) else best_values, dtype=np.float64)
        top = float(attainable.mean())
        regret = Regret(
            mean_attainable_score=top,
            simple_regret=float(np.nanmean(attainable - best)),
            cumulative_regret={name: float(np.sum(top - np.array(curve[1:]))) for name, curve in labelled.items()},
        )
    verdicts = []
    for key, measure in (("mean_per_client", OVER_ROUNDS), ("best_per_client", AT_THE_END)):
        # Over the clients that have a score in all arms.
        scores = {name: np.array(values, dtype=np.float64) for name, values in kept.get(key, {}).items()}
        verdict = verdict_of(
            scores.get("private", np.empty(0)),
            scores.get("local"),
            scores.get("zeroed"),
            _spent(kept, measure),
            over="clients of one run",
            measure=measure,
            names=(LABELS["private"], LABELS["local"], LABELS["zeroed"]),
        )
        verdicts.append(verdict)
    return Diagnostics(
        mean_best_score=labelled,
        best_score_per_client=tuple(enumerate(best.tolist())),
        regret=regret,
        first_errors=home.failures(),
        verdicts=tuple(verdicts),
    )


def _spent(kept: Mapping[str, Mapping[str, float | Sequence[float]]], measure: str) -> Effort:
    """What the run and its clients alone spent; None of runs that older versions kept."""
    keys = {"evaluations": "evaluations per client"} | ({} if measure == AT_THE_END else {"rounds": "rounds"})

    def of(key: str, arm: str) -> FloatArray | None:
        found = kept.get(key, {}).get(arm)
        return None if found is None else np.atleast_1d(np.asarray(found, dtype=np.float64))

    return {name: (of(key, "private"), of(key, "local")) for key, name in keys.items()}


def mean_per_client(history: ClientHistory) -> FloatArray:
    """PRIVATE: give every client's best score so far, on average over rounds, ``(n_clients,)``; NaN without one."""
    after = best_so_far_by_client(history)
    rounds = after[:, 1:] if after.shape[1] > 1 else after
    seen = np.isfinite(rounds)
    totals = np.where(seen, rounds, 0.0).sum(axis=1)
    return np.where(seen.any(axis=1), totals / np.maximum(seen.sum(axis=1), 1), np.nan)


def best_per_client(values: FloatArray) -> FloatArray:
    """PRIVATE: give every client's best finite value, NaN without one, ``(n_clients,)``."""
    best = np.where(np.isfinite(values), values, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)
