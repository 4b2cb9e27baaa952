"""The leaderboard: its panels, its player, its ranks and its tables."""

import json
import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.private_search import PrivateSearch
from experiments.board import HOUSE, common, ranks, recommended, standings, winner
from experiments.board_page import again, epsilons, overall
from experiments.outcome import Outcome, Task
from experiments.played import Entry, Played, added, kept, played, read
from experiments.plays.board import EVALUATIONS, play
from experiments.statistics import Estimate, geometric
from experiments.study import Arm, Panel
from experiments.worth import Family

PROCESS = {
    "type": "experiments.problems.drawn_surfaces:gaussian_process",
    "n_clients": 6,
    "n_dims": 2,
    "correlation": 0.9,
}


def task(algorithm: Any, **options: Any) -> Task:
    return Task(
        problem=PROCESS,  # type: ignore[arg-type]  # it is JSON
        algorithm=algorithm,
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        control=None,
        rounds=20,
        seed=1,
        options=options,
    )


# ---- player


def test_evaluations_are_counted_where_they_happen() -> None:
    for algorithm in (PrivateSearch(evaluations=22), pb.PFPNE(evaluations=22), pb.FederatedFLCB(evaluations=22)):
        found = play(task(algorithm))
        assert len(found.curves["loss"]) == EVALUATIONS == 22
        assert np.all(np.diff(found.curves["loss"]) <= 1e-9)
    with pytest.raises(pb.ConfigurationError, match="23 evaluations, 22 are allowed"):
        play(task(PrivateSearch(n_candidates=23, evaluations=23)))


# ---- standings


def outcome(*clients: float, **more: float) -> Outcome:
    figures = {"mean": float(np.mean(clients)), "end": float(np.mean(clients)), "correlation": 0.7} | more
    return Outcome(figures=figures, curves={f"{m} by client": list(clients) for m in ("mean", "end")})


def arm(label: str, series: str, x: float | None = None, control: Any = None) -> Arm:
    return Arm(label=label, problem=PROCESS, series=series, x=x, control=control)  # type: ignore[arg-type]  # it is JSON


ARMS = (
    arm("alone, LogEI", "alone"),
    arm("alone, TS", "alone"),
    arm("A 2", "A", 2.0),
    arm("A 2 zeroed", "A", 2.0, "zeroed"),
    arm("B 2", "B", 2.0),
    arm("B and a vote 2", "B and a vote", 2.0),
)
FOUND = {
    "alone, LogEI": {0: outcome(0.25, 0.5), 1: outcome(0.25, 0.5)},
    "alone, TS": {0: outcome(0.5, 0.5), 1: outcome(0.75, 0.75)},
    "A 2": {0: outcome(0.125, 0.25, common=0.5), 1: outcome(0.125, 0.625, common=0.7)},
    "A 2 zeroed": {0: outcome(0.375, 0.375), 1: outcome(0.375, 0.375)},
    "B 2": {0: outcome(0.75, 0.75), 1: outcome(0.125, 0.125)},
    "B and a vote 2": {0: outcome(0.1, 0.1, common=0.2), 1: outcome(0.1, 0.1, common=0.2)},
}


def family(title: str, *without: str, correlation: float = 0.9) -> Family:
    found = {label: runs for label, runs in FOUND.items() if label not in without}
    panel = Panel(title=title, arms=ARMS, seeds=2, columns={}, purpose="reporting", correlation=correlation)
    return Family(panel=panel, found=found)


def on_board(title: str, *without: str) -> Played:
    return played(family(title, *without))


def test_ranks_are_over_all_who_played_seed_by_seed() -> None:
    """Seed 0: A .19, LogEI .375, TS .5, B .75. Seed 1: B .125, A and LogEI .375 each, TS .75."""
    one = on_board("one")
    names = list(one.competitors(2.0))
    assert names == ["alone, LogEI", "alone, TS", "A", "B"]
    assert ranks(one, 2.0, "mean", names) == {"A": 1.75, "alone, LogEI": 2.25, "alone, TS": 3.5, "B": 2.5}
    assert winner(one, 2.0) == "A"
    assert list(one.competitors(8.0)) == ["alone, LogEI", "alone, TS"]


def test_standings_have_ranks_of_those_who_played_everywhere() -> None:
    found = {one.name: one for one in standings([on_board("one"), on_board("two", "B 2")], 2.0)}
    assert found["B"].rank is None
    assert found["B"].families == 1
    assert found["A"].rank == Estimate(1.25, 0.0, 2)  # of LogEI, TS and A, in both: 1 and 1.5
    assert found["A"].ratios["mean"].value == pytest.approx(0.75)
    assert found["A"].zeroed["mean"].value == pytest.approx(1.0)
    assert found["A"].over_noise["end"].value == pytest.approx(0.75)
    assert found["B"].over_noise == {}
    assert found["A"].worse == 0.25  # one of four pairs: .625 against .5
    assert found["A"].won == ("one", "two")
    assert found["A"].seeds == (2, 2)
    assert found["alone, TS"].worse is None


