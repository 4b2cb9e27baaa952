"""A run on disk: the files of its directory, the manifest that identifies it, and whether this user made it.

Layout::

    DIR/config.json            the manifest: the run as asked for, its plan and its price (public)
    DIR/ledger.sqlite          charges and stored releases (public)
    DIR/history.jsonl          one line per round (public)
    DIR/announced.json         points that clients were told to evaluate, where they are kept (public)
    DIR/report.html            (public)
    DIR/private/               clients' evaluations and clip statistics: NOT covered by epsilon
        README.txt  clients-N.states  clipping.jsonl  scores.jsonl  errors.jsonl  countersigned.jsonl  allocation.npz

A directory from a stranger names code and a ledger, too: resuming it would run that code, and the ledger may be a
stranger's server, or any file of this user's. A run that is made here is therefore marked on its private side with a
keyed digest of its manifest; the key never leaves the user's state folder (``$XDG_STATE_HOME/privbo/key``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from accountant.errors import PrivacyError
from accountant.ledger.address import place_of, stands
from accountant.ledger.policy import digest_of
from accountant.ledger.tables import Place
from privbo.door.noise import ExactNoise, NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.sampling import Allocation, Keeper
from privbo.plans.plan import Plan
from privbo.protocol.errors import RunError
from privbo.protocol.files import (
    append_line,
    array_bytes,
    being_read,
    load_arrays,
    private_folder,
    read_json,
    read_lines,
    require_contained,
    write_atomically,
    write_json,
    write_once,
)
from privbo.protocol.messages import Announcing, FloatArray, Server
from privbo.protocol.settings import JsonObject
from privbo.runs.code import toolkit
from privbo.runs.spec import Spec
from privbo.runs.states import States


def derive_seed(root: int, stream: str) -> int:
    """Give a 63-bit seed for one named stream of a run."""
    words = np.random.SeedSequence([root, *stream.encode()]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def noise_of(source: str, root: int, stream: str) -> NoiseSource:
    """Give the noise that a plan names; a simulation's is derived from the run's root and the stream's name."""
    if source == "simulation":
        return SimulatedNoise(derive_seed(root, stream))
    return ExactNoise() if source == "exact" else SecureNoise()


_KEY_BYTES = 32


def _plain(announced: Mapping[str, FloatArray]) -> JsonObject:
    return {name: array.tolist() for name, array in announced.items()}


def _key(*, make: bool) -> bytes | None:
    """This user's key; None where there is none and none can be made."""
    base = os.environ.get("XDG_STATE_HOME")
    try:
        path = (Path(base) if base else Path.home() / ".local" / "state") / "privbo" / "key"
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_once(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)  # the first of several processes wins
        found = path.read_bytes()
    except (OSError, RuntimeError, RunError):  # no home, or nothing may be written there
        return None
    return found if len(found) == _KEY_BYTES else None


FORMAT = 3
SCORES = "scores.jsonl"  # in a run's private folder, and in a site's own of the run
_FACTS = ("run_id", "created", "public_seed", "versions", "caveat")  # of a manifest, beside its spec and its plan


def keep_clipped(path: Path, client: int, clipped: int, scored: int, **key: int) -> None:
    """PRIVATE: keep how many scores of an evaluation's records were clipped.

    Args:
        path: The file.
        client: Number of the client.
        clipped: How many were.
        scored: Of how many.
        key: The evaluation's ``round`` and its ``place`` in it, where a round may be played again.
    """
    append_line(path, {"client": client, "clipped": clipped, "scored": scored} | key)


def clipped_shares(path: Path) -> dict[int, float]:
    """PRIVATE: read the share of scores that were clipped, over all evaluations of each client, each counted once."""
    last = {
        (row["client"], row.get("round"), row.get("place", -number)): row
        for number, row in enumerate(read_lines(path), 1)
    }
    clipped, scored = Counter[int](), Counter[int]()
    for row in last.values():
        clipped[row["client"]] += row["clipped"]
        scored[row["client"]] += row["scored"]
    return {client: clipped[client] / scored[client] for client in sorted(scored)}


