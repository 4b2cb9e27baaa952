"""A site's own disk, what leaves it, and who it is to the server."""

import dataclasses
import importlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

import privbo as pb
from accountant.ledger.chain import encode_rows
from privbo.flower import answers
from privbo.flower.answers import client_app
from privbo.flower.messages import Question, error_class
from privbo.flower.party import AppFiles, read_site, run_of
from privbo.flower.registry import Federation, SiteEntry, canonical_key
from privbo.flower.server import serve
from privbo.flower.site import SiteRecord, Wanted, keep_words
from privbo.guardians.ciphertexts import fresh_keys
from privbo.protocol.common import CHOSEN
from privbo.protocol.files import load_arrays, read_lines
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, Standing
from privbo.runs.best import common_at_site
from privbo.runs.manifest import RunDirectory
from privbo.runs.spec import parse_toml
from privbo.testing import toy_problem
from tests.accountant.builders import declared, gaussian
from tests.builders import ledger
from tests.conformance.cases import bumps, problem
from tests.deployment.federations import SITES, change, make, public_key, releases
from tests.deployment.grid import LoopGrid, Node

ASKED: list[int] = []


def counted(clients: IntArray, units: FloatArray) -> FloatArray:
    ASKED.append(len(clients))
    return bumps(clients, units)


def counting_problem(n_clients: int = 7) -> pb.Problem:
    return toy_problem(n_clients, score=counted)


class SecretOfPatientError(ValueError):
    """A class whose name says too much."""


def failing_problem() -> pb.Problem:
    raise SecretOfPatientError("patient 17 is ill")


def test_a_question_asked_twice_is_answered_with_the_same_bytes(tmp_path: Path) -> None:
    federation = make(tmp_path, factory="tests.deployment.test_site:counting_problem")
    nodes = federation.nodes()
    ASKED.clear()
    grid = federation.play(nodes)
    evaluations = len(ASKED)
    assert evaluations > 0
    node = nodes[1]
    replies = [reply for reply in grid.replies if reply.metadata.src_node_id == node.node_id]
    for asked, sent in zip(list(node.asked), replies, strict=True):
        again = node.handle(asked)
        assert again.content.config_records == sent.content.config_records
    assert len(ASKED) == evaluations  # a new process, and no new evaluation


LEDGER, EVENT = ledger(), gaussian(4.0)
PLAN = LEDGER.reserve(declared("run", 9, EVENT, noise_source="simulation"))
for number in range(9):
    LEDGER.charge(f"run/{number}", EVENT, run="run", noise_source="simulation")


def question(round_: int, arrays, dim: int = 2) -> Question:
    """A question with the rows of a ledger up to its round's charge behind it."""
    rows = LEDGER.book().rows[: round_ + 2]
    standing = Standing(plan=PLAN.digest, sequence=rows[-1].sequence, head=rows[-1].digest)
    broadcast = Broadcast(round=round_, arrays=arrays)
    return Question(
        run="run", public_seed=1, broadcast=broadcast, released=dim > 0, standing=standing, chain=encode_rows(rows)
    )


VECTORS = Wanted(dim=2, event="one", require_ledger=lambda plan, rows: None)


class Echo:
    clients = np.array([3, 4])

    def __init__(self) -> None:
        self.acted = 0

    def respond(self, broadcast: Broadcast) -> FloatArray:
        self.acted += 1
        return np.full((2, 2), float(broadcast.round))

    def snapshot(self):
        return {"acted": np.array(self.acted)}

    def restore(self, snapshot) -> None:
        self.acted = int(snapshot["acted"])

    def history(self):
        return pb.run(problem(), pb.FedPNE(horizon=400, c=0.02), privacy=pb.NoPrivacy(), rounds=1, seed=1).clients


def test_a_round_is_not_asked_in_two_ways_nor_after_it_is_over(tmp_path: Path) -> None:
    record = SiteRecord.open(tmp_path, "run")
    first = question(2, {"x": np.zeros(3)})
    vectors, receipt = record.answer(first, VECTORS, Echo())
    again, signed = SiteRecord.open(tmp_path, "run").answer(first, VECTORS, Echo())
    np.testing.assert_array_equal(again["vectors"], vectors["vectors"])
    assert signed == receipt
    for other in (
        question(2, {"x": np.ones(3)}),
        question(2, {"y": np.zeros(3)}),
        dataclasses.replace(first, public_seed=2),
    ):
        with pytest.raises(pb.RunError, match="another way"):
            record.answer(other, VECTORS, Echo())
    with pytest.raises(pb.RunError, match="is over"):
        record.answer(dataclasses.replace(first, broadcast=Broadcast(round=1, arrays={})), VECTORS, Echo())
    kept = load_arrays(tmp_path / "run" / "sent" / "000002.npz")
    np.testing.assert_array_equal(kept["vectors"], vectors["vectors"])
    assert record.releases(but=3) == {"one": 1}
    assert not record.releases(but=2)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def begun(folder: Path, own: Echo, wanted: Wanted = VECTORS, *, first: bool) -> SiteRecord:
    """A run's folder at a site, perhaps after a round."""
    record = SiteRecord.open(folder, "run")
    if not first:
        record.answer(question(1, {}), wanted, own)
    return record


