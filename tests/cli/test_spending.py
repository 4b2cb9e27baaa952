"""What is published beside a run stands in its headline, and is paid only by who agreed to the price."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import privbo as pb
from accountant import Composed
from accountant.ledger import Ledger
from accountant.ledger.pricing import odometer
from accountant.wording import upper_text
from tests.cli.test_cli import CONFIG, privbo
from tests.comparisons.test_compare import PRIVATE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(CONFIG.replace("epsilon = 2.0", "noise_multiplier = 4.0"))
    done = privbo("run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def reported(home: Path) -> dict:
    return json.loads(privbo("report", str(home), "--json").stdout)


def test_a_command_that_spends_names_price_and_total_and_charges_nobody_unasked(run: Path) -> None:
    before = len(pb.load(run).ledger.entries())
    done = privbo("audit", str(run), "--publish-norms", "0.05")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    price, total = (float(found) for found in re.findall(r"epsilon ([0-9.]+) at delta 1e-05", done.stderr))
    assert total > price > 200
    assert len(pb.load(run).ledger.entries()) == before
    assert not (run / "published_norms.json").exists()


def test_every_headline_of_a_run_holds_what_was_published_beside_it(run: Path) -> None:
    before = reported(run)
    assert privbo("audit", str(run), "--publish-norms", "0.05", "--yes").returncode == 0
    after, record = reported(run), pb.load(run)
    paid = record.ledger.committed()
    bound = odometer([paid], record.delta, adjacency=record.plan.adjacency)
    assert bound > 200
    assert before["guaranteed"] < 3.0
    assert after["guaranteed"] == pytest.approx(bound)
    assert min(after["epsilon"].values()) == record.epsilon() == pytest.approx(bound)
    assert after["total"]["epsilon"] == pytest.approx(bound)
    page = (run / "report.html").read_text() if privbo("report", str(run)).returncode == 0 else ""
    assert float(re.search(r'<b id="epsilon">([0-9.]+)</b>', page)[1]) >= bound * (1 - 1e-4)
    for line in privbo("report", str(run)).stdout.splitlines():
        if "guaranteed" in line:
            assert float(re.search(r"guaranteed\s+([0-9.]+)", line)[1]) > 200


SWEEP = (
    PRIVATE.replace("seeds = 2", "seeds = 1")
    .replace("epsilon = 2.0", "noise_multiplier = 8.0")
    .replace('"privacy.epsilon" = [1.0, 2.0]', '"privacy.noise_multiplier" = [8.0, 16.0]')
)
LEDGER = '[ledger]\npopulation = "ward"\npath = "PATH"\n'


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep over private data on the ledger of people whom a run has charged before."""
    here = tmp_path / "people.sqlite"
    (tmp_path / "sweep.toml").write_text(SWEEP.format(path=here, bound=""))
    alone = CONFIG.replace("epsilon = 2.0", "noise_multiplier = 4.0").replace("n_features = 10", "n_features = 8")
    (tmp_path / "run.toml").write_text(alone + LEDGER.replace("PATH", str(here)))
    assert privbo("run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")).returncode == 0
    return tmp_path / "sweep.toml"


def compared(sweep: Path, *options: str) -> CompletedProcess:
    return privbo("compare", str(sweep), "--out", str(sweep.parent / "out"), "--jobs", "1", *options)


def quoted(said: str) -> tuple[float, float]:
    """Price and total at one delta, as they are asked for."""
    asked = next(line for line in said.splitlines() if "this charges" in line)
    price, total = re.findall(r"epsilon ([0-9.]+) at delta 1e-05", asked)
    return float(price), float(total)


def charged(sweep: Path) -> int:
    with Ledger.open(sweep.parent / "people.sqlite") as ledger:
        return len(ledger.book().rows)


def test_every_command_that_charges_beside_a_run_asks_first_and_says_the_total_that_it_will_come_to(
    sweep: Path,
) -> None:
    before = charged(sweep)
    refused = compared(sweep)
    assert (refused.returncode, charged(sweep)) == (2, before)
    assert "--yes" in refused.stderr
    assert "all cells" not in refused.stderr  # no table of what was not agreed to
    assert not list((sweep.parent / "out").rglob("config.json"))
    price, total = quoted(refused.stderr)
    assert total > price > 0
    paid = compared(sweep, "--yes")
    assert paid.returncode == 0, paid.stderr
    assert quoted(paid.stderr) == (price, total)
    assert f"all runs on this population by its ledger: at most epsilon {upper_text(total)} at delta 1e-05" in " ".join(
        paid.stdout.split()
    )
    after = charged(sweep)
    free = compared(sweep)  # nothing is left to pay, so nobody is asked
    assert (free.returncode, charged(sweep)) == (0, after)
    assert "charges" not in free.stderr


