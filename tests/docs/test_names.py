"""Files and modules that the pages name are where the pages say."""

import re
from pkgutil import resolve_name

import pytest

from tests.docs.test_blocks import PAGES, ROOT

NAMED = re.compile(r"`((?:accountant|privbo|experiments|benchmarks|tests|docs)[./][\w./-]*)")


def missing(text: str) -> list[str]:
    return [name for name in NAMED.findall(text) if not ((ROOT / name).exists() if "/" in name else is_name(name))]


def is_name(name: str) -> bool:
    """A module, or something in one, such as ``accountant.filters.quote``."""
    try:
        resolve_name(name.rstrip("."))
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text()) == []


def test_a_wrong_name_is_noticed() -> None:
    text = "`privbo/release/door.py`, `accountant.numerical.magic`, `privbo.Nothing`, `accountant.filters.quote`"
    assert missing(text) == ["privbo/release/door.py", "accountant.numerical.magic", "privbo.Nothing"]
