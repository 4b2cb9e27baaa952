"""What privacy buys and costs across settings: the frontier, paired differences, a recommendation.

Plain data and arithmetic; ``privbo.comparisons.sweep`` fills it, ``privbo.reports`` draws it.

Utilities are clients' own scores. Over private data no epsilon covers them, so whatever is
exported leaves them out (``exportable``); what a choice released and paid for stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, cast

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
        noise_multiplier: Of the plan; None without noise.
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
    noise_multiplier: float | None
    releases: int
    overrides: JsonObject
    seeds: tuple[int, ...]
    curves: FloatArray | None
    older: tuple[str, ...] = ()

    def utilities(self, measure: Measure) -> FloatArray:
        """Give one number per seed, ``(n_seeds,)``.

        Raises:
            ConfigurationError: If they were left out.
        """
        if self.curves is None:
            raise ConfigurationError(f"{self.label!r}: utilities over private data were left out; nobody paid for them")
        if measure == "mean over rounds":
            return np.asarray(self.curves[:, 1:].mean(axis=1))
        return np.asarray(self.curves[:, 1:].sum(axis=1) if measure.startswith("cumulative") else self.curves[:, -1])


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting's line in a table.

    Attributes:
        setting: Its label; the next fields are the setting's own.
        seeds: Number of its seeds.
        utility: Mean over seeds of what is measured; None where it may not be shown, as the next two.
        standard_error: Of that mean; None for a single seed.
        final: Mean over seeds of the curve's end.
    """

    setting: str
    kind: Kind
    epsilon: float | None
    delta: float
    strict_epsilon: float | None
    strict_delta: float
    noise_multiplier: float | None
    releases: int
    seeds: int
    utility: float | None = None
    standard_error: float | None = None
    final: float | None = None


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


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The best setting within a budget.

    Attributes:
        label: Its name.
        epsilon: What one run of it costs.
        budget: What was allowed.
        lead: Its lead over the runner-up, or None if it is alone.
        beyond_noise: Whether that lead is significant at 5 % (paired over seeds, or against
            the selection's own noise where the selection was paid for).
        because: In words.
        released: Noisy mean best score by setting, where the choice was paid for; else None.
        released_stddev: Of the noise in each of them.
    """

    label: str
    epsilon: float
    budget: float
    lead: Difference | None
    beyond_noise: bool
    because: str
    released: Mapping[str, float] | None = None
    released_stddev: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings side by side.

    ``privbo.reports.compare_page`` draws it (``figures``, ``write_comparison``) and
    ``privbo.reports.tables`` writes it (``frame``, ``markdown``, ``csv_text``, ``latex``).

    Attributes:
        name: Shown in the page's title.
        data: Whose data the utilities come from.
        measure: What a setting is judged by.
        settings: Private settings, then controls.
        contrasts: Pairs of labels whose difference is asked for; empty for every private setting
            against every other setting.
        statement: What the comparison is to show, in a sentence.
        seeded: Whether noise came from a seed, so that the runs protect nobody.
        composed: Epsilon of every cell together by accountant, for private data; else None.
        composed_delta: Of that epsilon.
        recommendation: If one was asked for.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda n, p: -p["x"], n_clients=4)
        >>> simulated = pb.Privacy(epsilon=4, noise="simulation")
        >>> runs = [pb.run(problem, pb.DPFTSDE(), privacy=simulated, rounds=2, seed=s) for s in (0, 1)]
        >>> comparison = pb.compare(runs, data="simulated")
        >>> [(row.setting, round(row.epsilon), row.seeds) for row in comparison.rows()]
        [('1: problem', 4, 2)]
    """

    name: str
    data: Data
    measure: Measure
    settings: tuple[Setting, ...]
    contrasts: tuple[tuple[str, str], ...] = ()
    statement: str = ""
    seeded: bool = False
    composed: Mapping[str, float | None] | None = None
    composed_delta: float | None = None
    recommendation: Recommendation | None = None

    @property
    def private(self) -> tuple[Setting, ...]:
        """The settings that were swept."""
        return tuple(s for s in self.settings if s.kind == "private")

    @property
    def shows_utility(self) -> bool:
        """Whether the settings' own utilities are there."""
        return all(s.curves is not None for s in self.settings)

    @property
    def larger_is_better(self) -> bool:
        """Whether a larger number is the better one: of scores, not of regret and loss."""
        return curve_of(self.measure) == "score"

    def exportable(self) -> Comparison:
        """Leave out what may not be published: over private data the utilities, which nobody paid for."""
        if self.data != "private":
            return self
        return replace(self, settings=tuple(replace(s, curves=None) for s in self.settings))

    def rows(self) -> list[Row]:
        """Give one row per setting."""
        return [_row(setting, self.measure) for setting in self.settings]

    def differences(self) -> list[Difference]:
        """Subtract on common seeds: the contrasts, or every private setting and every other; none without utilities."""
        if not self.shows_utility:
            return []
        named = {setting.label: setting for setting in self.settings}
        pairs = [(named[a], named[b]) for a, b in self.contrasts if a in named and b in named]
        if not self.contrasts:
            for index, first in enumerate(self.private):
                others = [*self.private[index + 1 :], *(s for s in self.settings if s.kind != "private")]
                pairs += [(first, other) for other in others]
        return [difference(first, second, self.measure) for first, second in pairs]

    def to_dict(self) -> JsonObject:
        """Give everything as JSON."""
        rows = zip(self.rows(), self.settings, strict=True)
        chosen = self.recommendation
        content: dict[str, object] = {
            "name": self.name,
            "data": self.data,
            "utility": self.measure,
            "statement": self.statement,
            "settings": [_row_dict(row) | _details(setting, self.measure) for row, setting in rows],
            "differences": [asdict(difference) for difference in self.differences()],
            "composed_epsilon": self.composed,
            "composed_delta": self.composed_delta,
            "recommendation": None if chosen is None else asdict(chosen),
        }
        return cast("JsonObject", content)


def _row(setting: Setting, measure: Measure) -> Row:
    values = None if setting.curves is None else setting.utilities(measure)
    return Row(
        setting=setting.label,
        kind=setting.kind,
        epsilon=setting.epsilon,
        delta=setting.delta,
        strict_epsilon=setting.strict_epsilon,
        strict_delta=setting.strict_delta,
        noise_multiplier=setting.noise_multiplier,
        releases=setting.releases,
        seeds=len(setting.seeds),
        utility=None if values is None else float(values.mean()),
        standard_error=None if values is None else standard_error(values),
        final=None if setting.curves is None else float(setting.curves[:, -1].mean()),
    )


def _row_dict(row: Row) -> dict[str, object]:
    content = asdict(row)
    if row.utility is None:
        del content["utility"], content["standard_error"], content["final"]
    return content


def _details(setting: Setting, measure: Measure) -> dict[str, object]:
    details: dict[str, object] = {"overrides": dict(setting.overrides), "older": list(setting.older)}
    if setting.curves is None:
        return details
    by_seed = zip(map(str, setting.seeds), setting.utilities(measure).tolist(), strict=True)
    return details | {"by_seed": dict(by_seed), "curve": setting.curves.mean(axis=0).tolist()}


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


def recommend(comparison: Comparison, budget: float) -> Recommendation:
    """Name the private setting with the best mean utility whose run costs at most ``budget``.

    Raises:
        ConfigurationError: If none is affordable, or the data is private: choosing by
            utility would look at people again without paying.
    """
    if comparison.data == "private":
        raise ConfigurationError(
            "the settings were compared on private data, and naming the best one publishes something about it; "
            "pay for the choice with a [selection] table in a sweep, or compare on public data"
        )
    sign, measure = 1.0 if comparison.larger_is_better else -1.0, comparison.measure
    fitting = affordable(comparison, budget)
    best = max(fitting, key=lambda s: sign * float(s.utilities(measure).mean()))
    gaps = [difference(best, other, measure) for other in fitting if other is not best]
    lead = min(gaps, key=lambda gap: sign * gap.mean, default=None)
    beyond = lead is not None and lead.is_significant
    return Recommendation(
        label=best.label,
        epsilon=float(best.epsilon or 0.0),
        budget=budget,
        lead=lead,
        beyond_noise=beyond,
        because=_lead_words(lead, beyond),
    )


def affordable(comparison: Comparison, budget: float) -> Sequence[Setting]:
    """Private settings whose run costs at most ``budget``.

    Raises:
        ConfigurationError: If there is none.
    """
    fitting = [s for s in comparison.private if s.epsilon is not None and s.epsilon <= budget * (1 + 1e-9)]
    if not fitting:
        least = min((s.epsilon for s in comparison.private if s.epsilon is not None), default=None)
        raise ConfigurationError(f"no setting costs at most epsilon={budget:g}; the cheapest costs {least}")
    return fitting


def _lead_words(lead: Difference | None, beyond: bool) -> str:
    if lead is None:
        return "no other setting fits the budget"
    if lead.standard_error is None or lead.p_value is None:
        return f"it leads {lead.second} by {abs(lead.mean):.4g} on one seed, which says nothing about noise"
    gap = f"it leads {lead.second} by {abs(lead.mean):.4g} ± {lead.standard_error:.2g}"
    words = f"{gap} over {lead.n_seeds} paired seeds (p = {lead.p_value:.2g})"
    return f"{words}: {'beyond' if beyond else 'not beyond'} noise"
