"""Families of clients that were set aside by digest after ``later_families``, before another change of an algorithm.

Eight are models of scikit-learn's bundled data sets, trained on what a client holds; four are systems of our making.
A client's surface is its mean score over 400 records of its own; trials fail where a model cannot be trained or a
charger trips.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from experiments.problems.frozen import RECORDS, Tables, drawn, family, mesh, tuned
from experiments.problems.surfaces import Surfaces
from privbo.protocol.messages import FloatArray


def clients(seed: int, name: str, n_clients: int) -> Surfaces:
    """Give a seed's choice of a family's clients; see ``drawn``."""
    return drawn(TABLES, stream=47, seed=seed, name=name, n_clients=n_clients)


def _process(*, covariance: str, length: float, noise: float) -> Any:  # noqa: ANN401  # of scikit-learn
    """Give a Gaussian process of a fixed covariance."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    return GaussianProcessRegressor(Matern(length, nu=_ORDERS[covariance]), alpha=noise, optimizer=None)


def _quadratic(*, components: int, reg_param: float) -> Any:  # noqa: ANN401  # of scikit-learn
    """Give quadratic discriminants of principal components; refuses more than the rarest class has records."""
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline

    return make_pipeline(PCA(components, svd_solver="full"), QuadraticDiscriminantAnalysis(reg_param=reg_param))


def _linear(*, components: int, shrinkage: float) -> Any:  # noqa: ANN401  # of scikit-learn
    """Give linear discriminants of principal components, with a shrunken covariance."""
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline

    linear = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    return make_pipeline(PCA(components, svd_solver="full"), linear)


def _curves(*, knots: int, degree: int, ends: str, alpha: float) -> Any:  # noqa: ANN401  # of scikit-learn
    """Give a ridge regression on splines of every input."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer

    return make_pipeline(SplineTransformer(knots, degree=degree, extrapolation=ends), Ridge(alpha))


def _fractionated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over fractions and dose of each: tumours die of their product, late damage of the square: a narrow ridge."""
    count, dose = mesh(np.linspace(1.0, 35.0, shape[0]).round(), np.geomspace(1.0, 14.0, shape[1]))
    needs, bears, grows = np.exp((0.12, 0.12, 0.4) * rng.normal(size=3))
    resists, spared = rng.lognormal(0.0, 0.08, RECORDS), rng.lognormal(0.0, 0.1, RECORDS)
    killed = count * dose * (1.0 + dose / 10.0) - 0.6 * grows * np.maximum(1.4 * count - 28.0, 0.0)
    harmed = spared * count * dose * (1.0 + dose / 3.0)
    controlled, unhurt = killed - 64.0 * needs * resists, 125.0 * bears - 0.85 * harmed
    odds = [1.0 / (1.0 + np.exp(-np.clip(some / wide, -50.0, 50.0))) for some, wide in ((controlled, 4), (unhurt, 8))]
    return np.asarray(0.5 * (odds[0] + odds[1]) - 0.004 * count)


