from pathlib import Path

import pytest

from tests.docs.offline import faults


@pytest.mark.parametrize(
    "planted",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<img src="//elsewhere.example/a.png">',
        '<a href="missing.html">x</a>',
        '<img src="missing.png">',
    ],
)
def test_what_a_page_would_fetch_is_found(planted: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://example.org">out</a><a href="index.html#top">in</a>')
    assert faults(tmp_path) == []
    (tmp_path / "index.html").write_text(planted)
    assert len(faults(tmp_path)) == 1


def test_a_style_sheet_that_fetches_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/a.woff2) }")
    assert len(faults(tmp_path)) == 1
