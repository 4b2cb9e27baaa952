"""The leaderboard, and the study of what sharing is worth: players, judgement, ranks, ratios and tables."""

import dataclasses
import json

import numpy as np
import pytest

import privbo as pb
from experiments import board_page, peers_page
from experiments.baselines.private_search import PrivateSearch
from experiments.board import recommended
from experiments.outcome import Outcome
from experiments.played import Entry, Played, added, kept, played, read
from experiments.plays import peers
from experiments.plays.board import EVALUATIONS, play
from experiments.plays.worth import FIRST, FLOOR, judged, seen, share
from experiments.run import Options, write
from experiments.study import Arm, Panel, Study
from experiments.worth import Clients, Family
from privbo.protocol.messages import ClientHistory
from tests.builders import SIMULATED
from tests.experiments.worlds import process, task

PROCESS = process(5)
QUICK = pb.DPFTSDE(own=pb.OwnModel(fit_steps=2, n_candidates=64, n_features=16), n_features=8)


# ---- players


def test_evaluations_are_counted_where_they_happen() -> None:
    for algorithm in (PrivateSearch(evaluations=22), pb.PFPNE(evaluations=22), pb.FederatedFLCB(evaluations=22)):
        found = play(task(process(6, 2), algorithm, privacy=SIMULATED, rounds=20))
        assert len(found.curves["loss"]) == EVALUATIONS == 22
        assert np.all(np.diff(found.curves["loss"]) <= 1e-9)
    with pytest.raises(pb.ConfigurationError, match="23 evaluations, 22 are allowed"):
        play(task(PROCESS, PrivateSearch(n_candidates=23, evaluations=23), rounds=20))


def test_a_client_whose_trials_all_failed_has_lost_its_whole_range() -> None:
    """Until one succeeds; later failures change nothing."""
    values = np.array([[np.nan, np.nan, 0.5, np.nan], [np.nan] * 4])
    losses = np.array([[np.nan, np.nan, 0.2, np.nan], [np.nan] * 4])
    where = np.zeros((2, 4, 1))
    history = ClientHistory(units=where, values=values, rounds=np.arange(4), recommended=where[:, 0])
    np.testing.assert_array_equal(seen(losses, history), [[1.0, 1.0, 0.2, 0.2], [1.0] * 4])


def test_losses_are_floored_and_the_first_evaluations_left_out() -> None:
    found = judged(np.array([[0.9, 0.5, 0.3, 0.0], [0.9, 0.1, 0.1, 0.1]]), 0.25, None)
    assert (FIRST, FLOOR) == (2, 0.01)
    assert found.figures == pytest.approx({"mean": (0.155 + 0.1) / 2, "end": 0.055, "correlation": 0.25})
    assert found.curves["loss"] == pytest.approx([0.9, 0.3, 0.2, 0.055])
    assert found.curves["end by client"] == pytest.approx([0.01, 0.1])


def test_what_counts_is_the_point_that_looked_best() -> None:
    """Under noise that is not the best one: its loss may rise, and the smallest so far is smaller."""
    noisy = task(process(5, noise=3.0), QUICK.local(), rounds=12)
    assert np.any(np.diff(share(noisy).curves["loss"]) > 0)
    assert np.all(np.diff(share(task(PROCESS, QUICK.local())).curves["loss"]) <= 0)


@pytest.mark.parametrize("tool", ["optuna", "botorch"])
def test_another_tool_alone_evaluates_as_often_and_again_the_same(tool: str) -> None:
    pytest.importorskip(tool)
    for problem in (PROCESS, {"type": "experiments.problems.systems:system", "name": "alarm", "n_clients": 3}):
        asked = task(problem, None, rounds=2, options={"tool": tool, "clients": 1})
        found = peers.alone(asked)
        assert len(found.curves["loss"]) == 4
        assert len(found.curves["end by client"]) == 1
        assert found.figures["step"] > 0
        assert peers.alone(asked).curves == found.curves


# ---- more of what is kept


def kept_family(title: str, seeds: tuple[int, ...], height: float, noise: float = 1.0, worse: float = 0.0) -> Played:
    """Alone at 1, ours and ours with the clients' sum zeroed at some heights; clients are worse off in some share."""

    def entry(value: float, series: str = "PF-PNE, new", **more) -> Entry:
        values = (value,) * len(seeds)
        return Entry(series=series, seeds=seeds, mean=values, end=values, **more)

    entries = {
        "alone": entry(1.0, "alone"),
        "ours": entry(height, epsilon=2.0, common=(height,) * len(seeds), worse=worse),
        "zeroed": entry(noise, epsilon=2.0, zeroed=True),
    }
    return Played(title=title, entries=entries, purpose="own", n_clients=4, correlation=0.5, is_model=False)


