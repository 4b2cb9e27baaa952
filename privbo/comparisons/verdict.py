"""The verdict on sharing: a gain over clients alone and over noise alone, and whether chance could show it.

A verdict needs three arms on the same pairs (seeds, or the clients of one run): what shares, its own algorithm's
clients alone, who make as many evaluations, and the same noise around a sum of zeros. Sharing costs privacy, so the
burden of proof is on sharing: it "helped" only where a one-sided t-test at 5 % finds a gain over both, adjusted for the
number of settings that were tried. Over seeds, whose numbers are means over clients, that is Student's; over clients,
whose differences may be lopsided, the test for such differences has to say so, too (Hall 1992, On the removal of
skewness by transformation), which would cost few seeds their power. Its 5 % hold to a percentage point from 20 clients
on whose differences are at most as lopsided as exponential ones; of ten such 6 % are called helpful, of three 12 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

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
        strict_delta: min(1e-5, 1/(10 N)), N clients or records, whatever delta was asked for.
        noise_multipliers: Of the planned releases, each once; empty without noise.
        releases: Planned releases.
        hidden: Whom one run hides where one record is the unit, and whom it does not; empty else.
    """

    epsilon: float | None = 0.0
    delta: float = 0.0
    strict_epsilon: float | None = 0.0
    strict_delta: float = 0.0
    noise_multipliers: tuple[float, ...] = ()
    releases: int = 0
    hidden: str = ""

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
        evaluations: Evaluations per client, failed ones too, ``(n_seeds,)``; None where they were not kept or may
            not be shown. PRIVATE as the curves.
        valued: Clients with a value, of whom the curves are means, as ``curves``; None as ``evaluations``. PRIVATE.
        alone: Label of its own algorithm's clients alone; empty where they are missing, as the next.
        noise_only: Label of the setting's noise-only control.
        older: Versions and days of the cells that other code made; empty where all are today's code's.
    """

    label: str
    kind: Kind
    overrides: JsonObject
    seeds: tuple[int, ...]
    curves: FloatArray | None
    evaluations: FloatArray | None = None
    valued: FloatArray | None = None
    alone: str = ""
    noise_only: str = ""
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
            raise ConfigurationError(f"{self.label!r}: no charge covers utilities over private data; left out")
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
    """Standard error of the mean, 0 where floating-point dust alone tells values apart; None for a single value."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return 0.0 if error < 1e-12 * np.abs(values).max() else error


def difference(first: Setting, second: Setting, measure: Measure) -> Difference:
    """Paired difference on the seeds both settings have.

    Raises:
        ConfigurationError: If they share none.
    """
    common = sorted(set(first.seeds) & set(second.seeds))
    if not common:
        raise ConfigurationError(f"{first.label!r} and {second.label!r} share no seed; pair them on the same seeds")
    ours, theirs = (_at(setting, setting.utilities(measure), common) for setting in (first, second))
    mean, error, above, below = _tested(ours - theirs, are_means=True)
    return Difference(
        first=first.label,
        second=second.label,
        mean=mean,
        standard_error=error,
        p_value=None if above is None or below is None else min(1.0, 2 * min(above, below)),
        n_seeds=len(common),
    )


def _at(setting: Setting, values: FloatArray, seeds: Sequence[int]) -> FloatArray:
    """Values of a setting's seeds, at some of them."""
    return values[[setting.seeds.index(seed) for seed in seeds]]


