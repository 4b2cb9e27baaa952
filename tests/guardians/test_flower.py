"""Guardians over Flower's message API, without sockets: the same bytes that real nodes exchange."""

import dataclasses
import itertools
import shutil
import time
from unittest import mock

import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import privbo as pb
from accountant.ledger import Ledger
from accountant.verify.auditor import verify_bundle
from privbo.door.noise import SecureNoise
from privbo.door.shares import expand, own_units, split
from privbo.flower import answers
from privbo.flower.messages import GuardianQuestion, decode, encode, nonce_of
from privbo.flower.party import read_party
from privbo.flower.registry import public_spec, read_federation, require_guardians
from privbo.flower.scaffold import write_app
from privbo.guardians.ciphertexts import guardian_keys
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Setting
from privbo.reports.bundle import write_bundle
from privbo.reports.report import report
from privbo.runs.record import load
from tests.conformance.cases import ROUNDS, problem
from tests.deployment.federations import KINDS, Federation, change, make, releases, require_same
from tests.deployment.grid import LoopGrid, Node, unavailable
from tests.deployment.test_lies import put, sent_vectors
from tests.guardians.canary import CANARY, Canary

NAMES = ("guardian1", "guardian2")
SECURE = {"noise_multiplier": 1.0, "trust": "guardians"}
SEEDED = SECURE | {"noise": "simulation"}


def guarded(root, algorithm: str | dict = "fed-pne", **changes) -> Federation:
    """A federation of three sites and two guardians; two rounds unless told otherwise."""
    settings = {"privacy": SECURE, "rounds": 2, "start_timeout": 60.0} | changes
    return make(root, algorithm, guardians=NAMES, **settings)


def guardian_ledger(federation: Federation, name: str) -> Ledger:
    (path,) = (federation.root / name / "kept").glob("federated-*/ledger.sqlite")
    return Ledger.open(path)


@pytest.mark.parametrize("algorithm", [pytest.param("dp-fts-de", marks=pytest.mark.slow), "fed-pne"])
def test_the_grid_gives_the_releases_of_guardians_in_one_process(algorithm: str, tmp_path) -> None:
    federation = guarded(tmp_path, algorithm, privacy=SEEDED, rounds=ROUNDS)
    federation.play()
    privacy = pb.Privacy(**SEEDED)
    require_same(federation, pb.run(problem(), KINDS[algorithm], privacy=privacy, rounds=ROUNDS, seed=3))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Federation, LoopGrid]:
    """A federation at its end, of which each client drew its own coins, and what its grid carried."""
    federation = guarded(tmp_path_factory.mktemp("finished"), privacy=SECURE | {"sample_rate": 0.5})
    return federation, federation.play()


def test_every_guardian_pays_and_signs_and_the_report_names_them(finished) -> None:
    federation, _ = finished
    record = load(federation.run.path)
    events = [entry.event for entry in record.ledger.entries()]
    assert len(events) > 0
    for name in NAMES:
        with guardian_ledger(federation, name) as book:
            assert [entry.event for entry in book.entries()] == events
            assert {entry.noise_source for entry in book.entries()} == {SecureNoise().name}
            assert book.guarantees
    lines = read_lines(federation.run.path / "guardians.jsonl")
    assert [row["guardian"] for row in lines] == list(NAMES) * len(events)
    assert "(guardians: guardian1, guardian2)" in report(record).trust
    found = verify_bundle(write_bundle(federation.run.path).path)
    assert found.verified, found.problems
    assert sum("of its own ledger" in words for words in found.statement) == len(NAMES)
    assert not list(federation.root.glob("guardian*/kept/*/rounds/*.npz"))


def test_ciphertexts_of_a_round_have_one_size_whatever_clients_take_part(finished) -> None:
    sizes: dict[str, set[int]] = {}
    for reply in finished[1].replies:
        sent = reply.content.config_records.get("answer", {}).get("vectors")
        sizes |= {reply.metadata.group_id: {*sizes.get(reply.metadata.group_id, ()), *map(len, sent)}} if sent else {}
    assert sizes
    assert all(len(found) == 1 for found in sizes.values())


def test_sites_send_no_vector_in_the_clear_where_their_run_has_guardians(finished) -> None:
    federation, _ = finished
    assert list(federation.root.glob("*/kept/*/sent/*.npz"))
    assert not sent_vectors(federation)


def held_by_server(federation: Federation) -> bytes:
    """Play; every byte that the server stored, sent or received."""
    sent = []
    grid = federation.play(pushed=sent.extend)
    stored = [path for path in sorted(federation.run.path.rglob("*")) if path.is_file() and path.suffix != ".html"]
    words = [item for one in (*sent, *grid.replies, *grid.greetings) for item in get_all_nested_objects(one).values()]
    return b"".join(path.read_bytes() for path in stored) + b"".join(item.deflate() for item in words)


