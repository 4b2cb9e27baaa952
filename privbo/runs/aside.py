"""Output of clients' code, kept on the private side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path


@contextmanager
def printed_to(path: Path | None) -> Iterator[None]:
    """Append what Python code prints or warns of to a private file; None leaves it on the terminal.

    An objective may print what it sees, and a solver warns where data is awkward: on the terminal of a
    command both are published. What compiled code writes to the process's own descriptors is not caught.
    """
    with nullcontext() if path is None else path.open("a") as file:
        if file is None:
            yield
            return
        with redirect_stdout(file), redirect_stderr(file):
            yield
