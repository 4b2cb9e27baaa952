"""No packet to anything but loopback during a run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.processes import ROOT
from tests.system_tools import require_tool

IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]


@pytest.mark.deployment
def test_a_run_sends_nothing_anywhere_but_loopback(tmp_path: Path) -> None:
    require_tool("unshare")
    require_tool("ip")
    if subprocess.run([*IN_NAMESPACE, "ip link set lo up"], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces are forbidden here")
    command = shlex.join([sys.executable, "-m", "tests.deployment.offline", str(tmp_path / "federation")])
    done = subprocess.run(
        [*IN_NAMESPACE, f"ip link set lo up && {command}"],
        cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finished"]
    assert found["control"] > 0  # a packet that wants out is counted
    assert found["wanted"] == 0
