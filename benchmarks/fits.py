"""Compiled fits beside the same steps made by GPyTorch on one thread, and small runs either way; CPU seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np

import privbo as pb
from benchmarks._rows import TRANSCENDENTAL, Row, least, smallest
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.processes import limited_threads

if TYPE_CHECKING:
    from privbo.algorithms.thompson.posterior import Observations

LENGTHS = (6, 20, 40, 160, 320)
N_CLIENTS, EVALUATIONS = 40, 22


def rows() -> Iterator[Row]:
    """Fits per client at several lengths of history, and whole runs."""
    with limited_threads(1):
        for t in LENGTHS:
            yield from _fits(t, n=N_CLIENTS if t <= 40 else 4)
    yield _run(pb.SharedPrior(evaluations=EVALUATIONS))
    yield _run(pb.DPFTSDE(evaluations=EVALUATIONS))


def _fits(t: int, n: int) -> Iterator[Row]:
    import torch

    from privbo.algorithms.thompson import fits
    from privbo.algorithms.thompson.posterior import Shared

    seen, own = _observed(n, t), pb.SharedPrior().own
    angles = 3.0 * seen.embedded.sum(-1)
    shared = Shared(mean=angles.cos(), uncertainty=0.3 * torch.stack([angles.sin(), (2.0 * angles).cos()], dim=-1))
    first, steps = fits.start(own, n, 2, torch.device("cpu")), own.fit_steps
    size = f"a fit of {steps} steps, t={t}, per client"
    bound = least(flops=steps * (t**3 + (TRANSCENDENTAL + 12.0) * t**2))  # a factorisation, an inverse, a kernel
    climbs = {
        "shared prior": partial(fits.fit, first, seen, own, steps=steps, shared=shared),
        "DP-FTS-DE": partial(fits.fit, first, seen, pb.OwnModel(), steps=steps, logits=True),
    }
    for name, fit in climbs.items():
        ours = smallest(partial(fit, compiled=True))
        with patch.object(fits, "_climb", fits.climb_by_gpytorch):
            theirs = smallest(partial(fit, compiled=False))
        yield Row(f"{name}, {size}", ours / n, "the same steps by GPyTorch", theirs / n, least=bound)


@contextmanager
def _either(compiled: bool) -> Iterator[None]:
    """Compiled code, or NumPy's, whatever a run's size."""
    from privbo.algorithms.thompson import clients, local_model, pooled

    with ExitStack() as patched:
        for module in (clients, local_model, pooled):
            patched.enter_context(patch.object(module, "is_compiled", lambda *_, **__: compiled))
        yield


def _observed(n: int, t: int) -> Observations:
    import torch

    from privbo.algorithms.thompson.posterior import Observations

    generator = np.random.default_rng(t)
    points = generator.random((n, t, 2))
    values = np.sin(4.0 * points.sum(axis=-1)) + 0.1 * generator.standard_normal((n, t))
    return Observations(
        embedded=torch.as_tensor(points),
        values=torch.as_tensor(values),
        mask=torch.ones(n, t, dtype=torch.bool),
        scale=torch.ones(n, dtype=torch.float64),
    )


def _run(algorithm: pb.SharedPrior | pb.DPFTSDE) -> Row:
    """A whole run as it is called, door and ledger included, and the way that it does not take, its code compiled."""
    compiled = isinstance(algorithm, pb.DPFTSDE)
    ours = smallest(partial(_play, algorithm))
    with _either(not compiled):
        theirs = smallest(partial(_play, algorithm))
    name = f"{type(algorithm).__name__}: a whole run, N={N_CLIENTS}, {EVALUATIONS} evaluations each"
    return Row(name, ours, f"the same run, {'by NumPy' if compiled else 'compiled'}", theirs)


def _play(algorithm: pb.SharedPrior | pb.DPFTSDE) -> None:
    centres = np.random.default_rng(0).random((N_CLIENTS, 2))

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        distance = ((units - centres[clients]) ** 2).sum(axis=-1)
        return np.asarray(np.exp(-4.0 * distance) + 0.2 * np.sin(9.0 * units[..., 0] + clients))

    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    problem = pb.Problem(space=space, batch_objective=objective, n_clients=N_CLIENTS)
    pb.run(problem, algorithm, privacy=pb.Privacy(epsilon=2.0, noise="simulation"), rounds=EVALUATIONS, seed=0)
