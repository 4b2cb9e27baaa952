"""The verdict on sharing: a gain over clients who share nothing, and whether chance alone could show it.

Every verdict compares on pairs (seeds, or the clients of one run), because whoever runs on an easy deal of the data
does so in both arms. Whoever shares pays, so the burden of proof is on sharing: it "helped" only where a one-sided
t-test at 5 % says so, adjusted for the number of settings that were tried. Over seeds, whose numbers are means over
clients, that is Student's; over clients, whose differences may be lopsided, the test for such differences has to say
so, too (Hall 1992, On the removal of skewness by transformation), which would cost few seeds their power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

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
class RunCost:
    """What one run of a setting costs.

    Attributes:
        epsilon: Smallest valid epsilon of one run; None where it is infinite, 0 where
            nothing is released.
        delta: Of that epsilon.
        strict_epsilon: The same at ``strict_delta``.
        strict_delta: min(1e-5, 1/(10 N)), whatever delta was asked for.
        noise_multipliers: Of the planned releases, each once; empty without noise.
        releases: Planned releases.
    """

    epsilon: float | None = 0.0
    delta: float = 0.0
    strict_epsilon: float | None = 0.0
    strict_delta: float = 0.0
    noise_multipliers: tuple[float, ...] = ()
    releases: int = 0

    def cost(self) -> dict[str, Any]:
        """Give these fields alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(RunCost)}


@dataclass(frozen=True, kw_only=True)
class Setting(RunCost):
    """One setting over its seeds, and what one run of it costs.

    Attributes:
        label: Shown in tables.
        kind: A private setting, or one of the controls.
        overrides: What distinguishes it.
        seeds: Seeds, ``(n_seeds,)``.
        curves: Mean over clients of what the comparison measures (best score so far, regret or
            loss) after initialisation and every round, ``(n_seeds, n_rounds + 1)``; None where
            it may not be shown. PRIVATE if the clients' data are.
        older: Versions and days of the cells that other code made; empty where all are today's code's.
    """

    label: str
    kind: Kind
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
    ours, theirs = _on_seeds(first, second, measure)
    if not len(ours):
        raise ConfigurationError(f"{first.label!r} and {second.label!r} share no seed; pair them on the same seeds")
    found = verdict_of_pairs(ours, theirs, over="seeds", measure=measure, are_means=True)
    either = None if found.p_helped is None or found.p_hurt is None else 2 * min(found.p_helped, found.p_hurt)
    return Difference(
        first=first.label,
        second=second.label,
        mean=found.gain,
        standard_error=found.standard_error,
        p_value=None if either is None else min(1.0, either),
        n_seeds=found.pairs,
    )


def _on_seeds(first: Setting, second: Setting, measure: Measure) -> tuple[FloatArray, FloatArray]:
    """Two settings' numbers on the seeds that both have."""
    ours = dict(zip(first.seeds, first.utilities(measure).tolist(), strict=True))
    theirs = dict(zip(second.seeds, second.utilities(measure).tolist(), strict=True))
    common = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seed] for seed in common]), np.array([theirs[seed] for seed in common])


