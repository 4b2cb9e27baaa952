"""What is published beside a run stands in its headline, and is paid only by who agreed to the price."""

import json
import re
from pathlib import Path

import pytest

import privbo as pb
from accountant import Composed
from accountant.ledger import Ledger
from accountant.ledger.pricing import odometer
from accountant.wording import upper_text
from experiments.played import read
from experiments.worth import MEASURES
from privbo.algorithms.thompson.scout import Scout, standard_error
from privbo.cli.scout import GAINS
from tests.cli.test_cli import CONFIG, X, played, privbo, ran, refused, toml, written
from tests.comparisons.test_compare import ALGORITHM, SMALL, sweep_of

NOISY = {"privacy": {"noise_multiplier": 4.0}}


def reported(home: Path) -> dict:
    return json.loads(privbo("report", home, "--json").stdout)


def test_every_headline_of_a_run_holds_what_was_published_beside_it_and_nobody_is_charged_unasked(tmp_path) -> None:
    run = played(tmp_path, toml(**NOISY))
    before, entries, publish = reported(run), len(pb.load(run).ledger.entries()), ("audit", str(run), "--publish-norms")
    price, total = quoted(refused(*publish, "0.05", says="--yes"))
    assert total > price > 200
    assert len(pb.load(run).ledger.entries()) == entries
    assert not (run / "published_norms.json").exists()
    ran(*publish, "0.05", "--yes")
    ran(*publish, "0.05")  # what was published before is free, and asks nobody
    assert len(pb.load(run).ledger.entries()) == entries + 1
    after, record = reported(run), pb.load(run)
    bound = odometer([record.ledger.committed()], record.delta, adjacency=record.plan.adjacency)
    assert bound > 200
    assert before["guaranteed"] < 3.0
    assert after["guaranteed"] == pytest.approx(bound)
    assert min(after["epsilon"].values()) == record.epsilon() == pytest.approx(bound)
    assert after["total"]["epsilon"] == pytest.approx(bound)
    assert min(map(float, re.findall(r"guaranteed\s+([0-9.]+)", ran("report", run).stdout))) > 200
    headline = re.search(r'<b id="epsilon">([0-9.]+)</b>', (run / "report.html").read_text())
    assert float(headline[1]) >= bound * (1 - 1e-4)


@pytest.fixture
def people(tmp_path) -> dict:
    return {"population": "ward", "path": str(tmp_path / "people.sqlite")}


@pytest.fixture
def sweep(tmp_path, people: dict) -> Path:
    """A sweep over private data on the ledger of people whom a run has charged before."""
    arms = {"base": SMALL | {"privacy": {"noise_multiplier": 8.0}}, "grid": {"privacy.noise_multiplier": [8.0, 16.0]}}
    (tmp_path / "sweep.toml").write_text(sweep_of(seeds=1, data="private", ledger=people, **arms))
    played(tmp_path, toml(algorithm=ALGORITHM, ledger=people, **NOISY))
    return tmp_path / "sweep.toml"


def compared(sweep: Path, *options: str, ends: int = 0):
    return ran("compare", sweep, "--out", sweep.parent / "out", "--jobs", "1", *options, ends=ends)


def quoted(done) -> tuple[float, float]:
    """Price and total at one delta, as they are asked for."""
    asked = next(line for line in done.stderr.splitlines() if "this charges" in line)
    price, total = re.findall(r"epsilon ([0-9.]+) at delta 1e-05", asked)
    return float(price), float(total)


def charged(sweep: Path) -> int:
    with Ledger.open(sweep.parent / "people.sqlite") as ledger:
        return len(ledger.book().rows)


def test_every_command_that_charges_beside_a_run_asks_first_and_says_the_total_that_it_will_come_to(sweep):
    before, asked = charged(sweep), compared(sweep, ends=2)
    assert charged(sweep) == before
    assert "--yes" in asked.stderr
    assert "all cells" not in asked.stderr  # no table of what was not agreed to
    assert not list((sweep.parent / "out").rglob("config.json"))
    price, total = quoted(asked)
    assert total > price > 0
    paid = compared(sweep, "--yes")
    assert quoted(paid) == (price, total)
    words = f"all runs on this population by its ledger: at most epsilon {upper_text(total)} at delta 1e-05"
    assert words in " ".join(paid.stdout.split())
    after, free = charged(sweep), compared(sweep)  # nothing is left to pay, so nobody is asked
    assert (charged(sweep), "charges" in free.stderr) == (after, False)


def test_nothing_is_recommended_over_private_data_and_that_is_said_before_anybody_pays(sweep: Path) -> None:
    before, done = charged(sweep), compared(sweep, "--recommend", "epsilon=4", "--yes", ends=2)
    assert (charged(sweep), "no epsilon covers" in done.stderr) == (before, True)
    assert not (sweep.parent / "out").exists()


