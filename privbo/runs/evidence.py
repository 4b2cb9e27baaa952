"""The one check that every opening of a run makes: does all that stands on disk agree?

With the ledger, which binds the plan, are stored its commit log, the history, the clients' state, the
sites' records and countersigned heads. Whatever is there has to fit the chain; what is absent
is named; nothing is changed. A part that was restored or edited would let a round be drawn again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accountant.errors import LedgerError, PrivacyError
from accountant.ledger import Ledger
from accountant.ledger.book import Book, Declaration, Reservation
from accountant.ledger.chain import Position
from accountant.ledger.ledger import holds
from accountant.ledger.policy import digest_of
from accountant.wording import counted, upper_text
from privbo.door.payload import decode_release
from privbo.plans.plan import Plan
from privbo.protocol.errors import RunError
from privbo.protocol.files import being_read, read_lines
from privbo.protocol.settings import JsonObject
from privbo.runs.manifest import Manifest, RunDirectory, readable_ledger
from privbo.runs.states import States


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A place in the ledger's chain that other evidence has seen.

    Attributes:
        by: What has seen it, in words.
        place: Sequence and digest.
        round: Of the run, while which it was seen.
        stddev: The release's noise, where it was noted.
        norm: The release's norm, where it was noted.
        stored: Sequence and digest of the last stored release, where that was seen.
        is_public: Whether it is the public history, which says that the round's release was made; it alone may be
            counted in public, as the number of countersigned heads tells who was there.
    """

    by: str
    place: Position
    round: int
    stddev: float | None = None
    norm: float | None = None
    stored: Position | None = None
    is_public: bool = False


def gathered(home: RunDirectory, run: str) -> tuple[list[Evidence], tuple[str, ...]]:
    """All other evidence that has seen the ledger, and what is absent.

    Raises:
        RunError: If a file can't be read.
    """
    found: list[Evidence] = []
    files = {
        "history.jsonl": [home.history_path],
        "private/clients-0.states": [states.path for states in home.all_states()],
        "private/countersigned.jsonl": [home.countersigned_path],
        "sites' records": sorted(home.private.glob(f"sites/*/{run}/receipts.jsonl")),
    }
    there = {name: [path for path in paths if path.exists()] for name, paths in files.items()}
    for path in (path for paths in there.values() for path in paths):
        with being_read(path):
            found += _read_evidence(path, home)
    return found, tuple(name for name, paths in there.items() if not paths)


def _read_evidence(path: Path, home: RunDirectory) -> Iterator[Evidence]:
    if path.suffix == ".states":
        if (stamp := States(path).stamp()) is not None:
            yield Evidence(by="the clients' state", place=(stamp["sequence"], stamp["head"]), round=stamp["round"])
        return
    is_public, name = path == home.history_path, path.relative_to(home.path).as_posix()
    for row in read_lines(path):
        if is_public and "head" not in row:
            continue  # a round of local work
        said = {"stddev": row["noise_stddev"], "norm": row["norm"]} if is_public else {}
        by, place = f"{name}, round {row['round']},", (row["sequence"], row["head"])
        yield Evidence(by=by, place=place, round=row["round"], is_public=is_public, **said)


_REMOTE = ("private/countersigned.jsonl", "sites' records")  # of clients on other machines


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """What evidence has seen and the ledger lacks.

    Attributes:
        what: In words.
        is_uncertain: Whether a part was lost, which may be charged again; else the evidence itself was changed.
    """

    what: str
    is_uncertain: bool = True

    @property
    def text(self) -> str:
        """In words, with the remedy."""
        again = "restore all of them from the same time, or charge what is uncertain again: privbo ledger recover"
        return f"{self.what}; {again if self.is_uncertain else 'restore that file from a copy'}"


@dataclass(frozen=True, kw_only=True)
class LedgerCheck:
    """Outcome of comparing a run's ledger with all other evidence.

    Attributes:
        run: Identifier of the run.
        verified: Whether everything that is there agrees.
        problem: The first disagreement, or None.
        head: Chain hash of the last row.
        entries: Number of charges of all runs on the ledger.
        receipts: Number of public heads that were held against the ledger; private ones are held, too, and not counted.
        absent: Evidence that isn't there, so that nothing was learnt from it.
        recovered: Releases that were lost with a ledger and charged once more, in words.
    """

    run: str
    verified: bool
    problem: str | None
    head: str
    entries: int
    receipts: int
    absent: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()

    @property
    def absent_text(self) -> str:
        """What is not there, in words."""
        remote = [name for name in self.absent if name in _REMOTE]
        there = [f"{' and '.join(remote)} (a run over Flower may have them)"] if remote else []
        return ", ".join([*(name for name in self.absent if name not in _REMOTE), *there]) or "none"

    @property
    def text(self) -> str:
        """The state in words."""
        state = "verified" if self.verified else f"NOT VERIFIED: {self.problem}"
        return "; ".join((state, *self.recovered))


