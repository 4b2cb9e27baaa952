"""Evidence of a run's chain beside its ledger: history, clients' state, sites' records, countersigned heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from accountant.ledger.reservation import Place
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_lines
from privbo.runs.manifest import RunDirectory
from privbo.runs.states import States


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A place in the ledger's chain that something beside the ledger has seen.

    Attributes:
        by: What has seen it, in words.
        place: Sequence and digest.
        round: Of the run, while which it was seen.
        released: Whether it says that the round's release was made.
        stddev: The release's noise, where it was noted.
        norm: The release's norm, where it was noted.
        stored: Sequence and digest of the last stored release, where that was seen.
        is_public: Whether it may be counted in public; the number of countersigned heads tells who was there.
    """

    by: str
    place: Place
    round: int
    released: bool = False
    stddev: float | None = None
    norm: float | None = None
    stored: Place | None = None
    is_public: bool = False


def gathered(home: RunDirectory, run: str) -> tuple[list[Seen], tuple[str, ...]]:
    """Everything beside the ledger that has seen it, and what is absent.

    Raises:
        RunError: If a file can't be read.
    """
    found: list[Seen] = []
    absent = []
    sites = sorted(home.private.glob(f"sites/*/{run}/receipts.jsonl"))
    readers: list[tuple[str, list[Path], Callable[[Path], Iterator[Seen]]]] = [
        ("history.jsonl", [home.history_path], _of_history),
        ("private/clients-0.states", [states.path for states in home.all_states()], _of_clients),
        ("private/countersigned.jsonl", [home.countersigned_path], lambda path: _of_receipts(path, home)),
        ("sites' records", sites, lambda path: _of_receipts(path, home)),
    ]
    for name, paths, read in readers:
        there = [path for path in paths if path.exists()]
        if not there:
            absent.append(name)
        for path in there:
            try:
                found += read(path)
            except (ValueError, TypeError, KeyError, OSError) as error:
                raise RunError(f"{path} can't be read ({error}); restore it from a copy") from error
    return found, tuple(absent)


def _of_history(path: Path) -> Iterator[Seen]:
    for row in read_lines(path):
        if "head" in row:
            yield Seen(
                by=f"{path.name}, round {row['round']},",
                place=(int(row["sequence"]), str(row["head"])),
                round=int(row["round"]),
                released=bool(row["released"]),
                stddev=row["noise_stddev"],
                norm=row["norm"],
                is_public=True,
            )


def _of_clients(path: Path) -> Iterator[Seen]:
    stamp = States(path=path).stamp()
    if stamp is not None:
        yield Seen(by="the clients' state", place=(stamp.sequence, stamp.head), round=stamp.round)


def _of_receipts(path: Path, home: RunDirectory) -> Iterator[Seen]:
    name = path.relative_to(home.path).as_posix()
    for row in read_lines(path):
        yield Seen(by=f"{name}, round {row['round']},", place=(row["sequence"], row["head"]), round=row["round"])