def test_what_a_sweep_costs_stands_in_the_headline_of_a_run_on_the_same_people(sweep: Path) -> None:
    run = sweep.parent / "run"
    alone = reported(run)
    assert "all runs on ward by this ledger" not in privbo("report", run).stdout
    compared(sweep, "--yes")
    total, said = reported(run)["total"], " ".join(privbo("report", run).stdout.split())
    assert total["runs"] == 3  # two of them cells
    assert total["epsilon"] > alone["total"]["epsilon"]
    headline, page = said[: said.index("rounds")], (run / "report.html").read_text()
    page = page[: page.index("What an attacker gains")]
    assert f"epsilon {upper_text(total['epsilon'])} at delta 1e-05 for 3 runs together" in headline
    assert 'class="big" id="total">Everything that this ledger records for population <b>ward</b>' in page
    assert total["rule"] in headline
    assert total["rule"] in page


@pytest.mark.parametrize("kind", ["local", "non-private", "private"])
def test_a_sweep_of_an_impossible_setting_is_refused_before_its_table_is_drawn(kind: str, tmp_path) -> None:
    table = sweep_of(base=SMALL | {"privacy": None}, arms=[{"label": "one", "kind": kind}])
    (tmp_path / "sweep.toml").write_text(table)
    (line,) = compared(tmp_path / "sweep.toml", ends=2).stderr.strip().splitlines()
    assert "privacy" in line
    assert not (tmp_path / "out").exists()


def test_a_publication_that_the_ledger_cannot_pay_is_refused_in_a_sentence_and_nobody_is_asked(people, tmp_path):
    """A bound that is a filter's is quoted whatever is charged, so the projected total is the ledger's own."""
    bound = people | {"epsilon": 4.0, "delta": 1e-5, "rule": "renyi"}
    publish = ("audit", played(tmp_path, toml(ledger=bound, **NOISY)), "--publish-norms")
    before = pb.load(tmp_path / "run").ledger.check(Composed()).spent
    (line,), (again,) = (ran(*publish, "0.05", *yes, ends=2).stderr.strip().splitlines() for yes in ((), ("--yes",)))
    assert re.search(r"the norms of round 2: .* comes to epsilon [0-9]{4}.* over the budget 4; .* nothing", line)
    assert ("this charges" in line, again) == (False, line)
    asked, _ = ran(*publish, "400", ends=2).stderr.strip().splitlines()
    spent = float(re.search(r"comes to epsilon ([0-9.]+) at delta 1e-05, of its bound 4 \(rule 'renyi'\)", asked)[1])
    assert before < spent < 4.0
    ran(*publish, "400", "--yes")
    assert pb.load(tmp_path / "run").ledger.check(Composed()).spent == pytest.approx(spent, rel=1e-3)


def test_nothing_is_published_on_the_ledger_of_one_planned_run(tmp_path) -> None:
    publish = ("audit", played(tmp_path, CONFIG), "--publish-norms", "0.05")
    for options in ((), ("--yes",)):
        (line,) = ran(*publish, *options, ends=2).stderr.strip().splitlines()
        assert "its budget holds for one planned run" in line


# ---- ``privbo scout``: priced before it is paid, charged as any run, and what it prints

STORED = Path(__file__).parents[2] / "docs/results/worth/worth.json"
PAGE = Path(__file__).parents[2] / "docs/how-to/scout.md"
ELSEWHERE = {"objective": "no_such_module:score", "n_clients": 40, "space": X}


@pytest.fixture
def config(tmp_path, people: dict) -> Path:
    return written(tmp_path, toml(ledger=people | {"epsilon": 5.0, "delta": 1e-5}))


