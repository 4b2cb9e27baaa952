"""The report of one run: what it cost, release by release, from public files only.

``report`` reads the numbers, ``write_page`` draws them as one HTML page. Nothing private
is read here; ``privbo.reports.diagnostics`` adds that, marked, on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accountant.dp_event import dp_event_expression
from accountant.events import most_expensive, of_one_run, parts
from accountant.ledger import Entry
from accountant.ledger.pricing import total
from accountant.tight import numerical
from accountant.wording import sampler_text
from privbo.plans import prices
from privbo.plans.trust import exposures, trust_text
from privbo.protocol.files import read_json
from privbo.protocol.messages import Release
from privbo.reports.diagnostics import Diagnostics
from privbo.reports.document import write_document
from privbo.reports.figure import Figure
from privbo.reports.page import document, report_figures
from privbo.reports.parts import Communication, Released, ReleaseRow, Utility
from privbo.reports.report import Report
from privbo.reports.signing import known_public_key
from privbo.runs.guarded import GUARDIANS, HERE
from privbo.runs.record import Record, active_nodes, check_record


def write_report(record: Record, path: str | Path | None = None) -> Path:
    """Write a run's HTML report, ``report.html`` in its directory unless another path is named; returns the path.

    Raises:
        RunError: If the run is in memory and no path is named.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> write_report(record, "report.html").name
        'report.html'
    """
    key = None if record.directory is None else known_public_key(record.home)
    return write_page(report(record), record.home.report_path if path is None else Path(path), key=key)


def figures(record: Record) -> dict[str, Figure]:
    """Give the report's figures by name; a notebook shows them, and ``plot()`` draws one with Matplotlib. Public.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> sorted(figures(record))
        ['delta-epsilon', 'epsilon-by-accountant', 'epsilon-by-release', 'release-norms', 'trade-off']
    """
    return report_figures(report(record))


def write_page(
    report: Report,
    path: Path,
    *,
    private: Diagnostics | None = None,
    key: str | None = None,
) -> Path:
    """Write a report's HTML page atomically; returns its path.

    Args:
        report: The report.
        path: Where to.
        private: PRIVATE diagnostics to add in a marked section; such a page is not for export.
        key: Public key that signs what leaves, for readers to compare.
    """
    return write_document(document(report, private, key=key), path)


def report(record: Record) -> Report:
    """Report everything public about a run: its price, its releases, its ledger's state.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda clients, x: x[:, 0], n_clients=5)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> found = report(pb.run(problem, pb.DPFTSDE(n_features=8), privacy=privacy, rounds=1, seed=1))
        >>> found.releases, round(found.smallest_epsilon, 3), found.has_secret_noise
        (1, 0.926, False)
    """
    spec, plan, ledger = record.spec, record.plan, record.ledger
    delta, adjacency, recovered = plan.safe_delta, plan.adjacency, record.is_added_to
    event = record.event
    entries, policy = ledger.entries(record.run_id), ledger.policy
    combine = most_expensive if policy.disjoint else of_one_run
    points = cumulative_of(record)
    curve = prices.curve(event, delta, adjacency, recovered=recovered)
    columns = prices.price(event, delta=plan.delta, n_clients=plan.n_clients, adjacency=adjacency, recovered=recovered)
    return Report(
        name=spec.name,
        run=record.run_id,
        created=record.manifest.created,
        smallest_epsilon=min(columns[0].epsilon.values()),
        epsilon_at=columns,
        asked_delta=plan.delta,
        epsilon_interval=(
            numerical.Interval(lower=0.0, upper=columns[0].smallest, method="renyi")
            if recovered
            else numerical.epsilon_interval(event, delta, adjacency=adjacency)
        ),
        guarantee=prices.guarantee(
            entries,
            plan=event,
            delta=delta,
            adjacency=adjacency,
            budget=policy.budget,
            combine=combine,
            recovered=recovered,
        ),
        attacker=prices.attacker(curve),
        delta_epsilon_curve=curve,
        planned_event=event,
        dp_event=dp_event_expression(event, adjacency=adjacency),
        planned_releases=plan.releases,
        rounds=spec.rounds,
        n_clients=plan.n_clients,
        unit=policy.unit,
        adjacency=adjacency,
        samplers=tuple(sorted({sampler_text(part) for part, _ in parts(event)})),
        noise_multiplier=plan.noise_multiplier,
        sample_rate=spec.privacy.sample_rate,
        noise_source=plan.noise_source,
        control=spec.control,
        caveat=record.manifest.caveat,
        outlook=plan.outlook,
        vote=plan.vote_text(delta),
        common=record.common,
        population=policy.population,
        budget=policy.budget,
        total=total(ledger.book(), delta),
        ledger=check_record(record),
        entries=rows(entries, points, record.vote),
        cumulative_epsilon=points,
        utility=_utility(record),
        spec=spec,
        public_seed=record.manifest.public_seed,
        versions=record.manifest.versions,
        trust=_trust(record),
        exposures=exposures(plan.privacy, event, delta, adjacency=adjacency),
    )


def _trust(record: Record) -> str:
    words = trust_text(record.plan.privacy)
    if record.plan.privacy.trust == "server":
        return words
    path = None if record.directory is None else record.home.path / GUARDIANS
    known = read_json(path) if path is not None and path.exists() else {"where": HERE, "cards": {}}
    if known["where"] == HERE:
        return f"{words}. Here all of them were played in one process: whoever runs it sees every vector"
    return f"{words} (guardians: {', '.join(known['cards'])})"


def rows(
    entries: Sequence[Entry], points: Sequence[prices.CumulativePrice], vote: str | None = None
) -> tuple[ReleaseRow, ...]:
    """Describe a run's charges, each with the epsilon of all charges up to it; ``vote`` names the vote at the end."""
    return tuple(
        ReleaseRow(
            sequence=entry.sequence,
            release=entry.release_id,
            event=entry.event,
            cumulative_epsilon=after,
            noise_source=entry.noise_source,
            digest=entry.digest,
            is_vote=entry.release_id == vote,
        )
        for entry, after in zip(entries, prices.after_each(points, len(entries)), strict=True)
    )


def cumulative_of(record: Record) -> tuple[prices.CumulativePrice, ...]:
    """Price a run's charges so far, after some of the releases; the last is always among them."""
    ledger, plan = record.ledger, record.plan
    events = [entry.event for entry in ledger.entries(record.run_id)]
    combine = most_expensive if ledger.policy.disjoint else of_one_run
    return prices.cumulative(events, plan.safe_delta, plan.adjacency, combine=combine)


def broadcast_of(record: Record) -> tuple[Released, ...]:
    """Describe every release of a run so far, in order of the rounds."""
    return tuple(map(_released, record.releases))


def _utility(record: Record) -> Utility:
    releases, share = record.releases, record.plan.sending_share
    sent = sum(8 * release.values.shape[1] for release in releases)
    return Utility(
        releases=tuple(map(_released, releases)),
        communication=Communication(
            rounds=record.spec.rounds,
            releases=len(releases),
            sending_share=share,
            bytes_up_per_client=round(share * sent),
            bytes_down_per_client=sum(8 * release.values.size for release in releases),
        ),
        active_nodes=active_nodes(record),
    )


def _released(release: Release) -> Released:
    blocks, dim = release.values.shape
    return Released(
        round=release.round,
        blocks=blocks,
        dim=dim,
        norm=float(np.linalg.norm(release.values)),
        noise_stddev=release.noise_stddev,
        noise_norm=release.noise_stddev * float(np.sqrt(release.values.size)),
    )
