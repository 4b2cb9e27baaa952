"""The door: pay, then draw, then store, then send; and what clients may do to it."""

import copy
import math
import pickle
from functools import partial
from unittest import mock

import numpy as np
import pytest

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, NonPrivate, Unit
from accountant.ledger import Budget, Ledger
from privbo.door.mechanism import require_request
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.builders import Changed, door, ledger as new_ledger, mechanism_for

N, DIM = 6, 4
WEIGHTS = np.arange(1.0, 2 * N + 1).reshape(2, N) / 50


REPLACED = {"adjacency": Adjacency.REPLACE_ONE}
request = partial(Request, dim=DIM, clipping_norm=3.0, weights=WEIGHTS)
reward = partial(request, unit="reward", unit_bound=0.1)
ledger = partial(new_ledger, N)
ANSWERS = np.random.default_rng(0).normal(size=(N, DIM))
plain_sum = partial(mechanism_for, noise_multiplier=None)


def refused(words: str, wanted: Request, book: Ledger | None = None, **settings) -> None:
    """Require that the door refuses a request before any charge."""
    book = book or ledger()
    with pytest.raises(ConfigurationError, match=words):
        door(book, **settings).open(0, wanted)
    assert book.entries() == []


def test_the_charge_is_durable_before_participants_are_drawn(tmp_path) -> None:
    path = tmp_path / "ledger"

    source = SimulatedNoise(0)

    def coins(shape, rate):
        with Ledger.open(path) as other:
            assert [e.release_id for e in other.entries()] == ["run/0"]
        return source.coins(shape, rate)

    watched = mock.Mock(coins=mock.Mock(side_effect=coins), gaussian=mock.Mock(wraps=source.gaussian))
    with ledger(path) as book:
        here = door(book, noise=Changed(source, stream=lambda _: watched), sample_rate=0.5)
        ticket = here.open(0, request())
        assert (watched.coins.call_count, watched.gaussian.call_count) == (1, 0)
        here.close(ticket, ANSWERS)
        assert (watched.coins.call_count, watched.gaussian.call_count) == (1, 1)


def test_values_are_the_weighted_clipped_sums_over_the_rate_plus_noise() -> None:
    clipped = ANSWERS * np.minimum(1, 3 / np.sqrt(2) / np.linalg.norm(ANSWERS, axis=1))[:, None]
    here = door(ledger(), noise_multiplier=1e-6)
    release, statistics = here.close(here.open(0, request()), ANSWERS)
    np.testing.assert_allclose(release.values, WEIGHTS @ clipped, atol=1e-4)
    assert release.noise_stddev == mechanism_for(request(), noise_multiplier=1e-6).noise_stddev()
    assert (release.sequence, len(release.head), release.round) == (1, 64, 0)
    assert statistics["n_participants"] == N


def test_no_warning_tells_whether_hostile_clients_are_in_the_secret_sample() -> None:
    """Norms of their sums overflow, and only where one of them takes part."""
    with np.errstate(all="raise"):
        here = door(ledger(), sample_rate=1.0)
        release, private = here.close(here.open(0, request()), np.full((N, DIM), 6e153))
    assert (np.isfinite(release.values).all(), private["bias"]) == (True, None)


def test_a_stored_release_is_sent_again_and_nothing_is_drawn(tmp_path) -> None:
    path = tmp_path / "ledger"
    with ledger(path) as book:
        here = door(book, noise=SecureNoise())
        first, _ = here.close(here.open(0, request()), ANSWERS)
    with Ledger.open(path) as book:
        ticket = door(book, noise=SecureNoise()).open(0, request())
        assert ticket.receipt.known
        np.testing.assert_array_equal(ticket.release.values, first.values)
        assert (ticket.release.sequence, ticket.release.head) == (first.sequence, first.head)
        with pytest.raises(LedgerError, match="closed already"):
            door(book).close(ticket, ANSWERS)
        assert len(book.entries()) == 1


def test_a_charge_without_bytes_is_drawn_anew_under_the_same_charge() -> None:
    book = ledger()
    here = door(book, noise=SecureNoise(), sample_rate=0.5)
    here.open(0, request())
    ticket = here.open(0, request())
    assert ticket.receipt.known
    assert ticket.release is None
    release, _ = here.close(ticket, ANSWERS)
    assert release.sequence == 1
    assert len(book.entries()) == 1


def test_two_processes_that_drew_for_one_release_do_not_both_send() -> None:
    here = door(ledger(), noise=SecureNoise())
    first, second = here.open(0, request()), here.open(0, request())
    here.close(first, ANSWERS)
    with pytest.raises(LedgerError, match="send those"):
        here.close(second, ANSWERS)


def test_a_round_cannot_be_asked_for_differently() -> None:
    book = ledger()
    door(book).open(0, request())
    with pytest.raises(LedgerError, match="was charged as"):
        door(book, noise_multiplier=2.0).open(0, request())


def test_a_ticket_is_used_once_and_keeps_its_secret() -> None:
    here = door(ledger(), sample_rate=0.5)
    ticket = here.open(3, request())
    assert "participants" not in repr(ticket)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(ticket)
    here.close(ticket, ANSWERS)
    with pytest.raises(LedgerError, match="late"):
        here.close(ticket, ANSWERS)


