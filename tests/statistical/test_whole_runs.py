"""Attacks on whole runs: 20,000 runs in each of two worlds, 99 % confidence at delta .01; false alarms 1e-6 elsewhere.

At mu = 1 a threshold chosen beforehand reaches .87 of the accountant's epsilon in expectation, and at least .8 with
probability .99; seeds are fixed, so the outcome is. The errors at the middle threshold bound mu within 8 %, which is
what catches noise that is 10 % too small (mu 1.11) and a release that was drawn twice (mu 1.15 of three releases).
"""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest

from privbo.door.mechanism import PrivateSum
from privbo.protocol.messages import FloatArray
from privbo.runs.spec import Spec
from tests.statistical.whole_runs import Found, Setting, attack, log_ratio, play_once

RUNS, FEW = 20_000, 200
THREE, TEN = (Setting(rounds=rounds, noise_multiplier=math.sqrt(rounds)) for rounds in (3, 10))
SAMPLED = Setting(rounds=5, noise_multiplier=1.0, sample_rate=0.4, others=False)


def kept(found: Found) -> bool:
    """Whether nothing that was seen contradicts the claim."""
    return found.epsilon_lower <= found.epsilon_claimed and found.curve.passed


def test_a_few_whole_runs_stay_under_the_curve_and_show_their_canary() -> None:
    found = attack(THREE, FEW)
    assert kept(found)
    assert 0.2 < found.mu_lower <= found.mu_claimed


def test_half_the_noise_shows_in_a_few_whole_runs() -> None:
    with mock.patch.object(PrivateSum, "grid_scale", quieter(0.5)):
        found = attack(THREE, FEW)
    assert found.mu_lower > found.mu_claimed


@pytest.mark.slow
@pytest.mark.parametrize("setting", [THREE, TEN], ids=["three rounds", "ten rounds"])
def test_an_attack_on_whole_runs_reaches_four_fifths_of_the_curve_and_never_passes_it(setting: Setting) -> None:
    found = attack(setting, RUNS)
    print(found)
    assert kept(found)
    assert 0.8 * found.epsilon_claimed <= found.epsilon_lower
    assert 0.9 * found.mu_claimed <= found.mu_lower <= found.mu_claimed


@pytest.mark.slow
def test_an_attack_on_runs_with_secret_samples_stays_under_the_curve() -> None:
    found = attack(SAMPLED, RUNS)
    print(found)
    assert kept(found)
    assert found.epsilon_lower > 0.4 * found.epsilon_claimed


GRID_SCALE = PrivateSum.grid_scale


def quieter(factor: float):
    return lambda self: factor * GRID_SCALE(self)


@pytest.mark.slow
def test_noise_that_is_a_tenth_too_small_is_caught() -> None:
    with mock.patch.object(PrivateSum, "grid_scale", quieter(0.9)):
        found = attack(THREE, RUNS)
    print(found)
    assert found.mu_lower > found.mu_claimed


def last_round_twice(spec: Spec, runs: int, first: int) -> FloatArray:
    """Log ratios where the ledger went back before the last round, which was drawn again with other noise."""
    again = []
    for index in range(runs):
        told, untold = play_once(spec, first + index), play_once(spec, first + index + 10**6)
        again.append(log_ratio(told) + log_ratio(untold, first=spec.rounds - 1))
    return np.array(again)


@pytest.mark.slow
def test_a_release_that_was_drawn_twice_is_caught() -> None:
    found = attack(THREE, RUNS // 2, ratios=last_round_twice)
    print(found)
    assert found.mu_lower > found.mu_claimed
