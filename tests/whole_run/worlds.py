"""A world: commands played in it, everything they leave outside ``private/``, and what each round would have released.

The first world's releases are fed to the second one, round by round: otherwise other clients
react to what was released and the worlds part for reasons that are paid for. Noise is seeded
and the same in both, so two releases of one round differ by their clipped sums alone.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tomli_w

from accountant.ledger import Ledger
from privbo.door.payload import decode_release
from tests.cli.test_cli import privbo
from tests.whole_run import clinic

HOME = "out"
FULL = (
    ("run", "run.toml", "--out", HOME),
    ("run", "--resume", HOME, "--json"),
    ("check", "run.toml"),
    ("report", HOME),
    ("report", HOME, "--json"),
    ("ledger", "show", HOME),
    ("ledger", "verify", HOME),
    ("ledger", "export", HOME),
    ("compare", HOME, "--out", "compared"),
    ("compare", HOME, "--out", "compared", "--json"),
    ("audit", HOME),
    ("best", HOME, "--json", "--show-private"),
)
SHORT = (("run", "run.toml", "--out", HOME), ("ledger", "export", HOME))
PRIVATE_COMMANDS = {
    "audit",
    "best",
}  # they print what is private, by their own words


@dataclass(frozen=True)
class Outcome:
    """Everything outside ``private/``, and what each release would have been without the feeding.

    Attributes:
        seen: By name: exit codes, what commands said, files with their sizes, bytes and times.
        releases: Stored bytes by release, as this world made them.
    """

    seen: Mapping[str, object]
    releases: Mapping[str, bytes]

    def differences(self, other: Outcome) -> list[str]:
        """Names of what differs, for people."""
        names = self.seen.keys() | other.seen.keys()
        return sorted(name for name in names if self.seen.get(name) != other.seen.get(name))


@dataclass
class Feed:
    """Stands where releases are stored: notes this world's own bytes and keeps those of the world before."""

    earlier: Mapping[str, bytes] | None
    made: dict[str, bytes] = field(default_factory=dict)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        store = Ledger.store_release

        def fed(ledger: Ledger, release_id: str, payload: bytes) -> None:
            self.made[release_id] = payload
            store(ledger, release_id, payload if self.earlier is None else self.earlier.get(release_id, payload))

        with mock.patch.object(Ledger, "store_release", fed):
            yield


@contextlib.contextmanager
def same_names() -> Iterator[None]:
    """Random names of runs and ledgers are the same in every world."""
    drawn: Counter[int] = Counter()

    def name(n_bytes: int) -> str:
        drawn[n_bytes] += 1
        return hashlib.sha512(repr((n_bytes, drawn[n_bytes])).encode()).hexdigest()[: 2 * n_bytes]

    with mock.patch.object(secrets, "token_hex", name):
        yield


def play(
    folder: Path,
    table: Mapping[str, Any],
    world: str,
    commands: Sequence[Sequence[str]],
    earlier: Outcome | None = None,
) -> Outcome:
    """Play commands in a fresh folder, as a world of that name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(tomli_w.dumps(table))
    clinic.forget()
    feed, seen = Feed(None if earlier is None else earlier.releases), {}
    named = mock.patch.dict(os.environ, {clinic.WORLD: world})
    with contextlib.chdir(folder), named, same_names(), feed.at_work():
        for command in commands:
            done = privbo(*command)
            gc.collect()  # as the end of a process: ledgers that a command left open are closed
            said = (done.returncode,) if command[0] in PRIVATE_COMMANDS else (done.returncode, done.stdout, done.stderr)
            name = " ".join(command)
            seen[name] = said
            seen |= {f"{name}: {file}": look for file, look in _files(folder, timed=command[0] == "run")}
    return Outcome(seen, feed.made)


def _files(folder: Path, *, timed: bool) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """What a copy of a folder shows: names, sizes, bytes, and after a run times; a reader's later commands have his."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if "private" in inside.parts[:-1] or inside.parts[0] == "run.toml":
            continue
        status = path.stat()
        time = status.st_mtime_ns if timed and path.name != "private" else None
        yield inside, (time, None if path.is_dir() else (status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()))


def moved(first: Outcome, second: Outcome) -> list[float]:
    """By how much every release differs, in units of the stated sensitivity (with noise multiplier 1 sigma is it)."""
    found = []
    for name, payload in first.releases.items():
        ours, theirs = decode_release(payload)[0], decode_release(second.releases[name])[0]
        assert ours.noise_stddev == theirs.noise_stddev
        found.append(float(np.linalg.norm(ours.values - theirs.values)) / ours.noise_stddev)
    return found
