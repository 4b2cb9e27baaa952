"""Landmine detection: clients are mine fields and tune an SVM; the reward is a field's AUC.

Data: LandmineData.mat, Xue, Liao, Carin, Krishnapuram, JMLR 8:35-63, 2007 (29 fields, 9
features, no licence stated), never part of this project. The folder named by ``PRIVBO_DATA``
holds it, or ``landmine.npz`` with X, y, field, is_val, split_order; from the original file the
halves are drawn as the DP-FTS-DE authors do (stratified, random_state=0).

Parameters as in the papers: C in [1e-4, 10] and gamma in [0.01, 10], both on linear scales. The
AUC ranks decision values. A validation half holds 8 to 24 mines: the AUC is coarse.
"""

from __future__ import annotations

import os
import warnings
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import privbo as pb
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray

Scores: TypeAlias = Literal["decision", "probability"]
LOW, HIGH = np.array([1e-4, 0.01]), np.array([10.0, 10.0])
# Where the best values are searched: most fields have theirs at the smallest gamma.
GAMMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COSTS = (1e-4, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)


class Fields:
    """The fields' training and validation halves.

    Raises:
        ConfigurationError: If the data is not there.
    """

    def __init__(self, folder: Path) -> None:
        packed, original = folder / "landmine.npz", folder / "LandmineData.mat"
        if not packed.exists() and not original.exists():
            raise pb.ConfigurationError(
                f"PRIVBO_DATA={str(folder)!r} holds neither landmine.npz nor LandmineData.mat; name a folder that does"
            )
        self.halves = _from_npz(packed) if packed.exists() else _from_mat(original)
        self._known: dict[tuple[int, float, float, Scores, int], float] = {}

    def auc(self, field: int, unit: FloatArray, scores: Scores = "decision", *, folds: int = 0) -> float:
        """Validation AUC of one field at a point of the unit square; every SVM is trained once.

        Args:
            field: Which one.
            unit: The point.
            scores: ``"decision"`` ranks decision values; ``"probability"`` the probabilities of
                Platt's scaling, as the authors do, which turns the order around at about a quarter
                of all points.
            folds: Seed of the folds that Platt's scaling is fitted on; without effect on decision values.
        """
        key = (field, float(unit[0]), float(unit[1]), scores, folds)
        if key not in self._known:
            self._known[key] = self._train(field, LOW + unit * (HIGH - LOW), scores, folds)
        return self._known[key]

    def _train(self, field: int, setting: FloatArray, scores: Scores, folds: int) -> float:
        from sklearn import config_context
        from sklearn.svm import SVC

        x, y, held_x, held_y = self.halves[field]
        c, gamma, probability = float(setting[0]), float(setting[1]), scores == "probability"
        with warnings.catch_warnings(), config_context(assume_finite=True, skip_parameter_validation=True):
            # The authors' scores are libsvm's own; scikit-learn 1.9 announces their end.
            warnings.simplefilter("ignore", FutureWarning)
            model = SVC(C=c, gamma=gamma, probability=probability, random_state=folds).fit(x, y)
            found = model.predict_proba(held_x)[:, 1] if probability else model.decision_function(held_x)
        return rank_auc(found, held_y == 1)


