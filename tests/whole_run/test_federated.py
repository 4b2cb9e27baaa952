"""Neighbouring worlds of a federation: what the server leaves and says differs in each round's sum alone.

Clinic 2 has a site of its own. In its other worlds its objective answers otherwise or fails, or its machine is away,
sends rubbish, or loses its replies. ``make slow`` plays them through Flower's messages without sockets, and two pairs
of them through its processes on loopback.
"""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from flwr.app import Message, RecordDict

from tests.cli.test_cli import privbo
from tests.deployment.federations import Federation, make
from tests.deployment.grid import Node
from tests.deployment.processes import deployed, start_site
from tests.whole_run import clinic, fed_app
from tests.whole_run.worlds import Feed, Outcome, files_of, moved, older_objects_left_alone, same_secrets, world_of

SITES = {"north": "0-1", "single": "2", "west": "3-5"}
LOOKS = (
    ("report",),
    ("report", "--json"),
    ("ledger", "verify"),
    ("ledger", "export"),
    ("ledger", "receipt"),
    ("bundle",),
)


def lost(reply: Message, _: int) -> Message | None:
    return None


def rubbish(reply: Message, _: int) -> Message | None:
    reply.content = RecordDict()
    return reply


NODES: dict[str, Callable[[Node], None]] = {
    "away": lambda node: setattr_of(node, online=False),
    "loses": lambda node: setattr_of(node, tamper=lost),
    "rubbish": lambda node: setattr_of(node, tamper=rubbish),
}


def setattr_of(node: Node, **changes: Any) -> None:
    vars(node).update(changes)


def federation_of(root: Path, algorithm: str, **timeouts: float) -> Federation:
    shutil.rmtree(root, ignore_errors=True)
    return make(
        root,
        algorithm,
        privacy={"noise_multiplier": 1.0},
        factory="tests.whole_run.clinic:problem",
        sites=SITES,
        n_clients=clinic.N_CLIENTS,
        **{"round_timeout": 2.0, "start_timeout": 1.0} | timeouts,
    )


def looked_at(federation: Federation) -> dict[str, object]:
    """What the server's directory shows, and what commands say of it."""
    seen: dict[str, object] = {}
    home = federation.run.path
    (federation.run.private / "signing.key").write_bytes(bytes(range(32)))
    for look in ((), *LOOKS):
        if look:
            done = (
                privbo(*look[:1], *look[1:2], str(home))
                if look[0] == "ledger"
                else privbo(look[0], str(home), *look[1:])
            )
            gc.collect()  # as the end of a process
            seen[" ".join(look)] = (done.returncode, done.stdout, done.stderr)
        seen |= {f"{' '.join(look)}: {file}": found for file, found in files_of(home, {}, timed=not look)}
    return seen


def play(root: Path, algorithm: str, world: str, earlier: Outcome | None = None) -> Outcome:
    """Play a federation without sockets."""
    feed, said = Feed(None if earlier is None else earlier.releases), io.StringIO()
    clinic.forget()
    with world_of(world), same_secrets(), feed.at_work(), older_objects_left_alone():
        federation = federation_of(root, algorithm)
        nodes = federation.nodes()
        NODES.get(world, lambda node: None)(nodes[list(SITES).index("single")])
        elsewhere = mock.patch.object(clinic, "talk")  # a site's terminal is its own
        with elsewhere, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            federation.play(nodes)
        seen = looked_at(federation)
    return Outcome({"serve": said.getvalue()} | seen, feed.made, feed.drawn)


def play_processes(root: Path, algorithm: str, world: str, earlier: Outcome | None = None) -> Outcome:
    """Play a federation of Flower's own processes on loopback."""
    federation = federation_of(root, algorithm, round_timeout=600.0, start_timeout=600.0)
    # Flower installs a copy of the app; what is fed to it and what it makes stand beside the original.
    (federation.home / "federated_app.py").write_text(fed_app.APP.format(home=str(federation.home)))
    if earlier is not None:
        (root / fed_app.EARLIER).write_bytes(pickle.dumps(dict(earlier.releases)))
    with deployed(federation) as deployment:
        deployment.environment = {**deployment.environment, clinic.WORLD: world}
        for site in SITES:
            start_site(deployment, federation, site)
        deployment.play(federation.home, timeout=900)
    releases, drawn = pickle.loads((root / fed_app.MADE).read_bytes())  # noqa: S301 (our own server wrote it)
    return Outcome(looked_at(federation), releases, drawn)


WORLDS = [("plain", "absent"), ("absent", "changed"), ("absent", "hostile"), ("absent", "away"), ("plain", "rubbish")]
WORLDS += [("plain", "loses"), ("plain", "slow")]


@pytest.mark.slow
@pytest.mark.parametrize("worlds", WORLDS, ids=str)
@pytest.mark.parametrize("algorithm", ["fed-pne", "dp-fts-de"])
def test_nothing_but_a_rounds_sum_tells_the_worlds_of_a_federation_apart(
    algorithm: str, worlds: tuple[str, str], tmp_path: Path
) -> None:
    first = play(tmp_path / "world", algorithm, worlds[0])
    second = play(tmp_path / "world", algorithm, worlds[1], first)
    assert first.drawn_again == second.drawn_again == []
    assert first.differences(second) == []
    moves = moved(first, second)
    assert max(moves) <= 1 + 1e-6
    if worlds[1] in ("absent", "changed", "rubbish", "loses"):
        assert max(moves) > 0, "the worlds are one"


@pytest.mark.slow
@pytest.mark.deployment
@pytest.mark.parametrize("worlds", [("plain", "absent"), ("absent", "hostile")], ids=str)
def test_nothing_but_a_rounds_sum_tells_the_worlds_of_real_processes_apart(
    worlds: tuple[str, str], tmp_path: Path
) -> None:
    first = play_processes(tmp_path / "world", "fed-pne", worlds[0])
    second = play_processes(tmp_path / "world", "fed-pne", worlds[1], first)
    assert first.drawn_again == second.drawn_again == []
    assert first.differences(second) == []
    assert max(moved(first, second)) <= 1 + 1e-6
