"""Small files, small functions, no silenced tool: the limits of the house, and the exceptions with their reasons."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("accountant", "privbo", "experiments", "benchmarks")
LINES, STATEMENT_LINES = 300, 40
REASON = "Longer than 300 lines: "
SILENCED = re.compile(r"# *(noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?|type: ignore(\[[a-z, -]+\])?|pragma: no [a-z]+)")
LONG_FUNCTIONS = {
    "benchmarks/thompson.py:_weight_draws": "the peer's way and ours side by side, each as its users write it",
    "privbo/reports/data.py:report": "one dictionary, a line or two per field of the report",
}


def modules() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def is_long(source: str) -> bool:
    """Whether a module is too long and its docstring gives no reason."""
    return source.count("\n") > LINES and REASON not in (ast.get_docstring(ast.parse(source)) or "")


def long_functions(source: str) -> list[str]:
    """Functions whose body, without the docstring, spans too many lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            if node.end_lineno - body[0].lineno + 1 > STATEMENT_LINES:
                found.append(node.name)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small_or_say_why_not(path: Path) -> None:
    name, source = path.relative_to(ROOT), path.read_text()
    assert not is_long(source), f"{name}: split it, or end its docstring with {REASON!r} and why"
    surplus = {f"{name}:{function}" for function in long_functions(source)} - set(LONG_FUNCTIONS)
    assert not surplus, "split these, or name them in LONG_FUNCTIONS with a reason"


def unexplained(source: str) -> list[str]:
    """Comments that silence a tool and say no word why."""
    comments = (t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)
    return [text for text in comments if SILENCED.search(text) and not re.search("[a-z]{2}", SILENCED.sub("", text))]


@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_whoever_silences_a_tool_says_why(room: str) -> None:
    found = {str(path.relative_to(ROOT)): unexplained(path.read_text()) for path in sorted((ROOT / room).rglob("*.py"))}
    assert not {name: silenced for name, silenced in found.items() if silenced}


def test_exceptions_are_still_needed() -> None:
    for entry in LONG_FUNCTIONS:
        path, function = entry.split(":")
        assert function in long_functions((ROOT / path).read_text()), f"{entry} is short again; drop the exception"


def test_planted_giants_are_found() -> None:
    body = "    x = 1\n" * (STATEMENT_LINES + 1)
    assert long_functions(f"def giant():\n{body}") == ["giant"]
    assert long_functions(f"def small():\n{body[: -len('    x = 1') - 1]}") == []
    assert is_long("x = 1\n" * (LINES + 1))
    assert not is_long(f'"""A table.\n\n{REASON}one line per entry.\n"""\n' + "x = 1\n" * LINES)


def test_planted_silence_is_heard() -> None:
    silent = "x = 1  # " + "noqa: E501\ny = x  # " + "type: ignore[misc]\n"
    assert len(unexplained(silent)) == 2
    assert unexplained("x = 1  # " + "noqa: S101 (a reason)\ny = x  # " + "type: ignore[misc]  # another\n") == []
