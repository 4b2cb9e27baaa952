"""Files that survive a kill: lines that are appended whole, and files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def append_line(path: Path, line: str) -> None:
    """Append one line in one write, so that several processes never mix theirs; what a crash cut stays a line apart."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        fresh = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        payload = f"{'' if fresh else chr(10)}{line}\n".encode()
        if os.write(descriptor, payload) != len(payload):
            raise OSError(f"{path}: the disk is full")
    finally:
        os.close(descriptor)


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
