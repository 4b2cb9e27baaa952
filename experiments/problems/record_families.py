"""Families of problems for record-level privacy: up to 30 sites, each a score in [0, 1] per setting and record.

A site's surface is the mean score of the records that it holds. Sites hold different mixtures: records of
scikit-learn's bundled data sets are drawn with replacement, tilted towards a direction of the site's own, and a model
is trained on records that are never scored; other families draw patients from a distribution of the site's own.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np

from experiments.problems.frozen import MOST_RECORDS, Tables, classified, family, held, near
from experiments.problems.model_scores import KERNELS, METRICS, SCALINGS
from privbo.protocol.messages import FloatArray

SITES, RECORDS = 30, (200, 1000, MOST_RECORDS)


def _logistic(rng: np.random.Generator, shape: tuple[int, ...], data: str, most: int, smallest: int) -> FloatArray:
    """Over C, 1e-4 to 1e2, and the number of principal components."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    halves, index = held(rng, data, smallest)
    pca = PCA(n_components=min(most, *halves.x.shape), svd_solver="full").fit(halves.x)
    train, scored = pca.transform(halves.x), pca.transform(halves.validation_x)
    levels = itertools.product(np.geomspace(1e-4, 1e2, shape[0]), np.geomspace(1, most, shape[1]).astype(int))
    found = [
        classified(LogisticRegression(C=c, max_iter=60).fit(train[:, :k], halves.y), halves, scored[:, :k])
        for c, k in levels
    ]
    return np.array(found)[:, index]