def test_nothing_is_recommended_over_private_data_and_that_is_said_before_anybody_pays(sweep: Path) -> None:
    before = charged(sweep)
    refused = compared(sweep, "--recommend", "epsilon=4", "--yes")
    assert (refused.returncode, charged(sweep)) == (2, before)
    assert "no epsilon covers" in refused.stderr
    assert not (sweep.parent / "out").exists()


def test_what_a_sweep_costs_stands_in_the_headline_of_a_run_on_the_same_people(sweep: Path) -> None:
    run = sweep.parent / "run"
    alone = reported(run)
    assert "all runs on ward by this ledger" not in privbo("report", str(run)).stdout
    assert compared(sweep, "--yes").returncode == 0
    together, said = reported(run), " ".join(privbo("report", str(run)).stdout.split())
    assert together["total"]["runs"] == 3  # two of them cells
    assert together["total"]["epsilon"] > alone["total"]["epsilon"]
    headline = said[: said.index("rounds")]
    assert f"epsilon {upper_text(together['total']['epsilon'])} at delta 1e-05 for 3 runs together" in headline
    assert together["total"]["rule"] in headline
    page = (run / "report.html").read_text()
    headline = page[: page.index("What an attacker gains")]
    assert re.search(r'class="big" id="total">Everything that this ledger records for population <b>ward</b>', headline)
    assert together["total"]["rule"] in headline


@pytest.mark.parametrize("kind", ["local", "non-private", "private"])
def test_a_sweep_of_an_impossible_setting_is_refused_before_its_table_is_drawn(kind: str, tmp_path: Path) -> None:
    table = SWEEP[: SWEEP.index("[base.privacy]")].replace('data = "private"', 'data = "public"')
    (tmp_path / "sweep.toml").write_text(table + f'[[arms]]\nlabel = "one"\nkind = "{kind}"\n')
    done = compared(tmp_path / "sweep.toml")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "privacy" in done.stderr
    assert not (tmp_path / "out").exists()


def test_publishing_what_was_published_before_is_free_and_asks_nobody(run: Path) -> None:
    assert privbo("audit", str(run), "--publish-norms", "0.05", "--yes").returncode == 0
    paid = len(pb.load(run).ledger.entries())
    again = privbo("audit", str(run), "--publish-norms", "0.05")
    assert (again.returncode, len(pb.load(run).ledger.entries())) == (0, paid)


@pytest.mark.parametrize("multiplier", ["0.05", "400"])
def test_a_publication_that_the_ledger_cannot_pay_is_refused_in_a_sentence_and_nobody_is_asked(
    multiplier: str, tmp_path: Path
) -> None:
    """A bound that is a filter's is quoted whatever is charged, so the projected total is the ledger's own."""
    bound = LEDGER.replace("PATH", str(tmp_path / "people.sqlite")) + 'epsilon = 4.0\ndelta = 1e-5\nrule = "renyi"\n'
    (tmp_path / "run.toml").write_text(CONFIG.replace("epsilon = 2.0", "noise_multiplier = 4.0") + bound)
    assert privbo("run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")).returncode == 0
    before = pb.load(tmp_path / "run").ledger.check(Composed()).spent
    done = privbo("audit", str(tmp_path / "run"), "--publish-norms", multiplier)
    assert done.returncode == 2
    said = done.stderr.strip().splitlines()
    if multiplier == "0.05":
        (line,) = said
        assert re.search(r"the norms of round 2: .* comes to epsilon [0-9]{4}.* over the budget 4; nothing", line)
        assert "this charges" not in line
        paid = privbo("audit", str(tmp_path / "run"), "--publish-norms", multiplier, "--yes")
        assert (paid.returncode, paid.stderr) == (2, done.stderr)
        return
    asked, _ = said
    spent = float(re.search(r"comes to epsilon ([0-9.]+) at delta 1e-05, of its bound 4 \(rule 'renyi'\)", asked)[1])
    assert before < spent < 4.0
    assert privbo("audit", str(tmp_path / "run"), "--publish-norms", multiplier, "--yes").returncode == 0
    assert pb.load(tmp_path / "run").ledger.check(Composed()).spent == pytest.approx(spent, rel=1e-3)


def test_nothing_is_published_on_the_ledger_of_one_planned_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    assert privbo("run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")).returncode == 0
    for options in ((), ("--yes",)):
        done = privbo("audit", str(tmp_path / "run"), "--publish-norms", "0.05", *options)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert "its budget holds for one planned run" in line
