"""What a server asks before a run is made: who would answer it. No client's value decides, and nothing is charged."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Message

import privbo as pb
from privbo.flower import server
from privbo.flower.party import read_site
from privbo.plans.plan import Plan
from privbo.protocol.files import read_lines
from privbo.protocol.messages import FloatArray, IntArray
from privbo.testing import toy_problem
from tests.cli.test_cli import privbo
from tests.deployment.federations import SITES, Federation, change, make, node_key
from tests.deployment.grid import LoopGrid, Node
from tests.deployment.reading import releases

CALLED: list[str] = []


def raising_factory() -> pb.Problem:
    CALLED.append("factory")
    raise ValueError("patient 17 is ill")


def refused(federation: Federation, nodes: list[Node] | None = None) -> str:
    """The words of a run that was not made."""
    grid = LoopGrid(federation.nodes() if nodes is None else nodes)
    with pytest.raises(pb.RunError) as caught:
        server.serve(grid, federation.home, federation.run)
    assert not federation.run.path.exists()  # no ledger, no charge, nothing to resume
    assert not any(node.asked for node in grid.nodes.values())
    assert b"patient" not in b"".join(repr(vars(reply)).encode() for reply in grid.greetings)
    return str(caught.value)


def unapproved(federation: Federation) -> None:
    path = federation.home / "run.toml"
    path.write_text(path.read_text() + "\n# read by nobody\n")


def without_policy(federation: Federation) -> None:
    for site in federation.sites:
        own = tomllib.loads(federation.site_file(site).read_text())
        federation.site_file(site).write_text(tomli_w.dumps({k: v for k, v in own.items() if k != "policy"}))


def other_code(federation: Federation, factory: str) -> None:
    for site in federation.sites:
        change(federation.site_file(site), problem={"factory": factory})


LACKS = {
    "a module": (lambda one: other_code(one, "no_such_ward:problem"), "its objective can't be imported there"),
    "a function": (lambda one: other_code(one, "tests.deployment.test_ready:none"), "its objective can't be imported"),
    "approval": (unapproved, "it has not approved these files"),
    "a policy": (without_policy, "its policy refuses the run"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_a_run_that_too_few_sites_would_answer_is_not_made(lack: str, tmp_path: Path) -> None:
    federation = make(tmp_path)
    nodes = federation.nodes()
    spoil, words = LACKS[lack]
    spoil(federation)
    found = refused(federation, nodes)
    assert found.startswith("0 of 3 sites are ready and min_sites is 1 (north: ")
    assert found.count(words) == len(SITES)
    assert "no run was made, and nothing was charged" in found
    assert "Error" in (Path(read_site(federation.site_file("north")).directory) / "errors.log").read_text()
    assert not list(federation.root.glob("*/kept/_policy"))  # nor at a site


def test_nobody_connected_is_named_site_by_site(tmp_path: Path) -> None:
    keys = {site: node_key()[1] for site in SITES}
    federation = make(tmp_path, keys=keys, start_timeout=0.1)
    assert "(north: not connected; south: not connected; west: not connected)" in refused(federation, [])


def test_another_plan_than_the_servers_is_found_before_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server with another version of privbo: it computes other settings from the same files."""
    federation, terms_of = make(tmp_path), server.terms_of

    def of_another_version(plan: Plan, **named: Any) -> Any:
        return terms_of(plan, **named | {"settings": "0" * 64})

    monkeypatch.setattr(server, "terms_of", of_another_version)
    assert "computes another plan from them" in refused(federation)
    assert {row["field"] for row in read_lines(tmp_path / "north" / "kept" / "refused.jsonl")} == {"server's settings"}


@pytest.mark.parametrize("least", [1, 3])
def test_as_many_as_min_sites_are_enough(least: int, tmp_path: Path) -> None:
    federation = make(tmp_path, min_sites=least, rounds=1)
    change(federation.site_file("south"), problem={"factory": "no_such_ward:problem"})
    if least == 3:
        assert refused(federation).startswith("2 of 3 sites are ready and min_sites is 3 (south: ")
    else:
        federation.play()
        assert len(releases(federation)) == 1


def scored(clients: IntArray, units: FloatArray) -> FloatArray:
    CALLED.append("objective")
    return -((units - 0.5) ** 2).sum(axis=1)


def counted() -> pb.Problem:
    CALLED.append("factory")
    return toy_problem(score=scored)


def test_readiness_calls_nothing_of_the_sites_so_no_value_decides_it(tmp_path: Path) -> None:
    federation = make(tmp_path, factory="tests.deployment.test_ready:counted", min_sites=3)
    nodes, called = federation.nodes(), list[list[str]]()

    def noted(reply: Message, round_: int) -> Message:
        if round_ < 0:
            called.append(list(CALLED))
        return reply

    for node in nodes:
        node.tamper = noted
    CALLED.clear()
    federation.play(nodes)
    assert called == [[], [], []]
    assert {"factory", "objective"} <= set(CALLED)


def test_a_run_goes_on_where_the_data_cannot_be_read(tmp_path: Path) -> None:
    """Whether they can is a fact of clients: readiness must not depend on it."""
    federation = make(tmp_path, factory="tests.deployment.test_ready:raising_factory", rounds=1, min_sites=3)
    grid = federation.play()
    assert {answer["error"] for answer in grid.answers} == {"ValueError"}
    assert len(releases(federation)) == 1


def test_a_run_that_was_charged_goes_on_whoever_is_ready(tmp_path: Path) -> None:
    federation = make(tmp_path)

    class Stopping(LoopGrid):
        def push_messages(self, messages: Any) -> list[str]:
            listed = list(messages)
            if any(message.metadata.group_id == "1" for message in listed):
                raise KeyboardInterrupt
            return super().push_messages(listed)

    with pytest.raises(KeyboardInterrupt):
        server.serve(Stopping(federation.nodes()), federation.home, federation.run)
    other_code(federation, "no_such_ward:problem")
    grid = federation.play()
    assert not grid.greetings
    assert len(releases(federation)) == 4


@pytest.mark.deployment
def test_up_ends_with_2_where_no_node_can_import_the_objective(tmp_path: Path) -> None:
    home = tmp_path / "trial"
    privbo("flower", "init", str(home), "--epsilon", "8", "--delta", "1e-6")
    text = (home / "run.toml").read_text()
    (home / "run.toml").write_text(text.replace("objective:score", "no_such_ward:score"))
    words = [sys.executable, "-m", "privbo.cli", "flower", "up", str(home)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "0 of 3 sites are ready" in done.stdout + done.stderr
    assert "its objective can't be imported there" in done.stdout + done.stderr
    assert not (home / "run").exists()
