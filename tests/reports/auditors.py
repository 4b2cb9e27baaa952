"""The auditor's check: what it reads of a ledger's rows, and on a machine that has little else."""

import os
import subprocess
import sys

from accountant.events import Event, parts, to_dict
from accountant.verify.events import Composed, composed
from accountant.verify.reading import canonical
from tests.sources import ROOT

ALONE = """
import sys
LIGHT = {"numpy", "cryptography", "cffi", "_cffi_backend", "accountant"}
class Bare:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in LIGHT and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Bare())
from accountant.verify.auditor import main
raise SystemExit(main(sys.argv[1:]))
"""


def as_read(event: Event) -> Composed:
    """An event, written as a ledger's row has it and read by the auditor's own decoding."""
    return composed({canonical(to_dict(part)).decode(): count for part, count in parts(event)})


def alone(bundle) -> subprocess.CompletedProcess[str]:
    """Check a bundle in a process that has the standard library, numpy and cryptography alone."""
    command, env = [sys.executable, "-c", ALONE, str(bundle)], os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=env)
