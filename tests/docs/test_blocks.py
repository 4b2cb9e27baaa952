"""Every code block a reader may copy is run: of the pages at the top and of all others."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of, play as play_blocks, require_said, run_block

ROOT = Path(__file__).parents[2]
TOUR = [f"docs/how-to/{name}.md" for name in ("own-objective", "run", "best", "report", "auditor", "audit", "compare")]
TOP = ("README", "CONTRIBUTING", "GOVERNANCE", "RELEASING")
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*(ROOT / f"{name}.md" for name in TOP), *(ROOT / "docs").rglob("*.md")]
)
NOTEBOOKS = [page for page in PAGES if (ROOT / page).read_text().startswith("---\nfile_format: mystnb\n")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working directory beside the checkout's experiments, as a reader has them."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def play(pages: list[str], *, slow: bool) -> None:
    for page in pages:
        play_blocks(blocks_of(ROOT / page, ROOT), slow=slow)


def has(page: str, what: str) -> bool:
    return any(block.mark == what for block in blocks_of(ROOT / page, ROOT))


@pytest.mark.filterwarnings("ignore:delta = N:UserWarning")  # the pages that use it explain it
def test_the_tour_runs_in_the_order_of_its_pages(folder: Path) -> None:
    play(TOUR, slow=False)


@pytest.mark.filterwarnings("ignore:delta = N:UserWarning")
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha:UserWarning")  # Opacus, where it calibrates
@pytest.mark.parametrize("page", [page for page in PAGES if page not in TOUR + NOTEBOOKS])
def test_blocks_run(page: str, folder: Path) -> None:
    play([page], slow=False)


@pytest.mark.slow  # `make docs` runs the notebooks as well, and draws what they print
@pytest.mark.filterwarnings("ignore:delta = N:UserWarning")
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha:UserWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if has(page, "slow") or page in NOTEBOOKS])
def test_slow_blocks_run(page: str, folder: Path) -> None:
    play(TOUR[: TOUR.index(page) + 1] if page in TOUR else [page], slow=True)


def test_a_broken_block_is_noticed(folder: Path) -> None:
    broken = (("python", "1 / 0\n"), ("sh", "privbo report nowhere\n"), ("sh", "false\n"), ("toml", "a =\n"))
    for language, code in broken:
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is, it must not pass
            run_block(Block("planted", 1, language, code), {})


def test_an_output_that_is_not_what_the_code_prints_is_noticed(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('run-0123456789ab cost', 2.0)\n```\n\n<!-- output -->\n```text\nSAID\n```\n")
    code, said = blocks_of(page, tmp_path)
    printed = run_block(code, {})
    for same in ("run-ba9876543210 cost 2.0", "run-... cost\n  2.0"):
        require_said(replace(said, code=same), printed)
    for other in ("run-0123456789ab cost 1.0", "run-0123456789ab cost 2.0, and more", ""):
        with pytest.raises(AssertionError, match="prints"):
            require_said(replace(said, code=other), printed)


@pytest.mark.parametrize(
    ("fence", "words"),
    [
        ("```\nls\n```\n", "language"),
        ("```text\nof nobody knows what\n```\n", "output"),
        ("```sh\n# not run: hours\nls\n```\n", "comment above"),
    ],
)
def test_a_fence_that_says_too_little_is_refused(fence: str, words: str, tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(fence)
    with pytest.raises(ValueError, match=words):
        blocks_of(page, tmp_path)


def test_a_mark_is_out_of_sight(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- slow: hours -->\n```sh\nls\n```\n\n```{code-cell} python\n:tags: [hide-input]\nx = 1\n```\n")
    found = [(block.language, block.code, block.mark) for block in blocks_of(page, tmp_path)]
    assert found == [("sh", "ls\n", "slow"), ("python", "x = 1\n", None)]
