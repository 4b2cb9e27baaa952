"""The worked example: three hospitals of ten wards, with keys, data folders and settings made by its script."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from privbo.flower.answers import client_app
from privbo.flower.registry import canonical_key
from privbo.flower.server import serve
from privbo.protocol.files import load_arrays, read_lines
from privbo.runs.manifest import RunDirectory
from tests.deployment.grid import LoopGrid, Node
from tests.deployment.test_site import pem

EXAMPLE = Path(__file__).parents[2] / "experiments" / "examples" / "hospitals_flower"
HOSPITALS = ("north", "south", "west")


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the script makes, with two rounds instead of eight."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    importlib.import_module("make_federation").main(tmp_path / "hospitals")
    run = tmp_path / "hospitals" / "server" / "app" / "run.toml"
    run.write_text(run.read_text().replace("rounds = 8", "rounds = 2"))
    importlib.import_module("make_federation").approve(tmp_path / "hospitals")
    yield tmp_path / "hospitals"
    for name in ("make_federation", "ward_model", "run", "best"):
        sys.modules.pop(name, None)


def test_the_wards_tune_together_over_the_grid(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = client_app(federation / "server" / "app")
    nodes = [
        Node(
            node_id=index,
            app=app,
            node_config={"site": str(federation / name / "site.toml")},
            public_key=pem((federation / "keys" / f"{name}.pub").read_text()),
        )
        for index, name in enumerate(HOSPITALS, start=1)
    ]
    home = RunDirectory(federation / "server" / "run")
    serve(LoopGrid(nodes), federation / "server" / "app", home)
    check(federation)
    importlib.import_module("best").main(federation / "north")
    assert capsys.readouterr().out.count("ward ") >= 10


def check(federation: Path) -> None:
    home = RunDirectory(federation / "server" / "run")
    rows = read_lines(home.private / "transport.jsonl")
    assert [row["answered"] for row in rows] == [list(HOSPITALS)] * 3
    assert not any(row["refused"] for row in rows)
    assert home.report_path.exists()
    for name in HOSPITALS:
        (kept,) = (federation / name / "kept").glob("*/evaluations.npz")
        values = load_arrays(kept)["values"]
        assert values.shape == (10, 4)  # two initial points and two rounds
        assert np.isfinite(values).all()
    assert len({canonical_key((federation / "keys" / f"{n}.pub").read_bytes()) for n in HOSPITALS}) == 3


@pytest.mark.deployment
def test_the_example_runs_with_tls_and_keys(federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE.parents[2]))
    importlib.import_module("run").main(federation)
    check(federation)
