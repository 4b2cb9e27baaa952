"""Naming the best setting within a budget, and whether its lead is more than noise."""

from __future__ import annotations

from privbo.comparisons.comparison import Comparison, Difference, Recommendation, Setting, difference
from privbo.protocol.errors import ConfigurationError


def recommend(comparison: Comparison, budget: float) -> Recommendation:
    """The private setting with the best mean utility whose run costs at most ``budget``.

    Raises:
        ConfigurationError: If none is affordable, or the data is private: choosing by
            utility would look at people again without paying.
    """
    if comparison.data == "private":
        raise ConfigurationError(
            "the settings were compared on private data, and naming the best one publishes something about it; "
            "pay for the choice with a [selection] table in a sweep, or compare on public data"
        )
    fitting = affordable(comparison, budget)
    best = max(fitting, key=lambda s: float(s.utilities(comparison.utility).mean()))
    gaps = [difference(best, other, comparison.utility) for other in fitting if other is not best]
    lead = min(gaps, key=lambda gap: gap.mean, default=None)
    beyond = lead is not None and lead.is_significant
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
