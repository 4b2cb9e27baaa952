"""What a server asks before a run is made: who would answer it. No client's value decides, and nothing is charged."""

import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

import privbo as pb
from privbo.cli.check import examined, tried_out
from privbo.flower import answers, messages, server
from privbo.flower.party import read_site
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, Standing
from privbo.protocol.problem import ProblemSource
from privbo.runs.sources import require_code
from privbo.testing import toy_problem
from tests.cli.test_cli import privbo
from tests.deployment.federations import POLICY, SITES, Federation, change, make, releases
from tests.deployment.grid import LoopGrid, Node, unavailable
from tests.deployment.test_grid import stopped

CALLED: list[str] = []


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


def other_code(federation: Federation, factory: str, *sites: str) -> None:
    for site in sites or federation.sites:
        change(federation.site_file(site), problem={"factory": factory})


LACKS = {
    "a module": (lambda one: other_code(one, "no_such_ward:problem"), "its objective is not found there"),
    "a module of a package": (lambda one: other_code(one, "tests.no_such:problem"), "its objective is not found there"),
    "a function": (lambda one: other_code(one, "tests.conformance.small:none"), "its objective is not found there"),
    "approval": (unapproved, "it has not approved these files"),
    "a policy": (lambda one: [change(path, policy=None) for path in one.party_files], "its policy refuses the run"),
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
    federation = make(tmp_path, keys=True, start_timeout=0.1)
    assert "(north: not connected; south: not connected; west: not connected)" in refused(federation, [])


def test_another_plan_than_the_servers_is_found_before_the_charge(tmp_path, monkeypatch) -> None:
    """As of a server with another version of privbo: it computes other settings from the same files."""
    federation, terms_of = make(tmp_path), server.terms_of
    another = {"settings": "0" * 64}
    monkeypatch.setattr(server, "terms_of", lambda plan, **named: terms_of(plan, **named | another))
    assert "computes another plan from them" in refused(federation)
    assert {row["field"] for row in read_lines(tmp_path / "north" / "kept" / "refused.jsonl")} == {"server's settings"}


# By case: the site's policy, what is another in run.toml, and the class of the site's error.
OWN_CODE: dict[str, tuple[dict | None, dict, str]] = {
    "not approved": (POLICY, {}, "RefusedError"),
    "no policy": (None, {}, "PolicyError"),
    "another algorithm": (POLICY | {"algorithms": ["fed-pne"]}, {}, "PolicyError"),
    "fewer rounds": (POLICY | {"max_rounds": 1}, {}, "PolicyError"),
    "a factory without facts": (POLICY, {"problem": {"factory": "own_code:problem"}}, "ConfigurationError"),
    "allowed": (POLICY, {}, "RefusedError"),  # the control: the question is of another run
}


@pytest.mark.parametrize("case", OWN_CODE)
def test_no_code_that_a_run_names_is_imported_before_the_sites_policy_allows_it(case, tmp_path, monkeypatch) -> None:
    """Planted: a module next to the run's files leaves a trace where it is imported, at readiness or in a round."""
    policy, changes, error = OWN_CODE[case]
    federation, trace = make(tmp_path, {"type": "own_code:Canary"}, policy=policy), tmp_path / "imported"
    change(federation.home / "run.toml", **changes)
    words = f"open({str(trace)!r}, 'w').close()\nfrom tests.guardians.canary import Canary\nproblem = print\n"
    (federation.home / "own_code.py").write_text(words)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    grid = LoopGrid(federation.nodes(approved=case != "not approved"))
    place = Standing(plan="", sequence=0, head="")
    asked = {"run": "run", "public_seed": 1, "broadcast": Broadcast(round=0), "released": True, "chain": b""}
    for question in (messages.ReadinessQuestion(terms={}), messages.Question(**asked, standing=place)):
        message = Message(messages.encode(question, b"nonce"), 100, f"query.{question.action}", group_id="-1")
        (reply,) = grid.pull_messages(grid.push_messages([message]))
        assert reply.content.config_records["answer"]["error"] == error
    assert trace.exists() == (case == "allowed")
    assert not [path for path in (tmp_path / "north" / "kept").iterdir() if path.is_dir()]  # nothing is made unasked


def test_people_are_told_that_their_policy_refuses_code_which_is_not_imported_to_price_it(tmp_path: Path) -> None:
    federation = make(tmp_path, {"type": "nowhere:Canary"}, policy=POLICY | {"algorithms": ["fed-pne"]})
    run_file, site = federation.home / "run.toml", federation.site_file("north")
    for found in (tried_out(run_file, [], show_private=False, site=site), examined(site, run_file, trust=True)[0]):
        assert not found.passed
        assert found.content["refused"] is True
        assert "its algorithm was not imported, so it has no price" in str(found.parts[0])
    change(run_file, problem={"factory": "nowhere:problem", "space": {"x": {"type": "real", "low": 0, "high": 1}}})
    with pytest.raises(pb.ConfigurationError, match="must state n_clients and space next to factory='nowhere:problem'"):
        examined(site, run_file, trust=True)


LIES = server._LACKS | dict.fromkeys(("\x1b[2Jpatient 17", "patient", ""), "another error")


@pytest.mark.parametrize("told", LIES)
def test_no_word_of_a_sites_own_is_repeated(told: str, tmp_path: Path) -> None:
    """Its reply is free text, and could hold a patient's name or move the terminal's cursor."""
    federation = make(tmp_path)

    def lie(reply: Message, _: int) -> Message:
        fields = dict(reply.content.config_records["answer"])
        reply.content = RecordDict({"answer": ConfigRecord(fields | {"error": told})})
        return reply

    grid = LoopGrid(federation.nodes(tamper=lie))
    with pytest.raises(pb.RunError) as caught:
        server.serve(grid, federation.home, federation.run)
    assert str(caught.value).count(f"north: {LIES[told]}") == 1
    assert "patient" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_node_without_the_question_is_of_another_version(tmp_path: Path) -> None:
    federation = make(tmp_path, keys=True)
    nodes = federation.nodes(tamper=lambda reply, _: unavailable(reply))
    assert refused(federation, nodes).count("its privbo is of another version, or its app failed") == len(SITES)


def test_a_question_of_another_format_names_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, act = make(tmp_path), messages.decode

    def of_an_older(kind: type, content: RecordDict):
        with mock.patch.object(messages, "_FORMAT", 5):
            return act(kind, content)

    monkeypatch.setattr(answers, "decode", of_an_older)
    assert "its privbo is of another version (use one)" in refused(federation)


def test_questions_live_as_long_as_their_replies_are_awaited(tmp_path: Path) -> None:
    federation, lives = make(tmp_path, rounds=1, start_timeout=7.0, round_timeout=60.0), dict[str, float]()
    federation.play(pushed=lambda messages: lives.update({m.metadata.group_id: m.metadata.ttl for m in messages}))
    assert (lives["-1"], lives["0"]) == (7.0, 60.0)


def test_a_site_whose_disk_is_full_still_says_what_it_lacks(tmp_path: Path) -> None:
    federation = make(tmp_path)
    other_code(federation, "no_such_ward:problem")
    with mock.patch.object(answers, "keep_refusal", side_effect=OSError(28, "No space left on device")):
        assert refused(federation).count("its objective is not found there") == len(SITES)


def test_what_simulated_sites_write_before_the_run_is_in_a_private_folder(tmp_path: Path) -> None:
    federation = make(tmp_path)
    nodes = federation.nodes()
    for index, node in enumerate(nodes):  # as Flower's simulation names them; without a policy
        node.node_config = {"partition-id": index}
    with pytest.raises(pb.RunError, match="its policy refuses the run"):
        server.serve(LoopGrid(nodes), federation.home, federation.run)
    private = federation.run.path / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert (private / "README.txt").read_text().startswith("PRIVATE.")
    assert len(list(private.glob("sites/*/errors.log"))) == len(SITES)
    federation.play()  # and the run can be made there once they are ready
    assert len(releases(federation)) > 0


MODULES = {
    "raises": "DATA = open('/no/such/patient')\n\ndef problem():\n    return None\n",
    "raises without the name": "from os.path import *\n1 / 0\n",
    "makes names": "globals()['problem'] = print\n",
    "of any name": "def __getattr__(name):\n    return print\n",
    "imports": "import no_such_library as problem\n",
    "no such name": None,
    "no Python": None,
}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("package", ["", "ready_package."])
def test_only_a_missing_module_or_name_is_not_ready_and_nothing_is_executed(kind, package, tmp_path, monkeypatch):
    content = {"no such name": "1 / 0\nPROBLEM = 3\n", "no Python": "def problem(:\n"}.get(kind) or MODULES[kind]
    name = f"ready_{list(MODULES).index(kind)}"
    folder = tmp_path / "code" / package.rstrip(".")
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n{content}")
    if package:
        (folder / "__init__.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path / "code")
    source = ProblemSource(factory=f"{package}{name}:problem")
    if MODULES[kind] is None:
        with pytest.raises(pb.ConfigurationError, match=f"problem.factory='{package}{name}:problem'"):
            require_code(source)
    else:
        require_code(source)
    assert not (tmp_path / "executed").exists()
    assert f"{package}{name}" not in sys.modules


@pytest.mark.parametrize("least", [1, 3])
def test_as_many_as_min_sites_are_enough(least: int, tmp_path: Path) -> None:
    federation = make(tmp_path, min_sites=least, rounds=1)
    other_code(federation, "no_such_ward:problem", "south")
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
    called = list[list[str]]()

    def noted(reply: Message, round_: int) -> Message:
        if round_ < 0:
            called.append(list(CALLED))
        return reply

    CALLED.clear()
    federation.play(federation.nodes(tamper=noted))
    assert called == [[], [], []]
    assert {"factory", "objective"} <= set(CALLED)


def test_a_run_that_was_charged_goes_on_whoever_is_ready(tmp_path: Path) -> None:
    federation = make(tmp_path)
    stopped(federation)
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
    assert "its objective is not found there" in done.stdout + done.stderr
    assert not (home / "run").exists()
