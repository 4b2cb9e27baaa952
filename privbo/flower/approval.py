"""A run as a site or guardian computes it, from files that it has approved; what differs is refused and kept.

The app's files come from the server with the run, so they are no copy of one's own. A party pins the digests of the
files it has read in its ``site.toml`` or ``guardian.toml`` (``privbo flower approve``)::

    [[approved]]
    run = "64 hexadecimal digits"          # SHA-256 of run.toml
    federation = "64 hexadecimal digits"   # SHA-256 of federation.toml

From them the party computes the plan, its price, its noise multiplier and every round's request. No number that
decides its protection is read from a message. Python code beside the files is not pinned: whoever ships an
app's code is trusted with everything that the code can reach.

    DIR/refused.jsonl   every refusal: run, field, what this party computes, what was declared
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from accountant.events import Event, to_dict
from accountant.ledger.book import Declaration
from accountant.ledger.chain import RESERVATION, Row
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.flower.settings import (
    FEDERATION_FILE,
    RUN_FILE,
    Approved,
    Federation,
    Party,
    SiteSettings,
    federation_of,
    site_spec,
    spec_of,
)
from privbo.guardians.ciphertexts import Call, question_digest
from privbo.plans.plan import Plan
from privbo.protocol.errors import RefusedError, RunError
from privbo.protocol.files import append_line
from privbo.protocol.messages import Broadcast, Request, Server, request_of
from privbo.runs.evidence import declared_by, plan_name
from privbo.runs.manifest import derive_seed
from privbo.runs.opening import plan_run
from privbo.runs.sources import ForeignAlgorithm
from privbo.runs.spec import Spec, read_bytes

_DECLARED = ("run", "kind", "events", "settings", "delta", "noise_source", "stopping")
_DIGITS = 1e-9  # relative; two machines' arithmetic
_SHOWN = 300  # characters of a foreign value that are kept


@dataclass(frozen=True, kw_only=True)
class AppFiles:
    """Contents of the two files that describe a run.

    Attributes:
        home: Folder of the app.
        run: Of ``run.toml``.
        federation: Of ``federation.toml``.
    """

    home: Path
    run: bytes
    federation: bytes

    @classmethod
    def read(cls, home: Path) -> AppFiles:
        """Read them once, so that what is checked is what is used.

        Raises:
            ConfigurationError: If one is missing.
        """
        return cls(home=home, run=read_bytes(home / RUN_FILE), federation=read_bytes(home / FEDERATION_FILE))

    @property
    def digests(self) -> Approved:
        """What a party pins of them."""
        return Approved(
            run=hashlib.sha256(self.run).hexdigest(), federation=hashlib.sha256(self.federation).hexdigest()
        )


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """A run as one party computes it.

    Attributes:
        party: The site or guardian.
        files: The app's files.
        spec: The run's public side.
        settings: Digest of its settings, as the server's ledger has it.
        federation: Sites, guardians and waiting times.
        plan: Everything that will be released, and its price.
    """

    party: Party
    files: AppFiles
    spec: Spec
    settings: str
    federation: Federation
    plan: Plan

    @cached_property
    def own_spec(self) -> Spec:
        """The run with the site's own problem; loads the site's code and data.

        Raises:
            ConfigurationError: If the problem is another one than the run's.
        """
        if not isinstance(self.party, SiteSettings):
            raise RunError("a guardian has no clients, and loads no problem")
        return site_spec(self.files.home, self.files.run, self.party)

    @cached_property
    def _servers(self) -> dict[int, Server]:
        return {}

    def server(self, public_seed: int) -> Server:
        """Give the public side, told nothing."""
        if public_seed not in self._servers:
            self._servers.clear()
            self._servers[public_seed] = self.spec.played.server(self.spec.setting(public_seed))
        return self._servers[public_seed]

    @property
    def clients_seed(self) -> int | None:
        """Seed of the clients' own randomness in a simulation that names one; None where each site draws its own."""
        seed = self.spec.seed
        return None if seed is None or not self._is_seeded else derive_seed(seed, "clients")

    @property
    def _is_seeded(self) -> bool:
        return self.plan.noise_source in {"simulation", "none"}

    def declared(self, run: str) -> Declaration:
        """Declare the plan as this party's own ledger is to bind it."""
        return declared_by(self.plan, run=run, settings=self.settings)

    def mechanism(self, request: Request) -> Mechanism:
        """Give the mechanism that answers a request under the plan."""
        return self.plan.mechanism(request)

    def call(self, run: str, round_: int, request: Request) -> Call:
        """Name a round as clients and guardians must all mean it.

        Raises:
            RunError: If the run has no guardians.
        """
        mechanism = self.mechanism(request)
        if not isinstance(mechanism, PrivateSum):
            raise RunError("a plain sum has no guardians")
        question = question_digest(mechanism, request)
        return Call(run=run, round=round_, plan=plan_name(self.declared(run)), question=question)

    def request(self, broadcast: Broadcast, *, public_seed: int, released: bool) -> Request | None:
        """Compute what a round asks for, from its broadcast alone; None where nothing is sent.

        Raises:
            RefusedError: If the message says otherwise, or the seed is not the run's.
            ConfigurationError: If no round of this run looks like it.
        """
        seed = self.spec.seed
        if seed is not None and public_seed != (own := derive_seed(seed, "public")):
            raise RefusedError("public_seed", expected=own, found=public_seed)
        request = request_of(self.server(public_seed), broadcast, released=released)
        if (request is not None) != released:
            raise RefusedError("released", expected=request is not None, found=released)
        return request

    def event(self, request: Request | None, earlier: Mapping[str, int]) -> Event | None:
        """Give the event of a release that the plan has a place for; None in a round of local work.

        Args:
            request: Of the round.
            earlier: Number of releases by event (``event_name``) in all other rounds that were answered.

        Raises:
            RefusedError: If the plan has no place left for it.
        """
        if request is None:
            return None
        event = self.mechanism(request).event()
        planned, made = self._slots[event_name(event)], earlier.get(event_name(event), 0)
        if made + 1 > planned:
            raise RefusedError(f"releases of {event}", expected=f"at most {planned}", found=made + 1)
        return event

    @cached_property
    def _slots(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for event, count in self.declared("run").slots.items():
            found[event_name(event)] += count
        return found

    def require_declared(self, run: str, plan: str, rows: list[Row]) -> None:
        """Hold the plan of a run among rows of the server's ledger to the plan as this party computes it.

        Args:
            run: Name of the run.
            plan: Digest of the row that the server names as the run's plan.
            rows: Rows that were shown; the plan is among those that are shown first.

        Raises:
            RefusedError: Naming the first field that differs.
        """
        own = self.declared(run)
        terms = {"unit": self.plan.unit, "adjacency": self.plan.adjacency.value, "n_clients": self.plan.n_clients}
        computed = {name: own.to_dict()[name] for name in _DECLARED} | terms
        for row in rows:
            content = json.loads(row.body)
            if row.digest != plan and (content.get("row"), content.get("run")) != (RESERVATION, run):
                continue
            if row.digest != plan and content.get("kind") == "recovery":
                continue  # pays once more for what was lost
            for name, expected in computed.items():
                if not _alike(expected, content.get(name)):
                    raise RefusedError(f"ledger's {name}", expected=expected, found=content.get(name))

    def require_charged(self, name: str, event: Event | None, rows: list[Row]) -> None:
        """Hold the charge of a round in the server's ledger to the event as this party computes it.

        Raises:
            RefusedError: If it is another event.
        """
        if event is None:
            return
        for row in rows:
            if row.release_id == name and not _alike(to_dict(event), found := json.loads(row.body).get("event")):
                raise RefusedError("ledger's charge", expected=to_dict(event), found=found)


def _alike(expected: object, found: object) -> bool:
    """Tell whether two JSON values are the same, but for the last digits of numbers that two machines computed."""
    match expected, found:
        case dict(), dict():
            return expected.keys() == found.keys() and all(_alike(expected[name], found[name]) for name in expected)
        case list(), list():
            return len(expected) == len(found) and all(map(_alike, expected, found))
        case (bool(), _) | (_, bool()):
            return expected is found
        case ((int() | float()), (int() | float())):
            return math.isclose(expected, found, rel_tol=_DIGITS)
        case _:
            return expected == found


LoadsRun: TypeAlias = Callable[[Path, Party], PartyRun]


def event_name(event: Event) -> str:
    """Give an event as one line of JSON, by which two are compared."""
    return json.dumps(to_dict(event), sort_keys=True)


def approved_run(home: Path, party: Party) -> PartyRun:
    """Read a run from files that the party has approved.

    Raises:
        RefusedError: If it has not approved them.
        ConfigurationError: If they are impossible.
    """
    files = AppFiles.read(home)
    _require_approved(party, files)
    return run_of(files, party)


def run_of(files: AppFiles, party: Party) -> PartyRun:
    """Compute a run from its files, approved or not.

    Raises:
        ConfigurationError: If they are impossible.
    """
    spec, settings, plan = _priced(files.home, files.run)
    federation = federation_of(files.federation)
    return PartyRun(party=party, files=files, spec=spec, settings=settings, federation=federation, plan=plan)


@lru_cache(maxsize=4)
def _priced(home: Path, content: bytes) -> tuple[Spec, str, Plan]:
    """The run's public side: where one process plays a thousand sites it is priced once for all of them."""
    spec = spec_of(home, content)
    if isinstance(spec.algorithm, ForeignAlgorithm):
        spec = dataclasses.replace(spec, algorithm=spec.algorithm.load())
    return spec, spec.digest(), plan_run(spec)


def kept_run() -> LoadsRun:
    """Give an ``approved_run`` that loads again only where the app's files or the party's settings have changed."""
    kept: list[PartyRun] = []

    def load(home: Path, party: Party) -> PartyRun:
        files = AppFiles.read(home)
        if not kept or (kept[0].files, kept[0].party) != (files, party):
            kept[:] = [approved_run(home, party)]
        return kept[0]

    return load


def _require_approved(party: Party, files: AppFiles) -> None:
    found = files.digests
    if found in party.approved:
        return
    for name in ("run", "federation"):
        expected = [getattr(one, name) for one in party.approved]
        if getattr(found, name) not in expected:
            raise RefusedError(
                f"{name}.toml",
                expected=expected or "no approved file",
                found=getattr(found, name),
                remedy=f"read it, then: privbo flower approve {party.role}.toml APP",
            )
    raise RefusedError(
        "run.toml with federation.toml",
        expected="a pair approved together",
        found=(found.run, found.federation),
        remedy=f"read both, then: privbo flower approve {party.role}.toml APP",
    )


def keep_refusal(party: Party, run: str, error: BaseException) -> None:
    """Write down a refusal at the party that refused, for its own people."""
    row = {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "run": run[:_SHOWN], "error": type(error).__name__}
    if isinstance(error, RefusedError):
        row |= {"field": error.field, "expected": repr(error.expected)[:_SHOWN], "found": repr(error.found)[:_SHOWN]}
    folder = Path(party.directory)
    folder.mkdir(parents=True, exist_ok=True)
    append_line(folder / "refused.jsonl", row | {"words": str(error)[: 4 * _SHOWN]})


def approve_files(path: Path, party: Party, files: AppFiles) -> bool:
    """Append the files' digests to a party's settings; False where they stand there already."""
    found = files.digests
    if found in party.approved:
        return False
    text = path.read_text()
    lines = ["", "[[approved]]", f'run = "{found.run}"', f'federation = "{found.federation}"', ""]
    path.write_text(text + ("" if text.endswith("\n") else "\n") + "\n".join(lines))
    return True


def broadcast_arrays(broadcast: Broadcast) -> dict[str, npt.NDArray[np.generic]]:
    """Give a broadcast as named arrays, as it is kept on disk."""
    return {f"said {name}": np.asarray(array) for name, array in broadcast.arrays.items()}


def broadcast_of(round_: int, kept: Mapping[str, npt.NDArray[np.generic]]) -> Broadcast:
    """Read what ``broadcast_arrays`` gave."""
    arrays = {name.removeprefix("said "): array for name, array in kept.items() if name.startswith("said ")}
    return Broadcast(round=round_, arrays=arrays)
