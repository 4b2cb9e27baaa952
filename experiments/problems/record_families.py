"""Families of problems for record-level privacy: up to 30 sites, each a score in [0, 1] per setting and record.

A site's surface is the mean score of the records that it holds. Sites hold different mixtures: records of
scikit-learn's bundled data sets are drawn with replacement, tilted towards a direction of the site's own, and a model
is trained on records that are never scored; other families draw patients from a distribution of the site's own. Tables
of all surfaces are computed once and kept in the user's cache.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import privbo as pb
from experiments.problems.data import cache_folder
from experiments.problems.model_scores import KERNELS, METRICS, SCALINGS, Halves, load
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space

SITES, RECORDS = 30, (200, 1000, 5000)
Kind: TypeAlias = Literal["models", "alarms", "categories", "steps"]
# Scores of a site's records at all points, (n_points, n_records), from the site's stream and its shape of grid.
Site: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A problem of thirty sites.

    Attributes:
        kind: What its surfaces are like.
        frozen: Whether it was set aside for the report: nothing is chosen by looking at it.
        grid: Number of levels by parameter; texts are choices without order.
        site: See ``Site``.
    """

    kind: Kind
    frozen: bool
    grid: dict[str, int | tuple[str, ...]]
    site: Site

    @property
    def shape(self) -> tuple[int, ...]:
        """Levels of every parameter."""
        return tuple(levels if isinstance(levels, int) else len(levels) for levels in self.grid.values())

    @property
    def space(self) -> Space:
        """Levels as integers, choices as categories."""
        return Space({
            name: pb.Int(0, levels - 1) if isinstance(levels, int) else pb.Categorical(levels)
            for name, levels in self.grid.items()
        })  # fmt: skip


