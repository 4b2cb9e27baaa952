"""Hospitals tune an SVM together: 30 hospitals, each with its own few patients, at epsilon 4.

    python -m experiments.examples.hospitals_svm

The patients are those of scikit-learn's breast cancer data, dealt out at random; a hospital scores a
setting by cross-validation on its own patients. What is printed last is private: it is here to show what
sharing bought, and no hospital would publish it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import privbo as pb

N_HOSPITALS, ROUNDS = 30, 8


def hospitals(seed: int = 0) -> pb.Problem:
    """Every hospital's patients, and the score of an SVM on them."""
    images, malignant = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(malignant))
    patients = np.array_split(order, N_HOSPITALS)
    folds = StratifiedKFold(n_splits=3, shuffle=True, random_state=0)

    def accuracy(hospital: int, params: dict[str, Any]) -> float:
        mine = patients[hospital]
        model = make_pipeline(StandardScaler(), SVC(C=float(params["C"]), gamma=float(params["gamma"])))
        return float(cross_val_score(model, images[mine], malignant[mine], cv=folds).mean())

    space = {"C": pb.Real(1e-2, 1e3, log=True), "gamma": pb.Real(1e-5, 1.0, log=True)}
    return pb.Problem(space=space, objective=accuracy, n_clients=N_HOSPITALS, name="hospitals")


def main(home: Path, *, noise: Literal["secure", "simulation"] = "secure") -> dict[str, float]:
    """Run it and its controls into a folder; returns the mean best accuracy over hospitals and rounds."""
    problem, algorithm, privacy = hospitals(), pb.SharedPrior(), pb.Privacy(epsilon=4, noise=noise)
    result = pb.run(problem, algorithm, privacy=privacy, rounds=ROUNDS, seed=1, directory=home)
    print(f"paid: epsilon {result.epsilon():.2f} at delta {result.delta:g}, {len(result.ledger.entries())} releases")
    print(f"report: {pb.write_report(result)}")
    alone = pb.run(problem, algorithm.local(), privacy=pb.NoPrivacy(), rounds=ROUNDS, seed=1)
    simulated = pb.Privacy(epsilon=4, noise="simulation")
    zeroed = pb.run(problem, algorithm, privacy=simulated, rounds=ROUNDS, seed=1, control="zeroed")
    arms = {"together": result, "each alone": alone, "noise alone": zeroed}
    found = {name: float(arm.best_so_far()[1:].mean()) for name, arm in arms.items()}
    print("private:", ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    print("private: hospital 3 would now use", result.best(client=3).params)
    return found


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()) / "hospitals")