def test_a_scout_names_price_and_error_before_it_is_charged_to_the_peoples_ledger_as_any_run(config, tmp_path):
    home = tmp_path / "scout"
    asked = ("scout", str(config), "--epsilon", "0.5", "--points", "6", "--out", str(home))
    unasked = refused(*asked, says="--yes")
    price, total = quoted(unasked)
    assert 0.499 < price <= 0.5
    assert 0.0 < total <= 5.0
    assert "at delta 1e-05, of its bound 5" in unasked.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]
    errors = re.search(r"error of the correlation: ([0-9.]+) if .*, ([0-9.]+) if", unasked.stderr)
    assert errors.end() < unasked.stderr.index("charges epsilon")
    found = json.loads(ran(*asked, "--yes", "--json").stdout)
    expected = found["expected_error"]
    assert list(map(float, errors.groups())) == pytest.approx([expected["unlike"], expected["alike"]], abs=6e-3)
    # The error that came out follows from the release's own noise, by the same formula.
    (release,) = pb.load(home).releases
    where = {"n_clients": 6, "n_points": 6, "noise_stddev": release.noise_stddev}
    assert expected["alike"] == pytest.approx(standard_error(1.0, **where), rel=1e-12)
    assert found["standard_error"] == pytest.approx(standard_error(found["correlation"], **where), rel=1e-12)
    assert (found["n_points"], found["delta"], found["total"]["runs"]) == (6, 1e-5, 1)
    assert 0.499 < min(found["epsilon"].values()) <= 0.5
    with pb.load(home).ledger as ledger:
        assert len(ledger.entries()) == 1
    total = reported(played(tmp_path, config.read_text()))["total"]
    assert total["runs"] == 2
    assert 2.0 < total["epsilon"] <= 5.0  # the run was planned after the scout had told something
    assert reported(home)["releases"] == 1


def test_a_run_that_will_end_with_a_vote_is_scouted_without_one(config: Path, tmp_path) -> None:
    home = tmp_path / "scout"
    done = ran("scout", config, "--set", "final=common", "--epsilon", "1", "--out", home, "--yes")
    assert "three seeds each, measured beforehand" in done.stdout  # as the page says
    assert "over the run / at the end; epsilon at delta 1e-05" in " ".join(done.stdout.split())
    with pb.load(home).ledger as ledger:
        assert len(ledger.entries()) == 1


def test_a_dry_run_of_a_scout_prints_price_and_error_and_touches_nothing(people: dict, tmp_path) -> None:
    config = toml(problem=ELSEWHERE, ledger=people, privacy={"epsilon": 2.0, "delta": 1e-5})
    asked = ("scout", written(tmp_path, config), "--epsilon", "1", "--dry-run")
    found = json.loads(privbo(*asked, "--json").stdout)
    assert 0.999 < min(found["epsilon"].values()) <= 1.0
    assert found["plan"]["releases"] == 1
    # 40 clients, 16 points, delta 1e-5, epsilon 1: at correlation .8 the page has .18.
    assert found["expected_error"]["unlike"] < 0.18 < found["expected_error"]["alike"] < 0.20
    assert re.search(r"no data was touched(.|\n)*alike \(1\)", privbo(*asked).stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_the_table_of_errors_is_what_scouts_expect() -> None:
    rows = re.findall(r"^\| (\d+) \| ([.\d]+) \| ([.\d]+) \| ([.\d]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for n_clients, *errors in rows:
        for epsilon, error in zip((0.5, 1.0, 2.0), errors, strict=True):
            problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: 0.0, n_clients=int(n_clients))
            plan = pb.plan(problem, Scout(), privacy=pb.Privacy(epsilon=epsilon, delta=1e-5), rounds=1)
            (mechanism,) = plan.mechanisms
            found = standard_error(0.8, n_clients=plan.n_clients, n_points=16, noise_stddev=mechanism.noise_stddev())
            assert found == pytest.approx(float(error), abs=0.0051 if float(error) >= 0.01 else 0.00051)


def test_what_cannot_be_scouted_is_refused(config: Path) -> None:
    """Of records it once charged clients' unit to a ledger of its own, to which no run on the records added up."""
    records = {
        "problem": ELSEWHERE | {"n_records": [300] * 40},
        "algorithm": {"type": "multi-task"},
        "privacy": {"epsilon": 2.0, "unit": "record", "protects": "records"},
    }
    for tables, epsilon, words in (
        ({"privacy": {"none": True}}, "1", "a scout is"),
        ({}, "-1", "epsilon=-1"),
        (records, "1", "privacy.unit='record': a scout hides clients"),
    ):
        config.write_text(toml(**{"problem": ELSEWHERE} | tables))
        refused("scout", config, "--epsilon", epsilon, "--dry-run", says=words)


def test_the_gains_are_those_of_the_stored_table_and_no_family_without_a_choice_is_left_out() -> None:
    stored = read(json.loads(STORED.read_text())["overall"])
    families = {one.title: one for one in stored if one.purpose in ("reporting", "own")}
    assert {gain.family for gain in GAINS} == families.keys()
    for gain in GAINS:
        family = families[gain.family]
        mean, end = (family.ratio(f"default, epsilon {gain.epsilon:g}", measure) for measure in MEASURES)
        told = (gain.n_clients, gain.correlation, gain.mean, gain.mean_error, gain.end, gain.end_error)
        found = (family.n_clients, family.correlation, mean.value, mean.error, end.value, end.error)
        assert told == pytest.approx(found, abs=0.0051), gain
