"""What the release room promises at its edges: rewards as the unit, statistics, streams, places in the plan."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from accountant.events import Adjacency, Gaussian, NonPrivate, Unit
from accountant.ledger import Ledger, LedgerPolicy
from privbo.audits.replay import ScriptedNoise
from privbo.door.answer import answer, draw_participants
from privbo.door.clipping import BOUND_FACTORS, NORM_LEVELS, clip_rows, clip_statistics
from privbo.door.door import Door
from privbo.door.geometry import WeightGeometry
from privbo.door.inbox import Inbox
from privbo.door.mechanism import PrivateSum, mechanism_for, require_request
from privbo.door.noise import SecureNoise, SimulatedNoise, keystream
from privbo.door.reward_unit import RewardMove
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request

WEIGHTS = np.array([[0.5, 0.25], [0.0, 0.25]])
REWARD = {"adjacency": Adjacency.REPLACE_ONE}


def request(**changes) -> Request:
    return Request(**({"dim": 3, "clipping_norm": 2.0, "weights": WEIGHTS} | changes))


# --- one reward as the unit -----------------------------------------------------------------


def test_one_reward_moves_a_release_by_its_bound_and_no_more_than_clipping_allows() -> None:
    small = mechanism_for(request(reward_bound=0.01), noise_multiplier=2.0, **REWARD)
    assert small.sensitivity() == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert small.sensitivity() > 0.5 * 0.01  # rounding is paid for
    assert small.noise_stddev() == pytest.approx(2.0 * small.sensitivity())
    assert small.event() == Gaussian(noise_multiplier=2.0)
    large = mechanism_for(request(reward_bound=100.0), noise_multiplier=2.0, **REWARD)
    vector_bound = 2.0 / math.sqrt(2)
    assert large.sensitivity() == pytest.approx(0.5 * 2 * vector_bound, rel=1e-3)
    client = mechanism_for(request(), noise_multiplier=2.0, **REWARD)
    assert large.sensitivity() >= client.sensitivity()


def test_rounding_is_added_and_counts_every_entry_and_the_vectors_size() -> None:
    move, vector_bound = RewardMove(bound=1e-9, n_entries=100), 1e6
    rounding = 4 * (100 + 64) * 2.0**-53 * vector_bound
    coarse = math.sqrt(100) * 2.0**-16
    assert move.after_clipping(vector_bound, 1.0) == pytest.approx((1e-9 + rounding) / (1 - coarse), rel=1e-9)
    described = mechanism_for(request(reward_bound=0.01), noise_multiplier=2.0, **REWARD)
    assert described.reward == RewardMove(bound=0.01, n_entries=3 * 2)


def test_truncation_is_paid_for_by_more_entries_and_more_noise() -> None:
    few, many = RewardMove(bound=0.1, n_entries=4), RewardMove(bound=0.1, n_entries=4000)
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
        mechanism_for(request(reward_bound=0.1), noise_multiplier=1.0, **(REWARD | change))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan, True])
def test_a_reward_bound_out_of_range_is_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="reward_bound"):
        require_request(request(reward_bound=bound))


def test_noise_for_a_reward_that_the_grid_would_swallow_is_refused() -> None:
    """Sums this large need a coarser grid than the noise's own, which truncation was not paid for."""
    geometry = WeightGeometry.of(np.full((1, 1000), 1.0))
    settings = {"clipping_norm": 1e9, "geometry": geometry, "noise_multiplier": 1.0} | REWARD
    with pytest.raises(ConfigurationError, match="one reward is too small"):
        PrivateSum(**settings, reward=RewardMove(bound=0.01, n_entries=1)).grid_step()
    fine = PrivateSum(**settings, reward=RewardMove(bound=0.3, n_entries=1))
    assert 2**16 <= fine.noise_stddev() / fine.grid_step() < 2**17
    coarse = replace(geometry, largest_total=2.0**40)
    assert PrivateSum(**(settings | {"geometry": coarse})).grid_step() > 0  # one client as the unit has no such limit


def test_noise_is_refused_exactly_where_its_grid_has_fewer_than_1024_units() -> None:
    geometry = replace(WeightGeometry.of(np.ones((1, 1))), largest_total=2.0**31)
    step = 2.0 ** (32 - 61)  # the exponent of the largest sum, less 61 bits
    last = PrivateSum(clipping_norm=1.0, geometry=geometry, noise_multiplier=2.0**10 * step)
    assert last.grid_step() == step
    below = replace(last, noise_multiplier=math.nextafter(2.0**10 * step, 0.0))
    with pytest.raises(ConfigurationError, match="raise noise_multiplier"):
        below.grid_step()


