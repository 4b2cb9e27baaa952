"""The report's numbers: another program recomputes them, and nothing private is among them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian, compose, from_dict
from accountant.ledger_export import FORMATS, export
from privbo.pages import prices
from privbo.pages.broadcasts import replay
from privbo.pages.document import bound, plotly_script
from privbo.pages.report import page, report, write_page
from privbo.record import read_lines
from tests.conformance.cases import CASES, problem
from tests.pages.runs import small_run

ZERO_OUT = Adjacency.ZERO_OUT


@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_another_program_recomputes_epsilon_from_the_json_alone(tmp_path: Path, rate: float) -> None:
    """dp-accounting's PLD accountant, fed with the JSON's releases only, agrees to 1 %."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    result = small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, sample_rate=rate), rounds=4)
    data = json.loads(json.dumps(report(result.config, result.ledger), allow_nan=False))
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    for entry in data["entries"]:
        released = dp.GaussianDpEvent(entry["noise_multiplier"])
        sampled = released if entry["sample_rate"] == 1.0 else dp.PoissonSampledDpEvent(entry["sample_rate"], released)
        accountant.compose(sampled)
    theirs = accountant.get_epsilon(data["delta"])
    assert data["entries"][-1]["cumulative_epsilon"] == pytest.approx(theirs, rel=0.01)
    assert min(data["epsilon"].values()) == pytest.approx(theirs, rel=0.01)
    planned = eval(data["dp_event"], {name: getattr(dp, name) for name in dir(dp) if name.endswith("DpEvent")})  # noqa: S307
    assert PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL).compose(planned).get_epsilon(
        data["delta"]
    ) == pytest.approx(theirs, rel=1e-3)


def test_python_gets_figures_and_a_frame(tmp_path: Path) -> None:
    result = small_run(tmp_path / "run", rounds=2)
    found = result.figures()
    assert {"epsilon-by-release", "delta-epsilon", "trade-off", "release-norms"} == set(found)
    assert len(found["epsilon-by-release"].data) == 3
    assert list(result.history()["round"]) == [0, 1]


def test_a_forged_multiplier_would_be_seen(tmp_path: Path) -> None:
    """The planted fault of the test above: 2 % more noise than was drawn moves epsilon by more than 1 %."""
    event = PoissonSampledGaussian(sample_rate=0.4, noise_multiplier=2.0)
    forged = dataclasses.replace(event, noise_multiplier=2.04)
    at = [min(filter(None, prices.table(compose([(e, 4)]), 1e-5, ZERO_OUT).values())) for e in (event, forged)]
    assert at[1] < 0.99 * at[0]


def test_guaranteed_beside_as_if_non_adaptive(tmp_path: Path) -> None:
    """An unfinished plan is guaranteed at the plan's price; the releases made so far read cheaper."""
    result = small_run(tmp_path / "run", pb.FedPNE(horizon=400, c=0.02), rounds=8, privacy=pb.Privacy(epsilon=2.0))
    data = report(result.config, result.ledger)
    assert data["releases"] < data["planned_releases"]
    assert data["guaranteed"] == pytest.approx(2.0, abs=1e-3)
    assert data["as_if_non_adaptive"] < data["guaranteed"]
    entries = result.ledger.entries()
    shuffled = [dataclasses.replace(entry, plan_position=7) for entry in entries]
    left = prices.guarantee(
        shuffled,
        plan=from_dict(result.config["plan"]["event"]),
        delta=1e-5,
        adjacency=ZERO_OUT,
        budget=result.ledger.policy.budget,
    )
    assert left["guaranteed"] is None
    assert left["as_if_non_adaptive"] is None


def test_attacker_bounds_against_the_exact_trade_off() -> None:
    """For one Gaussian release the trade-off is known: power Phi(Phi^-1(a) + mu), best guess Phi(mu / 2)."""
    from scipy.special import ndtr, ndtri

    mu = 1.0
    found = prices.attacker(prices.curve(Gaussian(noise_multiplier=1 / mu), 1e-5, ZERO_OUT))
    assert found["right_guess"] == pytest.approx(float(ndtr(mu / 2)), rel=1e-9)
    for row in found["caught"]:
        exact = float(ndtr(ndtri(row["false_alarms"]) + mu))
        assert exact <= row["caught"] <= 1.1 * exact + 1e-3


