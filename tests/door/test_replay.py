"""The replay test piece by piece: who is compared with whom, and that each kind of contradiction is named."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, NonPrivate, PoissonSampledGaussian
from privbo.door.mechanism import PrivateSum, mechanism_for
from privbo.protocol.messages import Request
from tests.door.neighbouring import samples, vectors, with_row
from tests.door.replayed_runs import Play, Replay, ScriptedNoise, adversarial_rows, replay, through_the_door
from tests.statistical.faults import quieter

WEIGHTS = np.array([[0.2, 0.9, 0.1, 0.4], [0.3, 0.9, 0.2, 0.4]])
REQUEST = Request(dim=2, clipping_norm=2.0, weights=WEIGHTS)
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
    chosen, swapped = samples(spec(), 1, 0)
    assert (chosen.tolist(), swapped) == ([True] * 4, [])


def test_a_poisson_sample_is_compared_with_itself_without_the_client() -> None:
    drawn = set()
    for seed in range(60):
        chosen, (without,) = samples(spec(sample_rate=0.5), 1, seed)
        assert chosen[1]
        assert not without[1]
        np.testing.assert_array_equal(np.delete(chosen, 1), np.delete(without, 1))
        drawn.add(tuple(chosen))
    assert len(drawn) == 8  # every set with the client among them (seeded: the same draws every time)
    many = mechanism_for(
        Request(dim=1, clipping_norm=1.0, weights=np.ones((1, 200))), noise_multiplier=1.0, sample_rate=0.5
    )
    chosen, again = (samples(many, 1, 5)[0] for _ in range(2))
    np.testing.assert_array_equal(chosen, again)  # the seed alone decides
    assert 50 < chosen.sum() < 150


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_fixed_size_sample_is_compared_with_all_that_give_the_clients_slot_to_another(size: int) -> None:
    for seed in range(10):
        chosen, swapped = samples(spec(sample_rate=size / 4, sampling="fixed-size"), 1, seed)
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
        assert [row.tolist() for row in vectors(rows[1], adjacency, None)] == expected
    moved = np.array(vectors(rows[1], Adjacency.REPLACE_ONE, 0.5)) - rows[1]
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.5)
    ways = [[1, 0], [0, 1], [0.5**0.5, 0.5**0.5], [0.6, -0.8], [-0.8, 0.6]]
    np.testing.assert_allclose(moved, [sign * 0.5 * np.array(way) for way in ways for sign in (-1, 1)], atol=1e-12)
    assert len(vectors(np.array([0.1, 0.0]), Adjacency.REPLACE_ONE, 0.5)) == 10
    for row in (np.zeros(2), np.array([np.nan, 1.0]), np.array([np.inf, 1.0])):
        assert len(vectors(row, Adjacency.REPLACE_ONE, 0.5)) == 6  # no direction of its own
    changed = with_row(rows, 1, np.array([9.0, 9.0]))
    assert (changed.tolist(), rows[1].tolist()) == ([[1.0, 2.0], [9.0, 9.0]], [3.0, -4.0])


# --- findings, each from a release that was made up ------------------------------------------

OF_DATA = "what is drawn depends on a client's data"
OF_ABSENCE = "an absent client is not the same as one that sends zero"
OF_PARTICIPANTS = "what is drawn depends on who takes part"
OF_DRAWS = "what is drawn depends on who takes part, or on the noise itself"
OF_NOISE = "released entries do not each have noise of their own"
POISSON = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=2.0)
FIXED = FixedSizeSampledGaussian(n_clients=4, sample_size=2, noise_multiplier=2.0)
COINS, SUBSET = ("coins", (1, 4), 1.0), ("subset", 4, 2)


def nothing(rows, who):
    return np.zeros((2, 2))


def made(signal=nothing, gains=1.0, *, samplers=(COINS,), scales=(64.0,), empty=1.0, mix=None, event=GAUSSIAN) -> Play:
    """Releases of a signal, with noise times these gains (and times ``empty`` where nobody takes part)."""

    def play(mechanism, request, rows, noise):
        for kind, shape, size in samplers:
            noise.coins(shape, size) if kind == "coins" else noise.subsets((1, shape), size)
        drawn = [noise.gaussian((1, 2, 2), scale).ravel() for scale in scales]
        added = drawn[-1].astype(float) if drawn else np.zeros(4)
        added = added if mix is None else added[mix]
        who = noise.participants
        return signal(rows, who) + gains * added.reshape(2, 2) * (1.0 if who.any() else empty), event

    return play


def where(condition, then: Play, otherwise: Play) -> Play:
    """One release or another, by everybody's vectors and the script."""

    def play(mechanism, request, rows, noise):
        return (then if condition(rows, noise) else otherwise)(mechanism, request, rows, noise)

    return play


