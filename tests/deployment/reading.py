"""What a federated run left behind: releases on the server, evaluations at the sites."""

from __future__ import annotations

import numpy as np

import privbo as pb
from privbo.door.payload import decode_release
from privbo.protocol.files import load_arrays
from privbo.protocol.messages import FloatArray, Release
from tests.deployment.federations import SITES, Federation


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
