"""Pulls that were finished, kept beside the ledgers so that a search goes on after a crash.

A pull is charged, trained, *kept*, and only then judged. So whatever has left the pull's
memory is what a resumed search finds, and no charge pays for two different outcomes. The
models in here are outcomes of private training, covered by epsilon as the ledger states it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from privbo.protocol.errors import RunError
from privbo.protocol.files import write_atomically

State: TypeAlias = Mapping[str, Any]
"""State dict of torch, of a model or of an optimiser; opaque here."""


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Result of a finished pull.

    Attributes:
        model: The trained model's state.
        optimiser: Its optimiser's state.
    """

    model: State
    optimiser: State


class Journal:
    """One file per finished pull.

    Args:
        folder: Where to.
        judged: Whether a pull, by position, has a validation loss already.
    """

    def __init__(self, folder: Path, judged: Callable[[int], bool]) -> None:
        self._folder, self._judged = folder, judged
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, position: int, name: str) -> Pull | None:
        """Result of pull number ``position``, or None if it was not finished.

        Raises:
            RunError: If it belongs to another arm, or is gone though its loss was released.
        """
        path = self._path(position)
        if not path.exists():
            if self._judged(position):
                raise RunError(
                    f"{path} is gone though its validation loss was released; restore it from a copy (training "
                    "again would be a second outcome for one charge)"
                )
            return None
        found = torch.load(path, weights_only=True)
        if found["name"] != name:
            raise RunError(
                f"{path} holds arm {found['name']!r}, the search pulls {name!r}; resume it with its own arms"
            )
        return Pull(**found["pull"])

    def save(self, position: int, name: str, pull: Pull) -> None:
        """Keep a finished pull, durable on return, before anything of it is judged."""
        buffer = io.BytesIO()
        torch.save({"name": name, "pull": {"model": pull.model, "optimiser": pull.optimiser}}, buffer)
        write_atomically(self._path(position), buffer.getvalue())

    def _path(self, position: int) -> Path:
        return self._folder / f"pull-{position:05d}.pt"
