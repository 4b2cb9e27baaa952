"""Recovery: charging once more what a lost part of a run's ledger had held.

A ledger that was restored from a backup no longer holds releases that had left. Going on would
release those rounds a second time for one charge. A recovery is a row of the chain that charges
for every round of which it can't be said that nothing had left, names the evidence, and stands
for ever: the run is then priced as plan and recovery together, by an odometer, because how
often a ledger is restored may depend on what was seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from accountant.errors import LedgerError
from accountant.events import Event, Gaussian, RandomAllocationGaussian, parts
from accountant.ledger import Ledger
from accountant.ledger.book import Reservation
from accountant.wording import counted
from privbo.plans.cost import Agree, spending
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_lines
from privbo.runs.evidence import Chains, Evidence, beyond, declaration, gathered, plan_of, recovery_text
from privbo.runs.manifest import Manifest, RunDirectory, readable_ledger
from privbo.runs.opening import plan_run, policy_of, require_policy
from privbo.runs.sources import ForeignAlgorithm


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A recovery as it stands in the ledger.

    Attributes:
        run: Identifier of the run.
        sequence: Position of the recovery's row.
        head: Its digest.
        rounds: Rounds that may have been released and are not stored any more.
        releases: Releases that were charged once more; no fewer than those rounds had.
        lost: Rows of the ledger that evidence names and the ledger lacks.
        text: The recovery in words, as every report has it from now on.
    """

    run: str
    sequence: int
    head: str
    rounds: tuple[int, ...]
    releases: int
    lost: int
    text: str


def recover(home: RunDirectory, *, agree: Agree = lambda _: None, ledger: Path | str | None = None) -> Recovered:
    """Charge every uncertain round of a run once more, so that it may go on.

    Nothing that stands on disk is taken away or written over. The same loss is charged once,
    however often it is recovered.

    Args:
        home: The run's directory.
        agree: Called with the price before it is charged.
        ledger: As of ``load``.

    Raises:
        RunError: If nothing is uncertain, or rows of other runs on the same ledger were lost.
        LedgerError: If no copy of the ledger is there.
    """
    manifest = home.manifest()
    with Ledger.open(readable_ledger(home, manifest, ledger), recovering=True) as opened:
        shared = manifest.spec.ledger
        require_policy(opened, policy_of(manifest.plan, shared, manifest.run_id), shared)
        plan = _bound(manifest, opened)
        seen, _ = gathered(home, manifest.run_id)
        chains = Chains(opened, manifest.run_id)
        doubtful = [one for one in seen if (wrong := chains.contradiction(one)) and wrong.is_uncertain]
        witnessed = opened.lost()
        if not doubtful and not witnessed:
            raise RunError(f"{home.path}: nothing is uncertain, so there is nothing to recover")
        known = {seen.place for seen in doubtful}
        others = [row for table, *row in witnessed if table == "charges" and tuple(row) not in known]
        if shared is not None and others:  # a lost row may be another run's, of which nothing is known here
            raise RunError(
                f"the shared ledger lost {len(others)} rows that this run knows nothing of, so other runs were charged "
                "for releases whose cost is unknown here; restore the newest copy of the ledger"
            )
        kept = _kept(opened, manifest.run_id, [("charges", *place) for place in known] + witnessed)
        rounds = _uncertain(home, manifest.run_id, kept, seen, doubtful)
        count = max([len(rounds), *Counter(t for t, *_ in witnessed).values()])
        events = _most_expensive(opened, manifest.run_id, kept, count)
        places = known | {(sequence, digest) for table, sequence, digest in witnessed if table == "charges"}
        # A charge that stands and lost its release again is named once more than before: that is another loss.
        lost = tuple(place for place in sorted(places) for _ in range(max(1, len(chains.unlike[place]))))
        declared = replace(plan.declared, kind="recovery", events=events, lost=lost)
        what = counted(declared.releases, "uncertain release")
        agree(spending(opened, manifest.plan.safe_delta, what, declared=[declared]))
        found = opened.recover(declared)
        told = beyond(manifest, opened.book())
    return Recovered(
        run=found.run,
        sequence=found.sequence,
        head=found.digest,
        rounds=rounds,
        releases=found.declared.releases,
        lost=sum(chains.book.digest_at(sequence) != digest for sequence, digest in places),
        text="; ".join((recovery_text(found), *told)),
    )


def _bound(manifest: Manifest, ledger: Ledger) -> Reservation:
    """The plan that the ledger binds; where even that row was lost, the plan as it can be made again."""
    if manifest.run_id not in ledger.book().plans:
        if isinstance(manifest.spec.algorithm, ForeignAlgorithm):
            raise RunError("the ledger lost the plan of an algorithm of your own; restore a copy that holds it")
        again = replace(manifest, plan=plan_run(manifest.spec))
        if again.plan.to_dict() != manifest.plan.to_dict():
            raise RunError("the plan can't be made again as it was recorded; use the privbo that made it")
        ledger.reserve(declaration(again))
    return plan_of(manifest, ledger.book())


def _kept(ledger: Ledger, run: str, lost: list[tuple[str, int, str]]) -> set[str]:
    """Releases that are stored and were made once: none where a row took a lost one's place: rounds were redone."""
    rows = {"charges": ledger.book().rows, "releases": ledger.release_rows()}
    if any(sequence <= len(rows[table]) and rows[table][sequence - 1].digest != old for table, sequence, old in lost):
        return set()
    return {e.release_id for e in ledger.entries(run) if ledger.stored_release(e.release_id) is not None}


def _uncertain(
    home: RunDirectory, run: str, kept: set[str], seen: list[Evidence], doubtful: list[Evidence]
) -> tuple[int, ...]:
    """Rounds up to the last one that anything has seen, without those that were kept or released nothing."""
    local = {int(row["round"]) for row in read_lines(home.history_path) if not row["released"]}
    local -= {one.round for one in seen if one.is_public}
    last = max((one.round for one in doubtful), default=-1)
    return tuple(r for r in range(last + 1) if r not in local and f"{run}/{r}" not in kept)


def _most_expensive(ledger: Ledger, run: str, kept: set[str], count: int) -> tuple[tuple[Event, int], ...]:
    """Enough of every event that the lost releases can have had, whichever they were."""
    book, most = ledger.book(), Counter[Event]()
    if (left := book.left(run)) is None:
        raise LedgerError(f"the ledger holds no plan of {run}; restore a copy that does")
    for event, _ in book.plans[run].declared.events:
        most |= Counter(dict(parts(event)))
    for entry in ledger.entries(run):
        if entry.release_id not in kept:
            left.update(dict(parts(entry.event)))
    # A round of a random allocation that is made again has the same participants: it counts as open to all.
    return tuple(
        (Gaussian(noise_multiplier=e.noise_multiplier) if isinstance(e, RandomAllocationGaussian) else e, least)
        for e, slots in left.items()
        if (least := min(slots, count * most[e])) > 0
    )
