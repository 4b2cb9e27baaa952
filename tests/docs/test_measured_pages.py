"""The measured parts of two pages are made by a command; what was recorded elsewhere stands apart."""

import io
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

import benchmarks
from benchmarks import _flower_beside, _page, _pictures, _rows

ROOT = Path(__file__).parents[2]
HALF = _rows.Limit(1e-3, "arithmetic")
ROWS = [
    _rows.Row("quick", 2e-3, "peer", 8e-3, least=HALF),
    _rows.Row("quick", 2e-3, "another peer", 4e-3, least=HALF),
    _rows.Row("long", 1.5, "the bar", 2.0, kind="bar"),
    _rows.Row("wide", 0.9, "the bar, twice another", 0.5, kind="bar", unit="share", more_is_better=True),
    _rows.Row("old", 3e-6, "their code", 3e-3, kind="recorded"),
]


def stored(rows: list[_rows.Row], *made: str) -> list[dict[str, str | float]]:
    return [row.to_dict() | {"made": made[at % len(made)]} for at, row in enumerate(rows)]


def cost(n_clients: int, seconds: float, series: str = "no fits") -> _rows.Row:
    place = _rows.Place(picture="cost", series=series, x=n_clients)
    return _rows.Row(f"{n_clients}, {series}", seconds, "the bar, flat", 2e-3, kind="bar", place=place, least=HALF)


def test_what_was_recorded_stands_last_and_units_are_said() -> None:
    part = _page.measured(stored(ROWS, "one code", "another"), Path("speed.md"))
    assert part.startswith("Measured by another; one code on one machine (")
    table, recorded = part.split("**Recorded elsewhere")
    assert "| what | ours | peer: its number (ratio) | bar (times better) | share of the machine's limit |" in table
    assert "| quick | 2 ms | peer: 8 ms (4); another peer: 4 ms (2) |  | 0.5, arithmetic |" in table
    assert "| long | 1.5 s |  | 2 s (1.33) |  |" in table
    assert "| wide | 0.9 |  | twice another: 0.5 (1.8) |  |" in table
    assert "| old | 3 µs | their code: 3 ms (1e+03) |" in recorded
    assert "their code" not in table


def test_rows_with_a_place_make_a_table_and_a_picture_beside_the_page(tmp_path) -> None:
    page = tmp_path / "scale.md"
    page.write_text(f"before\n\n{_page.BEGIN}\n\nstale\n\n{_page.END}\n\nafter\n")
    rows = stored([cost(1000, 1e-3), cost(10_000, 2e-3), cost(1000, 4e-3, "default fits")], "one code")
    _page.refresh(page, rows)
    text = page.read_text()
    title = _pictures.PICTURES["cost"].title
    assert "| clients | no fits | default fits | the bar, flat |" in text
    assert "| 1,000 | 1 ms | 4 ms | 2 ms |" in text
    assert "| 10,000 | 2 ms | - | 2 ms |" in text
    assert f"![{title}](scale-cost.png)" in text
    assert "| 1000, no fits |" not in text  # what a picture shows is told once
    assert text.startswith(f"before\n\n{_page.BEGIN}\n\n")
    assert text.endswith(f"\n\n{_page.END}\n\nafter\n")
    picture = (tmp_path / "scale-cost.png").read_bytes()
    assert Image.open(io.BytesIO(picture)).size == (560, 336)
    _page.refresh(page, rows)
    assert (page.read_text(), (tmp_path / "scale-cost.png").read_bytes()) == (text, picture)


@pytest.mark.parametrize("name", ["speed.md", "scale.md"])
def test_the_pages_have_a_place_for_it(name: str) -> None:
    assert _page.written((ROOT / "docs" / name).read_text(), "new").count("new") >= 1
    with pytest.raises(ValueError, match="measured: begin"):
        _page.written("no marks", "new")


def test_the_program_of_plain_flower_names_nothing_that_it_lacks() -> None:
    """It stands in a string, where no linter looks."""
    program = _flower_beside.PLAIN.format(nodes=3, rounds=2, n_bytes=8, out="seconds.json")
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "-"]
    for code, lines in ((0, program), (1, program.replace("import time\n", ""))):
        found = subprocess.run(lint, input=lines, capture_output=True, text=True, check=False)
        assert found.returncode == code, found.stdout


def test_every_benchmark_that_runs_by_name_has_rows() -> None:
    names = [found.name for found in pkgutil.iter_modules(benchmarks.__path__) if not found.name.startswith("_")]
    modules = {name: import_module(f"benchmarks.{name}") for name in names if name != "over_time"}
    assert len(modules) > 8
    assert [name for name, module in modules.items() if not callable(getattr(module, "rows", None))] == []


def test_the_seconds_of_a_run_hold_what_the_workers_of_its_fork_server_took() -> None:
    spin = "def spin():\n    while time.process_time() < 2.0:\n        pass"
    pool = "with process_pool(1) as submit:\n    submit(spin).result()"
    play = f"import time\nfrom privbo.protocol.processes import process_pool\n{spin}\n{pool}"
    ask = "import sys; from benchmarks._scale_run import used; print(used([sys.executable, '-c', sys.argv[1]])[0])"
    done = subprocess.run([sys.executable, "-c", ask, play], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) > 2.0  # without the worker it is what importing takes


def test_a_row_below_the_machines_limit_is_a_fault_of_the_clock() -> None:
    with pytest.raises(ValueError, match=r"many: 2e-06 s, and this machine needs 0\.001 s at least"):
        _rows.Row("many", 2e-6, "peer", 1.0, least=HALF)
