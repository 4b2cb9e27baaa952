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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import RunError
from privbo.protocol.files import load_arrays, private_folder, read_json, save_arrays, write_json


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
