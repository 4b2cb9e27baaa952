"""``evaluations``, most calls of the objective by one client over a run, is kept by every algorithm and priced."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.best_arm import BestArm
from experiments.baselines.central_model import CentralModel
from experiments.baselines.dp_hype import DPHype
from experiments.baselines.flexible import FlexibleXArmed
from experiments.baselines.private_search import PrivateSearch
from privbo.plans.effect import always
from privbo.protocol.messages import Algorithm, FloatArray, IntArray
from privbo.runs.sources import algorithms

# MultiTask evaluates its front and one point a round; it has no other number of evaluations.
EVERY: dict[str, Any] = {name: kind() for name, kind in algorithms().items() if name != "multi-task"}
EVERY["dp-fts-de"] = pb.DPFTSDE(n_init=2, n_regions=1)  # the paper's have ten and four
EVERY |= {  # of the experiments
    "best-arm": BestArm(n_arms=4),
    "central-model": CentralModel(),
    "dp-hype": DPHype(n_candidates=24),
    "flexible": FlexibleXArmed(),
    "private-search": PrivateSearch(),
}
# Their multiplier is that of a run's only release, of which releases have their shares.
BY_SHARES = ("best-arm", "central-model", "private-search", "shared-prior")
# A scout has one round, of as many evaluations as the setting says.
RUNNING: dict[str, Any] = {name: algorithm for name, algorithm in EVERY.items() if name != "scout"}
SHARING: dict[str, Any] = {name: always(algorithm) for name, algorithm in RUNNING.items() if name != "pe"}
STRICT = pb.Privacy(epsilon=2.0, delta=1e-5, noise="simulation")


class Counted:
    """Clients with peaks of their own that count every call."""

    def __init__(self, n_clients: int) -> None:
        self.peaks = np.linspace(0.3, 0.7, n_clients)
        self.calls = np.zeros(n_clients, dtype=np.int64)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        np.add.at(self.calls, clients, 1)
        return np.asarray(np.exp(-4 * ((units - self.peaks[clients, None]) ** 2).sum(axis=1)))

    def problem(self) -> pb.Problem:
        return pb.Problem(
            space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, batch_objective=self, n_clients=len(self.calls)
        )


def test_every_algorithm_has_the_setting() -> None:
    assert [name for name, algorithm in EVERY.items() if not hasattr(algorithm, "evaluations")] == []


@pytest.mark.parametrize("n_clients", [1, 40, 1000])
@pytest.mark.parametrize("evaluations", [7, 22])
@pytest.mark.parametrize("name", EVERY)
def test_no_client_evaluates_more_often(name: str, evaluations: int, n_clients: int) -> None:
    """Without the setting the same run calls more often, or this would show nothing."""
    if n_clients == 1000 and name in ("dp-fts-de", "shared-prior"):
        pytest.skip("a thousand clients' models take long and the rounds are the same")
    clients = Counted(n_clients)
    problem = clients.problem()
    pb.run(
        problem, dataclasses.replace(EVERY[name], evaluations=evaluations), privacy=pb.NoPrivacy(), rounds=22, seed=0
    )
    assert clients.calls.max() <= evaluations
    assert clients.calls.min() >= 1


@pytest.mark.parametrize("name", SHARING)
def test_the_plan_has_the_releases_and_the_noise_of_so_few_evaluations(name: str) -> None:
    problem = Counted(40).problem()
    few = pb.plan(problem, dataclasses.replace(SHARING[name], evaluations=6), privacy=STRICT, rounds=40)
    many = pb.plan(problem, SHARING[name], privacy=STRICT, rounds=40)
    if name == "dp-hype":  # its only release is priced alike for any number of candidates
        assert few.releases == many.releases == 1
        return
    assert 1 <= few.releases < many.releases
    assert few.noise_multiplier is not None
    assert many.noise_multiplier is not None
    if name in BY_SHARES:
        assert few.noise_multiplier == pytest.approx(many.noise_multiplier)
    else:
        assert few.noise_multiplier < 0.95 * many.noise_multiplier
    assert max(min(few.epsilon().values()), min(many.epsilon().values())) <= 2.0


@pytest.mark.parametrize(
    "algorithm",
    [
        pb.DPFTSDE(evaluations=2),
        pb.SharedPrior(evaluations=2),
        pb.FederatedFLCB(evaluations=5),
        pb.FedPNE(evaluations=2, nu1=0.01),
        pb.PFPNE(evaluations=2, nu1=0.01),
        pb.ParallelXArmed(evaluations=2, nu1=0.01),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_fewer_than_one_round_takes_are_refused_before_any_call(algorithm: Algorithm) -> None:
    clients = Counted(3)
    with pytest.raises(pb.ConfigurationError, match="evaluations"):
        pb.run(clients.problem(), algorithm, privacy=pb.NoPrivacy(), rounds=22)
    assert clients.calls.sum() == 0