@pytest.mark.parametrize("value", [True, math.nan, math.inf, 0.0, 1e101])
@pytest.mark.parametrize("name", ["clipping_norm", "noise_multiplier"])
def test_numbers_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    settings = {"clipping_norm": 1.0, "noise_multiplier": 1.0} | {name: value}
    with pytest.raises(ConfigurationError, match=name):
        PrivateSum(geometry=WeightGeometry.of(WEIGHTS), **settings)


# --- the door -------------------------------------------------------------------------------


def door(noise=None, **changes) -> tuple[Door, Ledger]:
    policy = LedgerPolicy(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=2)
    book = Ledger.create(None, policy)
    source = noise or SimulatedNoise(3)
    made = Door(
        book,
        run="r",
        noise=source,
        mechanism=lambda wanted: mechanism_for(wanted, noise_multiplier=1.0, **changes),
        n_clients=2,
    )
    return made, book


def test_every_round_has_noise_of_its_own_and_its_place_in_the_plan() -> None:
    here, book = door()
    values = []
    for position, round_ in enumerate((4, 7)):
        release, _ = here.close(here.open(round_, request(), plan_position=position), np.zeros((2, 3)))
        values.append(release.values)
    assert not np.intersect1d(values[0], values[1]).size
    assert [(e.release_id, e.plan_position) for e in book.entries()] == [("r/4", 0), ("r/7", 1)]


def test_no_ticket_names_its_senders_unless_the_channel_hides_them() -> None:
    here, _ = door(sample_rate=0.5)
    assert here.only_sampled_send is False
    assert here.open(0, request()).senders is None


def test_a_mechanism_for_another_reward_is_refused_before_any_charge() -> None:
    policy = LedgerPolicy(unit=Unit.REWARD, adjacency=Adjacency.REPLACE_ONE, population="p", n_clients=2)
    book = Ledger.create(None, policy)

    def another(wanted: Request) -> PrivateSum:
        return mechanism_for(replace(wanted, reward_bound=0.5), noise_multiplier=1.0, **REWARD)

    here = Door(book, run="r", noise=SimulatedNoise(0), mechanism=another, n_clients=2)
    with pytest.raises(ConfigurationError, match="another unit"):
        here.open(0, request(reward_bound=0.1))
    assert book.entries() == []


def test_noise_that_the_grid_would_swallow_is_refused_before_any_charge() -> None:
    policy = LedgerPolicy(unit=Unit.REWARD, adjacency=Adjacency.REPLACE_ONE, population="p", n_clients=1000)
    book = Ledger.create(None, policy)
    here = Door(
        book,
        run="r",
        noise=SimulatedNoise(0),
        mechanism=lambda wanted: mechanism_for(wanted, noise_multiplier=1.0, **REWARD),
        n_clients=1000,
    )
    with pytest.raises(ConfigurationError, match="one reward is too small"):
        here.open(0, request(clipping_norm=1e9, reward_bound=0.01, weights=np.ones((1, 1000))))
    assert book.entries() == []


@pytest.mark.parametrize("change", [{"dim": True}, {"dim": 0}, {"clipping_norm": 1e101}, {"clipping_norm": math.nan}])
def test_the_door_the_mechanism_and_the_request_itself_all_refuse_what_cannot_be(change: dict) -> None:
    bad, name = request(**change), next(iter(change))
    with pytest.raises(ConfigurationError, match=name):
        require_request(bad)
    for noise_multiplier in (1.0, None):
        with pytest.raises(ConfigurationError, match=name):
            mechanism_for(bad, noise_multiplier=noise_multiplier)
        here, book = door()
        here._mechanism = lambda _, z=noise_multiplier: mechanism_for(request(), noise_multiplier=z)
        with pytest.raises(ConfigurationError, match=name):
            here.open(0, bad)
        assert book.entries() == []


def test_a_hidden_channels_ticket_names_its_senders_until_it_is_used() -> None:
    here, _ = door(sample_rate=0.5)
    here.only_sampled_send = True
    ticket = here.open(0, request())
    np.testing.assert_array_equal(ticket.senders, ticket._participants)
    here.close(ticket, np.zeros((2, 3)))
    assert ticket.senders is None
    assert here.open(0, request()).senders is None  # it is stored; nobody need send again


def test_a_plain_sum_of_one_reward_stands_on_any_ledger() -> None:
    here, book = door()
    here._mechanism = lambda wanted: mechanism_for(wanted, noise_multiplier=None)
    here.open(0, request(reward_bound=0.1))
    assert [entry.event for entry in book.entries()] == [NonPrivate()]


