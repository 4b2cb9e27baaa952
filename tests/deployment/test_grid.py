"""Rounds over Flower's message API without sockets: the same numbers as in one process."""

import threading
from unittest import mock

import pytest

import privbo as pb
from privbo.flower.server import serve
from privbo.protocol.files import read_lines
from privbo.runs.sources import algorithm_table
from tests.builders import same_releases
from tests.conformance.cases import CASES, N_CLIENTS, ROUNDS, Case, problem, without_none
from tests.deployment.federations import POLICY, Federation, make, releases, require_same, sites
from tests.deployment.grid import LoopGrid, through_bytes, unavailable


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_grid_gives_the_queries_and_releases_of_one_process(case: Case, tmp_path) -> None:
    privacy = {"noise_multiplier": 1.0, "noise": "simulation", "unit": case.unit}
    federation = make(tmp_path, without_none(algorithm_table(case.algorithm)), privacy=privacy)
    federation.play()
    require_same(federation, pb.run(problem(), case.algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory):
    """Releases of an honest federation to which nothing happens."""
    federation = make(tmp_path_factory.mktemp("plain"))
    federation.play()
    return releases(federation)


def stopped(federation: Federation) -> None:
    """Play until the server dies in round 1, when one site has been asked and the others have not."""
    nodes = federation.nodes()

    def die(messages) -> None:
        if messages[0].metadata.group_id == "1":
            arrived = through_bytes(messages[0])
            next(node for node in nodes if node.node_id == arrived.metadata.dst_node_id).handle(arrived)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation.play(nodes, die)


def test_a_restarted_server_asks_again_and_charges_nothing_twice(tmp_path, expected) -> None:
    federation = make(tmp_path / "stopped")
    stopped(federation)
    with pb.load(federation.run.path).ledger as ledger:
        assert len(ledger.entries()) == 2  # the second is paid and nothing of it has left
        assert ledger.stored_release(ledger.entries()[1].release_id) is None
    resumed = federation.play()
    assert next(iter(resumed.nodes.values())).asked[0].metadata.group_id == "1"
    same_releases(releases(federation), expected)


SAMPLINGS = [
    {"sampling": "random-allocation", "participations": 2},
    {"sampling": "truncated-poisson", "max_cohort": 3},
    {"sampling": "poisson", "sample_rate": 0.2},
]


@pytest.mark.parametrize("asked", SAMPLINGS, ids=lambda asked: asked["sampling"])
def test_a_restarted_server_goes_on_with_its_draw_and_everyone_is_asked(asked, tmp_path) -> None:
    privacy = {"noise_multiplier": 2.0} | asked
    # Sites whose rule counts Gaussian releases only would refuse a truncated sample.
    federation = make(tmp_path / "stopped", privacy=privacy, policy=POLICY | {"rule": "renyi"})
    stopped(federation)
    kept = federation.run.private / "allocation.npz"
    before = kept.read_bytes() if kept.exists() else None
    assert (before is not None) == ("participations" in asked)
    grid = federation.play()
    assert before is None or kept.read_bytes() == before
    each = [row["n_participants"] for row in read_lines(federation.run.clipping_path)]
    assert len(each) == len(releases(federation))
    if "participations" in asked:
        assert sum(each) == 2 * N_CLIENTS
    elif "max_cohort" in asked:
        assert set(each) == {3}
    rounds = [[message.metadata.group_id for message in node.asked] for node in grid.nodes.values()]
    assert rounds[0] == rounds[1] == rounds[2]  # what a site is asked says nothing of who was drawn


def test_a_site_that_was_away_comes_back_with_its_history(tmp_path) -> None:
    federation = make(tmp_path, "dp-fts-de")
    nodes = federation.nodes()

    def away(reply, round_: int):
        nodes[0].online = round_ != 0  # gone when round 1 is asked
        return reply

    nodes[1].tamper = away
    federation.play(nodes)
    rounds = [site["rounds"] for site in sites(federation)]
    assert 1 in rounds[1]
    assert 1 not in rounds[0]
    assert {-1, 2, 3} <= set(rounds[0])


class FetchesTogether(LoopGrid):
    """As Flower: the replies of one call are lost together where one of them breaks its decoding."""

    def pull_messages(self, message_ids):
        asked = list(message_ids)
        fetched = [super(FetchesTogether, self).pull_messages([identity]) for identity in asked]
        if any(reply.metadata.src_node_id in self.breaking for replies in fetched for reply in replies):
            raise ValueError("no such object")
        return [reply for replies in fetched for reply in replies]

    breaking: frozenset[int] = frozenset()


def test_a_bad_reply_loses_nobody_but_itself_however_many_are_asked(tmp_path) -> None:
    n_sites, bad = 24, {103, 111, 112, 119}
    sites = {f"site-{index}": str(index) for index in range(n_sites)}
    clients = {"n_clients": n_sites, "arguments": {"n_clients": n_sites}}
    federation = make(tmp_path, rounds=1, sites=sites, round_timeout=20.0, **clients)
    grid = FetchesTogether(federation.nodes())
    grid.breaking = frozenset(bad)
    serve(grid, federation.home, federation.run)
    honest = {f"site-{node - 100}" for node in grid.nodes if node not in bad}
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert all(set(row["answered"]) == honest for row in rows)
    assert rows[0]["refused"] == {"unreadable": len(bad)}


def test_a_superlink_that_takes_nothing_stops_the_run(tmp_path) -> None:
    """What Flower does when every message is too large."""
    federation = make(tmp_path)
    nothing = mock.patch.object(LoopGrid, "push_messages", return_value=[])
    with nothing, pytest.raises(pb.RunError, match="takes no question"):
        federation.play()
    federation.play()
    assert len(releases(federation)) > 0


def test_a_node_that_hangs_holds_up_nobody_else(tmp_path) -> None:
    """Were all replies fetched one after the other, the others' would never come while it hangs."""
    federation = make(tmp_path, rounds=1, round_timeout=600.0)
    nodes, arrived, seen = federation.nodes(), threading.Semaphore(0), list[bool]()

    def hang(reply, round_: int):
        seen.extend(arrived.acquire(timeout=120.0) for _ in nodes[1:])
        return unavailable(reply)

    nodes[0].tamper = hang
    for node in nodes[1:]:
        node.tamper = lambda reply, _: arrived.release() or reply
    federation.play(nodes)
    assert seen
    assert all(seen)
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert [row["answered"] for row in rows] == [["south", "west"]] * len(rows)


def test_a_superlink_that_is_gone_stops_the_run_and_it_goes_on_later(tmp_path, expected) -> None:
    federation = make(tmp_path / "cut")
    nodes = federation.nodes()

    def cut(reply, round_: int):
        if round_ == 1:
            raise ConnectionRefusedError
        return reply

    nodes[0].tamper = cut
    with pytest.raises(pb.RunError, match="run the app again"):
        federation.play(nodes)
    federation.play()
    same_releases(releases(federation), expected)
