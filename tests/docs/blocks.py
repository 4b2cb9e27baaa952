"""The code blocks of a Markdown page, and how they are run.

Python blocks of a page share one namespace and one working directory, in the order of the page; lines of shell
blocks that start with ``privbo`` go to the command line's own entry point, other lines to a shell; TOML blocks
are parsed. A block whose first line is a comment with a file's name (``# mine.toml``) is written to that file instead.

A block that is not run says why in a comment on the line above it, out of readers' sight: ``<!-- not run: needs two
machines -->``. One that takes longer than the test suite should says ``<!-- slow: about a minute -->``. The cells of a
notebook, ``{code-cell} python``, are Python blocks. A file that a page includes, ``{literalinclude} PATH``, is a block
with its name.

A text block is what the code block before it prints, ``<!-- output -->``, and is compared with that: spaces may differ,
``...`` stands for anything, and hashes, keys and dates are those of one run. Or it says why it is not.
"""

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from privbo.cli.main import app

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>(?:not run|slow)(?=: [^\n]*\S -->)|output(?= -->))[^\n]* -->\n)?"
    r"```(?:\{code-cell\} )?(?P<language>\w*)[^\n]*\n(?P<options>(?::[^\n]*\n)*)(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n(?::[^\n]*\n)*```$", re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
_IN_SIGHT = re.compile(r"# (not run|slow): ")
_OF_ONE_RUN = re.compile(r"\b[0-9a-f]{12,}\b|\b\d{4}-\d{2}-\d{2}\b")  # hashes, keys, names of runs, dates
LANGUAGES = {"python", "sh", "toml", "text", "bibtex"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    mark: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path, root: Path) -> list[Block]:
    """Every fenced block of a page; a fence without a known language is an error."""
    text = _INCLUDED.sub(lambda found: _included(page.parent / found[1]), page.read_text())
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        block = Block(str(page.relative_to(root)), line, match["language"], match["code"], match["mark"])
        if block.language not in LANGUAGES:
            raise ValueError(f"{block}: name the block's language, one of {sorted(LANGUAGES)}")
        if _IN_SIGHT.match(block.code):
            raise ValueError(f"{block}: say why it is not run in a comment above the block, <!-- not run: why -->")
        follows = bool(found) and found[-1].mark != "not run"
        if (block.language == "text") != (block.mark == "output" and follows) and block.mark != "not run":
            raise ValueError(f"{block}: text is <!-- output --> of a block that runs, or <!-- not run: why -->")
        found.append(block)
    if text.count("\n```") + text.startswith("```") != 2 * len(found):
        raise ValueError(f"{page}: a fence is open or indented")
    return found


def _included(path: Path) -> str:
    """Give a file that a page includes as the block that a reader saves under the file's name."""
    return f"```python\n# {path.name}\n{path.read_text()}```"


def play(blocks, *, slow: bool) -> None:
    """Run a page's blocks one after the other, and compare what they print with what the page says."""
    names: dict = {"__name__": "__main__"}
    said: str | None = None
    for block in blocks:
        if block.mark == "output":
            require_said(block, said)
        elif block.language != "text":
            is_run = block.mark is None or (slow and block.mark == "slow")
            said = run_block(block, names) if is_run else None


def require_said(block: Block, said: str | None) -> None:
    """Compare a page's output with what the block before it printed; None where that was not run."""
    wanted, got = (_OF_ONE_RUN.sub("of one run", text) for text in (block.code, said or ""))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if said is not None and not doctest.OutputChecker().check_output(wanted, got, flags):
        raise AssertionError(f"{block}: the block before it prints\n{said}")


def run_block(block: Block, names: dict) -> str:
    """Run one block in the working directory and give what it prints; ``names`` is the page's Python namespace."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if named := _FILE.match(block.code):
            Path(named[1]).write_text(block.code)
        elif block.language == "python":
            exec(compile(block.code, str(block), "exec"), names)  # noqa: S102 (our own documentation)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "sh":
            said.writelines(_shell(line, block) for line in block.code.splitlines())
    return said.getvalue()


def _shell(line: str, block: Block) -> str:
    words = shlex.split(line, comments=True)
    if words[:1] == ["privbo"] and not set(words) & {"|", ">", "&&"}:
        outcome = app(words[1:], standalone_mode=False)
        assert outcome in (None, 0), f"{block}: {line!r} ended with {outcome}"
        return ""
    scripts = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.check_output(["bash", "-euo", "pipefail", "-c", line], env=scripts, text=True)
