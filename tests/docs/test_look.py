from pathlib import Path

import pytest

from tests.browser.chromium import chromium, require_browser
from tests.docs.look import LOOKS, faults

PAGE = """<!doctype html><html lang="en"><head><title>t</title></head><body style="background:#fff;color:{colour}">
<h1>One</h1><{heading}>Two</{heading}><p style="width:{width}">Some words.</p>{more}</body></html>"""
CLEAN = {"colour": "#000", "heading": "h2", "width": "auto", "more": ""}


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium leaves its log pipe to the collector
def test_what_is_hard_to_read_is_told(tmp_path: Path) -> None:
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
            page.write_text(PAGE.format(**CLEAN | changes))
            found = list(faults(browser, tmp_path, page))
            assert (len(found) >= len(LOOKS)) == bool(told), found
            assert told or not found, found
            assert all(told in line for line in found)