def found_in(play: Play, mechanism: PrivateSum | None = None, seed: int = 0) -> Replay:
    return replay(lambda _: mechanism or spec(), REQUEST, np.ones((4, 2)), client=1, seed=seed, play=play)


def test_the_largest_movement_counts_over_data_and_participants() -> None:
    def own(rows, who):
        return np.array([[3.0, 0.0], [0.0, 1.0]]) * np.nan_to_num(rows[1, 0]) * who[1]

    length = math.hypot(3.0, 1.0)
    for adjacency, moved in ((Adjacency.ZERO_OUT, length), (Adjacency.REPLACE_ONE, 2 * length)):
        found = found_in(made(own), spec(adjacency=adjacency))
        assert (found.sensitivity, found.findings) == (pytest.approx(moved), ())

    def by_slot(rows, who):
        return np.array([[10.0, 0.0], [0.0, 0.0]]) * who[3] + np.nan_to_num(rows[1, 0]) * who[1] / 4

    two = spec(sample_rate=0.5, sampling="fixed-size")
    # Seed 5 draws clients 1 and 2: a slot that passes to the last client moves the release further than to the first.
    assert np.flatnonzero(samples(two, 1, 5)[0]).tolist() == [1, 2]
    found = found_in(made(by_slot, samplers=(SUBSET,), event=FIXED), two, seed=5)
    assert found.sensitivity == pytest.approx(math.sqrt((10 - 0.25) ** 2 + 3 * 0.25**2))
    assert found.findings == ()


OTHER_DRAWS = made(samplers=(("coins", (1, 4), 0.5),))
OTHER_EVENT = made(event=Gaussian(noise_multiplier=3.0))


@pytest.mark.parametrize("change", [OTHER_DRAWS, OTHER_EVENT], ids=["draws", "event"])
def test_draws_or_a_charge_that_follow_the_data_are_named(change: Play) -> None:
    assert found_in(where(lambda rows, noise: rows[1, 0] == 0.0, change, made())).findings == (OF_DATA,)


def test_an_absence_that_shows_is_named() -> None:
    by_value = made(lambda rows, who: np.full((2, 2), float(np.isnan(rows[1, 0]))))
    by_draws = where(lambda rows, noise: np.isnan(rows[1, 0]), OTHER_DRAWS, made())
    for play in (by_value, by_draws):
        assert found_in(play).findings == (OF_ABSENCE,)


def test_draws_that_follow_the_participants_are_named() -> None:
    two = spec(sample_rate=0.5, sampling="fixed-size")
    sound = made(samplers=(SUBSET,), event=FIXED)
    other = made(samplers=(SUBSET,), event=FIXED, scales=(65.0,))
    assert found_in(sound, two).findings == ()
    replaced = where(lambda rows, noise: noise.participants.any() and not noise.participants[1], other, sound)
    assert found_in(replaced, two).findings == (OF_PARTICIPANTS, OF_PARTICIPANTS)  # two may take its slot


def test_the_smallest_gain_times_the_scale_is_the_noise() -> None:
    for play, stddev in (
        (made(), 64.0),
        (made(gains=np.array([[2.0, 0.25], [-0.5, 3.0]])), 16.0),
        (made(lambda rows, who: np.full((2, 2), 5.0 * who.sum()), empty=0.5), 32.0),
        (made(empty=2.0), 64.0),
    ):
        found = found_in(play)
        assert (found.noise_stddev, found.findings) == (pytest.approx(stddev), ())


@pytest.mark.parametrize(
    ("play", "n_findings"),
    [
        (made(mix=[0, 1, 2, 0]), 2),
        (made(gains=np.array([[1.0, 1.0], [1.0, 0.0]])), 2),
        (made(empty=0.0), 1),
        (made(gains=np.array([[1.0, -1.0], [1.0, 0.75]])), 2),  # 3 of 4 units: as much as the third entry's
        (made(scales=()), 2),
        (made(scales=(64.0, 64.0)), 2),
    ],
    ids=["twice the same", "one without", "none for nobody", "equal in size", "never drawn", "drawn twice"],
)
def test_entries_without_noise_of_their_own_are_named_and_have_none(play: Play, n_findings: int) -> None:
    found = found_in(play)
    assert (found.noise_stddev, found.findings) == (0.0, (OF_NOISE,) * n_findings)


