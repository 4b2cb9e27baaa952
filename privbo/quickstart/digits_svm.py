"""Forty clients tune an SVM on unequal shards of scikit-learn's handwritten digits.

1,797 images of 8x8 pixels (0..16, unscaled). The images of every label are dealt to the
clients in Dirichlet(2) proportions; each client splits its own at random into a training
and a validation half, both with at least two classes. The score is the accuracy on the
client's validation half (about 22 images, so steps of 0.045) of an SVC with RBF kernel fitted on its
training half; it depends on nothing else, so there is no observation noise.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.problem import Problem
from privbo.protocol.space import Real, Space, Value

N_CLIENTS = 40
CONCENTRATION = 2.0
SPACE = Space({"C": Real(1e-2, 1e3, log=True), "gamma": Real(1e-5, 1e-1, log=True)})
GRID = (26, 25)  # values of C and gamma that the best attainable score is taken over


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One client's images and labels; private to it."""

    train_images: FloatArray
    train_labels: IntArray
    validation_images: FloatArray
    validation_labels: IntArray


@dataclass(frozen=True)
class DigitsSVM:
    """The clients of one split.

    Attributes:
        shards: One per client.
        name: Identifies the split (in the cache of best scores).
    """

    shards: tuple[Shard, ...]
    name: str
    _scores: dict[tuple[int, float, float], float] = field(default_factory=dict, repr=False)

    def score(self, client: int, params: dict[str, Value]) -> float:
        """Compute the validation accuracy of one client, in [0, 1]; a repeated question is answered from memory.

        Example:
            >>> good = split(0).score(3, {"C": 10.0, "gamma": 1e-3})
            >>> bad = split(0).score(3, {"C": 0.01, "gamma": 1e-5})
            >>> good > bad
            True
        """
        C, gamma = float(params["C"]), float(params["gamma"])
        key = (client, C, gamma)
        if key not in self._scores:
            shard = self.shards[client]
            self._scores[key] = _accuracy(shard, _fit(shard, C, gamma))
        return self._scores[key]

    def batch(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Compute the scores of ``clients[i]`` at ``units[i]`` (a point of the unit square), ``(n,)``."""
        return np.array([self.score(int(c), SPACE.decode(u)) for c, u in zip(clients, units, strict=True)])

    def best_values(self, grid: tuple[int, int] = GRID) -> FloatArray:
        """Compute the best score of every client on a grid, ``(n_clients,)``; kept in the user's cache.

        Args:
            grid: Values of C and of gamma, evenly spaced in the search space.
        """
        path = _cache_folder() / f"{self.name}-{grid[0]}x{grid[1]}-{sklearn.__version__}.npy"
        if not path.exists():
            beside = path.with_suffix(f".{os.getpid()}.npy")  # several processes may compute it at once
            np.save(beside, np.array([_best_on_grid(shard, grid) for shard in self.shards]))
            beside.replace(path)
        return np.asarray(np.load(path, allow_pickle=False))


def problem(seed: int = 0) -> Problem:
    """Build the tuning problem of one split.

    Args:
        seed: Seed of the split.

    Example:
        >>> problem(seed=0).n_clients
        40
    """
    digits = split(seed)
    return Problem(
        space=SPACE,
        objective=digits.score,
        n_clients=len(digits.shards),
        best_values=digits.best_values,
        name="digits-svm",
        provenance=f"scikit-learn digits, Dirichlet({CONCENTRATION:g}) split over {N_CLIENTS} clients, seed {seed}",
    )


@lru_cache(maxsize=32)
def split(seed: int) -> DigitsSVM:
    """Deal the handwritten digits to the clients; the same split for the same seed.

    Raises:
        ConfigurationError: If a client's images have too few classes; another seed helps.
    """
    return deal(*load_digits(return_X_y=True), seed=seed)


def deal(images: FloatArray, labels: IntArray, *, seed: int) -> DigitsSVM:
    """Deal images to the clients, every label in Dirichlet proportions, and split each client's in halves.

    Args:
        images: ``(n, n_pixels)``.
        labels: Their classes, ``(n,)``.
        seed: Seed of the split.

    Raises:
        ConfigurationError: If a client's images have too few classes; another seed helps.
    """
    generator = np.random.default_rng([seed, N_CLIENTS])
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(N_CLIENTS, CONCENTRATION))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    shards = tuple(_halves(images[owner == client], labels[owner == client], generator) for client in range(N_CLIENTS))
    digest = hashlib.sha256(owner.tobytes())
    for shard in shards:
        digest.update(shard.train_images.tobytes() + shard.validation_images.tobytes())
    return DigitsSVM(shards, f"digits-svm-{digest.hexdigest()[:16]}")


def _halves(images: FloatArray, labels: IntArray, generator: np.random.Generator) -> Shard:
    for _ in range(1000):
        train, validation = np.array_split(generator.permutation(len(labels)), 2)
        if min(len(np.unique(labels[train])), len(np.unique(labels[validation]))) >= 2:
            return Shard(
                train_images=images[train],
                train_labels=labels[train],
                validation_images=images[validation],
                validation_labels=labels[validation],
            )
    raise ConfigurationError("a client's images cannot be split into halves with two classes each; use another seed")


def _fit(shard: Shard, C: float, gamma: float) -> SVC:
    return SVC(C=C, gamma=gamma).fit(shard.train_images, shard.train_labels)


def _accuracy(shard: Shard, model: SVC) -> float:
    return float(np.mean(model.predict(shard.validation_images) == shard.validation_labels))


def _best_on_grid(shard: Shard, grid: tuple[int, int]) -> float:
    costs, gammas = (np.linspace(0.0, 1.0, count) for count in grid)
    return max(_best_over_costs(shard, costs, gamma) for gamma in gammas)


def _best_over_costs(shard: Shard, costs: FloatArray, gamma: float) -> float:
    best = 0.0
    for cost in costs:
        params = SPACE.decode((cost, gamma))
        C = float(params["C"])
        model = _fit(shard, C, float(params["gamma"]))
        best = max(best, _accuracy(shard, model))
        if np.abs(model.dual_coef_).max() < 0.999 * C:
            break  # no multiplier is at its bound, so every larger C has the same solution
    return best


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "privbo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
