"""Findings of a command, as types: a priced plan, a finished run, a written report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privbo.comparisons.verdict import Verdict
from privbo.plans.counting import SignalToNoise
from privbo.plans.gains import Gain
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision
from privbo.plans.prices import PriceColumn
from privbo.plans.trust import trust_text
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.reports.diagnostics import Diagnostics
from privbo.reports.report import Report
from privbo.runs.best import Best
from privbo.runs.final import Common

Milestones = Mapping[str, Mapping[str, float]]  # mean best score by moment, by arm


@dataclass(frozen=True, kw_only=True)
class PricedPlan:
    """A plan and its price, found without touching any data.

    Attributes:
        name: Of the configuration.
        rounds: Planned rounds.
        plan: The plan.
        epsilon_at: Its price at every delta of interest, the headline's first.
        signal_to_noise: The most that its releases can say, by kind.
        decision: What the run's own policy says; None without one.
    """

    name: str
    rounds: int
    plan: Plan
    epsilon_at: tuple[PriceColumn, ...]
    signal_to_noise: tuple[SignalToNoise, ...] = ()
    decision: Decision | None = None

    def to_dict(self) -> JsonObject:
        """Give plan and price as JSON-able data."""
        found = {} if self.decision is None else {"policy": self.decision.verdict("this policy")}
        return (
            fields_of(self, but=("plan", "decision"))
            | found
            | {
                "n_clients": self.plan.n_clients,
                "plan": self.plan.to_dict(),
                "epsilon": plain(self.epsilon_at[0].epsilon),
                "trust": trust_text(self.plan.privacy),
                "exposures": plain(self.plan.exposures(self.epsilon_at[0].delta)),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A configuration that was tried out: nothing was charged, nothing was written.

    Attributes:
        plan: The plan and its price.
        params: The point that every client evaluated.
        clients: Number of clients that evaluated it: all, those of one site, or none of a run that is refused.
        failures: PRIVATE: the error of every client that failed; None where it was not asked for.
        verdict: What the policy of the run, or of the site, says in one line; None where none was asked.
        refused: Whether it refuses the run.
    """

    plan: PricedPlan
    params: Mapping[str, Value]
    clients: int
    failures: Mapping[int, str] | None
    verdict: str | None = None
    refused: bool = False

    @property
    def passed(self) -> bool:
        """Whether no failure is shown and no policy refuses the run."""
        return not self.failures and not self.refused

    def to_dict(self) -> JsonObject:
        """Give plan, price and point as JSON-able data, and who failed where it was asked for."""
        found = self.plan.to_dict() | {"params": plain(self.params)}
        if self.verdict is not None:
            found["policy"] = self.verdict
        if self.failures is not None:
            note = "private diagnostics, not covered by epsilon"
            found["private_diagnostics"] = {"note": note, "failures": plain(self.failures)}
        return found


@dataclass(frozen=True, kw_only=True)
class Approval:
    """An app's files as a site or guardian reads them before it approves them.

    Attributes:
        party: Name of the site or guardian.
        role: ``"site"`` or ``"guardian"``.
        plan: The plan and its price.
        sites: Number of clients of every site.
        guardians: Signing key of every guardian; empty where the server is trusted.
        run: SHA-256 of run.toml.
        federation: SHA-256 of federation.toml.
        verdict: What the party's own policy says in one line.
        refused: Whether it refuses the run.
        known: Whether the files were approved before.
    """

    party: str
    role: str
    plan: PricedPlan
    sites: Mapping[str, int]
    guardians: Mapping[str, str]
    run: str
    federation: str
    verdict: str
    refused: bool
    known: bool

    def to_dict(self) -> JsonObject:
        """Give plan, price and parties as JSON-able data."""
        return fields_of(self, but=("plan",)) | {"plan": self.plan.to_dict()}


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report, what was asked for beside it, and where it was written.

    Attributes:
        report: The report.
        diagnostics: PRIVATE diagnostics, where they were asked for.
        page: The page; None where none was written.
        statement: One sheet for a board; None where none was asked for.
    """

    report: Report
    diagnostics: Diagnostics | None = None
    page: Path | None = None
    statement: Path | None = None

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data with what stands beside it."""
        found = self.report.to_dict()
        if self.diagnostics is not None:
            found["private_diagnostics"] = plain(self.diagnostics)
        for name, path in (("report", self.page), ("statement", self.statement)):
            if path is not None:
                found[name] = str(path)
        return found


@dataclass(frozen=True, kw_only=True)
class OwnPoints:
    """PRIVATE: the points that clients would use, each for its client alone.

    Attributes:
        points: One per client, of those that have one.
        without: Numbers of clients without a finite value.
        scores: Whether the scores there are shown as well.
    """

    points: tuple[Best, ...]
    without: tuple[int, ...]
    scores: bool

    def to_dict(self) -> JsonObject:
        """Give the points as JSON-able data."""
        hidden = () if self.scores else ("value",)
        return {
            "note": "private: every point belongs to its client; no epsilon covers it",
            "clients": [fields_of(point, but=hidden) for point in self.points],
            "without": list(self.without),
        }


@dataclass(frozen=True, kw_only=True)
class Scouted:
    """A scout's estimate, and what sharing brought elsewhere.

    Attributes:
        report: The scout's report: what it cost.
        directory: The scout's directory.
        correlation: Estimated mean correlation of two clients' surfaces.
        standard_error: Of the noise in it.
        n_points: Public points that it is over.
        gains: Measured gains, the nearest correlation first.
    """

    report: Report
    directory: Path
    correlation: float
    standard_error: float
    n_points: int
    gains: tuple[Gain, ...]

    def to_dict(self) -> JsonObject:
        """Give the estimate as JSON-able data with price, directory and gains."""
        priced = {"epsilon": plain(self.report.epsilon), "delta": self.report.delta, "total": plain(self.report.total)}
        return fields_of(self, but=("report",)) | priced


@dataclass(frozen=True, kw_only=True)
class CommonPoint:
    """The common setting; public.

    Attributes:
        params: Values by name.
        vote: How it was chosen; None at a site, which was told the result alone.
    """

    params: Mapping[str, Value]
    vote: Common | None

    def to_dict(self) -> JsonObject:
        """Give the setting as JSON-able data."""
        vote = None if self.vote is None else fields_of(self.vote, but=("params",))
        return {"note": "public: the same for everybody", "params": plain(self.params), "vote": vote}


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run: its report, and how its clients fared beside the controls.

    Attributes:
        report: The report.
        directory: The run's directory.
        page: The report's page.
        milestones: PRIVATE: mean best score over clients at a few points of the run, by arm; None unless
            it was asked for.
        verdicts: PRIVATE: the run's clients beside each control, over rounds and at the end; None unless
            asked for, empty without controls.
    """

    report: Report
    directory: Path
    page: Path
    milestones: Milestones | None
    verdicts: tuple[Verdict, ...] | None = None

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data with directory and page, and milestones where they were asked for."""
        found = self.report.to_dict() | {"directory": str(self.directory), "report": str(self.page)}
        if self.milestones is not None:
            note = "private diagnostics, not covered by epsilon"
            found["private_diagnostics"] = {
                "note": note,
                "milestones": plain(self.milestones),
                "verdicts": [fields_of(v) | {"answer": v.answer} for v in self.verdicts or ()],
            }
        return found