@dataclass(frozen=True)
class PublicFile:
    """The path of a file by its name, as an attribute of its run's directory."""

    name: str
    folder: ClassVar[str] = ""

    def __get__(self, home: RunDirectory, _kind: object = None) -> Path:
        return home.path / self.folder / self.name


class PrivateFile(PublicFile):
    """The path of a file on the private side."""

    folder = "private"


@dataclass(frozen=True)
class RunDirectory:
    """Paths and files of one run."""

    path: Path

    config_path = PublicFile("config.json")  # the run's manifest
    ledger_path = PublicFile("ledger.sqlite")  # the run's own ledger (a run may name a shared one instead)
    history_path = PublicFile("history.jsonl")  # the public history
    report_path = PublicFile("report.html")  # the page
    announced_path = PublicFile("announced.json")  # what was announced and is not computed again
    groups_path = PrivateFile("groups.json")  # groups in which clients are worked on
    journal_path = PrivateFile("evaluated.rows")  # evaluations of the round that is being played
    clipping_path = PrivateFile("clipping.jsonl")  # clip statistics per release
    evaluations_path = PrivateFile("evaluations.npz")  # every evaluation of a finished run
    scores_path = PrivateFile(SCORES)  # clipped scores of records, by evaluation
    errors_path = PrivateFile("errors.jsonl")  # every client's first error
    output_path = PrivateFile("output.txt")  # file into which a command puts what clients' code prints
    countersigned_path = PrivateFile("countersigned.jsonl")  # ledger heads that sites countersigned: who was there
    seed_path = PrivateFile("seed.json")  # the root of the run's seeds (it fixes the clients' own randomness)
    allocation_path = PrivateFile("allocation.npz")  # who takes part when; secret even where the folder is shown
    origin_path = PrivateFile("origin")  # mark of the user who made the run

    @property
    def private(self) -> Path:
        """The private side."""
        return self.path / "private"

    def control_path(self, name: str, kind: str) -> Path:
        """File of a control's evaluations (private)."""
        return self.private / f"control-{name}.{kind}"

    def recall(self, server: Server) -> None:
        """Tell a server what it announced before, if that is kept.

        Raises:
            RunError: If the file can't be read.
        """
        if isinstance(server, Announcing) and (kept := self._announced()) is not None:
            server.announced |= kept

    def keep_announced(self, server: Server) -> str | None:
        """Keep what a server announces, before it is charged and any client is told; its digest, None for nothing."""
        if not isinstance(server, Announcing) or not server.announced:
            return None
        if not self.announced_path.exists():
            write_json(self.announced_path, _plain(server.announced))
        return digest_of(_plain(server.announced))  # not of the file: one that is replaced during a run is noticed

    @property
    def announced_digest(self) -> str | None:
        """SHA-256 of what was announced; None where nothing is kept.

        Raises:
            RunError: If the file can't be read.
        """
        kept = self._announced()
        return None if kept is None else digest_of(_plain(kept))

    def _announced(self) -> dict[str, FloatArray] | None:
        if not self.announced_path.exists():
            return None
        with being_read(self.announced_path):
            return {name: np.array(rows, dtype=np.float64) for name, rows in read_json(self.announced_path).items()}

    def keep_failure(self, client: int, reason: str) -> None:
        """PRIVATE: keep a client's first error."""
        append_line(self.errors_path, {"client": client, "error": reason})

    def failures(self) -> dict[int, str]:
        """PRIVATE: read the clients' first errors by client."""
        return {int(row["client"]): str(row["error"]) for row in read_lines(self.errors_path)}

    @property
    def is_ours(self) -> bool:
        """Whether this user made the run, and its manifest is unchanged."""
        key, mark = _key(make=False), self.origin_path
        return key is not None and mark.is_file() and hmac.compare_digest(mark.read_bytes(), self._mark(key))

    def require_ours(self) -> None:
        """Refuse a directory of a stranger's.

        Raises:
            RunError: If it bears no mark of this user's, or its manifest was changed since.
        """
        if not self.is_ours:
            raise RunError(
                f"{self.path} was not made by this user; going on with it runs the code and opens the ledger that "
                "its config.json names; add --trust if you trust it"
            )

    def _mark(self, key: bytes) -> bytes:
        return hmac.new(key, self.config_path.read_bytes(), hashlib.sha256).hexdigest().encode()

    @property
    def seed(self) -> int:
        """PRIVATE: the root of the run's seeds."""
        if not isinstance(seed := read_json(self.seed_path).get("seed"), int):
            raise RunError(f"{self.seed_path} holds no seed; restore it from a copy")
        return seed

    def require_new(self) -> None:
        """Refuse a directory in which a run stands already.

        Raises:
            RunError: Naming it.
        """
        if self.config_path.exists():
            raise RunError(f"{self.path} already holds a run; resume it or name another directory")
        if self.path.is_file():
            raise RunError(f"{self.path} is a file; name another directory")

    def create(self, manifest: Manifest, *, seed: int) -> None:
        """Make the directory; the manifest is written last and makes it a run.

        Raises:
            RunError: If a run stands there already.
        """
        self.require_new()
        private_folder(self.path)
        write_json(self.seed_path, {"seed": seed})
        write_json(self.config_path, manifest.to_dict())
        if (key := _key(make=True)) is not None:
            write_atomically(self.origin_path, self._mark(key))

    def settle(self, created: str) -> None:
        """Date every entry to the day the run was made: a finer time would tell how long clients took."""
        day = datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp()
        for path in (*self.path.iterdir(), self.path):
            if not path.is_symlink():
                with suppress(FileNotFoundError):  # another program's, which came and went
                    os.utime(path, (day, day))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Settle when a run ends, in whatever way; nothing hides what ended it."""
        try:
            yield
        except BaseException:
            with suppress(PrivacyError, OSError, TypeError, ValueError):  # of a folder that is no run, or another's
                self.settle(self.manifest().created)
            raise
        self.settle(read_json(self.config_path)["created"])

    def manifest(self) -> Manifest:
        """Read the run's manifest.

        Raises:
            RunError: If no run stands there, or one of an older format, or a link leads out of the directory.
        """
        if self.path.is_file():
            raise RunError(
                f"{self.path} is a file; name the directory of a run; privbo verify-bundle checks a bundle, and privbo "
                "ledger left reads a ledger's file"
            )
        if not self.config_path.exists() and (self.path / "search.json").exists():
            raise RunError(
                f"{self.path} holds a private training and no run; privbo ledger show and privbo ledger verify read "
                "its ledgers, pb.train_private(..., resume=True) gives its network"
            )
        if self.config_path.exists():
            require_contained(self.path)
        content = read_json(self.config_path)
        if content.get("format") != FORMAT:
            raise RunError(
                f"{self.path} was written in format {content.get('format')!r}, this privbo reads {FORMAT}; "
                "no version that wrote the former was published: make the run anew from its configuration"
            )
        return Manifest.from_dict(content)

    @property
    def interrupted(self) -> str:
        """Say how to go on with a run in one process, or its controls; empty if nothing is left, or sites play it."""
        spec = self.manifest().spec
        made = (self.evaluations_path, *(self.control_path(name, "npz") for name in spec.controls))
        if not self.journal_path.exists() or all(path.exists() for path in made):
            return ""
        how = f"privbo run --resume {self.path}" if spec.problem.is_named else "privbo.run(..., directory, resume=True)"
        return f"{self.path} is not finished; go on with it first: {how}"

    def all_states(self) -> list[States]:
        """The states of all groups that have answered (private)."""
        return [States(path) for path in sorted(self.private.glob("clients-*.states"))]

    def groups_of(self, n_clients: int) -> list[tuple[int, int]]:
        """Groups in which a run of so many clients began, each from one client to below another; none if it did not."""
        if self.groups_path.exists():
            first = [int(one) for one in read_json(self.groups_path)["first"]]
            return list(zip(first, [*first[1:], n_clients], strict=True))
        return [(0, n_clients)] if self.all_states() else []


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A run's identity as it stands in ``config.json``, fixed before any data is touched.

    Attributes:
        spec: The run as asked for.
        plan: Its plan and price.
        run_id: Its name in the ledger.
        created: Date of its making (UTC), for information only.
        public_seed: Seed of everything both sides agree on.
        versions: Versions of what the numbers depend on.
        caveat: The algorithm's own warning to readers of a report.
    """

    spec: Spec
    plan: Plan
    run_id: str
    created: str
    public_seed: int
    versions: Mapping[str, str]
    caveat: str | None

    def to_dict(self) -> JsonObject:
        """Give the manifest as JSON."""
        facts = {name: getattr(self, name) for name in _FACTS}
        tables = {"spec": self.spec.to_dict(), "plan": self.plan.to_dict()}
        shared = self.spec.ledger
        folder = {} if shared is None or shared.folder is None else {"ledger_folder": shared.folder}
        return {"format": FORMAT, **facts, "digest": self.spec.digest(), **folder, **tables}

    @staticmethod
    def from_dict(content: Mapping[str, object]) -> Manifest:
        """Read a manifest as ``to_dict`` wrote it; no module of the user's is imported.

        Raises:
            RunError: If its settings are not those it was made with.
        """
        spec = Spec.from_dict(cast("JsonObject", content["spec"]))
        if spec.ledger is not None and "ledger_folder" in content:
            kept = replace(spec.ledger, folder=cast("str", content["ledger_folder"]))
            spec = replace(spec, ledger=kept) if stands(kept.place) else spec  # a project may have been moved
        if spec.digest() != content["digest"]:
            raise RunError("the manifest's settings are not those the run was made with; restore config.json")
        plan = Plan.from_dict(cast("JsonObject", content["plan"]), spec.privacy, spec.problem.n_clients, spec.n_records)
        return Manifest(spec=spec, plan=plan, **{name: cast("Any", content[name]) for name in _FACTS})


