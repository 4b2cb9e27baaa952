"""The walk of epsilon: the files that handle the number on the way from a TOML file to a page, as a run does it.

A file is on the walk where one of its functions is handed the number as an argument or as an answer, or reads
it from a field. Who passes on a table or an object unopened is not: that is what the typed road is for. What the
accountant's arithmetic does between being asked and answering is one stop; the function that writes a bound's digits
(``accountant/wording.py``) is none, as a format specification would be none. A file is entered again where it
is called after the walk had left it; a caller that gets its answer had not been left. What repeats from round to
round counts once. ``python -m tests.test_walk`` prints the walk.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import accountant
import privbo
from accountant.ledger import Budget
from accountant.wording import upper_text
from privbo.cli.main import app
from privbo.plans.privacy import Privacy
from privbo.reports.report import Report

ROOT = Path(privbo.__file__).parent.parent
ROOMS = tuple(str(Path(room.__file__).parent) + os.sep for room in (privbo, accountant))
ASKED = 2.0371
# Functions of numbers below the two questions "how much noise" and "what does it cost".
ARITHMETIC = ("checks", "envelope", "filters", "gaussian_dp", "moments", "quadrature", "renyi", "tight", "tightest")
# The same number under the ledger's price: it may lie under what was asked by the calibration's width.
NEAR = (ASKED * (1 - 2e-3), ASKED * (1 + 1e-9))
LONGEST_CYCLE = 4

CONFIG = f"""
name = "walk"
rounds = 4
seed = 1
[problem]
factory = "privbo.quickstart.tumours:problem"
[algorithm]
type = "dp-fts-de"
n_features = 8
[privacy]
epsilon = {ASKED}
noise = "simulation"  # seeded, so that no other number of the run falls near epsilon by chance
"""

CALCULATED = "accountant: arithmetic"
WRITING = "accountant/wording.py"
Stop = tuple[str, object, str]


def is_epsilon(value: object) -> bool:
    return type(value) is float and NEAR[0] <= value <= NEAR[1]


def place(code: CodeType) -> str | None:
    """The file of a function of ours; the accountant's arithmetic is one place."""
    if not code.co_filename.startswith(ROOMS):
        return None
    path = Path(code.co_filename).relative_to(ROOT)
    if path.as_posix() == WRITING:
        return None
    arithmetic = path.parts[0] == "accountant" and path.with_suffix("").parts[1] in ARITHMETIC
    return CALCULATED if arithmetic else path.as_posix()


@contextmanager
def followed(opened: tuple[type, ...]) -> Iterator[list[Stop]]:
    """Follow the number through calls, answers, and reads of the ``opened`` classes' fields."""
    stops: list[Stop] = []

    def note(frame: FrameType | None, how: str) -> None:
        found = None if frame is None else place(frame.f_code)
        if frame is not None and found is not None:
            stops.append((found, _outermost(frame, found), f"{frame.f_code.co_name} {how}"))

    def profile(frame: FrameType, event: str, value: object) -> None:
        if event == "call" and any(map(is_epsilon, _arguments(frame))):
            note(frame, "is handed it")
        elif event == "return" and is_epsilon(value):
            caller = frame.f_back
            if caller is not None and place(caller.f_code) != place(frame.f_code) is not None:
                note(caller, "is answered with it")

    def read(self: object, name: str) -> object:
        value = object.__getattribute__(self, name)
        if is_epsilon(value):
            note(_ours(getattr(inspect.currentframe(), "f_back", None)), f"reads {type(self).__name__}.{name}")
        return value

    with _reading(opened, read):
        sys.setprofile(profile)
        try:
            yield stops
        finally:
            sys.setprofile(None)


@contextmanager
def _reading(opened: tuple[type, ...], read: Callable[[object, str], object]) -> Iterator[None]:
    for kind in opened:
        setattr(kind, "__getattribute__", read)  # noqa: B010  # mypy refuses the plain form
    yield
    for kind in opened:
        del kind.__getattribute__


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    return map(frame.f_locals.get, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _ours(frame: FrameType | None) -> FrameType | None:
    """The reader, where a template's engine reads for a template."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("jinja2."):
        frame = frame.f_back
    return frame


def _outermost(frame: FrameType, found: str) -> FrameType:
    """The first call into a file that has not ended yet."""
    outer, caller = frame, frame.f_back
    while caller is not None:
        if place(caller.f_code) == found:
            outer = caller
        caller = caller.f_back
    return outer


def walk(stops: list[Stop]) -> list[tuple[str, str]]:
    """The files in the order of the walk, each with what first brought it there; repetitions of a round are dropped."""
    inside: dict[str, object] = {}
    entered: list[tuple[str, str]] = []
    for found, frame, how in stops:
        if inside.get(found) is not frame:
            entered.append((found, how))
        inside[found] = frame
    return _once(entered)


def _once(entered: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Drop a stretch that repeats the one before it."""
    kept: list[tuple[str, str]] = []
    for stop in entered:
        kept.append(stop)
        for length in range(1, LONGEST_CYCLE + 1):
            last, before = kept[-length:], kept[-2 * length : -length]
            if [found for found, _ in last] == [found for found, _ in before]:
                del kept[-length:]
    return kept


def recorded(home: Path) -> list[tuple[str, str]]:
    (home / "run.toml").write_text(CONFIG)
    with followed((Privacy, Budget, Report)) as stops:
        app(["run", str(home / "run.toml"), "--out", str(home / "out")], standalone_mode=False)
    return walk(stops)


def listed(page: str) -> list[str]:
    """The walk as a page lists it; of a folder the last slash stands for what is inside."""
    return re.findall(rf"^(?: ?\d+|   )  ?({CALCULATED}|\S+/\S*) ", page, re.MULTILINE)


def test_epsilon_walks_as_the_page_says(tmp_path, capsys):
    said = listed((ROOT / "CONTRIBUTING.md").read_text().partition("whose test compares it -->")[2])
    found = [where for where, _ in recorded(tmp_path)]
    assert [f"{Path(one).parent}/" if f"{Path(one).parent}/" in said else one for one in found] == said
    assert upper_text(ASKED) in capsys.readouterr().out


def test_a_second_visit_is_noticed_and_a_round_is_not():
    once, again, other = object(), object(), object()
    assert [where for where, _ in walk([("a", once, ""), ("b", other, ""), ("a", once, "")])] == ["a", "b"]
    assert [
        where for where, _ in walk([("a", once, ""), ("b", other, ""), ("c", other, ""), ("a", again, "")])
    ] == list("abca")
    rounds = [("a", once, ""), ("b", object(), ""), ("c", object(), "")]
    rounds += [("b", object(), ""), ("c", object(), ""), ("d", other, "")]
    assert [where for where, _ in walk(rounds)] == list("abcd")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for number, (where, how) in enumerate(recorded(Path(folder)), start=1):
            print(f"{number:3} {where:45} {how}", file=sys.stderr)
