"""Forty clients tune a classifier of tumours, each on rows of its own of scikit-learn's breast cancer data.

569 tumours, 30 measurements of each: ten quantities, of which every row has the mean, the standard error and
the worst value. Clients have 24 to 96 rows, half for training and half for validation. There are too few rows for forty
clients, so they are dealt again and again: a row lies with three or four of them. The classifier is kernel ridge
regression on the label with a squared-exponential kernel; what is tuned is its ridge and how much each of the three
groups of measurements counts in the kernel. The score is the Brier skill on the validation half: the explained share
of the label's variance. It depends on nothing else, so there is no observation noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privbo.protocol.errors import ConfigurationError, needs
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.problem import Problem
from privbo.protocol.space import Real, Space, Value

with needs("scikit-learn", "quickstart"):
    from sklearn.datasets import load_breast_cancer
    from sklearn.kernel_ridge import KernelRidge

N_CLIENTS = 40
SMALLEST, LARGEST = 24, 96  # rows of a client; sizes lie evenly on a logarithmic scale
GROUPS = ("mean", "error", "worst")  # of ten measurements each, in the data's order
SPACE = Space({"ridge": Real(1e-4, 10, log=True)} | {group: Real(1e-3, 100, log=True) for group in GROUPS})


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """One client's rows; private to it.

    Attributes:
        train, validation: Measurements, at mean 0 and variance 1 over all data, ``(n, 30)``.
        train_labels, validation_labels: 1 for a benign tumour, else 0.
    """

    train: FloatArray
    train_labels: FloatArray
    validation: FloatArray
    validation_labels: FloatArray


@dataclass(frozen=True, eq=False)
class Tumours:
    """The clients of one random split.

    Attributes:
        shards: One per client.
    """

    shards: tuple[Shard, ...]

    def score(self, client: int, params: dict[str, Value]) -> float:
        """Compute the Brier skill of one client, from -1 (it is not followed further down) to 1.

        Example:
            >>> good = deal(0).score(3, {"ridge": 0.1, "mean": 0.1, "error": 0.01, "worst": 0.3})
            >>> bad = deal(0).score(3, {"ridge": 1e-4, "mean": 100.0, "error": 100.0, "worst": 100.0})
            >>> good > 0.5 > bad
            True
        """
        shard = self.shards[client]
        scale = np.sqrt(np.repeat([float(params[group]) / 10 for group in GROUPS], 10))
        middle = shard.train_labels.mean()
        model = KernelRidge(alpha=float(params["ridge"]), kernel="rbf", gamma=1.0)
        model.fit(shard.train * scale, shard.train_labels - middle)
        missed = middle + model.predict(shard.validation * scale) - shard.validation_labels
        return max(-1.0, 1.0 - float(np.mean(missed**2) / np.var(shard.validation_labels)))


def problem(seed: int = 0) -> Problem:
    """Build the tuning problem of one random split.

    Args:
        seed: Seed of the split.

    Example:
        >>> problem(seed=0).n_clients
        40
    """
    return Problem(
        space=SPACE,
        objective=deal(seed).score,
        n_clients=N_CLIENTS,
        name="tumours",
        provenance=f"scikit-learn breast cancer, {N_CLIENTS} clients of {SMALLEST} to {LARGEST} rows, seed {seed}",
    )


@lru_cache(maxsize=32)
def deal(seed: int) -> Tumours:
    """Split the tumours among the clients at random; the same split for the same seed."""
    measured, labels = load_breast_cancer(return_X_y=True)
    measured = (measured - measured.mean(axis=0)) / measured.std(axis=0)
    generator = np.random.default_rng([seed, N_CLIENTS])
    sizes = np.geomspace(SMALLEST, LARGEST, N_CLIENTS).astype(np.int64)
    times = -(-int(sizes.sum()) // len(labels))
    deck = np.concatenate([generator.permutation(len(labels)) for _ in range(times)])[: sizes.sum()]
    hands = np.split(deck, np.cumsum(sizes)[:-1])
    return Tumours(tuple(_halves(measured, labels.astype(np.float64), hand, generator) for hand in hands))


def _halves(measured: FloatArray, labels: FloatArray, hand: IntArray, generator: np.random.Generator) -> Shard:
    """A client's rows in halves with two labels each; only their order is drawn."""
    for _ in range(1000):
        train, validation = np.array_split(generator.permutation(hand), 2)
        if min(len(np.unique(labels[half])) for half in (train, validation)) == 2:
            return Shard(
                train=measured[train],
                train_labels=labels[train],
                validation=measured[validation],
                validation_labels=labels[validation],
            )
    raise ConfigurationError("a client's rows cannot be split into halves with two labels each; use another seed")