def surfaces(name: str) -> FloatArray:
    """Mean scores, ``(n_sizes, n_sites, n_points)``: sites hold the first 200, 1,000 or 5,000 of their records."""
    path = cache_folder() / f"records-{name.replace(' ', '-')}-{source_digest()[:12]}.npy"
    if not path.exists():
        family, found = FAMILIES[name], np.empty((len(RECORDS), SITES, int(np.prod(FAMILIES[name].shape))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # extreme levels stop before they converge; their scores say so
            for site in range(SITES):
                seed = [site, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")]
                scores = np.clip(family.site(np.random.default_rng(seed), family.shape), 0.0, 1.0)
                found[:, site] = [scores[:, :count].mean(axis=1) for count in RECORDS]
        unfinished = path.with_suffix(f".{os.getpid()}.npy")
        np.save(unfinished, found)
        unfinished.replace(path)
    return np.asarray(np.load(path, allow_pickle=False))


def digest(name: str) -> str:
    """Digest of a family's table, rounded to a millionth."""
    return hashlib.sha256(np.round(surfaces(name), 6).tobytes()).hexdigest()[:16]


def source_digest() -> str:
    """Digest of this file's code, whatever its comments."""
    return hashlib.sha256(ast.dump(ast.parse(Path(__file__).read_text())).encode()).hexdigest()


@cache
def _pools(data: str) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Inputs, targets, first principal components, and the order whose first half trains."""
    x, y = load(data)
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    parts = left[:, :3] * np.sqrt(len(x)) * np.minimum(values[:3], 1e9) / np.maximum(values[:3], 1e-9)
    return x, y, parts, np.random.default_rng(0).permutation(len(y))


def _held(rng: np.random.Generator, data: str, smallest: int, features: int | None = None) -> tuple[Halves, IntArray]:
    """A site's training records and the different records it scores; the index of all it scores, ``(5000,)``."""
    x, y, parts, order = _pools(data)
    direction = rng.normal(size=parts.shape[1])
    weights = np.exp(0.7 * parts @ direction / np.linalg.norm(direction))
    training, scored = np.array_split(order, 2)
    size = int(smallest * 4 ** rng.random())
    train = rng.choice(training, size, p=weights[training] / weights[training].sum())
    rest, index = np.unique(
        rng.choice(scored, RECORDS[-1], p=weights[scored] / weights[scored].sum()), return_inverse=True
    )
    x = x[:, :features]
    return Halves(x=x[train], y=y[train], validation_x=x[rest], validation_y=y[rest]), index


def _classified(fitted: Any, halves: Halves, x: FloatArray) -> FloatArray:  # noqa: ANN401  # of scikit-learn
    """Log likelihood of each record's class, 0 at a probability of 0.005 and 1 at 1."""
    likely = fitted.predict_proba(x)
    at = np.minimum(np.searchsorted(fitted.classes_, halves.validation_y), len(fitted.classes_) - 1)
    known = fitted.classes_[at] == halves.validation_y
    shares = np.where(known, likely[np.arange(len(x)), at], 0.0)
    return np.asarray(1.0 + np.log(np.maximum(shares, 0.005)) / np.log(200.0))


def _near(predicted: FloatArray, truth: FloatArray, scale: float = 2.0) -> FloatArray:
    """1 at the truth, 0 at ``scale`` standard deviations of the data set from it."""
    return np.asarray(np.maximum(1.0 - np.abs(predicted - truth) / scale, 0.0))


def _logistic(rng: np.random.Generator, shape: tuple[int, ...], data: str, most: int, smallest: int) -> FloatArray:
    """Over C, 1e-4 to 1e2, and the number of principal components."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    halves, index = _held(rng, data, smallest)
    pca = PCA(n_components=min(most, *halves.x.shape), svd_solver="full").fit(halves.x)
    train, scored = pca.transform(halves.x), pca.transform(halves.validation_x)
    levels = itertools.product(np.geomspace(1e-4, 1e2, shape[0]), np.geomspace(1, most, shape[1]).astype(int))
    found = [
        _classified(LogisticRegression(C=c, max_iter=60).fit(train[:, :k], halves.y), halves, scored[:, :k])
        for c, k in levels
    ]
    return np.array(found)[:, index]


def _kernel_ridge(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over alpha, 1e-4 to 1e2, and gamma, 1e-4 to 1."""
    halves, index = _held(rng, "breast_cancer", 40)
    near, far = (((x[:, None] - halves.x) ** 2).sum(axis=-1) for x in (halves.x, halves.validation_x))
    middle = halves.y.mean()
    found = np.empty((*shape, len(far)))
    for j, gamma in enumerate(np.geomspace(1e-4, 1.0, shape[1])):
        values, vectors = np.linalg.eigh(np.exp(-gamma * near))
        ridge = np.maximum(values, 0) + np.geomspace(1e-4, 1e2, shape[0])[:, None]
        weights = (vectors.T @ (halves.y - middle)) / ridge
        found[:, j] = _near(middle + weights @ (np.exp(-gamma * far) @ vectors).T, halves.validation_y, 1.0)
    return found.reshape(-1, len(far))[:, index]


def _support_regression(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over C, 1e-2 to 1e2, gamma, 1e-3 to 1, and epsilon, 0.01 to 1."""
    from sklearn.svm import SVR

    halves, index = _held(rng, "diabetes", 40)
    bounds = ((1e-2, 1e2), (1e-3, 1.0), (1e-2, 1.0))
    levels = itertools.product(*(np.geomspace(*ends, count) for ends, count in zip(bounds, shape, strict=True)))
    fits = (SVR(C=c, gamma=g, epsilon=e).fit(halves.x, halves.y).predict(halves.validation_x) for c, g, e in levels)
    return np.array([_near(fit, halves.validation_y) for fit in fits])[:, index]


def _boosted(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the rate, 0.01 to 1, the depth, and the number of trees, 1 to 40."""
    from sklearn.ensemble import GradientBoostingRegressor

    halves, index = _held(rng, "diabetes", 50)
    found, trees = [], np.unique(np.geomspace(1, 40, 13).astype(int))[-shape[2] :]
    for rate, depth in itertools.product(np.geomspace(0.01, 1.0, shape[0]), range(1, shape[1] + 1)):
        fit = GradientBoostingRegressor(learning_rate=rate, max_depth=depth, n_estimators=40, random_state=0)
        stages = list(fit.fit(halves.x, halves.y).staged_predict(halves.validation_x))
        found += [_near(stages[count - 1], halves.validation_y) for count in trees]
    return np.array(found)[:, index]


def _referral(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over two thresholds on a risk: below the first nothing is done, above both surgery, else a further test."""
    from sklearn.linear_model import LogisticRegression

    halves, index = _held(rng, "breast_cancer", 30, features=2)
    fit = LogisticRegression(C=1.0).fit(halves.x, halves.y)
    risk, ill = 1.0 - fit.predict_proba(halves.validation_x)[:, 1], halves.validation_y == 0
    first, second = (grid[..., None] for grid in np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij"))
    nothing, surgery, test = np.where(ill, 0.0, 1.0), np.where(ill, 1.0, 0.3), np.where(ill, 0.8, 0.75)
    scores = np.where(risk < first, nothing, np.where(risk >= np.maximum(first, second), surgery, test))
    return scores.reshape(-1, len(risk))[:, index]


def _warning(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the memory and the threshold of an early warning: a stay of 24 hours, illness that begins at some hour."""
    n, hours = RECORDS[-1], np.arange(24)
    ill, onset = rng.random(n) < 0.2 + 0.3 * rng.random(), rng.integers(2, 18, n)
    slope, level = rng.lognormal(-1.2, 0.4, n), 0.3 * rng.normal() + 0.5 * rng.normal(size=n)
    drift = slope[:, None] * np.maximum(hours - onset[:, None], 0) * ill[:, None]
    values = level[:, None] + drift + rng.normal(size=(n, 24)) * np.exp(0.2 * rng.normal())
    found = []
    for weight in np.geomspace(0.04, 1.0, shape[0]):
        smooth = np.zeros((n, 24))
        for hour in hours:
            smooth[:, hour] = weight * values[:, hour] + (1 - weight) * (smooth[:, hour - 1] if hour else 0.0)
        highest = np.maximum.accumulate(smooth, axis=1)
        for threshold in np.linspace(0.0, 4.0, shape[1]):
            alarm = (highest < threshold).sum(axis=1)
            late = np.where(alarm < onset, 0.5, np.maximum(1.0 - 0.08 * (alarm - onset), 0.0))
            found.append(np.where(ill, late * (alarm < 24), np.where(alarm < 24, 0.4, 1.0)))
    return np.array(found)


def _titration(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the first dose, the factor of an increase and the ceiling; patients respond, or suffer, by their own."""
    n = RECORDS[-1]
    middle = np.exp(0.25 * rng.normal(size=2))
    need, bears = middle[0] * rng.lognormal(0.0, 0.5, n), middle[1] * 2.2 * rng.lognormal(0.0, 0.4, n)
    levels = itertools.product(
        np.geomspace(0.1, 4.0, shape[0]), np.linspace(1.05, 2.5, shape[1]), np.geomspace(1.0, 6.0, shape[2])
    )
    found = []
    for dose, factor, ceiling in levels:
        now, score = np.full(n, min(dose, ceiling)), np.zeros(n)
        for _ in range(5):
            score += np.clip(now / need, 0.0, 1.0) - np.clip(2.0 * (now / bears - 1.0), 0.0, 1.0)
            now = np.where(now > bears, now / factor, np.where(now < need, np.minimum(now * factor, ceiling), now))
        found.append(np.clip(0.3 + 0.14 * score, 0.0, 1.0))
    return np.array(found)


def _rejecting(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over C, 1e-3 to 10, and the confidence below which a digit is given to a person."""
    from sklearn.linear_model import LogisticRegression

    halves, index = _held(rng, "digits", 60)
    found = []
    for c in np.geomspace(1e-3, 10.0, shape[0]):
        likely = (fit := LogisticRegression(C=c, max_iter=80).fit(halves.x, halves.y)).predict_proba(
            halves.validation_x
        )
        right = fit.classes_[likely.argmax(axis=1)] == halves.validation_y
        levels = np.linspace(0.1, 0.99, shape[1])
        found += [np.where(likely.max(axis=1) < least, 0.6, np.where(right, 1.0, 0.0)) for least in levels]
    return np.array(found)[:, index]


def _neighbours(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over k, weights, metric and scaling."""
    from scipy.spatial.distance import cdist

    halves, index = _held(rng, "digits", 60)
    classes, codes = np.unique(halves.y, return_inverse=True)
    votes, truth = np.eye(len(classes))[codes], halves.validation_y[:, None] == classes
    scaled = {
        "none": (halves.x, halves.validation_x),
        "standardised": tuple(x / np.maximum(halves.x.std(axis=0), 0.05) for x in (halves.x, halves.validation_x)),
        "ranks": tuple(np.tanh(x) for x in (halves.x, halves.validation_x)),
    }
    found = np.empty((*shape, len(truth)))
    for (m, metric), (s, scaling) in itertools.product(enumerate(METRICS), enumerate(SCALINGS)):
        distances = np.maximum(cdist(scaled[scaling][1], scaled[scaling][0], metric), 1e-6)
        order = np.argsort(distances, axis=1, kind="stable")
        for (i, k), (j, power) in itertools.product(
            enumerate(np.geomspace(1, len(codes) // 2, shape[0]).astype(int)), enumerate((0.0, 2.0))
        ):
            weight = np.take_along_axis(distances, order[:, :k], axis=1) ** -power
            share = ((weight / weight.max(axis=1, keepdims=True))[..., None] * votes[order[:, :k]]).sum(axis=1) + 0.1
            likely = (truth * share).sum(axis=1) / share.sum(axis=1)
            found[i, j, m, s] = 1.0 + np.log(np.maximum(likely, 0.005)) / np.log(200.0)
    return found.reshape(-1, len(truth))[:, index]


def _support_vectors(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the kernel, C, 1e-3 to 1e3, and gamma, 1e-4 to 1."""
    from sklearn.svm import SVC

    halves, index = _held(rng, "breast_cancer", 40)
    levels = itertools.product(KERNELS, np.geomspace(1e-3, 1e3, shape[1]), np.geomspace(1e-4, 1.0, shape[2]))
    fits = (
        SVC(kernel=kernel, C=c, gamma=gamma, degree=2, max_iter=2000).fit(halves.x, halves.y)
        for kernel, c, gamma in levels
    )
    sign = 2.0 * halves.validation_y - 1.0
    return np.array([0.5 + 0.5 * np.clip(sign * f.decision_function(halves.validation_x), -1, 1) for f in fits])[
        :, index
    ]


def _pipeline(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over scaling, model and strength of regularisation."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier

    halves, index = _held(rng, "wine", 24)
    found = []
    for scaling, model, level in itertools.product(range(3), range(4), np.linspace(0.0, 1.0, shape[2])):
        scale = (np.ones(13), np.geomspace(0.1, 10.0, 13), np.geomspace(10.0, 0.1, 13))[scaling]
        x, scored, size = halves.x * scale, halves.validation_x * scale, len(halves.y)
        fit = (
            LogisticRegression(C=10 ** (2 - 5 * level), max_iter=100),
            KNeighborsClassifier(max(1, int(size ** (0.8 * level)))),
            GaussianNB(var_smoothing=10 ** (-5 + 6 * level)),
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.01 + 0.98 * level),
        )[model].fit(x, halves.y)
        found.append(_classified(fit, halves, scored))
    return np.array(found)[:, index]


def _triage(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over who sees a patient first, the severity from which they treat, and the days until others are seen again."""
    n = RECORDS[-1]
    severity, grows = rng.normal(0.3 * rng.normal(), 1.0, n), rng.lognormal(-2.0 + 0.3 * rng.normal(), 0.5, n)
    error, found = rng.normal(size=n), []
    ways = zip((1.2, 0.7, 0.3, 0.9), (0.02, 0.08, 0.2, 0.05) + 0.02 * rng.normal(size=4), strict=True)
    for (blur, cost), least, days in itertools.product(
        ways, np.linspace(-1.5, 2.5, shape[1]), np.geomspace(1, 30, shape[2])
    ):
        treated = severity + blur * error > least
        later = severity + grows * days
        untreated = 1.0 / (1.0 + np.exp(1.5 * (later - 1.0))) - 0.15 / np.sqrt(days)
        found.append(np.clip(np.where(treated, 0.55 + 0.2 * np.tanh(severity), untreated) - cost, 0.0, 1.0))
    return np.array(found)


def _tree(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over depth, the smallest leaf and the number of features tried."""
    from sklearn.tree import DecisionTreeClassifier

    halves, index = _held(rng, "breast_cancer", 50)
    levels = itertools.product(
        range(1, shape[0] + 1), np.unique(np.geomspace(1, 24, 16).astype(int))[: shape[1]], range(1, shape[2] + 1)
    )
    fits = (
        DecisionTreeClassifier(max_depth=depth, min_samples_leaf=int(leaf), max_features=4 * wide, random_state=0)
        for depth, leaf, wide in levels
    )
    return np.array([_classified(fit.fit(halves.x, halves.y), halves, halves.validation_x) for fit in fits])[:, index]


def _regression_tree(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the smallest leaf, the depth and the number of features tried."""
    from sklearn.tree import DecisionTreeRegressor

    halves, index = _held(rng, "diabetes", 60)
    levels = itertools.product(np.linspace(1, 40, shape[0]).astype(int), range(1, shape[1] + 1), (3, 6, 10)[: shape[2]])
    fits = (
        DecisionTreeRegressor(min_samples_leaf=int(leaf), max_depth=depth, max_features=wide, random_state=0)
        .fit(halves.x, halves.y)
        .predict(halves.validation_x)
        for leaf, depth, wide in levels
    )
    return np.array([_near(fit, halves.validation_y) for fit in fits])[:, index]


def _tablets(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the dose per kilogram, the size of a tablet and the hours between two, rounded to whole tablets."""
    n = RECORDS[-1]
    weight, clearance = rng.normal(70 + 8 * rng.normal(), 14, n), rng.lognormal(0.2 * rng.normal(), 0.35, n)
    found = []
    for dose, size, hours in itertools.product(
        np.linspace(1.0, 12.0, shape[0]), np.linspace(50.0, 400.0, shape[1]), (4, 6, 8, 12, 18, 24)[: shape[2]]
    ):
        given = np.round(np.maximum(weight, 30.0) * dose / size) * size
        level = given / (hours * clearance * 4.0)
        swing = np.exp(-0.12 * clearance * hours)
        found.append(np.exp(-1.5 * np.log(np.maximum(level, 0.01) / 10.0) ** 2) * (0.5 + 0.5 * swing))
    return np.array(found)


def _shifts(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over beds, nurses and beds per nurse that are allowed; a record is a day with its arrivals and their stay."""
    n = RECORDS[-1]
    arrivals = rng.poisson(rng.gamma(8.0, (6.0 + rng.normal()) / 8.0, n))
    heavy = rng.binomial(arrivals, np.clip(0.3 + 0.08 * rng.normal(), 0.1, 0.6))
    found = []
    for beds, nurses, each in itertools.product(*(range(1, count + 1) for count in shape)):
        served = np.minimum(arrivals, min(2 * beds, 2 * nurses * each))
        tired = np.clip(served / nurses - 3.0, 0.0, None) + np.clip(heavy - nurses, 0.0, None)
        share = served / np.maximum(arrivals, 1)
        found.append(np.clip(share - 0.12 * tired - 0.03 * nurses - 0.02 * beds, 0.0, 1.0))
    return np.array(found)


def _family(kind: Kind, site: Site, *, frozen: bool, **grid: int | tuple[str, ...]) -> Family:
    return Family(kind=kind, frozen=frozen, grid=grid, site=site)


_RIDGE = partial(_logistic, data="breast_cancer", most=20, smallest=30)
_DIGITS = partial(_logistic, data="digits", most=48, smallest=60)
FAMILIES = {
    "kernel ridge": _family("models", _kernel_ridge, frozen=False, alpha=16, gamma=16),
    "logistic regression, a ridge": _family("models", _RIDGE, frozen=False, C=14, components=6),
    "logistic regression, digits": _family("models", _DIGITS, frozen=True, C=14, components=8),
    "support vector regression": _family("models", _support_regression, frozen=False, C=9, gamma=9, epsilon=4),
    "boosted regression": _family("models", _boosted, frozen=True, rate=9, depth=4, trees=10),
    "referral": _family("alarms", _referral, frozen=False, first=18, second=18),
    "early warning": _family("alarms", _warning, frozen=True, memory=14, threshold=18),
    "titration": _family("alarms", _titration, frozen=False, start=12, factor=8, ceiling=6),
    "rejecting digits": _family("alarms", _rejecting, frozen=True, C=10, least=14),
    "nearest neighbours": _family(
        "categories", _neighbours, frozen=False, k=12, weights=("uniform", "distance"), metric=METRICS, scaling=SCALINGS
    ),
    "support vectors": _family("categories", _support_vectors, frozen=True, kernel=KERNELS, C=9, gamma=9),
    "pipelines": _family(
        "categories",
        _pipeline,
        frozen=False,
        scaling=("none", "up", "down"),
        model=("logistic", "neighbours", "bayes", "discriminant"),
        level=10,
    ),
    "triage": _family(
        "categories", _triage, frozen=True, route=("phone", "nurse", "doctor", "questions"), least=9, days=8
    ),
    "decision tree": _family("steps", _tree, frozen=False, depth=9, leaf=8, features=6),
    "regression tree": _family("steps", _regression_tree, frozen=True, leaf=16, depth=8, features=3),
    "tablets": _family("steps", _tablets, frozen=False, dose=16, size=6, hours=6),
    "shift plans": _family("steps", _shifts, frozen=True, beds=10, nurses=10, each=4),
}
