"""The commands, one after the other, and what they refuse at the border."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import numpy as np
import pytest
import tomli_w

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.cli.main import main
from privbo.cli.run import carry_out, read_run, report_run
from privbo.protocol.problem import ProblemSource
from privbo.runs.loop import run_spec
from tests.builders import SIMULATED, play, problem as small
from tests.conformance.cases import problem
from tests.deployment.federations import make

X = {"x": {"type": "real", "low": 0.0, "high": 1.0}}


def toml(**tables) -> str:
    """A configuration of the small problem, but for the keys and tables that are named."""
    plain = {"name": "tiny", "rounds": 3, "problem": {"factory": "tests.crash_problem:problem"}}
    chosen = {"algorithm": {"type": "dp-fts-de", "n_features": 10}, "privacy": {"epsilon": 2.0}}
    return tomli_w.dumps(plain | chosen | tables)


CONFIG = toml(controls=["local", "zeroed"])


def privbo(*arguments: object) -> subprocess.CompletedProcess:
    """The command as a shell would start it, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    called = mock.patch.object(sys, "argv", ["privbo", *map(str, arguments)])
    wide = mock.patch.dict(os.environ, COLUMNS="200")
    with called, wide, redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(action="default"):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def ran(*arguments: object, ends: int = 0) -> subprocess.CompletedProcess:
    """The command, which ends with this code."""
    done = privbo(*arguments)
    assert done.returncode == ends, done.stderr + done.stdout
    return done


def refused(*arguments: object, says: str, ends: int = 2) -> subprocess.CompletedProcess:
    """The command, which ends with this code and says this of its errors."""
    done = ran(*arguments, ends=ends)
    assert says in done.stderr, done.stderr
    return done


def written(folder, text: str = CONFIG):
    """The configuration in a file."""
    (folder / "tiny.toml").write_text(text)
    return folder / "tiny.toml"


def played(folder, text: str, name: str = "run"):
    """The directory of a run of this configuration."""
    ran("run", written(folder, text), "--out", folder / name)
    return folder / name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    said = ran("run", written(folder), "--out", folder / "run").stdout.replace("\n", "")
    assert [words in said for words in ("--show-private", "report.html", "local only")] == [True, True, False]
    return folder / "run"


def test_calibrate_prints_the_golden_figures() -> None:
    """moments 9.908 and renyi 8.361 for N=200's delta: shared reference, computed with the accountant's own goldens."""
    options = ["--sample-rate", "0.25", "--noise-multiplier", "1", "--rounds", "40", "--delta", "0.00294352"]
    epsilon = json.loads(ran("calibrate", *options, "--json").stdout)["epsilon"]
    assert "the true epsilon lies between" in ran("calibrate", *options).stdout
    assert (epsilon["moments"], epsilon["renyi"]) == pytest.approx((9.908, 8.361), abs=5e-4)


@pytest.mark.parametrize("missing", ["rounds", "sample_rate", "noise_multiplier"])
def test_calibrate_finds_the_one_that_is_missing(missing: str) -> None:
    known = {"rounds": "30", "sample_rate": "0.2", "noise_multiplier": "1.5", "epsilon": "2"}
    del known[missing]
    options = [text for key, value in known.items() for text in (f"--{key.replace('_', '-')}", value)]
    found = json.loads(privbo("calibrate", *options, "--json").stdout)
    assert found[missing] > 0
    assert 1.9 < min(found["epsilon"].values()) <= 2.0
    if missing == "rounds":
        assert "rounds: 0 (not one fits)" in privbo("calibrate", *options, "--epsilon", "0.01").stdout


