"""Learning curves of neural arms, trained once per (seed, arm) and replayed by every search.

Arms are deterministic given their seed, so a search over recorded curves does what a
search over live training does, at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from experiments.baselines.neural import NeuralArm, accuracy
from privbo.protocol.files import read_json, write_json

MakeArm = Callable[[int, str], tuple[NeuralArm, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class RecordedArm:
    """A recorded curve as an arm; its state is the number of pulls.

    Attributes:
        losses: Validation loss after every pull.
        test: Test accuracy after every pull.
        scale: g(k) = scale * f(x_1)/sqrt(k), as for live arms.
        reference: In place of f(x_1); None is the paper.
    """

    name: str
    losses: tuple[float, ...]
    test: tuple[float, ...]
    scale: float = 2.0
    reference: float | None = None
    value_stddev: float = 0.0

    def init(self) -> int:
        """No pull."""
        return 0

    def step(self, state: int) -> int:
        """One pull more.

        Raises:
            IndexError: If the curve is not that long.
        """
        if state >= len(self.losses):
            raise IndexError(f"the curve of {self.name!r} has {len(self.losses)} pulls; record a longer one")
        return state + 1

    def value(self, state: int) -> float:
        """The best validation loss so far."""
        return min(self.losses[:state])

    def rate(self, state: int, k: int, delta: float) -> float:  # noqa: ARG002  # a heuristic
        """The heuristic of ``NeuralArm``."""
        return self.scale * (self.losses[0] if self.reference is None else self.reference) / math.sqrt(k)

    @property
    def best_test(self) -> float:
        """Test accuracy where the validation loss is smallest over the whole curve."""
        return self.test[min(range(len(self.losses)), key=lambda i: self.losses[i])]


def record(
    make: MakeArm, names: Sequence[str], seeds: Sequence[int], *, n_pulls: int, out: Path, jobs: int
) -> dict[int, list[RecordedArm]]:
    """All curves by seed; finished ones are read back from ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    cells = [(seed, name, out / f"{name}-{seed}-{n_pulls}.json") for seed in seeds for name in names]
    work = (joblib.delayed(_train)(make, *cell, n_pulls) for cell in cells if not cell[2].exists())
    joblib.Parallel(n_jobs=jobs)(work)
    found: dict[int, list[RecordedArm]] = {seed: [] for seed in seeds}
    for seed, name, path in cells:
        cell = read_json(path)
        found[seed].append(RecordedArm(name=name, losses=tuple(cell["losses"]), test=tuple(cell["test"])))
    return found


def _train(make: MakeArm, seed: int, name: str, path: Path, n_pulls: int) -> None:
    with threadpool_limits(1):
        import torch

        torch.set_num_threads(1)
        arm, x, y = make(seed, name)
        state, test = arm.init(), []
        for _ in range(n_pulls):
            state = arm.step(state)
            test.append(accuracy(state.model, x, y))
    write_json(path, {"losses": state.losses, "test": test})