Answer = Literal["helped", "hurt", "made no difference beyond noise", "is not known to help"]
LEVEL = 0.05
AT_THE_END, OVER_ROUNDS = "score at the end", "mean score over rounds"
_MEASURED: dict[Measure, str] = {"final": AT_THE_END, "mean over rounds": OVER_ROUNDS}
SCORES = "diagnostics.json"  # of a run's private folder: best scores of the run and of its controls


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Sharing held against not sharing, on pairs.

    Attributes:
        setting: Label of what shares.
        alone: Label of what it is held against.
        gain: Mean over pairs of the gain by sharing, in units of what is measured; positive where sharing was better.
        standard_error: Of that mean; None where nothing says how large the noise is.
        p_helped: Probability of so large a gain where sharing does nothing; None as above.
        p_hurt: The same of so large a loss.
        pairs: Number of pairs.
        over: Name of the pairs, such as ``"seeds"``.
        measure: What is compared, such as ``"score at the end"``.

    Example:
        >>> import numpy as np
        >>> sharing, alone = np.array([0.7, 0.8, 0.75, 0.8]), np.array([0.5, 0.61, 0.56, 0.6])
        >>> found = verdict_of_pairs(sharing, alone, over="clients", measure="score at the end")
        >>> found.answer, round(found.gain, 3), found.pairs
        ('helped', 0.195, 4)
    """

    setting: str
    alone: str
    gain: float
    standard_error: float | None
    p_helped: float | None
    p_hurt: float | None
    pairs: int
    over: str
    measure: str

    @property
    def answer(self) -> Answer:
        """The verdict in words."""
        if self.p_helped is None or self.p_hurt is None:
            return "is not known to help"
        if self.p_helped < LEVEL:
            return "helped"
        return "hurt" if self.p_hurt < LEVEL else "made no difference beyond noise"

    @property
    def p_value(self) -> float | None:
        """One-sided, of what the verdict says: of so large a loss where sharing hurt, else of so large a gain."""
        return self.p_hurt if self.answer == "hurt" else self.p_helped

    @property
    def text(self) -> str:
        """The verdict with its numbers, in one line."""
        if self.standard_error is None or self.p_helped is None or self.p_hurt is None:
            return (
                f"sharing {self.answer}: {self.measure} {self.gain:+.3g} beside {self.alone}; one pair alone can't say "
                f"how large the noise is, so compare several {self.over}"
            )
        found = f"{self.measure} {self.gain:+.3g}, standard error {self.standard_error:.2g}, beside {self.alone}"
        chance = f"{self.pairs} {self.over}, one-sided p = {min(self.p_helped, self.p_hurt):.2g}"
        return f"sharing {self.answer}: {found} ({chance})"


def verdict_of_pairs(
    sharing: FloatArray,
    alone: FloatArray,
    *,
    over: str,
    measure: str,
    names: tuple[str, str] = ("this run", "the same clients alone"),
    larger_is_better: bool = True,
    are_means: bool = False,
) -> Verdict:
    """Hold sharing against not sharing, pair by pair; pairs without two finite numbers are left out.

    Args:
        sharing: Numbers with sharing, ``(n_pairs,)``.
        alone: Numbers without, ``(n_pairs,)``.
        over: Name of the pairs.
        measure: What is compared, in words.
        names: Labels of the two.
        larger_is_better: Whether a larger number is the better one.
        are_means: Whether numbers are means over many clients, whose differences are not lopsided.

    Raises:
        ConfigurationError: If no pair is left.
    """
    gains = (sharing - alone) * (1.0 if larger_is_better else -1.0)
    gains = gains[np.isfinite(gains)]
    if not len(gains):
        raise ConfigurationError(f"{names[0]!r} and {names[1]!r} have no finite pair of {over} to compare")
    mean, error = float(gains.mean()), standard_error(gains)
    return Verdict(
        setting=names[0],
        alone=names[1],
        gain=mean,
        standard_error=error,
        p_helped=_p_above(gains, error, are_means=are_means),
        p_hurt=_p_above(-gains, error, are_means=are_means),
        pairs=len(gains),
        over=over,
        measure=measure,
    )


def _p_above(gains: FloatArray, error: float | None, *, are_means: bool) -> float | None:
    """Probability of so large a mean by chance, by Student's t, and the larger one of it and of Hall's over clients.

    Where all pairs agree to the last digit (scores of few values) a t-test would be certain; the signs of so
    few pairs are not.
    """
    count, mean = len(gains), float(gains.mean())
    if error is None:
        return None
    if error == 0:
        return float(0.5**count) if mean > 0 else 1.0
    from scipy.special import stdtr

    student = mean / error
    statistic = student if count <= 2 or are_means else min(student, _without_skew(gains, student))
    return float(stdtr(count - 1, -statistic))


def _without_skew(gains: FloatArray, student: float) -> float:
    """Student's t with the skewness of its law taken off by a cubic that keeps the order (Hall 1992, eq. 2.8).

    The sample's skewness is unbiased in its third moment and 1 + 2.5 / n times that, because of few lopsided numbers it
    comes out too small: with it 20 to 100 of them are called helpful by chance in 5 % (tests of verdicts).
    """
    count, centred = len(gains), gains - gains.mean()
    third = float((centred**3).sum()) * count / ((count - 1) * (count - 2))
    skew = third / float(gains.std(ddof=1)) ** 3 * (1.0 + 2.5 / count)
    s = student / math.sqrt(count)
    return math.sqrt(count) * (s + skew * s**2 / 3 + skew**2 * s**3 / 27 + skew / (6 * count))


def best_alone(settings: Sequence[Setting], measure: Measure) -> Setting | None:
    """Give the best of the settings that share nothing, which anybody could have for free; None if there is none."""
    sign = 1.0 if curve_of(measure) == "score" else -1.0
    alone = [s for s in settings if s.kind == "local" and s.curves is not None]
    return max(alone, key=lambda s: sign * float(s.utilities(measure).mean()), default=None)


def verdicts(settings: Sequence[Setting], measure: Measure) -> tuple[Verdict, ...]:
    """Hold every private setting against the best that shares nothing for as many rounds, on the seeds both have.

    Where none has as many rounds it is the best of all that share nothing. Where sharing does nothing anywhere, at most
    5 % of comparisons call any of their settings helpful: p is adjusted for their number (Holm 1979). Empty without a
    setting that shares nothing, or without utilities.
    """
    found = []
    shown = [(s, s.curves.shape[1]) for s in settings if s.curves is not None]
    for setting, length in shown:
        if setting.kind != "private":
            continue
        # More rounds would be another question.
        alone = best_alone([s for s, n in shown if n == length], measure) or best_alone(settings, measure)
        if alone is not None and set(setting.seeds) & set(alone.seeds):
            verdict = verdict_of_pairs(
                *_on_seeds(setting, alone, measure),
                over="seeds",
                measure=_MEASURED.get(measure, measure),
                names=(setting.label, alone.label),
                larger_is_better=curve_of(measure) == "score",
                are_means=True,
            )
            found.append(verdict)
    helped, hurt = _holm([v.p_helped for v in found]), _holm([v.p_hurt for v in found])
    return tuple(replace(v, p_helped=p, p_hurt=q) for v, p, q in zip(found, helped, hurt, strict=True))


def _holm(found: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted by Holm's step-down rule; what has none keeps none."""
    order = sorted((p, index) for index, p in enumerate(found) if p is not None)
    adjusted: list[float | None] = list(found)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
