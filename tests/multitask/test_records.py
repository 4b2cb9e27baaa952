"""One record as the unit of privacy: what it moves, what an evaluation is, what is released, what is refused."""

import dataclasses
import html
import json
import math
import re
from collections import Counter
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import privbo as pb
from accountant.events import Adjacency, Gaussian
from accountant.ledger import Ledger
from accountant.ledger.signing import BUNDLE, sign
from accountant.tight import numerical
from accountant.verify.auditor import verify_bundle
from accountant.verify.reading import BundleError
from accountant.verify.statement import hidden_by
from privbo.algorithms.thompson.releases import Posterior, Releases
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.audits.clipping import price_of_norms, publish_norms
from privbo.audits.empirical import audit_run
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import SimulatedNoise
from privbo.door.sums import noisy_sums
from privbo.flower.party import SiteSettings, _require_bound
from privbo.plans.privacy import SITES_ARE_SEEN
from privbo.protocol.messages import Broadcast, Cohort, FloatArray, Records
from privbo.reports.bundle import write_bundle
from privbo.reports.comparison import note_lines
from privbo.reports.report_page import document, statement
from privbo.reports.watch import Watch
from privbo.runs.evidence import check_directory
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import planned_requests
from tests.builders import stopped

COUNTS = (60, 500, 40, 900, 70, 80, 90, 100)
SPACE = {"dose": pb.Real(0.0, 1.0), "drug": pb.Categorical(("a", "b"))}
RECORD: dict[str, Any] = {"unit": "record", "protects": "records"}
QUIET = pb.Privacy(noise_multiplier=5.0, noise="simulation", delta=1e-6, **RECORD)
SECRET = dataclasses.replace(QUIET, noise="secure")
HEARD = pb.MultiTask(release_when="always")


class Hospitals:
    """Scores of patients; one patient's may be others."""

    def __init__(self, patient: tuple[int, int] | None = None, score: float = 0.0, site: int | None = None) -> None:
        self.patient, self.score, self.site = patient, score, site
        self.data = [np.random.default_rng(client).normal(0.5, 0.1, n) for client, n in enumerate(COUNTS)]

    def __call__(self, client: int, params: dict[str, Any]) -> FloatArray:
        found = np.clip(1.0 - np.abs(params["dose"] - self.data[client]) - 0.1 * (params["drug"] == "b"), 0.0, 1.0)
        if client == self.site:
            return 1.0 - found
        if self.patient is not None and client == self.patient[0]:
            found[self.patient[1]] = self.score
        return found


def problem(objective: Any = None, **changes: Any) -> pb.Problem:
    plain = {"space": SPACE, "objective": objective or Hospitals(), "n_clients": len(COUNTS), "n_records": COUNTS}
    return pb.Problem(**plain | changes)


def spec(objective: Any = None, privacy: pb.Privacy = QUIET, **changes: Any) -> pb.Spec:
    plain = {"name": "hospitals", "problem": problem(objective), "algorithm": HEARD, "privacy": privacy, "rounds": 4}
    return pb.Spec(**plain | changes)


def sites(asked: pb.Spec, count: int = len(COUNTS)) -> Cohort:
    """The private side of a run."""
    return asked.cohort(asked.setting(7), clients=np.arange(count), evaluate=asked.problem.evaluator(), seed=0)


def front(objective: Any) -> FloatArray:
    """What sites send in round 0."""
    return sites(spec(objective)).respond(Broadcast(round=0))


@pytest.mark.parametrize("site", [1, 2])
def test_one_record_moves_its_sites_sums_by_as_much_whatever_the_site_holds(site: int) -> None:
    (request,) = planned_requests(spec())
    low, high = front(Hospitals((site, 3), 0.0)), front(Hospitals((site, 3), 1.0))
    moved = np.linalg.norm(low - high, axis=1)
    assert moved[site] == pytest.approx(math.sqrt(request.dim)) == pytest.approx(request.unit_bound)
    assert moved[site] <= request.unit_bound
    assert np.delete(moved, site).max() == 0.0
    wild = front(Hospitals((site, 3), 1e9))
    np.testing.assert_array_equal(wild, high)  # clipped: else it would move by 1e9


