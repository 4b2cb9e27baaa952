import pytest

from tests.browser.chromium import chromium, require_browser
from tests.docs import look, offline
from tests.docs.offline import PAGE, PICTURE, weights
from tests.sources import ROOT


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
def test_what_a_page_would_fetch_is_found(planted: str, tmp_path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://example.org">out</a><a href="index.html#top">in</a>')
    assert offline.faults(tmp_path) == []
    (tmp_path / "index.html").write_text(planted)
    assert len(offline.faults(tmp_path)) == 1
    (tmp_path / "a.css").write_text("@font-face { src: url(https://fonts.example/a.woff2) }")
    assert len(offline.faults(tmp_path)) == 2


def test_a_page_that_is_too_heavy_is_told(tmp_path) -> None:
    (tmp_path / "a.js").write_bytes(b" " * (PAGE - 1000))
    (tmp_path / "a.png").write_bytes(b" " * PICTURE)
    page = tmp_path / "index.html"
    page.write_text('<script src="a.js"></script><img src="a.png" loading="lazy"><img src="data:,x">')
    assert weights(tmp_path) == []
    page.write_text('<script src="a.js"></script><img src="a.png">')
    (tmp_path / "b.png").write_bytes(b" " * (PICTURE + 1))
    assert [line.split(":")[0] for line in weights(tmp_path)] == [str(tmp_path / "b.png"), str(page)]


def test_no_picture_of_the_pages_is_heavy() -> None:
    pictures = {path: path.stat().st_size for path in (ROOT / "docs").rglob("*.png")}
    assert pictures
    assert {path.name: size for path, size in pictures.items() if size > PICTURE} == {}


# ---- what is hard to read is told by a real browser

LOOKED_AT = """<!doctype html><html lang="en"><head><title>t</title></head><body style="background:#fff;color:{colour}">
<h1>One</h1><{heading}>Two</{heading}><p style="width:{width}">Some words.</p>{more}</body></html>"""
CLEAN = {"colour": "#000", "heading": "h2", "width": "auto", "more": ""}


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium leaves its log pipe to the collector
def test_what_is_hard_to_read_is_told(tmp_path) -> None:
    require_browser()
    page = tmp_path / "index.html"
    planted = [
        ({}, ""),
        ({"colour": "#bbb"}, "color-contrast"),
        ({"heading": "h4"}, "heading-order"),
        ({"width": "2000px"}, "scrolls sideways"),
        ({"more": "<img src='data:,'>"}, "image-alt"),
        ({"more": "<img src='data:,' alt='_images/0123.png'>"}, "image-alt: _images/0123.png"),
        ({"more": "<script>console.error('x')</script>"}, "x"),
    ]
    with chromium(tmp_path / "profile") as browser:
        for changes, told in planted:
            page.write_text(LOOKED_AT.format(**CLEAN | changes))
            found = list(look.faults(browser, tmp_path, page))
            assert (len(found) >= len(look.LOOKS)) == bool(told), found
            assert told or not found, found
            assert all(told in line for line in found)