class Fails(Echo):
    """Clients that raise once they have acted, as hostile questions may make them by what they know."""

    def respond(self, broadcast: Broadcast) -> FloatArray:
        if super().respond(broadcast)[0, 0] == 2.0:
            raise ValueError("a private value")
        return np.ones((2, 2))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_hidden", [True, False])
def test_clients_that_raise_are_absent_where_the_server_must_not_tell(is_hidden, first, tmp_path) -> None:
    wanted = dataclasses.replace(VECTORS, is_hidden=is_hidden)
    record = begun(tmp_path, Fails(), wanted, first=first)
    if not is_hidden:
        with pytest.raises(ValueError, match="a private value"):
            record.answer(question(2, {}), wanted, Fails())
        return
    made, _ = record.answer(question(2, {}), wanted, Fails())
    assert np.isnan(made["vectors"]).all()
    assert load_arrays(tmp_path / "run" / "state" / "000002.npz")["acted"] == 1 - first  # as before the round
    with pytest.raises(pb.RunError, match="another way"):
        record.answer(question(2, {"x": np.ones(1)}), wanted, Fails())
    assert "a private value" in (tmp_path / "run" / "errors.log").read_text()


@pytest.mark.parametrize("first", [True, False])
def test_a_round_whose_answer_was_never_kept_is_acted_on_from_the_state_before_it(first: bool, tmp_path: Path) -> None:
    record = begun(tmp_path, Echo(), first=first)
    # Its state was written, its answer was not.
    killed = dataclasses.replace(VECTORS, send=mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        record.answer(question(2, {}), killed, Echo())
    assert (tmp_path / "run" / "state" / "000002.npz").exists()
    again = Echo()
    record.answer(question(2, {}), VECTORS, again)
    assert again.acted == 2 - first
    assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == ["000002.npz"]


def test_processes_of_one_site_agree_on_its_seed(tmp_path: Path) -> None:
    for attempt in range(20):
        record = SiteRecord.open(tmp_path, f"run-{attempt}")
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda _, record=record: record.seed(None), range(8)))) == 1


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "x" * 300, "a\0b", "signing.key", "errors.log"])
def test_a_server_cannot_name_a_folder_of_its_choice(name: str, tmp_path: Path) -> None:
    with pytest.raises(pb.RunError, match="plain name"):
        SiteRecord.open(tmp_path, name)


