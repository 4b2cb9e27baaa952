"""A world: commands played in it, everything they leave outside ``private/``, and what each round would have released.

The first world's releases are fed to the second one, round by round: otherwise other clients
react to what was released and the worlds part for reasons that are paid for. Noise is secure but for its
keys, which are the same in both, so two releases of one round differ by their clipped sums alone.
"""

import contextlib
import gc
import hashlib
import itertools
import json
import logging
import math
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import tomli_w

from accountant import Adjacency, compose, from_dict, numerical
from accountant.ledger import Ledger
from privbo.door import noise
from privbo.door.payload import decode_release
from tests.cli.test_cli import privbo
from tests.deployment.grid import AT
from tests.whole_run import clinic

HOME = "out"
NORMS = ("audit", HOME, "--publish-norms", "1", "--yes")
EXPORT = ("ledger", "export", HOME, "--population")
DRY = ("run", "run.toml", "--dry-run", "--json")
SHORT = (("run", "run.toml", "--out", HOME), ("ledger", "export", HOME))
PRIVATE_WORDS = {
    "audit",
    "--private",
    "--show-private",
}  # what they print is private by their own words; what they write is not read

# A command, or something that happens to the folder between two of them.
Step = Sequence[str] | Callable[[Path], None]


def keep_key(folder: Path) -> None:
    """The operator's key is the same in every world; it is drawn when something is signed for the first time."""
    (folder / HOME / "private" / "signing.key").write_bytes(bytes(range(32)))


FULL: tuple[Step, ...] = (
    DRY,
    ("run", "run.toml", "--out", HOME),
    keep_key,
    ("run", "--resume", HOME, "--json"),
    ("run", "--resume", HOME, "--dry-run"),
    ("check", "run.toml"),
    ("report", HOME),
    ("report", HOME, "--json"),
    ("report", HOME, "--private"),
    ("report", HOME, "--parquet", "history.parquet"),
    ("ledger", "show", HOME),
    ("ledger", "verify", HOME),
    ("ledger", "export", HOME),
    ("ledger", "receipt", HOME),
    ("ledger", "verify", HOME, "--receipt", f"{HOME}/receipt.json"),
    ("ledger", "recover", HOME),
    ("bundle", HOME),
    ("verify-bundle", f"{HOME}/bundle.json"),
    ("compare", HOME, "--out", "compared"),
    ("compare", HOME, "--out", "compared", "--json"),
    ("compare", HOME, "--out", "compared", "--private"),
    ("audit", HOME),
    ("best", HOME, "--json", "--show-private"),
    ("best", HOME, "--common"),
    NORMS[:-1],
    NORMS,
    ("report", HOME, "--json"),
    EXPORT,
)


@dataclass(frozen=True)
class Outcome:
    """Everything outside ``private/``, and what each release would have been without the feeding.

    Attributes:
        seen: By name: exit codes, what commands said, files with their sizes, bytes and times.
        releases: Stored bytes by release and draw, as this world made them.
        drawn: How often each release was drawn.
    """

    seen: Mapping[str, object]
    releases: Mapping[str, bytes]
    drawn: Mapping[str, int]

    def differences(self, other: "Outcome") -> list[str]:
        """Names of what differs, for people."""
        names = self.seen.keys() | other.seen.keys()
        found = [name for name in names if self.seen.get(name) != other.seen.get(name)]
        return sorted(found) + (["releases"] if self.drawn != other.drawn else [])

    @property
    def drawn_again(self) -> list[str]:
        """Releases that were drawn more than once: each has two outputs for one charge."""
        return sorted(name for name, times in self.drawn.items() if times > 1)


