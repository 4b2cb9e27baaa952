"""Figure 4 and Table 4 of the F-LCB paper on CIFAR, where the archives are present.

``f-lcb-cifar10``: five models of about 11.5 million parameters, 200 pulls of 40 Adam
steps at 1e-4, batch 64; ``f-lcb-cifar100``: the eleven candidates; ``f-lcb-five-models``:
the five on scikit-learn's digits, which need no archive. A GPU is used where there is one.
Archives are read from ``PRIVBO_DATA`` or ``data`` (see ``cifar``).
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privbo as pb
from experiments.baselines.neural import NeuralArm, accuracy, adam
from experiments.cifar import Archive, Images, load
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import FLCB, f_lcb
from privbo.comparisons.cells import Cell, complete, digest
from privbo.protocol.files import write_atomically, write_json
from privbo.training.private_neural import Split

N_VALIDATION = 5000


def tensors(images: Images, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs normalised to about [-1, 1] and classes."""
    x = torch.tensor(images.images, device=device).float().div_(127.5).sub_(1.0)
    return x, torch.tensor(images.classes, device=device)


def split_of(train: Images, device: str, seed: int, n_validation: int = N_VALIDATION) -> Split:
    """All but ``n_validation`` training images are trained on."""
    x, y = tensors(train, device)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(device)
    held, kept = order[:n_validation], order[n_validation:]
    return Split(train_x=x[kept], train_y=y[kept], validation_x=x[held], validation_y=y[held])


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What the models are trained and judged on, for one seed.

    Attributes:
        split: Training and validation images.
        test_x: Test images, which only the verdict sees.
        test_y: Their classes.
    """

    split: Split
    test_x: torch.Tensor
    test_y: torch.Tensor


Models = dict[str, Callable[[], torch.nn.Module]]


def run(archive: Archive, models: Models, out: Path, *, pulls: int, seeds: int) -> None:
    """F-LCB over the models on an archive; see ``study``.

    Raises:
        ConfigurationError: If the archive is not there.
    """
    train, test = load(archive)
    device = best_device()
    x, y = tensors(test, device)
    study(
        archive.file, lambda seed: Task(split=split_of(train, device, seed), test_x=x, test_y=y), models, out,
        pulls=pulls, seeds=seeds, device=device,
    )  # fmt: skip


def best_device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def study(
    data: str,
    task: Callable[[int], Task],
    models: Models,
    out: Path,
    *,
    pulls: int,
    seeds: int,
    device: str,
) -> None:
    """F-LCB over the models; write the test accuracy after every pull, summary, table and figure.

    Finished seeds are kept and read back; one after another, because a seed fills the device.
    """
    cells = [
        Cell(
            label=data,
            seed=seed,
            path=out / "cells" / f"{digest([data, list(models), pulls, seed, pb.__version__])}.json",
            work=partial(_one, task, models, seed, pulls),
        )
        for seed in range(seeds)
    ]
    runs = complete(cells, jobs=1)
    names = list(models)
    write_json(out / "summary.json", {"data": data, "device": device, "pulls": pulls, "runs": runs})
    lines = [
        f"{data}: {seeds} runs of {pulls} pulls on {device}.",
        "",
        "| model | pulls | test accuracy | chosen |",
        "|---|---|---|---|",
    ]
    for i, name in enumerate(names):
        last = [run["accuracy"][i][-1] if run["accuracy"][i] else math.nan for run in runs]
        share = sum(run["chosen"] == i for run in runs)
        pulled = np.mean([run["pulls"][i] for run in runs])
        lines.append(f"| {name} | {pulled:.0f} | {np.nanmean(last):.4f} | {share}/{seeds} |")
    write_atomically(out / "table.md", ("\n".join(lines) + "\n").encode())
    _draw(runs, names, out / "figure.png")


def _one(task: Callable[[int], Task], models: Models, seed: int, pulls: int) -> dict[str, Any]:
    given = task(seed)
    arms = [
        NeuralArm(name=name, model=make, data=given.split, optimiser=adam(1e-4), seed=1000 * seed + i)
        for i, (name, make) in enumerate(models.items())
    ]
    curves: list[list[float]] = [[] for _ in arms]

    def after(search: FLCB, arm: int) -> None:
        state = search.states.get(arm)
        if state is not None:
            curves[arm].append(accuracy(state.model, given.test_x, given.test_y))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted below
        found = f_lcb(arms, budget=pulls, on_pull=after)
    return {
        "chosen": found.chosen,
        "pulls": found.pulls.tolist(),
        "accuracy": curves,
        "violations": len(found.violations),
        "retired": {str(i): reason for i, reason in found.retired.items()},
    }


def _draw(runs: list[dict[str, Any]], names: list[str], path: Path) -> None:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4), layout="constrained")
    axes = picture.subplots()
    for i, name in enumerate(names):
        for number, one in enumerate(runs):
            curve = one["accuracy"][i]  # one pull is one point: most models are seen once
            label = None if number else name
            axes.plot(range(1, len(curve) + 1), curve, "o-", ms=4, color=f"C{i}", alpha=0.6, label=label)
    axes.set(xlabel="pulls of the model", ylabel="test accuracy")
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