Answer = Literal["helped", "hurt", "made no difference beyond noise", "is not known to help"]
LEVEL = 0.05
AT_THE_END, OVER_ROUNDS = "score at the end", "mean score over rounds"
VALUED = "clients with a value"
_ENDS = ("final", "last regret", "last loss")  # measures that rounds, however many, don't enter
_MEASURED: dict[Measure, str] = {"final": AT_THE_END, "mean over rounds": OVER_ROUNDS}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Sharing held against the same clients alone and against noise alone, on pairs.

    Attributes:
        setting: Label of what shares.
        alone: Label of its own algorithm's clients alone.
        noise_only: Label of its noise-only control.
        gain: Mean over pairs of the gain over clients alone, in units of what is measured; positive where sharing was
            better. None without that arm.
        standard_error: Of that mean; None where nothing says how large the noise is.
        noise_gain: The same over noise alone.
        noise_error: Of that mean.
        p_helped: Probability of so large a gain where sharing does nothing: the larger of the two over either arm.
            None where there is no verdict.
        p_hurt: The same of so large a loss versus clients alone.
        pairs: Number of pairs.
        over: Name of the pairs, such as ``"seeds"``.
        measure: What is compared, such as ``"score at the end"``.
        because: Why there is no verdict; empty where there is one.

    Example:
        >>> import numpy as np
        >>> sharing, alone = np.array([0.7, 0.8, 0.75, 0.8]), np.array([0.5, 0.61, 0.56, 0.6])
        >>> as_many = {"evaluations per client": (np.full(4, 9), np.full(4, 9))}
        >>> found = verdict_of(sharing, alone, alone + 0.01, as_many, over="clients", measure="score at the end")
        >>> found.answer, round(found.gain, 3), found.pairs
        ('helped', 0.195, 4)
        >>> verdict_of(sharing, alone, sharing, as_many, over="clients", measure="score at the end").answer
        'made no difference beyond noise'
    """

    setting: str
    alone: str
    noise_only: str
    gain: float | None
    standard_error: float | None
    noise_gain: float | None
    noise_error: float | None
    p_helped: float | None
    p_hurt: float | None
    pairs: int
    over: str
    measure: str
    because: str = ""

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
        """The verdict with its numbers, or why there is none, in one line."""
        if self.because:
            return f"sharing {self.answer}: {self.because}"
        alone = f"{self.gain:+.3g}, standard error {self.standard_error:.2g}, versus {self.alone}"
        noise = f"{self.noise_gain:+.3g}, standard error {self.noise_error:.2g}, versus {self.noise_only}"
        chance = f"{self.pairs} {self.over}, one-sided p = {self.p_value:.2g}"
        return f"sharing {self.answer}: {self.measure} {alone}; {noise} ({chance})"


Effort: TypeAlias = Mapping[str, tuple[FloatArray | None, FloatArray | None]]
"""What sharing and clients alone spend on every pair, ``(n_pairs,)`` each, by its name; None where it was not kept."""


def verdict_of(
    sharing: FloatArray,
    alone: FloatArray | None,
    noise_only: FloatArray | None,
    effort: Effort,
    *,
    over: str,
    measure: str,
    names: tuple[str, str, str] = ("this run", "the same clients alone", "noise alone"),
    larger_is_better: bool = True,
    are_means: bool = False,
) -> Verdict:
    """Hold sharing against not sharing and against noise alone, pair by pair; pairs with a missing number are left out.

    Args:
        sharing: Numbers with sharing, ``(n_pairs,)``.
        alone: Numbers of its own algorithm's clients alone; None where that arm is missing.
        noise_only: Numbers of the noise-only control; None where that arm is missing.
        effort: What has to be equal with sharing and alone, such as evaluations per client.
        over: Name of the pairs.
        measure: What is compared, in words.
        names: Labels of the three.
        larger_is_better: Whether a larger number is the better one.
        are_means: Whether numbers are means over many clients, whose differences are not lopsided.
    """
    sign = 1.0 if larger_is_better else -1.0
    given = [None if other is None else sign * (sharing - other) for other in (alone, noise_only)]
    there = np.all([np.isfinite(gains) for gains in (sharing, *given) if gains is not None], axis=0)
    pairs = int(there.sum())
    nothing = None, None, None, None
    ours, noise = (
        nothing if gains is None or not pairs else _tested(gains[there], are_means=are_means) for gains in given
    )
    because = _no_verdict(alone, noise_only, effort, over, pairs)
    if sharing.size and not np.isfinite(sharing).any():
        because = f"no {over.split(maxsplit=1)[0].removesuffix('s')} has a value"
    helped = [p for p in (ours[2], noise[2]) if p is not None]
    return Verdict(
        setting=names[0],
        alone=names[1],
        noise_only=names[2],
        gain=ours[0],
        standard_error=ours[1],
        noise_gain=noise[0],
        noise_error=noise[1],
        p_helped=None if because else max(helped),
        p_hurt=None if because else ours[3],
        pairs=pairs,
        over=over,
        measure=measure,
        because=because,
    )


def _tested(gains: FloatArray, *, are_means: bool) -> tuple[float, float | None, float | None, float | None]:
    """Mean gain, its standard error, and probabilities of so large a gain and of so large a loss by chance."""
    above, below = (_p_above(side, are_means=are_means) for side in (gains, -gains))
    return float(gains.mean()), standard_error(gains), above, below


def _no_verdict(alone: FloatArray | None, noise_only: FloatArray | None, effort: Effort, over: str, pairs: int) -> str:
    """Why three arms allow no verdict, and what to do; empty where they do."""
    missing = [] if alone is not None else ["the same clients alone"]
    missing += [] if noise_only is not None else ["the same noise around a sum of zeros"]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f'{" and ".join(missing)} {verb} missing; add controls = ["local", "zeroed"]'
    for name, (ours, theirs) in effort.items():
        if ours is None or theirs is None:
            return f"the number of {name} was not kept; run it again with this version of privbo"
        if not np.array_equal(ours, theirs):
            return f"{ours.mean():.6g} {name} versus {theirs.mean():.6g} alone"
    if pairs < 2:
        return f"{pairs} of the {over} can't say how large the noise is; compare several {over}"
    return ""


def _p_above(gains: FloatArray, *, are_means: bool) -> float | None:
    """Probability of so large a mean by chance, by Student's t, and the larger one of it and of Hall's over clients."""
    count, mean, error = len(gains), float(gains.mean()), standard_error(gains)
    if error is None:
        return None
    if count <= 2 or are_means or error == 0:
        return chance_below(-mean, error, count)
    return chance_below(-min(mean / error, _without_skew(gains, mean / error)), 1.0, count)


def chance_below(mean: float, error: float, count: int) -> float:
    """Probability, by Student's t, that a mean lies so far below 0 by chance; 1 of a single value.

    Where all values agree to the last digit (scores of few values) a t-test would be certain; the signs of so
    few are not.
    """
    if count < 2:
        return 1.0
    if error == 0:
        return float(0.5**count) if mean < 0 else 1.0
    from scipy.special import stdtr

    return float(stdtr(count - 1, mean / error))


def _without_skew(gains: FloatArray, student: float) -> float:
    """Student's t with the skewness of its law taken off by a cubic that keeps the order (Hall 1992, eq. 2.8).

    The sample's skewness is unbiased in its third moment and 1 + 2.5 / n times that, because of few lopsided numbers it
    comes out too small: with it 20 to 100 of them are called helpful by chance in 5 % (tests of verdicts, of laws as
    lopsided as the exponential one at most).
    """
    count, centred = len(gains), gains - gains.mean()
    third = float((centred**3).sum()) * count / ((count - 1) * (count - 2))
    skew = third / float(gains.std(ddof=1)) ** 3 * (1.0 + 2.5 / count)
    s = student / math.sqrt(count)
    return math.sqrt(count) * (s + skew * s**2 / 3 + skew**2 * s**3 / 27 + skew / (6 * count))


def best_alone(settings: Sequence[Setting], measure: Measure) -> Setting | None:
    """Give the best of the settings that share nothing, which costs no privacy; None if there is none."""
    alone = [s for s in settings if s.kind == "local" and s.curves is not None]
    return max(alone, key=lambda s: merit(s, measure), default=None)


def merit(setting: Setting, measure: Measure) -> float:
    """Give the mean over seeds, the better the larger; minus infinity where some seed has no value."""
    mean = float(setting.utilities(measure).mean())
    return -math.inf if math.isnan(mean) else mean if curve_of(measure) == "score" else -mean


def verdicts(settings: Sequence[Setting], measure: Measure) -> tuple[Verdict, ...]:
    """Hold every private setting against its own clients alone and its own noise alone, on the seeds that all have.

    Where sharing does nothing anywhere, at most 5 % of comparisons call any of their settings helpful: p is adjusted
    for their number (Holm 1979). Empty without utilities.
    """
    named = {setting.label: setting for setting in settings}
    found = [
        _over_seeds(setting, named.get(setting.alone), named.get(setting.noise_only), measure)
        for setting in settings
        if setting.kind == "private" and setting.curves is not None
    ]
    helped, hurt = holm([v.p_helped for v in found]), holm([v.p_hurt for v in found])
    return tuple(replace(v, p_helped=p, p_hurt=q) for v, p, q in zip(found, helped, hurt, strict=True))


def _over_seeds(setting: Setting, alone: Setting | None, noise_only: Setting | None, measure: Measure) -> Verdict:
    arms = [setting, *(arm for arm in (alone, noise_only) if arm is not None)]
    common = sorted(set.intersection(*(set(arm.seeds) for arm in arms)))

    def scores(arm: Setting) -> FloatArray:
        return _at(arm, arm.utilities(measure), common)

    def spent(arm: Setting | None) -> Mapping[str, FloatArray | None]:
        if arm is None or arm.curves is None:
            return {}
        at_end = measure.endswith(_ENDS)
        valued = None if arm.valued is None else arm.valued[:, -1] if at_end else arm.valued.mean(axis=1)
        made = {"evaluations per client": arm.evaluations, VALUED: valued}
        made |= {} if at_end else {"rounds": np.full(len(arm.seeds), arm.curves.shape[1] - 1.0)}
        return {name: None if each is None else _at(arm, each, common) for name, each in made.items()}

    return verdict_of(
        scores(setting),
        None if alone is None else scores(alone),
        None if noise_only is None else scores(noise_only),
        {name: (made, spent(alone).get(name)) for name, made in spent(setting).items()},
        over="seeds",
        measure=_MEASURED.get(measure, measure),
        names=(setting.label, setting.alone, setting.noise_only),
        larger_is_better=curve_of(measure) == "score",
        are_means=True,
    )


def holm(found: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's step-down rule; what has none keeps none.

    Example:
        >>> holm([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    order = sorted((p, index) for index, p in enumerate(found) if p is not None)
    adjusted: list[float | None] = list(found)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted
