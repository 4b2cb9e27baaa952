"""Files that a crash leaves whole: JSON, JSON lines and arrays, written atomically."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import struct
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np

from accountant.ledger.durable import appearing_whole, sync_folder
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Array, Arrays

if sys.platform != "win32":
    import fcntl

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_MARK, _HEADER = b"privbo record 1\n", struct.Struct("<QI")  # before each record of a journal
_START = len(_MARK) + _HEADER.size
_AT_WORK = "another program, or an earlier session of this one, is at work here; end it, or go on there"
_PRIVATE_NOTE = """PRIVATE. Nothing in this folder is covered by epsilon.

These files hold what clients evaluated and how their vectors were clipped. They exist
because this run was simulated on one machine or because this is a client's own disk.
Publishing any of them breaks the guarantee the report states.
"""


def write_atomically(path: Path, payload: bytes, *, mode: int = 0o666) -> None:
    """Replace ``path`` by ``payload`` so that a crash leaves the old or the new content; no link is followed.

    Raises:
        ConfigurationError: If a folder stands there.
        RunError: If the temporary file next to it can't be made, such as in a folder that is no longer there.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; name a file, or move it away")
    beside = path.with_name(path.name + ".new")
    try:
        beside.unlink(missing_ok=True)  # left by a crash, or planted: whatever it is or points to stays untouched
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode)
    except OSError as error:
        raise RunError(f"{beside} can't be written ({error.strerror}); move it away") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def require_page(path: Path, *, suffix: str = ".html", private: bool = False) -> None:
    """Refuse the name of a page that another file of a run could have, and a private page where all is public.

    Raises:
        ConfigurationError: Naming where it may go.
    """
    if path.suffix.lower() != suffix:
        raise ConfigurationError(f"{path}: its name must end in {suffix}, so that it replaces no other file of a run")
    above = path.resolve().parents if private else ()
    for run in above:
        is_run = (run / "config.json").is_file() and (run / "private").is_dir()
        if is_run and run / "private" not in above:
            raise ConfigurationError(f"{path} would be private among the public files of {run}; name {run}/private")


def write_once(path: Path, payload: bytes, *, mode: int = 0o666) -> None:
    """Write ``payload`` where nothing is, durably; an existing file stays, whichever process wrote it.

    Raises:
        RunError: If the file can't be made.
    """
    try:
        with contextlib.suppress(FileExistsError), appearing_whole(path) as draft:
            write_atomically(draft, payload, mode=mode)
    except OSError as error:
        raise RunError(f"{path} can't be written ({error.strerror}); move what stands there away") from None


def private_folder(home: Path) -> Path:
    """``home/private``, which only its owner may enter and which says what it holds.

    Raises:
        RunError: If it is a link, which would lead what is written elsewhere.
    """
    private = home / "private"
    private.mkdir(parents=True, exist_ok=True)
    require_no_link(private)
    write_atomically(private / "README.txt", _PRIVATE_NOTE.encode())
    private.chmod(0o700)
    return private


def require_no_link(path: Path) -> None:
    """Refuse a symbolic link, by which a stranger's directory would lead what is written elsewhere.

    Raises:
        RunError: If it is one.
    """
    if path.is_symlink():
        raise RunError(f"{path} is a symbolic link, and nothing is written through one; remove it")


def require_contained(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads out of it: what is read there would be another's file.

    Raises:
        RunError: Naming the link.
    """
    root = Path(os.path.realpath(folder))
    for here, folders, files in os.walk(root):
        for path in (Path(here, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise RunError(
                    f"{path} is a symbolic link that leads out of {folder}; put what it leads to in its place"
                )


def write_json(path: Path, content: Mapping[str, Any], *, evidence: bool = False) -> None:
    """Write one JSON document atomically, as ``write_evidence`` does where it is evidence."""
    data = (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
    (write_evidence if evidence else write_atomically)(path, data)


def write_evidence(path: Path, data: bytes, *, remedy: str = "name another place: --out") -> None:
    """Write a file that another party may hold; only the same bytes are written in its place.

    Args:
        path: The file.
        data: Its content.
        remedy: How to write it elsewhere.

    Raises:
        ConfigurationError: If another file, or a folder, stands there.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; move it away, or {remedy}")
    if path.exists() and path.read_bytes() != data:
        raise ConfigurationError(f"{path} says something else, and an auditor may hold it; move it away, or {remedy}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON document.

    Raises:
        RunError: If it is missing or no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} does not exist; name the directory of a run") from None
    except OSError as error:
        raise RunError(f"{path} can't be read ({error.strerror}); name the directory of a run") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path} is not a JSON document ({error}); restore it from a copy") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} does not hold a JSON object; restore it from a copy")
    return content