def test_noise_is_the_same_for_every_site_and_is_what_the_event_says() -> None:
    (request,) = planned_requests(spec())
    made = QUIET.mechanism(request, 5.0)
    assert made.event() == Gaussian(noise_multiplier=5.0)
    assert made.noise_stddev() == pytest.approx(5.0 * math.sqrt(request.dim), rel=1e-3)
    assert made.noise_stddev() >= 5.0 * math.sqrt(request.dim)
    larger = spec(problem=problem(n_records=tuple(100 * n for n in COUNTS)))
    (again,) = planned_requests(larger)
    assert QUIET.mechanism(again, 5.0).noise_stddev() == pytest.approx(made.noise_stddev(), rel=1e-6)
    several = dataclasses.replace(QUIET, records_per_person=3)
    (grouped,) = planned_requests(spec(privacy=several))
    assert several.mechanism(grouped, 5.0).noise_stddev() == pytest.approx(3 * made.noise_stddev(), rel=1e-3)


def test_a_plan_costs_one_gaussian_release_at_the_records_delta() -> None:
    asked = pb.Privacy(epsilon=1.0, **RECORD)
    plan = pb.plan(problem(), HEARD, privacy=asked, rounds=9)
    assert plan.delta == plan.safe_delta == pytest.approx(min(1e-5, 0.1 / sum(COUNTS)))
    assert (plan.releases, plan.adjacency, plan.unit) == (1, Adjacency.REPLACE_ONE, "record")
    found = numerical.epsilon(plan.event, plan.delta, adjacency=Adjacency.REPLACE_ONE)
    assert 0.999 < found <= 1.0
    fewer = pb.plan(problem(n_records=tuple(10 * n for n in COUNTS)), HEARD, privacy=asked, rounds=9)
    assert fewer.delta == pytest.approx(0.1 / (10 * sum(COUNTS)))


def test_one_sites_releases_reach_the_claim_and_do_not_pass_it() -> None:
    """50,000 releases of two worlds by the shipped sums; the means' error is .006 claimed mu, eight of them .05."""
    site, trials = 1, 50_000
    (request,) = planned_requests(spec())
    made, ways = QUIET.mechanism(request, 5.0), []
    worlds = [front(Hospitals((site, 3), score)) for score in (0.0, 1.0)]
    for seed, rows in enumerate(worlds):
        clipped = clip_rows(rows, made.applied_bound)
        everybody = np.ones((trials, len(COUNTS)), dtype=bool)
        released = noisy_sums(made, request.weights, clipped, everybody, SimulatedNoise(seed).stream("0"))
        ways.append(released[:, site].sum(axis=1) / math.sqrt(request.dim))
    mu = (ways[1].mean() - ways[0].mean()) / np.sqrt(0.5 * (ways[0].var() + ways[1].var()))
    assert 0.8 / 5.0 < mu < 1.05 / 5.0
    assert mu == pytest.approx(1 / 5.0, rel=0.05)


def test_the_empirical_audit_moves_one_record_and_finds_what_is_claimed() -> None:
    loud = pb.Privacy(noise_multiplier=1.0, noise="simulation", delta=1e-6, **RECORD)
    record = pb.run(problem(), HEARD, privacy=loud, rounds=1, seed=1)
    attacks = audit_run(record, trials=20_000)
    assert attacks
    assert all(attack.passed for attack in attacks)
    # The lower end holds with 95 %, and lies above the claim by a tenth, six of its deviations, next to never.
    assert all(0.8 < attack.epsilon_lower / attack.epsilon_claimed < 1.1 for attack in attacks)
    assert SITES_ARE_SEEN in attacks[0].event


@pytest.mark.parametrize("fault", ["raises", "too short", "text", "nan"])
def test_a_failed_evaluation_is_released_as_the_lower_end_and_never_as_an_absence(fault: str) -> None:
    honest = Hospitals()

    def failing(client: int, params: dict[str, Any]) -> Any:
        if client != 2:
            return honest(client, params)
        if fault == "raises":
            raise ValueError("secret")
        return {"too short": np.ones(COUNTS[2] - 1), "text": "a score", "nan": np.full(COUNTS[2], np.nan)}[fault]

    plain, found = front(honest), front(failing)
    np.testing.assert_allclose(found[2], -0.5 * COUNTS[2])
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(plain, 2, axis=0))
    common, quiet = dataclasses.replace(HEARD, goal="common"), dataclasses.replace(QUIET, noise_multiplier=0.01)
    record = pb.run(problem(failing), common, privacy=quiet, rounds=6, seed=1)
    assert set(record.failures) == {2}
    assert "secret" not in repr(pb.report(record).to_dict())
    for release in record.releases:
        np.testing.assert_allclose(release.values[2], -0.5 * COUNTS[2], atol=1.0)
    assert np.abs(record.releases[1].values[3]).max() > 10.0


