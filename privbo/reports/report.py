"""The report of one run: what it cost, release by release, from public files only.

``report`` reads the numbers; ``privbo.reports.report_page`` draws them. Nothing private is read here:
``privbo.reports.diagnostics`` adds that, marked, on request. Every epsilon is an upper bound and infinite where nothing
is guaranteed; the JSON form has null for infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accountant.curve import Tradeoff
from accountant.dp_event import dp_event_expression
from accountant.events import Adjacency, Event, Gaussian, NonPrivate, Unit, parts, to_dict
from accountant.filters import Quote
from accountant.ledger import Budget
from accountant.ledger.pricing import Total, total
from accountant.tight import numerical
from accountant.verify.hidden import Hidden
from accountant.wording import accountant_text, multipliers_text, upper_text
from privbo.algorithms.thompson.scout import Likeness, Scout, likeness
from privbo.plans import cost
from privbo.plans.cost import Exposure, exposures, trust_text
from privbo.plans.privacy import delta_warning
from privbo.protocol.errors import needs
from privbo.protocol.files import read_json, require_page
from privbo.protocol.settings import JsonObject, fields_of
from privbo.protocol.table import Table, in_two_lines
from privbo.runs.best import Common
from privbo.runs.evidence import LedgerCheck
from privbo.runs.guarded import GUARDIANS, HERE
from privbo.runs.record import ActiveNodes, Record, active_nodes, check_record
from privbo.runs.spec import Spec

if TYPE_CHECKING:
    import pandas as pd

NOISE_SOURCES = {
    "secure": "secure: cryptographic generator keyed by the operating system",
    "exact": "exact: discrete Gaussian",
    "simulation": "seeded noise: simulation, not a guarantee",
    "none": "none: not private",
}


@dataclass(frozen=True, kw_only=True)
class ReleaseRow:
    """One charge of the run.

    Attributes:
        sequence: Position in the ledger, from 1.
        release: Identifier of the release, RUN/ROUND.
        event: What was charged.
        cumulative_epsilon: Bound on epsilon of the releases so far, by the smallest accountant.
        noise_source: ``"secure"``, ``"exact"``, ``"simulation"`` or ``"none"``.
        digest: Chain hash after the charge.
        is_vote: Whether it is the vote at the end, which chose a common setting.
    """

    sequence: int
    release: str
    event: Event
    cumulative_epsilon: float
    noise_source: str
    digest: str
    is_vote: bool = False

    @property
    def text(self) -> str:
        """The event in words."""
        return self.event.text + (", the vote at the end" if self.is_vote else "")

    def to_dict(self) -> JsonObject:
        """Give the row as JSON-able data, the event in words and in full."""
        rate = 1.0 if isinstance(self.event, Gaussian) else getattr(self.event, "sample_rate", None)
        return fields_of(self, but=("event",)) | {
            "event": self.text,
            "mechanism": to_dict(self.event),
            "noise_multiplier": getattr(self.event, "noise_multiplier", None),
            "sample_rate": rate,
        }


@dataclass(frozen=True, kw_only=True)
class Released:
    """One release as it was broadcast.

    Attributes:
        round: Zero-based.
        blocks: Number of blocks (regions).
        dim: Length of every block.
        norm: L2 norm of all blocks together, noise included.
        noise_stddev: Standard deviation of the noise in every entry.
        noise_norm: Typical L2 norm of the noise alone: the root of its mean square.
    """

    round: int
    blocks: int
    dim: int
    norm: float
    noise_stddev: float
    noise_norm: float


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Traffic of one client at eight bytes per number.

    Attributes:
        rounds: Planned rounds.
        releases: Releases made.
        sending_share: Expected share of rounds in which a client sends, in (0, 1].
        bytes_up_per_client: Expected bytes a client has sent: one vector per release.
        bytes_down_per_client: Bytes a client has received: every block of every release.
    """

    rounds: int
    releases: int
    sending_share: float
    bytes_up_per_client: int
    bytes_down_per_client: int


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Public quantities that say what was learnt: functions of the releases.

    Attributes:
        releases: Every release, in order of the rounds.
        communication: Traffic of one client.
        active_nodes: Nodes still active by depth, for eliminations; None for other algorithms.
    """

    releases: tuple[Released, ...]
    communication: Communication
    active_nodes: tuple[ActiveNodes, ...] | None


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """A run's charges and the price of its plan.

    Attributes:
        run: Identifier of the run.
        releases: Number of releases charged so far.
        planned_releases: Number of releases in the plan.
        ledger: The ledger's state.
        entries: The run's charges, and what was published of it in addition, in order.
        cumulative_epsilon: Epsilon after some of the releases, the last always among them.
        epsilon: Upper bounds on epsilon by accountant, of the plan and all further charges.
        delta: Where epsilon is quoted, in (0, 1): the run's, and at most min(1e-5, 1/(10 N)).
        total: Epsilon of everything charged for the ledger's population, with its rule and the ledger's bound.
        exposures: That price against observers who know some of the guardians' noises; empty without guardians.
    """

    run: str
    releases: int
    planned_releases: int
    ledger: LedgerCheck
    entries: tuple[ReleaseRow, ...]
    cumulative_epsilon: tuple[cost.CumulativePrice, ...]
    epsilon: cost.Epsilons
    delta: float
    total: Total
    exposures: tuple[Exposure, ...] = ()

    @property
    def smallest_epsilon(self) -> float:
        """The smallest bound on epsilon at the headline's delta, which is the one to quote."""
        return min(self.epsilon.values())

    @property
    def table(self) -> Table:
        """The charges, under the ledger's state."""
        title = f"{self.run}: {self.releases} of {self.planned_releases} planned, {self.ledger.text}"
        return charges_table(title, self.entries)

    def __repr__(self) -> str:
        made = f"{self.releases} of {self.planned_releases} planned releases, {self.ledger.text}"
        return in_two_lines("LedgerView", self.run, made, self.total.words)


