"""Mistakes in an objective are found before the first charge: from public facts, or by a private rehearsal."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import tomli_w

import privbo as pb
from privbo.reports.comparison import figures, markdown
from tests.cli.test_cli import X, privbo, ran, refused, toml
from tests.deployment.federations import Federation, make

PEOPLE = {"population": "ward", "path": "people.sqlite"}
WRONG = {
    "one argument": "def score(params): return 0.0",
    "three arguments": "def score(client, params, seed): return 0.0",
    "names only": "def score(*, client, params): return 0.0",
    "no function": "score = 0.7",
    "no such name": "def skore(client, params): return 0.0",
    "a syntax error": "def score(client, params) return 0.0",
    "an import that fails": "import no_such_module_anywhere",
    "an error at import": "1 / 0",
}


def configured(**tables) -> str:
    facts = {"objective": "wards:score", "n_clients": 4, "space": {"dose": X["x"]}}
    return toml(**{"rounds": 2, "problem": facts} | tables)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run.toml").write_text(configured())
    return tmp_path / "run.toml"


@pytest.fixture
def federation(tmp_path, monkeypatch) -> Federation:
    monkeypatch.syspath_prepend(tmp_path)
    return make(tmp_path)


def wards(config, code: str) -> None:
    """Write the clients' code, and forget what stood there before."""
    (config.parent / "wards.py").write_text(code)
    shutil.rmtree(config.parent / "__pycache__", ignore_errors=True)
    sys.modules.pop("wards", None)


def played(config, code: str, *options: str) -> tuple[pb.Record, dict]:
    """A run of clients with this code, and all that is public of it, but for its name."""
    wards(config, code)
    done, home = ran("run", "run.toml", "--out", "out", *options), config.parent / "out"
    record = pb.load(home)
    return record, {
        "said": re.sub(r"[0-9a-f]{12,}", "ID", done.stdout + done.stderr),
        "names": sorted(str(path.relative_to(home)) for path in home.rglob("*") if "private" not in path.parts),
        "events": [entry.event for entry in record.ledger.entries()],
        "history": [sorted(json.loads(line)) for line in (home / "history.jsonl").read_text().splitlines()],
    }


@pytest.mark.parametrize("command", ["run run.toml --out out", "check run.toml"])
@pytest.mark.parametrize("mistake", WRONG)
def test_an_objective_that_cannot_be_called_stops_before_the_first_charge(mistake, command, config):
    wards(config, WRONG[mistake])
    (line,) = ran(*command.split(), ends=2).stderr.strip().splitlines()
    assert re.search("wards|objective", line)
    assert not (config.parent / "out").exists()


@pytest.mark.parametrize(
    ("setting", "previews"),
    [
        ("jobs=4", "run check"),
        ("executor='spam'", "run check"),
        ("times={round_seconds=1.0, client_seconds=2.0}", "run check"),
        ("device='spam'", "check"),  # a dry run may be made on another machine
    ],
)
def test_a_preview_refuses_the_settings_that_the_run_would(setting: str, previews: str, config) -> None:
    wards(config, "def score(client, params): return params['dose']\n")
    run = privbo("run", "run.toml", "--set", setting, "--out", "out")
    for preview in previews.split():
        done = privbo(preview, "run.toml", "--set", setting, *["--dry-run"] * (preview == "run"))
        assert (done.returncode, done.stderr) == (run.returncode, run.stderr) == (2, run.stderr)


def test_a_preview_says_what_the_ledger_would_and_passes_only_where_the_run_fits(config) -> None:
    """A plan dearer than the bound, and one on top of an exhausted ledger, once passed every preview."""
    wards(config, "def score(client, params): return params['dose'] + 0 * open('asked', 'a').write('x')\n")
    preview, check, price = ("run", "run.toml", "--dry-run"), ("check", "run.toml"), {"epsilon": 1.0, "delta": 1e-5}
    config.write_text(configured(ledger=PEOPLE | price))
    over = r"people\.sqlite of ward would refuse this run: .* comes to epsilon \S+ .*budget 1; privbo .*\n"
    assert all(re.search(over, ran(*command, ends=3).stdout) for command in (preview, check))
    config.write_text(configured(policy=price))
    for command in (preview, check, ("scout", "run.toml", "--epsilon", "2", "--dry-run")):
        assert "this policy refuses: " in ran(*command, ends=3).stdout
    assert not any((config.parent / name).exists() for name in ("people.sqlite", "asked"))
    config.write_text(configured(ledger=PEOPLE | price | {"epsilon": 2.5}))
    fits = r"of ward: bound epsilon 2\.5 at delta 1e-05; charged so far 0, with this run 2\n"
    assert re.search(fits, ran(*preview).stdout)
    ran("run", "run.toml", "--out", "out")
    assert "people.sqlite of ward: not opened; add --trust" in ran(*preview).stdout
    assert json.loads(privbo(*preview, "--json").stdout)["fits"] is None
    over = r"on top of epsilon (2|1\.9)\S*, comes to epsilon 2\.\d+ .*over the budget 2\.5"
    for command, ends in (((*preview, "--trust"), 3), (check, 3), (("run", "run.toml", "--out", "next"), 2)):
        done = ran(*command, ends=ends)
        assert re.search(over, done.stdout + done.stderr)
    assert json.loads(privbo(*preview, "--trust", "--json").stdout)["fits"] is False
    again = ran("run", "--resume", "out", "--dry-run", "--trust")
    assert again.stderr == ""
    assert "of ward: this run's plan is charged to it already" in again.stdout


