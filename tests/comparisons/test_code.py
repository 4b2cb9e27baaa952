"""Keys of code: what changes them, what doesn't, and what has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from privbo.protocol.settings import plain, read_settings
from privbo.runs.code import CodeKey, code_key


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    home = tmp_path / "wardcode"
    (home / "deep").mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "deep" / "__init__.py").write_text("")
    (home / "entry.py").write_text(
        "from . import near\nfrom .deep.far import value\ndef score(c, p):\n    import wardcode.lazy\n"
    )
    for name in ("near.py", "lazy.py", "unused.py", "deep/far.py"):
        (home / name).write_text("value = 1\n")
    return home


def entry(package: Path) -> CodeKey:
    for name in [name for name in sys.modules if name.startswith("wardcode")]:
        del sys.modules[name]
    return code_key("wardcode.entry:score")


def test_imports_are_followed_through_a_package(package: Path) -> None:
    before = entry(package)
    assert set(before.modules) == {"wardcode"} | {
        f"wardcode.{m}" for m in ("entry", "near", "lazy", "deep", "deep.far")
    }
    (package / "unused.py").write_text("value = 2\n")
    assert entry(package).digest == before.digest
    for name in ("near", "lazy", "deep/far"):
        (package / f"{name}.py").write_text("value = 22\n")
        after = entry(package)
        assert after.changes_since(before) == (f"the objective's code changed (wardcode.{name.replace('/', '.')})",)
        before = after


def test_of_an_import_whose_name_is_computed_every_module_beside_it_counts(package: Path) -> None:
    (package / "entry.py").write_text(
        "import importlib\ndef score(c, p):\n    return importlib.import_module('wardcode.' + c)\n"
    )
    assert "wardcode.unused" in entry(package).modules


def test_a_module_edited_after_it_was_loaded_has_no_key_until_it_is_loaded_again(package: Path) -> None:
    before = entry(package)
    (package / "near.py").write_text("value = 333\n")
    held = code_key("wardcode.entry:score")
    assert held.digest is None
    assert held.changes_since(before) == (f"not reusable: {held.reason}",)
    assert read_settings(CodeKey, plain(held), "code").digest is None
    assert held.edited == ("wardcode.near",)
    after = entry(package)
    assert after.digest not in (None, before.digest)


def test_code_of_a_package_counts_by_its_version_and_data_by_its_name() -> None:
    key = code_key("numpy.linalg:norm", fingerprint="of May")
    assert key.modules == {}
    assert "version numpy" in key.parts
    assert key.digest not in (None, code_key("numpy.linalg:norm", fingerprint="of June").digest)
    assert read_settings(CodeKey, plain(key), "code").digest == key.digest
