"""The report's numbers: another program recomputes them."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import privbo as pb
from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian, compose
from accountant.tight.numerical import epsilon_table
from accountant.wording import upper_text
from privbo.cli.run import carry_out, report_run
from privbo.plans import cost
from privbo.reports.report import report
from privbo.reports.report_page import document
from privbo.runs.record import replay
from privbo.runs.spec import Spec
from tests.builders import figures_as_data, play
from tests.conformance.cases import CASES, problem
from tests.reports.runs import small_run

ZERO_OUT = Adjacency.ZERO_OUT


@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_another_program_recomputes_epsilon_from_the_json_alone(tmp_path: Path, rate: float) -> None:
    """dp-accounting's PLD accountant, fed with the JSON's releases only, agrees to 1 %."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    result = small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, sample_rate=rate), rounds=4)
    data = json.loads(json.dumps(report(result).to_dict(), allow_nan=False))
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    for entry in data["entries"]:
        released = dp.GaussianDpEvent(entry["noise_multiplier"])
        sampled = released if entry["sample_rate"] == 1.0 else dp.PoissonSampledDpEvent(entry["sample_rate"], released)
        accountant.compose(sampled)
    theirs = accountant.get_epsilon(data["delta"])
    assert data["entries"][-1]["cumulative_epsilon"] == pytest.approx(theirs, rel=0.01)
    assert min(data["epsilon"].values()) == pytest.approx(theirs, rel=0.01)
    planned = eval(data["dp_event"], {name: getattr(dp, name) for name in dir(dp) if name.endswith("DpEvent")})  # noqa: S307 (our own words)
    assert PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(planned).get_epsilon(
        data["delta"]
    ) == pytest.approx(theirs, rel=1e-3)


def test_a_page_of_three_thousand_releases_lists_the_ends_and_draws_the_extremes(tmp_path: Path) -> None:
    """The JSON keeps every charge; the page names the command that lists them."""
    count, found = 3_000, report(small_run(tmp_path / "run", rounds=2))
    first, rng = found.utility.releases[0], np.random.default_rng(4)
    norms = rng.random(count)
    norms[1234] = 9.0
    releases = tuple(dataclasses.replace(first, round=at, norm=float(norm)) for at, norm in enumerate(norms))
    entries = tuple(dataclasses.replace(found.entries[0], sequence=at, release=f"r/{at}") for at in range(count))
    utility = dataclasses.replace(found.utility, releases=releases)
    long = dataclasses.replace(found, entries=entries, utility=utility)
    assert len(long.to_dict()["entries"]) == count
    page = document(long)
    drawn = page.figures["release-norms"].series[0]
    assert len(drawn.x) <= 500
    assert list(drawn.x) == sorted(drawn.x)
    assert (1234, 9.0) in zip(drawn.x, drawn.y, strict=True)
    text = page.render()
    assert len(text) < 300_000
    assert "2,600 of 3,000 charges" in text
    assert "privbo ledger show DIR" in text
    assert all((f"r/{at}<" in text) == (at < 200 or at >= 2_800) for at in range(count))
    assert "charges, those between" not in document(found).render()


def test_guaranteed_beside_as_if_non_adaptive(tmp_path: Path) -> None:
    """An unfinished plan is guaranteed at the plan's price; the releases made so far read cheaper."""
    algorithm = pb.FedPNE(horizon=400, c=0.02, release_when="always")
    result = small_run(tmp_path / "run", algorithm, rounds=8, privacy=pb.Privacy(epsilon=2.0))
    found = report(result)
    assert found.releases < found.planned_releases
    assert found.guarantee.guaranteed == pytest.approx(2.0, abs=1e-3)
    assert found.guarantee.as_if_non_adaptive < found.guarantee.guaranteed
    entries = result.ledger.entries()
    shuffled = [dataclasses.replace(entry, plan_position=7) for entry in entries]
    left = cost.guarantee(
        shuffled,
        plan=result.plan.event,
        delta=1e-5,
        adjacency=ZERO_OUT,
        budget=result.ledger.policy.budget,
    )
    assert left.guaranteed == math.inf
    assert left.as_if_non_adaptive is None


