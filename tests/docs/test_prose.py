"""The pages' English keeps to the word list; spelling is codespell's (`make lint`)."""

import pytest

from tests.docs.prose import all_faults, faults, faults_of_code, faults_of_edited, house_words


def test_every_page_keeps_to_the_word_list_and_the_columns() -> None:
    assert all_faults() == []


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("We utilise the noise.", "write use"),
        ("The README has a table.", "not in the site"),
        ("A sentence of more than a dozen words that goes on and on without an end\n\nNext.", "full stop"),
        (" ".join(["word"] * 30) + ".", "columns"),
        ("It clips about 1\n% of the vectors.", "takes the line for a comment"),
    ],
)
def test_a_planted_fault_is_told(planted: str, told: str) -> None:
    assert [words for _, words in faults(planted) if told in words]


def test_code_tables_titles_and_what_cannot_be_broken_are_let_be() -> None:
    text = "`utilise` and *Federated Optimization*.\n\n| utilise |\n|---|\n\n```text\nutilise\n```\n\n- "
    assert list(faults(text + "`" + "a" * 130 + "`:\n")) == []


@pytest.mark.parametrize(
    ("planted", "good"),
    [
        ("Nobody sees a vector.", "the actor"),
        ("| arm |\n|---|\n| beside noise |\n", "versus"),
        ("The arm with the sum zeroed loses.", "noise-only"),
        ("A charge pays for one release.", "covered"),
        ("Every room of it has a page.", "module"),
        ("Shares are sealed to one key.", "encrypted"),
    ],
)
def test_a_planted_house_word_is_found_on_a_page_and_in_a_string(planted: str, good: str) -> None:
    sources = [
        f'def f() -> None:\n    """First line.\n\n    {planted}\n    """\n',
        f"print(f{'{1} ' + planted!r})\n",
    ]
    for found in (faults_of_edited(planted), *map(faults_of_code, sources)):
        assert [words for _, words in found if good in words]


def test_code_settings_and_words_of_the_field_are_no_house_words() -> None:
    text = """`zeroed`, control = "zeroed", ``beside``, leaves room to gain, 40 letters\n
```python
beside = "nobody"
```
<!-- table one: T -->
| best rival |
<!-- end -->
"""
    assert list(house_words(text)) == []
    assert list(faults_of_code("nobody = beside = 'nobody'\n")) == []


def test_a_page_of_long_sentences_is_found() -> None:
    long, short = " ".join(["Word", *["word"] * 25]) + ". ", "Word. "
    assert [words for _, words in faults_of_edited(8 * short + long) if "11% of the sentences" in words]
    assert list(faults_of_edited(9 * short + long)) == []