def versions() -> dict[str, str]:
    """Give the versions of what the numbers depend on."""
    return {part.removeprefix("version "): version for part, version in toolkit().items()}


def readable_ledger(home: RunDirectory, manifest: Manifest, named: Path | str | None = None) -> Place:
    """Find the ledger of a run that is read: inside its directory, or the one that the reader or this user's run named.

    Args:
        home: The run's directory.
        manifest: Of the run.
        named: File or address of the population's ledger, as the reader gives it; a run with a ledger of its own
            needs none.

    Raises:
        RunError: If a stranger's run names a ledger elsewhere; it was not opened.
    """
    shared = manifest.spec.ledger
    if shared is None:
        return home.ledger_path
    if named is not None:
        return place_of(str(named))
    place = shared.place
    inside = isinstance(place, Path) and place.resolve().is_relative_to(home.path.resolve())
    if inside or home.is_ours:
        return place
    raise RunError(
        f"{home.path} was not made by this user and names the ledger {place}, which is not opened unasked; if you know "
        f"it, add --ledger {shlex.quote(str(place))} (ledger=... in Python)"
    )


@dataclass(frozen=True, kw_only=True)
class KeptAllocation(Keeper):
    """Keeps who takes part in which release, as bits, under the run's name.

    Attributes:
        home: The run's directory.
        run: The run's name in its ledger.
    """

    home: RunDirectory
    run: str

    def kept(self) -> Allocation | None:
        """SECRET: the allocation; None if none is kept.

        Raises:
            RunError: If the file can't be read, or is another run's.
        """
        path = self.home.allocation_path
        if not path.exists():
            return None
        with being_read(path):
            arrays = load_arrays(path)
            owner, shape = str(arrays["run"].item()), tuple(int(n) for n in arrays["shape"])
            bits = np.unpackbits(arrays["bits"].astype(np.uint8), axis=1, count=shape[1])
        if owner != self.run or bits.shape != shape:
            raise RunError(f"{path} is the allocation of {owner}, not of {self.run}; restore this run's from a copy")
        return Allocation(np.asarray(bits, dtype=bool), arrays["salt"].tobytes())

    def keep(self, allocation: Allocation) -> None:
        """Keep an allocation, durable on return; one that is kept already stays."""
        private_folder(self.home.path)
        table, salt = allocation.table, np.frombuffer(allocation.salt, np.uint8)
        bits = np.packbits(table, axis=1)
        arrays = {"run": np.array(self.run), "shape": np.array(table.shape), "bits": bits, "salt": salt}
        write_once(self.home.allocation_path, array_bytes(arrays))
