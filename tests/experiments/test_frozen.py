"""Families that were set aside by digest before anything was tuned, and clients drawn of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.problems import client_families, later_families, record_families, third_families

TABLES = (
    record_families.TABLES,
    client_families.TABLES,
    later_families.FEW,
    later_families.MANY,
    third_families.TABLES,
)


def digests(tables):
    return json.loads(Path(sys.modules[tables.module].__file__).with_suffix(".json").read_text())


@pytest.fixture(scope="module", autouse=True)
def _computed_anew(tmp_path_factory):
    """Tables are made once for all tests of this file, by today's code."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("module", [record_families, client_families, later_families, third_families])
def test_what_is_frozen_is_stored(module):
    tables = next(one for one in TABLES if one.module == module.__name__)
    stored = {name: entry["frozen"] for name, entry in digests(tables).items()}
    assert stored == {name: family.frozen for name, family in module.FAMILIES.items()}


def test_half_of_the_sites_families_of_every_kind_are_frozen_and_of_the_clients_those_not_yet_reported_on():
    families = record_families.FAMILIES.values()
    for kind in ("models", "alarms", "categories", "steps"):
        assert sum(family.frozen for family in families if family.kind == kind) == 2
    assert not any(family.frozen for family in client_families.FAMILIES.values())  # their table has been printed
    assert all(family.frozen for family in (*later_families.FAMILIES.values(), *third_families.FAMILIES.values()))


QUICKLY = {"shift plans", "milling", "welding", "fermentation", "charger"}  # one of every table
ALL = [
    pytest.param(tables, name, marks=() if name in QUICKLY else pytest.mark.slow)
    for tables in TABLES
    for name in tables.families
]


@pytest.mark.parametrize(("tables", "name"), ALL)
def test_a_family_has_the_digest_of_the_commit_that_froze_it(tables, name):
    assert tables.digest(name) == digests(tables)[name]["digest"]


@pytest.mark.parametrize(
    ("module", "name"), [(client_families, "milling"), (later_families, "welding"), (third_families, "charger")]
)
def test_trials_beyond_the_cliff_fail_and_the_best_value_is_one_that_can_be_reached(module, name):
    clients, given = module.clients, module.clients(0, name, 40)
    points = given.space.grid()
    values = given.values(np.repeat(np.arange(40), len(points)), np.tile(points, (40, 1))).reshape(40, -1)
    assert 0.2 < np.isnan(values).mean() < 0.8
    np.testing.assert_array_equal(given.best, np.nanmax(values, axis=1))
    np.testing.assert_array_equal(given.low, np.nanmin(values, axis=1))
    assert 0.5 < given.correlation() < 0.99
    assert len({*given.best} & {*clients(1, name, 40).best}) < 40  # a seed draws its own clients
    with pytest.raises(pb.ConfigurationError, match="at most 60 clients"):
        clients(0, name, 61)
    with pytest.raises(pb.ConfigurationError, match=f"choose one of .*{name}"):
        clients(0, "sailing", 40)


def test_two_hundred_clients_may_be_drawn_of_two_of_the_later_families():
    assert later_families.clients(0, "fermentation", 200).n_clients == 200
    with pytest.raises(pb.ConfigurationError, match="at most 240 clients"):
        later_families.clients(0, "fermentation", 241)


@pytest.mark.parametrize(
    ("module", "name", "refused_at", "taken_at"),
    [
        (later_families, "bounded support vectors", -1, 0),  # nu is above what the rarer class allows
        (third_families, "quadratic discriminants", (-1, 0), 0),  # more components than records of a class
    ],
)
def test_a_model_that_refuses_its_parameters_is_a_trial_that_failed(module, name, refused_at, taken_at):
    found = module.FAMILIES[name]
    scores = found.site(np.random.default_rng(0), found.shape)
    refused = np.isnan(scores).all(axis=1).reshape(found.shape)
    assert refused[refused_at].all()
    assert not refused[taken_at].any()
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1).reshape(found.shape), refused)
