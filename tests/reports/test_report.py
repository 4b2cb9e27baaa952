"""The report's numbers: another program recomputes them."""

import dataclasses
import io
import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import privbo as pb
from accountant.events import Adjacency, compose
from accountant.tight import numerical
from accountant.verify import auditor
from accountant.wording import upper_text
from privbo.audits import empirical
from privbo.cli.run import WrittenReport, carry_out, read_run, report_run
from privbo.cli.terminal import render, show
from privbo.plans import cost
from privbo.protocol.settings import plain
from privbo.protocol.table import text_of
from privbo.reports.bundle import write_bundle, write_receipt
from privbo.reports.document import percent_bound
from privbo.reports.figure import Axis, Figure, Series, parallel
from privbo.reports.report import ledger_view, report
from privbo.reports.report_page import Told, document, statement
from privbo.runs.record import replay
from tests import crash_problem
from tests.accountant.builders import poisson, policy
from tests.builders import figures_as_data, play
from tests.cli.test_cli import toml, written
from tests.conformance.cases import CASES, problem
from tests.reports.runs import EVIL, evil_run, small_run

ZERO_OUT = Adjacency.ZERO_OUT


@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_another_program_recomputes_epsilon_from_the_json_alone(tmp_path, rate: float) -> None:
    """dp-accounting's PLD accountant, fed with the JSON's releases only, agrees to 1 %."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    result = small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, sample_rate=rate), rounds=4)
    data = json.loads(json.dumps(report(result).to_dict(), allow_nan=False))
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    for entry in data["entries"]:
        released = dp.GaussianDpEvent(entry["noise_multiplier"])
        sampled = released if entry["sample_rate"] == 1.0 else dp.PoissonSampledDpEvent(entry["sample_rate"], released)
        accountant.compose(sampled)
    theirs = accountant.get_epsilon(data["delta"])
    assert data["entries"][-1]["cumulative_epsilon"] == pytest.approx(theirs, rel=0.01)
    assert min(data["epsilon"].values()) == pytest.approx(theirs, rel=0.01)
    planned = eval(data["dp_event"], {name: getattr(dp, name) for name in dir(dp) if name.endswith("DpEvent")})  # noqa: S307 (our own words)
    whole = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(planned)
    assert whole.get_epsilon(data["delta"]) == pytest.approx(theirs, rel=1e-3)


def test_a_page_of_three_thousand_releases_lists_the_ends_and_draws_the_extremes(tmp_path) -> None:
    """The JSON keeps every charge; the page names the command that lists them."""
    count, found = 3_000, report(small_run(tmp_path / "run", rounds=2))
    first, rng = found.utility.releases[0], np.random.default_rng(4)
    norms = rng.random(count)
    norms[1234] = 9.0
    releases = tuple(dataclasses.replace(first, round=at, norm=float(norm)) for at, norm in enumerate(norms))
    entries = tuple(dataclasses.replace(found.entries[0], sequence=at, release=f"r/{at}") for at in range(count))
    utility = dataclasses.replace(found.utility, releases=releases)
    long = dataclasses.replace(found, entries=entries, utility=utility)
    assert len(long.to_dict()["entries"]) == count
    page = document(long)
    drawn = page.figures["release-norms"].series[0]
    assert len(drawn.x) <= 500
    assert list(drawn.x) == sorted(drawn.x)
    assert (1234, 9.0) in zip(drawn.x, drawn.y, strict=True)
    text = page.render()
    assert len(text) < 300_000
    assert "2,600 of 3,000 charges" in text
    assert "privbo ledger show DIR" in text
    assert all((f"r/{at}<" in text) == (at < 200 or at >= 2_800) for at in range(count))
    assert "charges, those between" not in document(found).render()


def test_guaranteed_beside_as_if_non_adaptive(tmp_path) -> None:
    """An unfinished plan is guaranteed at the plan's price; the releases made so far read cheaper."""
    algorithm = pb.FedPNE(horizon=400, c=0.02, release_when="always")
    result = small_run(tmp_path / "run", algorithm, rounds=8, privacy=pb.Privacy(epsilon=2.0))
    found = report(result)
    assert found.releases < found.planned_releases
    assert found.guarantee.guaranteed == pytest.approx(2.0, abs=1e-3)
    assert found.guarantee.as_if_non_adaptive < found.guarantee.guaranteed
    shuffled = [dataclasses.replace(entry, plan_position=7) for entry in result.ledger.entries()]
    left = cost.guarantee(shuffled, result.ledger.policy, plan=result.plan.event, delta=1e-5)
    assert left.guaranteed == math.inf
    assert left.as_if_non_adaptive is None