def test_single_scores_are_clipped_one_by_one_and_the_site_is_told() -> None:
    """A mean of clipped scores: 0 and 4 in [0, 1] are .5, while their mean clipped would be 1."""
    two = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, p: [0.0, 4.0], n_clients=1, n_records=[2])
    evaluate = two.evaluator()
    assert evaluate(np.array([0]), np.array([[0.5]])).tolist() == [0.5]
    assert "score_range" in evaluate.errors[0]
    assert "4" not in evaluate.errors[0]


class _Gone:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize(
    "bad",
    [1j, np.complex128(1j), "x", 10**400, [0.5], [[0.5], 1.0], np.ones((2, 3)), np.longdouble("1e4000"), _Gone()],
    ids=lambda bad: type(bad).__name__,
)
def test_a_score_that_is_no_real_number_is_the_lower_end_and_changes_no_other(bad: object) -> None:
    scores = [np.float32(0.1), bad, True, 1]
    four = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, p: scores, n_clients=1, n_records=[4])
    with np.errstate(all="raise"):  # as the top of an objective's module may have it
        evaluate = four.evaluator()
    assert evaluate(np.array([0]), np.array([[0.5]])).tolist() == [(float(np.float32(0.1)) + 2.0) / 4]
    assert "no number" in evaluate.errors[0]


@pytest.mark.parametrize("ask", [price_of_norms, publish_norms])
def test_norms_of_sites_are_neither_priced_nor_published(ask: Any, tmp_path) -> None:
    """A price was quoted for what the door then refused."""
    record = pb.run(problem(), HEARD, privacy=SECRET, rounds=1, directory=tmp_path / "run")
    with pytest.raises(pb.ConfigurationError, match="with trust='server', unit='record' none does"):
        ask(record, noise_multiplier=2.0)
    assert len(record.ledger.entries()) == 1


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_the_audit_gives_every_sites_share_of_clipped_scores(executor: str, tmp_path) -> None:
    """Site 2 has a tenth above the range and a tenth that is no number; a rehearsal's evaluation counts once."""
    honest = Hospitals()

    def wild(client: int, params: dict[str, Any]) -> FloatArray:
        found = honest(client, params)
        if client == 2:
            found[:4], found[4:8] = 1.5, np.nan
        return found

    settings: dict[str, Any] = {"privacy": SECRET, "rounds": 2, "seed": 1, "executor": executor}
    record = pb.run(problem(wild), HEARD, directory=tmp_path / "run", **settings)
    rows = (record.home.private / "scores.jsonl").read_text().splitlines()
    assert len(rows) == 6 * len(COUNTS)
    audit = pb.audit(record)
    assert audit.score_shares == {client: 0.2 * (client == 2) for client in range(len(COUNTS))}
    assert [words for words in audit.warnings if "clipped" in words] == [audit.warnings[-1]]
    assert audit.warnings[-1].startswith("client 2: 20% of its records' scores were clipped to score_range=(0.0, 1.0)")
    assert audit.verdict == "Scores of records are clipped to score_range; there is no S to set."
    # No advice on a norm that no vector reaches, and with which the noise of a record does not fall.
    assert (audit.advice.answer, audit.by_factor()[0.5] >= audit.by_factor()[1.0]) == ("nothing to gain", True)
    public = [path for path in (tmp_path / "run").glob("*") if path.is_file() and path.suffix != ".sqlite"]
    assert not any("20%" in path.read_text(errors="ignore") for path in public)


