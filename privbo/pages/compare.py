"""What privacy buys and costs across settings: the frontier, paired differences, a recommendation.

Plain data and arithmetic; ``privbo.sweep`` fills it, ``privbo.pages.compare_page`` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from privbo.errors import ConfigurationError
from privbo.protocol import FloatArray

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Kind = Literal["private", "local", "non-private", "zeroed"]
Utility = Literal["mean over rounds", "final"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting over its seeds.

    Attributes:
        label: Shown in tables.
        kind: A private setting, or one of the controls.
        epsilon: Smallest valid epsilon of one run; None where it is infinite, 0 where
            nothing is released.
        delta: Of that epsilon.
        noise_multiplier: Of the plan; None without noise.
        releases: Planned releases.
        overrides: What distinguishes it.
        seeds: Seeds, ``(n_seeds,)``.
        curves: Mean best score over clients after initialisation and every round,
            ``(n_seeds, n_rounds + 1)``.
    """

    label: str
    kind: Kind
    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    releases: int
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...]
    curves: FloatArray

    def utilities(self, utility: Utility) -> FloatArray:
        """One number per seed."""
        return np.asarray(self.curves[:, 1:].mean(axis=1) if utility == "mean over rounds" else self.curves[:, -1])


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
    """

    label: str
    epsilon: float
    budget: float
    lead: Difference | None
    beyond_noise: bool
    because: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings side by side.

    Attributes:
        name: Shown in the page's title.
        data: "public", "simulated", "proxy", or "private": whose data the utilities come from.
        utility: What a setting is judged by.
        settings: Private settings, then controls.
        composed: Epsilon of every cell together by accountant, for private data; else None.
        composed_delta: Of that epsilon.
        recommendation: If one was asked for.
    """

    name: str
    data: str
    utility: Utility
    settings: tuple[Setting, ...]
    composed: Mapping[str, float | None] | None = None
    composed_delta: float | None = None
    recommendation: Recommendation | None = None

    @property
    def private(self) -> tuple[Setting, ...]:
        """The settings that were swept."""
        return tuple(s for s in self.settings if s.kind == "private")

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, JSON-able."""
        return [_row(setting, self.utility) for setting in self.settings]

    def differences(self) -> list[Difference]:
        """Every private setting against every other setting, on common seeds."""
        found = []
        for index, first in enumerate(self.private):
            others = [*self.private[index + 1 :], *(s for s in self.settings if s.kind != "private")]
            found += [difference(first, other, self.utility) for other in others]
        return found

    def frame(self) -> pd.DataFrame:
        """One row per setting.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ConfigurationError("frames need pandas; install privbo[tables]") from None
        return pd.DataFrame(self.rows())

    def figure(self) -> go.Figure:
        """The frontier as a Plotly figure."""
        import plotly.graph_objects as go

        from privbo.pages.compare_page import frontier

        return go.Figure(frontier(self))


def _row(setting: Setting, utility: Utility) -> dict[str, Any]:
    values = setting.utilities(utility)
    return {
        "setting": setting.label,
        "kind": setting.kind,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "noise_multiplier": setting.noise_multiplier,
        "releases": setting.releases,
        "seeds": len(setting.seeds),
        "utility": float(values.mean()),
        "standard_error": standard_error(values),
        "final": float(setting.curves[:, -1].mean()),
    }


def standard_error(values: FloatArray) -> float | None:
    """Standard error of the mean; None for a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def difference(first: Setting, second: Setting, utility: Utility) -> Difference:
    """Paired difference on the seeds both settings have.

    Raises:
        ConfigurationError: If they share none.
    """
    ours = dict(zip(first.seeds, first.utilities(utility).tolist(), strict=True))
    theirs = dict(zip(second.seeds, second.utilities(utility).tolist(), strict=True))
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
    """The private setting with the best mean utility whose run costs at most ``budget``.

    Raises:
        ConfigurationError: If none is affordable, or the data is private: choosing by
            utility would look at people again without paying.
    """
    if comparison.data == "private":
        raise ConfigurationError(
            "the settings were compared on private data, and naming the best one publishes something about it; "
            "pay for the choice with a [selection] table in the sweep, or compare on public data"
        )
    fitting = affordable(comparison, budget)
    best = max(fitting, key=lambda s: float(s.utilities(comparison.utility).mean()))
    gaps = [difference(best, other, comparison.utility) for other in fitting if other is not best]
    lead = min(gaps, key=lambda gap: gap.mean, default=None)
    beyond = lead is not None and lead.p_value is not None and lead.p_value < 0.05
    return Recommendation(
        label=best.label,
        epsilon=float(best.epsilon or 0.0),
        budget=budget,
        lead=lead,
        beyond_noise=beyond,
        because=_lead_words(lead, beyond),
    )


def affordable(comparison: Comparison, budget: float) -> list[Setting]:
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
        return f"it leads {lead.second} by {lead.mean:.4g} on one seed, which says nothing about noise"
    words = f"it leads {lead.second} by {lead.mean:.4g} ± {lead.standard_error:.2g} over {lead.n_seeds} paired seeds"
    return f"{words} (p = {lead.p_value:.2g}): {'beyond' if beyond else 'not beyond'} noise"


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """Everything about a comparison as plain JSON-able data."""
    chosen = comparison.recommendation
    return {
        "name": comparison.name,
        "data": comparison.data,
        "utility": comparison.utility,
        "settings": [
            row
            | {
                "overrides": dict(setting.overrides),
                "by_seed": dict(
                    zip(map(str, setting.seeds), setting.utilities(comparison.utility).tolist(), strict=True)
                ),
                "curve": setting.curves.mean(axis=0).tolist(),
            }
            for row, setting in zip(comparison.rows(), comparison.settings, strict=True)
        ],
        "differences": [asdict(difference) for difference in comparison.differences()],
        "composed_epsilon": comparison.composed,
        "composed_delta": comparison.composed_delta,
        "recommendation": None if chosen is None else asdict(chosen),
    }
