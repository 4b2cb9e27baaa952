"""Differentially private federated optimisation of expensive black-box objectives.

    import privbo as pb

    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=40)
    record = pb.run(problem, pb.SharedPrior(), privacy=pb.Privacy(epsilon=2), rounds=20)
    record.epsilon(), record.best(client=3), pb.write_report(record)

Names are loaded when they are first used, so that importing the package stays fast.
"""

from __future__ import annotations

import importlib
from os.path import abspath, dirname
from typing import TYPE_CHECKING, Any

import accountant

if TYPE_CHECKING:
    from privbo.algorithms.common.best_arm import BestArm
    from privbo.algorithms.common.central_model import CentralModel
    from privbo.algorithms.common.dp_hype import DPHype
    from privbo.algorithms.common.private_search import PrivateSearch
    from privbo.algorithms.elimination.fed_pne import FedPNE
    from privbo.algorithms.elimination.flexible import FlexibleXArmed
    from privbo.algorithms.elimination.parallel import ParallelXArmed
    from privbo.algorithms.elimination.pf_pne import PFPNE
    from privbo.algorithms.functional.federated import FederatedFLCB
    from privbo.algorithms.thompson.dp_fts_de import DPFTSDE
    from privbo.algorithms.thompson.exploration import Cut, Exploration, Weighting
    from privbo.algorithms.thompson.own_model import OwnModel, Prior
    from privbo.algorithms.thompson.shared_prior import SharedPrior
    from privbo.algorithms.thompson.theory import Theorem1
    from privbo.audits.clipping import clipping_audit as audit
    from privbo.comparisons.comparison import Comparison
    from privbo.comparisons.runs import compare
    from privbo.door.adaptive import AdaptiveClipping
    from privbo.plans.plan import Plan
    from privbo.plans.policy import Policy
    from privbo.plans.privacy import NoPrivacy, Privacy, default_delta, paper_delta
    from privbo.plans.shared_ledger import DeclaredReleases, SharedLedger
    from privbo.protocol.errors import ConfigurationError, PolicyError, RunError
    from privbo.protocol.problem import Problem
    from privbo.protocol.space import Categorical, Int, Real, Space
    from privbo.reports.data import figures, report, write_report
    from privbo.reports.history import history_frame as history
    from privbo.runs.attendance import Attendance
    from privbo.runs.best import Best
    from privbo.runs.grid import Times
    from privbo.runs.history import Round
    from privbo.runs.loop import plan, run
    from privbo.runs.record import Record, load
    from privbo.runs.session import Session, start
    from privbo.runs.site import Site
    from privbo.runs.spec import Spec
    from privbo.runs.trial import Trial
    from privbo.training.price import TrainingPlan, plan_training
    from privbo.training.private_neural import Split
    from privbo.training.train import Trained, train_private

__version__ = "0.3.0"

