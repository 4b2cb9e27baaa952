"""Families of clients that tune alike but not equal surfaces, set aside by digest to report what sharing is worth.

Eight are models of scikit-learn's bundled data sets, trained on what a client holds; five are systems of our making.
All were frozen before the shared prior was changed. Their table has been printed since, so that now they are for
choosing, and ``later_families`` for reporting. A client's surface is its mean score over 400 records of its own. Trials
of the cliffs fail beyond what a client's system bears.
"""

from __future__ import annotations

import itertools

import numpy as np

from experiments.problems.frozen import RECORDS, Tables, drawn, family, held, likelihoods, near
from experiments.problems.surfaces import Surfaces
from privbo.protocol.messages import FloatArray


def clients(seed: int, name: str, n_clients: int) -> Surfaces:
    """Give a seed's choice of a family's clients; see ``drawn``."""
    return drawn(TABLES, stream=41, seed=seed, name=name, n_clients=n_clients)


def _shares(scores: FloatArray) -> FloatArray:
    """Softmax of the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _squares(x: FloatArray) -> FloatArray:
    """Inputs with their products by pairs."""
    return np.column_stack([x, *(x[:, i:] * x[:, i : i + 1] for i in range(x.shape[1]))])


def _elastic(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over alpha, 1e-3 to 3, the share of the absolute penalty, and whether products of inputs enter."""
    from sklearn.linear_model import ElasticNet

    halves, index = held(rng, "diabetes", 40, count=RECORDS)
    found = []
    for alpha, share, products in itertools.product(
        np.geomspace(1e-3, 3.0, shape[0]), np.linspace(0.05, 1.0, shape[1]), range(shape[2])
    ):
        x, scored = (_squares(z) if products else z for z in (halves.x, halves.validation_x))
        fit = ElasticNet(alpha=alpha, l1_ratio=share, max_iter=150, tol=1e-3).fit(x, halves.y)
        found.append(near(fit.predict(scored), halves.validation_y))
    return np.array(found)[:, index]


