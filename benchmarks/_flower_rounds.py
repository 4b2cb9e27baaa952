"""Seconds of a round over Flower, and in a single process: ``python -m benchmarks._flower_rounds``.

The objective costs nothing, so what is left is the way there and back. Simulated: N
nodes of one client each by Flower's simulation (Ray). Deployed: a SuperLink and three
SuperNodes on loopback. Every figure is the median over rounds after the first.

``--nodes 1000 --rounds 10`` plays one run on so many simulated nodes and says whether every node answered every round.

``--guardians`` plays DP-FTS-DE (64 features) twice on loopback, with a trusted server and with two guardians, and
prints bytes and seconds of a round of both: every byte of every message that the server's app sends or takes, without
Flower's own frames, and the time from one question to sites to the next.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import privbo as pb
from benchmarks._held import Meter, held
from privbo.flower.launch import Deployment, approve_here
from privbo.flower.scaffold import write_app
from privbo.flower.server import serve
from privbo.protocol.files import read_json, read_lines, write_json
from privbo.runs.manifest import RunDirectory

COUNTED = """from pathlib import Path

from benchmarks._flower_rounds import counted_server
from privbo.flower import client_app

HOME = Path(__file__).parent
server = counted_server(Path({app!r}), Path({out!r}))
client = client_app(HOME)
"""

RUN = """name = "rounds"
rounds = {rounds}
seed = 1
[problem]
n_clients = {n}
objective = "objective:score"
space = {{ x = {{ type = "real", low = 0.0, high = 1.0 }} }}
[algorithm]
{algorithm}
[privacy]
noise_multiplier = 1.0
"""


# Every round releases: few clients' releases would be left out as useless, and a round without them is another one.
TABLES = {"fed-pne": 'type = "fed-pne"\nrelease_when = "always"', "dp-fts-de": 'type = "dp-fts-de"'}


@dataclass(frozen=True)
class Simulated:
    """A run on simulated nodes of one client each.

    Attributes:
        nodes: Their number.
        rounds: Number of questions.
        seconds: Of a round, the median after the first.
        whole: Seconds of the whole run, Flower's start included.
        answers: Fewest nodes that answered a question.
    """

    nodes: int
    rounds: int
    seconds: float
    whole: float
    answers: int

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes simulated: {self.seconds:.2f} s per round, {self.rounds} rounds finished in "
            f"{self.whole:.0f} s, at least {self.answers} nodes answered each"
        )


def simulated(n: int, algorithm: str, rounds: int) -> Simulated:
    """Play a run with ``n`` simulated nodes of one client each."""
    with tempfile.TemporaryDirectory() as folder:
        app = _app(Path(folder), n_sites=n, n_clients=n, algorithm=algorithm, rounds=rounds)
        _patient(app)
        started = time.monotonic()
        with Deployment(root=Path(folder) / "flower") as deployment:
            deployment.start_superlink("--simulation")
            nodes = f"num-supernodes={n} client-resources-num-cpus=1"
            deployment.play(app, "--federation-config", nodes, timeout=7200)
        rows = read_lines(app / "run" / "private" / "transport.jsonl")
        return Simulated(
            nodes=n,
            rounds=len(rows),
            seconds=_median(app),
            whole=time.monotonic() - started,
            answers=min(len(row["answered"]) for row in rows),
        )


def deployed(algorithm: str, rounds: int) -> float:
    """Seconds per round with three SuperNodes of ten clients each."""
    with tempfile.TemporaryDirectory() as folder:
        app = _app(Path(folder), n_sites=3, n_clients=30, algorithm=algorithm, rounds=rounds)
        approve_here(app)
        with Deployment(root=Path(folder) / "flower") as deployment:
            deployment.start_superlink()
            for site in range(3):
                deployment.start_supernode(f"site{site}", app / "sites" / f"site{site}" / "site.toml")
            deployment.play(app, timeout=560)
        return _median(app)


@dataclass(frozen=True)
class Traffic:
    """Traffic of a deployed run, as its server's app saw it.

    Attributes:
        n_bytes: Of all messages in both directions.
        questions: When a round's question went out to the sites, in seconds of one clock.
        memory: GiB that all processes hold together after the last round; pages they share count once.
        processor: CPU seconds of all processes in a round: the median after the first one.
    """

    n_bytes: int
    questions: tuple[float, ...]
    memory: float
    processor: float

    @property
    def seconds(self) -> float:
        """Seconds of a round: the median after the first one."""
        return float(statistics.median(np.diff(self.questions)[1:]))


class Counted:
    """Flower's grid, with its bytes counted and its questions timed."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.n_bytes, self.questions = grid, 0, list[float]()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the grid has
        return getattr(self.grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count what goes out."""
        listed = list(messages)
        self._count(listed)
        if any("question" in message.content.config_records for message in listed):
            self.questions.append(time.monotonic())
        return list(self.grid.push_messages(listed))

    def pull_messages(self, identities: Iterable[str]) -> Iterable[Message]:
        """Count what comes back."""
        found = list(self.grid.pull_messages(identities))
        self._count(message for message in found if message.has_content())
        return found

    def _count(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.n_bytes += sum(len(item.deflate()) for item in get_all_nested_objects(message).values())


def counted_server(home: Path, out: Path) -> ServerApp:
    """The shipped server's app over a grid that counts; Flower loads it in a process of its own."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        counted = Counted(grid)
        serve(cast("Grid", counted), home, RunDirectory(Path(str(context.run_config["directory"]))))
        write_json(out, {"n_bytes": counted.n_bytes, "questions": counted.questions})

    app.main()(main)
    return app


def guarded(n_guardians: int, *, regions: int, rounds: int, clients: int, sites: int = 3) -> Traffic:
    """Traffic of a deployed run of sites with so many clients each; 0 guardians are a trusted server."""
    with tempfile.TemporaryDirectory() as folder:
        app, out = Path(folder) / "app", Path(folder) / "traffic.json"
        write_app(app, n_sites=sites, clients_per_site=clients, epsilon=8.0, delta=1e-5, n_guardians=n_guardians)
        table = tomllib.loads((app / "run.toml").read_text()) | {"rounds": rounds}
        table["algorithm"] = {"type": "dp-fts-de", "n_features": 64, "n_regions": regions, "n_init": 2}
        (app / "run.toml").write_text(tomli_w.dumps(table))
        _patient(app)
        (app / "federated_app.py").write_text(COUNTED.format(app=str(app), out=str(out)))
        approve_here(app)
        environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
        with Deployment(root=Path(folder) / "flower", environment=environment) as deployment:
            deployment.start_superlink()
            for site in range(sites):
                deployment.start_supernode(f"site{site}", app / "sites" / f"site{site}" / "site.toml")
            for number in range(1, n_guardians + 1):
                path = app / "guardians" / f"guardian{number}" / "guardian.toml"
                deployment.start_supernode(f"guardian{number}", path)
            with Meter(deployment) as meter:
                deployment.play(app, timeout=3600)
            memory = held(deployment)
        found = read_json(out)
    asked = tuple(found["questions"])
    return Traffic(n_bytes=int(found["n_bytes"]), questions=asked, memory=memory, processor=meter.between(asked))


def print_guarded(rounds: int) -> None:
    """Print a trusted server beside two guardians, for one region and for four."""
    for regions in (1, 4):
        server, two = (guarded(n, regions=regions, rounds=rounds, clients=3) for n in (0, 2))
        played = len(server.questions)
        for name, found in (("trusted server", server), ("two guardians", two)):
            sys.stdout.write(
                f"{regions} region(s), {name}: {found.n_bytes / played:.0f} bytes, {found.seconds:.2f} s per round\n"
            )
        sys.stdout.write(
            f"{regions} region(s), ratio: {two.n_bytes / server.n_bytes:.2f} of the bytes (aim 3), "
            f"{two.seconds / server.seconds:.2f} of the seconds (aim 1.5)\n"
        )


def single_process(n: int, algorithm: str, rounds: int) -> float:
    """Seconds per round in one process."""

    def score(_clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return 1.0 - (units[:, 0] - 0.3) ** 2

    problem = pb.Problem(space={"x": pb.Real(0.0, 1.0)}, batch_objective=score, n_clients=n)
    kind = pb.FedPNE(release_when="always") if algorithm == "fed-pne" else pb.DPFTSDE()
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
    write_app(app, n_sites=n_sites, clients_per_site=n_clients // n_sites, epsilon=1e4, delta=1e-5)
    (app / "run.toml").write_text(RUN.format(rounds=rounds, n=n_clients, algorithm=TABLES[algorithm]))
    return app


def _patient(app: Path) -> None:
    """Let the run wait for its last node: on few cores it takes minutes until thirty of them have started."""
    path = app / "federation.toml"
    table = tomllib.loads(path.read_text()) | {"start_timeout": 1800.0, "round_timeout": 1800.0}
    path.write_text(tomli_w.dumps(table))


def _median(app: Path) -> float:
    rows = read_lines(app / "run" / "private" / "transport.jsonl")
    return float(statistics.median(float(str(row["seconds"])) for row in rows[1:]))


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 50, 200])
    parser.add_argument("--nodes", type=int, nargs="*", help="Simulated nodes only, instead of --clients.")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--algorithm", choices=sorted(TABLES), default="fed-pne")
    parser.add_argument("--deployed", action="store_true", help="The deployment only.")
    parser.add_argument("--guardians", action="store_true", help="A trusted server beside two guardians.")
    chosen = parser.parse_args()
    if chosen.guardians:
        print_guarded(chosen.rounds)
        return
    if chosen.deployed:
        sys.stdout.write(
            f"deployed, 3 nodes of 10 clients: {deployed(chosen.algorithm, chosen.rounds):.2f} s per round\n"
        )
        return
    for n in chosen.nodes or ():
        sys.stdout.write(f"{simulated(n, chosen.algorithm, chosen.rounds)}\n")
        sys.stdout.flush()
    for n in () if chosen.nodes else chosen.clients:
        one = single_process(n, chosen.algorithm, chosen.rounds)
        sys.stdout.write(f"{n} clients, one process: {one:.4f} s per round\n")
        sys.stdout.write(f"{simulated(n, chosen.algorithm, chosen.rounds)}\n")


if __name__ == "__main__":
    main()
