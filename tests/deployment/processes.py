"""Real federations for tests: bounded in time, and every process they start is gone afterwards.

Bounds end a hang and judge nothing: a machine with ten other things to do must meet them.
"""

import contextlib
import os
import secrets
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from privbo.flower.keys import make_keys
from privbo.flower.launch import Deployment
from privbo.protocol.files import read_lines
from tests.deployment.federations import SITES, Federation

ROOT = Path(__file__).parents[2]
_MARK = "PRIVBO_TEST_PROCESSES"


@contextmanager
def deployed(federation: Federation, keys: Path | None = None, *, simulation: bool = False):
    """A SuperLink for a federation; SuperNodes are started by the test."""
    mark = secrets.token_hex(8)
    environment = {_MARK: mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.2"
    try:
        with Deployment(root=federation.root / "flower", certificates=keys, environment=environment) as deployment:
            federation.approve()
            deployment.start_superlink(*(["--simulation"] if simulation else []))
            yield deployment
    finally:
        _end(mark)


def _end(mark: str) -> None:
    """Wait for what a SuperLink or SuperNode leaves behind, then end it by its id."""
    deadline = time.monotonic() + 10
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in left:
        os.kill(process, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it ended while we looked
            continue
    return found


def start_parties(deployment: Deployment, federation: Federation, keys: Path | None = None) -> None:
    """Start the SuperNodes of all sites and guardians."""
    for path in federation.party_files:
        key = None if keys is None else keys / f"{path.parent.name}.key"
        deployment.start_supernode(path.parent.name, path, key=key)


def keyed(root: Path) -> tuple[Path, dict[str, str]]:
    """Keys of a federation, and the public ones by site."""
    keys = make_keys(root / "keys", sites=list(SITES))
    return keys, {name: (keys / f"{name}.pub").read_text() for name in SITES}


def kill_marked(deployment: Deployment, program: str) -> list[int]:
    """Kill -9 every process of this deployment whose command names a program; their ids."""
    killed = []
    for process in _marked(deployment.environment[_MARK]):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end of itself between two looks
            if program in Path(f"/proc/{process}/cmdline").read_text():
                os.kill(process, signal.SIGKILL)
                killed.append(process)
    return killed


def register(deployment: Deployment, keys: Path) -> None:
    """Register every site's key with the SuperLink, as an operator does."""
    for name in SITES:
        done = deployment.flwr("supernode", "register", str(keys / f"{name}.pub"), timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def wait_until(condition, what: str, timeout: float = 600.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s until {what}"
        time.sleep(0.1)


def rounds_played(federation: Federation) -> int:
    return len(read_lines(federation.run.private / "transport.jsonl"))
