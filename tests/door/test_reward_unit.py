"""One reward as the unit of privacy: what it moves, what it costs, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from accountant.events import Adjacency, Gaussian
from privbo.door.mechanism import PrivateSum, UnitMove, WeightGeometry, everybody, require_request
from privbo.protocol.errors import ConfigurationError
from tests.builders import WEIGHTS, mechanism_for, request

REWARD = {"adjacency": Adjacency.REPLACE_ONE}


def test_one_reward_moves_a_release_by_its_bound_and_no_more_than_clipping_allows() -> None:
    small = mechanism_for(request(unit="reward", unit_bound=0.01), noise_multiplier=2.0, **REWARD)
    assert small.sensitivity() == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert small.sensitivity() > 0.5 * 0.01  # rounding is paid for
    assert small.noise_stddev() == pytest.approx(2.0 * small.sensitivity())
    assert small.event() == Gaussian(noise_multiplier=2.0)
    large = mechanism_for(request(unit="reward", unit_bound=100.0), noise_multiplier=2.0, **REWARD)
    vector_bound = 2.0 / math.sqrt(2)
    assert large.sensitivity() == pytest.approx(0.5 * 2 * vector_bound, rel=1e-3)
    client = mechanism_for(request(), noise_multiplier=2.0, **REWARD)
    assert large.sensitivity() >= client.sensitivity()


def test_rounding_is_added_and_counts_every_entry_and_the_vectors_size() -> None:
    move, vector_bound = UnitMove(bound=1e-9, n_entries=100), 1e6
    rounding = 4 * (100 + 64) * 2.0**-53 * vector_bound
    coarse = math.sqrt(100) * 2.0**-16
    assert move.after_clipping(vector_bound, 1.0) == pytest.approx((1e-9 + rounding) / (1 - coarse), rel=1e-9)
    described = mechanism_for(request(unit="reward", unit_bound=0.01), noise_multiplier=2.0, **REWARD)
    assert described.move == UnitMove(bound=0.01, n_entries=3 * 2)


def test_truncation_is_paid_for_by_more_entries_and_more_noise() -> None:
    few, many = UnitMove(bound=0.1, n_entries=4), UnitMove(bound=0.1, n_entries=4000)
    assert few.after_clipping(1.0, 10.0) < many.after_clipping(1.0, 10.0) < many.after_clipping(1.0, 100.0)
    # z sqrt(entries) 2^-16 of the distance itself
    coarse = 100.0 * math.sqrt(4000) * 2.0**-16
    assert many.after_clipping(1.0, 100.0) == pytest.approx(0.1 / (1 - coarse), rel=1e-9)
    with pytest.raises(ConfigurationError, match=r"too large for 4000 entries .* keep it below 518\.1"):
        many.after_clipping(1.0, 519.0)
    assert many.after_clipping(1.0, 518.0) < 0.1 / 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sample_rate": 0.5}, "sample_rate"),
        ({"sampling": "fixed-size"}, "sampling"),
        ({"calibration": "paper"}, "calibration"),
        ({"adjacency": Adjacency.ZERO_OUT}, "replace-one"),
    ],
)
def test_settings_that_say_nothing_about_a_reward_are_refused(change: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        mechanism_for(request(unit="reward", unit_bound=0.1), noise_multiplier=1.0, **(REWARD | change))


@pytest.mark.parametrize("bound", [0.0, math.nan, True])
def test_a_reward_bound_out_of_range_is_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="unit_bound"):
        require_request(request(unit="reward", unit_bound=bound))


def test_noise_for_a_reward_that_the_grid_would_swallow_is_refused() -> None:
    """Sums this large need a coarser grid than the noise's own, which truncation was not paid for."""
    geometry = WeightGeometry.of(np.full((1, 1000), 1.0))
    settings = {"clipping_norm": 1e9, "geometry": geometry, "noise_multiplier": 1.0, "sample": everybody(1000)} | REWARD
    with pytest.raises(ConfigurationError, match="one unit is too small"):
        PrivateSum(**settings, move=UnitMove(bound=0.01, n_entries=1)).grid_step()
    fine = PrivateSum(**settings, move=UnitMove(bound=0.3, n_entries=1))
    assert 2**16 <= fine.noise_stddev() / fine.grid_step() < 2**17
    coarse = replace(geometry, largest_total=2.0**40)
    assert PrivateSum(**(settings | {"geometry": coarse})).grid_step() > 0  # one client as the unit has no such limit


def test_noise_is_refused_exactly_where_its_grid_has_fewer_than_1024_units() -> None:
    geometry = replace(WeightGeometry.of(np.ones((1, 1))), largest_total=2.0**31)
    step = 2.0 ** (32 - 61)  # the exponent of the largest sum, less 61 bits
    last = PrivateSum(clipping_norm=1.0, geometry=geometry, noise_multiplier=2.0**10 * step, sample=everybody(1))
    assert last.grid_step() == step
    below = replace(last, noise_multiplier=math.nextafter(2.0**10 * step, 0.0))
    with pytest.raises(ConfigurationError, match="raise noise_multiplier"):
        below.grid_step()


@pytest.mark.parametrize("value", [True, math.nan, 0.0, 1e101])
@pytest.mark.parametrize("name", ["clipping_norm", "noise_multiplier"])
def test_numbers_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0} | {name: value}
    with pytest.raises(ConfigurationError, match=name):
        PrivateSum(geometry=WeightGeometry.of(WEIGHTS), sample=everybody(2), **settings)