def declaration(manifest: Manifest) -> Declaration:
    """Declare a run's plan as its ledger is to bind it; the manifest's plan is a freshly priced one."""
    return declared_by(manifest.plan, run=manifest.run_id, settings=manifest.spec.digest(), quoted=planned(manifest))


def declared_by(plan: Plan, *, run: str, settings: str, quoted: JsonObject | None = None) -> Declaration:
    """Declare a plan as every party computes it from public settings, for a ledger of its own.

    Args:
        plan: The freshly priced plan.
        run: Name of the run.
        settings: Digest of its settings.
        quoted: Everything that a report quotes besides the settings; the plan unless given.
    """
    return Declaration(
        run=run,
        events=plan.schedule,
        settings=settings,
        plan=digest_of(plan.to_dict() if quoted is None else quoted),
        delta=plan.delta,
        noise_source=plan.noise_source,
    )


def plan_name(declared: Declaration) -> str:
    """Digest of a declared plan, by which clients, guardians and server know that they mean the same."""
    return digest_of(declared.to_dict())


def planned(manifest: Manifest) -> JsonObject:
    """Give everything of a manifest that a report quotes besides the settings."""
    return {
        "plan": manifest.plan.to_dict(),
        "public_seed": manifest.public_seed,
        "created": manifest.created,
        "caveat": manifest.caveat,
    }


def plan_of(manifest: Manifest, book: Book) -> Reservation:
    """The plan that the ledger binds, which has to be the manifest's.

    Raises:
        RunError: If the ledger binds none for this run, or another one.
    """
    found = book.plans.get(manifest.run_id)
    if found is None:
        others = sorted(book.runs)
        raise RunError(
            f"the ledger binds no plan of {manifest.run_id} (it speaks of {', '.join(others) or 'no run'}), so it is "
            "another run's or this run never began; put its own ledger in place, or resume it"
        )
    plan, declared, events = manifest.plan, found.declared, book.combined(found.declared.events)
    bound = (declared.settings, declared.plan, declared.delta, declared.noise_source, events, declared.releases)
    digests = manifest.spec.digest(), digest_of(planned(manifest))
    stated = (*digests, plan.delta, plan.noise_source, plan.event, plan.releases)
    policy, hidden = book.policy, (plan.privacy.protects or "records", plan.privacy.records_per_person)
    meant = (policy.unit.value, policy.adjacency, policy.n_clients, policy.protects, policy.records_per_person)
    if bound != stated or meant != (plan.unit, plan.adjacency, plan.n_clients, *hidden):
        raise RunError(
            "config.json is not what the run was made with: the ledger binds another plan or other settings; restore "
            "config.json from a copy"
        )
    return found


def examine(
    manifest: Manifest, ledger: Ledger, home: RunDirectory | None, receipts: Sequence[Evidence] = ()
) -> LedgerCheck:
    """Hold a run's ledger, plan, history, clients and sites against each other; changes nothing.

    Args:
        manifest: Of the run.
        ledger: Its open ledger.
        home: Its directory; None for a simulation in memory.
        receipts: Places that another party has kept.
    """
    state = ledger.verify()
    problem, seen, absent = state.problem, list[Evidence](), tuple[str, ...]()
    try:
        if problem is None:
            seen, absent = ([], ("all other evidence",)) if home is None else gathered(home, manifest.run_id)
            chains = Chains(ledger, manifest.run_id)
            plan_of(manifest, chains.book)
            wrong = next(filter(None, map(chains.contradiction, [*seen, *receipts])), None)
            problem = wrong.text if wrong else _announced_problem(manifest, chains.book, home)
    except PrivacyError as error:
        problem = str(error)
    recovered = [r for r in ledger.book().reservations if r.declared.kind == "recovery"] if state.ok else []
    return LedgerCheck(
        run=manifest.run_id,
        verified=problem is None,
        problem=problem,
        head=state.head,
        entries=state.n_entries,
        receipts=sum(place.is_public for place in seen) + len(receipts),
        absent=absent,
        recovered=tuple(recovery_text(r) for r in recovered) + (beyond(manifest, ledger.book()) if recovered else ()),
    )


def _announced_problem(manifest: Manifest, book: Book, home: RunDirectory | None) -> str | None:
    """Say what is wrong with the points that clients were told, which charges bind; None for nothing.

    The secret allocation that they may bind instead is the door's to hold to them.
    """
    if home is None or manifest.plan.is_allocated:
        return None
    found = home.announced_digest
    for entry in book.entries:
        if entry.run == manifest.run_id and entry.announced not in (None, found):
            state = "missing" if found is None else "not what clients were told"
            return (
                f"{home.announced_path} is {state} (row {entry.sequence} of the ledger binds it), and released values "
                "could be taken for those of other points; restore it from a copy"
            )
    return None


