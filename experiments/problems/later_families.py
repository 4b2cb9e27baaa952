"""Families of clients that were set aside by digest after those of ``client_families`` had been reported on.

Eight are models of scikit-learn's bundled data sets, trained on what a client holds; four are systems of our making.
All were frozen before the shared prior's default was changed again. A client's surface is its mean score over 400
records of its own; trials fail where a model cannot be trained, a plate burns through or memory does not suffice.
"""

from __future__ import annotations

import numpy as np

from experiments.problems.frozen import RECORDS, Tables, drawn, family, held, mesh, tuned
from experiments.problems.surfaces import Surfaces
from privbo.protocol.messages import FloatArray


def clients(seed: int, name: str, n_clients: int) -> Surfaces:
    """Give a seed's choice of a family's clients; see ``drawn``."""
    return drawn(FEW, MANY, stream=43, seed=seed, name=name, n_clients=n_clients)


def _called(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over the penalty of a prediction of the disease's course, and two limits: from one called, from one admitted."""
    from sklearn.linear_model import Ridge

    halves, index = held(rng, "diabetes", 40, count=RECORDS)
    limits = (np.linspace(-1.5, 1.5, n) for n in shape[1:])
    (call, admit), ill, found = mesh(*limits), halves.validation_y, []
    for alpha in np.geomspace(0.1, 1e3, shape[0]):
        risk = Ridge(alpha=alpha).fit(halves.x, halves.y).predict(halves.validation_x)
        home, called, admitted = (0.9 - 0.4 * np.maximum(ill + shift, 0.0) - cost for shift, cost in _WAYS)
        found.append(np.where(risk >= np.maximum(call, admit), admitted, np.where(risk >= call, called, home)))
    return np.concatenate(found)[:, index]


def _welded(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over current and speed of a torch: seams hold on a narrow ridge of their ratio; above it plates burn through."""
    current, speed = mesh(np.geomspace(50.0, 400.0, shape[0]), np.geomspace(1.0, 20.0, shape[1]))
    needs, bears = np.exp(0.12 * rng.normal(size=2))
    heat = current / speed / rng.lognormal(0.1 * rng.normal(), 0.1, RECORDS)
    score = np.exp(-6.0 * np.log(heat / (25.0 * needs)) ** 2) * (0.4 + 0.03 * speed)
    return np.where(np.median(heat, axis=1, keepdims=True) > 45.0 * needs * bears, np.nan, score)


def _served(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over threads, the size of batches and copies of a service: the more the faster, until memory does not suffice."""
    threads, batch, copies = mesh(
        np.arange(1.0, shape[0] + 1), np.logspace(0.0, shape[1] - 1, shape[1], base=2.0), np.arange(1.0, shape[2] + 1)
    )
    room, switch, start = np.exp(0.3 * rng.normal(size=3))
    lanes, asked = threads * copies, rng.lognormal(0.2 * rng.normal(), 0.5, RECORDS)
    rate = lanes / (1.0 + 0.01 * switch * lanes**1.5) * batch / (batch + 6.0 * start)
    wait = 1.5 * asked / rate + 0.01 * batch / np.sqrt(asked)
    failed = copies * (1.0 + 0.15 * threads + 0.02 * batch) > 9.0 * room
    return np.where(failed, np.nan, np.exp(-wait) - 0.004 * lanes)


def _treated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over an antibiotic, its dose and the days: germs of every clinic resist by their own, and days cost."""
    works = np.array((1.0, 0.6, 1.8, 0.4, 1.2)) * np.exp(0.3 * rng.normal(size=shape[0]))
    harms = np.array((0.3, 0.1, 1.2, 0.05, 0.5)) * np.exp(0.2 * rng.normal(size=shape[0]))
    load, bears = rng.lognormal(0.2 * rng.normal(), 0.6, RECORDS), rng.lognormal(0.0, 0.4, RECORDS)
    drug, dose, days = mesh(np.arange(0.0, shape[0]), np.geomspace(0.1, 10.0, shape[1]), np.arange(1.0, shape[2] + 1))
    cured = 1.0 - np.exp(-works[drug.astype(int)] * dose / (1.0 + dose) * days / load)
    hurt = harms[drug.astype(int)] * dose * np.sqrt(days) / (4.0 * bears)
    return np.asarray(cured - 0.5 * hurt / (1.0 + hurt) - 0.02 * days)


def _fermented(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Over temperature, hours and sugar: warmth is fast, and spoils; the best settings are a ridge."""
    heat, hours, sugar = mesh(
        np.linspace(8.0, 40.0, shape[0]), np.geomspace(6.0, 300.0, shape[1]), np.linspace(0.05, 0.4, shape[2])
    )
    likes, pace, lasts = 26.0 + 2.0 * rng.normal(), *np.exp(0.25 * rng.normal(size=2))
    vigour = rng.lognormal(0.0, 0.3, RECORDS)
    grown = pace * vigour * hours * 10 ** ((np.minimum(heat, likes) - likes) / 15.0) / (20.0 * (1.0 + 6.0 * sugar))
    spoilt = hours * 10 ** ((heat - likes) / 12.0) / (250.0 * lasts)
    return np.asarray(
        (1.0 - np.exp(-grown)) * np.exp(-spoilt) * np.minimum(1.0, 0.4 + 2.0 * sugar) - 0.3 * sugar * np.exp(-grown)
    )


_WAYS = ((0.3, 0.0), (-0.2, 0.08), (-1.0, 0.3))  # what helps by how much, and costs what: home, called, admitted
_METRICS = ("euclidean", "cityblock", "chebyshev", "cosine", "canberra")
_BOOSTED = {"learning_rate": 0.3, "random_state": 0}
FEW = Tables(
    module=__name__,
    families={
        "bounded support vectors": tuned(
            "cliffs", "breast_cancer", 40, "svm:NuSVC", {},
            nu=np.linspace(0.05, 0.95, 16), gamma=np.geomspace(1e-4, 1.0, 14),
        ),
        "support vectors, wine": tuned(
            "ridge", "wine", 40, "svm:SVC", {}, C=np.geomspace(1e-2, 1e5, 16), gamma=np.geomspace(1e-6, 1.0, 16)
        ),
        "kernels": tuned(
            "categories", "diabetes", 40, "kernel_ridge:KernelRidge", {},
            kernel=("rbf", "laplacian", "polynomial", "sigmoid"), alpha=np.geomspace(1e-3, 1e2, 10),
            gamma=np.geomspace(1e-4, 1.0, 8),
        ),
        "pruned trees": tuned(
            "steps", "digits", 60, "tree:DecisionTreeClassifier", {"random_state": 0},
            ccp_alpha=np.geomspace(1e-3, 0.3, 8), min_samples_leaf=(1, 2, 4, 8, 12), criterion=("gini", "entropy"),
        ),
        "boosted leaves": tuned(
            "steps", "breast_cancer", 40, "ensemble:GradientBoostingClassifier", _BOOSTED,
            min_samples_leaf=(1, 2, 4, 8, 12, 18), max_depth=range(1, 5), n_estimators=(1, 2, 4, 8, 16),
        ),
        "extra trees": tuned(
            "steps", "diabetes", 40, "ensemble:ExtraTreesRegressor", {"n_estimators": 5, "random_state": 0},
            max_depth=range(1, 9), min_samples_leaf=(1, 2, 4, 8, 12, 18), max_features=(0.2, 0.6, 1.0),
        ),
        "calls": family("alarms", _called, frozen=True, alpha=6, call=12, admit=12),
        "welding": family("cliffs", _welded, frozen=True, current=16, speed=16),
        "service": family("cliffs", _served, frozen=True, threads=12, batch=9, copies=5),
        "antibiotics": family("categories", _treated, frozen=True, drug=("a", "b", "c", "d", "e"), dose=10, days=7),
    },
    n_sites=60,
    records=(RECORDS,),
)  # fmt: skip
MANY = Tables(
    module=__name__,
    families={
        "neighbours and distances": tuned(
            "categories", "breast_cancer", 40, "neighbors:KNeighborsClassifier", {"algorithm": "brute"},
            n_neighbors=range(1, 31, 2), weights=("uniform", "distance"), metric=_METRICS,
        ),
        "fermentation": family("ridge", _fermented, frozen=True, temperature=12, hours=12, sugar=5),
    },
    n_sites=240,
    records=(RECORDS,),
)  # fmt: skip
FAMILIES = FEW.families | MANY.families
