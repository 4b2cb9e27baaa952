"""Digits by writer: 50 writers tune a small convolutional network on their own handwriting.

A stand-in for the paper's federated EMNIST, *not* EMNIST: MNIST training images grouped by the
NIST writer that QMNIST names (Yadav & Bottou 2019; MNIST: LeCun, Cortes, Burges). The folder
``PRIVBO_DATA`` holds ``mnist_by_writer50.npz``; otherwise QMNIST's two training files are
downloaded and its 50 first writers with at least 60 digits are taken.

Parameters as in the paper: learning rate, its decay and L2, each in [1e-7, 0.02] on linear
scales. The paper's split would leave 6 to 12 validation images per writer: here half of a writer's
images train and half validate (stratified where it can be, seed 0), so an error is a multiple
of about 0.02.

The objective is a table: every writer's network is trained at the 512 points of
``GRID``, and values between them are *interpolated* linearly in every parameter (the clients
therefore never see the error of a network that was not trained, only a weighted mean of
up to eight). Training: images pooled to 14x14, 4 filters of 5x5, ReLU, 2x2 max pooling,
one linear layer; ``STEPS`` full-batch steps of Adam with rate / (1 + decay * step), L2 on all weights,
one fixed initialisation for all.
"""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import privbo as pb
from experiments.problems.data import Source, cache_folder, download, local
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray

STEPS = 40
LOW, HIGH = 1e-7, 0.02
RATES = (1e-7, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1e-2, 1.2e-2, 1.4e-2, 1.6e-2, 1.8e-2, 2e-2)
DECAYS = (1e-7, 6e-3, 1.3e-2, 2e-2)
PENALTIES = (1e-7, 1e-4, 5e-4, 1.5e-3, 4e-3, 8e-3, 1.4e-2, 2e-2)
GRID = np.array(list(itertools.product(RATES, DECAYS, PENALTIES)))
NAMES = ("learning_rate", "decay", "l2")
N_WRITERS, LEAST_IMAGES = 50, 60
SOURCES = {
    "qmnist-train-images.gz": Source(
        url="https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-images-idx3-ubyte.gz",
        checksum="md5:ed72d4157d28c017586c42bc6afe6370",
    ),
    "qmnist-train-labels.gz": Source(
        url="https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",
        checksum="md5:0058f8dd561b90ffdd0f734c6a30e5e4",
    ),
}
_CHUNK = 128  # networks trained at once; bounds memory


@dataclass(frozen=True, eq=False)
class Images:
    """All writers' images in [0, 1], ``(n, 28, 28)``, with label and writer per image."""

    pixels: FloatArray
    label: IntArray
    writer: IntArray


