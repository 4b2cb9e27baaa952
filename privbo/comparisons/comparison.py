"""What privacy buys and costs across settings: the frontier, paired differences, a recommendation.

Plain data and arithmetic; ``privbo.comparisons.sweep`` fills it, ``privbo.reports.compare_page`` draws it.

Utilities are clients' own scores. Over private data no epsilon covers them, so whatever is
exported leaves them out (``exportable``); what a choice released and paid for stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.frames import frame_of
from privbo.protocol.messages import FloatArray

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Kind = Literal["private", "local", "non-private", "zeroed"]
Utility = Literal["mean over rounds", "final"]
Data = Literal["public", "simulated", "proxy", "private"]


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
        curves: Mean best score over clients after initialisation and every round,
            ``(n_seeds, n_rounds + 1)``; None where it may not be shown. PRIVATE if the
            clients' data are.
    """

    label: str
    kind: Kind
    epsilon: float | None
    delta: float
    strict_epsilon: float | None
    strict_delta: float
    noise_multiplier: float | None
    releases: int
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...]
    curves: FloatArray | None

    def utilities(self, utility: Utility) -> FloatArray:
        """One number per seed.

        Raises:
            ConfigurationError: If they were left out.
        """
        if self.curves is None:
            raise ConfigurationError(f"{self.label!r}: utilities over private data were left out; nobody paid for them")
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

    Attributes:
        name: Shown in the page's title.
        data: Whose data the utilities come from.
        utility: What a setting is judged by.
        settings: Private settings, then controls.
        seeded: Whether noise came from a seed, so that the runs protect nobody.
        composed: Epsilon of every cell together by accountant, for private data; else None.
        composed_delta: Of that epsilon.
        recommendation: If one was asked for.
    """

    name: str
    data: Data
    utility: Utility
    settings: tuple[Setting, ...]
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

    def exportable(self) -> Comparison:
        """What may be published: everything, or over private data all but utilities that nobody paid for."""
        if self.data != "private":
            return self
        return replace(self, settings=tuple(replace(s, curves=None) for s in self.settings))

    def rows(self) -> list[dict[str, Any]]:
        """One row per setting, JSON-able."""
        return [_row(setting, self.utility) for setting in self.settings]

    def differences(self) -> list[Difference]:
        """Every private setting against every other setting, on common seeds; none without utilities."""
        found: list[Difference] = []
        if not self.shows_utility:
            return found
        for index, first in enumerate(self.private):
            others = [*self.private[index + 1 :], *(s for s in self.settings if s.kind != "private")]
            found += [difference(first, other, self.utility) for other in others]
        return found

    def frame(self) -> pd.DataFrame:
        """One row per setting.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        return frame_of(self.rows())

    def figure(self) -> go.Figure:
        """The frontier as a Plotly figure."""
        import plotly.graph_objects as go

        from privbo.reports.compare_page import frontier

        return go.Figure(frontier(self))


def _row(setting: Setting, utility: Utility) -> dict[str, Any]:
    price = {
        "setting": setting.label,
        "kind": setting.kind,
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "strict_epsilon": setting.strict_epsilon,
        "strict_delta": setting.strict_delta,
        "noise_multiplier": setting.noise_multiplier,
        "releases": setting.releases,
        "seeds": len(setting.seeds),
    }
    if setting.curves is None:
        return price
    values = setting.utilities(utility)
    return price | {
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


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """Everything about a comparison as plain JSON-able data."""
    chosen = comparison.recommendation
    return {
        "name": comparison.name,
        "data": comparison.data,
        "utility": comparison.utility,
        "settings": [
            row | {"overrides": dict(setting.overrides)} | _by_seed(setting, comparison.utility)
            for row, setting in zip(comparison.rows(), comparison.settings, strict=True)
        ],
        "differences": [asdict(difference) for difference in comparison.differences()],
        "composed_epsilon": comparison.composed,
        "composed_delta": comparison.composed_delta,
        "recommendation": None if chosen is None else asdict(chosen),
    }


def _by_seed(setting: Setting, utility: Utility) -> dict[str, Any]:
    if setting.curves is None:
        return {}
    values = setting.utilities(utility).tolist()
    return {
        "by_seed": dict(zip(map(str, setting.seeds), values, strict=True)),
        "curve": setting.curves.mean(axis=0).tolist(),
    }