def test_released_points_do_not_depend_on_data_and_others_later_ones_only_on_releases() -> None:
    """Site 2 is another one, and is shown the same releases. Its own later points differ: released, they would tell."""
    seen = []
    for objective in (Hospitals(), Hospitals(site=2)):
        cohort = sites(spec(objective, rounds=6))
        means = np.random.default_rng(0).random((len(COUNTS), 4))
        for round_ in range(7):
            arrays = {"means": means, "noise_stddev": np.full(len(COUNTS), 0.05)} if round_ else {}
            cohort.respond(Broadcast(round=round_, arrays=arrays))
        seen.append(cohort.history())
    ours, theirs = (history.units for history in seen)
    np.testing.assert_array_equal(ours[:, :4], theirs[:, :4])
    np.testing.assert_array_equal(np.delete(ours, 2, axis=0), np.delete(theirs, 2, axis=0))
    assert not np.array_equal(ours[2, 4:], theirs[2, 4:])
    assert seen[0].rounds.tolist() == [-1] * 4 + [1, 2, 3, 4, 5, 6]


def test_a_release_moves_what_sites_do() -> None:
    clear = dataclasses.replace(QUIET, noise_multiplier=1.0)
    runs = [pb.run(problem(), HEARD, privacy=clear, rounds=6, seed=1, control=control) for control in (None, "zeroed")]
    shared, zeroed = (run.clients.units for run in runs)
    np.testing.assert_array_equal(shared[:, :4], zeroed[:, :4])
    assert not np.array_equal(shared[:, 4:], zeroed[:, 4:])


@pytest.mark.parametrize(("goal", "points"), [("own", (4,)), ("common", (5, 4))])
@pytest.mark.parametrize(("factor", "releases"), [(1.02, 0), (0.98, None)])
def test_the_bound_on_noise_is_that_of_one_mean_however_many_releases(goal, points, factor, releases) -> None:
    """Noise in a mean of the median site of 85 records, a fiftieth above .04 of the range, and a fiftieth below."""
    z = factor * 0.04 * np.median(COUNTS) / math.sqrt(sum(points))
    loud = dataclasses.replace(QUIET, noise_multiplier=float(z))
    algorithm = pb.MultiTask(goal=goal)
    assert algorithm.n_points(spec(algorithm=algorithm, rounds=6).setting(1)) == points
    plan = pb.plan(problem(), algorithm, privacy=loud, rounds=6)
    assert plan.releases == (len(points) if releases is None else releases)
    assert plan.outlook is not None
    assert ("nothing is released" in plan.outlook) == (plan.releases == 0) == (plan.epsilon()["tight"] == 0.0)
    assert "clients answered alike" not in plan.outlook
    always = pb.plan(problem(), dataclasses.replace(algorithm, release_when="always"), privacy=loud, rounds=6)
    (stddev,) = {round(made.noise_stddev(), 1) for made in always.mechanisms if isinstance(made, PrivateSum)}
    assert stddev / np.median(COUNTS) == pytest.approx(factor * 0.04, rel=0.01)
    largest = 0.5 * max(COUNTS) / stddev  # in every number that is released, of both releases
    assert always.outlook is not None
    assert float(re.findall(r"has (\S+) times", always.outlook)[0]) == pytest.approx(largest, rel=0.05)


def test_points_that_were_announced_are_kept_and_no_other_machine_finds_others(tmp_path) -> None:
    """Resumed where the same releases would lead to other points, and read where nothing may be computed."""
    common, home = dataclasses.replace(HEARD, goal="common"), tmp_path / "run"
    asked: dict[str, Any] = {"algorithm": common, "privacy": QUIET, "rounds": 6, "seed": 1}
    whole = pb.run(problem(), directory=tmp_path / "whole", **asked)

    stopped(1, pb.run, problem(), directory=home, **asked)
    kept = json.loads((home / "announced.json").read_text())
    np.testing.assert_array_equal(kept["points"], whole.clients.units[0, 5:9])
    with mock.patch.object(Posterior, "likely_best", lambda self, count, _: self._net[:count]):
        done = pb.run(problem(), directory=home, resume=True, **asked)
    np.testing.assert_array_equal(done.clients.units, whole.clients.units)
    assert done.common == whole.common
    done.ledger.close()
    with mock.patch.object(Posterior, "likely_best", side_effect=AssertionError("computed")):
        assert pb.load(home).common == whole.common
    # Planted: points altered after the run, by which the same releases would say another setting; and none at all.
    path, run = home / "announced.json", RunDirectory(home)
    for content in (json.dumps({"points": [[1.0 - x, *rest] for x, *rest in kept["points"]]}), None):
        path.unlink() if content is None else path.write_text(content)
        words = rf"announced\.json is {'missing' if content is None else 'not what clients were told'} \(row 3 of "
        words += "the ledger binds it.*restore it from a copy"
        for opened in (pb.load, write_bundle, lambda home: pb.run(problem(), directory=home, resume=True, **asked)):
            with pytest.raises(pb.RunError, match=words):
                opened(home)
        assert re.search(words, str(check_directory(run).problem))
    path.write_text('{"points": "nowhere"}')
    with pytest.raises(pb.RunError, match=r"announced\.json can't be read"):
        run.recall(common.server(spec(algorithm=common, rounds=6).setting(1)))
    assert re.search(r"announced\.json can't be read", str(check_directory(run).problem))


