"""What commands write: no page replaces another file, private pages are their owner's, and no entry tells a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import privbo as pb
from privbo.audits.clipping import publish_norms
from privbo.reports.report import ledger_view
from tests.builders import StoppedError, stopping
from tests.cli.test_cli import privbo
from tests.reports.runs import small_run

HEAD = 'name = "asked"\nrounds = 3\n[privacy]\nepsilon = 2.0\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("outputs") / "run"
    small_run(home).ledger.close()
    return home


@pytest.mark.parametrize(
    "command",
    [("report", "--out"), ("report", "--parquet"), ("audit", "--out"), ("watch", "--once", "--static")],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["config.json", "ledger.sqlite", "history.jsonl", "private/clipping.jsonl"])
def test_no_page_replaces_another_file_of_a_run(command: tuple[str, ...], name: str, run: Path) -> None:
    before = (run / name).read_bytes()
    done = privbo(command[0], str(run), *command[1:], str(run / name))
    assert (done.returncode, "its name must end in ." in done.stderr) == (2, True), done.stderr
    assert (run / name).read_bytes() == before


@pytest.mark.parametrize(
    "command", [("report", "--private", "--out"), ("audit", "--out"), ("watch", "--private", "--once", "--static")]
)
def test_a_private_page_is_its_owners_and_never_among_public_files(
    command: tuple[str, ...], run: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("of another program")
    page = tmp_path / "page.html"
    done = privbo(command[0], str(run), *command[1:], str(page))
    assert done.returncode == 0, done.stderr
    assert page.stat().st_mode & 0o077 == 0
    done = privbo(command[0], str(run), *command[1:], str(run / "page.html"))
    assert (done.returncode, f"name {run}/private" in done.stderr) == (2, True), done.stderr
    assert not (run / "page.html").exists()
    assert privbo(command[0], str(run), *command[1:], str(run / "private" / "page.html")).returncode == 0


def test_json_is_printed_and_nothing_written(run: Path, tmp_path: Path) -> None:
    for more in (("--statement",), ("--out", str(tmp_path / "page.html"))):
        done = privbo("report", str(run), "--json", *more)
        assert (done.returncode, "--json writes no page" in done.stderr) == (2, True), done.stderr
    assert json.loads(privbo("report", str(run), "--json").stdout)["run"].startswith("small-")


def test_readers_leave_no_file_of_a_ledger_behind(run: Path) -> None:
    before = set(run.glob("ledger*"))
    for command in (
        ("ledger", "show"),
        ("audit",),
        ("report", "--json"),
        ("report", "--parquet", "h.parquet"),
    ):
        more = [str(run.parent / each) if "." in each else each for each in command[1:]]
        assert privbo(command[0], *more, str(run)).returncode == 0
        assert set(run.glob("ledger*")) == before


def test_a_run_that_was_interrupted_tells_no_time_either(tmp_path: Path) -> None:
    home = tmp_path / "run"
    with pytest.raises(StoppedError):
        small_run(home, on_round=stopping(1))
    for path in (home, *home.iterdir()):
        assert path.stat().st_mtime % 86400 == 0, path
    assert {path.name for path in home.iterdir()} >= {"config.json", "ledger.sqlite", "history.jsonl", "private"}


def test_what_ended_a_run_is_told_whatever_becomes_of_its_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("privbo.runs.manifest.os.utime", refused)
    with pytest.raises(StoppedError):
        small_run(tmp_path / "run", on_round=stopping(1))


def test_the_ledgers_view_has_what_was_published_in_addition(tmp_path: Path) -> None:
    shared = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=9.0, delta=1e-5)
    small_run(tmp_path / "run", ledger=shared).ledger.close()
    record = pb.load(tmp_path / "run")
    with record.ledger:
        planned = ledger_view(record)
        publish_norms(record, noise_multiplier=8.0)
        found = ledger_view(record)
    assert (found.releases, len(found.entries)) == (planned.releases, len(planned.entries) + 1)
    assert found.entries[-1].cumulative_epsilon > planned.entries[-1].cumulative_epsilon


def test_a_run_whose_only_release_is_a_vote_has_nothing_that_was_clipped(tmp_path: Path) -> None:
    made = small_run(tmp_path / "run", pb.SharedPrior(n_features=8, schedule=()), final="common")
    made.ledger.close()
    done = privbo("audit", str(tmp_path / "run"))
    assert (done.returncode, "a vote alone was released" in done.stderr) == (2, True), done.stderr


def test_settings_that_no_memory_holds_end_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "huge.toml"
    config.write_text(
        f'{HEAD}[problem]\nobjective = "ask"\nn_clients = 100000000000000\n'
        '[problem.space.x]\ntype = "real"\nlow = 0\nhigh = 1\n'
    )
    done = privbo("run", str(config), "--dry-run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "more memory than there is" in done.stderr


def test_a_dry_run_refuses_records_whose_scores_are_asked_for(tmp_path: Path) -> None:
    config = tmp_path / "asked.toml"
    config.write_text(
        f'{HEAD}[problem]\nobjective = "ask"\nn_clients = 3\nn_records = [9, 9, 9]\n'
        '[problem.space.x]\ntype = "real"\nlow = 0\nhigh = 1\n'
    )
    for more in (("--dry-run",), ("--out", str(tmp_path / "run"))):
        done = privbo("run", str(config), *more)
        assert (done.returncode, "n_records needs scores" in done.stderr) == (2, True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["asked.toml"]
