"""Runs that stop early give nothing back: their total holds their plans, not what happened to be released.

Four FedPNE runs of four releases each at noise multiplier 7.46 stop after two, because of what they saw. Their plans
compose to 2.155 at delta 1e-5, their releases to 1.4652, which was once printed as what they had cost together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import Adjacency, Event
from accountant.ledger import Ledger
from accountant.tight.numerical import epsilon
from privbo.runs.in_process import in_process
from privbo.runs.loop import play
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import Run, open_run, plan_run
from privbo.runs.spec import Spec
from tests.builders import StoppedError, stopping
from tests.cli.test_cli import privbo
from tests.conformance.cases import problem

RUNS, PLANNED, MADE, DELTA = 4, 4, 2, 1e-5
PLANS, RELEASES = 2.155, 1.4652


def opened(shared: pb.SharedLedger, home: Path) -> Run:
    spec = Spec(
        name="four",
        problem=problem(),
        algorithm=pb.FedPNE(horizon=400, c=0.02, releases=PLANNED, release_when="always"),
        privacy=pb.Privacy(noise_multiplier=7.460263403993197, delta=DELTA),
        rounds=8,
        ledger=shared,
    )
    plan = plan_run(spec)
    assert plan.releases == PLANNED
    return open_run(spec, plan, RunDirectory(home))


def stopped(run: Run) -> None:
    evaluate = problem().evaluator()
    with pytest.raises(StoppedError), run.record.ledger:
        play(run, in_process(run.setup, run.record.home, evaluate, None), stopping(MADE - 1))


def one_after_another(shared: pb.SharedLedger, root: Path) -> None:
    for number in range(RUNS):
        stopped(opened(shared, root / str(number)))


def declared_together(shared: pb.SharedLedger, root: Path) -> None:
    for run in [opened(shared, root / str(number)) for number in range(RUNS)]:
        stopped(run)


def price(event: Event) -> float:
    return epsilon(event, DELTA, adjacency=Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    ("order", "bound", "least", "most", "rule"),
    [
        (declared_together, {}, PLANS, PLANS, "declared before the first release of any"),
        (
            one_after_another,
            {"epsilon": 2.2, "delta": DELTA, "rule": "gaussian"},
            PLANS,
            2.2,
            "kept since its creation",
        ),
        (one_after_another, {"epsilon": 4.0, "delta": DELTA, "rule": "renyi"}, PLANS, 4.0, "kept since its creation"),
        (one_after_another, {}, PLANS, 4.0, "an odometer"),
    ],
    ids=["together", "gaussian filter", "Rényi filter", "odometer"],
)
def test_the_total_of_runs_that_stopped_early_is_that_of_their_plans(
    order: Callable[[pb.SharedLedger, Path], None], bound: dict, least: float, most: float, rule: str, tmp_path: Path
) -> None:
    shared = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", **bound)
    order(shared, tmp_path)
    with Ledger.open(tmp_path / "people.sqlite") as ledger:
        assert len(ledger.entries()) == RUNS * MADE
        assert price(ledger.event()) == pytest.approx(RELEASES, abs=1e-3)  # what was printed
        assert price(ledger.committed()) == pytest.approx(PLANS, abs=1e-3)
    for number in (0, RUNS - 1):
        found = json.loads(privbo("report", str(tmp_path / str(number)), "--json").stdout)["total"]
        assert least - 1e-3 <= found["epsilon"] <= most + 1e-3
        assert rule in found["rule"]
        assert (found["releases"], found["runs"], found["delta"]) == (RUNS * PLANNED, RUNS, DELTA)


def test_what_stopped_runs_left_over_does_not_come_back(tmp_path: Path) -> None:
    """The four plans fit a bound of 2.2 and a fifth does not, though of sixteen slots eight were used."""
    shared = pb.SharedLedger(
        path=str(tmp_path / "people.sqlite"), population="ward", epsilon=2.2, delta=DELTA, rule="gaussian"
    )
    one_after_another(shared, tmp_path)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        opened(shared, tmp_path / "fifth")
    run_id = RunDirectory(tmp_path / "0").manifest().run_id
    with Ledger.open(tmp_path / "people.sqlite") as ledger:
        assert (
            sum((ledger.book().left(run_id) or {}).values()) == PLANNED - MADE
        )  # and may still be spent by the run itself
