"""Keys of code: what changes them, what doesn't, and what has none."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from privbo.protocol.plain import plain
from privbo.protocol.settings import read_settings
from privbo.runs.code import CodeKey, code_key


def notebook(source: str, **names: object) -> object:
    """A function as a notebook's cell makes it: without a file."""
    space = {"__name__": "__main__", "np": np, **names}
    exec(compile(source, "<cell>", "exec"), space)  # noqa: S102  # this is what a notebook does
    return space["score"]


SCORE = "def score(client, params):\n    return params['x'] * level + shift(client)\n"
SHIFT = "def shift(client):\n    return {0}\n"


def keyed(source: str, **names: object) -> CodeKey:
    return code_key(notebook(source, **names))


def test_a_notebooks_function_counts_by_its_code_and_the_globals_it_reads() -> None:
    first = keyed(SHIFT.format(1) + SCORE, level=2.0)
    assert first.digest is not None
    assert keyed("\n\n# moved\n" + SHIFT.format(1) + SCORE, level=2.0).digest == first.digest
    assert keyed(SHIFT.format(1) + SCORE, level=2.0, unread=3).digest == first.digest
    for other in (
        keyed(SHIFT.format(1) + SCORE.replace("*", "+"), level=2.0),
        keyed(SHIFT.format(1) + SCORE, level=2.5),
        keyed(SHIFT.format(2) + SCORE, level=2.0),
        keyed(SHIFT.format(1) + SCORE.replace("params)", "params, power=2)"), level=2.0),
        keyed(SHIFT.format(1) + SCORE, level=np.array([2.0])),
    ):
        assert other.digest not in (None, first.digest)
    a, b = (keyed(SHIFT.format(1) + SCORE, level=np.array([value])) for value in (1.0, 2.0))
    assert a.digest != b.digest


def test_what_has_no_digest_says_why() -> None:
    assert "math.sqrt has no Python source" in str(code_key(math.sqrt).reason)
    held = keyed("def score(client, params):\n    return lock\n", lock=threading.Lock())
    assert held.digest is None
    assert "can't be told from its own past" in str(held.reason)
    assert held.changes_since(held) == (f"not reusable: {held.reason}",)


def test_an_object_counts_by_its_state() -> None:
    drawing = "def score(client, params):\n    return draws.random()\n"
    first, again, other = (keyed(drawing, draws=random.Random(seed)).digest for seed in (0, 0, 1))
    assert first == again is not None
    assert other not in (None, first)
    tables = [keyed("def score(c, p):\n    return table[c]\n", table=np.array([value, None])) for value in ("a", "b")]
    assert tables[0].digest != tables[1].digest
    weights = [keyed("class W:\n    w = {0}\ndef score(c, p):\n    return W.w\n".format(w)) for w in (1, 1, 2)]
    assert weights[0].digest == weights[1].digest != weights[2].digest


@dataclasses.dataclass(frozen=True)
class Dose:
    """An objective as a dataclass's method."""

    ideal: float

    def score(self, client: int, params: dict[str, float]) -> float:
        return -abs(params["x"] - self.ideal)


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def score(self, client: int, params: dict[str, float]) -> float:
        return 0.0


def closure(value: object) -> object:
    return lambda client, params: value


def test_partials_methods_and_closures_are_unwrapped() -> None:
    assert code_key(Dose(0.3).score).digest == code_key(Dose(0.3).score).digest is not None
    assert code_key(Dose(0.3).score).digest != code_key(Dose(0.4).score).digest
    assert code_key(functools.partial(pow, 2)).digest != code_key(functools.partial(pow, 3)).digest
    assert code_key(closure(1)).digest != code_key(closure(2)).digest
    assert code_key(Locked().score).digest is None
    assert code_key(closure(Locked())).digest is None
    assert code_key(functools.cache(Dose.score)).digest == code_key(functools.cache(Dose.score)).digest is not None


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
    return code_key(__import__("wardcode.entry", fromlist=["score"]).score)


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
    loaded = sys.modules["wardcode.entry"].score
    (package / "near.py").write_text("value = 333\n")
    held = code_key(loaded)
    assert held.digest is None
    assert held.edited == ("wardcode.near",)
    after = entry(package)
    assert after.digest not in (None, before.digest)


def test_a_key_is_read_back_as_it_was_written() -> None:
    key = code_key(closure(1), fingerprint="of May")
    assert read_settings(CodeKey, plain(key), "code").digest == key.digest
    assert read_settings(CodeKey, plain(code_key(math.sqrt)), "code").digest is None
