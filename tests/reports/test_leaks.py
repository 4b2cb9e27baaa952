"""Nothing private is published: every exported artefact is searched, and none depends on the private side."""

import json
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import privbo as pb
from accountant.ledger.export import FORMATS, export
from privbo.cli.compare import compare_runs, compare_sweep
from privbo.cli.main import audit
from privbo.cli.run import report_run
from privbo.comparisons.sweep import compare
from privbo.door import door, payload
from privbo.door.sampling import Sample
from privbo.protocol.settings import plain
from privbo.reports.comparison import write_comparison
from privbo.reports.report import write_parquet
from privbo.testing import toy_problem
from tests.builders import play
from tests.comparisons.test_compare import PRIVATE
from tests.reports.leaks import leaks, private_folder_numbers, public_files, scramble, sets_as_text, telling


@pytest.fixture(scope="module")
def spy():
    """What the door saw and nobody else may: sets of participants, raw vectors and their norms."""
    seen, draw = SimpleNamespace(sets=set(), numbers=set()), Sample.draw

    def participants(*args):
        drawn = draw(*args)
        if len(drawn) == 1 and not drawn.all():  # of a release, not of an audit; everybody is no secret
            seen.sets |= sets_as_text(drawn[0])
        return drawn

    def vetted(*args, **kwargs):
        rows = payload.vet_rows(*args, **kwargs)
        seen.numbers |= telling({*rows.ravel().tolist(), *np.linalg.norm(rows, axis=1).tolist()})
        return rows

    with mock.patch.object(Sample, "draw", participants), mock.patch.object(door, "vet_rows", vetted):
        yield seen


@pytest.fixture(scope="module")
def home(spy, tmp_path_factory) -> Path:
    """A finished run whose ledger is its population's, with its mean curve among what is private."""
    base = tmp_path_factory.mktemp("run")
    people = pb.SharedLedger(path=str(base / "people.sqlite"), population="ward", epsilon=60.0, delta=1e-5)
    how = {"directory": base / "run", "rounds": 4, "ledger": people, "name": "small"}
    result = play(toy_problem(24), privacy=pb.Privacy(noise_multiplier=3.0, sample_rate=0.5), **how)
    curve = {"mean_best_so_far": {"private": result.best_so_far().tolist()}}
    (base / "run" / "private" / "curve.json").write_text(json.dumps(curve))
    return base / "run"


def export_run(home: Path, to: Path) -> None:
    """Every public artefact of a run, by the jobs behind the commands."""
    to.mkdir()
    report_run(home, out=to / "report.html")
    (to / "report.json").write_text(json.dumps(plain(report_run(home, write=False))))
    write_parquet(pb.load(home), to / "history.parquet")
    audit(home, empirical=True, trials=1000, publish_norms=2.0, yes=True)
    shutil.copy(home / "published_norms.json", to)
    result = pb.load(home)
    for form in FORMATS:
        (to / f"ledger.{form}").write_text(export(result.ledger, form))


def test_a_run_publishes_nothing_private(home: Path, spy, tmp_path) -> None:
    export_run(home, tmp_path / "out")
    private = private_folder_numbers(home / "private") | spy.numbers
    assert len(private) > 200
    assert len(spy.sets) > 10
    files = [*public_files(home), *public_files(tmp_path / "out"), home.parent / "people.sqlite"]
    assert {"history.parquet", "published_norms.json", "report.html", "people.sqlite"} <= {p.name for p in files}
    assert leaks(files, private, spy.sets) == []


def test_no_public_byte_of_a_run_depends_on_its_private_side(home: Path, tmp_path) -> None:
    """The same run with every private number changed publishes the same bytes."""
    export_run(home, tmp_path / "before")
    other = shutil.copytree(home, tmp_path / "other")
    scramble(other / "private")
    assert private_folder_numbers(other / "private").isdisjoint(private_folder_numbers(home / "private"))
    export_run(other, tmp_path / "after")
    assert differing(tmp_path / "before", tmp_path / "after") == []


def differing(first: Path, second: Path) -> list[str]:
    """Public files of one folder that are not the other's, byte for byte."""
    names = [p.relative_to(first) for p in public_files(first)]
    assert names == [p.relative_to(second) for p in public_files(second)]
    return [str(n) for n in names if (first / n).read_bytes() != (second / n).read_bytes()]


@pytest.fixture(scope="module")
def swept(spy, tmp_path_factory) -> tuple[Path, Path]:
    """A sweep over private data: its file and its folder."""
    base = tmp_path_factory.mktemp("sweep")
    bound = "epsilon = 30.0\ndelta = 1e-5\n"
    (base / "sweep.toml").write_text(PRIVATE.format(path=base / "people.sqlite", bound=bound))
    run_sweep_job(base / "sweep.toml", base / "out")
    return base / "sweep.toml", base / "out"


