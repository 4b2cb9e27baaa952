"""The measured part of docs/speed.md is made by a command, and keeps what was recorded elsewhere apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks._page import BEGIN, END, PAGE, measured, written

QUICK = {"name": "quick", "kind": "peer", "ours_s": 2e-3, "machine_s": 1e-3, "of_machine": 0.5}
ROWS = (
    QUICK | {"peer": "peer", "peer_s": 8e-3, "ratio": 4.0},
    QUICK | {"peer": "another peer", "peer_s": 4e-3, "ratio": 2.0},
    {"name": "long", "kind": "bar", "ours_s": 1.5, "peer": "the bar", "peer_s": 2.0, "ratio": 4 / 3},
    {"name": "old", "kind": "recorded", "ours_s": 3e-6, "peer": "their code", "peer_s": 3e-3, "ratio": 1e3},
)


def test_the_part_is_replaced_and_what_was_recorded_stands_last(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(ROWS))
    part = measured([file])
    peers, rest = part.split("**Beside bars**")
    bars, rest = rest.split("**How far from the machine's limit**")
    machine, recorded = rest.split("**Recorded elsewhere")
    assert "| quick | 2 ms | peer | 8 ms | 4 |" in peers
    assert "| quick | 2 ms | another peer | 4 ms | 2 |" in peers
    assert "| long | 1.5 s | the bar | 2 s | 1.33 |" in bars
    assert machine.count("| quick | 2 ms | 1 ms | 0.5 |") == 1
    assert "| old | 3 µs | their code | 3 ms | 1e+03 |" in recorded
    assert "their code" not in peers + bars + machine
    page = written(f"before\n\n{BEGIN}\n\nstale\n\n{END}\n\nafter\n", part)
    assert page == f"before\n\n{BEGIN}\n\n{part}\n\n{END}\n\nafter\n"
    assert written(page, part) == page


def test_the_page_has_a_place_for_it() -> None:
    assert written(PAGE.read_text(), "new").count("new") >= 1
    with pytest.raises(ValueError, match="measured: begin"):
        written("no marks", "new")
