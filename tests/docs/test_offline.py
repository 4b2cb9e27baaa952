import json
from pathlib import Path

import pytest

from tests.docs.offline import faults
from tests.docs.reach import PACKAGES, WORDS, index_of, lost


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


def test_a_name_that_the_search_would_not_find_is_told(tmp_path: Path) -> None:
    names = sorted({name for package in PACKAGES for name in package.__all__})
    index = {"objects": {"a": [[0, 0, 0, "-", f"of.{name}"] for name in names]}, "terms": {}, "titleterms": {}}
    index["terms"] = dict.fromkeys(WORDS, 0)
    assert lost(index) == []
    index["objects"]["a"].pop(names.index("SharedPrior"))
    del index["terms"]["dask"]
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    assert lost(index_of(tmp_path)) == ["dask", "privbo.SharedPrior"]
