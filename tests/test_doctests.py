"""The examples in docstrings run, each module's in a folder of its own."""

import doctest
import importlib

import pytest

from tests.sources import ROOT, sources

EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sources("accountant", "privbo")
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_run(module: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # as `pytest --doctest-modules` has them (pyproject.toml)
    assert doctest.testmod(importlib.import_module(module), optionflags=flags).failed == 0