@dataclass
class Feed:
    """Stands where releases are stored: notes this world's own bytes and keeps those of the world before."""

    earlier: Mapping[str, bytes] | None
    made: dict[str, bytes] = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)
    on_release: Callable[[int], None] = lambda _: None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        store = Ledger.store_release

        def fed(ledger: Ledger, release_id: str, payload: bytes) -> None:
            whose = f"{guardian_of(ledger)}{release_id}"
            self.drawn[whose] += 1
            name = f"{whose}, draw {self.drawn[whose]}"
            self.made[name] = payload
            store(ledger, release_id, payload if self.earlier is None else self.earlier.get(name, payload))
            self.on_release(self.drawn.total())

        with mock.patch.object(Ledger, "store_release", fed):
            yield


def guardian_of(ledger: Ledger) -> str:
    """Name of the guardian of a run in this process whose ledger this is, as a prefix; empty for the run's own."""
    path = ledger.path
    return f"{path.parent.name}: " if path is not None and path.parent.parent.name == "guardians" else ""


@contextlib.contextmanager
def same_secrets() -> Iterator[None]:
    """Random names of runs and ledgers, sites' own seeds, and secure noise are the same in every world.

    A site that is away draws none; those of the server and of the other sites stay, as each has a process of its own.
    """
    drawn: Counter[tuple[int, int]] = Counter()
    keys = itertools.count()
    expand = noise.keystream

    def name(n_bytes: int) -> str:
        key = (AT.get(), n_bytes)
        drawn[key] += 1
        return hashlib.sha512(repr((*key, drawn[key])).encode()).hexdigest()[: 2 * n_bytes]

    def stream(_: bytes, n_bytes: int) -> bytes:
        return expand(next(keys).to_bytes(32, "big"), n_bytes)

    seeds, names = mock.patch.object(secrets, "randbits", return_value=5), mock.patch.object(secrets, "token_hex", name)
    with seeds, names, mock.patch.object(noise, "keystream", stream):
        yield


@contextlib.contextmanager
def world_of(name: str) -> Iterator[None]:
    """The clients of a world; a slow one's seconds last a thousandth as long, and logging goes where a shell's does."""
    scale = 1000.0 if name == "slow" else 1.0
    named, clock = mock.patch.dict(os.environ, {clinic.WORLD: name}), lambda: scale * time.monotonic()
    with named, mock.patch("rich.console.monotonic", clock), mock.patch.object(logging.getLogger(), "handlers", []):
        yield


@contextlib.contextmanager
def older_objects_left_alone() -> Iterator[None]:
    """Collecting garbage after every command looks at what the commands made, not at all imported libraries."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def play(
    folder: Path,
    tables,
    world: str,
    steps: Sequence[Step],
    earlier: Outcome | None = None,
    on_release: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Play commands in a fresh folder, as a world of that name.

    Args:
        folder: Of the world.
        tables: Configuration files by name.
        world: Name of the world.
        steps: Commands, and what happens to the folder between them.
        earlier: The world whose releases this one is fed.
        on_release: Called with the number of releases after each was stored.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file, table in tables.items():
        (folder / file).write_text(tomli_w.dumps(table))
    clinic.forget()
    feed, seen = Feed(None if earlier is None else earlier.releases, on_release=on_release), dict[str, object]()
    with contextlib.chdir(folder), world_of(world), same_secrets(), feed.at_work(), older_objects_left_alone():
        for number, step in enumerate(steps):
            if callable(step):
                step(folder)
                continue
            done = privbo(*step)
            gc.collect()  # as the end of a process: ledgers that a command left open are closed
            private = PRIVATE_WORDS & set(step)
            # What a rehearsal shows comes before the run exists, for whoever starts it: the one stated exception.
            lines = [line for line in done.stderr.splitlines() if not line.startswith("privbo: rehearsal: ")]
            said = (done.returncode, "" if private else done.stdout, "\n".join(lines))
            name = f"{number} {' '.join(step)}"
            seen[name] = said
            timed = step[:2] == ("run", "run.toml")
            seen |= {f"{name}: {file}": look for file, look in files_of(folder, tables, timed=timed)}
    return Outcome(seen, feed.made, feed.drawn)


def files_of(folder: Path, tables, *, timed: bool) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """What a copy of a folder shows: names, sizes, bytes, and after a run times; a reader's later commands have his."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if "private" in inside.parts[:-1] or inside.parts[0] in tables:
            continue
        status = path.stat()
        time = status.st_mtime_ns if timed and path.name != "private" else None
        yield inside, (time, None if path.is_dir() else (status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()))


