"""The families of the record-level study: set aside by digest before anything was tuned, and what is drawn of them."""

import json
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.problems import record_families
from experiments.problems.record_families import FAMILIES, digest, surfaces
from experiments.problems.records import sites

_DIGESTS = json.loads(Path(record_families.__file__).with_suffix(".json").read_text())


def test_half_of_the_families_of_every_kind_are_frozen():
    assert {name: entry["frozen"] for name, entry in _DIGESTS.items()} == {n: f.frozen for n, f in FAMILIES.items()}
    kinds = {
        kind: [f.frozen for f in FAMILIES.values() if f.kind == kind]
        for kind in ("models", "alarms", "categories", "steps")
    }
    assert all(sum(frozen) == 2 for frozen in kinds.values())


@pytest.mark.parametrize("name", ["triage", "shift plans"])
def test_a_frozen_family_has_the_digest_of_the_commit_that_froze_it(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # computed anew
    assert digest(name) == _DIGESTS[name]["digest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_digest_of_the_commit_that_froze_it(name):
    assert digest(name) == _DIGESTS[name]["digest"]


def test_unlike_sites_have_the_same_values_in_other_places(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    alike = sites(0, "shift plans", n_sites=5, n_records=200)
    unlike = sites(0, "shift plans", n_sites=5, n_records=200, unlike=True)
    np.testing.assert_array_equal(np.sort(alike.values), np.sort(unlike.values))
    assert np.corrcoef(alike.values)[0, 1:].min() > 0.9 > np.corrcoef(unlike.values)[0, 1:].max()
    assert alike.losses.min(axis=1).tolist() == [0.0] * 5
    assert alike.losses.max(axis=1).tolist() == [1.0] * 5


def test_an_unknown_family_is_refused():
    with pytest.raises(pb.ConfigurationError, match="family='tea'"):
        sites(0, "tea", n_sites=5, n_records=200)
    assert surfaces("shift plans").shape == (3, 30, 400)