def test_a_charge_binds_what_clients_are_told_and_no_file_that_is_replaced_meanwhile(tmp_path) -> None:
    run, told = RunDirectory(tmp_path), np.array([[0.25, 0.5]])
    server = mock.Mock(announced={"points": told})
    bound = run.keep_announced(server)
    assert bound == run.announced_digest
    run.announced_path.write_text(json.dumps({"points": [[0.75, 0.5]]}))
    assert run.keep_announced(server) == bound != run.announced_digest


def test_one_common_setting_is_chosen_by_two_releases_of_all_evaluations_but_the_last() -> None:
    """As many evaluations as for settings of sites' own, and what the posterior of the releases says is best."""
    common = dataclasses.replace(HEARD, goal="common")
    record = pb.run(problem(), common, privacy=QUIET, rounds=6, seed=1)
    own = pb.run(problem(), HEARD, privacy=QUIET, rounds=6, seed=1)
    assert record.clients.units.shape[1] == own.clients.units.shape[1] == 10
    assert [release.values.shape for release in record.releases] == [(len(COUNTS), 5), (len(COUNTS), 4)]
    for release in record.releases:  # as one release of all nine points would have, by the root of 9 / 4
        assert release.noise_stddev == pytest.approx(own.releases[0].noise_stddev * 1.5, rel=1e-3)
    assert record.plan.epsilon(1e-6) == pytest.approx(own.plan.epsilon(1e-6), rel=1e-6)
    units, counts, space = record.clients.units, np.array(COUNTS), problem().search_space
    noise = record.releases[0].noise_stddev / counts
    for told in (5, 9):
        sums = np.concatenate([release.values for release in record.releases], axis=1)[:, :told]
        posterior = Posterior(space, Releases.of_front(units[:, :told], 0.5 + sums / counts[:, None], noise))
        if told == 5:
            stream = public_stream(record.manifest.public_seed, Stream.CANDIDATES, 1)
            np.testing.assert_array_equal(units[:, 5:9], np.tile(posterior.likely_best(4, stream), (len(COUNTS), 1, 1)))
        else:
            np.testing.assert_array_equal(units[:, 9], np.tile(posterior.best(), (len(COUNTS), 1)))
            assert record.common is not None
            assert record.common.params == space.decode(posterior.best())
    cohort = sites(spec(algorithm=common), 2)
    cohort.respond(Broadcast(round=0))
    with pytest.raises(pb.ConfigurationError, match="points of shape"):
        cohort.respond(Broadcast(round=1))
    cohort.respond(Broadcast(round=1, arrays={"points": units[0, 5:8]}))
    with pytest.raises(pb.ConfigurationError, match="the common setting of shape"):
        cohort.respond(Broadcast(round=2))


def test_where_noise_would_drown_a_common_setting_sites_go_on_by_themselves() -> None:
    weak = dataclasses.replace(QUIET, noise_multiplier=None, epsilon=0.1)
    record = pb.run(problem(), pb.MultiTask(goal="common"), privacy=weak, rounds=5, seed=1)
    alone = pb.run(problem(), pb.MultiTask().local(), privacy=pb.NoPrivacy(), rounds=5, seed=1)
    assert (record.releases, record.common) == ((), None)
    np.testing.assert_array_equal(record.clients.units, alone.clients.units)


