"""Commands write a page with every run: those of two modules have pictures."""

import pytest

from tests.builders import figures_as_data


@pytest.fixture(scope="module", autouse=True)
def _data_for_pictures(request):
    if request.module.__name__.endswith(("test_cli", "test_check")):
        yield
        return
    with figures_as_data():
        yield
