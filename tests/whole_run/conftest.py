"""Before the first world: a process's first run imports libraries, which warn once on the terminal."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from markupsafe import Markup

from privbo.reports.figure import Figure
from tests.conformance.cases import CASES
from tests.whole_run.test_whole_run import configuration
from tests.whole_run.worlds import SHORT, play


@pytest.fixture(scope="package", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    play(tmp_path_factory.mktemp("warm") / "world", {"run.toml": configuration(CASES[0])}, "plain", SHORT)


@pytest.fixture(autouse=True)
def _figures_as_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages hold what a figure is made of: drawing it takes longer than the run. Slow tests and one case draw."""
    if request.node.get_closest_marker("slow") or "[fed-pne]" in request.node.name:
        return

    def written(figure: Figure, label: str, name: str = "figure") -> Markup:
        return Markup("<svg>{}</svg>").format(json.dumps(dataclasses.asdict(figure), default=np.ndarray.tolist))

    monkeypatch.setattr(Figure, "svg", written)