def test_multi_task_is_the_default_of_this_unit_alone() -> None:
    record = pb.run(problem(), privacy=QUIET, rounds=1, seed=1)
    assert record.spec.algorithm == pb.MultiTask()
    table = record.spec.to_dict()
    del table["algorithm"]
    table["problem"] = {"objective": "m:f"} | {
        name: table["problem"][name] for name in ("n_clients", "n_records", "space")
    }
    assert pb.Spec.from_dict(table).algorithm == pb.MultiTask()
    plain = pb.Problem(space=SPACE, objective=lambda c, p: 0.0, n_clients=40)
    assert pb.plan(plain, privacy=pb.Privacy(epsilon=2.0), rounds=20).releases == 2
    with pytest.raises(pb.ConfigurationError, match="no default algorithm"):
        pb.plan(plain, privacy=pb.Privacy(epsilon=2.0, unit="reward"), rounds=20)


@pytest.mark.parametrize("algorithm", [pb.DPFTSDE(), pb.SharedPrior(release_when="always")])
def test_algorithms_that_can_not_bound_one_record_are_refused_with_the_way_out(algorithm: Any) -> None:
    with pytest.raises(pb.ConfigurationError, match=r"no bound is proven on how far one record .* use MultiTask"):
        pb.plan(problem(), algorithm, privacy=QUIET, rounds=4)
    assert pb.plan(problem(), algorithm, privacy=pb.Privacy(noise_multiplier=5.0), rounds=4).releases > 0


def test_a_site_moves_the_common_means_by_its_records_share() -> None:
    """A mean over 8 sites, the smallest of which has 40 records: one of them moves K nodes by 1 / 40 each."""
    algorithm = pb.FedPNE(horizon=60, c=0.02)
    first = next(iter(planned_requests(spec(algorithm=algorithm))))
    assert (first.unit, first.n_blocks) == ("record", 1)
    assert first.unit_bound == pytest.approx(math.sqrt(first.dim) / 40)
    made = QUIET.mechanism(first, 5.0)
    assert made.sensitivity() == pytest.approx(math.sqrt(first.dim) / 40 / 8, rel=1e-2)
    plan = pb.plan(problem(), algorithm, privacy=QUIET, rounds=4)
    assert plan.event.parts == ((Gaussian(noise_multiplier=5.0), plan.releases),)
    assert plan.releases > 1  # a record is in every release, so all of them are paid for
    with pytest.raises(pb.ConfigurationError, match=r"reward_range=\(0, 2\) must be score_range=\(0, 1\)"):
        pb.plan(problem(), dataclasses.replace(algorithm, reward_range=(0.0, 2.0)), privacy=QUIET, rounds=4)


def test_a_failed_pull_counts_as_the_lowest_scores_and_is_no_absence_from_the_common_means() -> None:
    """Site 2 fails at some nodes always, and at the others every second time."""
    vectors = []
    for fails in (True, False):
        calls: Counter[Any] = Counter()

        def objective(client: int, params: dict[str, Any], fails: bool = fails, calls: Counter[Any] = calls) -> Any:
            if client == 2:
                node = tuple(params.values())
                calls[node] += 1
                if params["dose"] < 0.5 or calls[node] % 2:
                    return math.nan if fails else np.zeros(COUNTS[2])
            return Hospitals()(client, params)

        asked = spec(objective, algorithm=pb.FedPNE(horizon=600, c=0.5))
        vectors.append(sites(asked).respond(asked.server(asked.setting(7)).ask().broadcast))
        assert max(calls.values()) > 1
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0.0, atol=1e-12)
    assert -0.5 in vectors[0][2]
    assert np.max(vectors[0][2]) > -0.5


def planned(shown: pb.Problem | None = None, privacy: pb.Privacy = QUIET, **settings: Any) -> Any:
    return pb.plan(shown or problem(), HEARD, privacy=privacy, rounds=2, **settings)


