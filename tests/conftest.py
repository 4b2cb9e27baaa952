"""One thread for BLAS, OpenMP and torch, set before any of them is loaded: small matrices only wait for more."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Every charge waits for its disk, and nothing here cuts the power: folders of tests lie in memory where there is room.
MEMORY = Path("/dev/shm")  # noqa: S108 (tempfile makes the names in it)
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**32:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

# The key that marks one's own runs is the tests' own, not the user's.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="privbo-tests-")


# How long an example takes depends on the load of the machine.
hypothesis.settings.register_profile("any load", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any load")


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path_factory: pytest.TempPathFactory):
    """Forget modules that a test wrote, so that another test's module of the same name is its own."""
    before, written = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL of a module's own."""
    pytest.importorskip("psycopg")
    from tests.accountant.postgres_server import Server

    server = Server()
    yield server
    server.remove()
