"""Progress at a terminal, in a log, and below a notebook's cell, where no widgets are installed."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from unittest import mock

import pytest

from privbo.runs.history import Round, progress_bar


class ZMQInteractiveShell:
    """A notebook's shell, by the name that tells it."""


class Display(ModuleType):
    """IPython's display, which keeps what it was asked to show."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        self.shown.append(content["text/plain"])
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(content["text/plain"])


def played(label: str) -> None:
    with progress_bar(label, 4) as moved:
        for index in range(1, 5):
            moved(Round(index=index, release=None))


def test_below_a_notebooks_cell_one_line_counts_without_widgets(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    modules = {"IPython": ModuleType("IPython"), "IPython.display": display, "ipywidgets": None}
    shell = mock.patch.object(builtins, "get_ipython", ZMQInteractiveShell, create=True)
    with shell, mock.patch.dict(sys.modules, modules):
        played("ward\x1b[2J")
    assert [line.rpartition(" ")[2] for line in display.shown] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    assert "\x1b" not in "".join(display.shown)
    assert capsys.readouterr().err == ""


def test_in_a_log_it_is_printed_once_and_without_times(capsys: pytest.CaptureFixture[str]) -> None:
    played("ward")
    said = capsys.readouterr().err
    assert "4/4" in said
    assert ":" not in said
