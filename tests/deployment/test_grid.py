"""Rounds over Flower's message API without sockets: the same numbers as in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.config import algorithms, construct
from privbo.record import load_arrays
from tests.conformance.cases import problem
from tests.deployment.federations import ALGORITHMS, Federation, make


def releases(federation: Federation) -> list[pb.Result]:
    from privbo.release.payload import decode_release

    with pb.load(federation.run.path).ledger as ledger:
        return [decode_release(ledger.stored_release(entry.release_id))[0] for entry in ledger.entries()]


def in_process(name: str):
    algorithm = dict(ALGORITHMS[name])
    kind = algorithms()[algorithm.pop("type")]
    return pb.run(
        problem(),
        construct(kind, algorithm, "algorithm"),
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        rounds=4,
        seed=3,
    )


def queried(federation: Federation) -> np.ndarray:
    """Every client's points in order, from the sites' own disks."""
    folders = sorted(federation.root.glob("*/kept/*/evaluations.npz"))
    units = [load_arrays(path)["units"] for path in sorted(folders, key=lambda p: p.parts[-4])]
    return np.concatenate(units)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_grid_gives_the_queries_and_releases_of_one_process(name: str, tmp_path: Path) -> None:
    federation = make(tmp_path, name)
    federation.play()
    expected = in_process(name)
    made = releases(federation)
    assert len(made) == len(expected.releases) > 0
    np.testing.assert_allclose(queried(federation), expected.clients.units, rtol=0, atol=1e-9)
    for ours, theirs in zip(made, expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
        assert ours.noise_stddev == theirs.noise_stddev
