"""What a terminal may show of other people's words: nothing that steers it, hides, or begins a line."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import privbo as pb
from accountant.ledger import Ledger
from accountant.ledger.export import Format, export
from accountant.verify.text import shown, shown_lines
from privbo.cli.main import main
from tests.cli.test_reading import READING
from tests.conformance.cases import bumps

CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)  # C0, DEL, C1, separators
FORMATS = (0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF, 0xE0041)
STEERING = "".join(map(chr, (*CONTROLS, *FORMATS)))
NAMED = f"a{STEERING}\n  ok       forged"
CLI = Path(__file__).parents[2] / "privbo" / "cli"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which every name steers terminals."""
    problem = pb.Problem(
        space={f"x{NAMED}": pb.Real(0, 1), "y": pb.Categorical((NAMED, "b"))},
        batch_objective=lambda clients, units: bumps(clients, np.asarray(units)),
        n_clients=7,
        name="hostile",
        provenance=NAMED,
    )
    home, privacy = tmp_path_factory.mktemp("hostile") / "run", pb.Privacy(noise_multiplier=2.0)
    pb.run(problem, pb.DPFTSDE(n_features=8), privacy=privacy, rounds=2, directory=home, name="hostile").ledger.close()
    return home


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code of a command in this process, and all that it prints."""
    monkeypatch.setattr(sys, "argv", ["privbo", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    done = capsys.readouterr()
    return int(end.value.code or 0), done.out + done.err


def require_harmless(text: str) -> None:
    assert not set(STEERING) & set(text) - {"\n"}
    assert not [line for line in text.splitlines() if line.lstrip().startswith("ok ")]


LINES = [line for lines in READING.values() for line in lines if not re.search("home|theirs|sweep|bundle.json", line)]


@pytest.mark.parametrize("command", [*LINES, "bundle {run}", "best {run} --show-private", "report {run}/missing"])
def test_no_name_of_a_run_steers_a_terminal(
    command: str, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = printed(monkeypatch, capsys, *command.format(run=hostile, out=tmp_path).split(" "))
    assert code in (0, 2), text
    assert "Traceback" not in text
    require_harmless(text)


def test_names_that_steer_are_whole_where_programs_read_them(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = printed(monkeypatch, capsys, "best", str(hostile), "--toml")
    assert code == 0
    require_harmless(text)
    assert f"x{NAMED}" in tomllib.loads(text)["clients"]["0"]


def test_the_files_of_a_stranger_that_cannot_be_read_are_told_in_one_line(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((hostile / "config.json").read_text())
    for part in ("format", "run_id", "created", "caveat", "digest"):
        (tmp_path / "config.json").write_text(json.dumps(content | {part: NAMED}))
        code, text = printed(monkeypatch, capsys, "report", str(tmp_path))
        assert code == 2
        assert text.count("\n") == 1
        require_harmless(text)


def test_a_fault_of_ours_quotes_no_control_character(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise RuntimeError(NAMED)

    monkeypatch.setattr("privbo.cli.run.report", faulty)
    code, text = printed(monkeypatch, capsys, "report", str(hostile))
    assert (code, "Traceback" in text) == (1, True)
    require_harmless(text)


def test_every_command_prints_through_one_function() -> None:
    """Beside tables, which take ``verbatim`` cells, ``say`` and ``say_lines`` are all that writes."""
    writes = re.compile(r"typer\.(echo|secho)\(|(?<!console\.)\bprint\(|std(out|err)\.write\(")
    found = {path.name: len(writes.findall(path.read_text())) for path in CLI.glob("*.py")}
    assert {name: n for name, n in found.items() if n} == {"options.py": 2}


def test_text_keeps_what_is_printable() -> None:
    assert shown("Zürich 東京 'a b' \\n") == "Zürich 東京 'a b' \\n"
    assert not set(shown(STEERING)) & set(STEERING)
    assert shown_lines(f"a\n{NAMED}\n").count("\n") == 4


def test_a_charge_whose_name_steers_stays_one_row_of_the_table(
    tmp_path: Path, hostile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (record := pb.load(hostile)).ledger as ledger:
        rows = export(ledger, "csv").count("\n")
    named = partial(exported, name=NAMED)
    monkeypatch.setattr("accountant.ledger.export.export", named)
    for form in ("csv", "jsonl"):
        code, text = printed(monkeypatch, capsys, "ledger", "export", str(record.home.path), "--format", form)
        assert (code, text.count("\n")) == (0, rows if form == "csv" else rows - 1)
        require_harmless(text)


def exported(ledger: Ledger, form: Format, run: str | None, *, name: str) -> str:
    """An export as of a ledger whose first charge has this name."""
    first, *others = ledger.entries(run)
    hostile = SimpleNamespace(entries=lambda _: [replace(first, release_id=name), *others])
    return export(cast("Ledger", hostile), form, run)
