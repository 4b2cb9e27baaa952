"""What a terminal may show of other people's words: nothing that steers it, hides, or begins a line."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import privbo as pb
from accountant.ledger.export import export
from accountant.verify.text import shown, shown_lines
from experiments.examples.zoom import Zoom
from privbo.audits.clipping import publish_norms
from privbo.audits.empirical import audit_run
from privbo.reports.report import ledger_view
from tests.builders import stopped
from tests.cli.test_cli import CONFIG, X, played, privbo, ran, refused, toml, written
from tests.cli.test_reading import READING
from tests.conformance.small import problem
from tests.reports.runs import evil_run, small_run
from tests.sources import ROOT

CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)  # C0, DEL, C1, separators
FORMATS = (0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF, 0xE0041)
STEERING = "".join(map(chr, (*CONTROLS, *FORMATS)))
NAMED = f"a{STEERING}\n  ok       forged"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A run of which every name steers terminals."""
    home = tmp_path_factory.mktemp("hostile") / "run"
    evil_run(home, NAMED, name="hostile").ledger.close()
    return home


def printed(*arguments: object) -> tuple[int, str]:
    """Exit code of a command, and all that it prints, which steers no terminal."""
    done = privbo(*arguments)
    require_harmless(done.stdout + done.stderr)
    return done.returncode, done.stdout + done.stderr


def require_harmless(text: str) -> None:
    assert not set(STEERING) & set(text) - {"\n"}
    assert not [line for line in text.splitlines() if line.lstrip().startswith("ok ")]


LINES = [line for lines in READING.values() for line in lines if not re.search("home|theirs|sweep|bundle.json", line)]


@pytest.mark.parametrize("command", [*LINES, "bundle {run}", "best {run} --show-private", "report {run}/missing"])
def test_no_name_of_a_run_steers_a_terminal(command: str, hostile: Path, tmp_path) -> None:
    code, text = printed(*command.format(run=hostile, out=tmp_path).split(" "))
    assert code in (0, 2), text
    assert "Traceback" not in text


def test_names_that_steer_are_whole_where_programs_read_them(hostile: Path) -> None:
    code, text = printed("best", hostile, "--toml")
    assert code == 0
    assert f"x{NAMED}" in tomllib.loads(text)["clients"]["0"]


def test_the_files_of_a_stranger_that_cannot_be_read_are_told_in_one_line(hostile: Path, tmp_path) -> None:
    content = json.loads((hostile / "config.json").read_text())
    for part in ("format", "run_id", "created", "caveat", "digest"):
        (tmp_path / "config.json").write_text(json.dumps(content | {part: NAMED}))
        code, text = printed("report", tmp_path)
        assert (code, text.count("\n")) == (2, 1)


def test_a_fault_of_ours_quotes_no_control_character(hostile: Path, monkeypatch) -> None:
    monkeypatch.setattr("privbo.cli.run.report", mock.Mock(side_effect=RuntimeError(NAMED)))
    code, text = printed("report", hostile)
    assert (code, "Traceback" in text) == (1, True)


def test_every_command_prints_through_one_function() -> None:
    """Beside tables, which take ``verbatim`` cells, ``say`` and ``say_lines`` are all that writes."""
    writes = re.compile(r"typer\.(echo|secho)\(|(?<!console\.)\bprint\(|std(out|err)\.write\(")
    found = {path.name: len(writes.findall(path.read_text())) for path in (ROOT / "privbo" / "cli").glob("*.py")}
    assert {name: n for name, n in found.items() if n} == {"options.py": 2}


def test_text_keeps_what_is_printable() -> None:
    assert shown("Zürich 東京 'a b' \\n") == "Zürich 東京 'a b' \\n"
    assert not set(shown(STEERING)) & set(STEERING)
    assert shown_lines(f"a\n{NAMED}\n").count("\n") == 4