def _kernel_ridge(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over alpha, 1e-4 to 1e2, and gamma, 1e-4 to 1."""
    halves, index = held(rng, "breast_cancer", 40)
    within, far = (((x[:, None] - halves.x) ** 2).sum(axis=-1) for x in (halves.x, halves.validation_x))
    middle = halves.y.mean()
    found = np.empty((*shape, len(far)))
    for j, gamma in enumerate(np.geomspace(1e-4, 1.0, shape[1])):
        values, vectors = np.linalg.eigh(np.exp(-gamma * within))
        ridge = np.maximum(values, 0) + np.geomspace(1e-4, 1e2, shape[0])[:, None]
        weights = (vectors.T @ (halves.y - middle)) / ridge
        found[:, j] = near(middle + weights @ (np.exp(-gamma * far) @ vectors).T, halves.validation_y, 1.0)
    return found.reshape(-1, len(far))[:, index]


def _support_regression(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over C, 1e-2 to 1e2, gamma, 1e-3 to 1, and epsilon, 0.01 to 1."""
    from sklearn.svm import SVR

    halves, index = held(rng, "diabetes", 40)
    bounds = ((1e-2, 1e2), (1e-3, 1.0), (1e-2, 1.0))
    levels = itertools.product(*(np.geomspace(*ends, count) for ends, count in zip(bounds, shape, strict=True)))
    fits = (SVR(C=c, gamma=g, epsilon=e).fit(halves.x, halves.y).predict(halves.validation_x) for c, g, e in levels)
    return np.array([near(fit, halves.validation_y) for fit in fits])[:, index]


def _boosted(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the rate, 0.01 to 1, the depth, and the number of trees, 1 to 40."""
    from sklearn.ensemble import GradientBoostingRegressor

    halves, index = held(rng, "diabetes", 50)
    found, trees = [], np.unique(np.geomspace(1, 40, 13).astype(int))[-shape[2] :]
    for rate, depth in itertools.product(np.geomspace(0.01, 1.0, shape[0]), range(1, shape[1] + 1)):
        fit = GradientBoostingRegressor(learning_rate=rate, max_depth=depth, n_estimators=40, random_state=0)
        stages = list(fit.fit(halves.x, halves.y).staged_predict(halves.validation_x))
        found += [near(stages[count - 1], halves.validation_y) for count in trees]
    return np.array(found)[:, index]


def _referral(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over two thresholds on a risk: below the first nothing is done, above both surgery, else a further test."""
    from sklearn.linear_model import LogisticRegression

    halves, index = held(rng, "breast_cancer", 30, features=2)
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

    halves, index = held(rng, "digits", 60)
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

    halves, index = held(rng, "digits", 60)
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

    halves, index = held(rng, "breast_cancer", 40)
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

    halves, index = held(rng, "wine", 24)
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
        found.append(classified(fit, halves, scored))
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

    halves, index = held(rng, "breast_cancer", 50)
    levels = itertools.product(
        range(1, shape[0] + 1), np.unique(np.geomspace(1, 24, 16).astype(int))[: shape[1]], range(1, shape[2] + 1)
    )
    fits = (
        DecisionTreeClassifier(max_depth=depth, min_samples_leaf=int(leaf), max_features=4 * wide, random_state=0)
        for depth, leaf, wide in levels
    )
    return np.array([classified(fit.fit(halves.x, halves.y), halves, halves.validation_x) for fit in fits])[:, index]


def _regression_tree(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the smallest leaf, the depth and the number of features tried."""
    from sklearn.tree import DecisionTreeRegressor

    halves, index = held(rng, "diabetes", 60)
    levels = itertools.product(np.linspace(1, 40, shape[0]).astype(int), range(1, shape[1] + 1), (3, 6, 10)[: shape[2]])
    fits = (
        DecisionTreeRegressor(min_samples_leaf=int(leaf), max_depth=depth, max_features=wide, random_state=0)
        .fit(halves.x, halves.y)
        .predict(halves.validation_x)
        for leaf, depth, wide in levels
    )
    return np.array([near(fit, halves.validation_y) for fit in fits])[:, index]


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


_RIDGE = partial(_logistic, data="breast_cancer", most=20, smallest=30)
_DIGITS = partial(_logistic, data="digits", most=48, smallest=60)
FAMILIES = {
    "kernel ridge": family("models", _kernel_ridge, frozen=False, alpha=16, gamma=16),
    "logistic regression, a ridge": family("models", _RIDGE, frozen=False, C=14, components=6),
    "logistic regression, digits": family("models", _DIGITS, frozen=True, C=14, components=8),
    "support vector regression": family("models", _support_regression, frozen=False, C=9, gamma=9, epsilon=4),
    "boosted regression": family("models", _boosted, frozen=True, rate=9, depth=4, trees=10),
    "referral": family("alarms", _referral, frozen=False, first=18, second=18),
    "early warning": family("alarms", _warning, frozen=True, memory=14, threshold=18),
    "titration": family("alarms", _titration, frozen=False, start=12, factor=8, ceiling=6),
    "rejecting digits": family("alarms", _rejecting, frozen=True, C=10, least=14),
    "nearest neighbours": family(
        "categories", _neighbours, frozen=False, k=12, weights=("uniform", "distance"), metric=METRICS, scaling=SCALINGS
    ),
    "support vectors": family("categories", _support_vectors, frozen=True, kernel=KERNELS, C=9, gamma=9),
    "pipelines": family(
        "categories",
        _pipeline,
        frozen=False,
        scaling=("none", "up", "down"),
        model=("logistic", "neighbours", "bayes", "discriminant"),
        level=10,
    ),
    "triage": family(
        "categories", _triage, frozen=True, route=("phone", "nurse", "doctor", "questions"), least=9, days=8
    ),
    "decision tree": family("steps", _tree, frozen=False, depth=9, leaf=8, features=6),
    "regression tree": family("steps", _regression_tree, frozen=True, leaf=16, depth=8, features=3),
    "tablets": family("steps", _tablets, frozen=False, dose=16, size=6, hours=6),
    "shift plans": family("steps", _shifts, frozen=True, beds=10, nurses=10, each=4),
}
TABLES = Tables(module=__name__, families=FAMILIES, n_sites=SITES, records=RECORDS)