def append_line(path: Path, row: Mapping[str, Any], *, durable: bool = False) -> None:
    """Append one JSON line; what a crash or a full disk has cut off before is dropped.

    Args:
        path: The file.
        row: The line.
        durable: Whether it is on the disk when this returns.
    """
    with _appended(path) as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read(1) != b"\n":  # would make one line of itself and the next
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        _write_lines(file, [row], durable=durable)


def _write_lines(file: IO[bytes], rows: Sequence[Mapping[str, Any]], *, durable: bool) -> int:
    added = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    file.write(added)
    file.flush()
    if durable:
        os.fsync(file.fileno())
    return len(added)


class Journal:
    """Records of bytes in a file that is appended to; what a crash has cut off at its end is dropped.

    Attributes:
        first: Length of the file with its first record, once it was read or written.
        end: Its length with all records that are whole.

    Args:
        path: The file.
        durable: Whether a record is on the disk when ``append`` returns. Damage before the end is then refused, and in
            the first record, which is put in place whole; else it and what stands behind it are dropped: a machine that
            lost its power may have left them so.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path, self._durable = path, durable
        self.first = self.end = 0
        self._file: IO[bytes] | None = None

    def records(self) -> Iterator[bytes]:
        """Read every record that is whole.

        Raises:
            RunError: If a durable journal is damaged before its end, or holds no whole record.
        """
        self.first = self.end = 0
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            while (start := file.read(_START)).startswith(_MARK) and len(start) == _START:
                length, check = _HEADER.unpack_from(start, len(_MARK))
                record = file.read(length)
                if not record or len(record) != length or zlib.crc32(record) != check:
                    break
                self.end = file.tell()
                self.first = self.first or self.end
                yield record
            file.seek(self.end)
            if self._durable and (not self.end or _MARK in file.read()[1:]):
                raise RunError(f"{self.path} is damaged before its end; restore it from a copy")

    def append(self, record: bytes) -> None:
        """Add a record."""
        if not self.end:
            deque(self.records(), maxlen=0)
        if self._file is None:
            self._file = _appended(self.path)
            self._file.truncate(self.end)
        framed = _framed(record)
        try:
            self._file.write(framed)
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
                self.close()
        except OSError:  # a full disk takes a part, which the next record drops
            with contextlib.suppress(OSError):
                self.close()
            raise
        self.end += len(framed)
        self.first = self.first or self.end

    def replace(self, record: bytes | None) -> None:
        """Put one record in place of all, or none."""
        self.close()
        framed = b"" if record is None else _framed(record)
        if self._durable:
            write_atomically(self.path, framed)
        elif self.path.exists():
            self.path.write_bytes(framed)
        self.first = self.end = len(framed)

    def close(self) -> None:
        """Close the file; another record opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _framed(record: bytes) -> bytes:
    return _MARK + _HEADER.pack(len(record), zlib.crc32(record)) + record


def _appended(path: Path) -> IO[bytes]:
    """A file open for reading and appending, made where it is missing; a link is not followed."""
    require_no_link(path)
    is_new = not path.exists()
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_FOLLOW, 0o666), "a+b")
    if is_new:  # its name has to outlast a crash as its lines do
        sync_folder(path.parent)
    return file