def test_over_budget_nothing_is_drawn() -> None:
    book = ledger(budget=Budget(epsilon=0.1, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        door(book, noise=Changed(SimulatedNoise(0), stream=None)).open(0, request())
    assert book.entries() == []


@pytest.mark.parametrize("bad", [-WEIGHTS, WEIGHTS[:, :3], np.zeros((1, N))], ids=["negative", "few", "zero"])
def test_impossible_weights_refuse_before_any_charge(bad: np.ndarray) -> None:
    refused("weights", request(weights=bad))


def test_a_mechanism_for_something_else_refuses_before_any_charge() -> None:
    for words, described, settings in (
        ("weights' geometry", request(weights=WEIGHTS / 2), {}),
        ("clipping norm", request(clipping_norm=1.0), {}),
        ("adjacency", request(), REPLACED),
    ):
        other = mechanism_for(described, noise_multiplier=1.0, **settings)
        refused(words, request(), mechanism=lambda _, other=other: other)
    other = mechanism_for(reward(unit_bound=0.5), noise_multiplier=1.0, **REPLACED)
    refused("bound on one unit", reward(), ledger(unit=Unit.REWARD), mechanism=lambda _: other)
    refused("clients", request(), new_ledger(N + 1))
    swallowed = request(unit="reward", unit_bound=0.01, clipping_norm=1e12)
    refused("one unit is too small", swallowed, ledger(unit=Unit.REWARD), **REPLACED)  # by the noise's grid


def test_the_plain_sum_is_charged_as_non_private() -> None:
    book = ledger()
    here = door(book, mechanism=plain_sum)
    rows = ANSWERS * 1e6
    rows[2] = np.nan
    release, _ = here.close(here.open(0, request()), rows)
    np.testing.assert_allclose(release.values, WEIGHTS @ np.nan_to_num(rows))
    assert book.entries()[0].event == NonPrivate()
    assert book.entries()[0].noise_source == "none"


def test_the_ledger_names_the_source_of_noise_and_never_mixes_seeded_with_real(tmp_path) -> None:
    for first, second in [(SecureNoise(), SimulatedNoise(0)), (SimulatedNoise(0), SecureNoise())]:
        book = ledger(tmp_path / first.name)
        door(book, noise=first).open(0, request())
        door(book, noise=first, noise_multiplier=2.0).open(1, request())
        with pytest.raises(LedgerError, match="ledger of its own"):
            door(book, noise=second).open(2, request())
        with pytest.raises(LedgerError, match="was charged as"):
            door(book, noise=second).open(0, request())
        assert [e.noise_source for e in book.entries()] == [first.name] * 2
        assert book.guarantees == (first.name == "secure")


def test_a_row_is_what_the_ledger_is_about_and_a_reward_has_its_own() -> None:
    for unit, wanted, settings in (
        (Unit.CLIENT, request(), {}),
        (Unit.REWARD, reward(), REPLACED),
        (Unit.CLIENT, reward(), {"mechanism": plain_sum}),  # a plain sum stands on any ledger
    ):
        here = door(ledger(unit=unit), **settings)
        here.open(0, wanted)
        assert len(here.ledger.entries()) == 1
    refused("never add up", reward(), ledger(unit=Unit.RECORD), **REPLACED)
    refused("never add up", request(), ledger(unit=Unit.REWARD))


def test_every_round_has_noise_of_its_own_and_its_place_in_the_plan() -> None:
    here, values = door(ledger()), []
    for position, round_ in enumerate((4, 7)):
        release, _ = here.close(here.open(round_, request(), plan_position=position), np.zeros((N, DIM)))
        values.append(release.values)
    assert not np.intersect1d(*values).size
    assert [(e.release_id, e.plan_position) for e in here.ledger.entries()] == [("run/4", 0), ("run/7", 1)]


@pytest.mark.parametrize("change", [{"dim": True}, {"dim": 0}, {"clipping_norm": 1e101}, {"clipping_norm": math.nan}])
def test_the_door_the_mechanism_and_the_request_itself_all_refuse_what_cannot_be(change: dict) -> None:
    bad, name = request(**change), next(iter(change))
    with pytest.raises(ConfigurationError, match=name):
        require_request(bad)
    for noise_multiplier in (1.0, None):
        with pytest.raises(ConfigurationError, match=name):
            mechanism_for(bad, noise_multiplier=noise_multiplier)
        good = mechanism_for(request(), noise_multiplier=noise_multiplier)
        refused(name, bad, mechanism=lambda _, good=good: good)


def test_a_hidden_channels_ticket_names_its_senders_until_it_is_used() -> None:
    """Noise is 1e-6 of the sensitivity, so the release tells who took part, over the rate."""
    for seed in range(12):
        here = door(ledger(), noise=SimulatedNoise(seed), noise_multiplier=1e-6, sample_rate=0.5)
        assert here.open(1, request()).senders is None
        here.only_sampled_send = True
        ticket = here.open(0, request())
        senders = ticket.senders
        release, _ = here.close(ticket, np.ones((N, DIM)) / 10)
        np.testing.assert_allclose(release.values[:, 0] * 0.5, WEIGHTS @ senders / 10, atol=1e-4)
        assert ticket.senders is None
        assert here.open(0, request()).senders is None  # it is stored; nobody need send again
