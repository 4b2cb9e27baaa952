"""A run on disk: the files of its directory, and the manifest that identifies it.

Layout::

    DIR/config.json            the manifest: the run as asked for, its plan and its price (public)
    DIR/ledger.sqlite          charges and stored releases (public)
    DIR/history.jsonl          one line per round (public)
    DIR/report.html            (public)
    DIR/private/               clients' evaluations and clip statistics: NOT covered by epsilon
        README.txt  clients-N.states  clipping.jsonl  errors.jsonl  countersigned.jsonl  allocation.npz
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import ClassVar, cast

from privbo.plans.plan import Plan
from privbo.protocol.errors import RunError
from privbo.protocol.files import (
    append_line,
    private_folder,
    read_json,
    read_lines,
    require_contained,
    write_json,
)
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CODE, toolkit
from privbo.runs.origin import is_ours, mark, require_ours
from privbo.runs.spec import Spec
from privbo.runs.states import States

FORMAT = 3
_OLDER = {"1": "0.1.0", "2": "0.2.0"}


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
    groups_path = PrivateFile("groups.json")  # groups in which clients are worked on
    journal_path = PrivateFile("evaluated.rows")  # evaluations of the round that is being played
    clipping_path = PrivateFile("clipping.jsonl")  # clip statistics per release
    evaluations_path = PrivateFile("evaluations.npz")  # every evaluation of a finished run
    errors_path = PrivateFile("errors.jsonl")  # every client's first error
    output_path = PrivateFile("output.txt")  # file into which a command puts what clients' code prints
    countersigned_path = PrivateFile("countersigned.jsonl")  # ledger heads that sites countersigned: who was there
    seed_path = PrivateFile("seed.json")  # the root of the run's seeds (it fixes the clients' own randomness)
    origin_path = PrivateFile("origin")  # mark of the user who made the run

    @property
    def private(self) -> Path:
        """The private side."""
        return self.path / "private"

    def control_path(self, name: str, kind: str) -> Path:
        """File of a control's evaluations (private)."""
        return self.private / f"control-{name}.{kind}"

    def keep_failure(self, client: int, reason: str) -> None:
        """PRIVATE: keep a client's first error."""
        append_line(self.errors_path, {"client": client, "error": reason})

    def failures(self) -> dict[int, str]:
        """PRIVATE: read the clients' first errors by client."""
        return {int(row["client"]): str(row["error"]) for row in read_lines(self.errors_path)}

    @property
    def is_ours(self) -> bool:
        """Whether this user made the run, and nobody changed its manifest since."""
        return is_ours(self.config_path, self.origin_path)

    def require_ours(self) -> None:
        """Refuse a directory of a stranger's.

        Raises:
            RunError: If this user did not make it.
        """
        require_ours(self.config_path, self.origin_path)

    @property
    def seed(self) -> int:
        """PRIVATE: the root of the run's seeds."""
        return int(cast("int", read_json(self.seed_path)["seed"]))

    def create(self, manifest: Manifest, *, seed: int) -> None:
        """Make the directory; the manifest is written last and makes it a run.

        Raises:
            RunError: If a run stands there already.
        """
        if self.config_path.exists():
            raise RunError(f"{self.path} already holds a run; resume it or name another directory")
        private_folder(self.path)
        write_json(self.seed_path, {"seed": seed})
        write_json(self.config_path, manifest.to_dict())
        mark(self.config_path, self.origin_path)

    def settle(self, created: str) -> None:
        """Date every public file to the day the run was made: a finer time would tell how long clients took."""
        day = datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp()
        for path in (*self.path.iterdir(), self.path):
            if path != self.private and not path.is_symlink():
                os.utime(path, (day, day))

    def manifest(self) -> Manifest:
        """Read the run's manifest.

        Raises:
            RunError: If no run stands there, or one of an older format, or a link leads out of the directory.
        """
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
                f"read it with privbo {_OLDER.get(str(content.get('format')), 'that wrote it')}"
            )
        return Manifest.from_dict(content)

    def local_rounds(self) -> set[int]:
        """Rounds that released nothing, as far as the history says."""
        return {int(row["round"]) for row in read_lines(self.history_path) if not row["released"]}

    def states(self, first: int) -> States:
        """The state of the group that begins with a client (private)."""
        return States(path=self.private / f"clients-{first}.states")

    def all_states(self) -> list[States]:
        """The states of all groups that have answered (private)."""
        return [States(path=path) for path in sorted(self.private.glob("clients-*.states"))]

    def groups_of(self, n_clients: int) -> list[tuple[int, int]]:
        """Groups in which a run of so many clients began, each from one client to below another; none if it did not."""
        if self.groups_path.exists():
            first = [int(one) for one in cast("list[int]", read_json(self.groups_path)["first"])]
            return list(zip(first, [*first[1:], n_clients], strict=True))
        return [(0, n_clients)] if self.all_states() else []

    def keep_groups(self, first: Sequence[int]) -> None:
        """Keep in which groups the run begins; one of all clients needs no words."""
        if len(first) > 1:
            write_json(self.groups_path, {"first": list(first)})


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
        return {
            "format": FORMAT,
            "run_id": self.run_id,
            "created": self.created,
            "public_seed": self.public_seed,
            "versions": dict(self.versions),
            "caveat": self.caveat,
            "digest": self.spec.digest(),
            "spec": self.spec.to_dict(),
            "plan": self.plan.to_dict(),
        }

    @staticmethod
    def from_dict(content: Mapping[str, object]) -> Manifest:
        """Read a manifest as ``to_dict`` wrote it; no module of the user's is imported.

        Raises:
            RunError: If its settings are not those it was made with.
        """
        spec = Spec.from_dict(cast("JsonObject", content["spec"]))
        if spec.digest() != content["digest"]:
            raise RunError("the manifest's settings are not those the run was made with; restore config.json")
        return Manifest(
            spec=spec,
            plan=Plan.from_dict(cast("JsonObject", content["plan"]), spec.privacy, spec.problem.n_clients),
            run_id=str(content["run_id"]),
            created=str(content["created"]),
            public_seed=int(cast("int", content["public_seed"])),
            versions=cast("Mapping[str, str]", content["versions"]),
            caveat=cast("str | None", content["caveat"]),
        )


def versions() -> dict[str, str]:
    """Give the versions of what the numbers depend on."""
    packages = ("privbo", "numpy", "scipy", "torch", "gpytorch", "numba")
    found = {name: version for name in packages if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **found, CODE: toolkit()[CODE]}


@cache
def _version(name: str) -> str | None:
    """The version of an installed package; asking takes milliseconds, and simulations make thousands of runs."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
