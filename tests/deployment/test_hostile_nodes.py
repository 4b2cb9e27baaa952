"""Hostile answers through real processes: nothing crashes, and what is no answer is an absence."""

from pathlib import Path

import pytest

from privbo.protocol.files import read_lines
from tests.builders import same_releases
from tests.deployment.federations import Federation, make, releases
from tests.deployment.grid import unavailable
from tests.deployment.hostile import REPLIES, VECTORS, hostile_app
from tests.deployment.processes import deployed

BATCH, ODD = len(VECTORS), 5
N_CLIENTS = 3 + BATCH + ODD
SITES = {"honest": "0-2", "batch": f"3-{BATCH + 2}"} | {f"odd{i}": str(BATCH + 3 + i) for i in range(ODD)}
NODES: dict[str, dict[str, int]] = {"honest": {}, "batch": {"vectors": 1}}
NODES |= {f"odd{i}": {"replies": i, "step": ODD} for i in range(ODD)}


def hostile_federation(root: Path, **changes) -> Federation:
    return make(
        root,
        sites=SITES,
        n_clients=N_CLIENTS,
        arguments={"n_clients": N_CLIENTS},
        algorithm={"type": "fed-pne", "horizon": 6000, "c": 0.02, "release_when": "always"},
        rounds=5,
        **changes,
    )


def honest_alone(root: Path) -> list:
    """The same run where the hostile clients are absent."""
    federation = hostile_federation(root)
    nodes = federation.nodes()
    for node in nodes[1:]:
        node.tamper = lambda reply, _: unavailable(reply)
    federation.play(nodes)
    return releases(federation)


def check(federation: Federation, root: Path) -> None:
    made, expected = releases(federation), honest_alone(root)
    assert len(made) > 1
    same_releases(made, expected)
    assert not Path("/tmp/owned").exists()  # noqa: S108 (what a pickle that runs would leave)
    public = filter(Path.is_file, federation.run.path.iterdir())
    assert not any(b"patient" in path.read_bytes() for path in public)


def test_every_hostile_answer_is_an_absence(tmp_path: Path) -> None:
    federation = hostile_federation(tmp_path / "hostile")
    nodes = federation.nodes()
    app = hostile_app(federation.home)
    for node, how in zip(nodes, NODES.values(), strict=True):
        node.app = app
        node.node_config = node.node_config | how | {"alive": 1}
    federation.play(nodes)
    check(federation, tmp_path / "alone")


@pytest.mark.deployment
def test_hostile_processes_crash_nothing(tmp_path: Path) -> None:
    federation = hostile_federation(tmp_path / "hostile", round_timeout=120.0, start_timeout=600.0)
    app = federation.home / "federated_app.py"
    imports = "from tests.deployment.hostile import hostile_app as client_app\n"
    text = app.read_text().replace("import client_app, server_app", f"import server_app\n{imports}")
    app.write_text(text)
    with deployed(federation) as deployment:
        for name, how in NODES.items():
            settings = " ".join(f"{key}={value}" for key, value in how.items())
            deployment.start_supernode(name, federation.site_file(name), config=settings)
        deployment.play(federation.home, timeout=1500)
    check(federation, tmp_path / "alone")
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert len(rows) * ODD >= len(REPLIES)  # every reply of the list was sent
    assert all("honest" in row["answered"] for row in rows)
