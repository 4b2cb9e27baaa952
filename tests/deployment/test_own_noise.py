"""Sites that hide records by noise of their own: what leaves a site, what a server or a broken site can do."""

import dataclasses
import json
import shutil
from functools import partial
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from accountant.events import Adjacency, Gaussian, Unit, compose
from accountant.tight import numerical
from privbo.algorithms.thompson.releases import front
from privbo.door import sums as door_sums
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import SimulatedNoise
from privbo.door.sampling import Sample
from privbo.door.sums import blocks_of, lattice_sums, own_blocks
from privbo.flower import answers
from privbo.flower.messages import Reply
from privbo.flower.party import ledger_path, read_site
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_lines
from privbo.protocol.messages import FloatArray, Records, Request, Setting
from privbo.reports.report import report
from privbo.runs.manifest import clipped_shares, derive_seed
from privbo.runs.record import load
from tests.cli.test_cli import privbo
from tests.deployment.federations import Federation, change, ledger_of, make, releases
from tests.deployment.grid import unavailable
from tests.deployment.processes import deployed, start_parties

COUNTS, N_POINTS = (120, 300, 80), 3
SITES = {"north": "0", "south": "1", "west": "2"}
PRIVACY = {"epsilon": 2.0, "delta": 1e-6, "unit": "record", "protects": "records", "trust": "sites"}
POLICY = {"epsilon": 4.0, "delta": 1e-6, "unit": "record", "trust": ["sites"]}
SEEDED = {"privacy": PRIVACY | {"noise": "simulation"}, "policy": POLICY | {"noise": ["simulation"]}, "seed": 5}
SPACE = {"dose": {"type": "real", "low": 0.0, "high": 1.0}}
PROBLEM = {"n_clients": 3, "n_records": list(COUNTS), "space": SPACE, "name": "hospitals"}


def scores(client: int, params: dict[str, float]) -> FloatArray:
    return 1.0 - np.abs(params["dose"] - np.random.default_rng(client).random(COUNTS[client]))


PLAIN = pb.Problem(space={"dose": pb.Real(0.0, 1.0)}, objective=scores, n_clients=3, n_records=COUNTS, name="hospitals")
TOP = 30  # records of site 1 that lie at the upper end of the range, or beyond it


def ends(client: int, params: dict[str, float], *, at: float) -> FloatArray:
    found = scores(client, params)
    found[: TOP * (client == 1)] = at
    return found


TRAINED = Gaussian(noise_multiplier=9.0)
KINDS = {
    "plain": {},
    "wide": {"score_range": (0.0, 10.0)},
    "within": {"objective": partial(ends, at=1.0)},
    "beyond": {"objective": partial(ends, at=4.0)},
    "upper": {"objective": lambda client, p: scores(client, p) + 2.0 * (p["dose"] > 0.5)},  # half of the doses
    "trained": {"objective": lambda client, p: (scores(client, p), TRAINED), "training": TRAINED},
}


def hospitals(kind: str = "plain") -> pb.Problem:
    return dataclasses.replace(PLAIN, **KINDS[kind])


def federation_of(root, kind: str = "plain", **changes) -> Federation:
    settings = {"rounds": 3, "seed": None, "privacy": PRIVACY, "policy": POLICY} | changes
    algorithm = {"type": "multi-task", "release_when": "always", "front": N_POINTS}
    own = {"factory": "tests.deployment.test_own_noise:hospitals", "arguments": {"kind": kind}}
    return make(root, algorithm, sites=SITES, problem=PROBLEM, **own, **settings)


def sent(replies) -> dict[str, FloatArray]:
    """The vectors that left each site in round 0, from the wire."""
    answers = [dict(reply.content.config_records["answer"]) for reply in replies if reply.has_content()]
    return {
        str(answer["site"]): np.frombuffer(vectors[0][-8 * N_POINTS :], dtype="<f8")
        for answer in answers
        if (vectors := answer.get("vectors"))
    }


def exact(seed: int) -> FloatArray:
    """The sums that no site sends, recomputed from the data at the points of a public seed."""
    public = Setting(space=PLAIN.search_space, n_clients=len(COUNTS), rounds=1, public_seed=seed)
    points = front(public, np.arange(len(COUNTS)), N_POINTS)[:, :, 0]
    return np.array([[np.sum(scores(n, {"dose": x}) - 0.5) for x in row] for n, row in enumerate(points.tolist())])


def missed(federation: Federation) -> FloatArray:
    """What the one release lacks of the exact sums, in units of its noise."""
    (release,) = releases(federation)
    return (release.values - exact(pb.load(federation.run.path).manifest.public_seed)) / release.noise_stddev