def test_a_site_that_fails_sends_the_class_of_its_error_and_nothing_else(tmp_path, monkeypatch) -> None:
    """Whether a factory or an import can read its data is a fact of clients: all are ready, and the run goes on."""
    federation = make(tmp_path, rounds=1, min_sites=3, factory="tests.deployment.test_site:failing_problem")
    (tmp_path / "ward_at_top.py").write_text("DATA = open('/no/such/patient')\n\ndef problem():\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    change(federation.site_file("south"), problem={"factory": "ward_at_top:problem"})
    replies = federation.play().replies
    assert replies
    for reply in replies:
        assert not reply.has_error()
        fields = dict(reply.content.config_records["answer"])
        assert fields["error"] == ("ConfigurationError" if fields["site"] == "south" else "ValueError")
        assert set(fields) == {"site", "nonce", "error"}
        assert b"patient" not in repr(reply).encode().lower()
    log = next((tmp_path / "north" / "kept").glob("*/errors.log"))
    assert "patient 17 is ill" in log.read_text()
    public = [path for path in federation.run.path.rglob("*") if path.is_file()]
    assert not any(b"patient" in path.read_bytes().lower() for path in public)
    assert len(releases(federation)) == 1


def illegible(client: int, params) -> float:
    if client == 0:
        raise ValueError("patient \udcff.csv")
    if client in (3, 5):  # only in processes of their own
        time.sleep(600) if client == 3 else os._exit(3)
    return 1.0


def illegible_problem() -> pb.Problem:
    return pb.Problem(space=problem().space, objective=illegible, n_clients=7, name="bumps")


def test_no_clients_words_silence_and_no_limited_client_holds_up_its_site_mates(tmp_path: Path) -> None:
    federation = make(tmp_path, "dp-fts-de", rounds=1, factory="tests.deployment.test_site:illegible_problem")
    change(federation.home / "run.toml", evaluation_seconds=0.2)
    assert [answer.get("error") for answer in federation.play().answers] == [None] * 6
    assert r"patient \udcff.csv" in next((tmp_path / "north" / "kept").glob("*/errors.log")).read_text()
    (tmp_path / "file").touch()
    keep_words(tmp_path / "file", "no folder, as no space on the disk")


def test_a_site_whose_process_ends_says_so_to_its_own_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make(tmp_path, rounds=1)
    ended = mock.Mock(side_effect=pb.RunError("the site's process ended before it answered"))
    monkeypatch.setattr(answers, "fork_server", lambda: SimpleNamespace(ask=ended))
    assert {answer["error"] for answer in federation.play().answers} == {"RunError"}
    assert "the site's process ended" in (tmp_path / "north" / "kept" / "errors.log").read_text()


def test_two_sites_with_one_directory_send_nothing_of_each_others_clients(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=1)
    for name in ("north", "south"):
        change(federation.site_file(name), directory=str(tmp_path / "shared"))
    found = {(answer["site"], answer.get("error")) for answer in federation.play().answers}
    assert found == {("north", None), ("south", "RunError"), ("west", None)}


@pytest.mark.parametrize("dim", [0, 2])
def test_a_common_setting_is_a_point_of_a_round_without_a_release(dim: int, tmp_path: Path) -> None:
    record = SiteRecord.open(tmp_path, "run")
    record.keep_facts(Echo.clients, problem().search_space)
    odd = ([np.nan, 0.5], [0.5], [[0.5, 0.5]], 0.5, [], ["a", "b"], [1j, 2], [0.5] * 3)
    for round_, point in enumerate([*odd, [0.5, 0.25]]):
        record.answer(question(round_, {CHOSEN: np.array(point)}, dim), dataclasses.replace(VECTORS, dim=dim), Echo())
        is_kept = point == [0.5, 0.25] and not dim
        assert common_at_site(record.path) == (problem().search_space.decode(point) if is_kept else None)
    for damaged in ("{}", '{"unit": [0.5]}'):
        (record.path / "common.json").write_text(damaged)
        with pytest.raises(pb.RunError, match="holds no point"):
            common_at_site(record.path)


def test_error_classes_are_pythons_or_ours() -> None:
    assert error_class(SecretOfPatientError()) == "ValueError"
    assert error_class(pb.ConfigurationError()) == "ConfigurationError"
    assert error_class(type("Sneaky", (Exception,), {"__module__": "elsewhere"})()) == "Exception"
    assert error_class(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_every_client_sends_the_same_size_whether_it_knows_anything_or_not(tmp_path: Path) -> None:

    def sizes(factory: str):
        replies = make(tmp_path / factory[-8:], "dp-fts-de", rounds=1, factory=factory).play().replies
        sent = {(one.metadata.src_node_id, one.metadata.group_id): one.content.config_records for one in replies}
        return {name: list(map(len, records["answer"]["vectors"])) for name, records in sent.items()}

    assert sizes("tests.conformance.small:problem") == sizes("tests.deployment.test_site:silent_problem")


def silent_problem() -> pb.Problem:
    return toy_problem(score=lambda clients, _: np.full(len(clients), np.nan))


@pytest.mark.parametrize("noise", ["simulation", "secure"])
def test_sites_draw_their_own_seeds_unless_a_simulation_names_one(noise: str, tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 1.0, "noise": noise}
    seed = 3 if noise == "secure" else None  # the seed of a private run stays with the server
    federation = make(tmp_path, "dp-fts-de", seed=seed, rounds=1, privacy=privacy)
    federation.play()
    seeds = [next((tmp_path / site / "kept").glob("*/seed.json")).read_text() for site in SITES]
    assert len(set(seeds)) == len(SITES)


def test_a_site_with_another_problem_answers_nothing(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=1)
    site, files = read_site(federation.site_file("north")), AppFiles.read(federation.home)
    assert run_of(files, site).own_spec.problem.n_clients == 7
    other = dataclasses.replace(files, run=files.run.replace(b"high = 10.0", b"high = 5.0"))
    with pytest.raises(pb.ConfigurationError, match="same space"):
        _ = run_of(other, site).own_spec


def pem(line: str) -> bytes:
    key = serialization.load_ssh_public_key(line.encode())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_with_keys_a_node_is_the_site_of_its_key_whatever_it_says(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=1, keys=True)
    nodes = federation.nodes()
    impostor = federation.nodes()[0]
    impostor.node_id, impostor.public_key = 999, public_key().encode()
    nodes[1].node_config = nodes[0].node_config  # south answers with north's file
    federation.play([impostor, *nodes])
    assert impostor.asked == []
    (first, *_) = read_lines(federation.run.private / "transport.jsonl")
    assert first["asked"] == 3
    assert first["refused"] == {"foreign client": 3}


def sited(*sites: tuple[str, str | None]) -> Federation:
    """Sites a, b, ... with their clients and keys."""
    entries = {name: SiteEntry(clients=text, public_key=key) for name, (text, key) in zip("abc", sites, strict=False)}
    return Federation(sites=entries)


def test_registries_that_do_not_fit_are_refused() -> None:
    one, two = public_key(), public_key()
    for n_clients, sites, words in (
        (3, [("0-1", None), ("1-2", None)], "exactly one site"),
        (3, [("0-1", None)], "exactly one site"),
        (2, [("0", one), ("1", None)], "no public key"),
        (2, [("0", one), ("1", one)], "same public key"),
        (1, [("0", "rubbish")], "neither"),
        *((1, [(text, None)], "numbers and ranges") for text in ("", "a", "1-", "-1", "1-b")),
        *((1, [(text, None)], "numbers and ranges") for text in ("0-99999999999", "0-" + "9" * 5000)),
        (10**12, [("0", None)], "exactly one site"),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            sited(*sites).checked(n_clients)
    entry, cards = SiteEntry(clients="0"), [fresh_keys().card for _ in range(2)]
    twice = dataclasses.replace(cards[0], sealing=cards[1].sealing)
    for name, changes, words in (
        ("a", {"min_sites": 2}, "min_sites=2 of 1 sites"),
        ("a", {"guardians": {"one": cards[1], "two": twice}}, "same public key"),
        ("a", {"guardians": {"St. John": cards[0]}}, r"names='St\. John'"),
        ("", {}, "names=''"),
        ("\x1b[2J", {}, "names="),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            Federation(sites={name: entry}, **changes).checked(1)
    for text in ("x = " + "[" * 5000, "x = " + "9" * 5000):
        with pytest.raises(pb.ConfigurationError, match="is not TOML"):
            parse_toml(text.encode(), "run.toml")
    federation = sited(("0", one), ("1", two)).checked(2)
    assert federation.site_with(pem(two)) == "b"
    assert federation.site_with(b"rubbish") is None


def test_a_node_that_names_no_site_says_so_to_nobody_but_its_class(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=1)
    nodes = federation.nodes()
    nodes[0].node_config = {}
    federation.play(nodes)
    (first, *_) = read_lines(federation.run.private / "transport.jsonl")
    assert first["refused"] == {"raised ConfigurationError": 1}


# ---- the worked example: three hospitals of ten wards, with keys, data folders and settings made by its script

EXAMPLE = Path(__file__).parents[2] / "experiments" / "examples" / "hospitals_flower"
HOSPITALS = ("north", "south", "west")


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the script makes, with two rounds instead of eight."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    importlib.import_module("make_federation").main(tmp_path / "hospitals")
    run = tmp_path / "hospitals" / "server" / "app" / "run.toml"
    run.write_text(run.read_text().replace("rounds = 8", "rounds = 2"))
    importlib.import_module("make_federation").approve(tmp_path / "hospitals")
    yield tmp_path / "hospitals"
    for name in ("make_federation", "ward_model", "run", "best"):
        sys.modules.pop(name, None)


def test_the_wards_tune_together_over_the_grid(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = client_app(federation / "server" / "app")
    nodes = [
        Node(
            node_id=index,
            app=app,
            node_config={"site": str(federation / name / "site.toml")},
            public_key=pem((federation / "keys" / f"{name}.pub").read_text()),
        )
        for index, name in enumerate(HOSPITALS, start=1)
    ]
    home = RunDirectory(federation / "server" / "run")
    serve(LoopGrid(nodes), federation / "server" / "app", home)
    check(federation)
    importlib.import_module("best").main(federation / "north")
    assert capsys.readouterr().out.count("ward ") >= 10


def check(federation: Path) -> None:
    home = RunDirectory(federation / "server" / "run")
    rows = read_lines(home.private / "transport.jsonl")
    assert [row["answered"] for row in rows] == [list(HOSPITALS)] * 3
    assert not any(row["refused"] for row in rows)
    assert home.report_path.exists()
    for name in HOSPITALS:
        (kept,) = (federation / name / "kept").glob("*/evaluations.npz")
        values = load_arrays(kept)["values"]
        assert values.shape == (10, 4)  # two initial points and two rounds
        assert np.isfinite(values).all()
    assert len({canonical_key((federation / "keys" / f"{n}.pub").read_bytes()) for n in HOSPITALS}) == 3


@pytest.mark.deployment
def test_the_example_runs_with_tls_and_keys(federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE.parents[2]))
    importlib.import_module("run").main(federation)
    check(federation)