def _centroids(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the number of pixels that vary most, the shrinkage of the centroids, and the temperature of the shares."""
    halves, index = held(rng, "digits", 60, count=RECORDS)
    classes = np.unique(halves.y)
    centroids = np.array([halves.x[halves.y == c].mean(axis=0) for c in classes])
    order = np.argsort(-centroids.std(axis=0), kind="stable")
    found = []
    for count, shrink, heat in itertools.product(
        np.geomspace(2, 64, shape[0]).astype(int), np.linspace(0.0, 1.5, shape[1]), np.geomspace(0.02, 3.0, shape[2])
    ):
        some = order[:count]
        middle = halves.x[:, some].mean(axis=0)
        apart = centroids[:, some] - middle
        means = middle + np.sign(apart) * np.maximum(np.abs(apart) - shrink, 0.0)
        scores = 2.0 * halves.validation_x[:, some] @ means.T - (means**2).sum(axis=1)  # what classes differ by
        found.append(likelihoods(_shares(heat * scores), classes, halves.validation_y))
    return np.array(found)[:, index]


def _descent(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the rate, 1e-3 to 3, and the steps, 1 to 200, of a softmax regression: a ridge of their product."""
    halves, index = held(rng, "digits", 25, count=RECORDS)
    classes, codes = np.unique(halves.y, return_inverse=True)
    truth, steps = np.eye(len(classes))[codes], np.unique(np.geomspace(1, 200, 2 * shape[1]).astype(int))[-shape[1] :]
    found = np.empty((*shape, len(halves.validation_y)))
    for i, rate in enumerate(np.geomspace(1e-3, 3.0, shape[0])):
        weights = np.zeros((halves.x.shape[1], len(classes)))
        for step in range(1, int(steps[-1]) + 1):
            weights -= rate * halves.x.T @ (_shares(halves.x @ weights) - truth) / len(truth)
            if step in steps:
                shares = _shares(halves.validation_x @ weights)
                found[i, np.searchsorted(steps, step)] = likelihoods(shares, classes, halves.validation_y)
    return found.reshape(-1, found.shape[-1])[:, index]


def _forest(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the smallest leaf, the number of features tried and the number of trees, 1 to 12."""
    from sklearn.tree import DecisionTreeClassifier

    halves, index = held(rng, "breast_cancer", 100, count=RECORDS)
    counts, size = np.unique(np.geomspace(1, 12, 2 * shape[2]).astype(int))[-shape[2] :], len(halves.y)
    votes = rng.multinomial(size, np.full(size, 1.0 / size), int(counts[-1]))
    found = []
    for leaf, wide in itertools.product(np.geomspace(1, 24, shape[0]).astype(int), range(1, shape[1] + 1)):
        likely = np.zeros((len(halves.validation_y), 2))
        for number, weight in enumerate(votes, start=1):
            drawn = np.repeat(np.arange(size), weight)
            tree = DecisionTreeClassifier(min_samples_leaf=int(leaf), max_features=7 * wide, random_state=number)
            fit = tree.fit(halves.x[drawn], halves.y[drawn])
            likely[:, fit.classes_.astype(int)] += fit.predict_proba(halves.validation_x)
            if number in counts:
                found.append(likelihoods(likely / number, np.arange(2.0), halves.validation_y))
    return np.array(found)[:, index]


def _binned(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the number of bins, equal widths or equal counts, and the smoothing of a naive Bayes classifier."""
    halves, index = held(rng, "wine", 30, count=RECORDS)
    classes, codes = np.unique(halves.y, return_inverse=True)
    found = []
    for bins, way, smooth in itertools.product(
        range(2, shape[0] + 2), range(shape[1]), np.geomspace(0.01, 30.0, shape[2])
    ):
        cuts = np.linspace(0.0, 1.0, bins + 1)[1:-1]
        ends = halves.x.min(axis=0), halves.x.max(axis=0)
        at = np.quantile(halves.x, cuts, axis=0) if way else ends[0] + cuts[:, None] * (ends[1] - ends[0])
        scores = np.tile(np.log(np.bincount(codes) / len(codes)), (len(halves.validation_y), 1))
        for j in range(halves.x.shape[1]):
            counts = np.zeros((len(classes), bins))
            np.add.at(counts, (codes, np.searchsorted(at[:, j], halves.x[:, j])), 1.0)
            shares = (counts + smooth) / (counts.sum(axis=1, keepdims=True) + smooth * bins)
            scores += np.log(shares[:, np.searchsorted(at[:, j], halves.validation_x[:, j])].T)
        found.append(likelihoods(_shares(scores), classes, halves.validation_y))
    return np.array(found)[:, index]


def _stochastic(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the loss, the penalty and its strength, 1e-5 to 10, of a linear model by stochastic gradients."""
    from sklearn.linear_model import SGDClassifier

    halves, index = held(rng, "breast_cancer", 40, count=RECORDS)
    sign, found = 2.0 * halves.validation_y - 1.0, []
    for loss, penalty, alpha in itertools.product(_LOSSES, _PENALTIES, np.geomspace(1e-5, 10.0, shape[2])):
        fit = SGDClassifier(loss=loss, penalty=penalty, alpha=alpha, max_iter=15, tol=None, random_state=0)
        margin = sign * fit.fit(halves.x, halves.y).decision_function(halves.validation_x)
        found.append(0.5 + 0.5 * np.clip(margin, -1.0, 1.0))
    return np.array(found)[:, index]


def _votes(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over C, 1e-3 to 10, the risk from which a model votes for an alarm, and the votes it takes, of three models."""
    from sklearn.linear_model import LogisticRegression

    halves, index = held(rng, "breast_cancer", 40, count=RECORDS)
    ill, found = halves.validation_y == 0, np.empty((*shape, len(halves.validation_y)))
    for i, c in enumerate(np.geomspace(1e-3, 10.0, shape[0])):
        risks = []
        for part in (slice(1, 10, 4), slice(11, 20, 4), slice(21, 30, 4)):
            fit = LogisticRegression(C=c, max_iter=40).fit(halves.x[:, part], halves.y)
            risks.append(1.0 - fit.predict_proba(halves.validation_x[:, part])[:, 1])
        for (j, least), votes in itertools.product(enumerate(np.linspace(0.02, 0.98, shape[1])), range(shape[2])):
            alarm = (np.array(risks) >= least).sum(axis=0) > votes
            found[i, j, votes] = np.where(alarm, np.where(ill, 0.9, 0.55), np.where(ill, 0.0, 1.0))
    return found.reshape(-1, found.shape[-1])[:, index]


def _radius(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the radius of neighbours, the metric and the number of inputs; fails where most have no neighbour."""
    from scipy.spatial.distance import cdist

    halves, index = held(rng, "diabetes", 50, count=RECORDS)
    order, found = np.argsort(-np.abs(halves.x.T @ (halves.y - halves.y.mean())), kind="stable"), []
    for radius, metric, wide in itertools.product(np.geomspace(0.1, 8.0, shape[0]), _DISTANCES, range(shape[2])):
        some = order[: 2 + 2 * wide]
        close = cdist(halves.validation_x[:, some], halves.x[:, some], metric) <= radius
        count = close.sum(axis=1)
        predicted = np.where(count > 0, close @ halves.y / np.maximum(count, 1), 0.0)
        score = near(predicted, halves.validation_y)
        found.append(
            np.full_like(score, np.nan) if (count == 0)[index].mean() > 0.5 else np.where(count > 0, score, 0.0)
        )
    return np.array(found)[:, index]


def _sterilised(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over temperature and time: germs die, and nutrients with them, so that the best settings are a narrow ridge."""
    load, bears = rng.normal(6.0 + 0.3 * rng.normal(), 0.5, RECORDS), rng.lognormal(0.1 * rng.normal(), 0.15, RECORDS)
    heat, minutes = (g.reshape(-1, 1) for g in np.meshgrid(
        np.linspace(100.0, 140.0, shape[0]), np.geomspace(0.5, 120.0, shape[1]), indexing="ij"))  # fmt: skip
    killed = minutes / (2.0 * np.exp(0.4 * rng.normal()) * bears) * 10 ** ((heat - 121.0) / 10.0)
    left = np.exp(-minutes * 10 ** ((heat - 121.0) / 28.0) / (40.0 * np.exp(0.4 * rng.normal())))
    return np.asarray(left / (1.0 + np.exp(-2.0 * np.clip(killed - load, -20.0, 20.0))))


def _milled(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over speed, depth and feed of a mill: the more is removed the better, up to where it chatters and fails."""
    stiff, wear, lobe = np.exp(0.15 * rng.normal(size=3))
    hard = rng.lognormal(0.0, 0.1, RECORDS)
    speed, depth, feed = (g.reshape(-1, 1) for g in np.meshgrid(
        *(np.linspace(0.1, 1.0, n) for n in shape), indexing="ij"))  # fmt: skip
    limit = 0.45 * stiff * (1.0 + 0.5 * np.cos(9.0 * lobe * speed)) / np.sqrt(feed)
    rate = speed * depth * feed
    score = np.sqrt(rate) - 0.5 * wear * hard * speed**3 * feed - 0.1 * hard * depth * feed
    return np.where(depth > limit, np.nan, 0.4 + 0.7 * score)


def _pump(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over an insulin pump's target, correction and the glucose from which it suspends; hours in range, lows count."""
    target, strength, suspend = (g.reshape(-1, 1) for g in np.meshgrid(
        np.linspace(80.0, 160.0, shape[0]), np.geomspace(0.05, 1.0, shape[1]), np.linspace(50.0, 120.0, shape[2]),
        indexing="ij"))  # fmt: skip
    n = 200
    response, meals = rng.lognormal(0.2 * rng.normal(), 0.25, n), 45.0 * np.exp(0.15 * rng.normal())
    glucose, active, score = np.full((len(target), n), 140.0), np.zeros((len(target), n)), np.zeros((len(target), n))
    for hour in range(36):
        eaten = meals * rng.lognormal(0.0, 0.3, n) * (hour % 6 == 1) + 6.0 * rng.normal(size=n) + 4.0
        dose = np.where(glucose < suspend, 0.0, np.maximum(strength * (glucose - target), 0.0))
        active = 0.7 * active + dose
        glucose = np.clip(glucose + eaten - 0.35 * response * active, 20.0, 400.0)
        score += np.where(glucose < 70.0, -1.5, np.where(glucose < 180.0, 1.0, 0.0))
    return np.clip(0.3 + 0.7 * score / 36.0, 0.0, 1.0)


def _irrigated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the days between two checks, the dryness that starts a pump, and the whole barrels that it then gives."""
    levels = np.arange(1, shape[0] + 1), np.linspace(0.1, 0.9, shape[1]), np.arange(1, shape[2] + 1)
    every, dry, barrels = (g.reshape(-1, 1) for g in np.meshgrid(*levels, indexing="ij"))
    holds, thirst = np.exp(0.5 * rng.normal(size=2))
    water, score = np.full((len(dry), RECORDS), 0.6), np.zeros((len(dry), RECORDS))
    for day in range(40):
        rain = rng.gamma(0.3, 0.35, RECORDS) / holds
        given = np.where((day % every == 0) & (water < dry), 0.12 * barrels / holds, 0.0)
        water = (
            water + given + rain - 0.09 * thirst * np.sqrt(np.maximum(water, 0.0)) * rng.lognormal(0.0, 0.3, RECORDS)
        )
        drowned = np.maximum(water - 1.0, 0.0)
        water = np.clip(water, 0.0, 1.0)
        score += np.where(water > 0.3, 1.0, water / 0.3) - 0.6 * (drowned > 0.0) - 0.5 * given - 0.1 / every
    return np.clip(score / 40.0, 0.0, 1.0)


def _vaccinated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over route, schedule and dose: whoever answers is protected, and strong reactions keep people away."""
    n, found = RECORDS, []
    answer, bears = rng.lognormal(0.15 * rng.normal(), 0.5, n), rng.lognormal(0.15 * rng.normal(), 0.5, n)
    taken = np.array((1.0, 0.55, 0.35, 0.8)) * np.exp(0.12 * rng.normal(size=4))
    hurts = np.array((1.0, 0.45, 0.2, 1.5)) * np.exp(0.12 * rng.normal(size=4))
    boosts = ((1.0, 0.0), (1.7, 0.05), (2.3, 0.16))
    for way, (boost, missed), dose in itertools.product(range(4), boosts, np.geomspace(0.1, 10.0, shape[2])):
        level, reaction = taken[way] * boost * dose * answer, hurts[way] * dose / bears
        protected = level**2 / (1.0 + level**2)
        found.append(
            np.clip(protected * (1.0 - missed) - 0.4 * reaction**2 / (1.0 + reaction**2) - 0.02 * way, 0.0, 1.0)
        )
    return np.array(found)


_LOSSES, _PENALTIES = ("hinge", "log_loss", "modified_huber", "perceptron"), ("l2", "l1", "elasticnet")
_DISTANCES = ("euclidean", "cityblock", "chebyshev")
FAMILIES = {
    "elastic net": family("models", _elastic, frozen=False, alpha=14, share=6, products=2),
    "nearest centroids": family("models", _centroids, frozen=False, pixels=8, shrinkage=6, temperature=8),
    "gradient descent": family("ridge", _descent, frozen=False, rate=14, steps=14),
    "forest": family("steps", _forest, frozen=False, leaf=6, features=4, trees=5),
    "binned Bayes": family("steps", _binned, frozen=False, bins=9, way=("widths", "counts"), smoothing=9),
    "stochastic gradients": family(
        "categories", _stochastic, frozen=False, loss=_LOSSES, penalty=_PENALTIES, alpha=10
    ),
    "votes for an alarm": family("alarms", _votes, frozen=False, C=7, risk=14, votes=3),
    "radius neighbours": family("cliffs", _radius, frozen=False, radius=16, metric=_DISTANCES, inputs=5),
    "sterilisation": family("ridge", _sterilised, frozen=False, temperature=16, minutes=16),
    "milling": family("cliffs", _milled, frozen=False, speed=9, depth=9, feed=6),
    "insulin pump": family("alarms", _pump, frozen=False, target=8, correction=8, suspend=6),
    "irrigation": family("steps", _irrigated, frozen=False, days=7, dryness=9, barrels=8),
    "vaccines": family(
        "categories", _vaccinated, frozen=False,
        route=("muscle", "skin", "nose", "vein"), schedule=("once", "twice", "thrice"), dose=12,
    ),
}  # fmt: skip
TABLES = Tables(module=__name__, families=FAMILIES, n_sites=60, records=(RECORDS,))