def check_directory(
    home: RunDirectory, receipts: Sequence[Evidence] = (), *, ledger: Path | str | None = None
) -> LedgerCheck:
    """Hold a run's directory against itself, and against receipts; what can't even be opened is not verified.

    Args:
        home: The run's directory.
        receipts: Places that another party has kept.
        ledger: As of ``load``.

    Raises:
        RunError: If another person's run names a ledger elsewhere; it was not opened.
    """
    manifest = home.manifest()
    place = readable_ledger(home, manifest, ledger)
    try:
        with Ledger.open(place) as opened:
            return examine(manifest, opened, home, receipts)
    except LedgerError as error:
        return LedgerCheck(run=manifest.run_id, verified=False, problem=str(error), head="", entries=0, receipts=0)


def require_agreement(manifest: Manifest, ledger: Ledger, home: RunDirectory | None) -> None:
    """Refuse to open a run of which anything disagrees.

    Raises:
        RunError: Naming what disagrees.
    """
    found = examine(manifest, ledger, home)
    if not found.verified:
        ledger.close()
        where = manifest.run_id if home is None else home.path
        raise RunError(f"{where} is refused: {found.problem}")


def recovery_text(found: Reservation) -> str:
    """Say what was recovered, for readers of the run."""
    return (
        f"recovered: after a part of its ledger was lost, {counted(found.declared.releases, 'release')} of {found.run} "
        f"{'was' if found.declared.releases == 1 else 'were'} charged once more (row {found.sequence})"
    )


def beyond(manifest: Manifest, book: Book) -> tuple[str, ...]:
    """Say that all that was charged passes the policy of a run, which refuses no recovery; empty where it does not."""
    if (policy := manifest.spec.policy) is None:
        return ()
    spent = manifest.spec.judged(policy, None, book.all_paid).spent
    if holds(policy.epsilon, spent, spent):
        return ()
    at = f"epsilon {upper_text(spent)} at delta {upper_text(policy.delta)}"
    return (f"beyond its policy: with what was recovered all runs come to {at}, and policy.epsilon={policy.epsilon:g}",)


class Chains:
    """Both chains of a ledger as they stood when they were read, once for however much evidence is held against them.

    Attributes:
        unlike: By charge that stands, norms of releases that evidence has seen of it, other than the stored one.

    Args:
        ledger: The open ledger.
        run: Identifier of the run.
    """

    def __init__(self, ledger: Ledger, run: str) -> None:
        self.book, rows = ledger.book(), ledger.release_rows()
        self._run, self._recovered = run, recovered_places(self.book, run)
        self._stored = {row.release_id: row.body for row in rows}
        self._places = {(row.sequence, row.digest) for row in rows}
        self.unlike = defaultdict[Position, set[float | None]](set)

    def contradiction(self, seen: Evidence) -> Contradiction | None:
        """Say what the ledger lacks of what evidence has seen; None where they agree, or a recovery charged it."""
        sequence, digest = seen.place
        found = self.book.digest_at(sequence)
        recoveries = self._recovered[seen.place]
        if found != digest and not recoveries:
            what = "is not in it" if found is None else "is another one in it"
            return Contradiction(
                what=f"{seen.by} has seen row {sequence} of the ledger, which {what}: the ledger's tail was lost or "
                "replaced, or a part was restored from a copy"
            )
        if seen.stored is not None and seen.stored not in self._places:
            what = f"has seen stored release {seen.stored[0]}, which is not in the ledger or is another one"
            return Contradiction(what=f"{seen.by} {what}")
        if not seen.is_public or found != digest or (problem := self._unlike(seen)) is None:
            return None
        self.unlike[seen.place].add(seen.norm)
        return problem if len(self.unlike[seen.place]) > recoveries else None

    def _unlike(self, seen: Evidence) -> Contradiction | None:
        stored = self._stored.get(f"{self._run}/{seen.round}")
        if stored is None:
            what = f"says that round {seen.round} was released, and the ledger holds no release of it"
            return Contradiction(what=f"{seen.by} {what}")
        release, _ = decode_release(stored)
        norm = float(np.linalg.norm(release.values))
        same = (release.sequence, release.head) == seen.place and seen.stddev in (None, release.noise_stddev)
        if not same or (seen.norm is not None and not math.isclose(norm, seen.norm, rel_tol=1e-9)):
            what = f"says of round {seen.round} what the ledger's stored release does not"
            return Contradiction(what=f"{seen.by} {what}", is_uncertain=False)
        return None


def recovered_places(book: Book, run: str) -> Counter[Position]:
    """Charges of a run that were lost, or their releases, and how often recoveries have made them good."""
    found = Counter[Position]()
    for each in book.reservations:
        if each.run == run:
            found |= Counter(each.declared.lost)
    return found
