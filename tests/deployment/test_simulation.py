"""Flower's own simulation, by Ray: the same numbers again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.files import load_arrays
from tests.conformance.small import problem
from tests.deployment.federations import ALGORITHMS, SITES, make
from tests.deployment.processes import deployed
from tests.deployment.reading import queried, releases

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra flower-sim)"),
]
FORMS = {"dp-fts-de": pb.DPFTSDE(n_features=12), "fed-pne": pb.FedPNE(horizon=400, c=0.02)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_flowers_simulation_gives_the_numbers_of_one_process(name: str, tmp_path: Path) -> None:
    federation = make(tmp_path, name, rounds=2, simulated=True, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, simulation=True) as deployment:
        nodes = f"num-supernodes={len(SITES)} client-resources-num-cpus=1"
        deployment.play(federation.home, "--federation-config", nodes, timeout=900)
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    expected = pb.run(problem(), FORMS[name], privacy=privacy, rounds=2, seed=3)
    made = releases(federation)
    assert len(made) == len(expected.releases) == 2
    for ours, theirs in zip(made, expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
    kept = federation.run.private / "sites"
    found = [load_arrays(next((kept / site).glob("*/evaluations.npz"))) for site in SITES]
    queries = [q for site in found for q in queried(site["units"], site["values"])]
    for ours, theirs in zip(queries, queried(expected.clients.units, expected.clients.values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