def test_cumulative_epsilon_never_understates() -> None:
    events = [poisson(0.3, 1.0 + 0.01 * i) for i in range(50)]
    points = cost.cumulative(events, policy(), 1e-5)
    assert len(points) <= 42
    after = cost.after_each(points, len(events))
    assert len(after) == 50
    assert after == sorted(after)
    for count in (1, 2, 27, 49, 50):
        exact = min(numerical.epsilon_table(compose(events[:count]), 1e-5, adjacency=ZERO_OUT).values())
        assert after[count - 1] >= exact * (1 - 1e-9)


@pytest.mark.parametrize("value", [1.9999988, 1.23451, 0.000123456, 12345.678])
def test_printed_bounds_are_rounded_up(value: float) -> None:
    assert value * (1 - 1e-9) <= float(upper_text(value)) <= value * (1 + 1.01e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_server_replays_from_public_files(case) -> None:
    """Replayed from configuration and ledger, a server asks again for exactly what was released."""
    result = play(problem(), case.algorithm)
    found = report(result)
    rounds = [release.round for _, release in replay(result) if release is not None]
    assert rounds == [release.round for release in result.releases]
    nodes = found.utility.active_nodes
    assert (nodes is not None) == case.name.startswith(("fed-pne", "parallel", "pf-pne", "flexible"))
    if nodes is not None:
        assert all(row.nodes >= 1 for row in nodes)
    with figures_as_data():
        assert found.name in document(found).render()


@pytest.mark.parametrize("factory", ["with_optimum", "two_lost"])
def test_regret_is_what_clients_missed(tmp_path, factory: str) -> None:
    """Against the best scores of its own evaluations, by hand; only the private page shows it."""
    config = written(tmp_path, toml(controls=["local"], problem={"factory": f"tests.crash_problem:{factory}"}))
    spec, home = read_run(config, (), resume=None, directory=tmp_path / "run")
    carry_out(spec, home, resume=False, progress=False)
    attainable = getattr(crash_problem, factory)().best_values
    history = pb.load(home).clients
    found = report_run(home, regret=config, write=False).diagnostics.regret
    assert found.mean_attainable_score == pytest.approx(attainable.mean())
    by_round = [np.fmax.reduce(history.values[:, history.rounds <= r], axis=1) for r in range(history.rounds.max() + 1)]
    missed = [float(np.nanmean(attainable - best)) for best in by_round]
    assert found.simple_regret == pytest.approx(missed[-1])
    assert found.simple_regret > 0
    curves = found.cumulative_regret
    assert curves["this run"] == pytest.approx(sum(missed[-3:]))
    assert set(curves) == {"this run", "local only, nothing shared"}
    page = report_run(home, regret=config).page
    assert page.parent.name == "private"
    assert "regret" in page.read_text()


# ---- one result and its views: JSON, terminal, repr and page say the same of the same objects

# Other programs read these.
REPORT_KEYS = {
    "name", "run", "created", "epsilon", "delta", "asked_delta", "epsilon_at", "epsilon_interval", "guaranteed",
    "because", "as_if_non_adaptive", "attacker", "planned_event", "dp_event", "releases", "hidden",
    "planned_releases", "rounds", "n_clients", "unit", "unit_text", "adjacency", "trust", "exposures", "samplers",
    "noise_multiplier", "sample_rate", "noise_source", "noise_source_text", "guarantee", "control", "caveat", "outlook",
    "population", "budget", "total", "vote", "common", "ledger", "likeness", "entries", "cumulative_epsilon", "utility",
    "problem", "algorithm", "privacy", "seed", "public_seed", "device", "source", "versions",
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> pb.Record:
    return small_run(tmp_path_factory.mktemp("run") / "run")


def shown(result: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(result, console)
    return console.export_text()


def test_the_reports_json_keeps_its_keys(result: pb.Record) -> None:
    found = report(result)
    data = json.loads(json.dumps(plain(found), allow_nan=False))
    assert set(data) == REPORT_KEYS
    state = data["ledger"]
    assert (state["verified"], state["problem"], state["head"]) == (True, None, result.ledger.head)
    assert (state["entries"], state["recovered"], data["total"]["epsilon"]) == (3, [], found.smallest_epsilon)
    assert set(data["cumulative_epsilon"][0]) == {"releases", "moments", "renyi", "tight"}
    assert data["entries"][0]["mechanism"]["type"] == "poisson-sampled-gaussian"
    assert data["epsilon_at"][0] == {"label": "this run", "delta": found.delta, "epsilon": data["epsilon"]}


def test_python_gets_figures_and_a_frame(result: pb.Record) -> None:
    found = pb.figures(result)
    every = {"epsilon-by-release", "epsilon-by-accountant", "delta-epsilon", "trade-off", "release-norms"}
    assert every == set(found)
    assert [len(found[name].series) for name in ("epsilon-by-release", "epsilon-by-accountant")] == [1, 3]
    assert list(pb.history(result)["round"]) == [0, 1, 2]


def test_every_view_quotes_the_same_epsilon(result: pb.Record) -> None:
    found = report(result)
    quoted = upper_text(found.smallest_epsilon)
    assert found.smallest_epsilon == min(plain(found)["epsilon"].values()) == result.epsilon()
    assert quoted in shown(found)
    assert f"epsilon {quoted} at delta" in repr(found)
    assert f'<b id="epsilon">{upper_text(found.smallest_epsilon)}</b>' in document(found).render()
    assert shown(WrittenReport(report=found, page=Path("x.html"))).endswith("report: x.html\n")


@pytest.mark.parametrize("delta", ["paper", 0.3])
def test_a_run_that_asked_for_a_large_delta_is_quoted_at_the_safe_one_everywhere(delta, tmp_path):
    with pytest.warns(UserWarning, match="delta = "):
        made = small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, delta=delta))
    found, asked, safe = report(made), made.delta, min(1e-5, 0.1 / made.plan.n_clients)
    assert asked > 0.01
    assert made.epsilon() <= 2.0 < made.epsilon(safe)
    data, view = plain(found), ledger_view(made)
    assert (data["delta"], data["asked_delta"], view.delta, found.total.delta) == (safe, asked, safe, safe)
    assert min(data["epsilon"].values()) == min(view.epsilon.values()) == found.smallest_epsilon == made.epsilon(safe)
    assert found.guarantee.guaranteed >= found.smallest_epsilon
    assert ("above 1/N" in shown(found)) == (delta == 0.3)
    page = document(found).render()
    assert re.search(r'<b id="epsilon">([0-9.]+)</b> at delta = 1e-05', page)
    assert 1.99 < float(re.search(rf"([0-9.]+) at delta {upper_text(asked)} \(asked for\)", page)[1]) <= 2.0
    assert f"at delta {upper_text(safe)}" in next(line for line in shown(found).splitlines() if "guaranteed" in line)
    signed = json.loads(write_receipt(made.home.path).path.read_text())["content"]
    assert (signed["epsilon"], signed["delta"]) == (found.smallest_epsilon, safe)
    auditors = auditor.verify_bundle(write_bundle(made.home.path).path)
    assert auditors.verified
    assert "at delta 1e-05, for the whole run" in auditors.page


def test_a_run_without_noise_is_infinite_in_every_view() -> None:
    found = report(play(problem(), privacy=pb.NoPrivacy(), rounds=1))
    assert found.smallest_epsilon == found.guarantee.guaranteed == math.inf
    assert set(plain(found)["epsilon"].values()) == {None}
    assert plain(found)["epsilon_interval"] == {"lower": None, "upper": None, "method": "closed-form"}
    json.dumps(plain(found), allow_nan=False)
    assert "Nothing limits what can be learnt" in shown(found)
    assert "epsilon infinite" in repr(found)
    assert "This run is not private" in document(found).render()


def test_names_are_inert_in_a_terminal(result: pb.Record) -> None:
    found = report(result)
    for name in (EVIL, "[bold]x[/bold]"):
        assert name in shown(dataclasses.replace(found, name=name))


def test_a_figures_words_round_up_and_a_level_is_nowhere() -> None:
    """An epsilon of .92634 was read as .926, and a level as if it stood at epsilon 1."""
    curve = Series(label="tight", x=[1, 20], y=[0.92634, 4.9846])
    level, point = (Series(label="alone", x=[1.0], y=[0.94], kind=kind) for kind in ("line", "points"))
    drawn = Figure(series=(curve, level, point), x=Axis(label="releases", ticks=[0.92634]), y=Axis(label="epsilon"))
    assert drawn.words.endswith("tight: from 0.9264 at 1 to 4.985 at 20. alone: 0.94. alone: 0.94 at 1.")
    assert [text.get_text() for text in drawn.plot().axes[0].get_xticklabels()] == ["0.927"]


@pytest.mark.parametrize("multiplier", [0.0362, 0.02])
def test_where_nothing_limits_a_guess_no_factor_is_stated(multiplier: float) -> None:
    """Of epsilon 1,462 the factor is no float, and the page could not be made."""
    found = report(play(problem(), privacy=pb.Privacy(noise_multiplier=multiplier), rounds=1))
    assert (found.right_guess, found.odds) == (1.0, "")
    assert "Nothing limits what can be learnt about one client" in document(found).render()


def test_no_name_stops_or_steers_a_figure() -> None:
    """Matplotlib would read a dollar sign as mathematics, and warns of what its own font lacks."""
    name = "$\\frac$ 東京 \x00"
    series = [Series(label=f"{name}{n}", x=[0, 1], y=[0, n]) for n in range(2)]
    drawn = Figure(series=series, x=Axis(label="x"), y=Axis(label="y")).svg("")
    for page in (drawn, parallel([(name, name, name), ("value", "0", "1")], [[0.5, 1.0]])):
        assert "東京" in page
        assert "\x00" not in page


def test_values_in_words_and_as_json() -> None:
    assert [text_of(v) for v in (None, math.inf, math.nan, 1.234567, 3)] == ["-", "infinite", "-", "1.235", "3"]
    assert [percent_bound(v) for v in (0.5, 0.50001, 1.0)] == ["50.0 %", "50.1 %", "100.0 %"]
    assert plain({"a": np.float64(math.nan), "b": np.arange(2), "c": (Adjacency.ZERO_OUT, Path("x"))}) == {
        "a": None, "b": [0, 1], "c": ["zero-out", "x"],
    }  # fmt: skip


def test_the_repr_of_every_result_has_two_lines(tmp_path) -> None:
    made = evil_run(tmp_path / "run")
    clipping = pb.audit(made)
    audit = empirical.Audit(name=EVIL, clipping=clipping, empirical=())
    results = (made.plan, made, pb.compare([made]), audit, clipping, ledger_view(made), report(made))
    for result in results:
        lines = repr(result).splitlines()
        assert len(lines) == 2, lines
        assert max(map(len, lines)) < 240
    for result in results[:3]:
        assert "at delta" in repr(result)
    steering = small_run(tmp_path / "steering")
    object.__setattr__(steering.spec, "name", "a\x1b[2J\nb")  # which is refused when a run begins
    assert len(repr(steering).splitlines()) == 2
    assert "\x1b" not in repr(steering)


def test_no_number_of_a_client_stands_in_a_records_own_words(result: pb.Record) -> None:
    said = repr(result)
    scores = {f"{value:.3g}" for value in result.clients.values.ravel()}
    assert len(scores) > 10
    assert not [score for score in scores if len(score) > 4 and score in said]


def test_a_statement_says_what_was_and_was_not_published(tmp_path) -> None:
    def sheet(**settings) -> str:
        made = report(play(problem(), rounds=2, **settings))
        return " ".join(statement(made).write(tmp_path / "statement.html").read_text().split())

    private, simulated = pb.DPFTSDE(n_features=8), pb.Privacy(epsilon=2.0, noise="simulation")
    odds = "multiply the probability of any outcome by 7.4 (e to the power of epsilon) and add delta, 1e-05, at most"
    told = sheet(algorithm=private, privacy=simulated)
    assert "This was a simulation: seeded noise, no guarantee. With secret noise it would have been: epsilon" in told
    assert f"Had the noise been secret, one client could {odds}." in told
    assert told.count("[to be filled in") == 7  # the signing key among them: nothing is signed in memory
    open_ = sheet(algorithm=private, privacy=pb.NoPrivacy())
    assert "This run gives no guarantee" in open_
    assert "random noise added" not in open_
    silent = sheet(algorithm=private.local(), privacy=simulated)
    assert "Nothing that follows from a client's data was published" in silent
    home = tmp_path / "run"
    kept = small_run(home, private, privacy=pb.Privacy(epsilon=2.0), rounds=2)
    written = report_run(home, statement=Told())
    told = " ".join(written.statement.read_text().split())
    assert "simulation" not in told
    assert kept.ledger.head in told
    assert f"One client could {odds}." in told
    assert odds in written.page.read_text()
    assert "python -m accountant.verify.auditor FILE" in told
    assert "with another ledger are not known here" in told
    assert "One client is</dt>" in told
    key = write_bundle(home).key  # which signs what leaves
    assert key in told
    assert key in written.page.read_text()


def test_unknown_types_have_no_view() -> None:
    with pytest.raises(TypeError, match="no form for the terminal"):
        list(render(3))
    with pytest.raises(TypeError, match="no form in JSON"):
        plain(print)


# ---- hockey-stick curves against closed forms and brute force: confidence bounds, measured and accounted

EPSILONS = np.array(empirical.EPSILONS)


def test_bounds_are_clopper_and_pearsons() -> None:
    counts, level = np.array([0.0, 1.0, 40.0, 99.0, 100.0]), 1e-6
    low, high = empirical.lower_confidence(counts, 100, level), empirical.upper_confidence(counts, 100, level)
    # What the bound says: at its probability, a count this far out has a chance of exactly ``level``.
    np.testing.assert_allclose(stats.binom.sf(counts[1:] - 1, 100, low[1:]), level, rtol=1e-6)
    np.testing.assert_allclose(stats.binom.cdf(counts[:-1], 100, high[:-1]), level, rtol=1e-6)
    assert (low[0], high[-1]) == (0.0, 1.0)
    assert low[-1] == pytest.approx(level ** (1 / 100))
    assert high[0] == pytest.approx(1 - level ** (1 / 100))


def test_a_curve_is_the_best_of_all_thresholds() -> None:
    rng, level = np.random.default_rng(0), 1e-4
    plus, minus = rng.normal(1.0, 1.0, 300), rng.normal(0.0, 1.2, 300)
    plus[: len(empirical.THRESHOLDS)] = empirical.THRESHOLDS  # a score at a threshold is not above it
    best = np.zeros(len(EPSILONS))
    counted = list(itertools.product(((plus, minus), (minus, plus)), (1, -1), empirical.THRESHOLDS))
    assert 2 * len(counted) == empirical.N_BOUNDS
    for (one, other), tail, threshold in counted:
        k, m = int((tail * one > threshold).sum()), int((tail * other > threshold).sum())
        low = stats.beta.ppf(level, k, 301 - k) if k else 0.0
        high = stats.beta.isf(level, m + 1, 300 - m) if m < 300 else 1.0
        best = np.maximum(best, low - np.exp(EPSILONS) * high)
    np.testing.assert_allclose(empirical.measured_curve(plus, minus, level), best, rtol=1e-6)


def test_a_point_above_the_accountants_comes_before_any_below_and_shares_decide_among_equals() -> None:
    claimed = np.array([1e-2, 1e-3, 1e-6, 0.0, *np.full(len(EPSILONS) - 4, 0.5)])

    def points(*lower: float) -> np.ndarray:
        return np.array([*lower, *np.zeros(len(EPSILONS) - len(lower))])

    below, nearer, above = points(1e-3), points(0.0, 5e-4), points(0.0, 0.0, 2e-6)
    found = empirical.closest_point(np.array([below, nearer, above]), claimed)
    assert (found, found.passed) == (empirical.Point(epsilon=0.5, delta_lower=2e-6, delta_claimed=1e-6), False)
    found = empirical.closest_point(np.array([nearer, below]), claimed)
    assert (found, found.passed) == (empirical.Point(epsilon=0.25, delta_lower=5e-4, delta_claimed=1e-3), True)
    found = empirical.closest_point(np.array([points(9e-3, 0.0, 0.0, 1e-9)]), claimed)
    assert (found, found.passed) == (empirical.Point(epsilon=1.0, delta_lower=1e-9, delta_claimed=0.0), False)
    assert empirical.closest_point(np.array([points()]), np.zeros(len(EPSILONS))).passed


@pytest.mark.parametrize("rate", [1.0, 0.25])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_curve_to_stay_below_is_the_accountants(rate: float, adjacency: Adjacency) -> None:
    event = poisson(rate, 1.0)
    found = empirical.curve_of(event.pairs(adjacency))
    for epsilon, delta in zip(empirical.EPSILONS, found, strict=True):
        interval = numerical.delta_interval(event, epsilon, adjacency=adjacency)
        assert interval.lower * (1 - 1e-9) <= delta <= interval.upper * (1 + 1e-3) + 1e-12
    if rate == 1.0:  # Balle and Wang (2018), theorem 8, at mu = 1
        phi = stats.norm.cdf
        exact = phi(0.5 - EPSILONS) - np.exp(EPSILONS) * phi(-0.5 - EPSILONS)
        np.testing.assert_allclose(found, exact, rtol=1e-5)
        assert np.all(found >= exact * (1 - 1e-9))


def test_what_the_curve_may_be_off_by_is_added_and_the_dearest_pair_counts() -> None:
    def pair(p_above: float):
        tails = SimpleNamespace(p_above=p_above, q_above=0.01, relative_error=0.1)
        return SimpleNamespace(tails=lambda _: tails)

    kept = 0.01 * np.exp(EPSILONS)
    expected = np.maximum(0.5 - kept + 0.1 * (0.5 + kept), 0.0)
    np.testing.assert_allclose(empirical.curve_of([pair(0.2), pair(0.5), pair(0.3)]), expected, rtol=1e-12)