_HOME = {
    "Attendance": "privbo.runs.attendance",
    "AdaptiveClipping": "privbo.door.adaptive",
    "Best": "privbo.runs.best",
    "BestArm": "privbo.algorithms.common.best_arm",
    "Categorical": "privbo.protocol.space",
    "CentralModel": "privbo.algorithms.common.central_model",
    "Comparison": "privbo.comparisons.comparison",
    "ConfigurationError": "privbo.protocol.errors",
    "Cut": "privbo.algorithms.thompson.exploration",
    "DPFTSDE": "privbo.algorithms.thompson.dp_fts_de",
    "DPHype": "privbo.algorithms.common.dp_hype",
    "Exploration": "privbo.algorithms.thompson.exploration",
    "OwnModel": "privbo.algorithms.thompson.own_model",
    "Prior": "privbo.algorithms.thompson.own_model",
    "Theorem1": "privbo.algorithms.thompson.theory",
    "Times": "privbo.runs.grid",
    "Weighting": "privbo.algorithms.thompson.exploration",
    "FedPNE": "privbo.algorithms.elimination.fed_pne",
    "FederatedFLCB": "privbo.algorithms.functional.federated",
    "FlexibleXArmed": "privbo.algorithms.elimination.flexible",
    "Int": "privbo.protocol.space",
    "NoPrivacy": "privbo.plans.privacy",
    "PFPNE": "privbo.algorithms.elimination.pf_pne",
    "ParallelXArmed": "privbo.algorithms.elimination.parallel",
    "Privacy": "privbo.plans.privacy",
    "PrivateSearch": "privbo.algorithms.common.private_search",
    "Problem": "privbo.protocol.problem",
    "Real": "privbo.protocol.space",
    "Plan": "privbo.plans.plan",
    "Policy": "privbo.plans.policy",
    "PolicyError": "privbo.protocol.errors",
    "Record": "privbo.runs.record",
    "Spec": "privbo.runs.spec",
    "Round": "privbo.runs.history",
    "RunError": "privbo.protocol.errors",
    "SharedPrior": "privbo.algorithms.thompson.shared_prior",
    "DeclaredReleases": "privbo.plans.shared_ledger",
    "SharedLedger": "privbo.plans.shared_ledger",
    "Space": "privbo.protocol.space",
    "audit": "privbo.audits.clipping:clipping_audit",
    "compare": "privbo.comparisons.runs",
    "default_delta": "privbo.plans.privacy",
    "figures": "privbo.reports.data",
    "history": "privbo.reports.history:history_frame",
    "load": "privbo.runs.record",
    "optuna": "privbo.bridges.optuna:",
    "paper_delta": "privbo.plans.privacy",
    "plan": "privbo.runs.loop",
    "report": "privbo.reports.data",
    "run": "privbo.runs.loop",
    "Session": "privbo.runs.session",
    "Site": "privbo.runs.site",
    "Trial": "privbo.runs.trial",
    "Split": "privbo.training.private_neural",
    "start": "privbo.runs.session",
    "Trained": "privbo.training.train",
    "TrainingPlan": "privbo.training.price",
    "plan_training": "privbo.training.price",
    "train_private": "privbo.training.train",
    "write_report": "privbo.reports.data",
}

__all__ = [
    "DPFTSDE",
    "PFPNE",
    "AdaptiveClipping",
    "Attendance",
    "Best",
    "BestArm",
    "Categorical",
    "CentralModel",
    "Comparison",
    "ConfigurationError",
    "Cut",
    "DPHype",
    "DeclaredReleases",
    "Exploration",
    "FedPNE",
    "FederatedFLCB",
    "FlexibleXArmed",
    "Int",
    "NoPrivacy",
    "OwnModel",
    "ParallelXArmed",
    "Plan",
    "Policy",
    "PolicyError",
    "Prior",
    "Privacy",
    "PrivateSearch",
    "Problem",
    "Real",
    "Record",
    "Round",
    "RunError",
    "Session",
    "SharedLedger",
    "SharedPrior",
    "Site",
    "Space",
    "Spec",
    "Split",
    "Theorem1",
    "Times",
    "Trained",
    "TrainingPlan",
    "Trial",
    "Weighting",
    "audit",
    "compare",
    "default_delta",
    "figures",
    "history",
    "load",
    "paper_delta",
    "plan",
    "plan_training",
    "report",
    "run",
    "start",
    "train_private",
    "write_report",
]


def _require_own_accountant() -> None:
    """Refuse an ``accountant`` that did not come with this package: it would keep another account, or none.

    Raises:
        ImportError: If it is of another distribution or version, or stands elsewhere.
    """
    found = getattr(accountant, "__file__", None)  # a folder without __init__.py has none
    beside = abspath(f"{dirname(dirname(abspath(__file__)))}/accountant/__init__.py")
    came_with = getattr(accountant, "DISTRIBUTION", None)
    if found is None or abspath(found) != beside or came_with != f"privbo {__version__}":
        raise ImportError(
            f"the package 'accountant' at {found or 'no file'} is not the one of privbo {__version__}, {beside}: "
            "another distribution named 'accountant' was installed over it, or uninstalled, or stands before it on the "
            "path; run: pip uninstall accountant; pip install --force-reinstall --no-deps privbo"
        )


_require_own_accountant()


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module attribute may be anything
    if name not in _HOME:
        raise AttributeError(f"module 'privbo' has no attribute {name!r}")
    module, colon, attribute = _HOME[name].partition(":")
    found = importlib.import_module(module)
    return found if colon and not attribute else getattr(found, attribute or name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", "optuna"})