def test_families_and_seeds_are_added_to_what_is_kept() -> None:
    before = kept([kept_family("one", (0, 1), 0.5, worse=0.2), kept_family("other", (0,), 0.5)])
    now = kept([kept_family("one", (1, 2), 0.8, worse=0.4), kept_family("new", (0,), 0.3)])
    found = {family.title: family for family in read(added(before, now))}
    assert list(found) == ["one", "other", "new"]
    one = found["one"].entries["ours"]
    assert one.seeds == (0, 1, 2)
    assert one.mean == one.end == one.common == (0.5, 0.8, 0.8)  # seed 1 counts as it was played last
    assert one.worse == pytest.approx((1 * 0.2 + 2 * 0.4) / 3, abs=1e-4)
    assert found["one"].ratio("ours", "mean").count == 3
    assert added(before, {}) == before


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([(0.70, 1.0), (0.75, 1.0), (0.72, 1.0)], ["PF-PNE, new"]),
        ([(0.30, 0.30), (0.35, 0.35), (0.32, 0.32)], []),  # its noise alone does as well
        ([(0.20, 1.0), (1.30, 1.4), (0.90, 1.2)], []),  # one family carries it
        ([(0.30, 1.0)], []),  # one family says nothing of the next
    ],
)
def test_only_what_beats_alone_and_its_noise_over_families_is_recommended(cells, wanted) -> None:
    found = recommended({"all": [kept_family(f"f{i}", (0, 1, 2), *cell) for i, cell in enumerate(cells)]}, 2.0)
    assert [one.name for one, _ in found.values()] == wanted


# ---- standings and ratios


def outcome(*clients: float, **more: float) -> Outcome:
    figures = {"mean": float(np.mean(clients)), "end": float(np.mean(clients)), "correlation": 0.7} | more
    return Outcome(figures=figures, curves={f"{m} by client": list(clients) for m in ("mean", "end")})


def arm(label: str, series: str, x: float | None = None, control=None) -> Arm:
    return Arm(label=label, problem=PROCESS, series=series, x=x, control=control)  # type: ignore[arg-type]  # it is JSON


ARMS = (
    arm("alone, LogEI", "alone"),
    arm("alone, TPE", "alone"),
    arm("A 2", "default", 2.0),
    arm("A 2 zeroed", "default", 2.0, "zeroed"),
    arm("B 2", "B", 2.0),
    arm("B and a vote 2", "B and a vote", 2.0),
)
FOUND = {
    "alone, LogEI": {0: outcome(0.25, 0.5), 1: outcome(0.25, 0.5)},
    "alone, TPE": {0: outcome(0.3), 1: outcome(0.3)},
    "A 2": {0: outcome(0.125, 0.375, common=0.5), 1: outcome(0.125, 0.625, common=0.7)},
    "A 2 zeroed": {0: outcome(0.375, 0.375), 1: outcome(0.375, 0.375)},
    "B 2": {0: outcome(0.75, 0.75), 1: outcome(0.125, 0.125)},
    "B and a vote 2": {0: outcome(0.1, 0.1, common=0.2), 1: outcome(0.1, 0.1, common=0.2)},
}


def family(title: str = "one", arms: tuple[Arm, ...] = ARMS, correlation: float | None = None, **found) -> Family:
    panel = Panel(
        title=title, arms=arms, seeds=2, columns={"mean": "{mean:.1f}"}, purpose="reporting", correlation=correlation
    )
    return Family(panel=panel, found=FOUND | found)


FAMILY = family()


def test_a_board_is_made_of_families_that_all_arms_played() -> None:
    """What it says of them is compared with every published page."""
    families = FAMILY, family("two"), Family(panel=family("cut").panel, found=dict(list(FOUND.items())[:3]))
    seen = board_page.overall([(one.panel, one.found) for one in families])
    assert list(seen.summary) == ["one", "two"]
    assert "| B and a vote | 0.200 ± 0.000 |" in seen.text
    assert seen.pictures["figure"].startswith(b"\x89PNG")
    assert board_page.again(json.loads(json.dumps(seen.summary))) == seen
    assert board_page.overall([]).text == ""