def rank_auc(scores: FloatArray, positive: npt.NDArray[np.bool_]) -> float:
    """Area under the curve by midranks: the share of (positive, negative) pairs in order, ties as halves."""
    from scipy.stats import rankdata

    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    return float((rankdata(scores)[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


class FieldClients:
    """One client per field, as in the DP-FTS-DE paper; the same split whatever the seed.

    Args:
        data: The fields.
        scores: What the AUC ranks. The authors train with ``probability=True`` and no seed, so the
            folds of Platt's scaling, and with them the score of one and the same point, are random.
        seed: Where those folds come from. Point and field enter too: a point evaluated again by
            the same client keeps its score (the authors replace repeated points).
    """

    def __init__(self, data: Fields, scores: Scores = "decision", *, seed: int = 0) -> None:
        self._data, self._scores, self._seed = data, scores, seed

    def observe(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """AUC of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        return np.array([self._score(int(c), u) for c, u in zip(clients, units, strict=True)])

    def _score(self, client: int, unit: FloatArray) -> float:
        if self._scores == "decision":
            return self._data.auc(client, unit)
        point = np.ascontiguousarray(unit, dtype=np.float64).view(np.uint32).tolist()
        folds = int(np.random.SeedSequence([self._seed, client, *point]).generate_state(1)[0])
        return self._data.auc(client, unit, self._scores, folds=folds)

    def losses(self, history: ClientHistory) -> FloatArray:
        """1 - AUC of every evaluation; with random scores the best of them flatters its point."""
        return np.asarray(1.0 - history.values)

    def problem(self) -> pb.Problem:
        """The tuning problem."""
        return pb.Problem(
            space={"C": pb.Real(float(LOW[0]), float(HIGH[0])), "gamma": pb.Real(float(LOW[1]), float(HIGH[1]))},
            batch_objective=self.observe,
            n_clients=len(self._data.halves),
            name="landmine",
            provenance=f"LandmineData.mat, Duke University; AUC of {self._scores} scores",
        )


def clients(seed: int) -> FieldClients:  # noqa: ARG001  # the split is fixed
    """The 29 fields."""
    return FieldClients(fields())


def authors_clients(seed: int) -> FieldClients:
    """The 29 fields, scored as the authors do, at random, to reproduce their curves."""
    return FieldClients(fields(), "probability", seed=seed)


Halves = tuple[FloatArray, IntArray, FloatArray, IntArray]


def _from_npz(path: Path) -> list[Halves]:
    with np.load(path, allow_pickle=False) as data:
        held = {name: data[name] for name in ("X", "y", "field", "is_val", "split_order")}
    halves = []
    for field in range(int(held["field"].max()) + 1):
        parts = []
        for side in (False, True):
            rows = np.flatnonzero((held["field"] == field) & (held["is_val"] == side))
            rows = rows[np.argsort(held["split_order"][rows], kind="stable")]
            parts += [held["X"][rows], held["y"][rows].astype(np.int64)]
        halves.append((parts[0], parts[1], parts[2], parts[3]))
    return halves


def _from_mat(path: Path) -> list[Halves]:
    from scipy.io import loadmat
    from sklearn.model_selection import train_test_split

    data = loadmat(path)
    halves = []
    for x, y in zip(data["feature"].ravel(), data["label"].ravel(), strict=True):
        labels = np.asarray(y).ravel().astype(np.int64)
        a, b, c, d = train_test_split(x, labels, test_size=0.5, stratify=labels, random_state=0)
        halves.append((a, c, b, d))
    return halves


@lru_cache(maxsize=1)
def fields() -> Fields:
    """The data in the folder ``PRIVBO_DATA``."""
    return Fields(Path(os.environ.get("PRIVBO_DATA", "data")))


class Detectors:
    """Clients that hold a field each: every field once where there are as many, else drawn at random."""

    def __init__(self, data: Fields, n_clients: int, *, seed: int) -> None:
        self.name, self.n_dims, self.n_clients = "landmine", 2, n_clients
        self._data = data
        generator = np.random.default_rng([seed, 29])
        n_fields = len(data.halves)
        self.field = np.arange(n_fields) if n_clients == n_fields else generator.integers(0, n_fields, n_clients)

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """AUC of the clients' fields."""
        return np.array([self._data.auc(int(f), u) for f, u in zip(self.field[clients], units, strict=True)])

    def average(self, units: FloatArray) -> FloatArray:
        """Average over clients; a field counts as often as it was given."""
        names, counts = np.unique(self.field, return_counts=True)
        rows = [[self._data.auc(int(f), u) for u in units] for f in names]
        return np.asarray(counts @ np.array(rows) / counts.sum())

    @property
    def _grid(self) -> FloatArray:
        settings = np.stack(np.meshgrid(COSTS, GAMMAS, indexing="ij"), axis=-1).reshape(-1, 2)
        return np.asarray((settings - LOW) / (HIGH - LOW))

    @cached_property
    def local_bests(self) -> FloatArray:
        """Best AUC of every client's field on a grid."""
        best = {int(f): max(self._data.auc(int(f), u) for u in self._grid) for f in np.unique(self.field)}
        return np.array([best[int(f)] for f in self.field])

    @cached_property
    def global_optimum(self) -> FloatArray:
        """Best point of the grid for the average."""
        return np.asarray(self._grid[np.argmax(self.average(self._grid))])

    @property
    def global_optima(self) -> FloatArray:
        """Best point of the grid for the average, alone."""
        return self.global_optimum[None]


@lru_cache(maxsize=4)
def model(n_clients: int, seed: int) -> Detectors:
    """Fields drawn for an experiment."""
    return Detectors(fields(), n_clients, seed=seed)
