"""A common setting at the end of a run: one planned vote over public candidates."""

import dataclasses
import json

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.algorithms.thompson.servers import ThompsonServer
from privbo.protocol.common import CANDIDATES, CHOSEN, LAST_ROUND, N_CANDIDATES, ballots, spread
from privbo.protocol.messages import Algorithm, Broadcast, Cohort, FloatArray, IntArray, PlainEvaluate, Release, Setting
from privbo.protocol.space import different
from privbo.runs.best import COMMON
from privbo.runs.loop import run_spec
from privbo.runs.opening import plan_run
from privbo.runs.spec import Spec
from privbo.testing import bumps
from privbo.testing.subject import noise_release
from tests.builders import stopped
from tests.cli.test_cli import X, privbo, toml
from tests.conformance.cases import problem
from tests.deployment.federations import make

QUIET = pb.Privacy(noise_multiplier=0.05, noise="simulation")
ALGORITHMS: dict[str, Algorithm] = {
    "shared prior": pb.SharedPrior(n_features=12, release_when="always"),
    "shared prior, nothing shared": pb.SharedPrior(n_features=12, schedule=()),
    "dp-fts-de": pb.DPFTSDE(n_features=12, n_regions=2),
    "fed-pne": pb.FedPNE(horizon=400, c=0.02),
    "pf-pne": pb.PFPNE(horizon=60, c=0.02, stage2="printed"),
    "parallel": pb.ParallelXArmed(horizon=200, nu1=5.0, rho=0.8),
}


def spec(algorithm: Algorithm, **changes: object) -> Spec:
    plain = {"name": "common", "problem": problem(), "algorithm": algorithm, "privacy": QUIET, "rounds": 4, "seed": 3}
    return Spec(**plain | {"final": "common"} | changes)  # type: ignore[arg-type]  # Spec validates


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_little_noise_the_common_setting_is_good_for_everybody(name: str) -> None:
    made = run_spec(spec(ALGORITHMS[name]), None)
    assert made.releases[-1].round == made.common.vote.round
    assert len(made.ledger.entries()) == len(made.releases) <= made.plan.releases
    require_good(made)


def require_good(made: pb.Record) -> None:
    """Candidates come from the space or from releases; the mean bump is 1 at most and .25 on average."""
    unit = made.spec.problem.search_space.encode(made.common.params)
    assert bumps(np.arange(7), np.tile(unit, (7, 1))).mean() > 0.7


@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("name", ["shared prior", "dp-fts-de"])
def test_the_vote_gets_its_share_of_the_squared_budget_and_the_whole_keeps_the_target(name: str, share: float) -> None:
    privacy = pb.Privacy(epsilon=2.0)
    plan = plan_run(spec(ALGORITHMS[name], privacy=privacy, final_share=share, rounds=8))
    assert min(plan.epsilon().values()) == pytest.approx(2.0, abs=2e-3)
    assert min(plan.epsilon().values()) <= 2.0
    squares = {event: count / event.noise_multiplier**2 for event, count in plan.schedule}
    assert squares[plan.final.event] / sum(squares.values()) == pytest.approx(share, rel=1e-9)
    privacy = pb.Privacy(epsilon=0.5)
    alone = plan_run(spec(pb.SharedPrior(), privacy=privacy))  # of seven clients
    assert alone.releases == 1
    assert min(alone.epsilon().values()) == pytest.approx(0.5, abs=2e-3)
    assert alone.outlook.startswith("before the vote nothing is released")