LAST = """
ASKED = []
def score(client, params):
    ASKED.append(client)
    if client < 19 or ({late} and ASKED.count(19) > 1):
        raise KeyError("Dose")
    return params["dose"]
"""


def test_nothing_public_tells_whether_the_last_client_fails_once_a_run_has_begun(config) -> None:
    """Nineteen of twenty fail from the start, and a rehearsal says so before the run exists; the twentieth later."""
    config.write_text(configured().replace("n_clients = 4", "n_clients = 20"))
    seen = []
    for late in (False, True):
        record, public = played(config, LAST.format(late=late))
        assert len(record.failures) == 19 + late
        shutil.rmtree(record.home.path)
        seen.append(public)
    assert seen[0] == seen[1]
    words = "rehearsal: 19 of 20 clients have no value (KeyError 19); the run goes on; see privbo check CONFIG"
    assert words in seen[0]["said"]


VALUES = """
def score(client, params):
    if client >= {valued}:
        raise KeyError("Dose")
    return params["dose"] - 2.0
"""


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_clients_without_a_value_have_no_score_and_nothing_public_tells_how_many_they_are(config) -> None:
    """All scores are negative, so that 0 for clients that all failed would be the best of all."""
    config.write_text(configured(controls=["local", "zeroed"]))
    public, private = [], []
    for valued in (0, 3, 4):
        for seen, asked in ((public, ()), (private, ("--show-private",))):
            record, found = played(config, VALUES.format(valued=valued), "--no-rehearsal", *asked)
            scores, means = record.best_so_far(), [row.utility for row in pb.compare([record]).rows()]
            assert not asked or privbo("report", record.home.path, "--private").returncode == 0
            figures(pb.compare([record]))["frontier"].svg("Clients alone.")
            markdown(pb.compare([record], data="simulated"))
            record.ledger.close()
            assert len(record.best()) == valued
            assert np.isnan(scores).all() == np.isnan(means).all() == (valued == 0)
            assert valued == 0 or (scores < 0.0).all()
            shutil.rmtree(record.home.path)
            seen.append(found)
    assert public[0] == public[1] == public[2]
    none, some, each = (found["said"] for found in private)
    assert "; 0 of 4 clients of this run have a value" in none
    assert none.count("sharing is not known to help: no client has a value") == 1
    assert re.search(r"this run +│( +- │){4}", none)
    assert "; 3 of 4 clients of this run have a value" in some
    assert "have a value" not in each
    assert "no client has a value" not in some + each


def test_a_rehearsal_charges_and_publishes_nothing(config) -> None:
    code = "def score(client, params):\n    print('ward')\n    return params['dos' if client == 2 else 'dose']\n"
    wards(config, code)
    before = everything(config.parent)
    public, asked = ran("check", "run.toml"), ran("check", "run.toml", "--show-private", "--json", ends=3)
    assert everything(config.parent) == before
    assert "each of 4 clients evaluated dose = 0.5" in public.stdout
    assert not re.search("KeyError|ward", public.stdout + public.stderr)
    found = json.loads(asked.stdout[asked.stdout.index("{") :])
    assert found["private_diagnostics"]["failures"] == {"2": "KeyError: 'dos'"}
    wards(config, code.replace("'dos'", "'dose'"))
    # How long a client's part of the run takes is private, as the time of one evaluation is.
    words = r"s per evaluation, at most [\d.e-]*[1-9]\d* seconds per client in the run"
    assert re.search(words, ran("check", "run.toml", "--show-private").stdout)
    assert "per evaluation" not in public.stdout


SITE_OBJECTIVE = """
import privbo as pb
def problem():
    def score(client, params):
        if client == 4:
            raise KeyError("dos")
        if client < 3:
            raise AssertionError("another site's client")
        return params["x"]
    return pb.Problem(space={"x": pb.Real(0, 1), "y": pb.Real(1e-3, 1e1, log=True)}, objective=score, n_clients=7)
"""


def everything(folder):
    there = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in there}