ADAPTIVE = pb.AdaptiveClipping(count_stddev=10.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pb.Privacy(epsilon=1.0, unit="record"), "protects=None.*say protects='records'"),
        (lambda: pb.Privacy(epsilon=1.0, protects="records"), "unit='client', protects='records'"),
        (lambda: pb.Privacy(epsilon=1.0, records_per_person=2), "records_per_person=2"),
        (lambda: dataclasses.replace(QUIET, sample_rate=0.5), "sample_rate=0.5"),
        (lambda: dataclasses.replace(QUIET, trust="guardians"), "set trust='sites' with it"),
        (lambda: dataclasses.replace(QUIET, adaptive_clipping=ADAPTIVE), "one record may move a count"),
        (lambda: dataclasses.replace(QUIET, protects="patients"), "protects='patients'"),
        (lambda: problem(n_records=(5,)), "n_records has 1 numbers, n_clients="),
        (lambda: problem(n_records=(0,) * 8), "n_records"),
        (lambda: problem(objective="ask"), "scores that this process counts"),
        (lambda: problem(score_range=(1.0, 0.0)), "must be increasing"),
        (lambda: planned(problem(n_records=None)), r"problem\.n_records=None must state"),
        (lambda: planned(privacy=pb.Privacy(epsilon=1.0)), "use SharedPrior"),
        (lambda: planned(privacy=dataclasses.replace(QUIET, records_per_person=41)), "as many as one person has"),
        (lambda: planned(final="common"), "a ballot rests on everything"),
    ],
)
def test_impossible_privacy_and_records_are_refused(make: Any, words: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        make()


def test_views_of_many_records_quote_the_delta_of_so_many(tmp_path) -> None:
    hidden = dataclasses.replace(QUIET, protects="validation records", noise="secure", delta=1e-5)
    many = problem(lambda _, params: np.full(2000, params["dose"]), n_records=8 * (2000,))
    record = pb.run(many, HEARD, privacy=hidden, rounds=2, directory=tmp_path / "run")
    sheet = statement(pb.report(record)).write(tmp_path / "statement.html").read_text()
    assert "16,000 records at 8 clients of population" in sheet
    found = verify_bundle(write_bundle(tmp_path / "run").path)
    assert sum("at delta 6.25e-06" in line for line in found.statement) == 2  # as the report: 1 / (10 records)
    assert any("a client's records say together is not hidden" in line for line in found.statement)
    assert pb.load(tmp_path / "run").plan.safe_delta == record.plan.safe_delta == 6.25e-6


@pytest.mark.parametrize("protects", ["records", "validation records"])
@pytest.mark.parametrize("person", [1, 2])
def test_every_view_and_both_checks_name_the_same_hidden_unit_and_what_it_rests_on(protects, person, tmp_path) -> None:
    noun = f"person's {protects}" if person == 2 else protects[:-1]
    hidden = dataclasses.replace(QUIET, protects=protects, records_per_person=person, noise="secure")
    record = pb.run(problem(), HEARD, privacy=hidden, rounds=2, directory=tmp_path / "run")
    found, words = pb.report(record), pb.load(tmp_path / "run").plan.unit_text
    assert words.endswith(SITES_ARE_SEEN)
    assert ("records that models were trained on are not hidden" in words) == (protects != "records")
    pages = [path.read_text() for path in pb.write_report(record).parent.glob("*.html")]
    pages += [Watch(directories=[tmp_path / "run"]).page(), *note_lines(pb.compare([record]))[:1]]
    for view in (repr(record.plan), repr(found.to_dict()), *pages):
        assert words in html.unescape(view)
    page, sheet = (html.unescape(made(found).render()) for made in (document, statement))
    assert f"for one {noun} over the whole run" in page
    assert f"for one {noun} over the whole run" in sheet
    assert f"which of two values one {noun} had" in page
    written = write_bundle(tmp_path / "run").path
    checked = verify_bundle(written)
    assert checked.verified, checked.problems
    whom = next(line for line in checked.statement if line.startswith("To whom:"))
    assert f"each {noun} of population" in whom
    assert ("at most 2 at all sites together" in whom) == (person == 2)
    assert ("records that models were trained on are not hidden" in whom) == (protects != "records")
    rests = ("that each score depends on its own record alone", f"that no person has more than {person} ")
    for words in rests:
        assert sum(line.startswith(words) for line in checked.word) == 1
        assert words in sheet
    content = json.loads(written.read_text())["content"]
    content["settings"]["privacy"] |= {"protects": "records", "records_per_person": 3}  # a wider promise than was made
    written.write_text(json.dumps(sign(Ed25519PrivateKey.generate(), BUNDLE, content)))
    assert verify_bundle(written).outcome == "NOT VERIFIED"


def test_settings_that_say_who_is_hidden_otherwise_than_the_ledger_or_in_no_known_words_are_refused() -> None:
    asked = {"unit": "record", "protects": "records", "records_per_person": 2}
    assert hidden_by({"privacy": asked}, asked).noun == "person's records"
    told = ({"unit": "other"}, {"protects": "nobody"}, {"protects": "validation records"})
    for wrong in (*told, *({"records_per_person": n} for n in (0, 1, 3))):
        with pytest.raises(BundleError):
            hidden_by({"privacy": asked | wrong}, asked)


def test_runs_that_protect_others_never_share_a_ledger(tmp_path) -> None:
    """Planted fault: one record of one kind, then all of a person's, added up as if they were the same."""
    first = dataclasses.replace(QUIET, protects="validation records")
    shared = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward")
    pb.run(problem(), HEARD, privacy=first, rounds=1, directory=tmp_path / "0", ledger=shared).ledger.close()
    wanted = {"its protects is 'validation records', and 'records' is wanted": {"protects": "records"},
              "its records_per_person is 1, and 4 is wanted": {"records_per_person": 4}}  # fmt: skip
    for number, (words, change) in enumerate(wanted.items(), 1):
        privacy = dataclasses.replace(first, **change)
        with pytest.raises(pb.RunError, match=words):
            pb.run(problem(), HEARD, privacy=privacy, rounds=1, directory=tmp_path / f"{number}", ledger=shared)
    held = pb.Policy(epsilon=4.0, delta=1e-6, unit="record", records_per_person=2, noise=["simulation"])
    refused = held.refusals(dataclasses.replace(first, records_per_person=2), algorithm="multi-task", rounds=1)
    assert ["and policy.protects='records'" in words for words in refused] == [True]
    for person, count in ((1, 1), (2, 0), (3, 0)):
        privacy = dataclasses.replace(QUIET, records_per_person=person)
        assert len(held.refusals(privacy, algorithm="multi-task", rounds=1)) == count
    with (
        Ledger.create(None, held.ledger_policy("ward")) as ledger,
        pytest.raises(pb.ConfigurationError, match="_person = 3; the"),
    ):
        _require_bound(cast("Any", SiteSettings), dataclasses.replace(held, records_per_person=3), ledger)
    with pytest.raises(pb.ConfigurationError, match=r"go with policy\.unit='record' only"):
        pb.Policy(epsilon=4.0, delta=1e-6, records_per_person=2)


def test_a_run_that_releases_nothing_speaks_of_no_readable_scores_and_of_no_odds(tmp_path) -> None:
    record = pb.run(problem(), HEARD.local(), privacy=QUIET, rounds=2, directory=tmp_path / "run")
    assert (record.epsilon(), record.plan.releases) == (0.0, 0)
    found = pb.report(record)
    sheet, page = (html.unescape(made(found).render()) for made in (statement, document))
    lines = " ".join(verify_bundle(write_bundle(tmp_path / "run").path).statement)
    for view in (sheet, page, lines):
        assert SITES_ARE_SEEN not in view
        assert "say together is not hidden" not in view
        assert "could multiply the probability" not in view.partition("Words on this page")[0]


def test_the_largest_sum_of_a_range_off_zero_is_not_clipped() -> None:
    facts = Records(counts=(7, 9), low=-3.0, high=5.0)
    request = facts.request(3)
    vector = np.full(3, 9 * (5.0 - facts.middle))
    assert np.linalg.norm(vector) <= request.clipping_norm / math.sqrt(2) * (1 - 1e-15)
    assert request.unit_bound == pytest.approx(8.0 * math.sqrt(3))


def test_a_run_that_dies_between_charge_and_release_pays_once_and_evaluates_nothing_twice(tmp_path) -> None:
    calls, hospitals = list[int](), Hospitals()

    def counted(client: int, params: dict[str, Any]) -> FloatArray:
        calls.append(client)
        return hospitals(client, params)

    settings: dict[str, Any] = {"privacy": SECRET, "rounds": 2, "seed": 1, "directory": tmp_path / "run"}
    with mock.patch.object(Ledger, "store_release", side_effect=SystemExit), pytest.raises(SystemExit):
        pb.run(problem(counted), HEARD, **settings)
    assert len(calls) == 4 * len(COUNTS)
    record = pb.run(problem(counted), HEARD, resume=True, **settings)
    assert [entry.event for entry in record.ledger.entries()] == [Gaussian(noise_multiplier=5.0)]
    assert (len(record.releases), len(calls)) == (1, 6 * len(COUNTS))
    assert record.clients.units.shape[1] == 6
