"""Utility against epsilon across settings: the frontier, paired differences, a recommendation.

Plain data and arithmetic; ``privbo.comparisons.sweep`` fills it, ``privbo.reports`` draws it.

Utilities are clients' own scores. Over private data no epsilon covers them, so whatever is
exported leaves them out (``exportable``), and no setting is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from accountant.ledger.pricing import Total
from accountant.wording import upper_text
from privbo.comparisons.verdict import (
    LEVEL,
    Data,
    Difference,
    Kind,
    Measure,
    RunCost,
    Setting,
    Verdict,
    best_alone,
    curve_of,
    difference,
    merit,
    standard_error,
    verdicts,
)
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import JsonObject, fields_of, plain, require_one_of
from privbo.protocol.table import in_two_lines

OF_CLIENTS = ("utility", "standard_error", "final", "evaluations")  # of a row: what clients' own data say
SEEDED = "simulation: seeded noise, no guarantee"


@dataclass(frozen=True, kw_only=True)
class Row(RunCost):
    """A setting's line in a table, with what one run of it costs.

    Attributes:
        setting: Its label.
        kind: The setting's own.
        seeds: Number of its seeds.
        utility: Mean over seeds of what is measured; None where it may not be shown, as the next two.
        standard_error: Of that mean; None for a single seed.
        final: Mean over seeds of the curve's end.
        evaluations: Per client, mean over seeds.
    """

    setting: str
    kind: Kind
    seeds: int
    utility: float | None = None
    standard_error: float | None = None
    final: float | None = None
    evaluations: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The best setting within a budget, which may be to share nothing.

    Attributes:
        label: Its name.
        epsilon: What one run of it costs at ``delta``; 0 of what shares nothing.
        delta: The safe delta, at which all settings are compared whatever delta they ask for.
        budget: What was allowed there.
        lead: Its lead over the runner-up; None where nothing is shared.
        beyond_noise: Whether that lead is significant at 5 %, paired over seeds.
        because: In words.
        verdict: Whether the best setting that shares helped.
    """

    label: str
    epsilon: float = 0.0
    delta: float
    budget: float
    lead: Difference | None = None
    beyond_noise: bool = False
    because: str
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings side by side.

    ``privbo.reports.comparison`` draws it (``figures``, ``write_comparison``) and tabulates it (``table``, ``numbers``,
    ``markdown``).

    Attributes:
        name: Shown in the page's title.
        data: Whose data the utilities come from.
        measure: What a setting is judged by.
        settings: Private settings, then controls.
        contrasts: Pairs of labels whose difference is asked for; empty for every private setting
            against every other setting.
        statement: What the comparison is to show, in a sentence.
        seeded: Whether noise came from a seed, so that the runs protect no client; if not of all, their labels.
        total: Epsilon of everything charged for the population, with its rule, for private data; else None.
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
    seeded: bool | tuple[str, ...] = False
    total: Total | None = None
    recommendation: Recommendation | None = None

    def __post_init__(self) -> None:
        require_one_of(Data, data=self.data)
        require_one_of(Measure, measure=self.measure)

    def __repr__(self) -> str:
        prices = ", ".join("infinite" if s.epsilon is None else upper_text(s.epsilon) for s in self.private)
        deltas = ", ".join(upper_text(delta) for delta in sorted({s.delta for s in self.private}))
        seeds = max(len(s.seeds) for s in self.settings)
        return in_two_lines(
            "Comparison",
            self.name,
            f"{len(self.settings)} settings, {seeds} seeds, {self.measure} on {self.data} data",
            f"epsilon {prices or '0'} at delta {deltas or '-'}",
        )

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
        """Leave out what may not be published: over private data the utilities, which no charge covers."""
        if self.data in ("public", "simulated", "proxy"):
            return self
        bare = tuple(replace(s, curves=None, evaluations=None, valued=None) for s in self.settings)
        return replace(self, settings=bare)

    def rows(self) -> list[Row]:
        """Give one row per setting."""
        found = []
        for setting in self.settings:
            row = Row(setting=setting.label, kind=setting.kind, **setting.cost(), seeds=len(setting.seeds))
            if setting.curves is not None:
                values, final = setting.utilities(self.measure), float(setting.curves[:, -1].mean())
                row = replace(row, utility=float(values.mean()), standard_error=standard_error(values), final=final)
            if setting.evaluations is not None:
                row = replace(row, evaluations=float(setting.evaluations.mean()))
            found.append(row)
        return found

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

    def verdicts(self) -> tuple[Verdict, ...]:
        """Say of every private setting whether sharing helped, or what is missing to know; empty without utilities.

        PRIVATE if the clients' data are: it is computed from their scores.
        """
        return verdicts(self.settings, self.measure) if self.shows_utility else ()

    def to_dict(self) -> JsonObject:
        """Give everything as JSON."""
        rows = zip(self.rows(), self.settings, strict=True)
        content = {
            "name": self.name,
            "data": self.data,
            "utility": self.measure,
            "statement": self.statement,
            "noise": SEEDED if self.seeded else "secret",
            "settings": [_details(row, setting, self.measure) for row, setting in rows],
            "differences": self.differences(),
            "verdicts": [fields_of(v) | {"answer": v.answer} for v in self.verdicts()],
            "total": self.total,
            "recommendation": self.recommendation,
        }
        return cast("JsonObject", plain(content))


