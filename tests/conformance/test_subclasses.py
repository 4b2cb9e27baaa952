"""An empty subclass of an algorithm is that algorithm: the same releases from as many calls of the same code."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray, answers_together
from privbo.testing import bumps
from privbo.testing.subject import values_of
from tests.conformance.cases import ALIKE, CASES, ROUNDS, VARIANTS, VOTES, Case, problem


def subclassed(algorithm: Any) -> Any:
    """The same settings as a class of its own that adds nothing."""
    kind = type("Mine", (type(algorithm),), {"__module__": "mine"})
    return kind(**{each.name: getattr(algorithm, each.name) for each in dataclasses.fields(algorithm) if each.init})


def counted(case: Case, algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[FloatArray, Counter[str]]:
    """What a run releases, and how often it makes a cohort and calls the objective."""
    calls = Counter[str]()
    (home,) = [kind for kind in type(case.algorithm).__mro__ if "cohort" in vars(kind)][:1]
    make = vars(home)["cohort"]

    def cohort(self: Any, *settings: Any, **named: Any) -> Any:
        calls["cohorts"] += 1
        return make(self, *settings, **named)

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        calls["objective"] += 1
        return bumps(clients, units)

    with monkeypatch.context() as patch:
        patch.setattr(home, "cohort", cohort)
        record = pb.run(
            dataclasses.replace(problem(), batch_objective=objective),
            algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3, final=case.final,
        )  # fmt: skip
    return values_of(record), calls


@pytest.mark.parametrize("case", [*CASES, *ALIKE, *VARIANTS, *VOTES], ids=str)
def test_an_empty_subclass_releases_the_same_from_as_many_calls(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, calls = counted(case, case.algorithm, monkeypatch)
    found, again = counted(case, subclassed(case.algorithm), monkeypatch)
    np.testing.assert_array_equal(found, expected)
    assert again == calls
    assert again["cohorts"] >= 1 <= again["objective"]


def test_a_subclass_with_a_cohort_of_its_own_is_not_held_to_what_it_inherits() -> None:
    class Own(pb.FedPNE):
        def cohort(self, setting: Any, **named: Any) -> Any:
            return super().cohort(setting, **named)

    class Said(Own):
        answers_together = True

    assert not answers_together(Own())
    assert answers_together(Said())
    assert answers_together(pb.FedPNE())
