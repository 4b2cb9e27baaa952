from privbo.algorithms.elimination.fed_pne import FedPNE as FedPNE
from privbo.algorithms.elimination.parallel import ParallelXArmed as ParallelXArmed
from privbo.algorithms.elimination.pf_pne import PFPNE as PFPNE
from privbo.algorithms.functional.federated import FederatedFLCB as FederatedFLCB
from privbo.algorithms.thompson.dp_fts_de import DPFTSDE as DPFTSDE
from privbo.algorithms.thompson.exploration import Cut as Cut, Exploration as Exploration, Weighting as Weighting
from privbo.algorithms.thompson.multi_task import MultiTask as MultiTask
from privbo.algorithms.thompson.settings import OwnModel as OwnModel, Prior as Prior, Theorem1 as Theorem1
from privbo.algorithms.thompson.shared_prior import SharedPrior as SharedPrior
from privbo.audits.clipping import audit as audit
from privbo.bridges import optuna as optuna
from privbo.comparisons.comparison import Comparison as Comparison
from privbo.comparisons.sweep import compare as compare
from privbo.door.adaptive import AdaptiveClipping as AdaptiveClipping
from privbo.plans.plan import Plan as Plan
from privbo.plans.policy import Policy as Policy
from privbo.plans.privacy import (
    NoPrivacy as NoPrivacy,
    Privacy as Privacy,
    default_delta as default_delta,
    paper_delta as paper_delta,
)
from privbo.plans.shared_ledger import DeclaredReleases as DeclaredReleases, SharedLedger as SharedLedger
from privbo.protocol.errors import (
    ConfigurationError as ConfigurationError,
    PolicyError as PolicyError,
    RehearsalError as RehearsalError,
    RunError as RunError,
)
from privbo.protocol.problem import Problem as Problem, in_blocks as in_blocks
from privbo.protocol.space import Categorical as Categorical, Int as Int, Real as Real, Space as Space
from privbo.reports.report import history as history, report as report
from privbo.reports.report_page import figures as figures, write_report as write_report
from privbo.runs.altered import Attendance as Attendance
from privbo.runs.best import Best as Best
from privbo.runs.loop import plan as plan, run as run
from privbo.runs.record import Record as Record, Round as Round, load as load
from privbo.runs.rehearsal import Rehearsal as Rehearsal, check as check
from privbo.runs.session import Session as Session, Site as Site, start as start
from privbo.runs.spec import Spec as Spec, Times as Times
from privbo.runs.trials import Trial as Trial
from privbo.training.plan import TrainingPlan as TrainingPlan
from privbo.training.private_neural import Split as Split
from privbo.training.train import Trained as Trained, plan_training as plan_training, train_private as train_private

__version__: str
