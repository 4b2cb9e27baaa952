"""Choosing a setting within a budget: by utility, or on private data paid for.

Sharing nothing is always a candidate, at price 0.

Naming the best of settings over private data publishes something about it, so there clients'
scores leave through the door: every client answers with one vector, its best score under each
setting (the mean over seeds), scaled to [-1, 1]; what is released is the noisy mean over
clients, charged to the population's ledger. The choice is post-processing of that release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from accountant.events import Adjacency
from accountant.ledger import Ledger
from accountant.wording import upper_text
from privbo.comparisons.cells import digest
from privbo.comparisons.comparison import Comparison, Recommendation
from privbo.comparisons.payment import quoted_at
from privbo.comparisons.results import Kept
from privbo.comparisons.setting import Difference, Setting, difference
from privbo.comparisons.verdict import Verdict, adjusted, verdict_of_release, verdicts
from privbo.door.door import Door
from privbo.door.mechanism import Mechanism, mechanism_for
from privbo.door.noise import SecureNoise
from privbo.plans.shared_ledger import SharedLedger
from privbo.plans.spending import Agree, agree_to_all, spending
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request
from privbo.protocol.settings import Positive, settings


@settings(table="selection")
class Selection:
    """Price and range of a choice on private data.

    Attributes:
        noise_multiplier: Of the one release that the choice is made from.
        low: Smallest possible score, public; lower ones count as this.
        high: Largest possible score, public.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    noise_multiplier: Positive
    low: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    high: Annotated[float, Field(allow_inf_nan=False)] = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigurationError(f"selection: low={self.low!r} must lie below high={self.high!r}")


def recommend(comparison: Comparison, budget: float) -> Recommendation:
    """Name the setting with the best mean utility whose run costs at most ``budget`` at the safe delta.

    Sharing nothing is a candidate at price 0, and what shares has to beat it beyond noise: a budget that is spent is
    gone, whatever it brought.

    Raises:
        ConfigurationError: If none is affordable, if no setting shares nothing, or the data is private: choosing by
            utility would look at people again without paying.
    """
    if comparison.data == "private":
        raise ConfigurationError(
            "the settings were compared on private data, and naming the best one publishes something about it; "
            "pay for the choice with a [selection] table in a sweep, or compare on public data"
        )
    sign, measure = 1.0 if comparison.larger_is_better else -1.0, comparison.measure
    fitting = affordable(comparison, budget)
    free = _not_sharing(comparison)
    alone = max(free, key=lambda s: sign * float(s.utilities(measure).mean()))
    best = max(fitting, key=lambda s: sign * float(s.utilities(measure).mean()))
    found = {v.setting: v for v in verdicts([*fitting, alone], measure)}.get(best.label)
    if found is None or found.answer != "helped":
        words = f"{best.label} has no seed in common with it" if found is None else f"with {best.label} {found.text}"
        return _of_nothing(alone, budget, words, found)
    gaps = [difference(best, other, measure) for other in (*fitting, *free) if other is not best]
    lead = min(gaps, key=lambda gap: sign * gap.mean, default=None)
    beyond = lead is not None and lead.is_significant
    return Recommendation(
        label=best.label,
        epsilon=float(best.strict_epsilon or 0.0),
        delta=best.strict_delta,
        budget=budget,
        lead=lead,
        beyond_noise=beyond,
        because=f"{found.text}; {_lead_words(lead, beyond)}",
        verdict=found,
    )


def _not_sharing(comparison: Comparison) -> Sequence[Setting]:
    """Settings that share nothing, of which there must be one: nobody pays for what may be worse than nothing.

    Raises:
        ConfigurationError: If there is none.
    """
    free = [s for s in comparison.settings if s.kind == "local"]
    if not free:
        raise ConfigurationError(
            "no setting here shares nothing, so the best one may be worse than not sharing, which costs nothing; "
            "add controls = ['local'] (to a sweep, or to the runs' configuration)"
        )
    return free


