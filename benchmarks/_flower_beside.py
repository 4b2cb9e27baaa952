"""Seconds of a round beside plain Flower's: ``python -m benchmarks._flower_beside --nodes 3 10 30``.

Plain Flower is a server's app that sends every node as many bytes as ours does on average, and waits for as many; its
nodes run Flower's own commands. Ours is a whole round of DP-FTS-DE (64 features, one client a node), door and ledger
included, by ``privbo flower supernode``. Both are played in the same run on loopback, without TLS; figures are medians
after the first round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks._flower_rounds import guarded
from benchmarks._held import held
from privbo.flower.launch import Deployment
from privbo.flower.scaffold import write_app

PLAIN = """import json
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {nodes}:
        time.sleep(1)
    seconds = []
    for turn in range({rounds}):
        start = time.monotonic()
        nodes = grid.get_node_ids()
        asked = [Message(filled(), dst_node_id=node, message_type="query", group_id=str(turn)) for node in nodes]
        answers = list(grid.send_and_receive(asked, timeout=1800))
        assert len(answers) == {nodes} and all(answer.has_content() for answer in answers)
        seconds.append(time.monotonic() - start)
    with open({out!r}, "w") as file:
        json.dump(seconds, file)


@client.query()
def answer(message, context):
    return Message(filled(), reply_to=message)


def filled():
    return RecordDict({{"filled": ConfigRecord({{"bytes": bytes({n_bytes})}})}})
"""


@dataclass(frozen=True)
class Beside:
    """Seconds of a round of ours and of plain Flower's, GiB of all processes of both, and the bytes of a message."""

    nodes: int
    ours: float
    plain: float
    memory: tuple[float, float]
    n_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, {self.n_bytes} bytes a message: {self.ours:.2f} s per round, plain Flower "
            f"{self.plain:.2f} s, {self.ours / self.plain:.2f} times (the bar is 1.3); "
            f"{self.memory[0]:.1f} and {self.memory[1]:.1f} GiB of memory"
        )


def beside(nodes: int, rounds: int) -> Beside:
    """Play both."""
    ours = guarded(0, regions=1, rounds=rounds, clients=1, sites=nodes)
    n_bytes = round(ours.n_bytes / (2 * nodes * len(ours.questions)))
    seconds, memory = plain(nodes, rounds, n_bytes)
    return Beside(nodes=nodes, ours=ours.seconds, plain=seconds, memory=(ours.memory, memory), n_bytes=n_bytes)


def plain(nodes: int, rounds: int, n_bytes: int) -> tuple[float, float]:
    """Seconds of a round of plain Flower, and GiB of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        app, out = Path(folder) / "app", Path(folder) / "seconds.json"
        write_app(app, n_sites=nodes, clients_per_site=1, epsilon=8.0, delta=1e-5)
        (app / "federated_app.py").write_text(PLAIN.format(nodes=nodes, rounds=rounds, n_bytes=n_bytes, out=str(out)))
        with Deployment(root=Path(folder) / "flower", forked=False) as deployment:
            deployment.start_superlink()
            for node in range(nodes):
                deployment.start_supernode(f"site{node}", app / "sites" / f"site{node}" / "site.toml")
            deployment.play(app, timeout=3600)
            memory = held(deployment)
        return float(statistics.median(json.loads(out.read_text())[1:])), memory


def main() -> None:
    """Print one line per number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[3, 10, 30])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    for nodes in chosen.nodes:
        sys.stdout.write(f"{beside(nodes, chosen.rounds)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