def _lock(file: IO[bytes], *, wait: bool = True) -> None:
    """Wait until no other process writes the file; Windows has no such lock, so one process at a time there."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextlib.contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Let one program at a time work in a folder that its owner alone may enter; makes it where it is missing.

    Raises:
        RunError: If another one does, and is not waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _appended(folder / "lock") as file:
        try:
            _lock(file, wait=wait)
        except BlockingIOError:
            raise RunError(f"{folder.parent}: {_AT_WORK}") from None
        yield


@dataclass(kw_only=True)
class OnceLines:
    """JSON lines that several processes append to, and that hold every key once.

    Attributes:
        path: The file.
        key: Name of the field that tells rows apart.
        superseded: Tells of a row that another one of its key may follow; it stays where it is.
        durable: Whether a row is on the disk when ``add`` returns.
    """

    path: Path
    key: str
    superseded: Callable[[Mapping[str, Any]], bool] = lambda _: False
    durable: bool = False
    _known: dict[object, list[Mapping[str, Any]]] = field(default_factory=dict, init=False, repr=False)
    _read: int = field(default=0, init=False, repr=False)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row unless it is there already; what a crash cut off is dropped first.

        Raises:
            RunError: If another row of the same key is there.
        """

        def made(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
            for found in rows:
                self._known.setdefault(found[self.key], []).append(found)
            if row in others:
                return []
            if standing := [dict(other) for other in others if not self.superseded(other)]:
                raise RunError(
                    f"{self.path} says {standing[0]!r}, now it is {dict(row)!r}: ledger and history disagree, so one "
                    "of them was restored from a copy; restore both from the same time"
                )
            return [row]

        others = self._known.setdefault(row[self.key], [])
        self._read = extend_lines(self.path, self._read, made, durable=self.durable)
        others.append(row)


def extend_lines(
    path: Path,
    start: int,
    made: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]],
    *,
    durable: bool = True,
) -> int:
    """Append JSON lines that depend on what other processes appended meanwhile.

    Args:
        path: The file; one process writes at a time.
        start: Length of what the caller has read.
        made: Gives the lines to append; it is told those behind ``start``. If it raises, nothing is appended.
        durable: Whether the lines are on the disk when this returns.

    Returns:
        The length of the file with the new lines.
    """
    with _appended(path) as file:
        _lock(file)
        file.seek(start)
        text = file.read()
        end = start + text.rfind(b"\n") + 1
        rows = made(_rows(path, text))
        if not rows:
            return end
        file.truncate(end)  # what a crash cut off
        return end + _write_lines(file, rows, durable=durable)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line without its end (a crash while appending) is dropped.

    Raises:
        RunError: If a line is no JSON object.
    """
    if not path.exists():
        return []
    return _rows(path, path.read_bytes())


def _rows(path: Path, text: bytes) -> list[dict[str, Any]]:
    with being_read(path):
        return [dict(json.loads(line)) for line in text[: text.rfind(b"\n") + 1].splitlines()]


@contextlib.contextmanager
def being_read(path: Path) -> Iterator[None]:
    """Read a file of ours in this block, whatever is wrong with it.

    Raises:
        RunError: If it can't be read.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, OSError, RecursionError, BadZipFile) as error:
        raise RunError(f"{path} can't be read ({error}); restore it from a copy") from error


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write named arrays atomically as an uncompressed npz without pickles.

    Raises:
        TypeError: If an array holds Python objects.
    """
    write_atomically(path, array_bytes(arrays))


def array_bytes(arrays: Arrays) -> bytes:
    """Give the npz of named arrays, uncompressed and without pickles.

    Raises:
        TypeError: If an array holds Python objects.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects; snapshots are plain numbers")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


def load_arrays(path: Path) -> dict[str, Array]:
    """Read named arrays written by ``save_arrays``; pickles are refused.

    Raises:
        RunError: If it is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, zlib.error, BadZipFile) as error:
        raise RunError(f"{path} is damaged ({error}); restore it from a copy") from None


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """A nested mapping by dotted names."""
    found: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def today() -> str:
    """Give today's date (UTC); a finer clock would tell how long clients took."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def now() -> str:
    """Give the time to the second (UTC), for private files."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def fresh_directory(name: str) -> Path:
    """Give ``runs/NAME-DATE-TOKEN``; a time of day in place of the token would tell when an earlier run ended."""
    return Path("runs") / f"{name}-{today().replace('-', '')}-{secrets.token_hex(3)}"
