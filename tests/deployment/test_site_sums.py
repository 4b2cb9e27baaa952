"""Sites that sum their own clients: the same releases from one vector a site, and what a bad site can't do."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from accountant.events import Adjacency, PoissonSampledGaussian, Unit
from accountant.ledger import Ledger, LedgerPolicy
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum, mechanism_for
from privbo.door.noise import SimulatedNoise
from privbo.door.partial import Summing
from privbo.door.site_sums import SumBox, encode_sum, own_sum
from privbo.door.sums import hidden
from privbo.flower.apps import serve
from privbo.flower.messages import Header
from privbo.flower.sealer import require_same_trust
from privbo.flower.settings import public_spec, read_federation, read_site
from privbo.flower.site import Guarded, Question, SiteRecord
from privbo.flower.summed import summing
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import load_arrays, read_json, read_lines
from privbo.protocol.messages import Broadcast, Request
from privbo.reports.data import report
from privbo.runs.algorithms import algorithm_table
from privbo.runs.opening import plan_run, planned_requests
from privbo.runs.record import load
from privbo.runs.seeds import derive_seed
from tests.conformance.cases import CASES, ROUNDS, Case, problem
from tests.deployment.federations import SITES, Federation, make
from tests.deployment.reading import releases
from tests.deployment.test_grid import StoppingGrid, with_answer, without_none

SUMMED = {"noise_multiplier": 1.0, "noise": "simulation", "trust": "sites"}
QUICK = {"fed-pne", "parallel, one reward"}


def played(root: Path, case: Case | str, **privacy: Any) -> Federation:
    algorithm = case if isinstance(case, str) else without_none(algorithm_table(case.algorithm))
    unit = {} if isinstance(case, str) else {"unit": case.unit}
    federation = make(root, algorithm, privacy=SUMMED | unit | privacy)
    federation.play()
    return federation


def sent(federation: Federation, round_: int) -> list[dict[str, Any]]:
    """What every site has sent in a round, as its own disk has it."""
    paths = [next((federation.root / site / "kept").glob(f"*/sent/{round_:06d}.npz")) for site in federation.sites]
    return [load_arrays(path) for path in paths]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[] if str(c) in QUICK else pytest.mark.slow) for c in CASES]
)
def test_releases_are_those_of_vectors_sent_one_by_one_to_the_last_bit(case: Case, tmp_path: Path) -> None:
    summed, apart = played(tmp_path / "summed", case), played(tmp_path / "apart", case, trust="server")
    assert len(releases(summed)) == len(releases(apart)) > 0
    for ours, theirs in zip(releases(summed), releases(apart), strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)
        assert ours.noise_stddev == theirs.noise_stddev
    assert load(summed.run.path).plan.event == load(apart.run.path).plan.event


def test_one_vector_a_site_is_sent_and_statistics_stay_where_the_clients_are(tmp_path: Path) -> None:
    federation = make(tmp_path, privacy=SUMMED)
    counts: list[tuple[int, int]] = []

    def seen(reply: Any, _: int) -> Any:
        answer = reply.content.config_records["answer"]
        counts.append((len(answer["clients"]), len(answer["vectors"])))
        return reply

    nodes = federation.nodes()
    for node in nodes:
        node.tamper = seen
    federation.play(nodes)
    assert counts == [(1, 1)] * 3 * len(releases(federation)) + [(0, 0)] * 3  # local work at the end
    assert not federation.run.clipping_path.exists()
    kept = [read_lines(next((tmp_path / site / "kept").glob("*/clipping.jsonl"))) for site in SITES]
    assert [rows[0]["n_clients"] for rows in kept] == [3, 2, 2]
    assert [len(rows) for rows in kept] == [len(releases(federation))] * 3


def test_each_clients_own_coin_decides_and_the_noise_is_the_doors(tmp_path: Path) -> None:
    """At a rate below 1 the release is the sum of what sites have sent, under the very noise of the door."""
    federation = played(tmp_path, "fed-pne", sample_rate=0.5)
    record, made = load(federation.run.path), releases(federation)
    assert {type(entry.event) for entry in record.ledger.entries()} == {PoissonSampledGaussian}
    joined = [row["n_participants"] for site in SITES for row in sites_statistics(tmp_path, site)]
    assert 0 < sum(joined) < 7 * len(made)
    noise = SimulatedNoise(derive_seed(federation.run.seed, "noise")).stream(str(made[0].round))
    totals = np.sum([site["totals"] for site in sent(federation, made[0].round)], axis=0)
    mechanism = next(iter(plan_run(public_spec(federation.home)).mechanisms))
    np.testing.assert_array_equal(made[0].values, hidden(mechanism, totals[None], noise)[0])


def sites_statistics(root: Path, site: str) -> list[dict[str, Any]]:
    return read_lines(next((root / site / "kept").glob("*/clipping.jsonl")))


def test_a_restarted_server_gets_the_same_sums_under_the_same_charge(tmp_path: Path) -> None:
    expected = releases(played(tmp_path / "plain", "fed-pne"))
    federation = make(tmp_path / "stopped", privacy=SUMMED)
    with pytest.raises(KeyboardInterrupt):
        serve(StoppingGrid(federation.nodes()), federation.home, federation.run)
    with pb.load(federation.run.path).ledger as ledger:
        assert len(ledger.entries()) == 2  # charged and durable before any site was asked
        assert ledger.stored_release(ledger.entries()[1].release_id) is None
    federation.play()
    for ours, theirs in zip(releases(federation), expected, strict=True):
        assert ours.sequence == theirs.sequence
        np.testing.assert_array_equal(ours.values, theirs.values)


def test_the_report_says_which_sites_had_to_be_trusted(tmp_path: Path) -> None:
    federation = played(tmp_path / "apart", "fed-pne")
    assert "(sites: north, south, west)" in report(load(federation.run.path)).trust
    assert read_json(federation.run.path / "sites.json") == {"north": [0, 1, 2], "south": [3, 4], "west": [5, 6]}
    table = read_federation(federation.home)
    assert table.sites["north"].clients == "0-2"
    content = (federation.home / "federation.toml").read_text()
    (federation.home / "federation.toml").write_text(content.replace('"0-2"', '"0-1"').replace('"3, 4"', '"2-4"'))
    with pytest.raises(RunError, match="other sites or clients"):
        federation.play()
    here = pb.run(problem(), pb.FedPNE(horizon=400, c=0.02), privacy=pb.Privacy(**SUMMED), rounds=ROUNDS, seed=3)
    assert "played in one process" in report(here).trust
    for ours, theirs in zip(here.releases, releases(federation), strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)


# --- who lies -----------------------------------------------------------------------------------------------

N, DIM = 9, 4
REQUEST = Request(dim=DIM, clipping_norm=2.0, weights=np.random.default_rng(0).random((2, N)) / N)
GROUPS = ((0, 1, 2, 3), (4, 5), (6, 7, 8))


def mechanism(rate: float = 1.0) -> PrivateSum:
    made = mechanism_for(REQUEST, noise_multiplier=1.0, sample_rate=rate)
    assert isinstance(made, PrivateSum)
    return made


def box() -> SumBox:
    return SumBox(round=5, mechanism=mechanism(), request=REQUEST, sites=GROUPS)


def honest(group: tuple[int, ...], rows: Any, rate: float = 1.0) -> Any:
    coins = SimulatedNoise(0, label=str(group))
    return own_sum(mechanism(rate), REQUEST, rows[list(group)], np.array(group), coins)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_sums_of_sites_are_the_sum_of_one_piece_whoevers_coins_fall(rate: float) -> None:
    rows = np.random.default_rng(1).normal(size=(N, DIM)) * 3
    rows[4] = np.nan
    made, joins = box(), np.zeros(N, dtype=bool)
    for group in GROUPS:
        joins[list(group)] = SimulatedNoise(0, label=str(group)).coins((len(group),), rate)
        made.receive(group[0], encode_sum(5, honest(group, rows, rate).totals))
    whole = Summing(mechanism=mechanism(rate), dim=DIM, weights=REQUEST.weights, participants=joins)(rows)
    np.testing.assert_array_equal(made.close().totals, whole.totals)
    assert made.refused == {}


GOOD = encode_sum(5, np.ones((2, DIM), dtype=np.int64))
BAD = {
    "another site's first client": (5, GOOD, "unknown site"),
    "a client as text": ("0", GOOD, "unknown site"),
    "a truth value": (False, GOOD, "unknown site"),
    "text": (0, "sum", "wrong size"),
    "short": (0, GOOD[:-1], "wrong size"),
    "long": (0, GOOD + bytes(8), "wrong size"),
    "no magic": (0, b"x" + GOOD[1:], "no sum"),
    "another shape": (0, GOOD[:20] + struct.pack("<QQQ", 5, DIM, 2) + GOOD[44:], "wrong shape"),
    "another round": (0, encode_sum(4, np.ones((2, DIM), dtype=np.int64)), "another round"),
    "as long as can be": (0, encode_sum(5, np.full((2, DIM), np.iinfo(np.int64).min)), "not clipped"),
}


@pytest.mark.parametrize("how", BAD)
def test_what_is_no_sum_is_an_absence(how: str) -> None:
    client, message, reason = BAD[how]
    made = box()
    made.receive(client, message)
    assert made.refused == {reason: 1}
    assert not made.close().totals.any()
    made.receive(0, GOOD)
    assert made.refused == {reason: 1} | {"late": 1}


def test_of_a_sites_two_sums_the_first_counts() -> None:
    made = box()
    for _ in range(2):
        made.receive(4, GOOD)
    assert made.refused == {"duplicate": 1}
    assert made.close().totals.tolist() == np.ones((2, DIM)).tolist()


def unclipped(group: tuple[int, ...], rows: Any) -> bytes:
    """Planted: a site that weighs and rounds but does not clip."""
    whole = REQUEST.weights[:, list(group)] @ rows[list(group)]
    return encode_sum(5, np.trunc(whole / mechanism().grid_step()).astype(np.int64))


def test_a_site_that_does_not_clip_is_seen_only_beyond_what_all_its_clients_could_add() -> None:
    """One long vector among four short ones stays below four clipped ones: nobody but the site can tell."""
    bound = mechanism().vector_bound
    long, hidden_one = np.zeros((N, DIM)), np.zeros((N, DIM))
    long[:4, 0], hidden_one[0, 0] = 3 * bound, 1.5 * bound
    made = box()
    made.receive(0, unclipped(GROUPS[0], long))
    assert made.refused == {"not clipped": 1}
    made.receive(0, unclipped(GROUPS[0], hidden_one))
    assert made.refused == {"not clipped": 1}
    assert made.close().totals.any()


def test_as_loud_as_clipping_allows_is_taken_from_every_site() -> None:
    made, rows = box(), np.zeros((N, DIM))
    rows[:, 0] = 1e6
    for group in GROUPS:
        made.receive(group[0], encode_sum(5, honest(group, rows).totals))
    assert made.refused == {}


def test_a_foreign_sum_over_the_wire_is_an_absence(tmp_path: Path) -> None:
    federation = make(tmp_path, rounds=1, privacy=SUMMED)
    nodes = federation.nodes()
    nodes[0].tamper = with_answer(lambda f: f | {"clients": [3 for _ in f["clients"]]})  # south's first client
    federation.play(nodes)
    traffic = read_lines(federation.run.private / "transport.jsonl")
    assert any(row["refused"].get("foreign client") == 1 for row in traffic)


# --- what is refused ----------------------------------------------------------------------------------------


def door(**settings: Any) -> tuple[Door, Ledger]:
    policy = LedgerPolicy(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=N)
    ledger = Ledger.create(None, policy)
    opened = Door(
        ledger,
        run="r",
        noise=SimulatedNoise(0),
        n_clients=N,
        mechanism=lambda request: mechanism_for(request, noise_multiplier=1.0, **settings),
        sums_at_sites=True,
    )
    return opened, ledger


def test_vectors_are_no_sums_and_leave_nothing_behind() -> None:
    """Taken whole they would all be in the release though the price counts on coins."""
    opened, _ = door(sample_rate=0.1)
    ticket = opened.open(5, REQUEST)
    assert ticket.summing is None
    with pytest.raises(ConfigurationError, match="summed by sites"):
        opened.close(ticket, np.ones((N, DIM)))
    assert opened.open(5, REQUEST).release is None


def test_a_sample_that_the_door_would_have_to_tell_is_refused_before_the_charge() -> None:
    opened, ledger = door(sample_rate=0.5, sampling="fixed-size")
    with pytest.raises(ConfigurationError, match="draws its own coin"):
        opened.open(0, REQUEST)
    assert not ledger.entries()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": "fixed-size", "sample_rate": 0.5}, "draws its own coin"),
        ({"adaptive_clipping": pb.AdaptiveClipping(count_stddev=10.0)}, "by the server's word"),
        ({"channel": "anonymous"}, "letters of one size"),
        ({"guardians": 2}, "belong to trust='guardians'"),
    ],
)
def test_settings_that_sites_cannot_carry_are_refused_with_a_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        pb.Privacy(epsilon=2.0, trust="sites", **settings)


def test_a_federations_file_does_not_decide_who_is_trusted(tmp_path: Path) -> None:
    federation = make(tmp_path)
    path = federation.home / "federation.toml"
    path.write_text("sites.sum = true\n" + path.read_text())
    with pytest.raises(ConfigurationError, match=r'write trust = "sites" under \[privacy\]'):
        read_federation(federation.home)


def test_a_site_that_was_killed_before_its_sum_was_kept_draws_the_round_again(tmp_path: Path) -> None:
    """By other coins, as nothing of the first ones has left: 20 times of half of 7 clients."""
    federation = make(tmp_path, privacy={"noise_multiplier": 1.0, "sample_rate": 0.5, "trust": "sites"}, seed=None)
    spec, record = public_spec(federation.home), SiteRecord.open(tmp_path / "kept", "r")
    request = next(iter(planned_requests(spec)))
    guarded = Guarded(request=request, noise_multiplier=1.0, plan="p")
    question = Question(run="r", broadcast=Broadcast(round=0), dim=request.dim, guarded=guarded)
    header = Header(run="r", n_clients=spec.problem.n_clients, rounds=spec.rounds, public_seed=1, clients_seed=None)
    vectors = np.ones((spec.problem.n_clients, request.dim))
    for _ in range(20):
        made = summing(spec, header, question, np.arange(spec.problem.n_clients), record)(vectors)
        assert made["totals"].shape == (request.n_blocks, request.dim)
    joined = {line["n_participants"] for line in read_lines(record.path / "clipping.jsonl")}
    assert len(joined) > 1


def test_a_site_sends_no_vectors_where_its_run_says_that_it_sums(tmp_path: Path) -> None:
    federation = make(tmp_path, privacy=SUMMED)
    spec, site = public_spec(federation.home), read_site(federation.site_file("north"))
    asked = Question(run="r", broadcast=Broadcast(round=0), dim=3)
    with pytest.raises(ConfigurationError, match="the server asks otherwise"):
        require_same_trust(spec, site, read_federation(federation.home), asked)
