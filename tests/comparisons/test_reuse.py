"""Results of older code are never taken for today's: what is reused, what is run again, and what is said of it."""

import json
import math
import os
import sys

import numpy as np
import pytest

import privbo as pb
from accountant.ledger import Ledger
from privbo.comparisons import cells
from privbo.protocol.settings import plain, read_settings
from privbo.reports.comparison import markdown
from privbo.runs.code import CodeKey, code_key
from tests.cli.test_cli import ran
from tests.comparisons.test_compare import SMALL, sweep_of, swept

OBJECTIVE = '''"""Clinics."""
from doses import ideal

def score(client, params):
    """Larger is better."""
    return -((params["x"] - ideal(client)) ** 2)
'''
HELPER = '''"""Doses."""

def ideal(client):
    return 0.3  # of everybody
'''
PROBLEM = {"objective": "clinics:score", "n_clients": 5, "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}}
SWEEP = {"controls": [], "base": SMALL | {"rounds": 2, "problem": PROBLEM}, "arms": [{"label": "ours"}]}
POPULATION = {"ledger": {"path": "people.sqlite", "population": "ward"}}


class Clinic:
    """A folder with a sweep and its objective's code, compared through the command line."""

    def __init__(self, folder, data: str) -> None:
        self.folder = folder
        self.write("clinics.py", OBJECTIVE)
        self.write("doses.py", HELPER)
        self.write("bystander.py", "# nothing of this is imported\nVALUE = 1\n")
        self.write("sweep.toml", sweep_of(data=data, **SWEEP, **POPULATION if data == "private" else {}))

    def write(self, name: str, content: str) -> None:
        path = self.folder / name
        path.write_text(content)
        # An edit within the clock's resolution of the first would look like none to Python's compiled files too.
        self.ticks = getattr(self, "ticks", 1_700_000_000) + 10
        os.utime(path, (self.ticks, self.ticks))

    def edit(self, name: str, old: str, new: str) -> None:
        content = (self.folder / name).read_text()
        assert old in content
        self.write(name, content.replace(old, new))

    def compare(self, *options: str) -> tuple[float | None, dict]:
        """Utility of the one setting, and what is said of reusing cells."""
        done = ran("compare", "sweep.toml", "--out", "out", "--jobs", "1", "--json", "--yes", *options)
        content = json.loads(done.stdout)
        assert all(words in done.stderr for words in content["reuse"]["lines"])
        return content["settings"][0].get("utility"), content


@pytest.fixture
def clinic(tmp_path, monkeypatch) -> Clinic:
    return at_home(tmp_path, monkeypatch)


def at_home(folder, monkeypatch, data: str = "simulated") -> Clinic:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return Clinic(folder, data)


def test_a_changed_objective_is_run_again_and_a_comment_is_not(clinic: Clinic) -> None:
    first, said = clinic.compare()
    assert said["reuse"]["lines"] == ["6 of 6 cells run: never run before (6)"]
    clinic.edit("bystander.py", "# nothing", "# nothing at all")
    clinic.edit("doses.py", "# of everybody", "# of everyone")
    clinic.edit("clinics.py", "Larger is better.", "The larger the better.")
    again, said = clinic.compare()
    assert again == first
    assert said["reuse"]["reused"] == 6
    assert "6 of 6 cells reused, made 20" in said["reuse"]["lines"][0]
    clinic.edit("clinics.py", "** 2", "** 2 - 7.0")
    changed, said = clinic.compare()
    assert changed == pytest.approx(first + 7.0)
    assert said["reuse"]["lines"] == ["6 of 6 cells run: the objective's code changed (clinics) (6)"]
    clinic.edit("doses.py", "0.3", "0.3 + 9.0")  # a helper in the same folder
    helped, said = clinic.compare()
    assert helped < changed - 60
    assert said["reuse"]["reasons"] == {"the objective's code changed (doses)": 6}
    clinic.edit("doses.py", "0.3 + 9.0", "0.3")
    back, said = clinic.compare()  # the older cells are still there
    assert (back, said["reuse"]["reused"]) == (changed, 6)


def test_fingerprint_and_fresh(clinic: Clinic) -> None:
    clinic.compare()
    clinic.edit("sweep.toml", "n_clients = 5", 'n_clients = 5\nfingerprint = "of May"')
    _, said = clinic.compare()
    assert said["reuse"]["reasons"] == {"the fingerprint changed": 6}
    _, said = clinic.compare()
    assert said["reuse"]["reused"] == 6
    _, said = clinic.compare("--fresh")
    assert said["reuse"]["lines"] == ["6 of 6 cells run: asked for by --fresh (6)"]


def test_finished_shows_older_cells_with_the_version_that_made_them(clinic: Clinic) -> None:
    first, _ = clinic.compare()
    clinic.edit("clinics.py", "** 2", "** 2 - 7.0")
    shown, said = clinic.compare("--finished", "--trust")
    assert shown == first
    (version,) = said["settings"][0]["older"]
    assert version.startswith(f"privbo {pb.__version__}, 20")
    assert f"ours: made by older code ({version})" in (clinic.folder / "out" / "table.md").read_text()
    assert version in (clinic.folder / "out" / "compare.html").read_text()
    assert said["reuse"]["older"] == {version: 6}


def test_another_version_of_a_package_runs_cells_again(clinic: Clinic, monkeypatch) -> None:
    clinic.compare()
    (kept, *others) = (clinic.folder / "out" / "cells").iterdir()
    content = json.loads(kept.read_text())
    content["code"]["parts"]["version numpy"] = "1.0"
    kept.rename(kept.with_name(kept.name.partition("-")[0] + "-1234.json")).write_text(json.dumps(content))
    _, said = clinic.compare()
    ((reason, count),) = said["reuse"]["reasons"].items()
    assert reason.startswith("versions changed: numpy 1.0 -> ")
    assert (count, said["reuse"]["reused"]) == (1, 5)
    assert all(other.exists() for other in others)


def test_workers_of_a_second_comparison_do_not_go_on_with_older_code(clinic: Clinic) -> None:
    """The fork server outlives a comparison, and has loaded nothing of the user's."""
    imports = "from doses import ideal\nfrom privbo.comparisons.cells import CellResult\n"
    clinic.write("clinicwork.py", f"{imports}def work():\n    return CellResult(curves={{'score': (ideal(0),)}})\n")

    def ideals() -> set[float]:
        for name in ("doses", "clinicwork"):
            sys.modules.pop(name, None)
        work = __import__("clinicwork").work
        asked = {"code": code_key("clinicwork:work"), "folder": clinic.folder / "cells", "work": work}
        todo = [cells.Cell(label="a", seed=seed, settings=f"{seed}", **asked) for seed in range(2)]
        return {kept.result.curves["score"][0] for kept in cells.complete(todo, jobs=2)[0]}

    assert ideals() == {0.3}
    clinic.edit("doses.py", "0.3", "9.3")
    assert ideals() == {9.3}


def test_private_cells_are_never_charged_again_because_code_changed(tmp_path, monkeypatch):
    """Neither those that were kept nor those that a crash left."""
    clinic = at_home(tmp_path, monkeypatch, data="private")

    def charges() -> int:
        with Ledger.open(tmp_path / "people.sqlite") as ledger:
            return len(ledger.entries())

    clinic.compare()
    once = charges()
    for kept in (tmp_path / "out" / "private" / "cells").glob("*.json"):
        kept.unlink()  # as if it had been killed before the result was written
    clinic.edit("clinics.py", "** 2", "** 2 - 7.0")
    clinic.compare()
    assert charges() == once > 0
    clinic.edit("clinics.py", "7.0", "8.0")
    _, said = clinic.compare()
    assert charges() == once
    (version,) = said["settings"][0]["older"]
    assert said["reuse"]["lines"] == [f"2 of 2 cells are shown as older code made them: 2 of {version}"]
    _, said = clinic.compare("--fresh")
    assert charges() == 2 * once
    assert said["reuse"]["lines"] == ["2 of 2 cells run: asked for by --fresh, charged again (2)"]
    assert said["settings"][0]["older"] == []
    _, said = clinic.compare()
    assert (charges(), said["reuse"]["reused"]) == (2 * once, 2)


def test_arms_contrasts_measures_and_panels(tmp_path) -> None:
    found = swept(tmp_path, STUDY)
    near, short = found.comparisons
    assert [s.label for s in near.settings] == ["two regions", "alone", "noise-only control"]
    others = "noise alone", "noise-only control"  # that of one region was declared, that of two is added
    assert [s.label for s in short.settings] == ["two regions", "alone", *others]
    assert [s.kind for s in short.settings] == ["private", "local", "zeroed", "zeroed"]
    assert near.settings[0].curves.shape == (2, 4)
    assert short.settings[0].curves.shape == (2, 3)
    lost = swept(tmp_path, STUDY.replace("with_optimum", "two_lost")).comparisons[0].settings[0]
    assert all(((s.curves >= 0) & (s.curves < 1)).all() for s in (near.settings[0], lost))  # regret of who has a value
    np.testing.assert_array_equal(near.settings[0].valued, np.full((2, 4), 6.0))
    assert set(np.unique(lost.valued)) <= {4.0, 5.0}
    judge = 'measure = "last loss"\njudge = "tests.crash_problem:losses"'
    for measure in ('measure = "last loss"', judge):
        loss = swept(tmp_path, STUDY.replace('measure = "cumulative regret"', measure)).comparisons[0].settings[0]
        np.testing.assert_allclose(loss.curves, 1.0 - 0.01 * np.cos(np.arange(6)).mean() + near.settings[0].curves)
    told = [[[d.first, d.second] for d in panel.differences()] for panel in (near, short)]
    assert told == [CONTRASTS[:1], CONTRASTS]
    assert markdown(near).count(", two-sided, not adjusted), 2 seeds") == 1
    gap = near.settings[0].curves[:, 1:].sum(axis=1) - near.settings[1].curves[:, 1:].sum(axis=1)
    assert near.differences()[0].mean == pytest.approx(gap.mean())
    assert found.to_dict()["panels"][1]["name"] == "short"


ARMS = [{"label": "two regions", "overrides": {"algorithm": {"n_regions": 2}}}, {"label": "alone", "kind": "local"}]
SHORT = {"name": "short", "overrides": {"rounds": 2}, "arms": [{"label": "noise alone", "kind": "zeroed"}]}
CONTRASTS = [["two regions", "alone"], ["two regions", "noise alone"]]
OPTIMUM = SMALL | {"problem": {"factory": "tests.crash_problem:with_optimum"}}
HOW = {"statement": "Two regions beat nobody.", "first_seed": 3, "measure": "cumulative regret", "contrasts": CONTRASTS}
STUDY = sweep_of(base=OPTIMUM, arms=ARMS, panels=[{"name": "near"}, SHORT], **HOW)


def test_a_measure_the_problem_can_not_give_is_refused_with_the_remedy(tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match="states no best_values"):
        swept(tmp_path, STUDY.replace("with_optimum", "problem"))


def test_a_damaged_or_foreign_cell_is_made_again(tmp_path) -> None:
    key = CodeKey(parts={"module a": "1"})
    cell = cells.Cell(label="a", seed=0, settings="abc", code=key, folder=tmp_path, work=lambda: RESULT)
    assert [kept.result for kept in cells.complete([cell], jobs=1)[0]] == [RESULT]
    assert cells.complete([cell], jobs=1)[1].reused == 1
    for content in ("", "[]", '{"format": 1}', '{"format": 3, "code": 1, "result": {}}'):
        cell.path.write_text(content)
        assert cells.complete([cell], jobs=1, finished=True)[0] == [None]
        assert cells.complete([cell], jobs=1)[1].reused == 0
    assert cells.complete([cell], jobs=1)[1].reused == 1


def test_a_cell_where_no_client_had_a_value_is_read_back_and_not_run_again(tmp_path) -> None:
    key, made = CodeKey(parts={"module a": "1"}), []

    def work() -> cells.CellResult:
        made.append(1)
        return cells.CellResult(curves={"score": (math.nan, -0.5)})

    cell = cells.Cell(label="a", seed=0, settings="abc", code=key, folder=tmp_path, work=work)
    for _ in range(2):
        (kept,), _ = cells.complete([cell], jobs=1)
        np.testing.assert_array_equal(kept.result.curves["score"], (np.nan, -0.5))
    assert made == [1]


RESULT = cells.CellResult(curves={"score": (0.0, 1.0)}, extra={"sent": [1, 2]})


# ---- keys of code: what changes them, what doesn't, and what has none


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    home = tmp_path / "wardcode"
    (home / "deep").mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "deep" / "__init__.py").write_text("")
    code = "from . import near\nfrom .deep.far import value\ndef score(c, p):\n    import wardcode.lazy\n"
    (home / "entry.py").write_text(code)
    for name in ("near.py", "lazy.py", "unused.py", "deep/far.py"):
        (home / name).write_text("value = 1\n")
    return home


