"""Validation scores of small models over grids of their hyperparameters; larger is better."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np

from privbo.protocol.messages import FloatArray, IntArray

METRICS = ("euclidean", "cityblock", "cosine")
SCALINGS = ("none", "standardised", "ranks")
KERNELS = ("linear", "rbf", "poly", "sigmoid")
_REGRESSIONS = ("diabetes",)


@dataclass(frozen=True, kw_only=True)
class Halves:
    """A client's records; inputs have mean 0 and variance 1 over the whole data set.

    Attributes:
        x, y: For training.
        validation_x, validation_y: For the score.
    """

    x: FloatArray
    y: FloatArray
    validation_x: FloatArray
    validation_y: FloatArray


@cache
def load(name: str) -> tuple[FloatArray, FloatArray]:
    """Give standardised inputs and targets of a bundled data set; a regression's targets are standardised too."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)
    if name in _REGRESSIONS:
        y = (y - y.mean()) / y.std()
    return np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)


def logistic_regression(halves: Halves) -> FloatArray:
    """Mean log likelihood over C, 1e-4 to 1e2, and the number of principal components, 2 to 48."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    sizes = np.geomspace(2, 48, 8).astype(int)
    most = min(halves.x.shape)
    pca = PCA(n_components=min(most, int(sizes[-1])), svd_solver="full").fit(halves.x)
    train, validation = pca.transform(halves.x), pca.transform(halves.validation_x)
    found = np.empty((14, 8))
    for j, size in enumerate(sizes):
        for i, strength in enumerate(np.geomspace(1e-4, 1e2, 14)):
            fit = LogisticRegression(C=strength, max_iter=60).fit(train[:, :size], halves.y)
            found[i, j] = _likelihood(fit.predict_proba(validation[:, :size]), fit.classes_, halves.validation_y)
    return found


def _likelihood(shares: FloatArray, classes: FloatArray, truth: FloatArray) -> float:
    """Mean log likelihood; no record counts below log 0.005, so that one miss does not decide."""
    at = np.searchsorted(classes, truth)
    known = (at < len(classes)) & (classes[np.minimum(at, len(classes) - 1)] == truth)
    likely = np.where(known, shares[np.arange(len(truth)), np.minimum(at, len(classes) - 1)], 0.0)
    return float(np.log(np.maximum(likely, 5e-3)).mean())


def _explained(predicted: FloatArray, truth: FloatArray) -> FloatArray:
    """Explained share of the variance along the last axis, at least -1."""
    return np.asarray(np.maximum(1 - ((predicted - truth) ** 2).mean(axis=-1) / max(float(truth.var()), 1e-9), -1.0))


def kernel_ridge(halves: Halves) -> FloatArray:
    """Explained variance over alpha, 1e-4 to 1e2, and gamma, 1e-4 to 1, by an eigendecomposition per gamma."""
    near, far = _squares(halves.x, halves.x), _squares(halves.validation_x, halves.x)
    middle = halves.y.mean()
    columns = []
    for gamma in np.geomspace(1e-4, 1.0, 20):
        values, vectors = np.linalg.eigh(np.exp(-gamma * near))
        weights = vectors.T @ (halves.y - middle)
        ridge = np.maximum(values, 0) + np.geomspace(1e-4, 1e2, 20)[:, None]
        predicted = middle + (weights / ridge) @ (np.exp(-gamma * far) @ vectors).T
        columns.append(_explained(predicted, halves.validation_y))
    return np.stack(columns, axis=1)


def _squares(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray(((a[:, None] - b) ** 2).sum(axis=-1))


def support_vector_regression(halves: Halves) -> FloatArray:
    """Explained variance over C, 1e-2 to 1e2, gamma, 1e-3 to 1, and epsilon, 0.01 to 1."""
    from sklearn.svm import SVR

    levels = (np.geomspace(1e-2, 1e2, 9), np.geomspace(1e-3, 1.0, 9), np.geomspace(1e-2, 1.0, 5))
    found = [
        SVR(C=c, gamma=gamma, epsilon=epsilon).fit(halves.x, halves.y).predict(halves.validation_x)
        for c, gamma, epsilon in itertools.product(*levels)
    ]
    return _explained(np.array(found), halves.validation_y).reshape(9, 9, 5)


def gradient_boosting(halves: Halves) -> FloatArray:
    """Mean log likelihood over the rate, 0.005 to 1, the depth, 1 to 4, and the number of trees, 1 to 48."""
    from sklearn.ensemble import GradientBoostingClassifier

    trees = np.unique(np.geomspace(1, 48, 14).astype(int))[:12]
    trees[-1] = 48
    found = np.empty((9, 4, 12))
    for (i, rate), depth in itertools.product(enumerate(np.geomspace(5e-3, 1.0, 9)), range(4)):
        fit = GradientBoostingClassifier(learning_rate=rate, max_depth=depth + 1, n_estimators=48, random_state=0)
        fit.fit(halves.x, halves.y)
        stages = list(fit.staged_predict_proba(halves.validation_x))
        found[i, depth] = [_likelihood(stages[t - 1], fit.classes_, halves.validation_y) for t in trees]
    return found


def decision_tree(halves: Halves) -> FloatArray:
    """Mean log likelihood, smoothed by one record, over depth, 1 to 9, records of a leaf, 1 to 20, and features."""
    from sklearn.tree import DecisionTreeClassifier

    classes = np.unique(halves.y)
    levels = (range(1, 10), np.geomspace(1, 20, 8).astype(int), np.linspace(0.05, 1.0, 6))
    found = []
    for depth, least, share in itertools.product(*levels):
        fit = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=least, max_features=share, random_state=0)
        fit.fit(halves.x, halves.y)
        votes = fit.predict_proba(halves.validation_x) * least + 1 / len(classes)
        found.append(_likelihood(votes / votes.sum(axis=1, keepdims=True), fit.classes_, halves.validation_y))
    return np.array(found).reshape(9, 8, 6)


def boosted_regression(halves: Halves) -> FloatArray:
    """Explained variance over the rate, 0.01 to 1, the depth, 1 to 4, and the number of trees, 1 to 40."""
    from sklearn.ensemble import GradientBoostingRegressor

    trees = np.unique(np.geomspace(1, 40, 13).astype(int))[-10:]
    found = np.empty((9, 4, 10))
    for (i, rate), depth in itertools.product(enumerate(np.geomspace(0.01, 1.0, 9)), range(4)):
        fit = GradientBoostingRegressor(learning_rate=rate, max_depth=depth + 1, n_estimators=40, random_state=0)
        stages = list(fit.fit(halves.x, halves.y).staged_predict(halves.validation_x))
        found[i, depth] = _explained(np.array([stages[t - 1] for t in trees]), halves.validation_y)
    return found


def nearest_neighbours(halves: Halves) -> FloatArray:
    """Mean log likelihood, smoothed by one record spread over all classes, over k, weights, metric and scaling."""
    classes, codes = np.unique(halves.y, return_inverse=True)
    votes = np.eye(len(classes))[codes]
    found = np.empty((12, 2, len(METRICS), len(SCALINGS)))
    for (m, metric), (s, scaling) in itertools.product(enumerate(METRICS), enumerate(SCALINGS)):
        distances, order = _neighbours(halves, metric, scaling)
        for i, k in enumerate(_counts(len(halves.y))):
            near = order[:, :k]
            for j, power in enumerate((0.0, 2.0)):
                weight = np.take_along_axis(distances, near, axis=1) ** -power
                weight = weight / weight.max(axis=1, keepdims=True)
                shares = (weight[..., None] * votes[near]).sum(axis=1) + 1 / len(classes)
                likely = shares / shares.sum(axis=1, keepdims=True)
                found[i, j, m, s] = _likelihood(likely, classes, halves.validation_y)
    return found


def _counts(n: int) -> IntArray:
    """Twelve numbers of neighbours, 1 to half of the records, perhaps some equal."""
    return np.geomspace(1, max(2, n // 2), 12).astype(np.int64)


def _neighbours(halves: Halves, metric: str, scaling: str) -> tuple[FloatArray, IntArray]:
    """Distances of every validation record to all training records, and those in order of distance."""
    from scipy.spatial.distance import cdist
    from scipy.stats import rankdata

    train, validation = halves.x, halves.validation_x
    if scaling == "standardised":
        middle, scale = train.mean(axis=0), np.maximum(train.std(axis=0), 0.05)
        train, validation = (train - middle) / scale, (validation - middle) / scale
    if scaling == "ranks":
        both = rankdata(np.concatenate([train, validation]), axis=0)
        train, validation = both[: len(train)], both[len(train) :]
    distances = np.maximum(cdist(validation, train, metric), 1e-6)
    return distances, np.argsort(distances, axis=1, kind="stable")


def support_vectors(halves: Halves) -> FloatArray:
    """Explained variance of the decision value over the kernel, C, 1e-3 to 1e3, and gamma, 1e-4 to 1."""
    from sklearn.svm import SVR

    levels = (KERNELS, np.geomspace(1e-3, 1e3, 9), np.geomspace(1e-4, 1.0, 9))
    found = [
        SVR(kernel=kernel, C=c, gamma=gamma, degree=2, max_iter=2000)
        .fit(halves.x, halves.y)
        .predict(halves.validation_x)
        for kernel, c, gamma in itertools.product(*levels)
    ]
    return _explained(np.array(found), halves.validation_y).reshape(4, 9, 9)