def test_attacker_bounds_against_the_exact_trade_off() -> None:
    """For one Gaussian release the trade-off is known: power Phi(Phi^-1(a) + mu), best guess Phi(mu / 2)."""
    from scipy.special import ndtr, ndtri

    mu = 1.0
    found = cost.attacker(Gaussian(noise_multiplier=1 / mu), ZERO_OUT)
    assert 1.0 - found.bayes_risk(0.5) == pytest.approx(float(ndtr(mu / 2)), rel=1e-9)
    alarms = np.geomspace(1e-9, 0.99, 30)
    exact = ndtr(ndtri(alarms) + mu)
    assert np.all(exact <= found.attack_success(alarms))
    assert np.all(found.attack_success(alarms) <= 1.001 * exact)


def test_cumulative_epsilon_never_understates() -> None:
    events = [PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.0 + 0.01 * i) for i in range(50)]
    points = cost.cumulative(events, 1e-5, ZERO_OUT)
    assert len(points) <= 42
    after = cost.after_each(points, len(events))
    assert len(after) == 50
    assert after == sorted(after)
    for count in (1, 2, 27, 49, 50):
        exact = min(epsilon_table(compose(events[:count]), 1e-5, adjacency=ZERO_OUT).values())
        assert after[count - 1] >= exact * (1 - 1e-9)


@pytest.mark.parametrize("value", [1.9999988, 1.23451, 0.000123456, 12345.678])
def test_printed_bounds_are_rounded_up(value: float) -> None:
    assert value * (1 - 1e-9) <= float(upper_text(value)) <= value * (1 + 1.01e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_server_replays_from_public_files(case) -> None:
    """Replayed from configuration and ledger, a server asks again for exactly what was released."""
    result = play(problem(), case.algorithm)
    found = report(result)
    rounds = [release.round for _, release in replay(result) if release is not None]
    assert rounds == [release.round for release in result.releases]
    nodes = found.utility.active_nodes
    assert (nodes is not None) == case.name.startswith(("fed-pne", "parallel", "pf-pne", "flexible"))
    if nodes is not None:
        assert all(row.nodes >= 1 for row in nodes)
    with figures_as_data():
        assert found.name in document(found).render()


def test_regret_is_what_clients_missed(tmp_path: Path) -> None:
    """Against the best scores of its own evaluations, by hand; only the private page shows it."""
    table = {
        "name": "tiny", "rounds": 3, "controls": ["local"], "problem": {"factory": "tests.crash_problem:with_optimum"},
        "algorithm": {"type": "dp-fts-de", "n_features": 8}, "privacy": {"epsilon": 2.0},
    }  # fmt: skip
    home = tmp_path / "run"
    config = tmp_path / "tiny.toml"
    config.write_text(tomli_w.dumps(table))
    carry_out(Spec.from_dict(table, trusted=True).loaded(), home, resume=False, progress=False)
    attainable = 0.01 * np.cos(np.arange(6))
    history = pb.load(home).clients
    found = report_run(home, regret=config, write=False).diagnostics.regret
    assert found.mean_attainable_score == pytest.approx(attainable.mean())
    assert found.simple_regret == pytest.approx((attainable - history.values.max(axis=1)).mean())
    assert found.simple_regret > 0
    by_round = [history.values[:, history.rounds <= r].max(axis=1) for r in range(history.rounds.max() + 1)]
    missed = [float((attainable - best).mean()) for best in by_round]
    curves = found.cumulative_regret
    assert curves["this run"] == pytest.approx(sum(missed[-3:]))
    assert set(curves) == {"this run", "local only, nothing shared"}
    page = report_run(home, regret=config).page
    assert page.parent.name == "private"
    assert "regret" in page.read_text()


def test_python_gets_figures_and_a_frame(tmp_path: Path) -> None:
    result = small_run(tmp_path / "run", rounds=2)
    found = pb.figures(result)
    every = {"epsilon-by-release", "epsilon-by-accountant", "delta-epsilon", "trade-off", "release-norms"}
    assert every == set(found)
    assert [len(found[name].series) for name in ("epsilon-by-release", "epsilon-by-accountant")] == [1, 3]
    assert list(pb.history(result)["round"]) == [0, 1]
