"""The replay test piece by piece: who is compared with whom, and that each kind of contradiction is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, PoissonSampledGaussian
from privbo.door.mechanism import PrivateSum
from privbo.protocol.messages import Request
from tests.builders import mechanism_for
from tests.door.replayed_runs import Play, Replay, replay, through_the_door
from tests.statistical.faults import quieter

WEIGHTS = np.array([[0.2, 0.9, 0.1, 0.4], [0.3, 0.9, 0.2, 0.4]])
REQUEST = Request(dim=2, clipping_norm=2.0, weights=WEIGHTS)
GAUSSIAN = Gaussian(noise_multiplier=2.0)


def spec(**settings) -> PrivateSum:
    return mechanism_for(REQUEST, **{"noise_multiplier": 2.0} | settings)


# --- findings, each from a release that was made up ------------------------------------------

OF_PARTICIPANTS = "what is drawn depends on who takes part"
POISSON = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=2.0)
FIXED = FixedSizeSampledGaussian(n_clients=4, sample_size=2, noise_multiplier=2.0)
COINS, SUBSET = ("coins", (1, 4), 1.0), ("subset", 4, 2)


def made(signal=None, gains=1.0, *, samplers=(COINS,), scales=(64.0,), empty=1.0, mix=None, event=GAUSSIAN) -> Play:
    """Releases of a signal, with noise times these gains (and times ``empty`` where nobody takes part)."""

    def play(mechanism, request, rows, noise):
        for kind, shape, size in samplers:
            noise.coins(shape, size) if kind == "coins" else noise.subsets((1, shape), size)
        drawn = [noise.gaussian((1, 2, 2), scale).ravel() for scale in scales]
        added = drawn[-1].astype(float) if drawn else np.zeros(4)
        added = added if mix is None else added[mix]
        who = noise.participants
        sent = np.zeros((2, 2)) if signal is None else signal(rows, who)
        return sent + gains * added.reshape(2, 2) * (1.0 if who.any() else empty), event

    return play


def where(condition, then: Play, otherwise: Play) -> Play:
    """One release or another, by everybody's vectors and the script."""

    def play(mechanism, request, rows, noise):
        return (then if condition(rows, noise) else otherwise)(mechanism, request, rows, noise)

    return play


def found_in(play: Play, mechanism: PrivateSum | None = None) -> Replay:
    return replay(lambda _: mechanism or spec(), REQUEST, np.ones((4, 2)), client=1, seed=0, play=play)


OTHER = made(samplers=(("coins", (1, 4), 0.5),))


def test_draws_that_follow_the_participants_are_named() -> None:
    two = spec(sample_rate=0.5, sampling="fixed-size")
    sound, other = (made(samplers=(SUBSET,), event=FIXED, scales=(scale,)) for scale in (64.0, 65.0))
    assert found_in(sound, two).findings == ()
    replaced = where(lambda _, noise: noise.participants.any() and not noise.participants[1], other, sound)
    assert found_in(replaced, two).findings == (OF_PARTICIPANTS, OF_PARTICIPANTS)  # two may take its slot


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
    request = dataclasses.replace(REQUEST, unit="reward", unit_bound=0.01)
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
