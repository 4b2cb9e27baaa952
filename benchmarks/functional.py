"""Private training against plain Opacus on the same steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from benchmarks._rows import Row
from privbo.training.plan import RecordPrivacy, priced
from privbo.training.private_neural import PrivateNeuralArm
from privbo.training.search import central_run

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from privbo.training.private_neural import Split

N_BLOCKS = 5
N_TRAINING, N_VALIDATION = 1000, 400


def rows() -> Iterator[Row]:
    """Timed rows: name, our seconds, the peer and its seconds, the ratio."""
    yield _private_training()


def _private_training() -> Row:
    """Seconds of processor time for 200 DP-SGD steps on digits, ledger and judge included."""
    import torch

    torch.set_num_threads(1)
    data = _digits()
    _ours(data), _plain_opacus(data)  # imports
    pairs = [(_ours(data), _plain_opacus(data)) for _ in range(5)]
    ours, plain = (min(times) for times in zip(*pairs, strict=True))
    return Row("private training on digits, 200 steps, charged and judged", ours, "plain Opacus, the same steps", plain)


def _ours(data: Split) -> float:
    privacy = RecordPrivacy(epsilon=3.0, pulls=N_BLOCKS, noise="simulation")
    run = central_run(priced(privacy, n_training=N_TRAINING, n_validation=N_VALIDATION), seed=0)
    arm = PrivateNeuralArm(name="mlp", model=_model, data=data, optimiser=_sgd, trainer=run.trainer, judge=run.judge)
    state = arm.init()
    start = time.process_time()
    for _ in range(N_BLOCKS):
        state = arm.step(state)
    return time.process_time() - start


def _plain_opacus(data: Split) -> float:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = _model()
    loader = DataLoader(TensorDataset(data.train_x, data.train_y), batch_size=63)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimiser, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=_sgd(model.parameters()),
            data_loader=loader,
            noise_multiplier=2.36,
            max_grad_norm=1.0,
            noise_generator=torch.Generator().manual_seed(0),
        )
        model.train()
        start, steps = time.process_time(), 0
        while steps < 40 * N_BLOCKS:
            for x, y in loader:
                optimiser.zero_grad()
                torch.autograd.backward(torch.nn.functional.cross_entropy(model(x), y))
                optimiser.step()
                steps += 1
                if steps == 40 * N_BLOCKS:
                    break
        return time.process_time() - start


def _digits() -> Split:
    import torch
    from sklearn.datasets import load_digits

    from privbo.training.private_neural import Split

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = torch.tensor(data.images[order] / 16.0, dtype=torch.float32)
    y = torch.tensor(data.target[order], dtype=torch.int64)
    last = N_TRAINING + N_VALIDATION
    return Split(
        train_x=x[:N_TRAINING], train_y=y[:N_TRAINING],
        validation_x=x[N_TRAINING:last], validation_y=y[N_TRAINING:last],
    )  # fmt: skip


def _model() -> nn.Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def _sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    from torch.optim import SGD

    return SGD(parameters, lr=0.5)
