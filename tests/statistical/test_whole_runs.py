"""Attacks on whole runs: 20,000 runs in each of two worlds, 99 % confidence at delta .01; false alarms 1e-6 elsewhere.

At mu = 1 a threshold chosen beforehand reaches .87 of the accountant's epsilon in expectation, and at least .8 with
probability .99; seeds are fixed, so the outcome is. The errors at the middle threshold bound mu within 8 %, which is
what catches noise that is 10 % too small (mu 1.11) and a release that was drawn twice (mu 1.15 of three releases).
"""

import math
from unittest import mock

import numpy as np
import pytest

from privbo.audits.empirical import audit_curve, epsilon_lower_bound
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.protocol.messages import FloatArray, Request
from privbo.runs.spec import Spec
from tests.builders import mechanism_for
from tests.statistical.faults import FAULTS, FIXED_SIZE, SOUND, Fault
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


GRID_SCALE = PrivateSum.grid_scale


@pytest.mark.parametrize(("factor", "runs"), [(0.5, FEW), pytest.param(0.9, RUNS, marks=pytest.mark.slow)])
def test_noise_that_is_a_tenth_too_small_is_caught(factor: float, runs: int) -> None:
    """Half of it in a few whole runs, a tenth less in many."""
    with mock.patch.object(PrivateSum, "grid_scale", lambda self: factor * GRID_SCALE(self)):
        found = attack(THREE, runs)
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


# ---- curve audit: 1e5 releases per side and world, alpha = 1e-6 per audit, planted faults each in their world

TRIALS, ALPHA = 100_000, 1e-6
WEIGHTS = np.array([[0.9, 0.9, 0.9, 0.9], [0.4, 0.4, 0.4, 0.4]])
WORLDS = ["others zero", "others opposing", "alone"]
# The world in which each fault must show.
WORLD_OF = {
    "std / sqrt(2)": "others zero",
    "noise not divided by q": "others zero",
    "clip S per block instead of S / sqrt(P)": "others zero",
    "fixed-size sampling accounted as Poisson": "others opposing",
    "fixed-size sampling with the zero-out sensitivity": "others opposing",
    "division by the realised count": "others zero",
    "the same noise for two blocks": "others zero",
    "noiseless empty sample": "alone",
}


def build(sampling: str = "poisson", fault: Fault = SOUND, **settings):
    fixed = {"noise_multiplier": 1.0, "sample_rate": 0.5, "sampling": sampling} | settings

    def mechanism(weights):
        # A single client can only be sampled whole under fixed-size sampling.
        changed = {"sample_rate": 1.0} if sampling == "fixed-size" and weights.shape[1] == 1 else {}
        return fault.plant(mechanism_for(Request(dim=1, clipping_norm=2.0, weights=weights), **fixed | changed))

    return mechanism


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_the_shipped_mechanism_passes(sampling: str, world: str) -> None:
    found = audit_curve(build(sampling), WEIGHTS, noise=SecureNoise(), world=world, trials=TRIALS, alpha=ALPHA)
    assert found.passed, found


@pytest.mark.parametrize("name", WORLD_OF)
def test_each_fault_fails_in_its_world(name: str) -> None:
    fault, noise, world = FAULTS[name], SimulatedNoise(1), WORLD_OF[name]
    # A realised count shows in samples well below the expected size, so there are more clients and less noise.
    by_count = name.startswith("division")
    weights, multiplier = (WEIGHTS[:, [0] * 6], 0.7) if by_count else (WEIGHTS, 1.0)
    mechanism = build("fixed-size" if name in FIXED_SIZE else "poisson", fault, noise_multiplier=multiplier)
    settings = {"noise": noise, "world": world, "trials": TRIALS, "alpha": ALPHA}
    found = audit_curve(mechanism, weights, release=fault.releases, **settings)
    assert not found.passed, found
    assert found.delta_lower > found.delta_claimed


def test_the_gaussian_audit_is_tight_at_rate_one() -> None:
    request = Request(dim=1, clipping_norm=2.0, weights=WEIGHTS)
    # The bound's standard deviation is 0.4 % and 0.7 % of epsilon below a mean 0.6 % and 1.1 % under it, so
    # each floor is an event of probability below 1e-6 (5 sigma).
    for multiplier, floor in ((0.5, 0.97), (1.0, 0.95)):
        mechanism = mechanism_for(request, noise_multiplier=multiplier)
        low, accounted = epsilon_lower_bound(mechanism, WEIGHTS, noise=SecureNoise(), delta=1e-5, trials=TRIALS)
        # 95 % bound: a bound above the truth is an event of probability 0.05, 3 % above it one below 1e-6.
        assert floor * accounted <= low <= 1.03 * accounted


# (rate, multiplier, floor, ceiling): over 12 runs the bound was 0.972 +- 0.017 and 0.944 +- 0.014 of the accountant's
# epsilon; both ends are five of these deviations away, so each is an event of probability below 1e-6.