def test_report_page_opens_offline_and_carries_the_headline(finished) -> None:
    """What a browser makes of it is looked at in tests/browser."""
    ran("report", finished)
    page = (finished / "report.html").read_text()
    assert "default-src 'none'; script-src 'none'; " in page
    assert "<script" not in page
    assert len(page) < 300_000
    ran("report", finished, "--statement")
    assert (finished / "statement.html").read_text().count("[to be filled in") == 6
    told = ("--purpose", "a dose", "--organisation", "<b>Clinics</b>", "--client-is", "a clinic")
    refused("report", finished, "--statement", *told, says="move it away, or name another folder: --out")
    assert (finished / "statement.html").read_text().count("[to be filled in") == 6
    (finished / "statement.html").unlink()
    ran("report", finished, "--statement", *told)
    ran("report", finished, "--statement")  # says the same: the words were kept
    sheet = (finished / "statement.html").read_text()
    assert sheet.count("[to be filled in") == 3
    assert "<dd>&lt;b&gt;Clinics&lt;/b&gt;</dd>" in sheet
    refused("report", finished, *told, says="add --statement")
    assert 1.99 < float(re.search(r'<b id="epsilon">([0-9.]+)</b>', page)[1]) <= 2.0


def test_clients_scores_are_shown_only_where_they_are_asked_for(tmp_path) -> None:
    config = written(tmp_path)
    assert "local only, nothing shared" not in ran("run", config, "--out", tmp_path / "quiet", "--json").stdout
    asked = ran("run", config, "--out", tmp_path / "asked", "--show-private", "--json").stdout
    assert "local only, nothing shared" in asked
    assert "not covered by epsilon" in asked.lower()


def test_a_runs_configuration_is_no_partys(tmp_path) -> None:
    refused("ledger", "left", written(tmp_path), says="this reads a party's site.toml, of a run name its directory\n")


def test_ledger_verify_and_export(finished, tmp_path) -> None:
    verified = json.loads(ran("ledger", "verify", finished, "--json").stdout)
    assert [verified[name] for name in ("verified", "receipts", "entries")] == [True, 3, 3]  # the history's heads
    assert verified["absent"] == ["private/countersigned.jsonl", "sites' records"]
    lines = [json.loads(line) for line in privbo("ledger", "export", finished).stdout.splitlines()]
    assert [line["digest"] for line in lines][-1] == verified["head"]
    assert privbo("ledger", "export", finished, "--format", "csv", "--out", tmp_path / "l.csv").stdout == ""
    assert len((tmp_path / "l.csv").read_text().splitlines()) == 5  # a head, the plan, three charges
    assert "DpEvent" in privbo("ledger", "export", finished, "--format", "dpevent").stdout
    ran("ledger", "export", finished, "--format", "xml", ends=2)


def test_private_diagnostics_are_off_unless_asked_for(finished, tmp_path) -> None:
    assert "private_diagnostics" not in json.loads(privbo("report", finished, "--json").stdout)
    ran("report", finished, "--private")
    assert "not covered by epsilon" in (finished / "private" / "report.html").read_text()
    assert "not covered by epsilon" not in (finished / "report.html").read_text()
    ran("report", finished, "--regret", finished.parent / "tiny.toml", ends=2)


@pytest.mark.parametrize("algorithm", ["fed-pne", "pf-pne", "parallel"])
def test_controls_that_end_sooner_than_the_run_stay_where_they_ended(algorithm: str, tmp_path) -> None:
    """An elimination on its own plays its whole horizon in one silent round."""
    chosen = {"type": algorithm, "horizon": 60, "release_when": "always"}
    text = toml(controls=["local", "zeroed"], algorithm=chosen)
    job, home = read_run(written(tmp_path, text), [], resume=None, directory=tmp_path / "run")
    quick = small(n_clients=6, batch_objective=lambda clients, units: units[:, 0], name="quick")
    done = carry_out(dataclasses.replace(job, problem=quick), home, resume=False, progress=False, show_private=True)
    over_rounds, at_the_end = done.diagnostics.verdicts
    words = " evaluations per client versus 60 alone" if algorithm == "parallel" else " rounds versus 7 alone"
    assert over_rounds.because.endswith(words)
    assert at_the_end.because == (over_rounds.because if algorithm == "parallel" else "")
    rows = done.milestones.values()
    assert (len(rows), len({tuple(row) for row in rows})) == (3, 1), "one table, the same columns for all"
    assert all(np.isfinite(list(row.values())).all() for row in rows)
    report_run(home, private=True)
    assert "not covered by epsilon" in (home / "private" / "report.html").read_text()


