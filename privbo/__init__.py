"""Differentially private federated optimisation of expensive black-box objectives.

    import privbo as pb

    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=40)
    result = pb.run(problem, pb.DPFTSDE(), privacy=pb.Privacy(epsilon=2), rounds=20)
    result.epsilon(), result.best(client=3), result.report()

Names are loaded when they are first used, so that importing the package stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privbo.api import Best, Result, audit, load, run
    from privbo.elimination.fed_pne import FedPNE
    from privbo.elimination.parallel import ParallelXArmed
    from privbo.elimination.pf_pne import PFPNE
    from privbo.errors import ConfigurationError, RunError
    from privbo.functional.federated import FederatedFLCB
    from privbo.loop import plan
    from privbo.notes import Round
    from privbo.pages.compare import Comparison
    from privbo.privacy import AdaptiveClipping, NoPrivacy, Privacy, SharedLedger, default_delta, paper_delta
    from privbo.problem import Problem
    from privbo.side_by_side import compare
    from privbo.space import Categorical, Int, Real, Space
    from privbo.thompson.dp_fts_de import DPFTSDE
    from privbo.thompson.exploration import Cut, Exploration, Weighting
    from privbo.thompson.own_model import OwnModel, Prior
    from privbo.thompson.theory import Theorem1
    from privbo.transports.attendance import Attendance

__version__ = "0.1.0"

_HOME = {
    "Attendance": "privbo.transports.attendance",
    "AdaptiveClipping": "privbo.privacy",
    "Best": "privbo.api",
    "Categorical": "privbo.space",
    "Comparison": "privbo.pages.compare",
    "ConfigurationError": "privbo.errors",
    "Cut": "privbo.thompson.exploration",
    "DPFTSDE": "privbo.thompson.dp_fts_de",
    "Exploration": "privbo.thompson.exploration",
    "OwnModel": "privbo.thompson.own_model",
    "Prior": "privbo.thompson.own_model",
    "Theorem1": "privbo.thompson.theory",
    "Weighting": "privbo.thompson.exploration",
    "FedPNE": "privbo.elimination.fed_pne",
    "FederatedFLCB": "privbo.functional.federated",
    "Int": "privbo.space",
    "NoPrivacy": "privbo.privacy",
    "PFPNE": "privbo.elimination.pf_pne",
    "ParallelXArmed": "privbo.elimination.parallel",
    "Privacy": "privbo.privacy",
    "Problem": "privbo.problem",
    "Real": "privbo.space",
    "Result": "privbo.api",
    "Round": "privbo.notes",
    "RunError": "privbo.errors",
    "SharedLedger": "privbo.privacy",
    "Space": "privbo.space",
    "audit": "privbo.api",
    "compare": "privbo.side_by_side",
    "default_delta": "privbo.privacy",
    "load": "privbo.api",
    "paper_delta": "privbo.privacy",
    "plan": "privbo.loop",
    "run": "privbo.api",
}

__all__ = [
    "DPFTSDE",
    "PFPNE",
    "AdaptiveClipping",
    "Attendance",
    "Best",
    "Categorical",
    "Comparison",
    "ConfigurationError",
    "Cut",
    "Exploration",
    "FedPNE",
    "FederatedFLCB",
    "Int",
    "NoPrivacy",
    "OwnModel",
    "ParallelXArmed",
    "Prior",
    "Privacy",
    "Problem",
    "Real",
    "Result",
    "Round",
    "RunError",
    "SharedLedger",
    "Space",
    "Theorem1",
    "Weighting",
    "audit",
    "compare",
    "default_delta",
    "load",
    "paper_delta",
    "plan",
    "run",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module attribute may be anything
    if name not in _HOME:
        raise AttributeError(f"module 'privbo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