# --- private statistics ---------------------------------------------------------------------


def test_statistics_say_what_clipping_took_at_this_bound_and_at_others() -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    everyone = np.ones(2, dtype=bool)
    settings = {"participants": everyone, "weights": WEIGHTS, "bound": 1.0, "rate": 0.5}
    found = clip_statistics(rows, clip_rows(rows, 1.0), **settings)
    assert found.bound == 1.0
    # block 0: (0.5 (3, 4, 0) + 0.25 (0, 0, .5)) / 0.5; block 1: 0.25 (0, 0, .5) / 0.5
    np.testing.assert_allclose(found.signal_by_block, [math.hypot(3.0, 4.0, 0.25), 0.25])
    np.testing.assert_allclose(found.bias_by_block, [4.0, 0.0], atol=1e-9)
    taken = [max(0.0, 5.0 - factor) + 0.5 * 0.0 for factor in BOUND_FACTORS]
    short = [max(0.0, 0.5 - factor) * 0.5 for factor in BOUND_FACTORS]  # the second client, in each of two blocks
    expected = [math.hypot(a, b, b) for a, b in zip(taken, short, strict=True)]
    np.testing.assert_allclose(found.bias_at, expected, atol=1e-9)
    plain = found.to_dict()
    assert plain["bound"] == 1.0
    assert plain["norm_levels"] == list(NORM_LEVELS)
    assert plain["bound_factors"] == list(BOUND_FACTORS)
    assert isinstance(plain["bias_at"], list)


def test_statistics_of_nobody_and_of_no_bound() -> None:
    rows = np.full((2, 3), np.nan)
    settings = {"participants": np.ones(2, dtype=bool), "weights": WEIGHTS, "bound": math.inf, "rate": 1.0}
    found = clip_statistics(rows, clip_rows(rows, 1.0), **settings)
    assert (found.n_absent, found.clipped_share, found.norm_quantiles, found.bias) == (2, 0.0, (), 0.0)
    assert found.bias_at == ()
    assert found.to_dict()["bound"] is None


def test_a_plain_sum_takes_everybody_draws_nothing_and_notes_what_came() -> None:
    mechanism = mechanism_for(request(), noise_multiplier=None)
    silent = ScriptedNoise(participants=np.zeros(2, dtype=bool))
    everyone = draw_participants(mechanism, silent)
    assert (everyone.dtype, everyone.tolist()) == (np.bool_, [True, True])
    rows = np.array([[3.0, 4.0, 0.0], [np.nan, 0.0, 0.0]])
    made = answer(mechanism, request(), rows, everyone, silent)
    assert silent.drawn == []
    assert made.values.tolist() == [[1.5, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert made.clipping is None
    found = made.statistics
    assert (found.n_clients, found.n_participants, found.n_absent, found.bound) == (2, 2, 1, math.inf)
    assert (found.signal_by_block, found.bias) == ((2.5, 0.0), 0.0)


# --- small refusals -------------------------------------------------------------------------


def test_an_inbox_of_no_round_is_refused() -> None:
    for change in ({"round": -1}, {"n_clients": -1}, {"dim": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(change))):
            Inbox(**({"round": 0, "n_clients": 2, "dim": 3} | change))


def test_a_key_stream_is_never_drawn_past_its_counter() -> None:
    with pytest.raises(ConfigurationError, match="at most"):
        keystream(bytes(32), 2**36 + 1)


def test_a_tie_between_random_words_draws_the_subset_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from privbo.door import noise

    draws = [np.zeros(4, dtype=np.uint64), np.array([3, 1, 2, 0], dtype=np.uint64)]

    def words(n: int) -> np.ndarray:
        assert n == 4
        return draws.pop(0)

    monkeypatch.setattr(noise, "_secure_words", words)
    np.testing.assert_array_equal(SecureNoise().subsets((1, 4), 2), [[False, True, False, True]])
    assert draws == []


def test_exact_noise_without_opendp_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from privbo.door.exact_noise import ExactNoise

    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConfigurationError, match=r"privbo\[exact\]"):
        ExactNoise()


def test_exact_noise_draws_participants_and_is_its_own_stream() -> None:
    pytest.importorskip("opendp")
    from privbo.door.exact_noise import ExactNoise

    source = ExactNoise()
    assert source.stream("x") is source
    assert source.coins((5,), 1.0).all()
    assert source.subsets((3, 6), 2).sum(axis=1).tolist() == [2, 2, 2]
