"""One setting of a comparison over its seeds, and paired differences of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import JsonObject

Kind = Literal["private", "local", "non-private", "zeroed"]
Data = Literal["public", "simulated", "proxy", "private"]
Measure = Literal[
    "mean over rounds", "final", "cumulative regret", "last regret", "cumulative loss", "last loss"
]  # fmt: skip


def curve_of(measure: Measure) -> str:
    """Name the curve that a measure reads: ``"score"``, ``"regret"`` or ``"loss"``."""
    return measure.rpartition(" ")[2] if measure.endswith((" regret", " loss")) else "score"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting over its seeds.

    Attributes:
        label: Shown in tables.
        kind: A private setting, or one of the controls.
        epsilon: Smallest valid epsilon of one run; None where it is infinite, 0 where
            nothing is released.
        delta: Of that epsilon.
        strict_epsilon: The same at ``strict_delta``.
        strict_delta: min(1e-5, 1/(10 N)), whatever delta was asked for.
        noise_multipliers: Of the planned releases, each once; empty without noise.
        releases: Planned releases.
        overrides: What distinguishes it.
        seeds: Seeds, ``(n_seeds,)``.
        curves: Mean over clients of what the comparison measures (best score so far, regret or
            loss) after initialisation and every round, ``(n_seeds, n_rounds + 1)``; None where
            it may not be shown. PRIVATE if the clients' data are.
        older: Versions and days of the cells that other code made; empty where all are today's code's.
    """

    label: str
    kind: Kind
    epsilon: float | None
    delta: float
    strict_epsilon: float | None
    strict_delta: float
    noise_multipliers: tuple[float, ...]
    releases: int
    overrides: JsonObject
    seeds: tuple[int, ...]
    curves: FloatArray | None
    older: tuple[str, ...] = ()

    @property
    def safe_delta(self) -> float:
        """The delta that totals of its population are quoted at: its own, and at most ``strict_delta``."""
        return min(self.delta, self.strict_delta)

    def utilities(self, measure: Measure) -> FloatArray:
        """Give one number per seed, ``(n_seeds,)``.

        Raises:
            ConfigurationError: If they were left out.
        """
        if self.curves is None:
            raise ConfigurationError(f"{self.label!r}: utilities over private data were left out; nobody paid for them")
        rounds = self.curves[:, 1:] if self.curves.shape[1] > 1 else self.curves  # of a run that ends where it begins
        if measure == "mean over rounds":
            return np.asarray(rounds.mean(axis=1))
        return np.asarray(rounds.sum(axis=1) if measure.startswith("cumulative") else self.curves[:, -1])


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two settings on the same seeds.

    Attributes:
        first: Label of the one.
        second: Label of the other.
        mean: Mean of (first - second).
        standard_error: Of that mean; None for a single seed.
        p_value: Two-sided, of the paired t-test; None for a single seed.
        n_seeds: Seeds both have.
    """

    first: str
    second: str
    mean: float
    standard_error: float | None
    p_value: float | None
    n_seeds: int

    @property
    def is_significant(self) -> bool:
        """Whether chance alone shows so large a difference in fewer than 5 % of all cases."""
        return self.p_value is not None and self.p_value < 0.05


def standard_error(values: FloatArray) -> float | None:
    """Standard error of the mean; None for a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def difference(first: Setting, second: Setting, measure: Measure) -> Difference:
    """Paired difference on the seeds both settings have.

    Raises:
        ConfigurationError: If they share none.
    """
    ours = dict(zip(first.seeds, first.utilities(measure).tolist(), strict=True))
    theirs = dict(zip(second.seeds, second.utilities(measure).tolist(), strict=True))
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise ConfigurationError(f"{first.label!r} and {second.label!r} share no seed; pair them on the same seeds")
    gaps = np.array([ours[seed] - theirs[seed] for seed in common])
    error = standard_error(gaps)
    return Difference(
        first=first.label,
        second=second.label,
        mean=float(gaps.mean()),
        standard_error=error,
        p_value=_p_value(float(gaps.mean()), error, len(gaps)),
        n_seeds=len(gaps),
    )


def _p_value(mean: float, error: float | None, count: int) -> float | None:
    if error is None:
        return None
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(count - 1, -abs(mean) / error))