def test_a_canary_is_in_no_byte_that_the_server_stored_sent_or_received(tmp_path) -> None:
    """Searched as float64, on the grid, and after taking every seed that the server holds off every word it holds."""
    with_canary = guarded(tmp_path, {"type": "tests.guardians.canary:Canary"}, rounds=1)
    held = held_by_server(with_canary)
    assert len(held) > 10_000
    plan = load(with_canary.run.path).plan
    setting = Setting(space=problem().search_space, n_clients=plan.n_clients, rounds=plan.releases, public_seed=0)
    request = next(Canary().server(setting).plan())
    mechanism = plan.privacy.mechanism(request, plan.noise_multiplier)
    row = own_units(mechanism, request, np.full((1, request.dim), CANARY), np.array([0]), SecureNoise())
    assert row[0, 0] > 1000
    assert not found_in(held, row)
    page = with_canary.run.path / "report.html"
    assert np.float64(CANARY).tobytes() not in page.read_bytes()
    # The search finds the number where shares are not sealed: one in the clear is enough, and so are both.
    ((masked, seed),) = split(row, 2)
    for leaked in (np.float64(CANARY).tobytes(), row.tobytes(), masked + b"xyz" + seed):
        assert found_in(held[:5000] + leaked + held[5000:9000], row)
    # The same search finds it where the server is trusted.
    trusted = make(tmp_path / "trusted", {"type": "tests.guardians.canary:Canary"}, privacy={"noise_multiplier": 1.0})
    assert np.float64(CANARY).tobytes() in held_by_server(trusted)


def found_in(held: bytes, row: np.ndarray) -> bool:
    """Whether a vector is in some bytes: as it was, on the grid, or under a mask whose seed is among them, anywhere."""
    units = row.astype(np.int64)
    if any(word in held for word in (np.float64(CANARY).tobytes(), units[0, :1].tobytes())):
        return True
    words = {held[at : at + 8] for at in range(len(held) - 7)}
    first = units.view(np.uint64)[0, :1]
    seeds = (held[at : at + 32] for at in range(len(held) - 31))
    return any((first - expand(seed, 1)).tobytes() in words for seed in seeds)


# --- who is not there -------------------------------------------------------------------------------------


def test_a_guardian_that_is_gone_stops_the_run_and_it_goes_on_when_it_returns(tmp_path) -> None:
    federation = guarded(tmp_path, start_timeout=3.0)
    with pytest.raises(RunError, match="guardian2 are not connected, or would not guard the run; no run was made"):
        federation.play(federation.everyone()[:-1])
    assert not federation.run.path.exists()
    change(federation.home / "federation.toml", start_timeout=120.0, round_timeout=0.5)
    with pytest.raises(RunError, match="no answer in time"):
        federation.play(lossy(federation, 3, lambda _: None))
    change(federation.home / "federation.toml", round_timeout=120.0)
    federation.play()
    for name in NAMES:
        with guardian_ledger(federation, name) as book:
            assert len(book.entries()) == len(releases(federation)) == len(book.release_rows())


def tampered(federation: Federation, tamper) -> list[Node]:
    """Everybody, and between the second guardian and the wire somebody."""
    *others, second = federation.everyone()
    return [*others, dataclasses.replace(second, tamper=tamper)]


def lossy(federation: Federation, at: int, lose=unavailable) -> list[Node]:
    """The second guardian acts and dies before its ``at``-th reply leaves."""
    left = itertools.count(1)
    return tampered(federation, lambda reply, _: reply if next(left) <= at else lose(reply))


def test_a_guardian_whose_answer_is_gone_draws_no_other(tmp_path) -> None:
    federation = guarded(tmp_path, rounds=1)
    *others, second = federation.everyone()
    federation.play([*others, second])
    (run,) = (tmp_path / "guardian2" / "kept").glob("federated-*")

    def refusals() -> list[str | None]:
        return [second.handle(asked).content.config_records["reply"].get("refusal") for asked in second.asked[1:3]]

    assert refusals() == [None, None]
    shutil.rmtree(run)
    assert refusals() == ["RunError"] * 2  # a server is told no path of a guardian's
    assert "has left this guardian and is gone from" in (run.parent / "errors.log").read_text()


# --- who lies -----------------------------------------------------------------------------------------------


def bent(node: Node, kind: str, change) -> Node:
    """A guardian whose questions of a kind the server has bent."""

    def handle(message, context: object):
        if "guard" in message.content.config_records:
            wanted, nonce = decode(GuardianQuestion, message.content), nonce_of(GuardianQuestion, message.content)
            if wanted.kind == kind:
                put(message, encode(dataclasses.replace(wanted, **change(wanted)), nonce))
        return node.app(message, context)

    return dataclasses.replace(node, app=handle)


def fewer_nodes(wanted):
    arrays = {**wanted.broadcast.arrays, **{name: wanted.broadcast.arrays[name][:1] for name in ("nodes", "pulls")}}
    return {"broadcast": dataclasses.replace(wanted.broadcast, arrays=arrays)}


