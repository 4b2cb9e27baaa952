"""Families that were set aside by digest before anything was tuned, and clients drawn of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.problems import client_families, record_families
from experiments.problems.client_families import clients

ALL = [(tables, name) for tables in (record_families.TABLES, client_families.TABLES) for name in tables.families]


def digests(tables):
    return json.loads(Path(sys.modules[tables.module].__file__).with_suffix(".json").read_text())


@pytest.fixture(scope="module", autouse=True)
def _computed_anew(tmp_path_factory):
    """Tables are made once for all tests of this file, by today's code."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("tables", [record_families.TABLES, client_families.TABLES])
def test_what_is_frozen_is_stored(tables):
    stored = {name: entry["frozen"] for name, entry in digests(tables).items()}
    assert stored == {name: family.frozen for name, family in tables.families.items()}


def test_half_of_the_sites_families_of_every_kind_are_frozen_and_all_of_the_clients():
    families = record_families.FAMILIES.values()
    for kind in ("models", "alarms", "categories", "steps"):
        assert sum(family.frozen for family in families if family.kind == kind) == 2
    assert all(family.frozen for family in client_families.FAMILIES.values())


@pytest.mark.parametrize(
    ("tables", "name"), [(record_families.TABLES, "shift plans"), (client_families.TABLES, "milling")]
)
def test_a_frozen_family_has_the_digest_of_the_commit_that_froze_it(tables, name):
    assert tables.digest(name) == digests(tables)[name]["digest"]


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "name"), ALL)
def test_every_family_has_the_digest_of_the_commit_that_froze_it(tables, name):
    assert tables.digest(name) == digests(tables)[name]["digest"]


def test_trials_beyond_the_cliff_fail_and_the_best_value_is_one_that_can_be_reached():
    given = clients(0, "milling", 40)
    points = given.space.grid()
    values = given.values(np.repeat(np.arange(40), len(points)), np.tile(points, (40, 1))).reshape(40, -1)
    assert 0.2 < np.isnan(values).mean() < 0.8
    np.testing.assert_array_equal(given.best, np.nanmax(values, axis=1))
    np.testing.assert_array_equal(given.low, np.nanmin(values, axis=1))
    assert 0.5 < given.correlation() < 0.99
    other = clients(1, "milling", 40)
    assert len({*given.best} & {*other.best}) < 40  # a seed draws its own clients
    with pytest.raises(pb.ConfigurationError, match="at most 60 clients"):
        clients(0, "milling", 61)