def _of_nothing(
    alone: Setting,
    budget: float,
    because: str,
    verdict: Verdict | None,
    released: Mapping[str, float] | None = None,
    stddev: float | None = None,
) -> Recommendation:
    """Recommend not to share."""
    return Recommendation(
        label=alone.label,
        epsilon=0.0,
        delta=alone.strict_delta,
        budget=budget,
        lead=None,
        beyond_noise=False,
        because=f"it costs nothing, and {because}",
        released=released,
        released_stddev=stddev,
        verdict=verdict,
    )


def affordable(comparison: Comparison, budget: float) -> Sequence[Setting]:
    """Private settings whose run costs at most ``budget`` at the one safe delta, min(1e-5, 1/(10 N)).

    Raises:
        ConfigurationError: If there is none, or the settings speak of populations of different sizes.
    """
    deltas = sorted({s.strict_delta for s in comparison.private})
    if len(deltas) > 1:
        raise ConfigurationError(
            f"the settings have no safe delta in common ({', '.join(upper_text(d) for d in deltas)}: their "
            "numbers of clients differ); compare settings of one population"
        )
    priced = [s for s in comparison.private if s.strict_epsilon is not None]
    fitting = [s for s in priced if s.strict_epsilon is not None and s.strict_epsilon <= budget * (1 + 1e-9)]
    if not fitting:
        least = min((s.strict_epsilon for s in priced if s.strict_epsilon is not None), default=math.inf)
        at = f" at delta {upper_text(deltas[0])}" if deltas else ""
        raise ConfigurationError(
            f"no setting that shares costs at most epsilon={budget:g}{at}; the cheapest costs {upper_text(least, 6)} "
            "(sharing nothing costs nothing)"
        )
    return fitting


def _lead_words(lead: Difference | None, beyond: bool) -> str:
    if lead is None:
        return "no other setting fits the budget"
    if lead.standard_error is None or lead.p_value is None:
        return f"it leads {lead.second} by {abs(lead.mean):.4g} on one seed, which cannot say how large the noise is"
    gap = f"it leads {lead.second} by {abs(lead.mean):.4g} ± {lead.standard_error:.2g}"
    words = f"{gap} over {lead.n_seeds} paired seeds (p = {lead.p_value:.2g})"
    return f"{words}: {'beyond' if beyond else 'not beyond'} noise"


def paid_recommendation(
    comparison: Comparison,
    cells: Mapping[str, Sequence[Kept]],
    selection: Selection,
    shared: SharedLedger,
    budget: float,
    agree: Agree = agree_to_all,
) -> Recommendation:
    """Name the best affordable setting by a noisy mean score, charged to the population's ledger.

    Args:
        comparison: The settings and what they cost.
        cells: PRIVATE: every setting's finished cells.
        selection: Noise and range of the choice.
        shared: The population's ledger.
        budget: Largest epsilon of one run of the setting.
        agree: Called with the price before it is charged; not for a choice that was paid for already.

    Raises:
        ConfigurationError: If no setting fits the budget.
        BudgetExceeded: If the ledger can't pay for the choice; nothing was released.
    """
    fitting = affordable(comparison, budget)
    asked = [*fitting, *_not_sharing(comparison)]
    scores = _scores([cells[s.label] for s in asked], selection)
    name = digest([[kept.name for kept in cells[s.label]] for s in asked])
    delta = quoted_at(shared, comparison.settings[0].safe_delta)
    with Ledger.open(shared.path) as ledger:
        means, stddev = _release(scores, f"selection-{name}", selection, ledger, agree, delta)
    return _chosen(asked, means, stddev, budget, n_sharing=len(fitting))


