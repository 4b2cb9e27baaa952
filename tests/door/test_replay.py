"""The replay test piece by piece: who is compared with whom, and that each kind of contradiction is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from accountant.events import Adjacency, FixedSizeSampledGaussian
from privbo.door.mechanism import PrivateSum
from privbo.protocol.messages import Request
from tests.builders import mechanism_for
from tests.door.replayed_runs import Replay, replay
from tests.statistical.faults import quieter

WEIGHTS = np.array([[0.2, 0.9, 0.1, 0.4], [0.3, 0.9, 0.2, 0.4]])
REQUEST = Request(dim=2, clipping_norm=2.0, weights=WEIGHTS)


def spec(**settings) -> PrivateSum:
    return mechanism_for(REQUEST, **{"noise_multiplier": 2.0} | settings)


# --- a finding, from releases that were made up


def test_draws_that_follow_the_participants_are_named() -> None:
    """Releases without noise, of samples of two: sound ones, and those that draw otherwise without a client."""
    event = FixedSizeSampledGaussian(n_clients=4, sample_size=2, noise_multiplier=2.0)

    def made(follows: bool) -> Replay:
        def play(mechanism, request, rows, noise):
            noise.subsets((1, 4), 2)
            absent = noise.participants.any() and not noise.participants[1]
            return noise.gaussian((1, 2, 2), 65.0 if follows and absent else 64.0).astype(float), event

        two = spec(sample_rate=0.5, sampling="fixed-size")
        return replay(lambda _: two, REQUEST, np.ones((4, 2)), client=1, seed=0, play=play)

    assert made(follows=False).findings == ()
    assert made(follows=True).findings == ("what is drawn depends on who takes part",) * 2  # two may take its slot


# --- the whole, through the shipped door -----------------------------------------------------


def replayed(others: float = 0.5, *, factor: float = 1.0, **settings) -> Replay:
    """A saturating client among others alike; ``factor`` times the noise that is due."""
    rows = np.full((4, 2), others)
    rows[1] = [50.0, 0.0]
    return replay(lambda _: quieter(spec(**settings), factor), REQUEST, rows, client=1, seed=0)


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
