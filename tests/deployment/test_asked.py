"""People at sites of a real federation: Flower's processes ask, other processes tell, with guardians as without."""

from __future__ import annotations

from pathlib import Path

import pytest

import privbo as pb
from privbo.runs.record import load
from tests.deployment.processes import deployed, start_parties
from tests.guardians.test_flower import SECURE, guarded
from tests.runs.test_asked import people_at

pytestmark = pytest.mark.deployment


@pytest.mark.slow
def test_people_at_sites_of_real_processes_finish_a_run_that_guardians_sum(tmp_path: Path) -> None:
    federation = guarded(
        tmp_path,
        {"type": "f-lcb"},
        factory="tests.runs.test_asked:sites_asked_problem",
        privacy=SECURE,
        seed=None,
        start_timeout=120.0,
        round_timeout=120.0,
    )
    with deployed(federation) as deployment:
        start_parties(deployment, federation)
        with people_at(federation):
            deployment.play(federation.home, timeout=500)
    record = load(federation.run.path)
    assert len(record.ledger.entries()) == record.plan.releases > 0
    for name in federation.sites:
        site = pb.Site(tmp_path / name / "kept")
        assert site.over
        assert site.ask() == ()
        assert {trial.state for trial in site.trials()} == {"told"}
        assert len(site.trials()) >= record.plan.releases * len(site.clients)