def test_what_can_have_no_common_setting_is_refused_before_any_data() -> None:
    for algorithm, changes, words in (
        (pb.FederatedFLCB(), {}, "names no public candidates"),
        (Zoom(), {}, "names no public candidates"),
        (ALGORITHMS["fed-pne"], {"privacy": dataclasses.replace(QUIET, unit="reward")}, "privacy.unit='client'"),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            plan_run(spec(algorithm, **changes))


def test_ballots_are_bounded_whatever_is_judged_and_absences_stay_absent() -> None:
    judged = np.random.default_rng(0).normal(size=(50, 9)) * 10.0 ** np.arange(-300, 300, 12)[:, None]
    assert np.abs(judged).max() > 1e6  # judgements themselves would be noticed
    judged[3], judged[4], judged[5, 2:] = np.nan, 7.0, np.nan
    made = ballots(judged)
    norms = np.linalg.norm(np.delete(made, 3, axis=0), axis=1)
    assert np.isnan(made[3]).all()
    assert (np.abs(norms - 1)[np.arange(49) != 3] < 1e-12).all()
    assert norms[3] == 0.0  # indifferent
    np.testing.assert_allclose(np.nansum(made, axis=1), 0.0, atol=1e-12)
    best = np.delete(np.arange(50), [3, 4])
    assert (made[best].argmax(axis=1) == np.where(np.isnan(judged[best]), -np.inf, judged[best]).argmax(axis=1)).all()


@pytest.mark.parametrize(
    ("units", "last"),
    [
        (np.zeros((2, 5)), np.array(3)),
        (np.full((2, 2), np.nan), np.array(3)),
        (np.full((2, 2), 1.5), np.array(3)),
        (np.zeros((17, 2)), np.array(3)),
        (np.zeros(2), np.array(3)),
        (np.zeros((2, 2)), np.array(3.5)),
        (np.zeros((2, 2)), np.array([3])),
    ],
)
def test_a_vote_that_no_run_would_ask_is_refused_before_clients_judge(units: FloatArray, last: IntArray) -> None:
    """Clients would raise or not by what they know, and the class of a site's error is public."""
    asked = spec(ALGORITHMS["shared prior"])
    server = asked.server(asked.setting(public_seed=1))
    assert (
        server.request_for(Broadcast(round=9, arrays={CANDIDATES: np.zeros((2, 2)), LAST_ROUND: np.array(3)})).dim == 2
    )
    with pytest.raises(pb.ConfigurationError, match="a vote"):
        server.request_for(Broadcast(round=9, arrays={CANDIDATES: units, LAST_ROUND: last}))


def test_public_points_fill_any_space() -> None:
    mixed = pb.Space({"a": pb.Int(1, 3), "b": pb.Categorical(["x", "y"]), "c": pb.Real(0, 1)})
    points = spread(mixed, 16, np.full(3, 0.37))
    assert 1 <= len(points) == len(different(points)) <= 16
    np.testing.assert_array_equal(points, mixed.snap(points))
    finite = pb.Space({"a": pb.Int(1, 3), "b": pb.Categorical(["x", "y"])})
    assert len(spread(finite, 16, np.zeros(2))) == 6


def test_the_vote_survives_a_kill_before_and_after_it_and_leaves_one_output(tmp_path) -> None:
    asked = spec(ALGORITHMS["shared prior"], privacy=pb.Privacy(epsilon=2.0))

    made = set()
    for index in (4, 5, 6):  # the last of the algorithm's rounds, the vote, the announcement
        stopped(index, run_spec, asked, tmp_path / "run", resume=(tmp_path / "run").exists())
        stored = pb.load(tmp_path / "run")
        made |= {row.digest for row in stored.ledger.entries()}
        stored.ledger.close()
    done = run_spec(asked, tmp_path / "run", resume=True)
    assert len(done.ledger.entries()) == done.plan.releases
    assert made == {row.digest for row in done.ledger.entries()}  # nothing was charged, or drawn, twice
    done.ledger.close()
    before = (tmp_path / "run" / COMMON).read_bytes()
    run_spec(asked, tmp_path / "run", resume=True).ledger.close()
    assert (tmp_path / "run" / COMMON).read_bytes() == before
    edited = json.loads(before)
    vote = edited["vote"] | {"place": (edited["vote"]["place"] + 1) % 16}
    (tmp_path / "run" / COMMON).write_text(json.dumps(edited | {"vote": vote}))
    with pytest.raises(pb.RunError, match="not what the ledger's stored release chose"):
        pb.load(tmp_path / "run")


def test_plan_run_report_ledger_and_best_name_the_vote(tmp_path) -> None:
    config, home = tmp_path / "tiny.toml", tmp_path / "run"
    stated = {"factory": "tests.crash_problem:problem", "n_clients": 6, "space": X}
    algorithm = {"type": "shared-prior", "release_when": "always", "n_features": 8}
    config.write_text(toml(final="common", problem=stated, algorithm=algorithm, privacy={"epsilon": 4.0}))
    planned = privbo("run", str(config), "--dry-run")
    assert "vote at the end, in the price above: over at most 16 public candidates; alone" in planned.stdout
    priced = json.loads(privbo("run", str(config), "--dry-run", "--json").stdout)["plan"]["final"]
    assert priced["candidates"] == N_CANDIDATES
    ran = privbo("run", str(config), "--out", str(home))
    assert "common setting" in ran.stdout
    chosen = json.loads(privbo("best", str(home), "--common", "--json").stdout)
    found = pb.load(home)
    assert chosen["params"] == found.common.params
    assert chosen["vote"]["candidates"] == N_CANDIDATES
    assert privbo("best", str(home), "--common", "--toml").stdout == f"x = {found.common.params['x']!r}\n"
    assert "the vote at the end" in privbo("ledger", "show", str(home)).stdout
    told = json.loads(privbo("report", str(home), "--json").stdout)
    assert told["common"]["params"] == found.common.params
    assert [row["is_vote"] for row in told["entries"]].count(True) == 1
    assert privbo("audit", str(home)).returncode == 0
    assert "drop --client" in privbo("best", str(home), "--common", "--client", "1").stderr
    without = run_spec(spec(ALGORITHMS["pf-pne"], final=None), tmp_path / "other")
    without.ledger.close()
    said = privbo("best", str(tmp_path / "other"), "--common").stderr
    assert "no common setting was announced; ask for a vote in the next one" in said  # the run is finished


WITHOUT_VOTE: dict[str, Algorithm] = {
    "fed-pne": ALGORITHMS["fed-pne"],
    "fed-pne, no tail": dataclasses.replace(pb.FedPNE(horizon=400, c=0.02), tail="stop"),
    "parallel": ALGORITHMS["parallel"],
    "f-lcb": pb.FederatedFLCB(smoothness=40.0),
}


@pytest.mark.parametrize("name", WITHOUT_VOTE)
def test_releases_alone_name_the_papers_point_which_costs_nothing(name: str, tmp_path) -> None:
    """The point is announced, follows from the ledger when the run is read again, and needs no release of its own."""
    made = run_spec(spec(WITHOUT_VOTE[name], final=None, rounds=8), tmp_path / "run")
    assert made.common.vote is made.vote is None
    assert len(made.ledger.entries()) <= made.plan.releases == plan_run(made.spec).releases
    require_good(made)
    made.ledger.close()
    path = tmp_path / "run" / COMMON
    path.write_text(json.dumps({"params": dict.fromkeys(made.common.params, 0.123)}))  # what a file says counts nothing
    again = pb.load(tmp_path / "run")
    assert again.common == made.common
    again.ledger.close()
    told = json.loads(privbo("best", str(tmp_path / "run"), "--common", "--json").stdout)
    assert told["params"] == made.common.params
    assert told["vote"] is None


def test_a_clients_paper_has_no_common_point_and_a_vote_hides_the_algorithms_own() -> None:
    assert run_spec(spec(ALGORITHMS["pf-pne"], final=None), None).common is None
    assert run_spec(spec(ALGORITHMS["dp-fts-de"], final=None), None).common is None
    asked = spec(ALGORITHMS["fed-pne"])
    server, announced = asked.server(asked.setting(5)), []
    while (ask := server.ask()) is not None:
        announced.append(CHOSEN in ask.broadcast.arrays)
        server.tell(noise_release(ask, ask.broadcast.round))
    assert announced == [False] * (len(announced) - 1) + [True]


def test_every_site_of_a_federation_and_its_server_get_the_same_common_setting(tmp_path) -> None:
    federation = make(tmp_path, {"type": "shared-prior", "n_features": 8, "release_when": "always"}, final="common")
    federation.play()
    here = json.loads(privbo("best", str(federation.run.path), "--common", "--json").stdout)
    for site in federation.sites:
        there = json.loads(privbo("best", str(federation.site_file(site).parent / "kept"), "--common", "--json").stdout)
        assert there["params"] == here["params"]
        assert there["vote"] is None


def test_ballots_follow_judgements_and_nothing_else() -> None:
    """The same clients judge the same, alone or together, before and after a restart; nothing is evaluated."""
    asked, calls = spec(ALGORITHMS["dp-fts-de"]), []
    setting = asked.setting(5)

    def evaluate(clients: IntArray, units: FloatArray) -> FloatArray:
        calls.append(len(clients))
        return bumps(clients, units)

    def cohort(*clients: int) -> Cohort:
        return asked.cohort(setting, clients=np.array(clients), evaluate=PlainEvaluate(evaluate), seed=3)

    server, everyone, single = asked.server(setting), cohort(*range(7)), cohort(4)
    ask = server.ask()
    while ask is not None and CANDIDATES not in ask.broadcast.arrays:
        values = everyone.respond(ask.broadcast).mean(axis=0)[None].repeat(2, axis=0)
        single.respond(ask.broadcast)
        release = Release(round=ask.broadcast.round, values=values, noise_stddev=1e-3, sequence=1, head="")
        server.tell(None if ask.request is None else release)
        ask = server.ask()
    before, ballot, again = len(calls), everyone.respond(ask.broadcast), cohort(*range(7))
    again.restore(everyone.snapshot())
    np.testing.assert_array_equal(again.respond(ask.broadcast), ballot)
    np.testing.assert_allclose(single.respond(ask.broadcast)[0], ballot[4], rtol=1e-6)
    assert len(calls) == before
    assert np.linalg.norm(ballot[4]) == pytest.approx(1.0)


class Corners(ThompsonServer):
    """Public side of an algorithm of a user's, whose candidates are points of its own."""

    def propose(self, count: int) -> FloatArray:
        return np.array([[0.1, 0.1], [0.4, 0.5], [0.9, 0.9]])[:count]


class OwnAlgorithm(pb.DPFTSDE):
    """An algorithm of a user's with the two methods that a common setting needs."""

    answers_together = False

    def server(self, setting: Setting) -> Corners:
        return Corners(self, setting)


def test_an_algorithm_of_ones_own_chooses_among_its_own_candidates(tmp_path) -> None:
    """Clients of an algorithm that is not ours answer one by one; the vote is the same."""
    made = run_spec(spec(OwnAlgorithm(n_features=12)), tmp_path / "run")
    assert (made.common.vote.candidates, made.common.vote.place) == (3, 1)
    made.ledger.close()
    assert json.loads(privbo("best", str(tmp_path / "run"), "--common", "--json").stdout)["vote"]["candidates"] == 3
