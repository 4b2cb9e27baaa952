"""The replay test piece by piece: who is compared with whom, and that each kind of contradiction is named."""

import numpy as np
import pytest

from privbo.protocol.messages import Request
from tests.accountant.builders import fixed
from tests.builders import mechanism_for
from tests.door.replayed_runs import Replay, replay
from tests.statistical.faults import quieter

WEIGHTS = np.array([[0.2, 0.9, 0.1, 0.4], [0.3, 0.9, 0.2, 0.4]])
REQUEST = Request(dim=2, clipping_norm=2.0, weights=WEIGHTS)


def spec(**settings):
    return mechanism_for(REQUEST, **{"noise_multiplier": 2.0} | settings)


# --- a finding, from releases that were made up


def test_draws_that_follow_the_participants_are_named() -> None:
    """Releases without noise, of samples of two: sound ones, and those that draw otherwise without a client."""
    event = fixed(4, 2, 2.0)

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


@pytest.mark.parametrize(("factor", "sound"), [(0.999, False), (1.0, True), (1.001, True)])
def test_a_thousandth_too_little_noise_is_found(factor: float, sound: bool) -> None:
    found = replayed(factor=factor)
    assert (found.findings == ()) == sound
    if not sound:
        (words,) = found.findings
        assert words.startswith(f"noise {found.noise_stddev:.6g} is below")
        assert f"multiplier 2 times the measured sensitivity {found.sensitivity:.6g}" in words