def test_a_peer_on_a_few_clients_is_scaled_to_all_of_them() -> None:
    """On its one client TPE has .3 where the first arm, with .375 on all, has .25."""
    assert FAMILY.values("alone, TPE", "mean") == pytest.approx({0: 0.45, 1: 0.45})
    found = played(FAMILY)
    assert found.best_alone("mean") == "alone, LogEI"
    assert found.ratio("A 2", "end").value == pytest.approx(0.625 / 0.75)
    assert FAMILY.correlation == 0.7
    assert family(correlation=0.9).correlation == 0.9


def compared(found: Clients | None) -> tuple[float, float]:
    assert found is not None
    return found.worse, found.decile


def test_clients_are_compared_one_by_one_with_our_own_arms() -> None:
    """.125 / .25, .375 / .5, .125 / .25, .625 / .5: one of four is worse; or over the arm that is named."""
    assert compared(FAMILY.clients("A 2")) == pytest.approx((0.25, np.quantile([0.5, 0.75, 0.5, 1.25], 0.9)))
    over_noise = (0.25, np.quantile([1 / 3, 1.0, 1 / 3, 5 / 3], 0.9))
    assert compared(FAMILY.clients("A 2", over="A 2 zeroed")) == pytest.approx(over_noise)
    assert FAMILY.clients("alone, TPE") is None


def test_clients_that_several_seeds_draw_are_compared_on_average() -> None:
    """Client 4 is drawn twice: (.375 + .125) / (.5 + .25) alone; client 2 has .125 / .25, client 7 .625 / .5."""
    numbers = {0: [2.0, 4.0], 1: [4.0, 7.0]}
    drawn = {
        seed: dataclasses.replace(run, curves=run.curves | {"number by client": numbers[seed]})
        for seed, run in FOUND["A 2"].items()
    }
    found = family(**{"A 2": drawn}).typical_clients("A 2")
    assert compared(found) == pytest.approx((1 / 3, np.quantile([0.5, 2 / 3, 1.25], 0.9)))
    assert FAMILY.typical_clients("A 2") is None
    over_few = {"A 2": {0: drawn[0], 1: FOUND["A 2"][1]}}
    assert family(**over_few).typical_clients("A 2") is None


def test_a_study_shows_what_was_seen_over_all_panels(tmp_path) -> None:
    """A player of heights: alone 2 and 3 in seeds 0 and 1."""
    arms = tuple(
        dataclasses.replace(one, play="tests.experiments.worlds:judged_square", options={"height": height})
        for one, height in zip(ARMS[:3:2], (2.0, 1.0), strict=True)
    )
    panels = (family(arms=arms).panel,)
    chosen = Study(name="worth", title="", panels=panels, pictures={}, overall="experiments.worth_page:overall")
    write(chosen, tmp_path / "worth", Options(jobs=1))
    text = (tmp_path / "worth" / "table.md").read_text()
    assert "| one | 1 | 0.50 | 0.60" in text
    assert text.index("**Regret divided by that of the best independent method**") < text.index("**one**")
    kept = json.loads((tmp_path / "worth" / "summary.json").read_text())
    assert read(kept["overall"])[0].ratio("A 2", "mean").value == pytest.approx(0.6)
    assert kept["panels"]["one"]["alone, LogEI"]["curves"] == {}
    assert (tmp_path / "worth" / "figure.png").exists()


def test_other_tools_are_summed_up_over_families() -> None:
    """Ours over theirs: 1/2 and 2/1 on one family, so the tool is ahead by two errors nowhere; 3/2 twice on another."""
    ours, theirs = outcome(1.0, 2.0), outcome(2.0, 1.0)
    families = [
        (family("one").panel, {peers_page.OURS: {0: ours}, "tool": {0: theirs}}),
        (family("two").panel, {peers_page.OURS: {0: outcome(3.0, 3.0)}, "tool": {0: outcome(2.0, 2.0)}}),
        (family("three").panel, {peers_page.OURS: {0: ours}}),
    ]
    seen = peers_page.overall(families)
    assert "| tool | 2 | 1.22 (0.25) | 1.22 (0.25) | 1 / 1 |" in seen.text
    assert peers_page.again(seen.summary) == seen