def test_a_charge_whose_name_steers_stays_one_row_of_the_table(hostile: Path, monkeypatch) -> None:
    with (record := pb.load(hostile)).ledger as ledger:
        rows = export(ledger, "csv").count("\n")
    monkeypatch.setattr("accountant.ledger.export.export", exported)
    for form in ("csv", "jsonl"):
        code, text = printed("ledger", "export", record.home.path, "--format", form)
        assert (code, text.count("\n")) == (0, rows if form == "csv" else rows - 1)


def exported(ledger, form: str, run: str | None) -> str:
    """An export as of a ledger whose first charge has a name that steers."""
    book = ledger.book()
    plan, first, *others = book.runs[str(run)]
    book.runs[str(run)] = [plan, replace(first, release_id=NAMED), *others]
    return export(ledger, form, run)


# ---- commands on what is there: a file instead of a directory, a directory without its private side, another version's

FACTS = {"factory": "tests.crash_problem:problem", "n_clients": 6, "space": X}
STATED = toml(controls=["local", "zeroed"], problem=FACTS, privacy={"noise_multiplier": 3.0})


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("north", "south"):
        played(folder, STATED, name)
    return folder


@pytest.fixture
def published(runs: Path, tmp_path, monkeypatch) -> Path:
    """A copy of both runs as they may be published: without their private sides."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        shutil.copytree(runs / name, tmp_path / name, ignore=shutil.ignore_patterns("private"))
    return tmp_path


COMMANDS = ("ledger show", "ledger verify", "audit --empirical", "report", "compare", "run --resume")
PLACES = ("ledger.sqlite", "config.json", "report.html", "private")


@pytest.mark.parametrize(
    "line", [f"{command} north/{place}" for command in COMMANDS for place in PLACES] + ["run north", "audit north"]
)
def test_a_command_on_something_else_ends_in_one_line(line: str, published: Path) -> None:
    done = ran(*line.split(), ends=2)
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_directory_without_its_private_side_is_compared_by_price_and_attacked(published: Path) -> None:
    done = ran("compare", "north", "south", "--out", "compared", "--json")
    assert not any("by_seed" in setting for setting in json.loads(done.stdout)["settings"])
    assert "(north, south)" in done.stdout  # runs of one configuration are told apart
    done = ran("audit", "north", "--empirical", "--trials", "1000", "--json")
    assert json.loads(done.stdout)["empirical"]
    assert not (published / "north" / "private").exists()


@pytest.mark.parametrize("part", ["privbo", "privbo's code"])
def test_the_attack_refuses_a_run_of_other_code_than_it_would_attack(part: str, published: Path) -> None:
    config = published / "north" / "config.json"
    content = json.loads(config.read_text())
    content["versions"][part] = "0.0.1"
    config.write_text(json.dumps(content))
    done = ran("audit", "north", "--empirical", "--trials", "1000", ends=2)
    assert re.search(r"made by .* 0\.0\.1, installed is", done.stderr)


def test_every_line_that_names_an_epsilon_names_its_delta(runs: Path, tmp_path) -> None:
    commands = (
        f"report {runs}/north",
        f"run {runs}/tiny.toml --dry-run --trust",
        "calibrate --epsilon 2 --sample-rate 0.5 --rounds 10",
        f"compare {runs}/north --out {tmp_path}/compared --data public --recommend epsilon=9",
    )
    shown = "".join(ran(*command.split()).stdout for command in commands).splitlines()
    lines = [line for line in shown if re.search(r"epsilon\b.*[0-9]|guaranteed|as if non", line)]
    assert len(lines) > 5
    assert not [line for line in lines if "delta" not in line]


# ---- commands on a stranger's files: nothing of theirs is run, followed or obeyed

TRAP = """
from pathlib import Path
Path({path!r}).write_text("run")
from tests.crash_problem import problem
"""


@pytest.fixture
def trap(tmp_path, monkeypatch) -> Path:
    """A file that stands once a stranger's module ``trap`` was imported."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(TRAP.format(path=str(sprung)))
    monkeypatch.chdir(tmp_path)
    return sprung


