"""A run that stands in ``stored_run`` as the first published format wrote it: every later version reads it.

Where a change makes this fail, the reader is to be taught the older format; the files stay as they are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from accountant.verify.auditor import verify_bundle
from privbo.protocol.errors import RunError
from privbo.reports.bundle import write_bundle

STORED = Path(__file__).with_name("stored_run")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "run"))


def test_a_run_of_the_first_published_format_is_read_reported_and_bundled(home: Path) -> None:
    record = pb.load(home)
    with record.ledger:
        assert (record.spec.name, record.spec.rounds, record.plan.n_clients) == ("stored", 4, 5)
        assert record.spec.digest() == json.loads((STORED / "config.json").read_text())["digest"]
        assert 1.99 < record.epsilon() <= 2.0
        found = pb.report(record)
        assert found.ledger.verified
        assert found.releases == found.planned_releases == len(record.releases) == 2
        assert all(np.isfinite(release.values).all() for release in record.releases)
    checked = verify_bundle(write_bundle(home).path)
    assert checked.outcome == "VERIFIED", checked.problems


def test_another_format_is_refused_with_what_to_do(home: Path) -> None:
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(config | {"format": config["format"] + 1}))
    with pytest.raises(RunError, match="make the run anew"):
        pb.load(home)
