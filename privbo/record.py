"""A run's directory: what is public, what is private, and how both survive a crash.

Layout::

    DIR/config.json            the configuration as run, the plan and its price (public)
    DIR/ledger.sqlite          charges and stored releases (public)
    DIR/history.jsonl          one line per round (public)
    DIR/report.html            (public)
    DIR/private/               clients' evaluations and clip statistics: NOT covered by epsilon
        README.txt  clients.npz  clipping.jsonl  errors.json

Every file is replaced atomically (written beside, flushed to disk, renamed), so a
killed run leaves the previous or the next state, never half of one.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privbo.errors import RunError

_PRIVATE_NOTE = """PRIVATE. Nothing in this folder is covered by epsilon.

These files hold what clients evaluated and how their vectors were clipped. They exist
because this run was simulated on one machine or because this is a client's own disk.
Publishing any of them breaks the guarantee the report states.
"""


def write_atomically(path: Path, payload: bytes) -> None:
    """Replace ``path`` by ``payload`` so that a crash leaves the old or the new content."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True)
class RunDirectory:
    """Paths and files of one run."""

    path: Path

    @property
    def config_path(self) -> Path:
        """The configuration as run."""
        return self.path / "config.json"

    @property
    def ledger_path(self) -> Path:
        """The run's own ledger (a run may name a shared one instead)."""
        return self.path / "ledger.sqlite"

    @property
    def history_path(self) -> Path:
        """The public history."""
        return self.path / "history.jsonl"

    @property
    def report_path(self) -> Path:
        """The page."""
        return self.path / "report.html"

    @property
    def private(self) -> Path:
        """The private side."""
        return self.path / "private"

    @property
    def clients_path(self) -> Path:
        """The cohort's snapshot (private)."""
        return self.private / "clients.npz"

    @property
    def clipping_path(self) -> Path:
        """Clip statistics per release (private)."""
        return self.private / "clipping.jsonl"

    @property
    def evaluations_path(self) -> Path:
        """Every evaluation of a finished run (private)."""
        return self.private / "evaluations.npz"

    @property
    def seed_path(self) -> Path:
        """The root of the run's seeds (private: it fixes the clients' own randomness)."""
        return self.private / "seed.json"

    def create(self, config: Mapping[str, Any], *, seed: int) -> None:
        """Make the directory; the configuration is written last and makes it a run.

        Raises:
            RunError: If a run stands there already.
        """
        if self.config_path.exists():
            raise RunError(f"{self.path} already holds a run; resume it or name another directory")
        private_folder(self.path)
        write_json(self.seed_path, {"seed": seed})
        write_json(self.config_path, config)

    def config(self) -> dict[str, Any]:
        """The configuration as run.

        Raises:
            RunError: If no run stands there.
        """
        return read_json(self.config_path)

    def save_clients(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Replace the cohort's snapshot (private)."""
        save_arrays(self.clients_path, snapshot)

    def load_clients(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """The cohort's last snapshot, or None if it never answered."""
        return load_arrays(self.clients_path) if self.clients_path.exists() else None


def private_folder(home: Path) -> Path:
    """``home/private``, which only its owner may enter and which says what it holds."""
    private = home / "private"
    private.mkdir(parents=True, exist_ok=True)
    (private / "README.txt").write_text(_PRIVATE_NOTE)
    private.chmod(0o700)
    return private


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON document atomically."""
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON document.

    Raises:
        RunError: If it is missing or no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; name the directory of a run") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is not a JSON document ({error}); restore it from a copy") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} does not hold a JSON object; restore it from a copy")
    return content


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON lines atomically."""
    write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON line; a line cut off by a crash is dropped by ``read_lines``."""
    with path.open("ab") as file:
        file.write((json.dumps(row, allow_nan=False) + "\n").encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line without its end (a crash while appending) is dropped."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Write named arrays atomically as an uncompressed npz without pickles.

    Raises:
        TypeError: If an array holds Python objects.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects; snapshots are plain numbers")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    write_atomically(path, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Read named arrays written by ``save_arrays``; pickles are refused."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