def planted(home: Path, *, hides_facts: bool = False) -> None:
    """A directory whose manifest names the trap, as a stranger would write it, and may state less of the problem."""
    content = json.loads((home / "config.json").read_text())
    content["spec"]["problem"]["factory"] = "trap:problem"
    if hides_facts:
        del content["spec"]["problem"]["n_clients"]
    (home / "config.json").write_text(json.dumps(content))


@pytest.fixture
def foreign(runs: Path, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(runs / "north", tmp_path / "foreign"))


@pytest.mark.parametrize("hides_facts", [False, True])
@pytest.mark.parametrize("command", LINES)
def test_reading_a_strangers_directory_imports_none_of_its_code(command, hides_facts: bool, foreign, trap):
    planted(foreign, hides_facts=hides_facts)
    done = privbo(*command.format(run=foreign, out=foreign.parent).split())
    assert not trap.exists()
    assert "Traceback" not in done.stderr
    if command == "run --resume {run}":
        assert (done.returncode, "--trust" in done.stderr) == (2, True)


def test_a_strangers_run_is_resumed_where_it_is_trusted_and_ones_own_always(foreign, trap, monkeypatch):
    planted(foreign)
    ran("run", "--resume", foreign, "--trust")
    assert trap.exists()
    own = played(foreign.parent, STATED, "own")
    ran("run", "--resume", own)
    monkeypatch.setenv("XDG_STATE_HOME", str(foreign.parent / "another user"))
    ran("run", "--resume", own, ends=2)


@pytest.mark.parametrize("stated", [False, True])
def test_the_price_of_a_configuration_needs_none_of_its_code(stated: bool, tmp_path, trap: Path) -> None:
    text = (STATED if stated else CONFIG).replace("tests.crash_problem:", "trap:")
    preview = ("run", written(tmp_path, text), "--dry-run")
    assert ("--trust" in ran(*preview, ends=0 if stated else 2).stderr) is not stated
    assert not trap.exists()
    if not stated:
        ran(*preview, "--trust")


LINKS = {
    "report.html.new": "report",
    "private/report.html.new": "report --private",
    "private/audit.html.new": "audit",
    "report.html": "report",
    "history.jsonl": "run --trust --resume",
    "config.json.new": "run --trust --resume",
    "private/clients-0.states.new": "run --trust --resume",
}


@pytest.mark.parametrize("name", LINKS)
def test_no_planted_link_leads_to_a_file_of_the_readers(name: str, foreign: Path, tmp_path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (foreign / name).unlink(missing_ok=True)
    (foreign / name).symlink_to(mine)
    done = privbo(*LINKS[name].split(), foreign)
    assert mine.read_text() == "precious"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["report --private", "audit", "run --trust --resume"])
def test_a_private_folder_that_leads_elsewhere_is_refused(command: str, foreign: Path, tmp_path) -> None:
    mine = tmp_path / "mine"
    (foreign / "private").rename(mine)
    (foreign / "private").symlink_to(mine)
    before = {path: path.read_bytes() for path in mine.iterdir()}
    refused(*command.split(), foreign, says="symbolic link")
    assert {path: path.read_bytes() for path in mine.iterdir()} == before


def test_an_algorithm_of_ones_own_is_attacked_where_its_code_is_trusted(tmp_path) -> None:
    home = tmp_path / "zoom"
    privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
    pb.run(problem(), Zoom(n_candidates=2), privacy=privacy, rounds=2, directory=home)
    attack = ("audit", str(home), "--empirical", "--trials", "1000", "--json")
    refused(*attack, says="Not importing experiments.examples.zoom:Zoom without --trust")
    found = ran(*attack, "--trust")
    with pytest.raises(pb.RunError, match=r"trust=True"):
        audit_run(pb.load(home), trials=1000)
    assert audit_run(pb.load(home), trials=1000, trust=True)
    assert {row["passed"] for row in json.loads(found.stdout)["empirical"]} == {True}


# ---- what commands write: no page replaces another file, private pages are their owner's, and no entry tells a time


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("outputs") / "run"
    small_run(home).ledger.close()
    return home