def entry(package) -> CodeKey:
    for name in [name for name in sys.modules if name.startswith("wardcode")]:
        del sys.modules[name]
    return code_key("wardcode.entry:score")


def test_imports_are_followed_through_a_package(package) -> None:
    before = entry(package)
    below = {f"wardcode.{name}" for name in ("entry", "near", "lazy", "deep", "deep.far")}
    assert set(before.modules) == {"wardcode"} | below
    (package / "unused.py").write_text("value = 2\n")
    assert entry(package).digest == before.digest
    for name in ("near", "lazy", "deep/far"):
        (package / f"{name}.py").write_text("value = 22\n")
        after = entry(package)
        assert after.changes_since(before) == (f"the objective's code changed (wardcode.{name.replace('/', '.')})",)
        before = after


def test_of_an_import_whose_name_is_computed_every_module_beside_it_counts(package) -> None:
    code = "import importlib\ndef score(c, p):\n    return importlib.import_module('wardcode.' + c)\n"
    (package / "entry.py").write_text(code)
    assert "wardcode.unused" in entry(package).modules


def test_a_module_edited_after_it_was_loaded_has_no_key_until_it_is_loaded_again(package) -> None:
    before = entry(package)
    (package / "near.py").write_text("value = 333\n")
    held = code_key("wardcode.entry:score")
    assert held.digest is None
    assert held.changes_since(before) == (f"not reusable: {held.reason}",)
    assert read_settings(CodeKey, plain(held), "code").digest is None
    assert held.edited == ("wardcode.near",)
    assert entry(package).digest not in (None, before.digest)


def test_code_of_a_package_counts_by_its_version_and_data_by_its_name() -> None:
    key = code_key("numpy.linalg:norm", fingerprint="of May")
    assert key.modules == {}
    assert "version numpy" in key.parts
    assert key.digest not in (None, code_key("numpy.linalg:norm", fingerprint="of June").digest)
    assert read_settings(CodeKey, plain(key), "code").digest == key.digest
