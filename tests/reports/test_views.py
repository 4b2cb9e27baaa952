"""One result and its views: JSON, terminal, repr and page say the same of the same objects."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import privbo as pb
from accountant.events import Adjacency
from accountant.verify.auditor import verify_bundle
from accountant.wording import upper_text
from privbo.audits.empirical import Audit
from privbo.cli.run import WrittenReport, report_run
from privbo.cli.terminal import render, show
from privbo.protocol.settings import plain
from privbo.protocol.table import text_of
from privbo.reports.bundle import write_bundle, write_receipt
from privbo.reports.document import percent_bound
from privbo.reports.figure import Axis, Figure, Series, parallel
from privbo.reports.report import ledger_view, report
from privbo.reports.report_page import Told, document, statement
from tests.conformance.cases import problem
from tests.reports.runs import EVIL, evil_run, small_run

# Other programs read these.
REPORT_KEYS = {
    "name", "run", "created", "epsilon", "delta", "asked_delta", "epsilon_at", "epsilon_interval", "guaranteed",
    "because", "as_if_non_adaptive", "attacker", "planned_event", "dp_event", "releases", "hidden",
    "planned_releases", "rounds", "n_clients", "unit", "unit_text", "adjacency", "trust", "exposures", "samplers",
    "noise_multiplier", "sample_rate", "noise_source", "noise_source_text", "guarantee", "control", "caveat", "outlook",
    "population", "budget", "total", "vote", "common", "ledger", "likeness", "entries", "cumulative_epsilon", "utility",
    "problem", "algorithm", "privacy", "seed", "public_seed", "device", "source", "versions",
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> pb.Record:
    return small_run(tmp_path_factory.mktemp("run") / "run")


def shown(result: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(result, console)
    return console.export_text()


def test_the_reports_json_keeps_its_keys(result: pb.Record) -> None:
    found = report(result)
    data = json.loads(json.dumps(plain(found), allow_nan=False))
    assert set(data) == REPORT_KEYS
    state = data["ledger"]
    assert (state["verified"], state["problem"], state["head"]) == (True, None, result.ledger.head)
    assert (state["entries"], state["recovered"], data["total"]["epsilon"]) == (3, [], found.smallest_epsilon)
    assert set(data["cumulative_epsilon"][0]) == {"releases", "moments", "renyi", "tight"}
    assert data["entries"][0]["mechanism"]["type"] == "poisson-sampled-gaussian"
    assert data["epsilon_at"][0] == {"label": "this run", "delta": found.delta, "epsilon": data["epsilon"]}


def test_every_view_quotes_the_same_epsilon(result: pb.Record) -> None:
    found = report(result)
    quoted = upper_text(found.smallest_epsilon)
    assert found.smallest_epsilon == min(plain(found)["epsilon"].values()) == result.epsilon()
    assert quoted in shown(found)
    assert f"epsilon {quoted} at delta" in repr(found)
    assert f'<b id="epsilon">{upper_text(found.smallest_epsilon)}</b>' in document(found).render()
    assert shown(WrittenReport(report=found, page=Path("x.html"))).endswith("report: x.html\n")


def test_a_run_that_asked_for_the_papers_delta_is_quoted_at_the_safe_one_in_every_view(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="delta = N"):
        made = small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, delta="paper"))
    found, asked, safe = report(made), made.delta, min(1e-5, 0.1 / made.plan.n_clients)
    assert asked > 0.01
    assert made.epsilon() <= 2.0 < made.epsilon(safe)
    data, view = plain(found), ledger_view(made)
    assert (data["delta"], data["asked_delta"], view.delta, found.total.delta) == (safe, asked, safe, safe)
    assert min(data["epsilon"].values()) == min(view.epsilon.values()) == found.smallest_epsilon == made.epsilon(safe)
    assert found.guarantee.guaranteed >= found.smallest_epsilon
    page = document(found).render()
    assert re.search(r'<b id="epsilon">([0-9.]+)</b> at delta = 1e-05', page)
    assert 1.99 < float(re.search(rf"([0-9.]+) at delta {upper_text(asked)} \(asked for\)", page)[1]) <= 2.0
    assert f"at delta {upper_text(safe)}" in next(line for line in shown(found).splitlines() if "guaranteed" in line)
    signed = json.loads(write_receipt(made.home.path).path.read_text())["content"]
    assert (signed["epsilon"], signed["delta"]) == (found.smallest_epsilon, safe)
    auditors = verify_bundle(write_bundle(made.home.path).path)
    assert auditors.verified
    assert "at delta 1e-05, for the whole run" in auditors.page


def test_a_run_without_noise_is_infinite_in_every_view() -> None:
    found = report(pb.run(problem(), pb.DPFTSDE(n_features=8), privacy=pb.NoPrivacy(), rounds=1, seed=1))
    assert found.smallest_epsilon == found.guarantee.guaranteed == math.inf
    assert set(plain(found)["epsilon"].values()) == {None}
    assert plain(found)["epsilon_interval"] == {"lower": None, "upper": None, "method": "closed-form"}
    json.dumps(plain(found), allow_nan=False)
    assert "Nothing limits what can be learnt" in shown(found)
    assert "epsilon infinite" in repr(found)
    assert "This run is not private" in document(found).render()


def test_names_are_inert_in_a_terminal(tmp_path: Path) -> None:
    assert EVIL in shown(report(evil_run(tmp_path / "run")))
    bold = report(small_run(tmp_path / "bold", name="[bold]x[/bold]"))
    assert "[bold]x[/bold]" in shown(bold)


def test_no_name_stops_or_steers_a_figure() -> None:
    """Matplotlib would read a dollar sign as mathematics, and warns of what its own font lacks."""
    name = "$\\frac$ 東京 \x00"
    series = [Series(label=f"{name}{n}", x=[0, 1], y=[0, n]) for n in range(2)]
    drawn = Figure(series=series, x=Axis(label="x"), y=Axis(label="y")).svg("")
    for page in (drawn, parallel([(name, name, name), ("value", "0", "1")], [[0.5, 1.0]])):
        assert "東京" in page
        assert "\x00" not in page


def test_values_in_words_and_as_json() -> None:
    assert [text_of(v) for v in (None, math.inf, math.nan, 1.234567, 3)] == ["-", "infinite", "-", "1.235", "3"]
    assert [percent_bound(v) for v in (0.5, 0.50001, 1.0)] == ["50.0 %", "50.1 %", "100.0 %"]
    assert plain({"a": np.float64(math.nan), "b": np.arange(2), "c": (Adjacency.ZERO_OUT, Path("x"))}) == {
        "a": None, "b": [0, 1], "c": ["zero-out", "x"],
    }  # fmt: skip


def test_the_repr_of_every_result_has_two_lines(tmp_path: Path) -> None:
    made = evil_run(tmp_path / "run")
    clipping = pb.audit(made)
    audit = Audit(name=EVIL, clipping=clipping, empirical=())
    results = (made.plan, made, pb.compare([made]), audit, clipping, ledger_view(made), report(made))
    for result in results:
        lines = repr(result).splitlines()
        assert len(lines) == 2, lines
        assert max(map(len, lines)) < 240
    for result in results[:3]:
        assert "at delta" in repr(result)
    steering = small_run(tmp_path / "steering", name="a\x1b[2J\nb")
    assert len(repr(steering).splitlines()) == 2
    assert "\x1b" not in repr(steering)


def test_no_number_of_a_client_stands_in_a_records_own_words(result: pb.Record) -> None:
    said = repr(result)
    scores = {f"{value:.3g}" for value in result.clients.values.ravel()}
    assert len(scores) > 10
    assert not [score for score in scores if len(score) > 4 and score in said]


def test_a_statement_says_what_was_and_was_not_published(tmp_path: Path) -> None:
    def sheet(**settings) -> str:
        made = pb.run(problem(), rounds=2, seed=1, **settings)
        return " ".join(statement(report(made)).write(tmp_path / "statement.html").read_text().split())

    private, simulated = pb.DPFTSDE(n_features=8), pb.Privacy(epsilon=2.0, noise="simulation")
    told = sheet(algorithm=private, privacy=simulated)
    assert "This was a simulation: seeded noise, no guarantee. With secret noise it would have been: epsilon" in told
    assert "had the noise been secret" in told
    assert told.count("[to be filled in") == 7  # the signing key among them: nothing is signed in memory
    open_ = sheet(algorithm=private, privacy=pb.NoPrivacy())
    assert "This run gives no guarantee" in open_
    assert "random noise added" not in open_
    assert "Nothing that follows from a client's data was published" in sheet(
        algorithm=private.local(), privacy=simulated
    )
    kept = pb.run(problem(), private, privacy=pb.Privacy(epsilon=2.0), rounds=2, directory=tmp_path / "run")
    told = " ".join(statement(report(kept)).write(tmp_path / "statement.html").read_text().split())
    assert "simulation" not in told
    assert kept.ledger.head in told
    odds = (
        "could multiply the probability of any outcome by 7.4 (e to the power of epsilon) and add delta, 1e-05, at most"
    )
    assert f"One client {odds}." in told
    assert f"Had the noise been secret, one client {odds}." in sheet(algorithm=private, privacy=simulated)
    assert odds in document(report(kept)).render()
    assert "python -m accountant.verify.auditor FILE" in told
    assert "with another ledger are not known here" in told
    assert "One client is</dt>" in told


def test_sheet_and_report_name_the_key_that_signs_the_bundle(tmp_path: Path) -> None:
    home = tmp_path / "run"
    pb.run(problem(), pb.SharedPrior(), privacy=pb.Privacy(epsilon=2.0), rounds=2, directory=home).ledger.close()
    written = report_run(home, statement=Told())
    key = write_bundle(home).key
    assert key in written.statement.read_text()
    assert key in written.page.read_text()


def test_unknown_types_have_no_view() -> None:
    with pytest.raises(TypeError, match="no form for the terminal"):
        list(render(3))
    with pytest.raises(TypeError, match="no form in JSON"):
        plain(print)
