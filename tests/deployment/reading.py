"""What a federated run left behind: releases on the server, evaluations at the sites."""

import numpy as np

import privbo as pb
from accountant.ledger import Ledger
from privbo.door.payload import decode_release
from privbo.flower.party import ledger_path, read_site
from privbo.protocol.files import load_arrays
from privbo.protocol.messages import FloatArray, Release
from tests.conformance.small import ROUNDS, problem
from tests.deployment.federations import SITES, Federation

KINDS = {"dp-fts-de": pb.DPFTSDE(n_features=12), "fed-pne": pb.FedPNE(horizon=400, c=0.02, release_when="always")}


def ledger_of(federation: Federation, site: str) -> Ledger:
    """A site's ledger of all runs."""
    return Ledger.open(ledger_path(read_site(federation.site_file(site))))


def releases(federation: Federation) -> list[Release]:
    with pb.load(federation.run.path).ledger as ledger:
        assert ledger.verify().ok
        return [decode_release(ledger.stored_release(entry.release_id))[0] for entry in ledger.entries()]


def sites(federation: Federation) -> list[dict[str, np.ndarray]]:
    """Every site's evaluations, from its own disk."""
    folders = [federation.root / site / "kept" for site in SITES]
    return [load_arrays(next(folder.glob("*/evaluations.npz"))) for folder in folders]


def queried(units: FloatArray, values: FloatArray) -> list[FloatArray]:
    """Every client's queries in order; cohorts pad clients that ask less often than others."""
    return [mine[np.isfinite(seen)] for mine, seen in zip(units, values, strict=True)]


def in_process(name: str = "fed-pne", rounds: int = ROUNDS) -> pb.Record:
    """The run of ``federations.make`` in one process."""
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    return pb.run(problem(), KINDS[name], privacy=privacy, rounds=rounds, seed=3)


def require_same(federation: Federation, expected: pb.Record, found: list[dict[str, np.ndarray]] | None = None) -> None:
    """Hold releases and every client's queries to those of one process."""
    made = releases(federation)
    assert len(made) == len(expected.releases) > 0
    for ours, theirs in zip(made, expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
        assert (ours.noise_stddev, ours.sequence) == (theirs.noise_stddev, theirs.sequence)
    queries = [q for site in found or sites(federation) for q in queried(site["units"], site["values"])]
    for ours, theirs in zip(queries, queried(expected.clients.units, expected.clients.values), strict=True):
        assert len(np.unique(ours, axis=0)) > 1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
