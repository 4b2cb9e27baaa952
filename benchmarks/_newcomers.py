"""Seconds of the jobs that newcomers come with: ``python -m benchmarks._newcomers``.

Every job's pages are run as a reader would copy them, in a folder of its own and a fresh interpreter. Processor seconds
count what other work on the machine does not change much; wall seconds are what a reader waits on an idle one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
JOBS = {
    "a hospital's data scientist": ("own-objective", "best"),
    "a privacy researcher": ("own-algorithm",),
    "an engineer with Optuna": ("optuna",),
    "an engineer with Opacus": ("own-network",),
    "a privacy auditor": ("own-objective", "report", "auditor"),
}
_PLAY = "import sys, warnings; from tests.docs.test_blocks import play; play(sys.argv[1:], slow=False)"


def seconds_of(pages: tuple[str, ...]) -> tuple[float, float]:
    """Wall and processor seconds of some how-to pages, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "experiments").symlink_to(ROOT / "experiments")
        paths = os.pathsep.join([str(ROOT), folder])
        started, before = time.monotonic(), _used()
        subprocess.run(  # noqa: S603  # our own pages
            [sys.executable, "-c", _PLAY, *(f"docs/how-to/{page}.md" for page in pages)],
            cwd=folder, env=os.environ | {"PYTHONPATH": paths}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.monotonic() - started, _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line per job."""
    for job, pages in JOBS.items():
        wall, used = seconds_of(pages)
        print(f"{job} ({', '.join(pages)}): {wall:.0f} s, processor {used:.0f} s", flush=True)


if __name__ == "__main__":
    main()