def reach(algorithm: str, worlds: tuple[str, str]) -> float:
    """Most sensitivities that two worlds may be apart: one is a client's from none.

    A failure of F-LCB is an answer, the lowest score, so a client that fails and one that does not are two answers.
    """
    return (2 if algorithm == "f-lcb" and "absent" in worlds else 1) + 1e-6


def require_alike(first: Outcome, second: Outcome, most: float = 1 + 1e-6) -> list[float]:
    """Nothing but releases differs, each by so much at most, and none was drawn twice; gives by how much each does."""
    assert first.drawn_again == second.drawn_again == []
    assert first.differences(second) == []
    moves = moved(first, second)
    assert max(moves) <= most
    return moves


def moved(first: Outcome, second: Outcome) -> list[float]:
    """By how much every release differs, in units of the stated sensitivity (with noise multiplier 1 sigma is it)."""
    found = []
    for name, payload in first.releases.items():
        if name.startswith("guardian"):
            continue  # a guardian's noisy sum is no release
        ours, theirs = decode_release(payload)[0], decode_release(second.releases[name])[0]
        assert ours.noise_stddev == theirs.noise_stddev
        found.append(float(np.linalg.norm(ours.values - theirs.values)) / ours.noise_stddev)
    return found


def underquoted(outcome: Outcome) -> list[str]:
    """Commands that quote less than everything planned or charged costs at least, by number and name.

    The lower end of the tight accountant is certified and attained by two data sets, so a number below it is
    below the truth, whatever rule it was made by.
    A plan counts from its ``--dry-run`` on, a charge beside the plans from the ``ledger export`` of the
    whole population that names it; every number is held to what was known when the last command ended.
    """
    plans = [from_dict(json.loads(text)["plan"]["event"]) for _, text in _said(outcome, "--dry-run", "--json")]
    owed = compose([*plans, *_charges_beside(outcome)])
    found = []
    for name, quoted, delta, adjacency in _quoted(outcome, alone=len(plans) == 1):
        least = numerical.epsilon_interval(owed, delta, adjacency=adjacency).lower
        if quoted < least * (1 - 1e-9):
            found.append(f"{name}: {quoted:.6g} at delta {delta:.3g}, the least is {least:.6g}")
    return found


def _said(outcome: Outcome, *words: str) -> Iterator[tuple[str, str]]:
    """Standard output of the commands that ended well and hold these words."""
    for name, seen in outcome.seen.items():
        if ": " not in name and isinstance(seen, tuple) and seen[0] == 0 and set(words) <= set(name.split()):
            yield name, str(seen[1])


def _charges_beside(outcome: Outcome):
    """Charges, by the last export, of what is no run but published beside one."""
    *_, (_, text) = [("", ""), *_said(outcome, "export", "--population")]
    for row in map(json.loads, text.splitlines()):
        if row["run"].endswith("-norms"):
            yield from_dict(row["event"])


def _quoted(outcome: Outcome, *, alone: bool) -> Iterator[tuple[str, float, float, Adjacency]]:
    """The last report's total and, of a run alone on its ledger, its headlines, with where they hold."""
    reports = list(_said(outcome, "report", "--json"))
    for name, text in reports[-1:]:
        report = json.loads(text)
        at, adjacency = report["delta"], Adjacency(report["adjacency"])
        yield f"{name}: total", _number(report["total"]["epsilon"]), report["total"]["delta"], adjacency
        if alone:
            yield f"{name}: guaranteed", _number(report["guaranteed"]), at, adjacency
            yield f"{name}: epsilon", min(map(_number, report["epsilon"].values())), at, adjacency


def _number(value: float | None) -> float:
    return math.inf if value is None else value
