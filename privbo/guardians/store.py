"""A guardian's store: what it has received and stated, on its own disk, or in memory for simulations."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from accountant.events import Json
from privbo.protocol.files import load_arrays, save_arrays, write_atomically

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


class StateStore(Protocol):
    """Keeps arrays and statements by round; what was put is durable on return where there is a disk."""

    def alone(self) -> AbstractContextManager[None]:
        """One process at a time, so that a round is never answered twice."""
        ...

    def put_arrays(self, round_: int, arrays: Arrays) -> None:
        """Keep a round's arrays, in place of earlier ones."""
        ...

    def arrays(self, round_: int) -> Arrays | None:
        """A round's arrays."""
        ...

    def drop_arrays(self, round_: int) -> None:
        """Throw a round's arrays away."""
        ...

    def put_statement(self, round_: int, statement: Json) -> None:
        """Keep what was stated in a round, in place of what stands there."""
        ...

    def statement(self, round_: int) -> Json | None:
        """A round's statement."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing was ever stated."""
        ...


@dataclass(frozen=True, kw_only=True)
class MemoryStore:
    """A store that is gone with its process."""

    _arrays: dict[int, Arrays] = field(default_factory=dict)
    _statements: dict[int, Json] = field(default_factory=dict)

    def alone(self) -> AbstractContextManager[None]:
        """Nobody else has it."""
        return nullcontext()

    def put_arrays(self, round_: int, arrays: Arrays) -> None:
        """As ``StateStore``."""
        self._arrays[round_] = arrays

    def arrays(self, round_: int) -> Arrays | None:
        """As ``StateStore``."""
        return self._arrays.get(round_)

    def drop_arrays(self, round_: int) -> None:
        """As ``StateStore``."""
        self._arrays.pop(round_, None)

    def put_statement(self, round_: int, statement: Json) -> None:
        """As ``StateStore``."""
        self._statements[round_] = statement

    def statement(self, round_: int) -> Json | None:
        """As ``StateStore``."""
        return self._statements.get(round_)

    def is_empty(self) -> bool:
        """As ``StateStore``."""
        return not self._statements


@dataclass(frozen=True, kw_only=True)
class FolderStore:
    """A store in a folder that its owner alone may enter.

    Attributes:
        path: The folder: ``000004.npz`` and ``000004.json`` are those of round 4.
    """

    path: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As ``StateStore``."""
        self._made()
        with (self.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def put_arrays(self, round_: int, arrays: Arrays) -> None:
        """As ``StateStore``."""
        self._made()
        save_arrays(self._path_of(round_, "npz"), arrays)

    def arrays(self, round_: int) -> Arrays | None:
        """As ``StateStore``."""
        path = self._path_of(round_, "npz")
        return load_arrays(path) if path.exists() else None

    def drop_arrays(self, round_: int) -> None:
        """As ``StateStore``."""
        self._path_of(round_, "npz").unlink(missing_ok=True)

    def put_statement(self, round_: int, statement: Json) -> None:
        """As ``StateStore``."""
        self._made()
        write_atomically(self._path_of(round_, "json"), json.dumps(statement).encode())

    def statement(self, round_: int) -> Json | None:
        """As ``StateStore``."""
        path = self._path_of(round_, "json")
        return dict(json.loads(path.read_text())) if path.exists() else None

    def is_empty(self) -> bool:
        """As ``StateStore``."""
        return not any(self.path.glob("*.json"))

    def _made(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def _path_of(self, round_: int, kind: str) -> Path:
        return self.path / f"{round_:06d}.{kind}"
