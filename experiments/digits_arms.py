"""Small networks on scikit-learn's digits (8x8): arms whose true order long training tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from experiments.baselines.neural import NeuralArm, adam
from privbo.training.private_neural import Split

LEARNING_RATE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Digits:
    """A seed's split: training and validation for the search, test records for the verdict."""

    split: Split
    test_x: Tensor
    test_y: Tensor


def load_digits(seed: int, *, n_train: int = 1000, n_validation: int = 400, device: str = "cpu") -> Digits:
    """Images ``(n, 1, 8, 8)`` in [0, 1], shuffled by ``seed``; what is left is for testing."""
    from sklearn.datasets import load_digits as load

    data = load()
    order = np.random.default_rng([41, seed]).permutation(len(data.target))
    x = torch.tensor(data.images[order] / 16.0, dtype=torch.float32, device=device).unsqueeze(1)
    y = torch.tensor(data.target[order], dtype=torch.int64, device=device)
    middle, last = n_train, n_train + n_validation
    split = Split(train_x=x[:middle], train_y=y[:middle], validation_x=x[middle:last], validation_y=y[middle:last])
    return Digits(split=split, test_x=x[last:], test_y=y[last:])


def perceptron(width: int, n_hidden: int = 1) -> nn.Module:
    """A multilayer perceptron with equal hidden layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    n_inputs = 64
    for _ in range(n_hidden):
        layers += [nn.Linear(n_inputs, width), nn.Tanh()]
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(n_inputs, 10))


def linear() -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def pooled() -> nn.Module:
    """Softmax regression on the image averaged down to 2x2."""
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4, 10))


def convolutional(width: int) -> nn.Module:
    """Two convolutions with group normalisation (fit for private training), one linear layer."""
    groups = max(1, width // 4)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(groups, width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.GroupNorm(groups, 2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "conv-8": partial(convolutional, 8),
    "conv-4": partial(convolutional, 4),
    "mlp-64x2": partial(perceptron, 64, 2),
    "mlp-64": partial(perceptron, 64),
    "mlp-32": partial(perceptron, 32),
    "linear": linear,
    "mlp-8": partial(perceptron, 8),
    "mlp-5": partial(perceptron, 5),
    "mlp-3": partial(perceptron, 3),
    "pooled": pooled,
}


def arms(digits: Digits, seed: int, learning_rate: float = LEARNING_RATE) -> list[NeuralArm]:
    """One arm per model; initial weights and batches follow ``seed``."""
    return [
        NeuralArm(
            name=name,
            model=make,
            data=digits.split,
            optimiser=adam(learning_rate),
            seed=1000 * seed + index,
        )
        for index, (name, make) in enumerate(MODELS.items())
    ]