@pytest.mark.parametrize("line", ["run", "run no-such.toml", "report no-such-dir", "calibrate", "run --what", "rum"])
def test_bad_commands_exit_with_2(line: str) -> None:
    done = ran(*line.split(), ends=2)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Did you mean") == (line == "rum")


def test_a_folder_that_cant_be_written_is_one_line_and_exit_code_2(tmp_path) -> None:
    (line,) = ran("run", written(tmp_path), "--out", tmp_path / "tiny.toml" / "run", ends=2).stderr.splitlines()
    assert line.startswith("privbo: [Errno ")


# ---- what is refused at the border


def test_what_python_is_given_wrongly_is_refused_with_the_form_it_needs() -> None:
    numbers = "give a list, the records of every client, and a whole number"
    for mistaken, words in (
        (lambda: small(space=[pb.Real(0, 1)]), r"space=\[Real.* has no names; give a dict"),
        (lambda: small(space={"": pb.Real(0, 1)}), "a parameter's name is"),
        (lambda: small(direction=1), "direction is unknown; larger is better: return the negated loss"),
        (lambda: pb.in_blocks(score, n_records=600, n_blocks=3), numbers),
        (lambda: pb.in_blocks(score, n_records=[600], n_blocks="ten"), numbers),
        (lambda: play(small(), directory=3), "directory=3 is no path; write directory='runs/first'"),
        (lambda: pb.plan(small(), "f-lcb", privacy=SIMULATED, rounds=2), r"give pb\.FederatedFLCB\(\)"),
        (lambda: pb.plan(small(), "shared-prior", privacy=SIMULATED, rounds=2), r"give pb\.SharedPrior\(\)"),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            mistaken()


@pytest.mark.parametrize(
    ("field", "given", "wanted"), [("objective", "hosp.score", "'hosp:score'"), ("factory", "make", "module:function")]
)
def test_a_reference_without_a_colon_is_refused_before_anything_is_planned(field: str, given: str, wanted: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=rf"problem\.{field}='{given}'.*{wanted}"):
        ProblemSource(**{field: given})
    assert ProblemSource(objective="ask").objective == "ask"


# ---- ``privbo best``: parameters that clients use, read where the clients are

MIXED = {
    "rate": pb.Real(1e-3, 1.0, log=True),
    "depth": pb.Int(1, 6),
    'ker"nel é': pb.Categorical(["rbf", 'lin"ear\\', "poly\x7f"]),
    "shrink": pb.Categorical([True, False]),
}


def score(client: int, params: dict) -> float:
    if client == 2:
        raise ValueError("clinic 2 is closed")
    return min(1.0, 0.1 * params["depth"] + 0.3 * params["shrink"] - abs(np.log10(params["rate"]) + 1) / 10)


def mixed_run(home, algorithm) -> pb.Record:
    return play(small(5, space=MIXED, objective=score, name="mixed"), algorithm, seed=2, directory=home)


ALGORITHMS = [pb.SharedPrior(n_features=8), pb.PFPNE(horizon=40, c=0.02), Zoom(n_candidates=4)]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_every_client_gets_its_own_parameters_in_every_form(algorithm, tmp_path) -> None:
    home = tmp_path / "run"
    made = mixed_run(home, algorithm)
    assert [best.client for best in made.best()] == [0, 1, 3, 4]
    for best in made.best():
        assert best == made.best(best.client)
        assert score(best.client, best.params) == pytest.approx(best.value, abs=1e-9)
    told = tomllib.loads(privbo("best", home, "--toml").stdout)
    assert told == {"clients": {str(best.client): best.params for best in made.best()}}
    assert tomllib.loads(privbo("best", home, "--toml", "--client", "3").stdout) == made.best(3).params
    table = privbo("best", home).stdout
    assert "without a finite value: 2" in table
    assert "--show-private" in table
    shown = json.loads(privbo("best", home, "--json", "--show-private", "--client", "3").stdout)
    assert shown["clients"] == [{"client": 3, "params": made.best(3).params, "value": made.best(3).value}]
    hidden = privbo("best", home, "--json").stdout
    assert json.loads(hidden)["without"] == [2]
    assert '"value"' not in hidden


def test_what_cannot_be_answered_is_refused_in_one_line(tmp_path) -> None:
    mixed_run(tmp_path / "run", ALGORITHMS[0])
    for line, words in (
        ("best {}/run --client 2", "client 2 has no point here"),
        ("best {}/run --toml --json", "give one of them"),
        ("best {}", "neither a run's directory nor a site's"),
    ):
        assert refused(*line.format(tmp_path).split(), says=words).stderr.count("\n") == 1
    facts = tmp_path / "site0" / "kept" / "run" / "facts.json"  # as of a site: its settings' folder, then its own
    facts.parent.mkdir(parents=True)
    facts.write_text("{}")
    named = privbo("best", tmp_path / "site0").stderr
    assert f"name one, such as {facts.parents[1]}. A site's is the directory in its site.toml" in named
    assert f"name one, such as {tmp_path / 'run'}. " in privbo("best", tmp_path).stderr
    (tmp_path / "run" / "private" / "evaluations.npz").unlink()
    assert "go on with it first: privbo.run(" in privbo("best", tmp_path / "run").stderr


def test_a_run_that_ends_in_its_first_round_or_before_its_controls_is_to_be_gone_on_with(tmp_path) -> None:
    home, config = tmp_path / "run", written(tmp_path)
    spec, _ = read_run(config, (), resume=None, directory=home)
    words = f"go on with it first: privbo run --resume {home}"
    with pytest.raises(KeyboardInterrupt):
        run_spec(spec, home, on_evaluation=mock.Mock(side_effect=KeyboardInterrupt))
    assert words in privbo("best", home).stderr
    assert words in privbo("report", home, "--private").stdout
    run_spec(spec, home, resume=True).ledger.close()  # and none of its controls
    ran("best", home)
    assert words in privbo("report", home, "--private").stdout
    assert "drop --set, --out and the file" in privbo("run", config, "--resume", home).stderr
    privbo("run", "--resume", home)
    assert "go on" not in privbo("report", home, "--private").stdout


def test_after_a_federation_each_site_reads_its_own_and_the_server_none(tmp_path) -> None:
    federation = make(tmp_path, {"type": "shared-prior", "n_features": 8, "release_when": "always"})
    federation.play()
    alike = play(problem(), pb.SharedPrior(n_features=8), rounds=4, seed=3)
    seen = {}
    for site in federation.sites:
        found = json.loads(privbo("best", federation.site_file(site).parent / "kept", "--json").stdout)
        seen |= {row["client"]: row["params"] for row in found["clients"]}
        assert all("value" in row for row in found["clients"])
    assert sorted(seen) == list(range(7))
    assert seen == {best.client: pytest.approx(best.params) for best in alike.best()}
    refused("best", federation.run.path, says="never came here")
    assert not list(federation.run.path.rglob("facts.json"))


LOADS = """
import gc, sys
sys.argv = ["privbo", *sys.argv[1:]]
from privbo.cli.main import main
try:
    main()
finally:
    print(gc.get_threshold()[0], gc.get_freeze_count() > 100_000)
"""


def test_a_program_keeps_what_it_loads_and_looks_for_what_objectives_leave(tmp_path) -> None:
    command = [sys.executable, "-c", LOADS, "run", written(tmp_path), "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "50000 True"
