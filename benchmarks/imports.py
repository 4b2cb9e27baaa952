"""Start-up: fresh interpreters that import the packages, or print the help, against ``import numpy``."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from benchmarks._rows import Row

REPEATS = 7


def rows() -> Iterator[Row]:
    """Median CPU seconds of a whole interpreter that runs the statement."""
    numpy = _cpu("import numpy")
    statements = {
        "import accountant": "import accountant",
        "import privbo": "import privbo",
        "privbo --help": "import sys; sys.argv = ['privbo', '--help']; from privbo.cli.main import main; main()",
    }
    for name, statement in statements.items():
        yield Row(name, _cpu(statement), "import numpy", numpy)


def _cpu(statement: str) -> float:
    seconds = []
    for _ in range(REPEATS + 1):  # the first run fills the caches
        before = _children()
        subprocess.run([sys.executable, "-c", statement], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (our own statement)
        seconds.append(_children() - before)
    return median(seconds[1:])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