def _chosen(
    asked: Sequence[Setting], means: FloatArray, stddev: float, budget: float, *, n_sharing: int
) -> Recommendation:
    """Choose by released means: of the first ``n_sharing``, or none where these do not beat the rest beyond noise."""
    released = {s.label: float(mean) for s, mean in zip(asked, means, strict=True)}
    error = stddev * math.sqrt(2.0)
    best, *behind = sorted(asked[:n_sharing], key=lambda s: -released[s.label])
    alone = max(asked[n_sharing:], key=lambda s: released[s.label])
    gains = [released[s.label] - released[alone.label] for s in (best, *behind)]
    found = adjusted(
        [
            verdict_of_release(gain, error, (s.label, alone.label))
            for s, gain in zip((best, *behind), gains, strict=True)
        ]
    )[0]
    paid = "the choice was charged to the population's ledger"
    if found.answer != "helped":
        return _of_nothing(alone, budget, f"with {best.label} {found.text}; {paid}", found, released, stddev)
    second = max((*behind, alone), key=lambda s: released[s.label])
    gap = released[best.label] - released[second.label]
    lead = Difference(
        first=best.label,
        second=second.label,
        mean=gap,
        standard_error=error,
        p_value=math.erfc(gap / error / math.sqrt(2.0)),
        n_seeds=len(best.seeds),
    )
    return Recommendation(
        label=best.label,
        epsilon=float(best.strict_epsilon or 0.0),
        delta=best.strict_delta,
        budget=budget,
        lead=lead,
        beyond_noise=lead.is_significant,
        because=(
            f"{found.text}; its noisy mean best score leads {lead.second} by {gap:.4g}, "
            f"{'beyond' if lead.is_significant else 'not beyond'} the choice's own noise of {error:.2g}; {paid}"
        ),
        released=released,
        released_stddev=stddev,
        verdict=found,
    )


def _scores(settings: Sequence[Sequence[Kept]], selection: Selection) -> FloatArray:
    """PRIVATE: every client's mean best score over seeds in [-1, 1], ``(n_clients, n_settings)``.

    A run in which a client failed counts as its lowest. Who failed in all of them is NaN: whoever is absent
    contributes nothing, here as in the runs, because one neighbouring world has to hold for all of them.
    """
    if any(not k.result.best_per_client for cells in settings for k in cells):
        raise ConfigurationError(
            "an older privbo kept no score per client of what shares nothing; run the sweep once more"
        )
    best = [np.array([k.result.best_per_client for k in cells], dtype=np.float64) for cells in settings]
    scores = [np.clip(np.where(np.isnan(b), selection.low, b), selection.low, selection.high) for b in best]
    middle, half = (selection.low + selection.high) / 2, (selection.high - selection.low) / 2
    absent = np.asarray(np.isnan(np.concatenate(best)).all(axis=0))
    means = np.stack([score.mean(axis=0) for score in scores], axis=1)
    return np.where(absent[:, None], np.nan, (means - middle) / half)


def _release(
    scores: FloatArray, run: str, selection: Selection, ledger: Ledger, agree: Agree, delta: float
) -> tuple[FloatArray, float]:
    """The noisy mean score of every setting and the noise's standard deviation, both in units of the score."""
    n_clients, n_settings = scores.shape
    request = Request(
        dim=n_settings,
        clipping_norm=math.sqrt(n_settings),
        weights=np.full((1, n_clients), 1.0 / n_clients),
    )

    def mechanism(wanted: Request) -> Mechanism:
        return mechanism_for(wanted, noise_multiplier=selection.noise_multiplier, adjacency=Adjacency.ZERO_OUT)

    if not ledger.entries(run):
        what = f"naming the best of {n_settings} settings"
        agree(spending(ledger, delta, what, charges={run: mechanism(request).event()}))
    door = Door(ledger, run=run, noise=SecureNoise(), mechanism=mechanism, n_clients=n_clients)
    ticket = door.open(0, request)
    release = ticket.release if ticket.release is not None else door.close(ticket, scores)[0]
    middle, half = (selection.low + selection.high) / 2, (selection.high - selection.low) / 2
    return middle + release.values[0] * half, release.noise_stddev * half