@pytest.mark.parametrize(
    ("condition", "n_findings"),
    [
        (lambda rows, noise: noise.units is None and not noise.participants.any(), 1),
        (lambda rows, noise: noise.units is not None, 2),
        (lambda rows, noise: not noise.participants.any(), 1),
    ],
    ids=["by silence", "by the noise", "by who"],
)
def test_draws_that_follow_the_noise_or_the_empty_sample_are_named(condition, n_findings: int) -> None:
    assert found_in(where(condition, OTHER_DRAWS, made())).findings == (OF_DRAWS,) * n_findings


@pytest.mark.parametrize(("stddev", "sound"), [
    (2.0, True), (2.0 * (1 - 1e-9), True), (2.0 * (1 - 5e-10), True), (2.0 * (1 - 2e-9), False),
    (0.0, False), (math.nan, False),
])  # fmt: skip
def test_noise_may_fall_short_by_rounding_and_no_more(stddev: float, sound: bool) -> None:
    def moved_by_one(rows, who):
        return np.array([[float(rows[1, 0] == 1.0), 0.0], [0.0, 0.0]])

    found = found_in(made(moved_by_one, scales=(stddev,)))
    assert found.sensitivity == 1.0
    np.testing.assert_equal(found.noise_stddev, stddev)
    draws = (OF_DRAWS, OF_DRAWS) if math.isnan(stddev) else ()  # no number is the same as another
    assert (set(found.findings) <= {*draws, OF_DATA, OF_ABSENCE}) == sound


def test_the_seed_chooses_who_else_takes_part() -> None:
    half = spec(sample_rate=0.5)
    drawn = set()
    for seed in range(12):
        who = samples(half, 1, seed)[0]

        def coded(rows, who):
            return np.array([[who[1] * float(who @ [1, 2, 4, 8]), 0.0], [0.0, 0.0]])

        found = found_in(made(coded, samplers=(("coins", (1, 4), 0.5),), event=POISSON), half, seed)
        assert found.sensitivity == float(who @ [1, 2, 4, 8])
        drawn.add(found.sensitivity)
    assert len(drawn) > 3


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
        (("subset", 4, 2), dataclasses.replace(FIXED, n_clients=5), False),
        (("coins", 4, 2), FIXED, False),
        (("coins", (1, 4), 1.0), NonPrivate(), False),
        (("subset", 4, 2), NonPrivate(), False),
    ],
)
def test_the_event_names_the_sampler_that_was_drawn_with(draw, event, fits: bool) -> None:
    found = found_in(made(samplers=[draw], event=event)).findings
    words = f"participants were drawn by {draw[0]} of {draw[2]}, charged as {event}"
    assert found[:1] == (() if fits else (words,))


def test_participants_are_drawn_once() -> None:
    assert found_in(made(samplers=())).findings == ("participants were drawn 0 times",)
    assert found_in(made(samplers=(COINS, COINS))).findings == ("participants were drawn 2 times",)


# --- the whole, through the shipped door -----------------------------------------------------


def replayed(others: float = 0.5, *, play: Play = through_the_door, factor: float = 1.0, **settings) -> Replay:
    """A saturating client among others alike; ``factor`` times the noise that is due."""
    rows = np.full((4, 2), others)
    rows[1] = [50.0, 0.0]
    return replay(lambda _: quieter(spec(**settings), factor), REQUEST, rows, client=1, seed=0, play=play)


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


@pytest.mark.parametrize(("factor", "sound"), [(0.999, False), (1.0, True), (1.001, True)])
def test_a_thousandth_too_little_noise_is_found(factor: float, sound: bool) -> None:
    found = replayed(factor=factor)
    assert (found.findings == ()) == sound
    if not sound:
        (words,) = found.findings
        assert words.startswith(f"noise {found.noise_stddev:.6g} is below")
        assert f"multiplier 2 times the measured sensitivity {found.sensitivity:.6g}" in words


def test_every_kind_of_finding_is_passed_on() -> None:
    def dishonest(mechanism, request, rows, noise):
        values, _ = through_the_door(mechanism, request, rows, noise)
        if np.isnan(rows[1]).any() or noise.units is not None:
            noise.drawn.clear()
        return values, POISSON

    found = replayed(play=dishonest)
    assert found.event == POISSON
    assert [words.split(",")[0] for words in found.findings] == [
        "participants were drawn by coins of 1.0", OF_ABSENCE, OF_PARTICIPANTS, OF_PARTICIPANTS
    ]  # fmt: skip


def test_an_event_without_noise_cannot_be_satisfied() -> None:
    def free(mechanism, request, rows, noise):
        return through_the_door(mechanism, request, rows, noise)[0], NonPrivate()

    assert "multiplier inf times" in replayed(play=free).findings[-1]