def _details(row: Row, setting: Setting, measure: Measure) -> JsonObject:
    content = fields_of(row) | {"overrides": setting.overrides, "older": list(setting.older)}
    if setting.curves is None:
        return {k: v for k, v in content.items() if k not in OF_CLIENTS}
    by_seed = zip(map(str, setting.seeds), setting.utilities(measure).tolist(), strict=True)
    return content | {"by_seed": dict(by_seed), "curve": setting.curves.mean(axis=0).tolist()}


def recommend(comparison: Comparison, budget: float) -> Recommendation:
    """Name the best of the settings that helped and whose run costs at most ``budget`` at the safe delta.

    Sharing nothing is a candidate at price 0, with whatever engine is best at it. What shares has to beat that one
    beyond noise, besides its own clients alone and noise alone: a budget that is spent is gone, whatever it brought.

    Raises:
        ConfigurationError: If no setting shares nothing, the data is private, or populations differ in size.
    """
    require_choice(comparison.data)
    sign, measure = 1.0 if comparison.larger_is_better else -1.0, comparison.measure
    controls = [s for s in comparison.settings if s.kind != "private"]
    alone = best_alone(controls, measure)
    if alone is None:  # nobody pays for what may be worse than nothing
        raise ConfigurationError(
            "no setting here shares nothing, so the best one may be worse than not sharing, which costs nothing; "
            'add controls = ["local", "zeroed"] (to a sweep, or to the runs\' configuration)'
        )
    free = Recommendation(label=alone.label, delta=alone.strict_delta, budget=budget, because="it costs nothing")
    if not comparison.private:
        return replace(free, because=f"{free.because}, and no setting shares anything")
    fitting = _affordable(comparison, budget)
    if not fitting:
        least = min(comparison.private, key=lambda s: math.inf if s.strict_epsilon is None else s.strict_epsilon)
        costs = upper_text(math.inf if least.strict_epsilon is None else least.strict_epsilon, 6)
        at = f"epsilon={budget:g} at delta {upper_text(comparison.private[0].strict_delta)}"
        words = f"no setting that shares costs at most {at}; the cheapest, {least.label}, costs {costs} there"
        return replace(free, because=f"{free.because}, and {words}")
    found = {v.setting: v for v in comparison.verdicts()}
    helped = [s for s in fitting if found[s.label].answer == "helped"]
    best = max(helped or fitting, key=lambda s: merit(s, measure))
    verdict = found[best.label]
    because = f"with {best.label} {verdict.text}"
    if helped and best.alone != alone.label:
        lead = difference(best, alone, measure)
        # The best of several leads by chance more easily than one.
        if lead.p_value is None or sign * lead.mean <= 0 or len(helped) * lead.p_value / 2 >= LEVEL:
            helped, because = [], f"{because}; but {_lead_words(lead, sign)}"
    if not helped:
        return replace(free, because=f"{free.because}, and {because}", verdict=verdict)
    others = (*fitting, *(s for s in controls if s.kind == "local"))
    gaps = [difference(best, other, measure) for other in others if other is not best]
    lead = min(gaps, key=lambda gap: math.inf if math.isnan(gap.mean) else sign * gap.mean)
    return Recommendation(
        label=best.label,
        epsilon=float(best.strict_epsilon or 0.0),
        delta=best.strict_delta,
        budget=budget,
        lead=lead,
        beyond_noise=lead.is_significant,
        because=f"{verdict.text}; {_lead_words(lead, sign)}",
        verdict=verdict,
    )


def require_choice(data: Data) -> None:
    """Refuse to name the best of settings over private data, which would look at people again without a charge.

    Raises:
        ConfigurationError: If the data is private.
    """
    if data == "private":
        raise ConfigurationError(
            "naming the best of settings over private data publishes something about it that no epsilon covers; "
            "compare on public, simulated or proxy data, or let a run choose for all clients: final = 'common'"
        )


def _affordable(comparison: Comparison, budget: float) -> Sequence[Setting]:
    """Private settings whose run costs at most ``budget`` at the one safe delta, min(1e-5, 1/(10 N)).

    Raises:
        ConfigurationError: If the settings speak of populations of different sizes.
    """
    deltas = sorted({s.strict_delta for s in comparison.private})
    if len(deltas) > 1:
        raise ConfigurationError(
            f"the settings have no safe delta in common ({', '.join(upper_text(d) for d in deltas)}: their "
            "numbers of clients differ); compare settings of one population"
        )
    priced = [(s, s.strict_epsilon) for s in comparison.private]
    return [s for s, epsilon in priced if epsilon is not None and epsilon <= budget * (1 + 1e-9)]


def _lead_words(lead: Difference, sign: float) -> str:
    """Say by how much the first of two settings leads or trails; ``sign`` is 1 where a larger number is better."""
    gap = f"it {'leads' if sign * lead.mean >= 0 else 'trails'} {lead.second} by {abs(lead.mean):.4g}"
    if lead.standard_error is None or lead.p_value is None:
        return f"{gap} on one seed, which cannot say how large the noise is"
    words = f"{gap} ± {lead.standard_error:.2g} over {lead.n_seeds} paired seeds (two-sided p = {lead.p_value:.2g})"
    return f"{words}: {'beyond' if lead.is_significant else 'not beyond'} noise"
