"""Human activity recognition: 30 subjects tune a logistic regression on their own phones' recordings.

Data: UCI "Human Activity Recognition Using Smartphones" (Anguita, Ghio, Oneto, Parra,
Reyes-Ortiz 2013; publications must cite it, no commercial use), never part of this project.
The folder ``PRIVBO_DATA`` holds ``UCI HAR Dataset/`` as unpacked from the original, or
``har_recomputed561.npz`` (X, y, subject), whose features are recomputed from the raw windows and
scaled differently. No checksum of the original archive is known, so it is not downloaded.

As in the DP-FTS-DE paper: batch size in [128, 512], L2 in [1e-6, 10] and learning rate in
[1e-6, 1] on linear scales, half of a subject's rows to train and half to validate (stratified,
seed 0), inputs standardised by the training half, the score is validation accuracy. The
paper names no number of epochs: 50 here, from zero, in a fixed order of rows. The L2 step is
implicit (weights divided by 1 + rate * L2), because the explicit one diverges in most of the
box. A subject has 140 to 205 training rows, so an epoch has one batch or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

import privbo as pb
from experiments.problems.data import local, missing
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray

EPOCHS = 50
SPACE = pb.Space({"batch_size": pb.Int(128, 512), "l2": pb.Real(1e-6, 10.0), "learning_rate": pb.Real(1e-6, 1.0)})
LOG_SPACE = pb.Space(
    {"batch_size": pb.Int(128, 512), "l2": pb.Real(1e-6, 10.0, log=True), "learning_rate": pb.Real(1e-6, 1.0, log=True)}
)
_PACKED, _ORIGINAL = "har_recomputed561.npz", "UCI HAR Dataset"
N_CLASSES = 6


@dataclass(frozen=True, eq=False)
class Subjects:
    """All subjects' halves, padded to the same number of rows; weights live in the span of the rows.

    Attributes:
        train: Gram matrices of the training rows (with intercept), ``(n, rows, rows)``, zero where padded.
        cross: Inner products of validation and training rows, ``(n, held, rows)``.
        train_y: One-hot labels ``(n, rows, N_CLASSES)``.
        held_y: Labels ``(n, held)``, -1 where padded.
        order: Position of every row in its subject's order of batches, ``(n, rows)``; padded ones last.
        counts: Training rows per subject, ``(n,)``.
    """

    train: FloatArray
    cross: FloatArray
    train_y: FloatArray
    held_y: IntArray
    order: IntArray
    counts: IntArray

    def accuracy(self, subjects: IntArray, batch_size: IntArray, l2: FloatArray, rate: FloatArray) -> FloatArray:
        """Validation accuracy after ``EPOCHS`` epochs of stochastic gradient steps, ``(n,)``."""
        gram, labels, order = self.train[subjects], self.train_y[subjects], self.order[subjects]
        counts = self.counts[subjects]
        weights = np.zeros(labels.shape)
        shrink = 1.0 / (1.0 + rate * l2)
        n_batches = -(-counts // batch_size)
        for _ in range(EPOCHS):
            for batch in range(int(n_batches.max())):
                first = (batch * batch_size)[:, None]
                inside = (order >= first) & (order < np.minimum(first + batch_size[:, None], counts[:, None]))
                size = inside.sum(axis=1)
                scores = gram @ weights
                wrong = _softmax(scores) - labels
                step = (rate / np.maximum(size, 1))[:, None, None] * wrong * inside[:, :, None]
                active = (size > 0)[:, None, None]
                weights = np.where(active, (weights - step) * shrink[:, None, None], weights)
        found = (self.cross[subjects] @ weights).argmax(axis=2)
        held = self.held_y[subjects]
        return np.asarray((found == held).sum(axis=1) / (held >= 0).sum(axis=1))


@dataclass(frozen=True, eq=False)
class ActivityClients:
    """One client per subject; the same halves whatever the seed.

    Attributes:
        data: The subjects.
        space: Of the hyperparameters.
    """

    data: Subjects
    space: pb.Space

    def observe(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Accuracy of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        chosen = [self.space.decode(unit) for unit in units]
        return self.data.accuracy(
            clients,
            np.array([int(c["batch_size"]) for c in chosen]),
            np.array([float(c["l2"]) for c in chosen]),
            np.array([float(c["learning_rate"]) for c in chosen]),
        )

    def losses(self, history: ClientHistory) -> FloatArray:
        """Validation error of every evaluation."""
        return np.asarray(1.0 - history.values)

    def problem(self) -> pb.Problem:
        """The tuning problem."""
        return pb.Problem(
            space=self.space,
            batch_objective=self.observe,
            n_clients=self.n_clients,
            name="activity",
            provenance="UCI human activity recognition, 30 subjects, logistic regression",
        )

    @cached_property
    def n_clients(self) -> int:
        """Number of subjects."""
        return len(self.data.counts)


def clients(seed: int) -> ActivityClients:  # noqa: ARG001  # the split is fixed
    """The 30 subjects with the paper's ranges."""
    return ActivityClients(subjects(), SPACE)