def _dispatched(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over cars, those kept for urgent calls, and the share of other calls that are advised by phone; a day each."""
    cars, kept, advised = mesh(
        np.arange(1.0, shape[0] + 1), np.arange(float(shape[1])), np.linspace(0.0, 0.9, shape[2])
    )
    busy, urgent, back = np.exp(0.2 * rng.normal(size=3))
    free, lost, asked = np.repeat(cars, RECORDS, axis=1), np.zeros((len(cars), RECORDS)), np.zeros(RECORDS)
    for hour in range(24):
        calls = rng.poisson(busy * (2.2 + 1.4 * np.sin(hour / 3.8)), RECORDS)
        first = rng.binomial(calls, min(0.3 * urgent, 0.9))
        others, taken = calls - first, np.minimum(first, free)
        wanted = (1.0 - advised) * others
        driven = np.minimum(wanted, np.maximum(free - taken - kept, 0.0))
        lost += first - taken + 0.1 * (wanted - driven) + 0.08 * advised**1.5 * others
        asked += first + 0.1 * others
        free = free - taken - driven
        free += min(0.3 * back, 0.9) * (cars - free)
    return np.asarray(1.0 - 1.5 * lost / asked - 0.03 * cars)


def _charged(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over current, cut-off voltage and the share of the current at which a charger stops; hot batteries trip it."""
    current, volts, stop = mesh(
        np.geomspace(0.2, 5.0, shape[0]), np.linspace(3.9, 4.5, shape[1]), np.geomspace(0.02, 0.8, shape[2])
    )
    resists, bears, wears = np.exp(0.3 * rng.normal(size=3))
    hours, drop = rng.lognormal(0.2 * rng.normal(), 0.7, RECORDS), 0.2 * resists
    full = (volts - 3.4) / 0.9
    steady = np.clip(full - current * drop / 0.9, 0.0, 1.0)
    tail = np.maximum(hours - steady / current, 0.0)
    left = np.maximum(np.exp(-0.9 * tail / drop), stop)
    charge = np.minimum(current * hours, steady) + (np.clip(full, 0.0, 1.0) - steady) * (1.0 - left) * (tail > 0.0)
    worn = 0.03 * current**1.5 + 0.3 * np.exp((volts - 4.45) / 0.08) + 0.012 * np.log(1.0 / stop)
    hot = current**2 * resists + 30.0 * np.maximum(volts - 4.2, 0.0) > 8.0 * bears
    return np.where(hot, np.nan, 0.2 + 0.9 * np.sqrt(charge) - wears * worn)


def _recommended(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over relevance from which items are shown, their number, the way to rank them, and hours between messages."""
    likes, bothers = rng.normal(0.3 * rng.normal(), 1.0, (RECORDS, 20)), rng.lognormal(0.3 * rng.normal(), 0.6, RECORDS)
    error, found = rng.normal(size=likes.shape), []
    knows, stale = (0.4, 0.65, 0.55) + 0.06 * rng.normal(size=3), (0.2, 0.7, 0.4) * np.exp(0.3 * rng.normal(size=3))
    for least, number, way in itertools.product(
        np.linspace(-1.0, 2.0, shape[0]), range(1, shape[1] + 1), range(shape[2])
    ):
        ranks = knows[way] * likes + np.sqrt(1.0 - knows[way] ** 2) * error
        best = np.argsort(-ranks, axis=1)[:, :number]
        shown = np.take_along_axis(ranks, best, axis=1) >= least
        liked = (shown / (1.0 + np.exp(1.0 - 2.0 * np.take_along_axis(likes, best, axis=1)))).sum(axis=1)
        bored = shown.sum(axis=1) - liked
        for hours in (2.0, 6.0, 12.0, 24.0, 72.0)[: shape[3]]:
            often = 24.0 / hours
            gain = 1.0 - np.exp(-0.5 * liked * often**0.6 * (1.0 - stale[way] * np.exp(-hours / 12.0)))
            found.append(
                0.3 + 0.7 * gain - 0.5 * (1.0 - np.exp(-0.1 * bothers * often**0.8 * (0.3 + 0.6 * bored**1.5)))
            )
    return np.array(found)


_ORDERS = {"rough": 0.5, "once": 1.5, "twice": 2.5, "smooth": np.inf}  # how often a process can be differentiated
TABLES = Tables(
    module=__name__,
    families={
        "stochastic boosting": tuned(
            "steps", "diabetes", 40, "ensemble:GradientBoostingRegressor", {"n_estimators": 6, "random_state": 0},
            loss=("squared_error", "absolute_error", "huber"), learning_rate=np.geomspace(0.03, 1.0, 5),
            subsample=(0.3, 0.5, 0.7, 1.0), max_leaf_nodes=(2, 3, 5, 9),
        ),
        "shrunken discriminants": tuned(
            "steps", "digits", 60, _linear, {},
            components=(2, 3, 5, 8, 11, 14, 18, 22, 27, 33, 40, 47, 55), shrinkage=np.geomspace(3e-3, 1.0, 16),
        ),
        "perceptrons": tuned(
            "categories", "wine", 40, "neural_network:MLPClassifier",
            {"max_iter": 8, "batch_size": 32, "random_state": 0},
            activation=("identity", "logistic", "tanh", "relu"), learning_rate_init=np.geomspace(1e-3, 1.0, 10),
            hidden_layer_sizes=(1, 2, 4, 8, 16),
        ),
        "Gaussian process": tuned(
            "categories", "diabetes", 40, _process, {},
            covariance=tuple(_ORDERS), length=np.geomspace(0.5, 50.0, 9), noise=np.geomspace(1e-2, 10.0, 8),
        ),
        "linear support vectors": tuned(
            "categories", "iris", 40, "svm:LinearSVC", {"max_iter": 100, "random_state": 0, "dual": "auto"},
            loss=("hinge", "squared_hinge"), penalty=("l1", "l2"), multi_class=("ovr", "crammer_singer"),
            C=np.geomspace(1e-3, 1e2, 10), intercept_scaling=(0.1, 1.0, 10.0),
        ),
        "Bernoulli Bayes": tuned(
            "models", "digits", 40, "naive_bayes:BernoulliNB", {},
            binarize=np.linspace(0.0, 2.8, 15), alpha=np.geomspace(1e-3, 1e2, 14),
        ),
        "quadratic discriminants": tuned(
            "cliffs", "breast_cancer", 40, _quadratic, {},
            components=range(1, 31, 2), reg_param=np.geomspace(1e-7, 1.0, 14),
        ),
        "splines": tuned(
            "steps", "diabetes", 40, _curves, {},
            knots=(2, 3, 4, 6, 9), degree=(1, 2, 3), ends=("constant", "linear"), alpha=np.geomspace(1e-2, 1e3, 7),
        ),
        "fractions of radiotherapy": family("ridge", _fractionated, frozen=True, fractions=18, dose=20),
        "ambulances": family("steps", _dispatched, frozen=True, cars=12, kept=5, advised=6),
        "charger": family("cliffs", _charged, frozen=True, current=10, volts=9, stop=5),
        "recommendations": family(
            "alarms", _recommended, frozen=True, least=7, number=6, way=("popular", "similar", "mixed"), hours=5
        ),
    },
    n_sites=60,
    records=(RECORDS,),
)  # fmt: skip
FAMILIES = TABLES.families
