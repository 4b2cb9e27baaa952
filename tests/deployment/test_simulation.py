"""Flower's own simulation, by Ray: the same numbers again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from privbo.protocol.files import load_arrays
from tests.deployment.federations import ALGORITHMS, SITES, make
from tests.deployment.processes import deployed
from tests.deployment.reading import in_process, require_same

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra flower-sim)"),
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_flowers_simulation_gives_the_numbers_of_one_process(name: str, tmp_path: Path) -> None:
    federation = make(tmp_path, name, rounds=2, simulated=True, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, simulation=True) as deployment:
        nodes = f"num-supernodes={len(SITES)} client-resources-num-cpus=1"
        deployment.play(federation.home, "--federation-config", nodes, timeout=900)
    kept = federation.run.private / "sites"
    found = [load_arrays(next((kept / site).glob("*/evaluations.npz"))) for site in SITES]
    require_same(federation, in_process(name, rounds=2), found)
