"""A ward's objective: validation accuracy of an SVM on the ward's own data.

Installed at every hospital. It reads one folder, which holds the wards of this hospital only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.svm import SVC

import privbo as pb

N_WARDS = 30
SPACE = {"C": pb.Real(1e-2, 1e3, log=True), "gamma": pb.Real(1e-5, 1e-1, log=True)}


def problem(data: str) -> pb.Problem:
    """The hospital's problem; the space and the number of wards are the federation's."""

    def score(ward: int, params: dict[str, Any]) -> float:
        with np.load(Path(data) / f"ward-{ward:02d}.npz", allow_pickle=False) as shard:
            model = SVC(C=params["C"], gamma=params["gamma"]).fit(shard["train_images"], shard["train_labels"])
            return float(model.score(shard["validation_images"], shard["validation_labels"]))

    return pb.Problem(space=SPACE, objective=score, n_clients=N_WARDS, name="ward-svm")