def test_cumulative_epsilon_never_understates() -> None:
    events = [PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=1.0 + 0.01 * i) for i in range(50)]
    points = prices.cumulative(events, 1e-5, ZERO_OUT)
    assert len(points) <= 42
    after = prices.after_each(points, len(events))
    assert len(after) == 50
    assert after == sorted(after)
    for count in (1, 2, 27, 49, 50):
        exact = prices.smallest(prices.table(compose(events[:count]), 1e-5, ZERO_OUT))
        assert after[count - 1] >= exact * (1 - 1e-9)


@pytest.mark.parametrize("value", [1.9999988, 1.23451, 0.000123456, 12345.678])
def test_printed_bounds_are_rounded_up(value: float) -> None:
    assert value * (1 - 1e-9) <= float(bound(value)) <= value * (1 + 1.01e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_server_replays_from_public_files(case) -> None:
    """Replayed from configuration and ledger, a server asks again for exactly what was released."""
    result = pb.run(
        problem(), case.algorithm, privacy=pb.Privacy(noise_multiplier=3.0, noise="simulation"), rounds=3, seed=1
    )
    rounds = [release.round for _, release in replay(result.config, result.ledger) if release is not None]
    assert rounds == [release.round for release in result.releases]
    data = report(result.config, result.ledger)
    nodes = data["utility"]["active_nodes"]
    assert (nodes is None) == case.name.startswith(("dp-fts-de", "f-lcb"))
    if nodes is not None:
        assert all(row["nodes"] >= 1 for row in nodes)
    assert data["name"] in page(data)


PRIVATE_WORDS = (
    "clipped_share", "n_participants", "participants", "norm_quantiles", "bias", "n_absent", "best_so_far",
    "best_score", "evaluations", "signal",
)  # fmt: skip


def numbers(content: object) -> set[float]:
    if isinstance(content, dict):
        return set().union(*(numbers(value) for value in content.values())) if content else set()
    if isinstance(content, list):
        return set().union(*(numbers(value) for value in content)) if content else set()
    return {float(content)} if isinstance(content, float) else set()


def private_numbers(result: pb.Result) -> set[float]:
    """Every number of a run's private side that is no round figure."""
    assert result.directory is not None
    found = {v for row in read_lines(result.directory / "private" / "clipping.jsonl") for v in numbers(row)}
    for array in (result.clients.values, result.clients.units):
        found |= set(array[np.isfinite(array)].ravel().tolist())
    return {v for v in found if abs(v) > 1e-9 and v != round(v, 2)}


def leaks(home: Path, private: set[float]) -> list[str]:
    """Public files that hold a private number, as text or as bytes, or a private word."""
    found = []
    for path in (p for p in home.iterdir() if p.is_file()):
        content = path.read_bytes()
        seen = content.decode("latin-1").replace(plotly_script().encode().decode("latin-1"), "")
        found += [f"{path.name}: {v!r}" for v in private if repr(v) in seen or np.float64(v).tobytes() in content]
        found += [f"{path.name}: {word}" for word in PRIVATE_WORDS if f'"{word}' in seen]
    return found


def test_public_artefacts_hold_nothing_private(tmp_path: Path) -> None:
    """Every public file of a run is searched for private words and for every private number it could hold."""
    result = small_run(tmp_path / "run", rounds=4)
    home = tmp_path / "run"
    result.report()
    write_page(report(result.config, result.ledger), home / "shared.html", shared_assets=True)
    (home / "report.json").write_text(json.dumps(report(result.config, result.ledger)))
    for form in FORMATS:
        (home / f"ledger.{form}").write_text(export(result.ledger, form))
    private = private_numbers(result)
    assert len(private) > 50
    assert leaks(home, private) == []


@pytest.mark.parametrize("form", ["text", "bytes", "word"])
def test_the_search_finds_a_planted_leak(tmp_path: Path, form: str) -> None:
    result = small_run(tmp_path / "run", rounds=2)
    value = float(result.clients.values[0, 0])
    planted = {"text": json.dumps([1.0, value]).encode(), "bytes": np.array([1.0, value]).tobytes()}
    (tmp_path / "run" / "extra").write_bytes(planted.get(form, b'{"clipped_share": 1}'))
    assert [line.split(":")[0] for line in leaks(tmp_path / "run", private_numbers(result))] == ["extra"]
