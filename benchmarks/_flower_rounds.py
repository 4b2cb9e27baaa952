"""Seconds of a round over Flower, and in a single process: ``python -m benchmarks._flower_rounds``.

The objective costs nothing, so what is left is the way there and back. Simulated: N
nodes of one client each by Flower's simulation (Ray). Deployed: a SuperLink and three
SuperNodes on loopback. Every figure is the median over rounds after the first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import privbo as pb
from privbo.flower.launch import Deployment
from privbo.flower.scaffold import write_app, write_site
from privbo.protocol.files import read_lines

RUN = """name = "rounds"
rounds = {rounds}
seed = 1
[problem]
n_clients = {n}
objective = "objective:score"
space = {{ x = {{ type = "real", low = 0.0, high = 1.0 }} }}
[algorithm]
type = "{algorithm}"
[privacy]
noise_multiplier = 1.0
noise = "simulation"
"""


def simulated(n: int, algorithm: str, rounds: int) -> float:
    """Seconds per round with ``n`` simulated nodes of one client each."""
    with tempfile.TemporaryDirectory() as folder:
        app = _app(Path(folder), n_sites=n, n_clients=n, algorithm=algorithm, rounds=rounds)
        with Deployment(root=Path(folder) / "flower") as deployment:
            deployment.start_superlink(simulation=True)
            nodes = f"num-supernodes={n} client-resources-num-cpus=1"
            deployment.play(app, "--federation-config", nodes, timeout=560)
        return _median(app)


def deployed(algorithm: str, rounds: int) -> float:
    """Seconds per round with three SuperNodes of ten clients each."""
    with tempfile.TemporaryDirectory() as folder:
        app = _app(Path(folder), n_sites=3, n_clients=30, algorithm=algorithm, rounds=rounds)
        with Deployment(root=Path(folder) / "flower") as deployment:
            deployment.start_superlink()
            for site in range(3):
                path = Path(folder) / "sites" / f"site{site}" / "site.toml"
                write_site(path, f"site{site}")
                deployment.start_supernode(f"site{site}", path)
            deployment.play(app, timeout=560)
        return _median(app)


def single_process(n: int, algorithm: str, rounds: int) -> float:
    """Seconds per round in one process."""

    def score(_clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return 1.0 - (units[:, 0] - 0.3) ** 2

    problem = pb.Problem(space={"x": pb.Real(0.0, 1.0)}, batch_objective=score, n_clients=n)
    kind = pb.FedPNE() if algorithm == "fed-pne" else pb.DPFTSDE()
    stamps: list[float] = []
    pb.run(
        problem,
        kind,
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        rounds=rounds,
        seed=1,
        on_round=lambda _: stamps.append(time.perf_counter()),
    )
    return float(statistics.median(np.diff(stamps)))


def _app(folder: Path, *, n_sites: int, n_clients: int, algorithm: str, rounds: int) -> Path:
    app = folder / "app"
    write_app(app, n_sites=n_sites, clients_per_site=n_clients // n_sites)
    (app / "run.toml").write_text(RUN.format(rounds=rounds, n=n_clients, algorithm=algorithm))
    return app


def _median(app: Path) -> float:
    rows = read_lines(app / "run" / "private" / "transport.jsonl")
    return float(statistics.median(float(str(row["seconds"])) for row in rows[1:]))


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 50, 200])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--algorithm", choices=["fed-pne", "dp-fts-de"], default="fed-pne")
    parser.add_argument("--deployed", action="store_true", help="The deployment only.")
    chosen = parser.parse_args()
    if chosen.deployed:
        sys.stdout.write(
            f"deployed, 3 nodes of 10 clients: {deployed(chosen.algorithm, chosen.rounds):.2f} s per round\n"
        )
        return
    for n in chosen.clients:
        one = single_process(n, chosen.algorithm, chosen.rounds)
        sys.stdout.write(f"{n} clients, one process: {one:.4f} s per round\n")
        sys.stdout.write(f"{n} nodes simulated: {simulated(n, chosen.algorithm, chosen.rounds):.2f} s per round\n")


if __name__ == "__main__":
    main()
