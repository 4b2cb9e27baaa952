import json

import pytest

import privbo as pb
from experiments.result_pages import refresh

PAGE = """# Found

<!-- table found-4 -->
what stood here
<!-- end -->

![a picture](found/4.png)

<!-- table study: second -->
<!-- end -->
Text between.
"""


def results(folder):
    for name, table in (
        ("found-4", "**one** (3 runs)\n\n| a |\n"),
        ("study", "**first** x\n\n**second** y\n\n| b |\n"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "table.md").write_text(table)
        (folder / name / "summary.json").write_text(json.dumps({"curve": [0.123456789, 2], "label": "x", "none": None}))
        (folder / name / "figure.png").write_bytes(b"picture of " + name.encode())
    return folder


def test_tables_pictures_and_numbers_come_from_the_results(tmp_path):
    page = tmp_path / "found.md"
    page.write_text(PAGE)
    assert refresh(results(tmp_path / "results"), page) == ["found-4", "study"]
    text = page.read_text()
    assert "what stood here" not in text
    assert "**one** (3 runs)\n\n| a |" in text
    assert "**second** y\n\n| b |" in text
    assert "**first**" not in text
    assert text.endswith("Text between.\n")
    assert json.loads((tmp_path / "found" / "4.json").read_text()) == {
        "curve": [0.12346, 2],
        "label": "x",
        "none": None,
    }
    assert (tmp_path / "found" / "4.png").read_bytes() == b"picture of found-4"
    assert not (tmp_path / "found" / "study.png").exists()
    refresh(tmp_path / "results", page)
    assert page.read_text() == text


@pytest.mark.parametrize("block", ["found-5", "study: third"])
def test_a_table_that_was_not_run_is_named_and_the_page_stays(tmp_path, block):
    page = tmp_path / "found.md"
    page.write_text(f"<!-- table {block} -->\n<!-- end -->\n")
    with pytest.raises(pb.ConfigurationError, match=r"found-5|third"):
        refresh(results(tmp_path / "results"), page)
    assert page.read_text() == f"<!-- table {block} -->\n<!-- end -->\n"