def log_clients(seed: int) -> ActivityClients:  # noqa: ARG001  # the split is fixed
    """The 30 subjects with L2 and learning rate on logarithmic scales."""
    return ActivityClients(subjects(), LOG_SPACE)


@lru_cache(maxsize=1)
def subjects() -> Subjects:
    """The subjects of the data at hand.

    Raises:
        ConfigurationError: If there is none.
    """
    path = local(_PACKED, _ORIGINAL)
    if path is None:
        raise missing("human activity recognition", (_PACKED, _ORIGINAL), "the UCI machine learning repository")
    x, y, subject = _from_npz(path) if path.suffix == ".npz" else _from_folder(path)
    return pack([_halves(x[subject == s], y[subject == s]) for s in np.unique(subject)])


def _from_npz(path: Path) -> tuple[FloatArray, IntArray, IntArray]:
    with np.load(path, allow_pickle=False) as data:
        return data["X"].astype(np.float64), data["y"].astype(np.int64), data["subject"].astype(np.int64)


def _from_folder(folder: Path) -> tuple[FloatArray, IntArray, IntArray]:
    """The original archive, unpacked; labels are 1..6 there."""

    def both(name: str) -> FloatArray:
        return np.concatenate([np.loadtxt(folder / part / f"{name}_{part}.txt") for part in ("train", "test")])

    return both("X"), both("y").astype(np.int64) - 1, both("subject").astype(np.int64)


Halves = tuple[FloatArray, IntArray, FloatArray, IntArray]


def _halves(x: FloatArray, y: IntArray) -> Halves:
    from sklearn.model_selection import train_test_split

    a, b, c, d = train_test_split(x, y, test_size=0.5, stratify=y, random_state=0)
    spread = a.std(axis=0)
    spread[spread == 0] = 1.0
    return (a - a.mean(axis=0)) / spread, c, (b - a.mean(axis=0)) / spread, d


def pack(halves: list[Halves]) -> Subjects:
    """Subjects padded to one shape; a row's intercept is a feature of value 1."""
    counts = np.array([len(y) for _, y, _, _ in halves])
    rows, held = int(counts.max()), max(len(y) for *_, y in halves)
    n = len(halves)
    train, cross = np.zeros((n, rows, rows)), np.zeros((n, held, rows))
    labels, answers = np.zeros((n, rows, N_CLASSES)), np.full((n, held), -1, dtype=np.int64)
    order = np.tile(np.arange(rows), (n, 1))
    for i, (x, y, held_x, held_y) in enumerate(halves):
        train[i, : len(y), : len(y)] = x @ x.T + 1.0
        cross[i, : len(held_y), : len(y)] = held_x @ x.T + 1.0
        labels[i, np.arange(len(y)), y] = 1.0
        answers[i, : len(held_y)] = held_y
        order[i, : len(y)] = np.random.default_rng([i, 37]).permutation(len(y))
    return Subjects(train, cross, labels, answers, order, counts)


def _softmax(scores: FloatArray) -> FloatArray:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
