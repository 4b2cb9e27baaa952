"""Settings of every algorithm: what is written is what is read, and what is impossible is refused in one wording."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.protocol.settings import dump_settings, read_settings, settings_schema
from privbo.runs.offer import always
from privbo.runs.sources import algorithm_table, read_algorithm
from tests.conformance.cases import ALIKE, CASES

TAGS = {
    pb.DPFTSDE: "dp-fts-de",
    pb.FedPNE: "fed-pne",
    pb.PFPNE: "pf-pne",
    pb.ParallelXArmed: "parallel",
    pb.FederatedFLCB: "f-lcb",
    PersonalElimination: "pe",
}
WRITTEN: list[Any] = [
    *(case.algorithm for case in [*CASES, *ALIKE] if type(case.algorithm) in TAGS),
    *(kind() for kind in TAGS),
    *(kind().local() for kind in TAGS),
    pb.DPFTSDE.paper(),
    pb.DPFTSDE(noise="theory", own=pb.OwnModel(regularisation="theory", inflation=pb.Theorem1(failure=0.05))),
    pb.DPFTSDE(n_regions=2, cuts=[pb.Cut(parameter="kind", at=["b"])], own=pb.OwnModel(noise_variance=0.1)),
    pb.DPFTSDE(n_regions=2, cuts=[pb.Cut(parameter="flag", at=[True])], weighting=pb.Weighting(hold=3, decay=0)),
    pb.FederatedFLCB(arm="model", delta_b=0.1, tolerance=0.2, reward_range=(-1, 1)),
    pb.ParallelXArmed(delta_b=0.01, reward_range=[0, 2]),
    pb.PFPNE(horizon=10**6, nu1=1 / 3, rho=0.1 + 0.2, cap=100, clip=1e-6, centre="client", reward_range=(-0.1, 1 / 7)),
]


@pytest.mark.parametrize("algorithm", WRITTEN, ids=lambda a: type(a).__name__)
def test_what_is_dumped_is_read_back(algorithm: Any) -> None:
    table = dump_settings(algorithm)
    assert table["type"] == TAGS[type(algorithm)]
    assert set(table) == {f.name for f in dataclasses.fields(algorithm)}
    assert read_settings(type(algorithm), table, "algorithm") == algorithm
    assert algorithm_table(algorithm) == table
    assert read_algorithm(table) == algorithm


def test_numpy_numbers_lists_and_whole_numbers_are_taken() -> None:
    algorithm = pb.FedPNE(horizon=np.int64(900), c=np.float64(0.5), nu1=2, reward_range=[0, np.float64(1.0)])
    assert algorithm == pb.FedPNE(horizon=900, c=0.5, nu1=2.0, reward_range=(0.0, 1.0))
    assert type(algorithm.horizon) is int
    cut = pb.Cut(parameter="x", at=[0.25])
    assert pb.DPFTSDE(n_regions=2, cuts=[cut]) == pb.DPFTSDE(n_regions=2, cuts=(cut,))


@pytest.mark.parametrize("kind", TAGS, ids=lambda k: k.__name__)
def test_another_algorithms_tag_is_refused(kind: Any) -> None:
    with pytest.raises(pb.ConfigurationError, match=r"algorithm\.type='other'"):
        read_settings(kind, {"type": "other"}, "algorithm")
    assert settings_schema(kind)["properties"]["type"]["const"] == TAGS[kind]


@pytest.mark.parametrize(
    ("algorithm", "certified"),
    [
        (pb.DPFTSDE(), False),
        (pb.FedPNE(), True),
        (pb.FedPNE.heuristic(), False),
        (pb.ParallelXArmed(), True),
        (pb.ParallelXArmed(clip=0.1), False),
        (pb.PFPNE(stage2="in-phase"), True),
        (pb.PFPNE(stage2="in-phase", widen=0.5), False),
        (pb.PFPNE(), False),  # optimistic: the shared stage only advises, so nothing rests on it
        (pb.FederatedFLCB(), False),
        (PersonalElimination(), False),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, bool) else str(v),
)
def test_promises_that_rest_on_fixed_clipping_norms_refuse_adaptive_ones(algorithm: Any, certified: bool) -> None:
    assert algorithm.is_certified is certified
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.5, n_clients=20)
    privacy = pb.Privacy(noise_multiplier=2.0, adaptive_clipping=pb.AdaptiveClipping(count_stddev=2.0))
    if certified:
        with pytest.raises(pb.ConfigurationError, match="would break the guarantee"):
            pb.plan(problem, algorithm, privacy=privacy, rounds=3)
    elif not isinstance(algorithm, PersonalElimination):
        assert pb.plan(problem, always(algorithm), privacy=privacy, rounds=3).releases >= 1
