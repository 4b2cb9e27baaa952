"""One small case per algorithm (and per variant whose code path differs)."""

from dataclasses import dataclass

import privbo as pb
from experiments.baselines.best_arm import BestArm
from experiments.baselines.central_model import CentralModel
from experiments.baselines.dp_fts_de import Variant
from experiments.baselines.dp_hype import DPHype
from experiments.baselines.flexible import FlexibleXArmed
from experiments.baselines.private_search import PrivateSearch
from experiments.examples.zoom import Zoom
from privbo.algorithms.thompson.scout import Scout
from privbo.protocol.common import Final
from privbo.protocol.messages import Algorithm, UnitName
from privbo.runs.offer import always
from privbo.testing import Subject, bumps
from tests.conformance.small import N_CLIENTS, ROUNDS, problem

__all__ = ["ALIKE", "CASES", "N_CLIENTS", "ROUNDS", "VARIANTS", "VOTES", "Case", "bumps", "problem", "without_none"]


def without_none(table):
    """A table for a configuration file, which knows no None."""
    return {k: without_none(v) for k, v in table.items() if v is not None} if isinstance(table, dict) else table


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: Algorithm
    unit: UnitName = "client"
    final: Final | None = None

    def __post_init__(self) -> None:  # seven clients are few: what they share would often not be released
        object.__setattr__(self, "algorithm", always(self.algorithm))

    def privacy(self, **settings) -> pb.Privacy:
        """Seeded noise of multiplier 1 for the case's unit, unless told otherwise."""
        return pb.Privacy(**{"noise_multiplier": 1.0, "noise": "simulation", "unit": self.unit} | settings)

    @property
    def subject(self) -> Subject:
        return Subject(algorithm=self.algorithm, unit=self.unit, rounds=ROUNDS, final=self.final)

    def __str__(self) -> str:
        return self.name


# The eliminations, of which one client, one reward or one record can be the unit.
FED, PARALLEL = pb.FedPNE(horizon=400, c=0.02), pb.ParallelXArmed(horizon=200, nu1=5.0, rho=0.8)
IN_PHASE = pb.PFPNE(horizon=60, c=0.02, stage2="in-phase", centre="client")
PRINTED = pb.PFPNE(horizon=60, c=0.02, stage2="printed")


SQUARE = pb.Weighting(form="square", sharpness=40.0, schedule="synthetic")
CUT_AND_SQUARE = {"cuts": (pb.Cut(parameter="x", at=(0.2, 0.5)),), "weighting": SQUARE}


def of_one(unit: UnitName) -> list[Case]:
    eliminations = {"fed-pne": FED, "pf-pne": IN_PHASE, "parallel": PARALLEL}
    return [Case(f"{name}, one {unit}", algorithm, unit=unit) for name, algorithm in eliminations.items()]


CASES = [
    Case("dp-fts-de", pb.DPFTSDE(n_features=12, n_init=2)),
    Case("dp-fts-de, means, of the experiments", Variant(n_features=12)),
    Case("dp-fts-de cut regions, square weights", pb.DPFTSDE(n_features=12, n_init=2, n_regions=3, **CUT_AND_SQUARE)),
    Case("shared-prior", pb.SharedPrior(n_features=12)),
    Case("shared-prior, Thompson draws", pb.SharedPrior(n_features=12, acquisition="thompson")),
    Case("fed-pne", FED),
    Case("fed-pne heuristic", pb.FedPNE.heuristic(horizon=400, c=0.02)),
    Case("parallel", PARALLEL),
    Case("pf-pne printed", PRINTED),
    Case("pf-pne in-phase, client-centred", IN_PHASE),
    Case("pf-pne optimistic", pb.PFPNE(horizon=100, c=0.02)),
    Case("f-lcb", pb.FederatedFLCB()),
    *of_one("reward"),
    Case("private search", PrivateSearch(n_candidates=3)),
    Case("scout", Scout(evaluations=6)),
    Case("zoom, of the how-to", Zoom()),
]
# Of problems that hold records.
RECORDS = [
    Case("multi-task", pb.MultiTask(), unit="record"),
    Case("multi-task, common", pb.MultiTask(goal="common"), unit="record"),
    *of_one("record"),
    Case("f-lcb, one record", pb.FederatedFLCB(difference=0.1), unit="record"),
]
# Of the experiments, with sides that a case has in whole or in part; conformance is checked of them, not whole runs.
ALIKE = [
    Case("central model", CentralModel(n_init=3, n_candidates=64)),
    Case("dp-hype", DPHype(n_candidates=8)),
    Case("best arm, one reward", BestArm(n_arms=4), unit="reward"),
    Case("flexible", FlexibleXArmed(horizon=60, c=0.05)),
]
# Variants of these, of the experiments too; slow tests.
VARIANTS = [
    Case("pf-pne heuristic", pb.PFPNE.heuristic(horizon=100, c=0.02)),
    Case("pf-pne warm", pb.PFPNE(horizon=60, c=0.02, stage2="warm")),
    Case("private search, random, one reward", PrivateSearch(n_candidates=2, sampler="random"), unit="reward"),
    Case("best arm", BestArm(n_arms=4)),
    Case("best arm, halving, one reward", BestArm(rule="halving", n_arms=8), unit="reward"),
    Case("flexible, one reward", FlexibleXArmed(horizon=60, c=0.05, centre="client"), unit="reward"),
    Case("dp-hype, graded, one reward", DPHype(n_candidates=8, ballot="graded"), unit="reward"),
]
# Runs that end with a common setting.
VOTES = [
    Case("shared-prior, vote", pb.SharedPrior(n_features=12), final="common"),
    Case("dp-fts-de, vote", pb.DPFTSDE(n_features=12), final="common"),
    Case("fed-pne, vote", FED, final="common"),
    Case("pf-pne, vote", PRINTED, final="common"),
    Case("parallel, vote", PARALLEL, final="common"),
]
