"""Sampled clients asked alone, over a channel declared to hide it, and against whom the sampling then holds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from privbo.door.noise import SimulatedNoise
from privbo.door.sampling import Sample
from privbo.flower.server import serve
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_lines
from privbo.reports.report import report
from privbo.runs.manifest import derive_seed
from privbo.runs.record import load
from tests.deployment.federations import Federation, make, node_key
from tests.deployment.grid import LoopGrid, Node
from tests.deployment.reading import releases

N = 7
ALONE = {f"phone{client}": str(client) for client in range(N)}
HIDDEN = {"noise_multiplier": 1.0, "noise": "simulation", "sample_rate": 0.4, "channel": "anonymous"}


def hidden(
    root: Path,
    *,
    sites: dict[str, str] = ALONE,
    times: bool = True,
    keys: bool = True,
    rounds: int = 3,
    **privacy: Any,
) -> tuple[Federation, list[Node]]:
    public = {site: node_key()[1] for site in sites} if keys else None
    federation = make(root, rounds=rounds, sites=sites, keys=public, privacy=HIDDEN | privacy)
    if times:
        path = federation.home / "run.toml"
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"times": {"round_seconds": 0.5}}))
    nodes = federation.nodes()
    for node, key in zip(nodes, (public or {}).values(), strict=False):
        node.public_key = key.encode()
    return federation, nodes


class Watched(LoopGrid):
    """Flower's grid as somebody sees it who watches the traffic."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(nodes)
        self.asked: dict[int, set[int]] = {}

    def push_messages(self, messages: Any) -> list[str]:
        listed = list(messages)
        for message in listed:
            self.asked.setdefault(int(message.metadata.group_id), set()).add(message.metadata.dst_node_id - 100)
        return super().push_messages(listed)


def test_who_is_not_drawn_is_not_asked_and_the_report_says_against_whom_that_holds(tmp_path: Path) -> None:
    federation, nodes = hidden(tmp_path)
    grid = Watched(nodes)
    serve(grid, federation.home, federation.run)
    made, root = releases(federation), derive_seed(federation.run.seed, "noise")
    sample = Sample(n_clients=N, sample_rate=0.4)
    drawn = [sample.draw(1, SimulatedNoise(root).stream(str(release.round)))[0] for release in made]
    assert [grid.asked.get(release.round, set()) for release in made] == [
        set(np.flatnonzero(d).tolist()) for d in drawn
    ]
    assert 0 < sum(map(sum, drawn)) < N * len(made)
    each = [row["n_participants"] for row in read_lines(federation.run.clipping_path)]
    assert each == [int(d.sum()) for d in drawn]
    assert [each.against for each in report(load(federation.run.path)).exposures] == ["readers", "traffic"]


def test_a_round_in_which_nobody_is_drawn_is_noise_and_goes_on(tmp_path: Path) -> None:
    federation, nodes = hidden(tmp_path, rounds=1, sample_rate=1e-6)
    grid = Watched(nodes)
    serve(grid, federation.home, federation.run)
    made = releases(federation)
    assert len(made) == 1
    assert grid.asked.keys() == {-1, 1}  # before the run, and local work at its end
    assert grid.asked[-1] == set(range(N))
    assert all(np.abs(release.values).max() < 8 * release.noise_stddev for release in made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": False}, "give every site a public_key"),
        ({"sites": {"ward": "0-1"} | {f"s{c}": str(c) for c in range(2, N)}}, "a site of its own"),
        ({"times": False}, "declare a grid"),
        ({"sampling": "fixed-size"}, "priced for coins alone"),
    ],
)
def test_a_channel_that_would_show_the_sample_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    federation, nodes = hidden(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=words):
        federation.play(nodes)
    assert not any(node.asked for node in nodes)
    assert not federation.run.ledger_path.exists()
