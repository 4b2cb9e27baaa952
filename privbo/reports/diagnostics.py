"""PRIVATE: utility that needs clients' data; a report shows it only where it is asked for.

Everything here comes from a run's private folder or from its objectives, and no epsilon
covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from privbo.comparisons.verdict import AT_THE_END, OVER_ROUNDS, VALUED, Verdict, verdict_of
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.runs.best import read_history
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import best_so_far_by_client, level, mean_best_so_far, mean_of_finite
from privbo.runs.spec import Control

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
            every round, by arm (the run and its controls); NaN where no client has one.
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
    paths = {"private": home.evaluations_path, **{name: home.control_path(name, "npz") for name in get_args(Control)}}
    arms = {name: read_history(path) for name, path in paths.items() if path.exists()}
    curves = {LABELS[name]: mean_best_so_far(arm) for name, arm in arms.items()}
    # Who shares nothing may need fewer rounds, and stays where it ended.
    labelled = dict(zip(curves, level(list(curves.values())).tolist(), strict=True))
    best = best_per_client(arms["private"]) if "private" in arms else np.empty(0)
    regret = None
    if best_values is not None and len(best):
        attainable = np.asarray(best_values() if callable(best_values) else best_values, dtype=np.float64)
        missed = [mean_of_finite(attainable[:, None] - best_so_far_by_client(arm), axis=0) for arm in arms.values()]
        regret = Regret(
            mean_attainable_score=float(attainable.mean()),
            simple_regret=float(mean_of_finite(attainable - best, axis=0)),
            cumulative_regret=dict(zip(curves, level(missed)[:, 1:].sum(axis=1).tolist(), strict=True)),
        )
    verdicts = [_verdict(arms, mean_per_client, OVER_ROUNDS), _verdict(arms, best_per_client, AT_THE_END)]
    if unfinished := home.interrupted:
        verdicts = [replace(verdict, because=unfinished) for verdict in verdicts]
    return Diagnostics(
        mean_best_score=labelled,
        best_score_per_client=tuple(enumerate(best.tolist())),
        regret=regret,
        first_errors=home.failures(),
        verdicts=tuple(verdicts),
    )


def _verdict(arms: Mapping[str, ClientHistory], score: Callable[[ClientHistory], FloatArray], measure: str) -> Verdict:
    """Hold a run against its controls over the clients that have a score in all arms."""
    scores, effort = {name: score(arm) for name, arm in arms.items()}, dict[str, tuple[FloatArray, FloatArray]]()
    if {"private", "local"} <= arms.keys():
        ours, theirs = arms["private"], arms["local"]
        effort["evaluations per client"] = ours.evaluations.astype(np.float64), theirs.evaluations.astype(np.float64)
        there = {name: np.isfinite(found).sum(keepdims=True, dtype=np.float64) for name, found in scores.items()}
        effort[VALUED] = there["private"], there["local"]
        if measure == OVER_ROUNDS:
            rounds = [np.array([len(np.unique(arm.rounds)) - 1.0]) for arm in (ours, theirs)]
            effort["rounds"] = rounds[0], rounds[1]
    return verdict_of(
        scores.get("private", np.empty(0)),
        scores.get("local"),
        scores.get("zeroed"),
        effort,
        over="clients of one run",
        measure=measure,
        names=(LABELS["private"], LABELS["local"], LABELS["zeroed"]),
    )


def mean_per_client(history: ClientHistory) -> FloatArray:
    """PRIVATE: give every client's best score so far, on average over rounds, ``(n_clients,)``; NaN without one."""
    after = best_so_far_by_client(history)
    return mean_of_finite(after[:, 1:] if after.shape[1] > 1 else after, axis=1)


def best_per_client(history: ClientHistory) -> FloatArray:
    """PRIVATE: give every client's best value, NaN without one, ``(n_clients,)``."""
    return np.asarray(np.fmax.reduce(history.values, axis=1, initial=np.nan))
