"""Long histories: a whole run with a fit every round, and what a round costs at 1,000 evaluations; CPU seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

import privbo as pb
from benchmarks._rows import TRANSCENDENTAL, Row, least, smallest, timed
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.processes import limited_threads

N_CLIENTS, ROUNDS, SECONDS = 40, 200, 60.0
MODELLED = 8  # clients that are timed
_STEPS, _SEARCHED = 10, 512 + 6 * 4 * 16  # steps of a fit that goes on from the last one; points a search looks at


def rows() -> Iterator[Row]:
    """Give both rows."""
    with limited_threads(1):
        yield from _whole_run()
        yield from _capped()


def round_flops(t: int, steps: int = _STEPS, shared: int = 0) -> float:
    """Operations of a client's round at t points in two dimensions: a fit of some steps, and the search of a point.

    A step needs a factorisation, an inverse, and a kernel with its derivatives; a point that is looked at a kernel, a
    product with the triangular root of the inverse, and its improvement. With M ``shared`` features it needs their
    kernel too, a square matrix times it, and its product with the known points' uncertainty.
    """
    kernel = TRANSCENDENTAL + 12.0
    each = t**2 + kernel * t + 4.0 * TRANSCENDENTAL + shared * (kernel + 2.0 * shared + 2.0 * t)
    return steps * (t**3 + kernel * t**2) + t**3 + _SEARCHED * each


def _whole_run() -> Iterator[Row]:
    """The default with a fit of every client in every round."""
    centres = np.random.default_rng(0).random((N_CLIENTS, 2))

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        distance = ((units - centres[clients]) ** 2).sum(axis=-1)
        return np.asarray(np.exp(-4.0 * distance) + 0.2 * np.sin(9.0 * units[..., 0] + clients))

    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    problem = pb.Problem(space=space, batch_objective=objective, n_clients=N_CLIENTS)
    privacy = pb.Privacy(epsilon=2.0, noise="simulation")

    def play(rounds: int) -> None:
        pb.run(problem, pb.SharedPrior(), privacy=privacy, rounds=rounds, seed=0)

    play(3)  # imports
    seconds, _ = timed(lambda: play(ROUNDS))
    kept, m = pb.SharedPrior().own.max_points or ROUNDS, pb.SharedPrior().n_features
    limit = least(flops=N_CLIENTS * sum(round_flops(min(t, kept), shared=m) for t in range(2, ROUNDS + 2)))
    name = f"a run at N={N_CLIENTS}, T={ROUNDS} with a fit every round"
    yield Row(name, seconds, "the bar", SECONDS, kind="bar", least=limit)


def _capped() -> Iterator[Row]:
    """A round of both algorithms' clients at long histories: the fit, the point, and the answer."""
    for label, algorithm in (("SharedPrior", pb.SharedPrior()), ("DP-FTS-DE", pb.DPFTSDE(n_regions=1))):
        seconds, own = smallest(_at(algorithm, 1000)) / MODELLED, algorithm.own
        name = f"{label}: a client's round with a fit and an answer at 1,000 evaluations, max_points={own.max_points}"
        limit = least(flops=round_flops(own.max_points or 1000, own.fit_steps))
        yield Row(name, seconds, "the bar of 25 ms", 25e-3, kind="bar", least=limit)


def _at(algorithm: pb.SharedPrior | pb.DPFTSDE, t: int) -> Callable[[], object]:
    """A round of some clients that have t evaluations each."""
    from privbo.algorithms.thompson.clients import ModellingClients
    from privbo.protocol.messages import PlainEvaluate, Setting
    from privbo.protocol.space import Space

    space = Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    clients, rng = np.arange(MODELLED), np.random.default_rng(0)
    setting = Setting(space=space, n_clients=len(clients), rounds=2000, public_seed=0)
    evaluate = PlainEvaluate(lambda who, units: np.sin(7.0 * units.sum(axis=1) + who))
    cohort = cast("ModellingClients[object]", algorithm.cohort(setting, clients=clients, evaluate=evaluate, seed=0))
    for round_ in range(t):
        cohort.seen.query(rng.random((len(clients), 2)), round_)
    cohort.weights(clients, t - 2)
    first = cohort.model.snapshot()

    def once() -> None:
        cohort.model.restore(first)
        cohort.model.propose(cohort.seen, t)
        cohort.weights(clients, t - 1)

    return once