@dataclass(frozen=True, kw_only=True)
class Report(LedgerView):
    """Everything public about a run: its ledger's view, its price, its releases.

    Epsilon is the plan's: when a run ends may depend on what it saw.

    Attributes:
        name: Shown in titles.
        created: Date on which the run was opened, UTC.
        epsilon_at: Price of the plan at every delta of interest, the headline's first.
        asked_delta: The delta that the run asked for; the headline's is at most min(1e-5, 1/(10 N)).
        epsilon_interval: Certified ends of the tight accountant at the headline's delta.
        guarantee: Epsilon under adaptive choices, and the epsilon if nothing was adaptive.
        attacker: What a guess about one unit can gain, and delta by epsilon.
        planned_event: The event of the whole plan.
        dp_event: The same as an expression for dp-accounting.
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
        likeness: The correlation of two clients' surfaces that a scout estimated; None for other algorithms, before its
            release, and where not all clients take part by the plan.
        population: Name of the people.
        budget: Bound that the ledger refuses to pass, or None.
        utility: What was broadcast.
        spec: The run as asked for.
        public_seed: Seed of everything both sides agree on.
        versions: Versions of what the numbers depend on, by package.
        trust: Who had to be trusted with a client's vector, in words.
        unit_text: The unit of privacy in words.
        hidden: What one unit is, in the words of every page, and what of it is the operator's word.
    """

    name: str
    created: str
    epsilon_at: tuple[cost.PriceColumn, ...]
    asked_delta: float
    epsilon_interval: numerical.Interval
    guarantee: Quote
    attacker: Tradeoff
    planned_event: Event
    dp_event: str
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
    likeness: Likeness | None
    population: str
    budget: Budget | None
    utility: Utility
    spec: Spec
    public_seed: int
    versions: Mapping[str, str]
    trust: str
    unit_text: str
    hidden: Hidden

    @property
    def right_guess(self) -> float:
        """Upper bound on the share of right guesses about one unit with even odds; 1 where nothing limits it."""
        return 1.0 - self.attacker.bayes_risk(0.5)

    @property
    def shares_its_ledger(self) -> bool:
        """Whether other runs were charged for the same people, so that the run's own cost is not their total."""
        return self.total.runs > 1

    @property
    def noise_source_text(self) -> str:
        """The noise source in words."""
        return NOISE_SOURCES[self.noise_source]

    @property
    def has_secret_noise(self) -> bool:
        """Whether the noise protects clients; seeded or absent noise does not."""
        return self.noise_source in {"secure", "exact"}

    @property
    def question(self) -> str:
        """The attacker's question: which value a reward or a record had, or whether one client's data were used."""
        if self.unit is not Unit.CLIENT:
            return f"which of two values one {self.hidden.noun} had"
        return "whether one client's data were used"

    @property
    def odds(self) -> str:
        """How much one unit can change the probability of any published outcome, in a sentence; "" of 0 or no limit."""
        epsilon = self.guarantee.guaranteed if self.has_secret_noise else self.smallest_epsilon
        if self.right_guess == 1.0 or not 0.0 < epsilon < 700.0:  # whose exponential is a float
            return ""
        factor = upper_text(math.exp(epsilon), max(2, math.ceil(epsilon / math.log(10.0))))
        who = f"{'One' if self.has_secret_noise else 'Had the noise been secret, one'} {self.hidden.noun}"
        return (
            f"{who} could multiply the probability of any outcome by {factor} (e to the power of "
            f"epsilon) and add delta, {upper_text(self.delta)}, at most."
        )

    @property
    def facts(self) -> dict[str, object]:
        """How the run was carried out and what it cost, by name, as every view shows it."""
        held, at = self.guarantee, f" at delta {upper_text(self.delta)}"
        facts: dict[str, object] = {
            "run": self.run,
            "created": self.created,
            "unit of privacy": self.unit_text,
            "adjacency": self.adjacency.value,
            "trust": self.trust,
            "sampler": "; ".join(self.samplers) or "nothing is released",
            "noise source": self.noise_source_text,
            "noise multiplier": multipliers_text(self.planned_event),
            "sample rate": self.sample_rate,
            "clients": self.n_clients,
            "rounds": self.rounds,
            "releases charged": f"{self.releases} of {self.planned_releases} planned",
            "guaranteed": f"{upper_text(held.guaranteed)}{at} ({held.because})",
            "releases so far, if fixed in advance": f"{upper_text(held.as_if_non_adaptive)}{at}",
            "all runs on this ledger": self.total.words,
            "sharing": self.outlook or "no bound on its gain: no noise, or nothing is shared",
            "vote at the end": self.vote or "none",
            "common setting": "none" if self.common is None else self.common.text,
            "ledger": f"{self.ledger.text}, head {self.ledger.head}",
            "evidence files not found": self.ledger.absent_text,
        }
        if self.likeness is not None:
            facts["correlation between two clients' surfaces"] = self.likeness.text
        if warning := delta_warning(self.asked_delta, self.spec.n_records or self.n_clients):
            facts["delta asked for"] = warning
        return facts if self.caveat is None else facts | {"caveat": self.caveat}

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data, as ``privbo report DIR --json`` prints it."""
        table = self.spec.to_dict()
        return (
            fields_of(self, but=("planned_event", "spec"))
            | {"planned_event": to_dict(self.planned_event)}
            | {"noise_source_text": self.noise_source_text}
            | fields_of(self.guarantee)
            | {"guarantee": self.has_secret_noise, "problem": self.spec.identity()["problem"], "source": table}
            | {name: table[name] for name in ("algorithm", "privacy", "seed", "device")}
        )

    def __repr__(self) -> str:
        made = f"{self.releases} of {self.planned_releases} planned releases, ledger {self.ledger.text}"
        price = f"epsilon {upper_text(self.smallest_epsilon)} at delta {upper_text(self.delta)}"
        return in_two_lines("Report", self.name, made, f"{price} (noise: {self.noise_source})")


def report(record: Record) -> Report:
    """Report everything public about a run: its privacy cost, its releases, its ledger's state.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda clients, x: x[:, 0], n_clients=5)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> found = report(pb.run(problem, pb.DPFTSDE(n_features=8), privacy=privacy, rounds=1, seed=1))
        >>> found.releases, round(found.smallest_epsilon, 3), found.has_secret_noise
        (1, 0.926, False)
    """
    spec, plan, policy, view = record.spec, record.plan, record.ledger.policy, ledger_view(record)
    event, delta, adjacency, recovered = record.event, view.delta, plan.adjacency, record.is_added_to
    sent, share = record.releases, plan.sending_share
    return Report(
        **vars(view),
        name=spec.name,
        created=record.manifest.created,
        epsilon_at=cost.price(
            event, delta=plan.delta, n_clients=plan.n_units, adjacency=adjacency, recovered=recovered
        ),
        asked_delta=plan.delta,
        epsilon_interval=(
            numerical.Interval(lower=0.0, upper=view.smallest_epsilon, method="renyi")
            if recovered
            else numerical.epsilon_interval(event, delta, adjacency=adjacency)
        ),
        guarantee=cost.guarantee(
            record.ledger.entries(record.run_id), policy, plan=event, delta=delta, recovered=recovered
        ),
        attacker=cost.attacker(event, adjacency, recovered=recovered),
        planned_event=event,
        dp_event=dp_event_expression(event, adjacency=adjacency),
        rounds=spec.rounds,
        n_clients=plan.n_clients,
        unit=policy.unit,
        adjacency=adjacency,
        samplers=tuple(sorted({part.sampler for part, _ in parts(event)})),
        noise_multiplier=plan.noise_multiplier,
        sample_rate=spec.privacy.sample_rate,
        noise_source=plan.noise_source,
        control=spec.control,
        caveat=record.manifest.caveat,
        outlook=plan.outlook,
        vote=plan.vote_text(delta),
        common=record.common,
        likeness=_likeness(record),
        population=policy.population,
        budget=policy.budget,
        utility=Utility(
            releases=released_by(record),
            communication=Communication(
                rounds=spec.rounds,
                releases=len(sent),
                sending_share=share,
                bytes_up_per_client=round(share * sum(8 * release.values.shape[1] for release in sent)),
                bytes_down_per_client=sum(8 * release.values.size for release in sent),
            ),
            active_nodes=active_nodes(record),
        ),
        spec=spec,
        public_seed=record.manifest.public_seed,
        versions=record.manifest.versions,
        trust=_trust(record),
        unit_text=record.plan.unit_text,
        hidden=record.plan.privacy.hidden,
    )


def _likeness(record: Record) -> Likeness | None:
    plan = record.plan
    everyone = all(isinstance(part, Gaussian | NonPrivate) for part, _ in parts(plan.event))
    if not isinstance(record.spec.algorithm, Scout) or not record.releases or plan.n_clients < 2 or not everyone:
        return None
    return likeness(record.releases[0], n_clients=plan.n_clients)


def _trust(record: Record) -> str:
    words = trust_text(record.plan.privacy)
    if record.plan.privacy.trust != "guardians":
        return words
    path = None if record.directory is None else record.home.path / GUARDIANS
    known = read_json(path) if path is not None and path.exists() else {"where": HERE, "cards": {}}
    if known["where"] == HERE:
        return f"{words}. Here all of them ran in one process: its operator sees every vector"
    return f"{words} (guardians: {', '.join(known['cards'])})"


def released_by(record: Record) -> tuple[Released, ...]:
    """Describe every release of a run so far, in order of the rounds."""
    return tuple(
        Released(
            round=release.round,
            blocks=release.values.shape[0],
            dim=release.values.shape[1],
            norm=float(np.linalg.norm(release.values)),
            noise_stddev=release.noise_stddev,
            noise_norm=release.noise_stddev * float(np.sqrt(release.values.size)),
        )
        for release in record.releases
    )


def price_table(columns: Sequence[cost.PriceColumn]) -> Table:
    """Tabulate epsilon by accountant at the run's delta and at the two deltas every table names."""
    tables = [column.epsilon for column in columns]
    return Table(
        title="Price of the plan (epsilon)",
        headings=("accountant", *(f"delta={upper_text(column.delta)} ({column.label})" for column in columns)),
        rows=[(accountant_text(name, *tables), *(upper_text(t.get(name)) for t in tables)) for name in tables[0]],
        right=range(1, 1 + len(columns)),
    )


