"""The code blocks of a Markdown page, and how they are run.

Python blocks of a page share one namespace and one working directory, in the order of the page; lines of shell
blocks that start with ``privbo`` go to the command line's own entry point, other lines to a shell; TOML blocks
are parsed. A block whose first line is a comment with a file's name (``# mine.toml``) is written to that file instead.

A block that is not run says why in a comment on the line above it, out of readers' sight: ``<!-- not run: needs two
machines -->``. One that takes longer than the test suite should says ``<!-- slow: about a minute -->``. The cells of a
notebook, ``{code-cell} python``, are Python blocks.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privbo.cli.main import app

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|slow): [^\n]*\S -->\n)?"
    r"```(?:\{code-cell\} )?(?P<language>\w*)[^\n]*\n(?P<options>(?::[^\n]*\n)*)(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
_IN_SIGHT = re.compile(r"# (not run|slow): ")
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

    @property
    def file(self) -> str | None:
        found = _FILE.match(self.code)
        return found[1] if found else None

    def says(self, what: str) -> bool:
        return self.mark == what


def blocks_of(page: Path, root: Path) -> list[Block]:
    """Every fenced block of a page; a fence without a known language is an error."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        block = Block(str(page.relative_to(root)), line, match["language"], match["code"], match["mark"])
        if block.language not in LANGUAGES:
            raise ValueError(f"{block}: name the block's language, one of {sorted(LANGUAGES)}")
        if _IN_SIGHT.match(block.code):
            raise ValueError(f"{block}: say why it is not run in a comment above the block, <!-- not run: why -->")
        found.append(block)
    if text.count("\n```") + text.startswith("```") != 2 * len(found):
        raise ValueError(f"{page}: a fence is open or indented")
    return found


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run one block in the working directory; ``names`` is the page's Python namespace."""
    if block.file is not None:
        Path(block.file).write_text(block.code)
    elif block.language == "python":
        exec(compile(block.code, str(block), "exec"), names)  # noqa: S102 (our own documentation)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "sh":
        for line in block.code.splitlines():
            _shell(line, block)


def _shell(line: str, block: Block) -> None:
    words = shlex.split(line, comments=True)
    if words[:1] == ["privbo"] and not set(words) & {"|", ">", "&&"}:
        outcome = app(words[1:], standalone_mode=False)
        assert outcome in (None, 0), f"{block}: {line!r} ended with {outcome}"
    elif words:
        scripts = Path(sys.executable).parent
        path = f"{scripts}:/usr/bin:/bin"
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env={"PATH": path})