@pytest.mark.parametrize("command", ["report --out", "report --parquet", "audit --out", "watch --once --static"])
@pytest.mark.parametrize("name", ["config.json", "ledger.sqlite", "history.jsonl", "private/clipping.jsonl"])
def test_no_page_replaces_another_file_of_a_run(command: str, name: str, run: Path) -> None:
    before = (run / name).read_bytes()
    refused(*command.split(), run / name, run, says="its name must end in .")
    assert (run / name).read_bytes() == before


@pytest.mark.parametrize("command", ["report --private --out", "audit --out", "watch --private --once --static"])
def test_a_private_page_is_its_owners_and_never_among_public_files(command, run, tmp_path):
    (tmp_path / "config.json").write_text("of another program")
    page = tmp_path / "page.html"
    ran(*command.split(), page, run)
    assert page.stat().st_mode & 0o077 == 0
    refused(*command.split(), run / "page.html", run, says=f"name {run}/private")
    assert not (run / "page.html").exists()
    ran(*command.split(), run / "private" / "page.html", run)


def test_json_is_printed_and_nothing_written(run: Path, tmp_path) -> None:
    for more in (("--statement",), ("--out", str(tmp_path / "page.html"))):
        refused("report", run, "--json", *more, says="--json writes no page")
    assert json.loads(privbo("report", run, "--json").stdout)["run"].startswith("small-")


def test_readers_leave_no_file_of_a_ledger_behind(run: Path) -> None:
    before = set(run.glob("ledger*"))
    for command in ("ledger show", "audit", "report --json", f"report --parquet {run.parent}/h.parquet"):
        ran(*command.split(), run)
        assert set(run.glob("ledger*")) == before


def test_a_run_that_was_interrupted_tells_no_time_either(tmp_path) -> None:
    home = tmp_path / "run"
    stopped(1, small_run, home)
    for path in (home, *home.iterdir()):
        assert path.stat().st_mtime % 86400 == 0, path
    assert {path.name for path in home.iterdir()} >= {"config.json", "ledger.sqlite", "history.jsonl", "private"}


def test_what_ended_a_run_is_told_whatever_becomes_of_its_dates(tmp_path, monkeypatch):
    monkeypatch.setattr("privbo.runs.manifest.os.utime", mock.Mock(side_effect=PermissionError))
    stopped(1, small_run, tmp_path / "run")


def test_the_ledgers_view_has_what_was_published_in_addition(tmp_path) -> None:
    shared = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=9.0, delta=1e-5)
    small_run(tmp_path / "run", ledger=shared).ledger.close()
    record = pb.load(tmp_path / "run")
    with record.ledger:
        planned = ledger_view(record)
        publish_norms(record, noise_multiplier=8.0)
        found = ledger_view(record)
    assert (found.releases, len(found.entries)) == (planned.releases, len(planned.entries) + 1)
    assert found.entries[-1].cumulative_epsilon > planned.entries[-1].cumulative_epsilon


def test_a_run_whose_only_release_is_a_vote_has_nothing_that_was_clipped(tmp_path) -> None:
    small_run(tmp_path / "run", pb.SharedPrior(n_features=8, schedule=()), final="common").ledger.close()
    refused("audit", tmp_path / "run", says="a vote alone was released")


def test_settings_that_no_memory_holds_end_in_one_line(tmp_path) -> None:
    huge = toml(problem={"objective": "ask", "n_clients": 10**14, "space": X})
    done = refused("run", written(tmp_path, huge), "--dry-run", says="more memory than there is")
    assert done.stderr.count("\n") == 1


def test_a_dry_run_refuses_records_whose_scores_are_asked_for(tmp_path) -> None:
    config = written(tmp_path, toml(problem={"objective": "ask", "n_clients": 3, "n_records": [9, 9, 9], "space": X}))
    for more in (("--dry-run",), ("--out", str(tmp_path / "run"))):
        refused("run", config, *more, says="n_records needs scores")
    assert list(tmp_path.iterdir()) == [config]
