"""Tickets of the door: their place in the plan, their senders, and refusals before any charge."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from accountant.events import Adjacency, NonPrivate, Unit
from accountant.ledger import Ledger
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum, require_request
from privbo.door.noise import SimulatedNoise
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.builders import WEIGHTS, door as new_door, ledger, mechanism_for, request

REWARD = {"adjacency": Adjacency.REPLACE_ONE}


def door(*given, **settings) -> tuple[Door, Ledger]:
    made = ledger()
    return new_door(made, noise=SimulatedNoise(*given or (3,)), **settings), made


def test_every_round_has_noise_of_its_own_and_its_place_in_the_plan() -> None:
    here, book = door()
    values = []
    for position, round_ in enumerate((4, 7)):
        release, _ = here.close(here.open(round_, request(), plan_position=position), np.zeros((2, 3)))
        values.append(release.values)
    assert not np.intersect1d(values[0], values[1]).size
    assert [(e.release_id, e.plan_position) for e in book.entries()] == [("run/4", 0), ("run/7", 1)]


def test_a_mechanism_for_another_reward_is_refused_before_any_charge() -> None:
    book = ledger(unit=Unit.REWARD)

    def another(wanted: Request) -> PrivateSum:
        return mechanism_for(replace(wanted, unit="reward", unit_bound=0.5), noise_multiplier=1.0, **REWARD)

    here = new_door(book, mechanism=another)
    with pytest.raises(ConfigurationError, match="bound on one unit"):
        here.open(0, request(unit="reward", unit_bound=0.1))
    assert book.entries() == []


@pytest.mark.parametrize("change", [{"dim": True}, {"dim": 0}, {"clipping_norm": 1e101}, {"clipping_norm": math.nan}])
def test_the_door_the_mechanism_and_the_request_itself_all_refuse_what_cannot_be(change: dict) -> None:
    bad, name = request(**change), next(iter(change))
    with pytest.raises(ConfigurationError, match=name):
        require_request(bad)
    for noise_multiplier in (1.0, None):
        with pytest.raises(ConfigurationError, match=name):
            mechanism_for(bad, noise_multiplier=noise_multiplier)
        here, book = door(mechanism=lambda _, z=noise_multiplier: mechanism_for(request(), noise_multiplier=z))
        with pytest.raises(ConfigurationError, match=name):
            here.open(0, bad)
        assert book.entries() == []


def test_a_hidden_channels_ticket_names_its_senders_until_it_is_used() -> None:
    """Noise is 1e-6 of the sensitivity, so the release tells which of the two took part."""
    for seed in range(12):
        here, _ = door(seed, noise_multiplier=1e-6, sample_rate=0.5)
        assert here.open(1, request()).senders is None
        here.only_sampled_send = True
        ticket = here.open(0, request())
        senders = ticket.senders
        release, _ = here.close(ticket, np.eye(2, 3))
        np.testing.assert_allclose(release.values[:, :2] * 0.5, WEIGHTS * senders, atol=1e-4)
        assert ticket.senders is None
        assert here.open(0, request()).senders is None  # it is stored; nobody need send again


def test_a_plain_sum_of_one_reward_stands_on_any_ledger() -> None:
    here, book = door(mechanism=lambda wanted: mechanism_for(wanted, noise_multiplier=None))
    here.open(0, request(unit="reward", unit_bound=0.1))
    assert [entry.event for entry in book.entries()] == [NonPrivate()]