BENDS = {
    "another round": ("receive", lambda wanted: {"broadcast": dataclasses.replace(wanted.broadcast, round=2)}),
    "another run": ("receive", lambda wanted: {"run": "another"}),
    "another seed": ("receive", lambda wanted: {"public_seed": wanted.public_seed + 1}),
    "fewer nodes": ("receive", fewer_nodes),
    "another seed with the statements": ("answer", lambda wanted: {"public_seed": wanted.public_seed + 1}),
    "fewer nodes with the statements": ("answer", fewer_nodes),
    "other statements": ("answer", lambda wanted: {"signed": [wanted.signed[0]] * 2}),
}


@pytest.mark.parametrize("bend", BENDS)
def test_a_server_that_shows_one_guardian_something_else_gets_no_release(bend: str, tmp_path) -> None:
    federation = guarded(tmp_path)
    first, second = federation.guardians()
    with pytest.raises(RunError, match="there is no release"):
        federation.play([*federation.nodes(), first, bent(second, *BENDS[bend])])
    for path in (federation.run.ledger_path, *(tmp_path / "guardian2" / "kept").glob("federated-*/ledger.sqlite")):
        with Ledger.open(path) as book:
            assert not book.release_rows()


def test_no_word_of_a_guardians_own_moves_the_servers_terminal(tmp_path) -> None:
    federation = guarded(tmp_path)

    def tamper(reply, round_: int):
        if round_ >= 0:
            reply.content.config_records["reply"]["refusal"] = "\x1b[2J"
        return reply

    with pytest.raises(RunError, match=r"round 0: \\x1b\[2J; there is no release"):
        federation.play(tampered(federation, tamper))


def test_a_guardian_keeps_its_own_bound_over_all_runs_that_a_server_begins(tmp_path) -> None:
    federation = guarded(tmp_path, privacy={"epsilon": 2.0, "delta": 1e-5, "trust": "guardians"}, rounds=1, seed=None)
    change(tmp_path / "guardian2" / "guardian.toml", policy={"epsilon": 2.5, "delta": 1e-5})
    federation.play()
    federation.run.path.rename(tmp_path / "first")
    with pytest.raises(RunError, match="guardian2 are not connected, or would not guard the run"):
        federation.play()
    assert not federation.run.path.exists()
    unready = mock.patch.object(answers, "_require_ready")  # parties say that they are ready whether they are or not
    with unready, pytest.raises(RunError, match=r"guardian2, round 0: PolicyError; there is no release"):
        federation.play()
    with Ledger.open(federation.run.ledger_path) as book:
        assert not book.release_rows()
    with Ledger.open(tmp_path / "guardian2" / "kept" / "_policy" / "ledger.sqlite") as book:
        assert len(book.book().runs) == 1


LACKS = {"policy": "PolicyError", "approved": "RefusedError", "sealing.key": "RunError"}


@pytest.mark.parametrize("lack", LACKS)
def test_a_guardian_that_would_not_guard_a_run_is_found_before_the_charge(lack: str, tmp_path) -> None:
    federation = guarded(tmp_path)
    nodes, started = federation.everyone(), time.monotonic()
    change(tmp_path / "guardian2" / "guardian.toml", **{lack: None})
    (tmp_path / "guardian2" / "kept" / lack).unlink(missing_ok=True)
    with pytest.raises(RunError, match=r"guardians guardian2 are not connected, or would not .* nothing was charged"):
        federation.play(nodes)
    assert time.monotonic() - started < 50.0  # who refuses is not waited for
    assert not federation.run.path.exists()
    assert not list(tmp_path.glob("*/kept/_policy"))
    assert f"{LACKS[lack]}: " in (tmp_path / "guardian2" / "kept" / "errors.log").read_text()
    unready = mock.patch.object(answers, "_require_ready")  # and in a round, were it not asked before
    with unready, pytest.raises(RunError, match=f"guardian2, round 0: {LACKS[lack]}.*there is no release"):
        federation.play(nodes)


def test_files_that_disagree_on_the_guardians_are_refused_before_anything_is_asked(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="names 0 guardians"):
        make(tmp_path / "none", privacy=SECURE).play()
    federation = guarded(tmp_path / "trusting", privacy={"noise_multiplier": 1.0})
    with pytest.raises(ConfigurationError, match="names 2 guardians"):
        federation.play()


def test_the_scaffold_writes_a_federation_with_guardians_whose_keys_stay_here(tmp_path) -> None:
    home = tmp_path / "trial"
    write_app(home, n_sites=2, clients_per_site=3, epsilon=4.0, delta=1e-6, n_guardians=2)
    require_guardians(read_federation(home), public_spec(home).privacy)
    cards = read_federation(home).guardians
    for name, card in cards.items():
        assert read_party(home / "guardians" / name / "guardian.toml").name == name
        assert guardian_keys(home / "guardians" / name / "kept").card == card
    assert "guardians/" in (home / ".gitignore").read_text().split()
    with pytest.raises(ConfigurationError, match="one guardian would see every vector"):
        write_app(tmp_path / "one", n_sites=2, clients_per_site=3, epsilon=4.0, delta=1e-6, n_guardians=1)
