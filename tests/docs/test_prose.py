"""The pages' English keeps to the word list; spelling is codespell's (`make lint`)."""

import pytest

from tests.docs.prose import all_faults, faults


def test_every_page_keeps_to_the_word_list_and_the_columns() -> None:
    assert all_faults() == []


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("We utilise the noise.", "write use"),
        ("The README has a table.", "not in the site"),
        ("A sentence of more than a dozen words that goes on and on without an end\n\nNext.", "full stop"),
        (" ".join(["word"] * 30) + ".", "columns"),
    ],
)
def test_a_planted_fault_is_told(planted: str, told: str) -> None:
    assert [words for _, words in faults(planted) if told in words]


def test_code_tables_titles_and_what_cannot_be_broken_are_let_be() -> None:
    text = "`utilise` and *Federated Optimization*.\n\n| utilise |\n|---|\n\n```text\nutilise\n```\n\n- "
    assert list(faults(text + "`" + "a" * 130 + "`:\n")) == []
