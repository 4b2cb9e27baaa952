"""Curve audit: 1e5 releases per side and world, alpha = 1e-6 per audit, planted faults each in their world."""

from __future__ import annotations

import numpy as np
import pytest

from privbo.audits.empirical import audit_curve, epsilon_lower_bound
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.protocol.messages import Request
from tests.builders import mechanism_for
from tests.statistical.faults import FAULTS, FIXED_SIZE, SOUND, Fault

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
