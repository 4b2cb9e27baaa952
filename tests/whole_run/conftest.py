"""Before the first world: a process's first run imports libraries, which warn once on the terminal."""

import pytest

from tests.builders import figures_as_data
from tests.conformance.cases import CASES
from tests.whole_run.test_whole_run import configuration
from tests.whole_run.worlds import SHORT, play


@pytest.fixture(scope="package", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    play(tmp_path_factory.mktemp("warm") / "world", {"run.toml": configuration(CASES[0])}, "plain", SHORT)


@pytest.fixture(autouse=True)
def _data_for_pictures(request: pytest.FixtureRequest):
    """Slow tests and those of one case draw."""
    if request.node.get_closest_marker("slow") or "[fed-pne]" in request.node.name:
        yield
        return
    with figures_as_data():
        yield