def charges_table(title: str, entries: Sequence[ReleaseRow]) -> Table:
    """Tabulate a run's charges."""
    return Table(
        title=title,
        headings=("charge", "release", "event", "noise", "epsilon so far", "chain hash"),
        rows=[(e.sequence, e.release, e.text, e.noise_source, e.cumulative_epsilon, e.digest[:12]) for e in entries],
        formats={4: upper_text},
    )


def ledger_view(record: Record) -> LedgerView:
    """List a run's charges, each with the epsilon of all charges up to it, with its price."""
    ledger, event, delta = record.ledger, record.event, record.plan.safe_delta
    beside = record.publications
    entries = [entry for entry in ledger.entries() if entry.run in (record.run_id, *beside)]
    points = cost.cumulative([entry.event for entry in entries], ledger.policy, delta)
    return LedgerView(
        run=record.run_id,
        releases=sum(entry.run == record.run_id for entry in entries),
        planned_releases=record.plan.releases,
        ledger=check_record(record),
        entries=tuple(
            ReleaseRow(
                sequence=entry.sequence,
                release=entry.release_id,
                event=entry.event,
                cumulative_epsilon=after,
                noise_source=entry.noise_source,
                digest=entry.digest,
                is_vote=entry.release_id == record.vote,
            )
            for entry, after in zip(entries, cost.after_each(points, len(entries)), strict=True)
        ),
        cumulative_epsilon=points,
        epsilon=record.epsilons(delta),
        delta=delta,
        total=total(ledger.book(), delta),
        exposures=exposures(record.plan.privacy, event, delta),
    )


def history(record: Record) -> pd.DataFrame:
    """Give a run's public history as a frame, one row per release.

    Raises:
        ConfigurationError: If pandas is not installed.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> history(record)["sequence"].tolist()
        [2, 3]
    """
    charged = ("sequence", "release", "noise_multiplier", "sample_rate", "cumulative_epsilon", "noise_source", "digest")
    sent = ("round", "blocks", "dim", "norm", "noise_stddev", "noise_norm")
    made, view = {f"{record.run_id}/{row.round}": row for row in released_by(record)}, ledger_view(record)
    rows = []
    for entry in (entry for entry in view.entries if entry.release.startswith(f"{view.run}/")):
        facts, release = entry.to_dict(), made.get(entry.release)
        rows.append([*map(facts.get, charged), view.delta, *(getattr(release, name, None) for name in sent)])
    return Table(headings=(*charged, "delta", *sent), rows=rows).frame()


def write_parquet(record: Record, path: Path) -> Path:
    """Write the history as Parquet; returns its path.

    Raises:
        ConfigurationError: If pandas or pyarrow is not installed.
    """
    require_page(path, suffix=".parquet")
    frame = history(record)
    with needs("pyarrow", "tables"):
        frame.to_parquet(path)
    return path
