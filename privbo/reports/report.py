"""The report of one run as types; ``privbo.reports.data`` fills them from public files.

Every epsilon is an upper bound and infinite where nothing is guaranteed; the JSON form has
null for infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accountant.events import Adjacency, Event, Unit, to_dict
from accountant.ledger import Budget
from accountant.ledger.pricing import Total
from accountant.tight.numerical import Interval
from accountant.wording import upper_text
from privbo.plans.prices import Attacker, CumulativePrice, CurvePoint, Epsilons, Guarantee, PriceColumn
from privbo.plans.trust import Exposure
from privbo.protocol.plain import fields_of, in_two_lines, notebook_table, plain
from privbo.protocol.settings import JsonObject
from privbo.reports.parts import ReleaseRow, Utility
from privbo.runs.evidence import LedgerCheck
from privbo.runs.final import Common
from privbo.runs.spec import Spec

NOISE_SOURCES = {
    "secure": "secure: cryptographic generator keyed by the operating system",
    "exact": "exact: discrete Gaussian",
    "simulation": "seeded noise: simulation, not a guarantee",
    "none": "none: not private",
}
UNITS = {
    Unit.CLIENT: "one client: everything it ever sent",
    Unit.RECORD: "one record of the training data",
    Unit.REWARD: "one reward: the outcome of one evaluation; what a client does as a whole is not hidden",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything public about a run: its price, its releases, its ledger's state.

    Epsilon is the plan's: when a run ends may depend on what it saw.

    Attributes:
        name: Shown in titles.
        run: Identifier of the run.
        created: Date on which the run was opened, UTC.
        smallest_epsilon: The smallest bound on the plan's epsilon at the headline's delta, which is the one to quote.
        epsilon_at: Price of the plan at every delta of interest, the headline's first.
        asked_delta: The delta that the run asked for; the headline's is at most min(1e-5, 1/(10 N)).
        epsilon_interval: Certified ends of the tight accountant at the headline's delta.
        guarantee: Epsilon under adaptive choices, and the epsilon if nothing was adaptive.
        attacker: The most that a guess about one unit can gain.
        delta_epsilon_curve: Certified bounds on delta by epsilon; empty for a non-private run.
        planned_event: The event of the whole plan.
        dp_event: The same as an expression for dp-accounting.
        planned_releases: Number of releases in the plan.
        rounds: Planned rounds.
        n_clients: N.
        unit: Whose data is hidden.
        adjacency: What neighbouring data sets are.
        samplers: How participants are drawn, in words, one per kind.
        noise_multiplier: Nominal z; None without noise.
        sample_rate: Probability of taking part in a release; None for a non-private run.
        noise_source: ``"secure"``, ``"exact"``, ``"simulation"`` or ``"none"``.
        control: Name of the control this run is; None for an ordinary run.
        caveat: What the algorithm wants every reader to know, or None.
        outlook: The most that sharing could bring, from public numbers; None without noise or sharing.
        vote: The vote at the end and its price, in words; None where the plan has none.
        common: The common setting that it chose; None before it was made.
        population: Name of the people.
        budget: Bound that the ledger refuses to pass, or None.
        total: Epsilon of everything that was paid on the same people, with its rule.
        ledger: Outcome of holding the ledger against all that stands beside it.
        entries: The run's charges, in order.
        cumulative_epsilon: Epsilon after some of the releases, the last always among them.
        utility: What was broadcast.
        spec: The run as asked for.
        public_seed: Seed of everything both sides agree on.
        versions: Versions of what the numbers depend on, by package.
        trust: Who had to be trusted with a client's vector, in words.
        exposures: The plan's price against whoever knows some of the guardians' noises; empty without guardians.
    """

    name: str
    run: str
    created: str
    smallest_epsilon: float
    epsilon_at: tuple[PriceColumn, ...]
    asked_delta: float
    epsilon_interval: Interval
    guarantee: Guarantee
    attacker: Attacker
    delta_epsilon_curve: tuple[CurvePoint, ...]
    planned_event: Event
    dp_event: str
    planned_releases: int
    rounds: int
    n_clients: int
    unit: Unit
    adjacency: Adjacency
    samplers: tuple[str, ...]
    noise_multiplier: float | None
    sample_rate: float | None
    noise_source: str
    control: str | None
    caveat: str | None
    outlook: str | None
    vote: str | None
    common: Common | None
    population: str
    budget: Budget | None
    total: Total
    ledger: LedgerCheck
    entries: tuple[ReleaseRow, ...]
    cumulative_epsilon: tuple[CumulativePrice, ...]
    utility: Utility
    spec: Spec
    public_seed: int
    versions: Mapping[str, str]
    trust: str
    exposures: tuple[Exposure, ...] = ()

    @property
    def epsilon(self) -> Epsilons:
        """Upper bounds on the plan's epsilon at the headline's delta, by accountant."""
        return self.epsilon_at[0].epsilon

    @property
    def delta(self) -> float:
        """The headline's delta, in (0, 1): the run's, and at most min(1e-5, 1/(10 N))."""
        return self.epsilon_at[0].delta

    @property
    def releases(self) -> int:
        """Number of releases charged so far."""
        return len(self.entries)

    @property
    def shares_its_ledger(self) -> bool:
        """Whether others were paid for on the same people, so that the run's own price is not all they paid."""
        return self.total.runs > 1

    @property
    def unit_text(self) -> str:
        """The unit of privacy in words."""
        return UNITS[self.unit]

    @property
    def noise_source_text(self) -> str:
        """The noise source in words."""
        return NOISE_SOURCES[self.noise_source]

    @property
    def has_secret_noise(self) -> bool:
        """Whether the noise protects anybody; seeded or absent noise does not."""
        return self.noise_source in {"secure", "exact"}

    @property
    def question(self) -> str:
        """The attacker's question: which value a reward had, or whether somebody's data were used."""
        if self.unit is Unit.REWARD:
            return "which of two values one reward had"
        return f"whether one {self.unit.value}'s data were used"

    @property
    def provenance(self) -> JsonObject:
        """The configuration in full, as it can be written down again."""
        table = self.spec.to_dict()
        tables = {name: table[name] for name in ("algorithm", "privacy", "seed", "device")}
        return {"problem": self.spec.identity()["problem"], "source": table, **tables}

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data, as ``privbo report DIR --json`` prints it."""
        return (
            {"name": self.name, "run": self.run, "created": self.created}
            | {"epsilon": plain(self.epsilon), "delta": self.delta}
            | fields_of(self, but=("planned_event", "spec", "smallest_epsilon"))
            | {"planned_event": to_dict(self.planned_event), "releases": self.releases}
            | {"unit_text": self.unit_text, "noise_source_text": self.noise_source_text}
            | fields_of(self.guarantee)
            | {"guarantee": self.has_secret_noise}
            | self.provenance
        )

    def __repr__(self) -> str:
        made = f"{self.releases} of {self.planned_releases} planned releases, ledger {self.ledger.text}"
        price = f"epsilon {upper_text(self.smallest_epsilon)} at delta {upper_text(self.delta)}"
        return in_two_lines("Report", self.name, made, f"{price} (noise: {self.noise_source})")

    def _repr_html_(self) -> str:
        """Show the headline in a notebook."""
        everybody = f"{upper_text(self.total.epsilon)} at delta = {upper_text(self.delta)} ({self.total.rule})"
        return notebook_table(
            f"Privacy report: {self.name}",
            {"epsilon": f"{upper_text(self.smallest_epsilon)} at delta = {upper_text(self.delta)}", "trust": self.trust}
            | ({"paid on this ledger": everybody} if self.shares_its_ledger else {})
            | {
                "unit, adjacency": f"{self.unit.value}, {self.adjacency.value}",
                "releases": f"{self.releases} of {self.planned_releases} planned",
                "noise source": self.noise_source_text,
                "ledger": self.ledger.text,
            },
        )
