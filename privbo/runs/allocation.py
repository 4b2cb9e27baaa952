"""A run's secret allocation on disk: one file on the private side, written once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from privbo.door.noise import BoolArray
from privbo.protocol.errors import RunError
from privbo.protocol.files import array_bytes, load_arrays, private_folder, write_once
from privbo.runs.manifest import RunDirectory


@dataclass(frozen=True, kw_only=True)
class KeptAllocation:
    """Keeps who takes part in which release, as bits, under the run's name.

    Attributes:
        home: The run's directory.
        run: The run's name in its ledger.
    """

    home: RunDirectory
    run: str

    @property
    def path(self) -> Path:
        """The file: private, and secret even where the rest of the folder is shown to somebody."""
        return self.home.private / "allocation.npz"

    def kept(self) -> BoolArray | None:
        """SECRET: the allocation, ``(n_clients, n_releases)``; None if none is kept.

        Raises:
            RunError: If the file can't be read, or is another run's.
        """
        path = self.path
        if not path.exists():
            return None
        try:
            arrays = load_arrays(path)
            owner, shape = str(arrays["run"].item()), tuple(int(n) for n in arrays["shape"])
            bits = np.unpackbits(arrays["bits"].astype(np.uint8), axis=1, count=shape[1])
        except (ValueError, KeyError, IndexError, OSError, BadZipFile) as error:
            raise RunError(f"{path} can't be read ({error}); restore it from a copy") from error
        if owner != self.run or bits.shape != shape:
            raise RunError(f"{path} is the allocation of {owner}, not of {self.run}; restore this run's from a copy")
        return np.asarray(bits, dtype=bool)

    def keep(self, table: BoolArray) -> None:
        """Keep an allocation, durable on return; one that is kept already stays."""
        private_folder(self.home.path)
        arrays = {"run": np.array(self.run), "shape": np.array(table.shape), "bits": np.packbits(table, axis=1)}
        write_once(self.path, array_bytes(arrays))
