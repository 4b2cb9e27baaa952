"""Seconds of a round beside plain Flower's: ``python -m benchmarks._flower_beside --nodes 3 10 30``.

Plain Flower is a server's app that sends every node as many bytes as ours does on average, and waits for as many; its
nodes run Flower's own commands. Ours is a whole round of DP-FTS-DE (64 features, one client a node), door and ledger
included, by ``privbo flower supernode``. Both are played in the same run on loopback, without TLS; figures are medians
after the first round. A round's processor is that of all processes, the SuperLink's and the nodes'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks._flower_rounds import guarded
from benchmarks._held import Meter, held
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
    moments = [time.monotonic()]
    for turn in range({rounds}):
        nodes = grid.get_node_ids()
        asked = [Message(filled(), dst_node_id=node, message_type="query", group_id=str(turn)) for node in nodes]
        answers = list(grid.send_and_receive(asked, timeout=1800))
        assert len(answers) == {nodes} and all(answer.has_content() for answer in answers)
        moments.append(time.monotonic())
    with open({out!r}, "w") as file:
        json.dump(moments, file)


@client.query()
def answer(message, context):
    return Message(filled(), reply_to=message)


def filled():
    return RecordDict({{"filled": ConfigRecord({{"bytes": bytes({n_bytes})}})}})
"""


@dataclass(frozen=True)
class Side:
    """A round of one side: wall and CPU seconds, and GiB of all its processes."""

    seconds: float
    processor: float
    memory: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.processor:.2f} s of processor, {self.memory:.1f} GiB"


def beside(nodes: int, rounds: int) -> str:
    """Play both, and say what came out."""
    found = guarded(0, regions=1, rounds=rounds, clients=1, sites=nodes)
    ours = Side(found.seconds, found.processor, found.memory)
    n_bytes = round(found.n_bytes / (2 * nodes * len(found.questions)))
    theirs = plain(nodes, rounds, n_bytes)
    return (
        f"{nodes} nodes, {n_bytes} bytes a message, per round: {ours}; plain Flower {theirs}: "
        f"{ours.seconds / theirs.seconds:.2f} times (the bar is 1.3), processor {ours.processor / theirs.processor:.2f}"
    )


def plain(nodes: int, rounds: int, n_bytes: int) -> Side:
    """A round of plain Flower."""
    with tempfile.TemporaryDirectory() as folder:
        app, out = Path(folder) / "app", Path(folder) / "moments.json"
        write_app(app, n_sites=nodes, clients_per_site=1, epsilon=8.0, delta=1e-5)
        (app / "federated_app.py").write_text(PLAIN.format(nodes=nodes, rounds=rounds, n_bytes=n_bytes, out=str(out)))
        with Deployment(root=Path(folder) / "flower", forked=False) as deployment:
            deployment.start_superlink()
            for node in range(nodes):
                deployment.start_supernode(f"site{node}", app / "sites" / f"site{node}" / "site.toml")
            with Meter(deployment) as meter:
                deployment.play(app, timeout=3600)
            memory = held(deployment)
        moments = json.loads(out.read_text())
        seconds = float(statistics.median(np.diff(moments)[1:]))
        return Side(seconds=seconds, processor=meter.between(moments), memory=memory)


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
