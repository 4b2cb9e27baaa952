"""Small networks on scikit-learn's digits (8x8): arms whose true order long training tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from privbo.training.private_neural import Split


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


def network(name: str) -> Callable[[], nn.Module]:
    """Give the network of a name: ``"conv-8"``, ``"mlp-64"``, ``"mlp-64x2"``, ``"linear"`` or ``"pooled"``.

    Example:
        >>> sum(p.numel() for p in network("linear")().parameters())
        650
    """
    kind, _, size = name.partition("-")
    width, _, layers = size.partition("x")
    match kind:
        case "conv":
            return partial(convolutional, int(width))
        case "mlp":
            return partial(perceptron, int(width), int(layers or 1))
        case _:
            return {"linear": linear, "pooled": pooled}[kind]


def enlarged_digits(seed: int) -> Digits:
    """Give a seed's split of the digits enlarged to 32x32 and repeated over three channels, for CIFAR's models."""
    found = load_digits(seed, device="cuda" if torch.cuda.is_available() else "cpu")
    split = Split(
        train_x=enlarged(found.split.train_x),
        train_y=found.split.train_y,
        validation_x=enlarged(found.split.validation_x),
        validation_y=found.split.validation_y,
    )
    return Digits(split=split, test_x=enlarged(found.test_x), test_y=found.test_y)


def enlarged(images: Tensor) -> Tensor:
    """Give ``(n, 1, 8, 8)`` in [0, 1] as ``(n, 3, 32, 32)`` in [-1, 1]."""
    large = nn.functional.interpolate(images, scale_factor=4, mode="bilinear", align_corners=False)
    return large.mul(2.0).sub(1.0).expand(-1, 3, -1, -1).contiguous()