@dataclass(frozen=True, eq=False)
class WriterClients:
    """One client per writer.

    Attributes:
        table: Validation accuracy of every writer at every point of the grid, ``(n, 512)``.
        log: Whether the parameters are on logarithmic scales.
        provenance: Of the images.
    """

    table: FloatArray
    log: bool = False
    provenance: str = "MNIST digits by NIST writer (QMNIST), not EMNIST; interpolated table of 512 networks each"

    def observe(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Interpolated accuracy of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        space = self.problem().search_space
        points = np.array([[float(space.decode(unit)[name]) for name in NAMES] for unit in units])
        return interpolate(self.table[clients], points)

    def losses(self, history: ClientHistory) -> FloatArray:
        """Validation error of every evaluation."""
        return np.asarray(1.0 - history.values)

    def problem(self) -> pb.Problem:
        """The tuning problem."""
        return self._problem

    @cached_property
    def _problem(self) -> pb.Problem:
        return pb.Problem(
            space={name: pb.Real(LOW, HIGH, log=self.log) for name in NAMES},
            batch_objective=self.observe,
            n_clients=len(self.table),
            name="digits-by-writer",
            provenance=self.provenance,
        )


def clients(seed: int) -> WriterClients:  # noqa: ARG001  # the table is fixed
    """The writers with the paper's linear ranges."""
    return WriterClients(table())


def log_clients(seed: int) -> WriterClients:  # noqa: ARG001  # the table is fixed
    """The writers with all three parameters on logarithmic scales."""
    return WriterClients(table(), log=True)


def interpolate(values: FloatArray, points: FloatArray) -> FloatArray:
    """Multilinear interpolation on the grid, ``(n,)``.

    Args:
        values: One row of grid values per point, ``(n, 512)``.
        points: Parameters ``(n, 3)`` within the grid's box.
    """
    cube = values.reshape(len(values), len(RATES), len(DECAYS), len(PENALTIES))
    lower, weight = [], []
    for axis, points_on_axis in enumerate((RATES, DECAYS, PENALTIES)):
        knots = np.array(points_on_axis)
        left = np.clip(np.searchsorted(knots, points[:, axis], side="right") - 1, 0, len(knots) - 2)
        lower.append(left)
        weight.append((points[:, axis] - knots[left]) / (knots[left + 1] - knots[left]))
    total, rows = np.zeros(len(values)), np.arange(len(values))
    for corner in itertools.product((0, 1), repeat=3):
        share = np.prod([w if up else 1 - w for w, up in zip(weight, corner, strict=True)], axis=0)
        total += share * cube[rows, lower[0] + corner[0], lower[1] + corner[1], lower[2] + corner[2]]
    return np.asarray(total)


@lru_cache(maxsize=1)
def table() -> FloatArray:
    """The whole table; writers that are not in the user's cache yet are trained (about 10 s each) and kept there."""
    data = images()
    rows = {}
    for writer in np.unique(data.writer):
        mine = data.writer == writer
        rows[f"{int(writer)}-{int(mine.sum())}"] = partial(accuracies, data.pixels[mine], data.label[mine])
    return table_of("writers", rows)


def table_of(name: str, rows: Mapping[str, Callable[[], FloatArray]]) -> FloatArray:
    """Give rows of accuracies from the user's cache; what is not there yet is computed and kept."""
    folder = cache_folder() / f"{name}-{len(GRID)}x{STEPS}"
    folder.mkdir(exist_ok=True)
    found = []
    for key, compute in rows.items():
        path = folder / f"{key}.npy"
        if not path.exists():
            beside = path.with_suffix(f".{os.getpid()}.npy")
            np.save(beside, compute())
            beside.replace(path)
        found.append(np.load(path, allow_pickle=False))
    return np.array(found, dtype=np.float64)


def accuracies(pixels: FloatArray, label: IntArray, grid: FloatArray = GRID) -> FloatArray:
    """Validation accuracy of one writer's network at every point of a grid, ``(len(grid),)``."""
    held = held_back(label)
    return scored(pixels[~held], label[~held], pixels[held], label[held], grid)


def held_back(label: IntArray) -> npt.NDArray[np.bool_]:
    """Which images of a writer validate: every other one of every digit, ``(n,)``."""
    order = np.random.default_rng(0).permutation(len(label))
    rank = np.empty(len(label), dtype=np.int64)
    for digit in np.unique(label):
        mine = order[label[order] == digit]
        rank[mine] = np.arange(len(mine)) + int(digit)
    return np.asarray(rank % 2 == 1)


def scored(
    train: FloatArray, train_label: IntArray, held: FloatArray, held_label: IntArray, grid: FloatArray = GRID
) -> FloatArray:
    """Accuracy on the images held back, of a network per point of a grid, ``(len(grid),)``."""
    kept = (patches_of(train), torch.as_tensor(train_label))
    test = (patches_of(held), torch.as_tensor(held_label))
    parts = np.array_split(grid, -(-len(grid) // _CHUNK))
    return np.concatenate([_train(kept, test, torch.as_tensor(part, dtype=torch.float32)) for part in parts])


def patches_of(pixels: FloatArray) -> torch.Tensor:
    """5x5 patches of the images pooled to 14x14, ``(n * 100, 25)``."""
    small = torch.as_tensor(pixels, dtype=torch.float32).reshape(len(pixels), 1, 14, 2, 14, 2).mean(dim=(3, 5))
    unfolded: torch.Tensor = torch.nn.functional.unfold(small, kernel_size=5)
    return unfolded.transpose(1, 2).reshape(-1, 25)


def network_scores(
    patches: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor, head: torch.Tensor
) -> torch.Tensor:
    """Scores ``(networks, n, 10)`` of many networks on the same images; one product for all their filters."""
    networks, n_filters = filters.shape[0], filters.shape[2]
    n = len(patches) // 100
    hidden = patches @ filters.transpose(0, 1).reshape(25, -1) + bias.reshape(-1)
    pooled = hidden.reshape(n, 5, 2, 5, 2, networks * n_filters).amax(dim=(2, 4)).relu()
    flat = pooled.reshape(n, 25, networks, n_filters).permute(2, 0, 1, 3).reshape(networks, n, -1)
    return torch.cat([flat, torch.ones(networks, n, 1)], dim=2) @ head


def _train(
    train: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor], grid: torch.Tensor
) -> FloatArray:
    """Accuracy of one network per row of ``grid`` after ``STEPS`` full-batch steps of Adam."""
    generator = torch.Generator().manual_seed(0)
    first = [
        torch.randn(25, 4, generator=generator) / 5,
        torch.zeros(4),
        torch.randn(101, 10, generator=generator) / 10,
    ]
    weights = [w.expand(len(grid), *w.shape).clone().requires_grad_() for w in first]
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    for step in range(STEPS):
        scores = network_scores(train[0], *weights)
        log_likelihood = scores.log_softmax(dim=2)[:, torch.arange(len(train[1])), train[1]].mean(dim=1)
        gradients = torch.autograd.grad(-log_likelihood.sum(), weights)
        rate = grid[:, 0] / (1 + grid[:, 1] * step)
        with torch.no_grad():
            for w, gradient, (mean, square) in zip(weights, gradients, moments, strict=True):
                shape = (-1,) + (1,) * (w.dim() - 1)
                total = gradient + 2 * grid[:, 2].reshape(shape) * w
                mean.mul_(0.9).add_(total, alpha=0.1)
                square.mul_(0.999).addcmul_(total, total, value=0.001)
                unbiased = (square / (1 - 0.999 ** (step + 1))).sqrt().add_(1e-7)
                w.sub_(rate.reshape(shape) * (mean / (1 - 0.9 ** (step + 1))) / unbiased)
    with torch.no_grad():
        found = network_scores(test[0], *weights).argmax(dim=2)
    return np.asarray((found == test[1]).double().mean(dim=1).numpy())


@lru_cache(maxsize=1)
def images() -> Images:
    """The writers' images."""
    packed = local("mnist_by_writer50.npz")
    if packed is not None:
        with np.load(packed, allow_pickle=False) as data:
            pixels, label, writer = data["images"], data["label"], data["writer"]
        return Images(pixels / 255.0, label.astype(np.int64), writer.astype(np.int64))
    paths = download(SOURCES)
    return select(
        read_idx(paths["qmnist-train-images.gz"], np.dtype(">u1")),
        read_idx(paths["qmnist-train-labels.gz"], np.dtype(">i4")),
    )


def read_idx(path: Path, kind: np.dtype[np.generic]) -> IntArray:
    """A gzipped IDX file: magic number, sizes, values; big-endian."""
    content = gzip.decompress(path.read_bytes())
    n_dims = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=n_dims, offset=4)
    return np.frombuffer(content, dtype=kind, offset=4 + 4 * n_dims).reshape(shape).astype(np.int64)


def select(pixels: IntArray, labels: IntArray, n_writers: int = N_WRITERS) -> Images:
    """The first writers with enough digits; QMNIST's labels hold digit, series, writer, ..."""
    digit, writer = labels[:, 0], labels[:, 2]
    names, counts = np.unique(writer, return_counts=True)
    chosen = names[counts >= LEAST_IMAGES][:n_writers]
    inside = np.isin(writer, chosen)
    return Images(pixels[inside] / 255.0, digit[inside], np.searchsorted(chosen, writer[inside]))