def spent(ledger) -> float:
    return numerical.epsilon(compose(ledger.book().paid), 1e-6, adjacency=Adjacency.REPLACE_ONE)


def require_hidden(federation: Federation) -> None:
    """Every site's sum has noise, of the plan's size, for which its ledger has paid."""
    lacking = np.abs(missed(federation))
    assert 0.0 < lacking.min() < lacking.max() < 7.0  # nine normal numbers: below 1e-10
    for site in SITES:
        with ledger_of(federation, site) as ledger:
            assert ledger.policy.unit is Unit.RECORD
            assert spent(ledger) == pytest.approx(2.0, rel=2e-3)


def test_what_leaves_a_site_is_its_release_and_the_server_adds_nothing(tmp_path) -> None:
    federation = federation_of(tmp_path)
    grid = federation.play()
    (release,) = releases(federation)
    vectors = sent(grid.replies)
    assert set(vectors) == set(SITES)
    for block, site in enumerate(SITES):
        np.testing.assert_array_equal(release.values[block], vectors[site])
    require_hidden(federation)
    record = pb.load(federation.run.path)
    assert record.epsilon() == pytest.approx(2.0, rel=2e-3)
    assert "each site adds its own noise" in pb.report(record).trust


def test_noise_of_one_round_is_drawn_once_however_often_it_is_asked_for(tmp_path) -> None:
    federation = federation_of(tmp_path)
    nodes = federation.nodes()
    first = sent(federation.play(nodes).replies)
    for node in nodes:
        question = next(message for message in node.asked if message.metadata.group_id == "0")
        again = sent([node.handle(question)])
        ((site, vector),) = again.items()
        np.testing.assert_array_equal(vector, first[site])
        (answer,) = (tmp_path / site).glob("kept/*/sent/000000.npz")
        for lost in (answer, answer.parents[1], ledger_path(read_site(federation.site_file(site)))):
            for path in lost.parent.glob(f"{lost.name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            refused = node.handle(question)
            assert (sent([refused]), refused.content.config_records["answer"]["error"]) == ({}, "RunError"), lost


@pytest.mark.parametrize("what", ["gone", "nan", "infinite", "far out"])
def test_a_site_that_is_gone_or_broken_is_noise_alone_and_moves_no_other(what: str, tmp_path) -> None:
    federation, whole = (federation_of(tmp_path / name, **SEEDED) for name in ("broken", "whole"))
    whole.play()
    nodes = federation.nodes()
    value = {"nan": np.nan, "infinite": np.inf, "far out": 1e9}

    def tamper(reply, _: int):
        if what == "gone":
            return unavailable(reply)
        content = reply.content.config_records["answer"]
        content["vectors"] = [v[: -8 * N_POINTS] + np.full(N_POINTS, value[what]).tobytes() for v in content["vectors"]]
        return reply

    nodes[1].tamper = tamper
    federation.play(nodes)
    (broken,), (sound,) = releases(federation), releases(whole)
    np.testing.assert_array_equal(broken.values[[0, 2]], sound.values[[0, 2]])
    assert np.abs(broken.values[1]).max() < 7.0 * broken.noise_stddev
    assert np.abs(broken.values[1]).min() > 0.0


def test_a_site_refuses_a_server_that_would_see_its_sums(tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match="write trust='sites'"):
        federation_of(tmp_path / "server", privacy={k: v for k, v in PRIVACY.items() if k != "trust"}).play()
    with pytest.raises(pb.ConfigurationError, match="set trust='sites' with it, and only with it"):
        pb.Privacy(epsilon=1.0, trust="sites")
    means = pb.FedPNE(horizon=400, c=0.02)
    with pytest.raises(pb.ConfigurationError, match="a site can add noise to a block of its own only"):
        pb.plan(hospitals(), means, privacy=pb.Privacy(**PRIVACY), rounds=3)


def test_a_site_whose_scores_have_another_range_than_the_run_answers_nothing(tmp_path) -> None:
    """The noise is computed from the run's range: scores in a wider one would move by more."""
    grid = federation_of(tmp_path, "wide").play()
    assert not sent(grid.replies)
    assert {answer["error"] for answer in grid.answers} == {"ConfigurationError"}


@pytest.mark.parametrize("declared", [9.0, 90.0])
def test_every_site_pays_for_the_trainings_that_its_own_problem_declares(declared: float, tmp_path) -> None:
    """Or answers nothing, where the run's files declare another training than the site's learner makes."""
    federation = federation_of(tmp_path, "trained")
    training = {"type": "gaussian", "noise_multiplier": declared}
    change(federation.home / "run.toml", problem=PROBLEM | {"training": training})
    grid = federation.play()
    if declared != 9.0:
        assert not sent(grid.replies)
        assert {answer["error"] for answer in grid.answers} == {"ConfigurationError"}
        return
    assert set(sent(grid.replies)) == set(SITES)
    require_hidden(federation)
    for site in SITES:
        with ledger_of(federation, site) as ledger:
            assert dict(compose(ledger.book().paid).parts)[TRAINED] == N_POINTS


def left_sites(federation: Federation):
    """Everything that a play brought the server, site by site, but for nonces and the signed head of its ledger."""
    answers = sorted(federation.play().answers, key=lambda answer: answer["site"])  # threads fetch them in any order
    return [{name: value for name, value in answer.items() if name not in ("nonce", "receipt")} for answer in answers]


def test_a_sites_operator_sees_what_was_clipped_of_its_scores_and_nobody_else(tmp_path) -> None:
    """Two worlds of the same clipped scores: a tenth of site 1's lies at the end of the range, or beyond it."""
    plain, clipped = (federation_of(tmp_path / kind, kind, **SEEDED) for kind in ("within", "beyond"))
    assert left_sites(plain) == left_sites(clipped)
    found = {}
    for site in SITES:
        done = privbo("audit", str(clipped.root / site / "kept"), "--json")
        found[site] = json.loads(done.stdout)["score_shares"]
    assert found == {"north": {"0": 0.0}, "south": {"1": TOP / COUNTS[1]}, "west": {"2": 0.0}}
    shown = privbo("audit", str(clipped.root / "south" / "kept")).stdout
    assert "private: the site's own" in shown
    assert "client 1: 10% of its records' scores were clipped to score_range; normalise them" in shown
    asked = privbo("audit", str(plain.root / "south" / "kept"))
    assert "0.0%" in asked.stdout
    assert "notice" not in asked.stdout
    both = [privbo("audit", str(one.run.path)) for one in (plain, clipped)]
    assert (both[0].returncode, both[0].stderr) == (both[1].returncode, both[1].stderr)
    assert "each site alone knows what was clipped of its records' scores: privbo audit" in both[0].stderr
    for view in ((), ("--json",)):
        words = " ".join(privbo("report", str(clipped.run.path), *view).stdout.split())
        assert "each site adds its own noise before anything leaves it, and alone knows how many" in words
    refused = privbo("audit", str(clipped.root / "south" / "kept"), "--empirical")
    assert "is a site's folder" in refused.stderr


def test_scores_of_a_round_that_is_played_again_are_counted_once(tmp_path) -> None:
    """Its answer and state are lost, as by a crash before they were kept."""
    federation = federation_of(tmp_path, "upper")
    nodes = federation.nodes()
    federation.play(nodes)
    (path,) = federation.root.glob("south/kept/*/scores.jsonl")
    before, lines = clipped_shares(path), read_lines(path)
    assert 0.0 < before[1] < 1.0
    for name in ("sent", "state"):
        shutil.rmtree(path.parent / name)
    shutil.rmtree(path.parents[1] / "_policy" / "answered")
    nodes[1].handle(next(message for message in nodes[1].asked if message.metadata.group_id == "0"))
    again = read_lines(path)[len(lines) :]
    assert again == [line for line in lines if line["round"] == 0]
    assert len(again) == N_POINTS
    assert clipped_shares(path) == before
    counted = [line["clipped"] for line in lines + again]
    assert sum(counted) / sum(line["scored"] for line in lines + again) != before[1]  # planted: all lines count


def test_a_reply_that_tells_how_many_scores_were_clipped_is_betrayed(tmp_path) -> None:
    counts, seen = list[int](), []

    def leaky(**fields):
        more = {"clients": [*fields["clients"], 9], "vectors": [*fields["vectors"], bytes(sum(counts))]}
        return Reply(**fields | more)

    told = mock.patch.object(
        answers, "keep_clipped", lambda _, client, clipped, *given, **named: counts.append(clipped)
    )
    for kind in ("within", "beyond"):
        counts.clear()
        with told, mock.patch.object(answers, "Reply", leaky):
            seen.append(left_sites(federation_of(tmp_path / kind, kind, **SEEDED)))
    assert seen[0] != seen[1]


# --- arithmetic -----------------------------------------------------------------------------------------------


def described() -> tuple[PrivateSum, Request]:
    request = Records(counts=COUNTS, low=0.0, high=1.0).request(3)
    privacy = pb.Privacy(noise_multiplier=2.0, unit="record", protects="records", trust="sites")
    mechanism = privacy.mechanism(request, 2.0)
    assert isinstance(mechanism, PrivateSum)
    return mechanism, request


def test_sites_blocks_are_those_of_one_door_and_their_noise_is_what_the_event_says(monkeypatch) -> None:
    mechanism, request = described()
    rows = np.random.default_rng(0).normal(0, 30, (3, 3))
    clipped = clip_rows(rows, mechanism.applied_bound)
    sums = lattice_sums(request.weights, clipped, np.ones((1, 3), dtype=bool), mechanism.grid_step())[0]
    seeds = [SimulatedNoise(seed) for seed in range(4000)]
    drawn = np.array([own_blocks(mechanism, request, rows[[1]], np.array([1]), seed) for seed in seeds])
    noise = drawn / mechanism.grid_step() - sums[1]
    # 12,000 numbers: the deviation of the measured one is .65 %, so 4 % are six of them.
    assert noise.std() * mechanism.grid_step() == pytest.approx(mechanism.noise_stddev(), rel=0.04)
    assert mechanism.noise_stddev() >= 2.0 * request.unit_bound
    # Planted: no noise.
    monkeypatch.setattr(door_sums, "hidden", lambda mechanism, totals, noise: totals * mechanism.grid_step())
    bare = own_blocks(mechanism, request, rows, np.arange(3), SimulatedNoise(0))
    np.testing.assert_array_equal(bare, sums * mechanism.grid_step())


@pytest.mark.parametrize("weights", [np.ones((1, 3)), np.eye(3)[:2], np.array([[1.0, 1.0], [0.0, 0.0]])], ids=str)
def test_sums_of_several_sites_have_no_site_that_could_hide_them(weights: FloatArray) -> None:
    with pytest.raises(pb.ConfigurationError, match="a block of its own only"):
        blocks_of(weights)


@pytest.mark.deployment
def test_three_hospitals_in_processes_of_their_own(tmp_path) -> None:
    federation = federation_of(tmp_path, round_timeout=120.0, start_timeout=300.0)
    with deployed(federation) as deployment:
        start_parties(deployment, federation)
        deployment.play(federation.home, timeout=500)
    require_hidden(federation)


# ---- sampled clients asked alone, over a channel declared to hide it, and against whom the sampling then holds

N = 7
ALONE = {f"phone{client}": str(client) for client in range(N)}
HIDDEN = {"noise_multiplier": 1.0, "noise": "simulation", "sample_rate": 0.4, "channel": "anonymous"}


def hidden(root, *, times: bool = True, rounds: int = 3, keys=True, sites=ALONE, **privacy) -> Federation:
    federation = make(root, rounds=rounds, sites=sites, keys=keys, privacy=HIDDEN | privacy)
    if times:
        change(federation.home / "run.toml", times={"round_seconds": 0.5})
    return federation


def watched(federation: Federation) -> dict[int, set[int]]:
    """Play; who is asked in each round, as somebody sees it who watches the traffic."""
    asked: dict[int, set[int]] = {}

    def note(messages) -> None:
        for message in messages:
            asked.setdefault(int(message.metadata.group_id), set()).add(message.metadata.dst_node_id - 100)

    federation.play(pushed=note)
    return asked


def test_who_is_not_drawn_is_not_asked_and_the_report_says_against_whom_that_holds(tmp_path) -> None:
    federation = hidden(tmp_path)
    asked = watched(federation)
    made, root = releases(federation), derive_seed(federation.run.seed, "noise")
    sample = Sample(n_clients=N, sample_rate=0.4)
    drawn = [sample.draw(1, SimulatedNoise(root).stream(str(release.round)))[0] for release in made]
    assert [asked.get(release.round, set()) for release in made] == [set(np.flatnonzero(d).tolist()) for d in drawn]
    assert 0 < sum(map(sum, drawn)) < N * len(made)
    each = [row["n_participants"] for row in read_lines(federation.run.clipping_path)]
    assert each == [int(d.sum()) for d in drawn]
    assert [each.against for each in report(load(federation.run.path)).exposures] == ["readers", "traffic"]


def test_a_round_in_which_nobody_is_drawn_is_noise_and_goes_on(tmp_path) -> None:
    federation = hidden(tmp_path, rounds=1, sample_rate=1e-6)
    asked, made = watched(federation), releases(federation)
    assert len(made) == 1
    assert asked.keys() == {-1, 1}  # before the run, and local work at its end
    assert asked[-1] == set(range(N))
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
def test_a_channel_that_would_show_the_sample_is_refused(changes, words: str, tmp_path) -> None:
    federation = hidden(tmp_path, **changes)
    nodes = federation.nodes()
    with pytest.raises(ConfigurationError, match=words):
        federation.play(nodes)
    assert not any(node.asked for node in nodes)
    assert not federation.run.ledger_path.exists()
