"""The pairs of the style page are real: what stands under "before" once stood in our own files."""

import re
import subprocess

import pytest

from tests.docs.test_blocks import ROOT

PAIR = re.compile(r"^\| \d+ \| (.+?) \| (.+?) \|$", re.MULTILINE)


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text).lower()


def taken_out() -> str:
    """Every run of lines that a change of a page or of code took out, of the whole history."""
    log = ["git", "log", "-p", "-U0", "--format=", "--", "*.md", "*.py", "*.j2"]
    changes = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return plain(" ".join(line[1:] for line in changes.splitlines() if re.match(r"-(?!-- )", line)))


@pytest.mark.slow
def test_every_before_was_once_ours() -> None:
    if (ROOT / ".git" / "shallow").exists():
        pytest.skip("a shallow clone has no history")
    pairs, gone = PAIR.findall((ROOT / "docs/maintaining/style.md").read_text()), taken_out()
    assert len(pairs) == 20
    assert [before for before, _ in pairs if plain(before).strip() not in gone] == []
    assert "a sentence that never stood in any file of ours" not in gone
