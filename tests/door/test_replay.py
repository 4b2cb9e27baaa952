"""The replay test piece by piece: who is compared with whom, and that each kind of contradiction is named."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, NonPrivate, PoissonSampledGaussian
from privbo.door.mechanism import PrivateSum, mechanism_for
from privbo.protocol.messages import Request
from tests.door import replayed_runs as module
from tests.door.replayed_runs import ScriptedNoise, adversarial_rows, replay

WEIGHTS = np.array([[0.2, 0.9, 0.1, 0.4], [0.3, 0.9, 0.2, 0.4]])
REQUEST = Request(dim=2, clipping_norm=2.0, weights=WEIGHTS)
NOBODY = np.zeros(4, dtype=bool)
GAUSSIAN = Gaussian(noise_multiplier=2.0)


def spec(**settings) -> PrivateSum:
    return mechanism_for(REQUEST, **{"noise_multiplier": 2.0} | settings)


# --- the script -----------------------------------------------------------------------------


def test_scripted_noise_gives_what_was_decided_and_notes_what_was_asked() -> None:
    who = np.array([True, False, True])
    noise = ScriptedNoise(participants=who, units=np.array([5, -7, 9]))
    assert noise.stream("3") is noise
    assert noise.gaussian((2, 3), 4.0).tolist() == [[5, -7, 9], [5, -7, 9]]
    assert noise.coins((2, 3), 0.25).tolist() == noise.subsets((2, 3), 2).tolist() == [who.tolist()] * 2
    assert noise.drawn == [("gaussian", (2, 3), 4.0), ("coins", (2, 3), 0.25), ("subset", 3, 2)]
    silent = ScriptedNoise(participants=who)
    drawn = silent.gaussian((1, 2), 4.0)
    assert (drawn.dtype, drawn.tolist(), silent.name) == (np.int64, [[0, 0]], "simulation")
    noise.coins((1, 3), 0.25)[0, 0] = False  # what is handed out is a copy
    assert who.tolist() == [True, False, True]


def test_adversarial_rows_saturate_one_client_among_every_kind_of_others() -> None:
    rng, norm = np.random.default_rng(0), 4096.0
    request = dataclasses.replace(REQUEST, clipping_norm=norm)
    kinds, lengths, directions = set(), set(), set()
    for _ in range(200):
        rows = adversarial_rows(request, 2, rng=rng)
        assert rows.shape == (4, 2)
        (entry,) = np.flatnonzero(rows[2])
        lengths.add(abs(rows[2, entry]))
        directions.add((int(entry), rows[2, entry] > 0))
        others = np.delete(rows, 2, axis=0)
        alike = np.array_equal(others, np.broadcast_to(others[0], others.shape))
        if not np.isfinite(others).all() or np.any(others == 1e300):
            assert np.all(np.isnan(others) | (others == 1e300))
            kinds |= {"absent"} if np.isnan(others).any() else set()
            kinds |= {"huge"} if np.any(others == 1e300) else set()
        elif alike:
            (sign,) = {float(s) for s in np.sign(others @ rows[2])}
            assert abs(others[0, entry]) in {0.0, abs(rows[2, entry])}
            kinds.add(f"along {sign:g}")
        else:
            assert 0.05 * norm < np.abs(others).max() < 10.0 * norm  # six normals
            kinds.add("random")
    # Some kind or length would be missing with a chance of at most 12 (4/5)^200 < 1e-18, over seeds.
    assert kinds == {"absent", "huge", "along 0", "along 1", "along -1", "random"}
    assert lengths == {norm, 3 * norm, 1e6 * norm}
    assert directions == {(0, True), (0, False), (1, True), (1, False)}


# --- neighbours -----------------------------------------------------------------------------


def test_everybody_has_no_others_to_be_compared_with() -> None:
    chosen, swapped = module._participants(spec(), 1, 0)
    assert (chosen.tolist(), swapped) == ([True] * 4, [])


def test_a_poisson_sample_is_compared_with_itself_without_the_client() -> None:
    drawn = set()
    for seed in range(60):
        chosen, (without,) = module._participants(spec(sample_rate=0.5), 1, seed)
        assert chosen[1]
        assert not without[1]
        np.testing.assert_array_equal(np.delete(chosen, 1), np.delete(without, 1))
        drawn.add(tuple(chosen))
    assert len(drawn) == 8  # every set with the client among them (seeded: the same draws every time)
    many = mechanism_for(
        Request(dim=1, clipping_norm=1.0, weights=np.ones((1, 200))), noise_multiplier=1.0, sample_rate=0.5
    )
    chosen, again = (module._participants(many, 1, 5)[0] for _ in range(2))
    np.testing.assert_array_equal(chosen, again)  # the seed alone decides
    assert 50 < chosen.sum() < 150


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_fixed_size_sample_is_compared_with_all_that_give_the_clients_slot_to_another(size: int) -> None:
    for seed in range(10):
        chosen, swapped = module._participants(spec(sample_rate=size / 4, sampling="fixed-size"), 1, seed)
        assert chosen.sum() == size
        assert chosen[1]
        taken_by = []
        for swap in swapped:
            (leaves,), (enters,) = np.flatnonzero(chosen & ~swap), np.flatnonzero(swap & ~chosen)
            assert leaves == 1
            taken_by.append(int(enters))
        assert sorted(taken_by) == np.flatnonzero(~chosen).tolist()


def test_what_a_client_may_send_instead() -> None:
    rows = np.array([[1.0, 2.0], [3.0, -4.0]])
    for adjacency, expected in (
        (Adjacency.ZERO_OUT, [[0.0, 0.0]]),
        (Adjacency.REPLACE_ONE, [[-3.0, 4.0], [0.0, 0.0]]),
    ):
        assert [row.tolist() for row in module._neighbours(rows, 1, adjacency, None)] == expected
    moved = np.array(module._neighbours(rows, 1, Adjacency.REPLACE_ONE, 0.5)) - rows[1]
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.5)
    ways = [[1, 0], [0, 1], [0.5**0.5, 0.5**0.5], [0.6, -0.8], [-0.8, 0.6]]
    np.testing.assert_allclose(moved, [sign * 0.5 * np.array(way) for way in ways for sign in (-1, 1)], atol=1e-12)
    assert len(module._rewarded(np.array([0.1, 0.0]), 0.5)) == 10
    for row in (np.zeros(2), np.array([np.nan, 1.0]), np.array([np.inf, 1.0])):
        assert len(module._rewarded(row, 0.5)) == 6  # no direction of its own
    changed = module._with(rows, 1, np.array([9.0, 9.0]))
    assert (changed.tolist(), rows[1].tolist()) == ([[1.0, 2.0], [9.0, 9.0]], [3.0, -4.0])


# --- findings, each from a release that was made up ------------------------------------------


def run(values, drawn=(("coins", (1, 4), 1.0), ("gaussian", (1, 2, 2), 64.0)), event=GAUSSIAN) -> module._Run:
    return module._Run(values=np.array(values, dtype=float), drawn=list(drawn), event=event)


def moved_by(play, adjacency=Adjacency.ZERO_OUT, swapped=()) -> tuple[float, list[str]]:
    rows, everyone = np.ones((4, 2)), np.ones(4, dtype=bool)
    play.request = REQUEST
    return module._movement(play, spec(adjacency=adjacency), rows, play(rows, everyone), everyone, list(swapped), 1)


def test_the_largest_movement_counts_over_data_and_participants() -> None:
    def play(rows, who, units=None):
        return run([[3.0 * np.nan_to_num(rows[1, 0]) * who[1], np.nan_to_num(rows[1, 1]) * who[1]]])

    assert moved_by(play) == (pytest.approx(math.hypot(3.0, 1.0)), [])
    assert moved_by(play, Adjacency.REPLACE_ONE) == (pytest.approx(2 * math.hypot(3.0, 1.0)), [])

    def by_slot(rows, who, units=None):
        return run([[10.0 * who[3] + np.nan_to_num(rows[1, 0])]])

    slot_to_another = np.array([True, False, True, True])
    assert moved_by(by_slot, swapped=[slot_to_another, ~slot_to_another])[0] == pytest.approx(10.0)


OTHER_DRAWS = {"drawn": (("coins", (1, 4), 0.5), ("gaussian", (1, 2, 2), 64.0))}
OTHER_EVENT = {"event": Gaussian(noise_multiplier=3.0)}
OF_DATA = "what is drawn depends on a client's data"
OF_ABSENCE = "an absent client is not the same as one that sends zero"
OF_PARTICIPANTS = "what is drawn depends on who takes part"


@pytest.mark.parametrize("change", [OTHER_DRAWS, OTHER_EVENT], ids=["draws", "event"])
def test_draws_or_a_charge_that_follow_the_data_are_named(change: dict) -> None:
    def play(rows, who, units=None):
        return run([[0.0]], **(change if rows[1, 0] == 0.0 else {}))

    assert moved_by(play)[1] == [OF_DATA]


def test_an_absence_that_shows_is_named() -> None:
    def by_value(rows, who, units=None):
        return run([[float(np.isnan(rows[1, 0]))]])

    def by_draws(rows, who, units=None):
        return run([[0.0]], **(OTHER_DRAWS if np.isnan(rows[1, 0]) else {}))

    for play in (by_value, by_draws):
        assert moved_by(play)[1] == [OF_ABSENCE]


def test_draws_that_follow_the_participants_are_named() -> None:
    def play(rows, who, units=None):
        return run([[0.0]], **({} if who.all() else OTHER_DRAWS))

    assert moved_by(play)[1] == []
    assert moved_by(play, swapped=[NOBODY, NOBODY])[1] == [OF_PARTICIPANTS] * 2


def noise_of(play) -> tuple[float, list[str]]:
    rows, everyone = np.ones((4, 2)), np.ones(4, dtype=bool)
    return module._noise(play, rows, play(rows, everyone), everyone)


def noisy(gains=((1.0, 1.0), (1.0, 1.0)), *, empty=1.0, mix=None, **changes):
    """Releases whose entries take the scripted units times these gains, times ``empty`` where nobody takes part."""

    def play(rows, who, units=None):
        added = np.zeros(4) if units is None else np.array(units, dtype=float)
        if mix is not None:
            added = added[mix]
        base = 5.0 * who.sum()
        return run(base + np.array(gains) * added.reshape(2, 2) * (1.0 if who.any() else empty), **changes)

    return play


OF_NOISE = "released entries do not each have noise of their own"


def test_the_script_is_one_size_of_alternating_sign_per_entry_for_somebody_and_for_nobody() -> None:
    seen = []

    def play(rows, who, units=None):
        seen.append((who.tolist(), None if units is None else units.tolist()))
        return noisy()(rows, who, units)

    noise_of(play)
    script = [2**20, -(2**21), 3 * 2**20, -(2**22)]
    everyone, nobody = [True] * 4, [False] * 4
    assert seen[1:] == [(everyone, None), (everyone, script), (nobody, None), (nobody, script)]


def test_the_smallest_gain_times_the_scale_is_the_noise() -> None:
    assert noise_of(noisy()) == (pytest.approx(64.0), [])
    assert noise_of(noisy(((2.0, 0.25), (-0.5, 3.0)))) == (pytest.approx(16.0), [])
    assert noise_of(noisy(empty=0.5)) == (pytest.approx(32.0), [])
    assert noise_of(noisy(empty=2.0)) == (pytest.approx(64.0), [])


@pytest.mark.parametrize(
    ("play", "n_findings"),
    [
        (noisy(mix=[0, 1, 2, 0]), 2),
        (noisy(((1.0, 1.0), (1.0, 0.0))), 2),
        (noisy(empty=0.0), 1),
        (noisy(((1.0, -1.0), (1.0, 0.75))), 2),  # 3 of 4 units: as much as the third entry's
        (noisy(drawn=(("coins", (1, 4), 1.0),)), 2),
        (noisy(drawn=[("gaussian", (1, 2, 2), 64.0)] * 2), 2),
    ],
    ids=["twice the same", "one without", "none for nobody", "equal in size", "never drawn", "drawn twice"],
)
def test_entries_without_noise_of_their_own_are_named_and_have_none(play, n_findings: int) -> None:
    assert noise_of(play) == (0.0, [OF_NOISE] * n_findings)


def test_draws_that_follow_the_noise_or_the_empty_sample_are_named() -> None:
    def by_units(rows, who, units=None):
        return noisy(**({} if units is None else OTHER_DRAWS))(rows, who, units)

    def by_who(rows, who, units=None):
        return noisy(**({} if who.any() else OTHER_DRAWS))(rows, who, units)

    def by_silence(rows, who, units=None):
        return noisy(**(OTHER_DRAWS if units is None and not who.any() else {}))(rows, who, units)

    words = "what is drawn depends on who takes part, or on the noise itself"
    assert noise_of(by_silence)[1] == [words]
    assert noise_of(by_units)[1] == [words] * 2
    assert noise_of(by_who)[1] == [words]


POISSON = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=2.0)
FIXED = FixedSizeSampledGaussian(n_clients=4, sample_size=2, noise_multiplier=2.0)


@pytest.mark.parametrize(
    ("draw", "event", "fits"),
    [
        (("coins", (1, 4), 1.0), GAUSSIAN, True),
        (("subset", 4, 4), GAUSSIAN, True),
        (("coins", (1, 4), 0.5), GAUSSIAN, False),
        (("coins", (1, 4), 4), GAUSSIAN, False),
        (("subset", 4, 3), GAUSSIAN, False),
        (("subset", 4, 1.0), GAUSSIAN, False),
        (("coins", (1, 4), 0.5), POISSON, True),
        (("coins", (1, 4), 0.4), POISSON, True),  # charged for more
        (("coins", (1, 4), 0.6), POISSON, False),
        (("subset", 4, 0.5), POISSON, False),
        (("subset", 4, 2), FIXED, True),
        (("subset", 4, 1), FIXED, False),
        (("subset", 5, 2), FIXED, False),
        (("coins", 4, 2), FIXED, False),
        (("coins", (1, 4), 1.0), NonPrivate(), False),
        (("subset", 4, 2), NonPrivate(), False),
    ],
)
def test_the_event_names_the_sampler_that_was_drawn_with(draw, event, fits: bool) -> None:
    found = module._event_findings(run([[0.0]], drawn=[draw, ("gaussian", (1, 1), 1.0)], event=event), 4)
    assert found == ([] if fits else [f"participants were drawn by {draw[0]} of {draw[2]}, charged as {event}"])


def test_participants_are_drawn_once() -> None:
    coins = ("coins", (1, 4), 1.0)
    assert module._event_findings(run([[0.0]], drawn=[]), 4) == ["participants were drawn 0 times"]
    assert module._event_findings(run([[0.0]], drawn=[coins, coins]), 4) == ["participants were drawn 2 times"]


# --- the whole, through the shipped door -----------------------------------------------------


def replayed(request: Request = REQUEST, others: float = 0.5, **settings) -> module.Replay:
    rows = np.full((4, 2), others)
    rows[1] = [50.0, 0.0]
    return replay(
        lambda wanted: mechanism_for(wanted, **{"noise_multiplier": 2.0} | settings), request, rows, client=1, seed=0
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sample_rate": 0.5},
        {"sample_rate": 1.0, "sampling": "fixed-size"},
        {"adjacency": Adjacency.REPLACE_ONE},
    ],
    ids=str,
)
def test_a_saturating_client_moves_the_release_by_the_stated_sensitivity(settings: dict) -> None:
    found, mechanism = replayed(**settings), spec(**settings)
    assert found.findings == ()
    assert found.event == mechanism.event()
    assert found.noise_stddev == pytest.approx(mechanism.noise_stddev(), rel=1e-4)
    assert found.sensitivity == pytest.approx(mechanism.sensitivity(), rel=1e-3)


def test_a_slot_that_passes_to_another_client_shows_both() -> None:
    settings = {"sample_rate": 0.75, "sampling": "fixed-size"}
    found, mechanism = replayed(others=0.0, **settings), spec(**settings)
    assert found.findings == ()
    assert found.event == mechanism.event()
    # The others send nothing here, so this client's own part is seen; the sensitivity counts the other's too.
    assert found.sensitivity == pytest.approx(0.9 / 1.3 * mechanism.sensitivity(), rel=1e-3)
    opposing = replayed(others=-50.0, **settings)
    assert 0.9 / 1.3 * mechanism.sensitivity() < opposing.sensitivity <= mechanism.sensitivity()
    assert opposing.findings == ()


def test_one_reward_moves_the_release_by_its_own_sensitivity() -> None:
    request = dataclasses.replace(REQUEST, reward_bound=0.01)
    settings = {"adjacency": Adjacency.REPLACE_ONE}
    rows = np.full((4, 2), 0.5)
    found = replay(
        lambda wanted: mechanism_for(wanted, noise_multiplier=2.0, **settings), request, rows, client=1, seed=0
    )
    mechanism = mechanism_for(request, noise_multiplier=2.0, **settings)
    assert found.findings == ()
    assert found.sensitivity == pytest.approx(mechanism.sensitivity(), rel=1e-2)


@pytest.mark.parametrize(("stddev", "sound"), [
    (2.0, True), (2.0 * (1 - 1e-9), True), (2.0 * (1 - 5e-10), True), (2.0 * (1 - 2e-9), False),
    (0.0, False), (math.nan, False),
])  # fmt: skip
def test_noise_may_fall_short_by_rounding_and_no_more(stddev: float, sound: bool, monkeypatch) -> None:
    monkeypatch.setattr(module, "_movement", lambda *_: (1.0, []))
    monkeypatch.setattr(module, "_noise", lambda *_: (stddev, []))
    assert (replayed().findings == ()) == sound


def test_the_seed_chooses_who_else_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    honest = module._participants

    def participants(mechanism, client, seed):
        asked.append((client, seed))
        return honest(mechanism, client, seed)

    monkeypatch.setattr(module, "_participants", participants)
    replay(lambda r: mechanism_for(r, noise_multiplier=2.0), REQUEST, np.ones((4, 2)), client=2, seed=77)
    assert asked == [(2, 77)]


@pytest.mark.parametrize(("factor", "sound"), [(0.999, False), (1.0, True), (1.001, True)])
def test_a_thousandth_too_little_noise_is_found(factor: float, sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PrivateSum.grid_scale
    monkeypatch.setattr(PrivateSum, "grid_scale", lambda self: factor * whole(self))
    found = replayed()
    assert (found.findings == ()) == sound
    if not sound:
        assert [words[:20] for words in found.findings] == [f"noise {found.noise_stddev:.6g} is below"[:20]]
        assert f"multiplier 2 times the measured sensitivity {found.sensitivity:.6g}" in found.findings[0]


def test_every_kind_of_finding_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module._Player.__call__

    def dishonest(self, rows, participants, units=None):
        made = honest(self, rows, participants, units)
        if np.isnan(rows[1]).any() or units is not None:
            made = dataclasses.replace(made, drawn=[])
        return dataclasses.replace(made, event=POISSON)

    monkeypatch.setattr(module._Player, "__call__", dishonest)
    found = replayed()
    assert found.event == POISSON
    assert [words.split(",")[0] for words in found.findings] == [
        "participants were drawn by coins of 1.0", OF_ABSENCE, OF_PARTICIPANTS, OF_PARTICIPANTS
    ]  # fmt: skip


def test_an_event_without_noise_cannot_be_satisfied(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = module._Player.__call__
    monkeypatch.setattr(
        module._Player,
        "__call__",
        lambda self, *args: dataclasses.replace(honest(self, *args), event=NonPrivate()),
    )
    assert "multiplier inf times" in replayed().findings[-1]