def test_tables_name_what_is_best_and_what_wins_nowhere() -> None:
    seen = overall([(one.panel, one.found) for one in (family("one"), family("two"))])
    assert epsilons([on_board("one")]) == [2.0]
    assert "**Leaderboard at epsilon 2**" in seen.text
    assert "| algorithm | epsilon 2 |\n|---|---|\n| A | 0.75 (0.00) |" in seen.text
    assert f"| {', '.join(HOUSE)} | none of the classes |" in seen.text
    # Two families that agree to the last digit say no more than their signs: p = 1/4.
    said = "| fewer than 20 clients | 2 (2) | no sharing: no gain shown | A 0.75 (0.00) | 1.00 (0.00) | A 0.75"
    assert said in seen.text
    assert "| B and a vote | 0.200 ± 0.000 |" in seen.text
    assert common([on_board("one")], 2.0)["A"].value == pytest.approx(0.6)
    assert seen.pictures["figure"].startswith(b"\x89PNG")
    assert again(json.loads(json.dumps(seen.summary))) == seen
    assert overall([]).text == ""


# ---- more of what is kept


def kept_family(title: str, seeds: tuple[int, ...], height: float, worse: float) -> Played:
    """Alone at 1, ours at some height; clients are worse off in some share."""
    ones = (1.0,) * len(seeds)
    ours = tuple(height for _ in seeds)
    entries = {
        "alone": Entry(series="alone", seeds=seeds, mean=ones, end=ones),
        "ours": Entry(series="SharedPrior", epsilon=2.0, seeds=seeds, mean=ours, end=ours, common=ours, worse=worse),
    }
    facts = {"purpose": "reporting", "n_clients": 4, "correlation": 0.5, "is_model": False}
    return Played(title=title, entries=entries, **facts)


def test_families_and_seeds_are_added_to_what_is_kept() -> None:
    before = kept([kept_family("one", (0, 1), 0.5, 0.2), kept_family("other", (0,), 0.5, 0.2)])
    now = kept([kept_family("one", (1, 2), 0.8, 0.4), kept_family("new", (0,), 0.3, 0.0)])
    found = {family.title: family for family in read(added(before, now))}
    assert list(found) == ["one", "other", "new"]
    one = found["one"].entries["ours"]
    assert one.seeds == (0, 1, 2)
    assert one.mean == one.end == one.common == (0.5, 0.8, 0.8)  # seed 1 counts as it was played last
    assert one.worse == pytest.approx((1 * 0.2 + 2 * 0.4) / 3, abs=1e-4)
    assert found["one"].ratio("ours", "mean").count == 3
    assert added(before, {}) == before


def judged_family(title: str, height: float, noise: float) -> Played:
    """Alone at 1, ours and ours with the clients' sum zeroed at some heights, over three seeds."""
    ours = "PF-PNE, new"
    entries = {
        "alone": Entry(series="alone", seeds=(0, 1, 2), mean=(1.0,) * 3, end=(1.0,) * 3),
        "ours": Entry(series=ours, epsilon=2.0, seeds=(0, 1, 2), mean=(height,) * 3, end=(height,) * 3),
        "zeroed": Entry(series=ours, epsilon=2.0, zeroed=True, seeds=(0, 1, 2), mean=(noise,) * 3, end=(noise,) * 3),
    }
    return Played(title=title, entries=entries, purpose="own", n_clients=4, correlation=0.5, is_model=False)


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([(0.70, 1.0), (0.75, 1.0), (0.72, 1.0)], ["PF-PNE, new"]),
        ([(0.30, 0.30), (0.35, 0.35), (0.32, 0.32)], []),  # its noise alone does as well
        ([(0.20, 1.0), (1.30, 1.4), (0.90, 1.2)], []),  # one family carries it
        ([(0.30, 1.0)], []),  # one family says nothing of the next
    ],
)
def test_only_what_beats_alone_and_its_noise_over_families_is_recommended(
    cells: list[tuple[float, float]], wanted: list[str]
) -> None:
    found = recommended({"all": [judged_family(f"f{i}", *cell) for i, cell in enumerate(cells)]}, 2.0)
    assert [one.name for one, _ in found.values()] == wanted


def test_another_family_is_what_an_error_speaks_of() -> None:
    """A hundred seeds of two families that differ leave the mean as unsure as the families are."""
    one = geometric([Estimate(0.5, 0.001, 100), Estimate(0.8, 0.001, 100)])
    assert one.value == pytest.approx(0.4**0.5)
    assert one.error == pytest.approx(one.value * abs(math.log(0.8 / 0.5)) / 2)
    assert (one.count, geometric([Estimate(0.5, 0.001, 100)]).error) == (2, math.inf)
