"""What every algorithm plans and charges by clients and evaluations, and whether its runs are those of their noise.

``python -m experiments.spend`` prints the table. Clients are all alike, the most that sharing can have. A
run is compared with its noise-only control, under the same noise: points that clients evaluate or would
use, and what is announced. Where nothing is planned, the two are runs in which every release is made all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

import privbo as pb
from privbo.protocol.messages import Algorithm, FloatArray
from privbo.runs.offer import always
from privbo.testing import bumps

CLIENTS, EVALUATIONS, EPSILON = (12, 40, 200), (22, 500, 5_000), 2.0
SEEDS = 8
_RECORDS = 900
_QUICK = ("fed-pne", "pf-pne", "parallel")  # a run of these takes a fraction of a second
_FIRST = 30  # evaluations of SharedPrior that are run of any horizon: its releases come early, and nothing else asks
ALGORITHMS: Mapping[str, Callable[[int], Algorithm]] = {
    "shared-prior": lambda t: pb.SharedPrior(evaluations=t),
    "dp-fts-de": lambda t: pb.DPFTSDE(evaluations=t),
    "multi-task": lambda _: pb.MultiTask(),
    "fed-pne": lambda t: pb.FedPNE(horizon=t),
    "pf-pne": lambda t: pb.PFPNE(horizon=t),
    "parallel": lambda t: pb.ParallelXArmed(horizon=t),
    "f-lcb": lambda t: pb.FederatedFLCB(evaluations=t),
}


def problem(name: str, n_clients: int) -> pb.Problem:
    """Give alike clients with one bump; of records where one record is hidden."""
    space = {"x": pb.Real(0, 1), "y": pb.Real(0, 1)}

    def score(clients: object, units: FloatArray) -> FloatArray:  # noqa: ARG001 (all alike)
        return bumps(np.zeros(len(units), dtype=np.int64), units)

    if name != "multi-task":
        return pb.Problem(space=space, batch_objective=score, n_clients=n_clients)

    def scores(client: int, params: Mapping[str, Any]) -> FloatArray:
        return np.full(_RECORDS, score(client, np.array([[params["x"], params["y"]]], dtype=float))[0])

    return pb.Problem(space=space, objective=scores, n_clients=n_clients, n_records=(_RECORDS,) * n_clients)


def privacy(name: str) -> pb.Privacy:
    """Give epsilon 2 for one client, or for one record, with seeded noise."""
    if name == "multi-task":
        return pb.Privacy(epsilon=EPSILON, delta=1e-6, noise="simulation", unit="record", protects="records")
    return pb.Privacy(epsilon=EPSILON, delta=1e-5, noise="simulation")


def planned(name: str, n_clients: int, evaluations: int, algorithm: Algorithm) -> pb.Plan:
    """Give a cell's plan."""
    return pb.plan(problem(name, n_clients), algorithm, privacy=privacy(name), rounds=evaluations)


def differing(name: str, n_clients: int, evaluations: int, seeds: int) -> int:
    """Count the seeds at which a run is not its noise-only control; with all releases where none is planned."""
    algorithm = ALGORITHMS[name](evaluations)
    rounds = min(evaluations, _FIRST) if name == "shared-prior" else evaluations
    if not planned(name, n_clients, evaluations, algorithm).releases:
        algorithm = always(algorithm)

    def done(seed: int, control: Literal["zeroed"] | None) -> list[object]:
        record = pb.run(
            problem(name, n_clients), algorithm, privacy=privacy(name), rounds=rounds, seed=seed, control=control
        )  # fmt: skip
        common = None if record.common is None else record.common.params
        return [record.clients.units.tolist(), record.clients.recommended.tolist(), common]

    return sum(done(seed, None) != done(seed, "zeroed") for seed in range(seeds))


def cell(name: str, n_clients: int, evaluations: int) -> str:
    """Give releases planned of all, their epsilon, and at how many seeds the run differs from its noise-only self."""
    make = ALGORITHMS[name]
    plan, most = (
        planned(name, n_clients, evaluations, algorithm) for algorithm in (make(evaluations), always(make(evaluations)))
    )
    found = f"{plan.releases}/{most.releases}, {min(plan.epsilon().values()):.3g}"
    is_large = name == "multi-task" and n_clients > CLIENTS[1]  # its model grows with sites, and it is for few
    longest = {"shared-prior": EVALUATIONS[2], **dict.fromkeys(_QUICK, EVALUATIONS[1])}.get(name, EVALUATIONS[0])
    if is_large or evaluations > longest:
        return found
    seeds = SEEDS if name in ("shared-prior", *_QUICK) else 1
    return f"{found}; {differing(name, n_clients, evaluations, seeds)}/{seeds}"


def main() -> None:
    """Print the table, row by row as it is made."""
    print(f"| algorithm | clients | {' | '.join(f'{evaluations:,} evaluations' for evaluations in EVALUATIONS)} |")
    print("|---" * (2 + len(EVALUATIONS)) + "|")
    for name in ALGORITHMS:
        for n_clients in CLIENTS:
            cells = (cell(name, n_clients, evaluations) for evaluations in EVALUATIONS)
            print(f"| {name} | {n_clients} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
