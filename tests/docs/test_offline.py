from pathlib import Path

import pytest

from tests.docs.offline import PAGE, PICTURE, faults, weights

ROOT = Path(__file__).parents[2]


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
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/a.woff2) }")
    assert len(faults(tmp_path)) == 2


def test_a_page_that_is_too_heavy_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_bytes(b" " * (PAGE - 1000))
    (tmp_path / "a.png").write_bytes(b" " * PICTURE)
    page = tmp_path / "index.html"
    page.write_text('<script src="a.js"></script><img src="a.png" loading="lazy"><img src="data:,x">')
    assert weights(tmp_path) == []
    page.write_text('<script src="a.js"></script><img src="a.png">')
    (tmp_path / "b.png").write_bytes(b" " * (PICTURE + 1))
    told = weights(tmp_path)
    assert [line.split(":")[0] for line in told] == [str(tmp_path / "b.png"), str(page)]


def test_no_picture_of_the_pages_is_heavy() -> None:
    pictures = {path: path.stat().st_size for path in (ROOT / "docs").rglob("*.png")}
    assert pictures
    assert {path.name: size for path, size in pictures.items() if size > PICTURE} == {}