def test_a_site_rehearses_its_own_clients_and_objective_and_charges_publishes_and_sends_nothing(federation, tmp_path):
    (tmp_path / "south_wards.py").write_text(SITE_OBJECTIVE)
    own = federation.site_file("south")
    own.write_text(own.read_text().replace("tests.conformance.small:problem", "south_wards:problem"))
    arguments = ("check", federation.home / "run.toml", "--site", own)
    before = everything(tmp_path)
    public, asked = ran(*arguments), ran(*arguments, "--show-private", "--json", ends=3)
    assert everything(tmp_path) == before
    assert "each of 2 clients here (of 7) evaluated" in public.stdout
    assert "KeyError" not in public.stdout + public.stderr
    found = json.loads(asked.stdout[asked.stdout.index("{") :])
    assert found["private_diagnostics"]["failures"] == {"4": "KeyError: 'dos'"}
    own.write_text(own.read_text().replace('factory = "south_wards:problem"', 'objective = "south_wards:score"'))
    assert "site.toml of south: [problem] names an objective without the run's n_clients" in privbo(*arguments).stderr
    (tmp_path / "moon.toml").write_text('name = "moon"\ndirectory = "kept"\n')
    for option, value, words in (
        ("--set", "rounds=3", "drop --set"),
        ("--site", own.with_name("no.toml"), "no.toml"),
        ("--site", tmp_path / "moon.toml", "north, south, west"),  # those that are registered
    ):
        refused(*arguments, option, value, says=words)


def test_a_site_reads_nothing_of_the_operators_ledger_which_is_elsewhere(federation: Federation) -> None:
    """An empty ledger once stood in for it, "charged so far 0"; an address was connected to."""
    run = federation.home / "run.toml"
    for path in ("/srv/operator/ward.sqlite", "postgresql://bob@127.0.0.1:9/ward?commits=/srv/operator/ward.commits"):
        shared = f'[ledger]\npath = "{path}"\npopulation = "ward"\nepsilon = 900.0\ndelta = 1e-5\n'
        run.write_text(run.read_text().partition("[ledger]")[0] + shared)
        assert "charged so far" not in ran("check", run, "--site", federation.site_file("south")).stdout


def test_a_site_of_which_no_client_has_a_value_approves_no_private_run(tmp_path, monkeypatch):
    federation = make(tmp_path, privacy={"noise_multiplier": 1.0})
    own, app = federation.site_file("south"), str(federation.home)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "south_site.py").write_text(SITE_OBJECTIVE.replace("client == 4", "client > 2"))
    text = own.read_text().partition("[[approved]]")[0]
    own.write_text(text.replace("tests.conformance.small:problem", "south_site:problem"))
    before = everything(tmp_path)
    refused("flower", "approve", own, app, "--yes", says="none of 2 clients has a value (KeyError 2)", ends=3)
    assert everything(tmp_path) == before
    ran("flower", "approve", own, app, "--yes", "--no-rehearsal")
    assert "[[approved]]" in own.read_text()


TALKS = """import logging, sys, warnings
log = logging.getLogger('wards')
log.handlers = [logging.StreamHandler()]  # as logging.basicConfig() has it at the top of many a module
def problem():
    import privbo
    print('ward.csv lacks a row')
    return privbo.Problem(space={'dose': privbo.Real(0, 1)}, objective=score, n_clients=4)
def judge(history):
    print('the judge saw 3 patients')
    return 1 - history.values
def score(client, params):
    print('client', client, 'has 3 patients')
    log.warning('client %d is logged', client)
    sys.stderr.write(f'client {client} does not converge')
    warnings.warn(f'client {client} is thin')
    return params['dose']
"""
SAID = ("has 3 patients", "does not converge", "is logged", "is thin")


def test_what_an_objective_prints_or_warns_of_stays_on_the_private_side(config) -> None:
    """Of a sweep, too, also of those who share nothing: once they printed on the terminal."""
    record, public = played(config, TALKS)
    said = (record.home.private / "output.txt").read_text()
    for words in SAID:
        assert words in said
        assert words not in public["said"]
    shutil.rmtree(record.home.path)
    wards(config, TALKS)
    table = {"name": "levels", "seeds": 2, "data": "private", "config": "run.toml", "judge": "wards:judge"}
    sweep = table | {"grid": {"rounds": [1]}, "ledger": PEOPLE}
    (config.parent / "sweep.toml").write_text(tomli_w.dumps(sweep))
    done = ran("compare", "sweep.toml", "--out", "out", "--jobs", "1", "--yes")
    assert "local only" in done.stdout
    cells = config.parent / "out" / "private" / "cells"
    said = (cells / "output.txt").read_text()
    assert len(list(cells.rglob("output.txt"))) == 3
    # warnings of a sweep's settings are said once, by the sweep
    assert all(words in said for words in (*SAID[:3], "the judge saw"))
    assert not any(words in done.stdout + done.stderr for words in (*SAID, "the judge saw"))


def test_what_a_factory_says_of_a_run_that_exists_stays_on_the_private_side(config) -> None:
    config.write_text(toml(rounds=2, problem={"factory": "wards:problem"}))
    record, public = played(config, TALKS)
    assert "lacks a row" in public["said"]  # the run did not exist yet
    done = ran("run", "--resume", "out")
    assert "lacks a row" not in done.stdout + done.stderr
    assert "lacks a row" in (record.home.private / "output.txt").read_text()
