"""Files that survive a kill: a ledger's commit log, and files that appear whole or not at all.

The commit log has one appended line per committed row, next to a file or with each user of a
database. SQLite drops the damaged end of a write-ahead log without a word, and people copy a
database without its log. The commit log notices both: a line that the chain no longer
contains means that a tail was lost. It may lag behind the chain by a row (a crash between
commit and append), never the other way round. It is only ever appended to: a line that says
"recovered" names the row that charged a loss again, and makes good the lines before it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accountant.ledger.chain import Row

_LINE = re.compile(r"(charges|releases|recovered) ([1-9][0-9]{0,17}) ([0-9a-f]{64})")
# What a crash or a full disk leaves of a line; the next append starts on a fresh one.
_BEGUN = "|".join(word[:n] for word in ("charges", "releases", "recovered") for n in range(len(word) + 1))
_CUT_LINE = re.compile(rf"{_BEGUN}|(charges|releases|recovered) [0-9]*( [0-9a-f]{{0,63}})?")


@dataclass(frozen=True)
class CommitLog:
    """The file that remembers what was committed.

    Attributes:
        path: The file.
        is_own: Whether it belongs to one of several users of a ledger, who may be new to it, not to the ledger itself.
    """

    path: Path
    is_own: bool = False

    @staticmethod
    def of(ledger: Path) -> CommitLog:
        """The commit log of a ledger file."""
        return CommitLog(ledger.with_name(ledger.name + ".commits"))

    def append(self, table: str, sequence: int, digest: str) -> None:
        """Add a line in one write, so that several processes never mix theirs; what a crash cut stays a line apart."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            fresh = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            payload = f"{'' if fresh else chr(10)}{table} {sequence} {digest}\n".encode()
            if os.write(descriptor, payload) != len(payload):
                raise OSError(f"{self.path}: the disk is full")
        finally:
            os.close(descriptor)

    def read(self) -> str | None:
        """Read all lines, or None without a file."""
        return self.path.read_bytes().decode("ascii", errors="replace") if self.path.exists() else None

    def problem(self, logged: str | None, chains: Mapping[str, Sequence[Row]]) -> str | None:
        """Name what the chains (rows in order, by table) lack of what ``read`` gave, or None."""
        if logged is None:
            if any(chains.values()) and not self.is_own:
                return f"its commit log {self.path.name} is missing (a ledger is moved together with it)"
            return None
        problem = None
        for line in logged.split("\n"):
            match = _LINE.fullmatch(line)
            if match is None:
                if not _CUT_LINE.fullmatch(line):
                    problem = problem or f"its commit log {self.path.name} holds a damaged line"
                continue
            found = _unlike(match, chains)
            problem = found if match[1] == "recovered" else problem or found
        return problem

    def lost(self, logged: str | None, chains: Mapping[str, Sequence[Row]]) -> list[tuple[str, int, str]]:
        """Rows that were committed and are not in the chains: table, sequence and digest."""
        matches = (_LINE.fullmatch(line) for line in (logged or "").split("\n"))
        found = [match for match in matches if match is not None and _unlike(match, chains) is not None]
        return [(match[1], int(match[2]), match[3]) for match in found]


def _unlike(match: re.Match[str], chains: Mapping[str, Sequence[Row]]) -> str | None:
    """Say what a line remembers and the chains do not hold, or None."""
    table, sequence, digest = "charges" if match[1] == "recovered" else match[1], int(match[2]), match[3]
    if sequence > len(chains[table]):
        return f"{table} row {sequence} was committed and is gone: the tail was lost"
    if chains[table][sequence - 1].digest != digest:
        return f"{table} row {sequence} is not the one that was committed"
    return None


@contextmanager
def appearing_whole(path: Path) -> Iterator[Path]:
    """Give the name of a draft; left without an error, it appears under ``path`` durably, and never replaces a file.

    Raises:
        FileExistsError: If a file is there already.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