def run_sweep_job(path: Path, out: Path, *, private: bool = False) -> dict:
    found = compare_sweep(path, out=out, jobs=1, private=private, yes=True).to_dict()
    del found["reuse"]  # of when this machine made what
    (out / ("private" if private else "") / "printed.json").write_text(json.dumps(found))
    return found


def test_a_comparison_over_private_data_shows_prices_only(swept: tuple[Path, Path], spy) -> None:
    _, out = swept
    private = private_folder_numbers(out / "private" / "cells") | spy.numbers
    assert len(private) > 100
    files = [*public_files(out), *out.parent.glob("people.sqlite*")]
    written = {"compare.html", "summary.json", "table.md", "table.csv", "table.tex", "printed.json"}
    assert {p.name for p in files} >= written | {"people.sqlite"}
    assert leaks(files, private, spy.sets) == []
    summary = json.loads((out / "summary.json").read_text())
    assert all("utility" not in row for row in summary["settings"])
    assert summary["differences"] == []
    assert summary["recommendation"] is None
    assert "frontier" not in (out / "compare.html").read_text().rsplit("<script", 3)[0]


def test_no_public_byte_of_a_comparison_depends_on_scores(swept: tuple[Path, Path], tmp_path) -> None:
    path, out = swept
    other = shutil.copytree(out, tmp_path / "other")
    scramble(other / "private" / "cells")
    run_sweep_job(path, other)
    assert [p for p in differing(out, other) if p != "printed.json"] == []  # it names its own folder
    full = run_sweep_job(path, other, private=True)
    assert "utility" in full["settings"][0]
    assert Path(full["report"]).parent.name == "private"
    assert differing(out, other) == ["printed.json"]


def test_runs_side_by_side_are_private_unless_said_otherwise(home: Path, spy, tmp_path) -> None:
    other = shutil.copytree(home, tmp_path / "runs" / home.name)  # a comparison names the folders of its runs
    scramble(other / "private")
    for name, run in (("before", home), ("after", other)):
        compare_runs([run], out=tmp_path / name)
    private = private_folder_numbers(home / "private") | spy.numbers
    assert leaks(public_files(tmp_path / "before"), private, spy.sets) == []
    assert differing(tmp_path / "before", tmp_path / "after") == []
    with pytest.raises(pb.ConfigurationError, match="no epsilon covers"):
        compare_runs([home], out=tmp_path / "x", budget=9.0)


def test_a_planted_leak_in_a_comparison_is_caught(home: Path, tmp_path) -> None:
    """Planted: the writers are given the private comparison; search sees full digits, dependence sees every file."""
    other = shutil.copytree(home, tmp_path / "runs" / home.name)  # a comparison names the folders of its runs
    scramble(other / "private")
    for name, run in (("before", home), ("after", other)):
        found = compare([run])
        write_comparison(found, folder=tmp_path / name)
        (tmp_path / name / "summary.json").write_text(json.dumps(found.to_dict()))
    every = {"compare.html", "summary.json", "table.csv", "table.md", "table.tex"}
    assert set(differing(tmp_path / "before", tmp_path / "after")) == every
    curve = set(compare([home]).settings[0].curves.ravel().tolist())
    caught = {line.split(":")[0] for line in leaks(public_files(tmp_path / "before"), telling(curve))}
    assert {"summary.json", "table.csv"} <= caught


@pytest.mark.parametrize("form", ["text", "bytes", "swapped", "word", "parquet", "sqlite", "set"])
def test_the_search_finds_a_planted_leak(home: Path, spy, tmp_path, form: str) -> None:
    private = private_folder_numbers(home / "private")
    value = max(private, key=lambda v: len(repr(v)))
    frame, path = pd.DataFrame({"x": [value, 1.0]}), tmp_path / f"extra.{form}"
    if form == "sqlite":
        with sqlite3.connect(path) as store:
            frame.to_sql("t", store)
    elif form == "parquet":
        frame.to_parquet(path)
    else:
        contents = {
            "text": json.dumps([1.0, value]).encode(),
            "bytes": frame["x"].to_numpy().tobytes(),
            "swapped": frame["x"].to_numpy().byteswap().tobytes(),
            "word": b'{"clipped_share": 1}',
            "set": b'{"x": ' + min(spy.sets, key=len) + b"}",
        }
        path.write_bytes(contents[form])
    assert [line.split(":")[0] for line in leaks([path], private, spy.sets)][:1] == [path.name]
