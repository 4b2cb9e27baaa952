"""A real SuperLink with three SuperNodes on loopback gives the numbers of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import privbo as pb
from tests.conformance.small import problem
from tests.deployment.federations import make
from tests.deployment.processes import deployed, start_sites
from tests.deployment.reading import queried, releases, sites


def test_two_rounds_of_real_processes_are_those_of_one_process(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=2, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation) as deployment:
        start_sites(deployment, federation)
        deployment.play(federation.home, timeout=900)
    expected = pb.run(
        problem(),
        pb.FedPNE(horizon=400, c=0.02),
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        rounds=2,
        seed=3,
    )
    made = releases(federation)
    assert len(made) == len(expected.releases) == 2
    for ours, theirs in zip(made, expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
    queries = [q for site in sites(federation) for q in queried(site["units"], site["values"])]
    for ours, theirs in zip(queries, queried(expected.clients.units, expected.clients.values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    assert federation.run.report_path.exists()
